//! Environments that outlive their session: the last snapshot and the requests since, replayed on another worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlox_core::{Error, Result};

use super::context::Fleet;
use super::session::{Link, Trouble};
use crate::proto::{self, reply, request};

/// Between two rounds over all addresses, at first and at most.
const BACKOFF: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(500)];
/// So many requests, and bytes of them, are remembered of environments that cannot tell where they stand.
const REMEMBERED: usize = 100_000;
const REMEMBERED_BYTES: usize = 64 << 20;

/// Environments on some worker.
pub(super) struct Shard {
    fleet: Arc<Fleet>,
    /// Where they are or were last, among the addresses.
    at: usize,
    link: Option<Link>,
    open: proto::Open,
    /// Index of the first environment in the environments of all workers.
    first_env: usize,
    /// The first worker's word, which that of others must equal.
    opened: proto::Opened,
    standing: Option<proto::Standing>,
    /// Requests since then that have changed something, in order.
    log: Vec<request::What>,
    log_bytes: usize,
    /// There were too many of them.
    forgotten: bool,
    pending: Option<Pending>,
    lost: Option<(Instant, String)>,
    /// Why no worker took its place so far.
    refused: Option<String>,
}

struct Pending {
    what: request::What,
    /// Whether it changes something.
    kept: bool,
}

impl Shard {
    /// Opens the first session, at the address of this number, for environments from `first_env` on.
    pub(super) fn new(fleet: &Arc<Fleet>, at: usize, open: proto::Open, first_env: usize) -> Result<Self> {
        let (at, stop) = (at % fleet.addresses.len(), || stopped(fleet));
        let (deadline, mut pause) = (Instant::now() + fleet.options.connect_timeout, BACKOFF[0]);
        let link = loop {
            // Once begun, an attempt has its own time.
            let late = deadline + fleet.options.connect_timeout;
            match connect(fleet, at, open.clone(), first_env, late, &stop) {
                Ok(link) => break link,
                Err(Trouble::Error(error)) => return Err(error),
                Err(Trouble::Lost(text)) if Instant::now() + pause >= deadline => return Err(Error::Backend(text)),
                Err(Trouble::Lost(_)) => wait(pause, &stop)?,
            }
            pause = (pause * 2).min(BACKOFF[1]);
        };
        let (fleet, opened, log) = (Arc::clone(fleet), link.opened.clone(), Vec::new());
        let (standing, pending, lost, refused) = (None, None, None, None);
        let (link, log_bytes, forgotten) = (Some(link), 0, false);
        Ok(Self {
            fleet,
            at,
            link,
            open,
            first_env,
            opened,
            standing,
            log,
            log_bytes,
            forgotten,
            pending,
            lost,
            refused,
        })
    }

    pub(super) fn opened(&self) -> &proto::Opened {
        &self.opened
    }

    /// Of the worker where it is or was last.
    pub(super) fn address(&self) -> &str {
        &self.fleet.addresses[self.at]
    }

    pub(super) fn num_envs(&self) -> usize {
        self.open.num_envs as usize
    }

    /// Has a worker get weights again, though their version is one that it has.
    pub(super) fn forget_weights(&mut self) {
        if let Some(link) = &mut self.link {
            link.version = None;
        }
    }

    /// Whether it is time for a snapshot with the next request.
    pub(super) fn wants_snapshot(&self) -> bool {
        self.log.len() + 1 >= self.fleet.options.snapshot_every
    }

    /// Whether an answer is due.
    pub(super) fn is_asked(&self) -> bool {
        self.pending.is_some()
    }

    /// Sends a request whose answer [`Shard::answer`] gives; `kept` says that it changes something.
    pub(super) fn ask(&mut self, what: request::What, kept: bool) {
        self.fleet.begin();
        self.pending = Some(Pending { what: what.clone(), kept });
        if let Some(link) = &mut self.link
            && let Err(trouble) = send(link, what)
        {
            self.lose(trouble);
        }
    }

    /// Asks for no answer any more, and leaves the session: the next one goes on as if nothing had been asked.
    pub(super) fn abandon(&mut self) {
        if self.pending.take().is_some() {
            self.link = None;
        }
    }

