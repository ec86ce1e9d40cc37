//! Recovery from the loss of a session.
//!
//! A new session on another worker restores the last snapshot of the environments, and repeats the
//! requests since that snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlox_core::{Error, Result};

use super::context::ClientContext;
use super::session::{ClientSession, SessionError};
use crate::proto::{self, reply, request};

/// First and longest pause between two rounds over all addresses.
const BACKOFF: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(500)];
/// Maximum number and maximum bytes of logged requests, which only environments without snapshots
/// reach.
const MAX_LOG_LEN: usize = 100_000;
const MAX_LOG_BYTES: usize = 64 << 20;

/// Part of the environments, which one worker steps, and the data to restart it on another worker.
pub(super) struct Shard {
    context: Arc<ClientContext>,
    /// Index of the address of the current or last worker.
    worker_index: usize,
    session: Option<ClientSession>,
    open: proto::Open,
    /// Index of the shard's first environment among the environments of all workers.
    first_env: usize,
    /// Reply of the first worker to `Open`, which replies of other workers must equal.
    opened: proto::Opened,
    snapshot: Option<proto::EnvState>,
    /// Logged requests since the snapshot that changed the environments, in order.
    log: Vec<request::What>,
    log_bytes: usize,
    /// True if the log was dropped because it was too long. A lost session cannot be restarted
    /// then.
    is_log_dropped: bool,
    pending: Option<Pending>,
    outage: Option<(Instant, String)>,
    /// Last error of an attempt to restart the session.
    last_error: Option<String>,
}

struct Pending {
    request: request::What,
    /// True if the request changes the environments.
    is_logged: bool,
}

impl Shard {
    /// Opens the first session, on the worker at `worker_index` modulo the number of addresses.
    ///
    /// `first_env` is the index of the first environment among those of all workers.
    pub(super) fn new(
        context: &Arc<ClientContext>,
        worker_index: usize,
        open: proto::Open,
        first_env: usize,
    ) -> Result<Self> {
        let (worker_index, stop) = (worker_index % context.addresses.len(), || is_stopped(context));
        let (deadline, mut backoff) = (Instant::now() + context.options.connect_timeout, BACKOFF[0]);
        let session = loop {
            // An attempt that has started gets the full connection time.
            let open_deadline = deadline + context.options.connect_timeout;
            match connect(context, worker_index, open.clone(), first_env, open_deadline, &stop) {
                Ok(session) => break session,
                Err(SessionError::Error(error)) => return Err(error),
                Err(SessionError::Lost(reason)) if Instant::now() + backoff >= deadline => {
                    return Err(Error::Backend(reason));
                }
                Err(SessionError::Lost(_)) => wait(backoff, &stop)?,
            }
            backoff = (backoff * 2).min(BACKOFF[1]);
        };
        let (context, opened, log) = (Arc::clone(context), session.opened.clone(), Vec::new());
        let (snapshot, pending, outage, last_error) = (None, None, None, None);
        let (session, log_bytes, is_log_dropped) = (Some(session), 0, false);
        Ok(Self {
            context,
            worker_index,
            session,
            open,
            first_env,
            opened,
            snapshot,
            log,
            log_bytes,
            is_log_dropped,
            pending,
            outage,
            last_error,
        })
    }

    pub(super) fn opened(&self) -> &proto::Opened {
        &self.opened
    }

    /// Returns the address of the current or last worker.
    pub(super) fn address(&self) -> &str {
        &self.context.addresses[self.worker_index]
    }

    pub(super) fn num_envs(&self) -> usize {
        self.open.num_envs as usize
    }

    /// Makes the next request send the weights again, even if their version is unchanged.
    pub(super) fn invalidate_weights(&mut self) {
        if let Some(session) = &mut self.session {
            session.version = None;
        }
    }

    /// Returns true if the next request should ask for a snapshot.
    pub(super) fn wants_snapshot(&self) -> bool {
        self.log.len() + 1 >= self.context.options.snapshot_every
    }

    /// Returns true if a reply is pending.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Sends a request, whose reply [`Shard::receive_reply`] returns.
    ///
    /// `is_logged` is true if the request changes the environments.
    pub(super) fn send_request(&mut self, request: request::What, is_logged: bool) {
        self.context.clear_outage();
        self.pending = Some(Pending { request: request.clone(), is_logged });
        if let Some(session) = &mut self.session
            && let Err(session_error) = send(session, request)
        {
            self.mark_lost(session_error);
        }
    }

    /// Drops the pending request and its session.
    ///
    /// The next request restarts the session as if the dropped request had not been sent.
    pub(super) fn drop_pending(&mut self) {
        if self.pending.take().is_some() {
            self.session = None;
        }
    }

