//! Options of clients and of the environments that workers make.

use std::sync::Arc;
use std::time::Duration;

use rlox_core::{AutoresetMode, Error, Result};

use crate::{PROTOCOL, codec, proto};

/// Says whether to end a wait.
pub type StopFn = Arc<dyn Fn() -> bool + Send + Sync>;

/// The environments that workers are to make.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvOptions {
    /// The environment's id.
    pub id: String,
    /// How many, over all workers.
    pub num_envs: usize,
    /// Environment i is seeded with `seed + i`.
    pub seed: u64,
    /// When finished environments are reset.
    pub autoreset_mode: AutoresetMode,
    /// `None` for the id's own time limit, `Some(None)` for no limit.
    pub max_episode_steps: Option<Option<u32>>,
    /// The environment's own arguments by Gymnasium's names; booleans are 0 and 1.
    pub arguments: Vec<(String, f64)>,
}

impl EnvOptions {
    /// Environments that reset in the same step, with the id's own time limit.
    ///
    /// ```
    /// let options = rlox_grpc::EnvOptions::new("CartPole-v1", 8, 1);
    /// assert_eq!(options.autoreset_mode, rlox_core::AutoresetMode::SameStep);
    /// ```
    pub fn new(id: impl Into<String>, num_envs: usize, seed: u64) -> Self {
        let (autoreset_mode, max_episode_steps) = (AutoresetMode::SameStep, None);
        Self { id: id.into(), num_envs, seed, autoreset_mode, max_episode_steps, arguments: Vec::new() }
    }

    /// The request for `count` of them, from the one numbered `first` on.
    pub(super) fn open(&self, first: usize, count: usize) -> Result<proto::Open> {
        let seed = self.seed.checked_add(first as u64).ok_or_else(|| {
            Error::config("seed", "at most 2**64 - num_envs", self.seed.to_string(), "pass a smaller one")
        })?;
        if self.max_episode_steps == Some(Some(0)) {
            return Err(Error::config("max_episode_steps", "at least 1", "0", "pass a positive number, or no limit"));
        }
        let too_many = |_| Error::config("num_envs", "less than 2**32", count.to_string(), "ask for fewer");
        Ok(proto::Open {
            protocol: PROTOCOL,
            env_id: self.id.clone(),
            num_envs: u32::try_from(count).map_err(too_many)?,
            seed,
            arguments: codec::arguments_to("arguments", &self.arguments)?,
            autoreset_mode: codec::mode_to(self.autoreset_mode).into(),
            max_episode_steps: self.max_episode_steps.map(|limit| limit.unwrap_or(0)),
            standing: None,
            policy: None,
        })
    }
}

/// How clients reach workers, and how long they wait.
#[derive(Clone)]
pub struct ClientOptions {
    /// What workers ask for that were started with a token.
    pub token: Option<String>,
    /// The certificate (PEM) of who signed the workers' certificates, for addresses with `https`.
    pub tls_ca: Option<String>,
    /// The name in those certificates, where it is not that of the address.
    pub tls_domain: Option<String>,
    /// For a connection. The first one of a session is tried again and again for so long.
    pub connect_timeout: Duration,
    /// A worker that says nothing for so long, not even that it is there, is lost. More than it takes to send the weights
    /// of a policy, as the question comes after them.
    pub keepalive_timeout: Duration,
    /// For the answer to a request, after which a worker counts as lost.
    pub reply_timeout: Duration,
    /// How long lost sessions are tried to be begun elsewhere, all of a call together.
    pub recovery_timeout: Duration,
    /// Steps between two snapshots, from which lost environments go on.
    pub snapshot_every: usize,
    /// Ends waits, beside what [`rlox_core::set_interrupt_check`] was given.
    pub stop: Option<StopFn>,
}

impl Default for ClientOptions {
    /// 5 s for connections, 0.9 s for a word, 30 s for answers, 30 s for recoveries, and a snapshot every 64 steps.
    fn default() -> Self {
        Self {
            token: None,
            tls_ca: None,
            tls_domain: None,
            connect_timeout: Duration::from_secs(5),
            keepalive_timeout: Duration::from_millis(900),
            reply_timeout: Duration::from_secs(30),
            recovery_timeout: Duration::from_secs(30),
            snapshot_every: 64,
            stop: None,
        }
    }
}

impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ClientOptions");
        debug.field("reply_timeout", &self.reply_timeout).field("snapshot_every", &self.snapshot_every);
        debug.finish_non_exhaustive()
    }
}

impl ClientOptions {
    pub(super) fn check(&self) -> Result<()> {
        if self.snapshot_every == 0 {
            return Err(Error::config("snapshot_every", "at least 1", "0", "pass a positive number"));
        }
        for (name, limit) in [
            ("connect_timeout", self.connect_timeout),
            ("keepalive_timeout", self.keepalive_timeout),
            ("reply_timeout", self.reply_timeout),
            ("recovery_timeout", self.recovery_timeout),
        ] {
            if limit.is_zero() || limit > Duration::from_secs(86400) {
                let got = format!("{} s", limit.as_secs_f64());
                return Err(Error::config(name, "more than 0 and at most a day", got, "correct it"));
            }
        }
        Ok(())
    }
}