    /// The answer to what was asked. A lost worker's place is taken by another one.
    ///
    /// # Errors
    /// What the worker refused, which has changed nothing; [`Error::Interrupted`], after which the answer is still due;
    /// [`Error::Backend`] where no worker could be found in time, and [`Error::Config`] for one that must not be used.
    pub(super) fn answer(&mut self, stop: &dyn Fn() -> bool) -> Result<reply::What> {
        let fleet = Arc::clone(&self.fleet);
        fleet.check_process()?;
        let stop = || stop() || stopped(&fleet);
        // A session that was left, rather than lost, goes on where it was.
        let left = self.link.is_none() && self.lost.is_none();
        let (first, mut pause, mut tried) = (self.at + usize::from(!left), BACKOFF[0], 0);
        loop {
            let outcome = if let Some(link) = &mut self.link {
                link.receive(fleet.options.reply_timeout, &stop).map(Some)
            } else {
                tried += 1;
                self.recover(first + tried - 1, &stop).map(|()| None)
            };
            match outcome {
                Ok(Some(what)) => return Ok(self.done(what)),
                Ok(None) => continue,
                Err(Trouble::Error(Error::Interrupted)) => {
                    fleet.begin();
                    return Err(Error::Interrupted);
                }
                Err(Trouble::Error(error)) => {
                    self.pending = None;
                    return Err(error);
                }
                Err(trouble) => self.lose(trouble),
            }
            if Instant::now() >= fleet.deadline() {
                let why = self.lost.take().map(|(_, why)| why).unwrap_or_default();
                let limit = fleet.options.recovery_timeout.as_secs_f64();
                let last = self.refused.take().map(|last| format!(" (at last: {last})")).unwrap_or_default();
                return Err(Error::Backend(format!(
                    "{why}: no worker of {} took its place within {limit} s{last}; start one, and make the client anew",
                    fleet.addresses.join(", ")
                )));
            }
            if tried > 0 && tried % fleet.addresses.len() == 0 {
                wait(pause, &stop).inspect_err(|_| fleet.begin())?;
                pause = (pause * 2).min(BACKOFF[1]);
            }
        }
    }

    fn lose(&mut self, trouble: Trouble) {
        self.link = None;
        let why = match trouble {
            Trouble::Lost(why) => why,
            Trouble::Error(error) => error.to_string(),
        };
        if self.lost.is_none() {
            self.fleet.note(|faults| faults.lost += 1);
            self.lost = Some((Instant::now(), why));
        } else {
            self.refused = Some(why);
        }
    }

    /// Begins a session on the worker of this number in turn, does there what was done, and asks what was asked.
    fn recover(&mut self, at: usize, stop: &dyn Fn() -> bool) -> std::result::Result<(), Trouble> {
        if self.forgotten {
            let got = "more requests than are remembered";
            let fix = "let its environments tell their state (Env::state)";
            return Err(Error::closed("workers", "environments that can be restored", got, fix).into());
        }
        let at = at % self.fleet.addresses.len();
        let mut link = self.replayed(at, stop).map_err(|trouble| match trouble {
            // What one cannot do, another may, and this one when it has been started anew.
            Trouble::Error(error) if !matches!(error, Error::Interrupted | Error::Closed(_)) => {
                Trouble::Lost(error.to_string())
            }
            trouble => trouble,
        })?;
        if let Some(pending) = &self.pending {
            send(&mut link, pending.what.clone())?;
        }
        if self.lost.is_some() {
            let replayed = self.log.len() as u64;
            self.fleet.note(|faults| {
                faults.recovered += 1;
                faults.replayed += replayed;
            });
        }
        (self.at, self.link) = (at, Some(link));
        Ok(())
    }

