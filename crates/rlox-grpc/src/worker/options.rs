//! Options and limits of a worker.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rlox_core::envs::{self, MakeOptions};
use rlox_core::{Error, Result, VectorEnv};

/// Maximum bytes of received data that are not yet read, per stream and per connection.
pub(super) const WINDOW: u32 = 256 << 10;
/// Maximum bytes of an incoming HTTP/2 frame.
pub(super) const FRAME_IN: u32 = 64 << 10;
/// Maximum number of server threads; sessions have their own threads.
pub(super) const THREADS: usize = 4;
/// Maximum bytes of a reply that hyper still buffers when it takes the next reply; hyper's default.
const IN_FLIGHT_BYTES: usize = 400 << 10;
/// Maximum number of sessions or connections.
const MAX_COUNT: usize = 1 << 16;
/// Minimum of `max_message_bytes`, so that every failure message fits.
const MIN_MESSAGE_BYTES: usize = 1024;

/// Constructor of environments by id, such as [`rlox_core::envs::make`].
pub type MakeEnv = Arc<dyn Fn(&str, &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> + Send + Sync>;

/// TLS identity of a worker, as PEM.
#[derive(Clone)]
pub struct Identity {
    /// Certificate, followed by the certificates of the authorities that signed it.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Limits of the resources that clients may use.
///
/// ```
/// let limits = rlox_grpc::Limits { max_sessions: 2, ..rlox_grpc::Limits::default() };
/// assert_eq!(limits.credits, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open sessions. Each session has a thread and environments.
    pub max_sessions: usize,
    /// Maximum number of open connections.
    ///
    /// At the limit, a new connection replaces the connection that has had no session for the
    /// longest time. If all connections have sessions, the new connection is closed. Connections
    /// without a session are closed after ten seconds, or after a minute if they make health
    /// checks.
    pub max_connections: usize,
    /// Maximum number of open HTTP/2 streams of a connection. Further streams wait.
    pub max_streams: u32,
    /// Maximum number of environments in a session.
    pub max_envs: usize,
    /// Maximum bytes of a request or a reply, at least 1024.
    ///
    /// All unanswered requests of a session together have at most 1.25 times this size. All replies
    /// that wait to be sent to the client together have at most this size.
    pub max_message_bytes: usize,
    /// Maximum number of unanswered requests in a session.
    pub credits: u32,
}

impl Default for Limits {
    /// Returns limits that bound a worker's memory to less than 256 MB.
    ///
    /// [`Limits::memory_bytes`] computes the bound.
    ///
    /// The defaults are 8 sessions, 64 connections with 16 streams each, 4096 environments per
    /// session, 4 MiB per message and 4 credits per session.
    fn default() -> Self {
        let (max_sessions, max_connections, max_streams) = (8, 64, 16);
        Self { max_sessions, max_connections, max_streams, max_envs: 4096, max_message_bytes: 4 << 20, credits: 4 }
    }
}

impl Limits {
    /// Maximum number of streams that may be opening a session at the same time.
    pub(super) const OPENING: usize = 4;

    /// Returns the maximum number of bytes by which clients can increase a worker's memory:
    ///
    /// - 320 KiB per connection: 256 KiB of unread data, and an HTTP/2 frame of 64 KiB;
    /// - twice `max_message_bytes` for each of 4 streams that open a session: the incoming request,
    ///   and the same request decoded;
    /// - 1.25 times `max_message_bytes` per session: requests that arrive, wait or are processed;
    /// - twice `max_message_bytes` plus 400 KiB per session: replies that are created or wait, a
    ///   reply that is being sent, and the last 400 KiB of the reply before;
    /// - `max_message_bytes` for each of the 4 server threads, which encode messages;
    /// - `2 * max_sessions * max_message_bytes` for the observations, rollouts and networks of all
    ///   sessions. A session that needs more than is available is rejected.
    ///
    /// The memory of environments that are not native is not included.
    ///
    /// ```
    /// assert!(rlox_grpc::Limits::default().memory_bytes() < 256_000_000);
    /// ```
    pub fn memory_bytes(&self) -> usize {
        let message = self.max_message_bytes;
        let session = self.request_bytes().saturating_add(message.saturating_mul(2)).saturating_add(IN_FLIGHT_BYTES);
        let connections = self.max_connections.saturating_mul(WINDOW as usize + FRAME_IN as usize);
        connections
            .saturating_add(message.saturating_mul(2 * Self::OPENING + THREADS))
            .saturating_add(self.max_sessions.saturating_mul(session))
            .saturating_add(self.session_memory_bytes())
    }

    /// Returns the budget in bytes for the requests of a session that arrive, wait or are
    /// processed.
    pub(super) fn request_bytes(&self) -> usize {
        self.max_message_bytes + self.max_message_bytes / 4
    }

    /// Returns the budget in bytes for the observations, rollouts and networks of all sessions.
    pub(super) fn session_memory_bytes(&self) -> usize {
        self.max_sessions.saturating_mul(self.max_message_bytes).saturating_mul(2)
    }

    /// Returns true if a message of `bytes` bytes, with its framing, does not exceed the limit.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        bytes.saturating_add(128) <= self.max_message_bytes
    }

    fn check(&self) -> Result<()> {
        for (name, value) in [
            ("max_sessions", self.max_sessions),
            ("max_connections", self.max_connections),
            ("max_streams", self.max_streams as usize),
            ("max_envs", self.max_envs),
            ("max_message_bytes", self.max_message_bytes),
            ("credits", self.credits as usize),
        ] {
            if value == 0 {
                return Err(Error::config(name, "at least 1", "0", "pass a positive number"));
            }
        }
        for (name, value) in [("max_sessions", self.max_sessions), ("max_connections", self.max_connections)] {
            if value > MAX_COUNT {
                return Err(Error::config(
                    name,
                    format!("at most {MAX_COUNT}"),
                    value.to_string(),
                    "pass a smaller number",
                ));
            }
        }
        if self.max_message_bytes < MIN_MESSAGE_BYTES {
            let (expected, got) = (format!("at least {MIN_MESSAGE_BYTES}"), self.max_message_bytes.to_string());
            return Err(Error::config("max_message_bytes", expected, got, "pass a larger number"));
        }
        let max_bytes = (u32::MAX >> 1) as usize;
        if self.max_message_bytes > max_bytes || self.credits > 1024 {
            let got = format!("{} and {}", self.max_message_bytes, self.credits);
            let expected = format!("at most {max_bytes} and at most 1024");
            return Err(Error::config("max_message_bytes, credits", expected, got, "pass smaller numbers"));
        }
        Ok(())
    }

    /// Returns an error that names `argument` if replies of `bytes` bytes exceed the limit.
    pub(super) fn check_message(&self, argument: &'static str, bytes: usize) -> Result<()> {
        if bytes <= self.max_message_bytes {
            return Ok(());
        }
        let expected = format!("replies of at most {} bytes", self.max_message_bytes);
        let fix = "use a smaller value, or start the worker with a larger --max-message-bytes";
        Err(Error::config(argument, expected, format!("{bytes} bytes"), fix))
    }
}

