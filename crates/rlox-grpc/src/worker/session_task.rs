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

use super::budget::{Answer, Asked, Held, Replies, Room, keep};
use super::connection::{Carrying, Peer};
use super::metrics::Counters;
use super::options::{Limits, Make};
use super::session::Session;
use crate::codec;
use crate::proto::{self, failure::Kind, reply::What, request};

/// How long a stream may be there without its first request.
const OPENING: Duration = Duration::from_secs(2);
/// How long it may wait for others that begin.
const WAITING: Duration = Duration::from_millis(200);
/// How long a client may leave replies untaken.
const UNTAKEN: Duration = Duration::from_secs(30);
/// And when the worker ends.
const ENDING: Duration = Duration::from_secs(3);

/// What all sessions have in common.
#[derive(Clone)]
pub(super) struct Service {
    make: Make,
    limits: Limits,
    counters: Arc<Counters>,
    opening: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    held: Held,
    stopped: watch::Receiver<bool>,
}

impl Service {
    pub(super) fn new(
        make: Make,
        limits: Limits,
        counters: Arc<Counters>,
        sessions: Arc<Semaphore>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let opening = Arc::new(Semaphore::new(Limits::OPENING));
        Self { make, limits, counters, opening, sessions, held: Held::new(limits.held_bytes()), stopped }
    }
}

#[tonic::async_trait]
impl proto::worker_server::Worker for Service {
    type SessionStream = Replies;

    async fn session(
        &self,
        request: Request<Streaming<proto::Request>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        // Nothing of a stream is read that waits.
        let opening = tokio::time::timeout(WAITING, Arc::clone(&self.opening).acquire_owned()).await;
        let Ok(Ok(opening)) = opening else {
            self.counters.refused.fetch_add(1, Relaxed);
            let most = Limits::OPENING;
            let text = format!("sessions: expected at most {most} that begin at a time, got more; try again");
            return Err(Status::resource_exhausted(text));
        };
        if *self.stopped.borrow() {
            return Err(Status::unavailable(
                "sessions: expected before the worker ends, got one then; use another worker",
            ));
        }
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            return Err(Status::internal("a request without its connection"));
        };
        let (replies, outgoing) = mpsc::unbounded_channel();
        let life = Life { service: self.clone(), peer, replies };
        tokio::spawn(life.begin(request.into_inner(), opening));
        Ok(Response::new(Replies::new(outgoing)))
    }
}

/// One session's.
struct Life {
    service: Service,
    peer: Peer,
    /// Bounded by the room that replies take.
    replies: mpsc::UnboundedSender<Answer>,
}

impl Life {
    async fn begin(mut self, mut incoming: Streaming<proto::Request>, opening: OwnedSemaphorePermit) {
        if let Err(status) = self.first(&mut incoming, opening).await {
            self.service.counters.refused.fetch_add(1, Relaxed);
            // Who is gone is not told.
            let _ = self.replies.send(Answer { reply: Err(status), room: None, asked: None });
        }
    }

    /// Takes the first request, and then all others to the thread that answers them.
    async fn first(
        &mut self,
        incoming: &mut Streaming<proto::Request>,
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
        let Service { limits, sessions, counters, .. } = &self.service;
        let Ok(permit) = Arc::clone(sessions).try_acquire_owned() else {
            let text = format!(
                "sessions: expected at most {}, got one more; use another worker, or start it with --max-sessions",
                limits.max_sessions
            );
            return Err(Status::resource_exhausted(text));
        };
        drop(opening);
        let room = Room::new(limits.asked_bytes());
        let Some(bytes) = room.take_now(limits.max_message_bytes) else {
            return Err(Status::internal("there is no room for a first request"));
        };
        let (requests, work) = mpsc::unbounded_channel();
        let gone = Arc::new(AtomicBool::new(false));
        let thread = Answering {
            make: Arc::clone(&self.service.make),
            limits: *limits,
            held: self.service.held.clone(),
            counters: Arc::clone(counters),
            replies: self.replies.clone(),
            room: Room::new(limits.max_message_bytes),
            runtime: Handle::current(),
            gone: Arc::clone(&gone),
            stopped: self.service.stopped.clone(),
            _carrying: self.peer.carry(),
            _permit: permit,
        };
        let (sequence, asked) = (first.sequence, Asked { bytes, credit: None });
        let started =
            thread::Builder::new().name("rlox-session".into()).spawn(move || thread.run(open, sequence, asked, work));
        started.map_err(|error| Status::resource_exhausted(format!("the system starts no thread: {error}")))?;
        let ended = self.forward(incoming, &requests, &room, sequence).await;
        // In a shutdown what has come is answered; else nobody is there for it.
        gone.store(!*self.service.stopped.borrow(), Relaxed);
        ended
    }

    async fn forward(
        &mut self,
        incoming: &mut Streaming<proto::Request>,
        requests: &mpsc::UnboundedSender<(proto::Request, Asked)>,
        room: &Room,
        mut sequence: u64,
    ) -> Result<(), Status> {
        let Service { limits, stopped, .. } = &mut self.service;
        let credits = Arc::new(Semaphore::new(limits.credits as usize));
        loop {
            // Nothing is read that there is no room for. Who goes meanwhile takes no more replies.
            let next = async {
                let bytes = room.take(limits.max_message_bytes).await;
                Ok::<_, Status>(bytes.zip(incoming.message().await?))
            };
            let next = tokio::select! {
                next = next => next?,
                () = requests.closed() => return Ok(()),
                () = self.replies.closed() => return Ok(()),
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            };
            let Some((mut bytes, request)) = next else { return Ok(()) };
            let request = small(request, limits.max_message_bytes, &mut bytes)?;
            sequence = sequence.wrapping_add(1);
            if request.sequence != sequence {
                let text = format!("sequence: expected {sequence}, got {}; begin another session", request.sequence);
                return Err(Status::failed_precondition(text));
            }
            let Ok(credit) = Arc::clone(&credits).try_acquire_owned() else {
                let text = format!("credits: expected at most {} unanswered requests, got more", limits.credits);
                return Err(Status::resource_exhausted(text));
            };
            if requests.send((request, Asked { bytes, credit: Some(credit) })).is_err() {
                return Ok(());
            }
        }
    }
}

