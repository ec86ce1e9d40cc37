//! The task that reads the requests of a session, and the thread that answers them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rlox_core::Error;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tonic::{Request, Response, Status, Streaming};

use super::budget::{MemoryBudget, MessageBudget, Replies, Reply, RequestPermits, shrink_permit};
use super::connection::{Peer, SessionGuard};
use super::metrics::Counters;
use super::options::{Limits, MakeEnv};
use super::session::WorkerSession;
use crate::codec;
use crate::proto::{self, failure::Kind, reply::What, request};

/// Time limit of a stream's first request.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that a stream waits while [`Limits::OPENING`] other streams open a session.
const OPENING_WAIT: Duration = Duration::from_millis(200);
/// Maximum time that a session waits for a client to receive earlier replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time that a session waits for a client to receive earlier replies at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// State shared by all sessions.
#[derive(Clone)]
pub(super) struct Service {
    make: MakeEnv,
    limits: Limits,
    counters: Arc<Counters>,
    opening: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    memory_budget: MemoryBudget,
    stopped: watch::Receiver<bool>,
}

impl Service {
    pub(super) fn new(
        make: MakeEnv,
        limits: Limits,
        counters: Arc<Counters>,
        sessions: Arc<Semaphore>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let opening = Arc::new(Semaphore::new(Limits::OPENING));
        Self {
            make,
            limits,
            counters,
            opening,
            sessions,
            memory_budget: MemoryBudget::new(limits.session_memory_bytes()),
            stopped,
        }
    }
}

#[tonic::async_trait]
impl proto::worker_server::Worker for Service {
    type SessionStream = Replies;

    async fn session(
        &self,
        request: Request<Streaming<proto::Request>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        // No data is read from a stream while it waits.
        let opening = tokio::time::timeout(OPENING_WAIT, Arc::clone(&self.opening).acquire_owned()).await;
        let Ok(Ok(opening)) = opening else {
            self.counters.refused.fetch_add(1, Relaxed);
            let max_opening = Limits::OPENING;
            let text =
                format!("sessions: expected at most {max_opening} that open at the same time, got more; try again");
            return Err(Status::resource_exhausted(text));
        };
        if *self.stopped.borrow() {
            return Err(Status::unavailable("sessions: the worker is shutting down; use another worker"));
        }
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            return Err(Status::internal("a request without its connection"));
        };
        let (replies, outgoing) = mpsc::unbounded_channel();
        let state = SessionState { service: self.clone(), peer, replies };
        tokio::spawn(state.run(request.into_inner(), opening));
        Ok(Response::new(Replies::new(outgoing)))
    }
}

/// State of one session.
struct SessionState {
    service: Service,
    peer: Peer,
    /// Channel without a limit of its own: the budget of replies bounds its content.
    replies: mpsc::UnboundedSender<Reply>,
}

impl SessionState {
    async fn run(mut self, mut incoming: Streaming<proto::Request>, opening: OwnedSemaphorePermit) {
        if let Err(status) = self.open_session(&mut incoming, opening).await {
            self.service.counters.refused.fetch_add(1, Relaxed);
            // Sending fails only if the client has disconnected.
            let _ = self.replies.send(Reply { result: Err(status), permit: None, request_permits: None });
        }
    }