/// Options of a worker. By default, a worker serves the native environments on a free port of
/// 127.0.0.1.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Address to listen on. Port 0 selects a free port. Addresses other than loopback need TLS and
    /// a token.
    pub bind: SocketAddr,
    /// TLS identity; `None` for plain HTTP.
    pub identity: Option<Identity>,
    /// Token that clients have to send; `None` to accept all clients.
    pub token: Option<String>,
    /// Loopback address of the metrics, which are served over plain HTTP; `None` for no metrics.
    pub metrics: Option<SocketAddr>,
    /// Limits of the resources that clients may use.
    pub limits: Limits,
    /// Constructor of the environments of a session.
    pub make: MakeEnv,
}

impl std::fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("WorkerOptions");
        debug.field("bind", &self.bind).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            bind: (Ipv4Addr::LOCALHOST, 0).into(),
            identity: None,
            token: None,
            metrics: None,
            limits: Limits::default(),
            make: Arc::new(envs::make),
        }
    }
}

impl WorkerOptions {
    /// Checks the limits, and rejects options that are unsafe to serve.
    pub(super) fn check(&self) -> Result<()> {
        self.limits.check()?;
        if self
            .token
            .as_ref()
            .is_some_and(|token| token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let got = "a shorter token, or other characters";
            let fix = "write a token to the file with: openssl rand -hex 32";
            return Err(Error::config("token", "16 or more visible ASCII characters", got, fix));
        }
        if let Some(metrics) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            let fix = "bind 127.0.0.1 and collect the metrics on this machine";
            return Err(Error::config(
                "metrics",
                "a loopback address, because metrics are not encrypted",
                metrics.to_string(),
                fix,
            ));
        }
        if self.bind.ip().is_loopback() {
            return Ok(());
        }
        let missing: Vec<_> = [
            ("a certificate (--tls-cert)", self.identity.is_some()),
            ("its key (--tls-key)", self.identity.is_some()),
            ("a token (--token-file or RLOX_WORKER_TOKEN)", self.token.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, there)| (!there).then_some(name))
        .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let got = format!("{} without {}", self.bind, missing.join(", "));
        let expected = "a loopback address, or TLS and a token for other addresses";
        Err(Error::config("bind", expected, got, "pass the missing options, or bind 127.0.0.1"))
    }
}

#[cfg(test)]
mod tests {
    use rlox_core::__private::testing::assert_rejects;

    use super::*;

    /// Checks that an argument is rejected, and returns the rejected value.
    fn got(options: &WorkerOptions, argument: &str) -> String {
        assert_rejects(options.check(), Error::Config, argument).got
    }

    #[test]
    fn addresses_beyond_loopback_need_tls_and_a_token() {
        let open = WorkerOptions { bind: "0.0.0.0:0".parse().unwrap(), ..WorkerOptions::default() };
        assert!(got(&open, "bind").contains("--tls-cert") && got(&open, "bind").contains("--token-file"));
        let identity = Some(Identity { certificate: String::new(), key: String::new() });
        let tls = WorkerOptions { identity: identity.clone(), ..open.clone() };
        assert!(got(&tls, "bind").contains("--token-file") && !got(&tls, "bind").contains("--tls-cert"));
        let token = Some("0123456789abcdef".to_owned());
        assert!(got(&WorkerOptions { token: token.clone(), ..open.clone() }, "bind").contains("--tls-key"));
        assert!(WorkerOptions { identity, token, ..open }.check().is_ok());
        for bind in ["127.0.0.1:1", "[::1]:1", "127.9.9.9:1"] {
            assert!(WorkerOptions { bind: bind.parse().unwrap(), ..WorkerOptions::default() }.check().is_ok());
        }
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let with = |limits| WorkerOptions { limits, ..WorkerOptions::default() };
        assert_eq!(got(&with(Limits { credits: 0, ..Limits::default() }), "credits"), "0");
        got(&with(Limits { max_message_bytes: usize::MAX, ..Limits::default() }), "max_message_bytes, credits");
        for token in ["short", "0123456789abcde f"] {
            got(&WorkerOptions { token: Some(token.into()), ..WorkerOptions::default() }, "token");
        }
        let metrics = Some("0.0.0.0:1".parse().unwrap());
        got(&WorkerOptions { metrics, ..WorkerOptions::default() }, "metrics");
    }
}
