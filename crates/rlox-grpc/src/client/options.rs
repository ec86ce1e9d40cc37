//! Options of clients and of the environments that workers make.

use std::sync::Arc;
use std::time::Duration;

use rlox_core::{AutoresetMode, Error, Result};

use crate::{PROTOCOL, codec, proto};

/// Function that returns true to end a wait.
pub type StopFn = Arc<dyn Fn() -> bool + Send + Sync>;

/// Description of the environments that workers make.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvOptions {
    /// Id of the environment.
    pub id: String,
    /// Number of environments over all workers.
    pub num_envs: usize,
    /// Base seed; the seed of environment i is `seed + i`.
    pub seed: u64,
    /// Time at which finished environments are reset.
    pub autoreset_mode: AutoresetMode,
    /// Time limit of an episode in steps: `None` for the limit of the id, `Some(None)` for no
    /// limit.
    pub max_episode_steps: Option<Option<u32>>,
    /// Arguments of the environment, with Gymnasium's names. Booleans are 0 or 1.
    pub arguments: Vec<(String, f64)>,
}

/// One environment of `CartPole-v1` with the seed 0.
impl Default for EnvOptions {
    fn default() -> Self {
        Self::new("CartPole-v1", 1, 0)
    }
}

impl EnvOptions {
    /// Creates options for environments in `SAME_STEP` mode, with the time limit of the id.
    ///
    /// ```
    /// let options = rlox_grpc::EnvOptions::new("CartPole-v1", 8, 1);
    /// assert_eq!(options.autoreset_mode, rlox_core::AutoresetMode::SameStep);
    /// ```
    pub fn new(id: impl Into<String>, num_envs: usize, seed: u64) -> Self {
        let (autoreset_mode, max_episode_steps) = (AutoresetMode::SameStep, None);
        Self { id: id.into(), num_envs, seed, autoreset_mode, max_episode_steps, arguments: Vec::new() }
    }

    /// Returns the request that opens a session with `count` environments, from index `first` on.
    pub(super) fn open(&self, first: usize, count: usize) -> Result<proto::Open> {
        let seed = self.seed.checked_add(first as u64).ok_or_else(|| {
            Error::config("seed", "at most 2**64 - num_envs", self.seed.to_string(), "pass a smaller seed")
        })?;
        if self.max_episode_steps == Some(Some(0)) {
            return Err(Error::config("max_episode_steps", "at least 1", "0", "pass a positive number, or no limit"));
        }
        let too_many = |_| Error::config("num_envs", "less than 2**32", count.to_string(), "use fewer environments");
        Ok(proto::Open {
            protocol: PROTOCOL,
            env_id: self.id.clone(),
            num_envs: u32::try_from(count).map_err(too_many)?,
            seed,
            arguments: codec::arguments_to("arguments", &self.arguments)?,
            autoreset_mode: codec::mode_to(self.autoreset_mode).into(),
            max_episode_steps: self.max_episode_steps.map(|limit| limit.unwrap_or(0)),
            env_state: None,
            policy: None,
        })
    }
}

/// Connection settings and time limits of a client.
#[derive(Clone)]
pub struct ClientOptions {
    /// Token, for workers that require a token.
    pub token: Option<String>,
    /// PEM certificate of the authority that signed the workers' certificates, for addresses with `https`.
    pub tls_ca: Option<String>,
    /// Name in the workers' certificates, if it differs from the address.
    pub tls_domain: Option<String>,
    /// Time limit for opening a connection. A new client retries its first connection to a worker
    /// for this time.
    pub connect_timeout: Duration,
    /// Time without data from a worker after which the worker counts as lost.
    ///
    /// The time must exceed the time for sending the weights of a policy, because keepalive pings
    /// are sent after the weights.
    pub keepalive_timeout: Duration,
    /// Time limit of a reply, after which a worker counts as lost.
    pub reply_timeout: Duration,
    /// Time in which a call tries to restart its lost sessions.
    pub recovery_timeout: Duration,
    /// Number of steps between two snapshots for recovery.
    pub snapshot_every: usize,
    /// Function that ends waits, in addition to that of
    /// [`rlox_core::interrupt::set_interrupt_check`].
    pub stop: Option<StopFn>,
}

impl Default for ClientOptions {
    /// Returns the defaults: 5 s to connect, 0.9 s of keepalive, 30 s to reply, 30 s to recover,
    /// and 64 steps between snapshots.
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
                return Err(Error::config(name, "a time above 0 and of at most a day", got, "correct it"));
            }
        }
        Ok(())
    }
}
