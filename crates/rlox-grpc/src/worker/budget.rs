//! Budgets in bytes, of messages and of the memory that sessions hold.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rlox_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tonic::Status;

use crate::proto;

/// Bytes that messages of a session may take. Room for the largest is taken before one is read or made, and what it does
/// not need is given back then.
#[derive(Clone)]
pub(super) struct MessageBudget(Arc<Semaphore>);

impl MessageBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Waits for room; `None` where there never is any.
    pub(super) async fn acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_many_owned(u32::try_from(bytes).ok()?).await.ok()
    }

    /// Room that is there now.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }
}

/// Gives back what is not needed of some room.
pub(super) fn shrink_permit(permit: &mut OwnedSemaphorePermit, bytes: usize) {
    drop(permit.split(permit.num_permits().saturating_sub(bytes)));
}

/// A request that is not answered yet: until its reply is taken it counts.
pub(super) struct RequestPermits {
    pub(super) bytes: OwnedSemaphorePermit,
    /// `None` for the first one.
    pub(super) credit: Option<OwnedSemaphorePermit>,
}

/// A reply that waits for the client to take it, with the room that it and its request have until then.
pub(super) struct Reply {
    pub(super) reply: std::result::Result<proto::Reply, Status>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) request_permits: Option<RequestPermits>,
}

/// The replies of a session as its client takes them. HTTP/2 has one on its way and one at hand: the latter has its room
/// until it is on its way and the next one is asked for.
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
            let Reply { reply, permit, request_permits } = reply?;
            self.held_permits.extend(permit);
            if let Some(RequestPermits { bytes, credit }) = request_permits {
                self.held_permits.push(bytes);
                drop(credit);
            }
            Some(reply)
        })
    }
}

/// What environments, rollouts and networks of all sessions may take together, in KiB.
#[derive(Clone)]
pub(super) struct MemoryBudget(Arc<Semaphore>);

impl MemoryBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes >> 10).min(Semaphore::MAX_PERMITS))))
    }

    /// Takes some of it until the permit is dropped.
    ///
    /// # Errors
    /// [`Error::Memory`] naming the argument where that is more than is left.
    pub(super) fn acquire(&self, argument: &'static str, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let free = self.0.available_permits();
        let permits = u32::try_from(bytes.div_ceil(1024)).ok();
        let permit = permits.and_then(|kib| Arc::clone(&self.0).try_acquire_many_owned(kib).ok());
        permit.ok_or_else(|| {
            let expected = format!("at most {} bytes, which are left for sessions", free << 10);
            let fix = "ask for less, or start the worker with a larger --max-message-bytes or --max-sessions";
            Error::memory(argument, expected, format!("{bytes} bytes"), fix)
        })
    }
}