/// Lets a small request go from what it was read into, which may be as large as messages are; others keep all their room.
fn small(request: proto::Request, most: usize, room: &mut OwnedSemaphorePermit) -> Result<proto::Request, Status> {
    let bytes = request.encoded_len();
    if bytes > most / 64 {
        return Ok(request);
    }
    keep(room, bytes);
    proto::Request::decode(Bytes::from(request.encode_to_vec())).map_err(|error| Status::internal(error.to_string()))
}

/// The thread of a session.
struct Answering {
    make: Make,
    limits: Limits,
    held: Held,
    counters: Arc<Counters>,
    replies: mpsc::UnboundedSender<Answer>,
    /// What replies take that the client has not taken.
    room: Room,
    runtime: Handle,
    gone: Arc<AtomicBool>,
    stopped: watch::Receiver<bool>,
    _carrying: Carrying,
    _permit: OwnedSemaphorePermit,
}

impl Answering {
    fn run(
        self,
        open: proto::Open,
        sequence: u64,
        asked: Asked,
        mut work: mpsc::UnboundedReceiver<(proto::Request, Asked)>,
    ) {
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Session::open(&open, &self.make, &self.limits, &self.held, Arc::clone(&self.counters))
        }));
        drop(open);
        let mut session = match opened {
            Ok(Ok((session, opened))) => {
                self.send(sequence, What::Opened(opened), None, asked);
                session
            }
            Ok(Err(error)) => {
                self.counters.refused.fetch_add(1, Relaxed);
                self.send(sequence, What::Failure(codec::failure_to(error)), None, asked);
                return;
            }
            Err(panic) => return self.panicked(sequence, panic, asked),
        };
        self.counters.sessions.fetch_add(1, Relaxed);
        self.counters.opened.fetch_add(1, Relaxed);
        while let Some((request, asked)) = work.blocking_recv() {
            if !self.answer(&mut session, request, asked) {
                break;
            }
        }
        self.counters.sessions.fetch_sub(1, Relaxed);
        // The environments are the caller's code, too.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(session))) {
            std::mem::forget(panic);
        }
    }

    /// Whether the session goes on.
    fn answer(&self, session: &mut Session, request: proto::Request, asked: Asked) -> bool {
        // For the reply, and before it for what is made of the request.
        let Some(room) = self.room(session.largest().max(asked.bytes.num_permits())) else { return false };
        let sequence = request.sequence;
        let Some(what) = request.what else {
            let error = Error::config("request", "one that this worker knows", "another", "use the same version");
            return self.send(sequence, What::Failure(codec::failure_to(error)), Some(room), asked);
        };
        let stop = || self.gone.load(Relaxed);
        match catch_unwind(AssertUnwindSafe(|| session.answer(what, &stop))) {
            Ok(answer) => {
                let reply = answer.unwrap_or_else(|error| What::Failure(codec::failure_to(error)));
                self.send(sequence, reply, Some(room), asked)
            }
            Err(panic) => {
                self.panicked(sequence, panic, asked);
                false
            }
        }
    }

    /// Room for a reply; `None` where the client does not take the earlier ones in time.
    fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.min(self.limits.max_message_bytes);
        self.room.take_now(bytes).or_else(|| {
            let mut stopped = self.stopped.clone();
            let late = async {
                tokio::select! {
                    () = tokio::time::sleep(UNTAKEN) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => tokio::time::sleep(ENDING).await,
                }
            };
            self.runtime.block_on(async {
                tokio::select! {
                    room = self.room.take(bytes) => room,
                    () = late => None,
                }
            })
        })
    }

    /// Whether the reply will be taken.
    fn send(&self, sequence: u64, what: What, room: Option<OwnedSemaphorePermit>, asked: Asked) -> bool {
        let mut reply = proto::Reply { sequence, what: Some(what) };
        if let Err(error) = self.limits.check_message("max_message_bytes", reply.encoded_len()) {
            reply.what = Some(What::Failure(codec::failure_to(error)));
        }
        let bytes = reply.encoded_len();
        let room = match room {
            Some(mut room) if room.num_permits() >= bytes => {
                keep(&mut room, bytes);
                Some(room)
            }
            room => {
                drop(room);
                self.room(bytes)
            }
        };
        room.is_some() && self.replies.send(Answer { reply: Ok(reply), room, asked: Some(asked) }).is_ok()
    }

    fn panicked(&self, sequence: u64, panic: Box<dyn std::any::Any + Send>, asked: Asked) {
        self.counters.panics.fetch_add(1, Relaxed);
        let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        // What a panic carries may panic when it is dropped.
        std::mem::forget(panic);
        let got = said.unwrap_or_else(|| "no message".into());
        let failure = proto::Failure { kind: Kind::Panic.into(), got, ..proto::Failure::default() };
        self.send(sequence, What::Failure(failure), None, asked);
    }
}