    /// A session on a worker in which everything was done that is remembered.
    fn replayed(&self, at: usize, stop: &dyn Fn() -> bool) -> std::result::Result<Link, Trouble> {
        let deadline = self.fleet.deadline();
        let open = proto::Open { standing: self.standing.clone(), ..self.open.clone() };
        let mut link = connect(&self.fleet, at, open, self.first_env, deadline, stop)?;
        if !alike(&link.opened, &self.opened) {
            let (expected, fix) = (
                format!("that of {}", self.open.env_id),
                "start all workers with the same version and the same environments",
            );
            return Err(Error::space("spaces", expected, "another one", fix).on_worker(&link.address).into());
        }
        let patience = || self.fleet.options.reply_timeout.min(deadline.saturating_duration_since(Instant::now()));
        let mut unanswered = 0_usize;
        for what in &self.log {
            while unanswered > 0 && !link.has_credit() {
                link.receive(patience(), stop)?;
                unanswered -= 1;
            }
            send(&mut link, what.clone())?;
            unanswered += 1;
        }
        for _ in 0..unanswered {
            link.receive(patience(), stop)?;
        }
        Ok(link)
    }

    /// Remembers what an answer says for a worker that takes this one's place.
    fn done(&mut self, what: reply::What) -> reply::What {
        self.refused = None;
        if let Some((since, _)) = self.lost.take() {
            self.fleet.note(|faults| faults.longest = faults.longest.max(since.elapsed()));
        }
        let Some(pending) = self.pending.take() else { return what };
        let standing = match &what {
            reply::What::Stepped(stepped) => stepped.standing.as_ref(),
            reply::What::Standing(standing) => Some(standing),
            reply::What::Rollout(rollout) => rollout.standing.as_ref(),
            _ => None,
        };
        if let Some(standing) = standing.filter(|standing| !standing.slab.is_empty()) {
            self.standing = Some(standing.clone());
            self.forget();
            self.forgotten = false;
        } else if matches!(what, reply::What::Rollout(_)) {
            // Rollouts are too large to be remembered.
            self.forgotten = true;
        } else if pending.kept && !self.forgotten {
            self.log_bytes += pending.what.encoded_len();
            self.log.push(pending.what);
            if self.log.len() > REMEMBERED || self.log_bytes > REMEMBERED_BYTES {
                self.forget();
                self.forgotten = true;
            }
        }
        what
    }

    fn forget(&mut self) {
        self.log.clear();
        self.log_bytes = 0;
    }
}

/// Returns whether two workers report equal environments; their limits may differ.
pub(super) fn alike(a: &proto::Opened, b: &proto::Opened) -> bool {
    let made = |opened: &proto::Opened| proto::Opened { credits: 0, max_message_bytes: 0, ..opened.clone() };
    made(a) == made(b)
}

fn stopped(fleet: &Fleet) -> bool {
    fleet.options.stop.as_ref().is_some_and(|stop| stop())
}

fn connect(
    fleet: &Fleet,
    at: usize,
    open: proto::Open,
    first_env: usize,
    deadline: Instant,
    stop: &dyn Fn() -> bool,
) -> std::result::Result<Link, Trouble> {
    let opened = Link::open(fleet.runtime()?, &fleet.addresses[at], open, first_env, &fleet.options, deadline, stop);
    opened.map_err(|trouble| match trouble {
        // Others may have room, and this one when a session that nobody needs any more has ended.
        Trouble::Error(error @ Error::Memory(_)) => Trouble::Lost(error.to_string()),
        trouble => trouble,
    })
}

/// Sends a request, without weights that the worker has.
fn send(link: &mut Link, mut what: request::What) -> std::result::Result<(), Trouble> {
    let most = link.opened.max_message_bytes;
    if let request::What::Collect(collect) = &mut what {
        if link.version == Some(collect.version) {
            collect.weights.clear();
        }
        link.version = Some(collect.version);
        if collect.weights.len() as u64 + 64 > most {
            let (expected, got) = (format!("at most {most} bytes"), format!("{} bytes", collect.weights.len()));
            let fix = "start the workers with a larger --max-message-bytes";
            return Err(Error::config("weights", expected, got, fix).on_worker(&link.address).into());
        }
    }
    link.send(what)
}

/// Waits, unless it is to end.
fn wait(pause: Duration, stop: &dyn Fn() -> bool) -> Result<()> {
    let (start, mut watch) = (Instant::now(), rlox_core::Watch::default());
    while start.elapsed() < pause {
        std::thread::sleep(Duration::from_millis(5).min(pause));
        watch.check()?;
        if stop() {
            return Err(Error::Interrupted);
        }
    }
    Ok(())
}