    /// Waits for the reply to the pending request. If the worker is lost, another worker replaces
    /// it.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: the wait ended early; the reply is still pending.
    /// - [`Error::Backend`]: no worker was found in time.
    /// - [`Error::Config`]: a worker rejects the client, for example because of its token.
    /// - Any error with which the worker rejected the request, which has changed nothing.
    pub(super) fn receive_reply(&mut self, stop: &dyn Fn() -> bool) -> Result<reply::What> {
        let context = Arc::clone(&self.context);
        context.check_process()?;
        let stop = || stop() || is_stopped(&context);
        // A session that the client dropped is restarted on the same worker, a lost session on the
        // next worker.
        let is_abandoned = self.session.is_none() && self.outage.is_none();
        let (first, mut backoff, mut num_attempts) = (self.worker_index + usize::from(!is_abandoned), BACKOFF[0], 0);
        loop {
            let result = if let Some(session) = &mut self.session {
                session.receive(context.options.reply_timeout, &stop).map(Some)
            } else {
                num_attempts += 1;
                self.reconnect(first + num_attempts - 1, &stop).map(|()| None)
            };
            match result {
                Ok(Some(reply)) => return Ok(self.complete(reply)),
                Ok(None) => continue,
                Err(SessionError::Error(Error::Interrupted)) => {
                    context.clear_outage();
                    return Err(Error::Interrupted);
                }
                Err(SessionError::Error(error)) => {
                    self.pending = None;
                    return Err(error);
                }
                Err(session_error) => self.mark_lost(session_error),
            }
            if Instant::now() >= context.deadline() {
                let reason = self.outage.take().map(|(_, why)| why).unwrap_or_default();
                let seconds = context.options.recovery_timeout.as_secs_f64();
                let last = self.last_error.take().map(|last| format!(" (last error: {last})")).unwrap_or_default();
                return Err(Error::Backend(format!(
                    "{reason}: no worker of {} replaced it within {seconds} s{last}; start one and make a new client",
                    context.addresses.join(", ")
                )));
            }
            if num_attempts > 0 && num_attempts % context.addresses.len() == 0 {
                wait(backoff, &stop).inspect_err(|_| context.clear_outage())?;
                backoff = (backoff * 2).min(BACKOFF[1]);
            }
        }
    }

    fn mark_lost(&mut self, session_error: SessionError) {
        self.session = None;
        let reason = match session_error {
            SessionError::Lost(reason) => reason,
            SessionError::Error(error) => error.to_string(),
        };
        if self.outage.is_none() {
            self.context.update_faults(|faults| faults.lost += 1);
            self.outage = Some((Instant::now(), reason));
        } else {
            self.last_error = Some(reason);
        }
    }

    /// Opens a session on a worker, replays the log and sends the pending request again.
    fn reconnect(&mut self, worker_index: usize, stop: &dyn Fn() -> bool) -> std::result::Result<(), SessionError> {
        if self.is_log_dropped {
            let got = "environments with too many requests to replay";
            let fix = "implement Env::state for the environments";
            return Err(Error::closed("workers", "environments that can be restored", got, fix).into());
        }
        let worker_index = worker_index % self.context.addresses.len();
        let mut session = self.open_and_replay(worker_index, stop).map_err(|session_error| match session_error {
            // Another worker may succeed, or the same worker after it was restarted.
            SessionError::Error(error) if !matches!(error, Error::Interrupted | Error::Closed(_)) => {
                SessionError::Lost(error.to_string())
            }
            session_error => session_error,
        })?;
        if let Some(pending) = &self.pending {
            send(&mut session, pending.request.clone())?;
        }
        if self.outage.is_some() {
            let num_replayed = self.log.len() as u64;
            self.context.update_faults(|faults| {
                faults.restarted += 1;
                faults.replayed += num_replayed;
            });
        }
        (self.worker_index, self.session) = (worker_index, Some(session));
        Ok(())
    }

