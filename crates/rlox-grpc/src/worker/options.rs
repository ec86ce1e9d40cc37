//! Options and limits of a worker.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rlox_core::envs::{self, MakeOptions};
use rlox_core::{Error, Result, VectorEnv};

/// Unread bytes of a stream, and of a connection.
pub(super) const WINDOW: u32 = 256 << 10;
/// Bytes of a frame that comes.
pub(super) const FRAME_IN: u32 = 64 << 10;
/// Threads of the server, at most; sessions have their own.
pub(super) const THREADS: usize = 4;
/// What HTTP/2 still has of a reply when it takes the next one, in bytes: hyper's default.
const IN_FLIGHT_BYTES: usize = 400 << 10;
/// Sessions or connections.
const MAX_COUNT: usize = 1 << 16;
/// What no message to tell of a failure needs.
const MIN_MESSAGE_BYTES: usize = 1024;

/// Makes environments of an id: [`rlox_core::envs::make`], or a function that knows others too.
pub type MakeEnv = Arc<dyn Fn(&str, &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> + Send + Sync>;

/// Who a worker is for clients that come over TLS, as PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, with those that signed it.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// How much clients may ask of a worker.
///
/// ```
/// let limits = rlox_grpc::Limits { max_sessions: 2, ..rlox_grpc::Limits::default() };
/// assert_eq!(limits.credits, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at a time; each has a thread and environments.
    pub max_sessions: usize,
    /// Connections at a time. One more takes the place of that which has carried no session for the longest time, and is
    /// closed at once where all carry one. Without a session they are closed after ten seconds, or a minute where they
    /// ask for the worker's health.
    pub max_connections: usize,
    /// Streams of a connection at a time; others wait.
    pub max_streams: u32,
    /// Environments of a session.
    pub max_envs: usize,
    /// Bytes of a message, in both directions, and so of a session's unanswered requests, and of its replies that the
    /// client has not taken: at least 1024.
    pub max_message_bytes: usize,
    /// Unanswered requests of a session: those whose replies the client has not taken.
    pub credits: u32,
}

impl Default for Limits {
    /// What keeps a worker's memory below 256 MB whatever comes, as [`Limits::memory_bytes`] counts it: 8 sessions, 64
    /// connections of 16 streams, 4096 environments, 4 MiB and 4 credits.
    fn default() -> Self {
        let (max_sessions, max_connections, max_streams) = (8, 64, 16);
        Self { max_sessions, max_connections, max_streams, max_envs: 4096, max_message_bytes: 4 << 20, credits: 4 }
    }
}

impl Limits {
    /// Streams beside sessions that have not opened one yet.
    pub(super) const OPENING: usize = 4;

    /// The most that clients can make a worker's memory grow by, in bytes, whatever they send and however little they take:
    ///
    /// - for each connection 320 KiB: a window of 256 KiB that was not read yet, and a frame of 64 KiB;
    /// - for each of 4 streams that begin a session two messages: one that comes, and its text;
    /// - for each session a message and a quarter of requests that wait, that are worked at, or that come: no more is read
    ///   before there is room; one message of replies that are made or wait; and one, with 400 KiB of the one before it,
    ///   that is on its way to a client that does not read it;
    /// - four messages that become bytes, one in each thread of the server;
    /// - `2 * max_sessions * max_message_bytes` for the observations, rollouts and networks of all sessions: one that needs
    ///   more than is left is refused.
    ///
    /// What environments beyond the native ones hold comes on top.
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

    /// Of a session's requests that wait, that are worked at, or that come.
    pub(super) fn request_bytes(&self) -> usize {
        self.max_message_bytes + self.max_message_bytes / 4
    }

    /// Of what all sessions hold.
    pub(super) fn session_memory_bytes(&self) -> usize {
        self.max_sessions.saturating_mul(self.max_message_bytes).saturating_mul(2)
    }

    /// Whether a message may have so many bytes, and some more around them.
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
                    "pass a smaller one",
                ));
            }
        }
        if self.max_message_bytes < MIN_MESSAGE_BYTES {
            let (expected, got) = (format!("at least {MIN_MESSAGE_BYTES}"), self.max_message_bytes.to_string());
            return Err(Error::config("max_message_bytes", expected, got, "pass a larger one"));
        }
        let max_bytes = (u32::MAX >> 1) as usize;
        if self.max_message_bytes > max_bytes || self.credits > 1024 {
            let got = format!("{} and {}", self.max_message_bytes, self.credits);
            let expected = format!("at most {max_bytes}, and 1024");
            return Err(Error::config("max_message_bytes, credits", expected, got, "pass smaller ones"));
        }
        Ok(())
    }

    /// Refuses what replies of so many bytes would need.
    pub(super) fn check_message(&self, argument: &'static str, bytes: usize) -> Result<()> {
        if bytes <= self.max_message_bytes {
            return Ok(());
        }
        let expected = format!("replies of at most {} bytes", self.max_message_bytes);
        let fix = "ask for less, or start the worker with --max-message-bytes";
        Err(Error::config(argument, expected, format!("{bytes} bytes"), fix))
    }
}

/// What a worker is started with. By default it serves the native environments on a free port of 127.0.0.1.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Where to listen; port 0 is a free one. Beyond loopback TLS and a token are needed.
    pub bind: SocketAddr,
    /// Whether, and as who, it speaks TLS.
    pub identity: Option<Identity>,
    /// What clients have to know.
    pub token: Option<String>,
    /// Where metrics are told over plain HTTP, on loopback.
    pub metrics: Option<SocketAddr>,
    /// How much clients may ask.
    pub limits: Limits,
    /// What makes environments.
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
    /// Refuses what must not be served.
    pub(super) fn check(&self) -> Result<()> {
        self.limits.check()?;
        if self
            .token
            .as_ref()
            .is_some_and(|token| token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let got = "a shorter one, or other characters";
            let fix = "write one to its file with: openssl rand -hex 32";
            return Err(Error::config("token", "16 or more visible ASCII characters", got, fix));
        }
        if let Some(metrics) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            let fix = "bind 127.0.0.1 and let what collects metrics come there";
            return Err(Error::config("metrics", "a loopback address, as they are plain", metrics.to_string(), fix));
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
        let expected = "a loopback address, or TLS and a token where others reach it";
        Err(Error::config("bind", expected, got, "pass them, or bind 127.0.0.1"))
    }
}

#[cfg(test)]
mod tests {
    use rlox_core::testing::assert_rejects;

    use super::*;

    /// Checks that an argument is rejected, and returns its value.
    fn got(options: &WorkerOptions, argument: &str) -> String {
        assert_rejects(options.check(), Error::Config, argument).got
    }

    #[test]
    fn beyond_loopback_tls_and_a_token_are_needed() {
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
    fn settings_that_make_no_sense_are_refused() {
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
