//! Budgets in bytes, for messages and for the memory of sessions.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rlox_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::Status;

use crate::proto;

/// Number of bytes that the messages of a session may still use.
///
/// The maximum size of a message is acquired before a message is read or created. The unused part
/// is released afterwards.
#[derive(Clone)]
pub(super) struct MessageBudget(Arc<Semaphore>);

impl MessageBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Waits until `bytes` bytes are available, and acquires them. `None` if `bytes` exceeds
    /// `u32::MAX`.
    pub(super) async fn acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_many_owned(u32::try_from(bytes).ok()?).await.ok()
    }

    /// Acquires `bytes` bytes; `None` if they are not available now.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }
}

/// Releases all but `bytes` bytes of a permit.
pub(super) fn shrink_permit(permit: &mut OwnedSemaphorePermit, bytes: usize) {
    drop(permit.split(permit.num_permits().saturating_sub(bytes)));
}

/// Permits that a request holds until its reply is sent.
pub(super) struct RequestPermits {
    pub(super) bytes: OwnedSemaphorePermit,
    /// Credit of the request; `None` for the first request of a session.
    pub(super) credit: Option<OwnedSemaphorePermit>,
}

/// Reply in the queue of a session, with the permits of the reply and its request.
pub(super) struct Reply {
    pub(super) result: std::result::Result<proto::Reply, Status>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) request_permits: Option<RequestPermits>,
}

/// Stream of a session's replies, from which HTTP/2 takes replies to send.
///
/// HTTP/2 takes the next reply when it has sent most of a reply. The permits of a reply are
/// released when HTTP/2 asks for the next reply.
pub(super) struct Replies {
    receiver: mpsc::UnboundedReceiver<Reply>,
    held_permits: Vec<OwnedSemaphorePermit>,
}

impl Replies {
    pub(super) fn new(receiver: mpsc::UnboundedReceiver<Reply>) -> Self {
        Self { receiver, held_permits: Vec::new() }
    }
}

impl Stream for Replies {
    type Item = std::result::Result<proto::Reply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.held_permits.clear();
        self.receiver.poll_recv(context).map(|reply| {
            let Reply { result, permit, request_permits } = reply?;
            self.held_permits.extend(permit);
            if let Some(RequestPermits { bytes, credit }) = request_permits {
                self.held_permits.push(bytes);
                drop(credit);
            }
            Some(result)
        })
    }
}

/// Memory budget of the environments, rollouts and networks of all sessions, in KiB.
#[derive(Clone)]
pub(super) struct MemoryBudget(Arc<Semaphore>);

impl MemoryBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes >> 10).min(Semaphore::MAX_PERMITS))))
    }

    /// Acquires memory until the permit is dropped.
    ///
    /// # Errors
    /// [`Error::Memory`] naming `argument` if less memory is available.
    pub(super) fn acquire(&self, argument: &'static str, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let free = self.0.available_permits();
        let permits = u32::try_from(bytes.div_ceil(1024)).ok();
        let permit = permits.and_then(|kib| Arc::clone(&self.0).try_acquire_many_owned(kib).ok());
        permit.ok_or_else(|| {
            let expected = format!("at most {} bytes, the free memory for sessions", free << 10);
            let fix = "use a smaller value, or start the worker with a larger --max-message-bytes or --max-sessions";
            Error::memory(argument, expected, format!("{bytes} bytes"), fix)
        })
    }
}