    /// Opens a session on a worker and replays the log.
    fn open_and_replay(
        &self,
        worker_index: usize,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<ClientSession, SessionError> {
        let deadline = self.context.deadline();
        let open = proto::Open { env_state: self.snapshot.clone(), ..self.open.clone() };
        let mut session = connect(&self.context, worker_index, open, self.first_env, deadline, stop)?;
        if !has_same_spec(&session.opened, &self.opened) {
            let (expected, fix) = (
                format!("the spec of {}", self.open.env_id),
                "start all workers with the same version and the same environments",
            );
            return Err(Error::space("spaces", expected, "another spec", fix).on_worker(&session.address).into());
        }
        let remaining_timeout =
            || self.context.options.reply_timeout.min(deadline.saturating_duration_since(Instant::now()));
        let mut unanswered = 0_usize;
        for request in &self.log {
            while unanswered > 0 && !session.has_credit() {
                session.receive(remaining_timeout(), stop)?;
                unanswered -= 1;
            }
            send(&mut session, request.clone())?;
            unanswered += 1;
        }
        for _ in 0..unanswered {
            session.receive(remaining_timeout(), stop)?;
        }
        Ok(session)
    }

    /// Stores the snapshot that the reply contains, or logs the request, for a restart on another
    /// worker.
    fn complete(&mut self, reply: reply::What) -> reply::What {
        self.last_error = None;
        if let Some((since, _)) = self.outage.take() {
            self.context.update_faults(|faults| faults.longest = faults.longest.max(since.elapsed()));
        }
        let Some(pending) = self.pending.take() else { return reply };
        let snapshot = match &reply {
            reply::What::Stepped(stepped) => stepped.env_state.as_ref(),
            reply::What::EnvState(snapshot) => Some(snapshot),
            reply::What::Rollout(rollout) => rollout.env_state.as_ref(),
            _ => None,
        };
        if let Some(snapshot) = snapshot.filter(|snapshot| !snapshot.slab.is_empty()) {
            self.snapshot = Some(snapshot.clone());
            self.clear_log();
            self.is_log_dropped = false;
        } else if matches!(reply, reply::What::Rollout(_)) {
            // Requests for rollouts contain weights, and are too large to be logged.
            self.is_log_dropped = true;
        } else if pending.is_logged && !self.is_log_dropped {
            self.log_bytes += pending.request.encoded_len();
            self.log.push(pending.request);
            if self.log.len() > MAX_LOG_LEN || self.log_bytes > MAX_LOG_BYTES {
                self.clear_log();
                self.is_log_dropped = true;
            }
        }
        reply
    }

    fn clear_log(&mut self) {
        self.log.clear();
        self.log_bytes = 0;
    }
}

/// Returns true if two workers report equal environments. The limits of the workers may differ.
pub(super) fn has_same_spec(a: &proto::Opened, b: &proto::Opened) -> bool {
    let without_limits = |opened: &proto::Opened| proto::Opened { credits: 0, max_message_bytes: 0, ..opened.clone() };
    without_limits(a) == without_limits(b)
}

fn is_stopped(context: &ClientContext) -> bool {
    context.options.stop.as_ref().is_some_and(|stop| stop())
}

fn connect(
    context: &ClientContext,
    worker_index: usize,
    open: proto::Open,
    first_env: usize,
    deadline: Instant,
    stop: &dyn Fn() -> bool,
) -> std::result::Result<ClientSession, SessionError> {
    let opened = ClientSession::open(
        context.runtime()?,
        &context.addresses[worker_index],
        open,
        first_env,
        &context.options,
        deadline,
        stop,
    );
    opened.map_err(|session_error| match session_error {
        // Another worker may have free memory. This worker may have it after an unused session has
        // ended.
        SessionError::Error(error @ Error::Memory(_)) => SessionError::Lost(error.to_string()),
        session_error => session_error,
    })
}

/// Sends a request. Weights that the worker already has are left out.
fn send(session: &mut ClientSession, mut request: request::What) -> std::result::Result<(), SessionError> {
    let max_bytes = session.opened.max_message_bytes;
    if let request::What::Collect(collect) = &mut request {
        if session.version == Some(collect.version) {
            collect.weights.clear();
        }
        session.version = Some(collect.version);
        if collect.weights.len() as u64 + 64 > max_bytes {
            let (expected, got) = (format!("at most {max_bytes} bytes"), format!("{} bytes", collect.weights.len()));
            let fix = "start the workers with a larger --max-message-bytes";
            return Err(Error::config("weights", expected, got, fix).on_worker(&session.address).into());
        }
    }
    session.send(request)
}

/// Waits for a duration. Returns [`Error::Interrupted`] after an interrupt, or if `stop` returns
/// true.
fn wait(duration: Duration, stop: &dyn Fn() -> bool) -> Result<()> {
    let (start, mut interrupt) = (Instant::now(), rlox_core::interrupt::InterruptCheck::default());
    while start.elapsed() < duration {
        std::thread::sleep(Duration::from_millis(5).min(duration));
        interrupt.check()?;
        if stop() {
            return Err(Error::Interrupted);
        }
    }
    Ok(())
}