    /// Handles the first request, and forwards all others to the session's thread.
    async fn open_session(
        &mut self,
        incoming: &mut Streaming<proto::Request>,
        opening: OwnedSemaphorePermit,
    ) -> Result<(), Status> {
        let first = tokio::time::timeout(OPEN_TIMEOUT, incoming.message()).await;
        let late = |_| Status::deadline_exceeded("open: expected a request within 2 s, got none; send it first");
        let Some(first) = first.map_err(late)?? else { return Ok(()) };
        let Some(request::What::Open(open)) = first.what else {
            return Err(Status::failed_precondition(
                "open: expected as the first request, got another; open the session",
            ));
        };
        let Service { limits, sessions, counters, .. } = &self.service;
        let Ok(permit) = Arc::clone(sessions).try_acquire_owned() else {
            let text = format!(
                "sessions: expected at most {}, got one more; use another worker, or a larger --max-sessions",
                limits.max_sessions
            );
            return Err(Status::resource_exhausted(text));
        };
        drop(opening);
        let budget = MessageBudget::new(limits.request_bytes());
        let Some(bytes) = budget.try_acquire(limits.max_message_bytes) else {
            return Err(Status::internal("the budget has no room for a first request"));
        };
        let (requests, request_receiver) = mpsc::unbounded_channel();
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let thread = SessionThread {
            make: Arc::clone(&self.service.make),
            limits: *limits,
            memory_budget: self.service.memory_budget.clone(),
            counters: Arc::clone(counters),
            replies: self.replies.clone(),
            reply_budget: MessageBudget::new(limits.max_message_bytes),
            runtime: Handle::current(),
            is_abandoned: Arc::clone(&is_abandoned),
            stopped: self.service.stopped.clone(),
            _carrying: self.peer.begin_session(),
            _permit: permit,
        };
        let (sequence, permits) = (first.sequence, RequestPermits { bytes, credit: None });
        let started = thread::Builder::new()
            .name("rlox-session".into())
            .spawn(move || thread.run(open, sequence, permits, request_receiver));
        started.map_err(|error| Status::resource_exhausted(format!("the system starts no thread: {error}")))?;
        let ended = self.forward_requests(incoming, &requests, &budget, sequence).await;
        // At shutdown the received requests are still answered. Otherwise the client has
        // disconnected.
        is_abandoned.store(!*self.service.stopped.borrow(), Relaxed);
        ended
    }

    async fn forward_requests(
        &mut self,
        incoming: &mut Streaming<proto::Request>,
        requests: &mpsc::UnboundedSender<(proto::Request, RequestPermits)>,
        budget: &MessageBudget,
        mut sequence: u64,
    ) -> Result<(), Status> {
        let Service { limits, stopped, .. } = &mut self.service;
        let credits = Arc::new(Semaphore::new(limits.credits as usize));
        loop {
            // A request is read only if the budget allows it. The channel of replies closes if the
            // client disconnects.
            let next = async {
                let bytes = budget.acquire(limits.max_message_bytes).await;
                Ok::<_, Status>(bytes.zip(incoming.message().await?))
            };
            let next = tokio::select! {
                next = next => next?,
                () = requests.closed() => return Ok(()),
                () = self.replies.closed() => return Ok(()),
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            };
            let Some((mut bytes, request)) = next else { return Ok(()) };
            let request = compact_request(request, limits.max_message_bytes, &mut bytes)?;
            sequence = sequence.wrapping_add(1);
            if request.sequence != sequence {
                let text = format!("sequence: expected {sequence}, got {}; open another session", request.sequence);
                return Err(Status::failed_precondition(text));
            }
            let Ok(credit) = Arc::clone(&credits).try_acquire_owned() else {
                let text = format!("credits: expected at most {} unanswered requests, got more", limits.credits);
                return Err(Status::resource_exhausted(text));
            };
            if requests.send((request, RequestPermits { bytes, credit: Some(credit) })).is_err() {
                return Ok(());
            }
        }
    }
}

/// Copies a small request out of its read buffer, and releases the unused part of its permit.
///
/// The read buffer may have `max_bytes` bytes. Requests of more than 1/64 of that size keep the
/// buffer and the whole permit.
fn compact_request(
    request: proto::Request,
    max_bytes: usize,
    permit: &mut OwnedSemaphorePermit,
) -> Result<proto::Request, Status> {
    let bytes = request.encoded_len();
    if bytes > max_bytes / 64 {
        return Ok(request);
    }
    shrink_permit(permit, bytes);
    proto::Request::decode(Bytes::from(request.encode_to_vec())).map_err(|error| Status::internal(error.to_string()))
}

/// Thread of a session.
struct SessionThread {
    make: MakeEnv,
    limits: Limits,
    memory_budget: MemoryBudget,
    counters: Arc<Counters>,
    replies: mpsc::UnboundedSender<Reply>,
    /// Budget of the replies that wait to be sent.
    reply_budget: MessageBudget,
    runtime: Handle,
    is_abandoned: Arc<AtomicBool>,
    stopped: watch::Receiver<bool>,
    _carrying: SessionGuard,
    _permit: OwnedSemaphorePermit,
}

