//! Sessions: a task that reads requests, and a thread that answers them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use rlox_core::Error;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::session::Session;
use super::{Counters, Limits, Make};
use crate::v1::{self, failure::Kind, reply::What, request};
use crate::wire;

/// How long a stream may be there without its first request.
const OPENING: Duration = Duration::from_secs(2);
/// How long a client may leave replies untaken.
const UNTAKEN: Duration = Duration::from_secs(30);
/// Streams beside sessions that have not opened one yet.
const OPENING_STREAMS: usize = 24;

type Replies = mpsc::Sender<Result<v1::Reply, Status>>;

/// What all sessions have in common.
pub(super) struct Service {
    make: Make,
    limits: Limits,
    counters: Arc<Counters>,
    opening: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl Service {
    pub(super) fn new(make: Make, limits: Limits, counters: Arc<Counters>, stopped: watch::Receiver<bool>) -> Self {
        let opening = Arc::new(Semaphore::new(OPENING_STREAMS));
        let sessions = Arc::new(Semaphore::new(limits.max_sessions));
        Self { make, limits, counters, opening, sessions, stopped }
    }

    fn refused(&self, status: Status) -> Status {
        self.counters.refused.fetch_add(1, Relaxed);
        status
    }
}

#[tonic::async_trait]
impl v1::worker_server::Worker for Service {
    type SessionStream = ReceiverStream<Result<v1::Reply, Status>>;