impl SessionThread {
    fn run(
        self,
        open: proto::Open,
        sequence: u64,
        permits: RequestPermits,
        mut requests: mpsc::UnboundedReceiver<(proto::Request, RequestPermits)>,
    ) {
        let opened = catch_unwind(AssertUnwindSafe(|| {
            WorkerSession::open(&open, &self.make, &self.limits, &self.memory_budget, Arc::clone(&self.counters))
        }));
        drop(open);
        let mut session = match opened {
            Ok(Ok((session, opened))) => {
                self.send(sequence, What::Opened(opened), None, permits);
                session
            }
            Ok(Err(error)) => {
                self.counters.refused.fetch_add(1, Relaxed);
                self.send(sequence, What::Failure(codec::failure_to(error)), None, permits);
                return;
            }
            Err(panic) => return self.report_panic(sequence, panic, permits),
        };
        self.counters.sessions.fetch_add(1, Relaxed);
        self.counters.opened.fetch_add(1, Relaxed);
        while let Some((request, request_permits)) = requests.blocking_recv() {
            if !self.handle(&mut session, request, request_permits) {
                break;
            }
        }
        self.counters.sessions.fetch_sub(1, Relaxed);
        // Dropping the environments runs their own code, which may panic.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(session))) {
            std::mem::forget(panic);
        }
    }

    /// Handles a request and queues the reply. Returns true if the session continues.
    fn handle(&self, session: &mut WorkerSession, request: proto::Request, permits: RequestPermits) -> bool {
        // The permit also covers the memory of the decoded request before the reply exists.
        let Some(reply_permit) = self.reserve_reply(session.max_reply_bytes().max(permits.bytes.num_permits())) else {
            return false;
        };
        let sequence = request.sequence;
        let Some(what) = request.what else {
            let error = Error::config(
                "request",
                "a request that this worker knows",
                "an unknown request",
                "use the same version of rlox on both sides",
            );
            return self.send(sequence, What::Failure(codec::failure_to(error)), Some(reply_permit), permits);
        };
        let stop = || self.is_abandoned.load(Relaxed);
        match catch_unwind(AssertUnwindSafe(|| session.handle(what, &stop))) {
            Ok(answer) => {
                let reply = answer.unwrap_or_else(|error| What::Failure(codec::failure_to(error)));
                self.send(sequence, reply, Some(reply_permit), permits)
            }
            Err(panic) => {
                self.report_panic(sequence, panic, permits);
                false
            }
        }
    }

    /// Acquires bytes for a reply; `None` if the client does not receive earlier replies in time.
    fn reserve_reply(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.min(self.limits.max_message_bytes);
        self.reply_budget.try_acquire(bytes).or_else(|| {
            let mut stopped = self.stopped.clone();
            let wait_for_timeout = async {
                tokio::select! {
                    () = tokio::time::sleep(REPLY_TIMEOUT) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => tokio::time::sleep(SHUTDOWN_TIMEOUT).await,
                }
            };
            self.runtime.block_on(async {
                tokio::select! {
                    permit = self.reply_budget.acquire(bytes) => permit,
                    () = wait_for_timeout => None,
                }
            })
        })
    }

    /// Queues a reply. Returns false if the client has disconnected or does not receive replies in
    /// time.
    fn send(
        &self,
        sequence: u64,
        what: What,
        reply_permit: Option<OwnedSemaphorePermit>,
        permits: RequestPermits,
    ) -> bool {
        let mut reply = proto::Reply { sequence, what: Some(what) };
        if let Err(error) = self.limits.check_message("max_message_bytes", reply.encoded_len()) {
            reply.what = Some(What::Failure(codec::failure_to(error)));
        }
        let bytes = reply.encoded_len();
        let reply_permit = match reply_permit {
            Some(mut permit) if permit.num_permits() >= bytes => {
                shrink_permit(&mut permit, bytes);
                Some(permit)
            }
            permit => {
                drop(permit);
                self.reserve_reply(bytes)
            }
        };
        reply_permit.is_some()
            && self
                .replies
                .send(Reply { result: Ok(reply), permit: reply_permit, request_permits: Some(permits) })
                .is_ok()
    }

    fn report_panic(&self, sequence: u64, panic: Box<dyn std::any::Any + Send>, permits: RequestPermits) {
        self.counters.panics.fetch_add(1, Relaxed);
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        // Dropping a panic's payload may panic again.
        std::mem::forget(panic);
        let got = message.unwrap_or_else(|| "no message".into());
        let failure = proto::Failure { kind: Kind::Panic.into(), got, ..proto::Failure::default() };
        self.send(sequence, What::Failure(failure), None, permits);
    }
}