    async fn session(&self, request: Request<Streaming<v1::Request>>) -> Result<Response<Self::SessionStream>, Status> {
        let Ok(opening) = Arc::clone(&self.opening).try_acquire_owned() else {
            let text =
                format!("sessions: expected at most {OPENING_STREAMS} that begin at a time, got more; try again");
            return Err(self.refused(Status::resource_exhausted(text)));
        };
        let (replies, outgoing) = mpsc::channel(self.limits.credits as usize);
        let life = Life {
            make: Arc::clone(&self.make),
            limits: self.limits,
            counters: Arc::clone(&self.counters),
            sessions: Arc::clone(&self.sessions),
            stopped: self.stopped.clone(),
        };
        tokio::spawn(life.begin(request.into_inner(), replies, opening));
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// One session's.
struct Life {
    make: Make,
    limits: Limits,
    counters: Arc<Counters>,
    sessions: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
}

impl Life {
    async fn begin(mut self, mut incoming: Streaming<v1::Request>, replies: Replies, opening: OwnedSemaphorePermit) {
        let ended = self.first(&mut incoming, &replies, opening).await;
        if let Err(status) = ended {
            self.counters.refused.fetch_add(1, Relaxed);
            // Who does not take replies is not told either.
            let _ = replies.try_send(Err(status));
        }
    }

    /// Takes the first request, and then all others to the thread that answers them.
    async fn first(
        &mut self,
        incoming: &mut Streaming<v1::Request>,
        replies: &Replies,
        opening: OwnedSemaphorePermit,
    ) -> Result<(), Status> {
        let first = tokio::time::timeout(OPENING, incoming.message()).await;
        let late = |_| Status::deadline_exceeded("open: expected within 2 s, got nothing; send it first");
        let Some(first) = first.map_err(late)?? else { return Ok(()) };
        let Some(request::What::Open(open)) = first.what else {
            return Err(Status::failed_precondition(
                "open: expected as the first request, got another; open the session",
            ));
        };
        let Ok(permit) = Arc::clone(&self.sessions).try_acquire_owned() else {
            let text = format!(
                "sessions: expected at most {}, got one more; use another worker, or start it with --max-sessions",
                self.limits.max_sessions
            );
            return Err(Status::resource_exhausted(text));
        };
        drop(opening);
        let (requests, work) = sync_channel(self.limits.credits as usize);
        let gone = Arc::new(AtomicBool::new(false));
        let thread = Answering {
            make: Arc::clone(&self.make),
            limits: self.limits,
            counters: Arc::clone(&self.counters),
            replies: replies.clone(),
            runtime: Handle::current(),
            gone: Arc::clone(&gone),
            _permit: permit,
        };
        let sequence = first.sequence;
        let started =
            thread::Builder::new().name("rlox-session".into()).spawn(move || thread.run(&open, sequence, &work));
        started.map_err(|error| Status::resource_exhausted(format!("the system starts no thread: {error}")))?;
        let ended = self.forward(incoming, &requests, sequence).await;
        // In a shutdown what has come is answered; else nobody is there for it.
        gone.store(!*self.stopped.borrow(), Relaxed);
        ended
    }

    async fn forward(
        &mut self,
        incoming: &mut Streaming<v1::Request>,
        requests: &SyncSender<v1::Request>,
        mut sequence: u64,
    ) -> Result<(), Status> {
        loop {
            let request = tokio::select! {
                request = incoming.message() => request?,
                _ = self.stopped.wait_for(|stopped| *stopped) => return Ok(()),
            };
            let Some(request) = request else { return Ok(()) };
            sequence = sequence.wrapping_add(1);
            if request.sequence != sequence {
                let text = format!("sequence: expected {sequence}, got {}; begin another session", request.sequence);
                return Err(Status::failed_precondition(text));
            }
            match requests.try_send(request) {
                Ok(()) => {}
                Err(TrySendError::Disconnected(_)) => return Ok(()),
                Err(TrySendError::Full(_)) => {
                    let text =
                        format!("credits: expected at most {} unanswered requests, got more", self.limits.credits);
                    return Err(Status::resource_exhausted(text));
                }
            }
        }
    }
}

/// The thread of a session.
struct Answering {
    make: Make,
    limits: Limits,
    counters: Arc<Counters>,
    replies: Replies,
    runtime: Handle,
    gone: Arc<AtomicBool>,
    _permit: OwnedSemaphorePermit,
}

impl Answering {
    fn run(self, open: &v1::Open, mut sequence: u64, work: &Receiver<v1::Request>) {
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Session::open(open, &self.make, &self.limits, Arc::clone(&self.counters))
        }));
        let mut session = match opened {
            Ok(Ok((session, opened))) => {
                self.send(sequence, What::Opened(opened));
                session
            }
            Ok(Err(error)) => {
                self.counters.refused.fetch_add(1, Relaxed);
                self.send(sequence, What::Failure(wire::failure_to(error)));
                return;
            }
            Err(panic) => return self.panicked(sequence, panic),
        };
        self.counters.sessions.fetch_add(1, Relaxed);
        self.counters.opened.fetch_add(1, Relaxed);
        for request in work {
            sequence = request.sequence;
            let Some(what) = request.what else {
                let error = Error::config("request", "one that this worker knows", "another", "use the same version");
                self.send(sequence, What::Failure(wire::failure_to(error)));
                continue;
            };
            let stop = || self.gone.load(Relaxed);
            match catch_unwind(AssertUnwindSafe(|| session.answer(what, &stop))) {
                Ok(answer) => {
                    let reply = answer.unwrap_or_else(|error| What::Failure(wire::failure_to(error)));
                    if !self.send(sequence, reply) {
                        break;
                    }
                }
                Err(panic) => {
                    self.panicked(sequence, panic);
                    break;
                }
            }
        }
        self.counters.sessions.fetch_sub(1, Relaxed);
        // The environments are the caller's code, too.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(session))) {
            std::mem::forget(panic);
        }
    }

    /// Whether the reply was taken in time.
    fn send(&self, sequence: u64, what: What) -> bool {
        let reply = Ok(v1::Reply { sequence, what: Some(what) });
        match self.replies.try_send(reply) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(reply)) => {
                self.runtime.block_on(self.replies.send_timeout(reply, UNTAKEN)).is_ok()
            }
        }
    }

    fn panicked(&self, sequence: u64, panic: Box<dyn std::any::Any + Send>) {
        self.counters.panics.fetch_add(1, Relaxed);
        let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        // What a panic carries may panic when it is dropped.
        std::mem::forget(panic);
        let got = said.unwrap_or_else(|| "no message".into());
        let failure = v1::Failure { kind: Kind::Panic.into(), got, ..v1::Failure::default() };
        self.send(sequence, What::Failure(failure));
    }
}
