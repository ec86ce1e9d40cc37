//! A session with one worker: the connection, requests and replies.

use std::error::Error as _;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rlox_core::{Error, Result, interrupt::InterruptCheck};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};

use super::options::ClientOptions;
use crate::codec;
use crate::proto::{self, reply, request, worker_client::WorkerClient};
use crate::worker::{FRAME, LARGEST_MESSAGE, with_sources};

/// Interval at which a wait checks for interrupts and its timeout.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum bytes of received data that are not yet read.
const WINDOW: u32 = 8 << 20;

/// Reason for a missing reply.
#[derive(Debug)]
pub(super) enum SessionError {
    /// The session is lost; another worker may reply.
    Lost(String),
    /// The wait was interrupted, or the error would occur with other workers, too.
    Error(Error),
}

impl From<Error> for SessionError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Session on a worker. Replies arrive in the order of requests.
pub(super) struct ClientSession {
    pub(super) address: String,
    /// Index of the session's first environment among the environments of all workers.
    first_env: usize,
    pub(super) opened: proto::Opened,
    /// Version of the weights that the worker has.
    pub(super) version: Option<u64>,
    requests: Option<mpsc::UnboundedSender<proto::Request>>,
    replies: Receiver<std::result::Result<proto::Reply, SessionError>>,
    /// Number of requests sent.
    sent: Arc<AtomicU64>,
    received: u64,
    task: Option<JoinHandle<()>>,
    process: u32,
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        let (requests, task) = (self.requests.take(), self.task.take());
        if std::process::id() == self.process {
            task.inspect(JoinHandle::abort);
        } else {
            // The locks may be held by threads that the forked process does not have, so dropping
            // could block.
            std::mem::forget((requests, task));
        }
    }
}

impl ClientSession {
    /// Connects and opens a session before the deadline.
    pub(super) fn open(
        runtime: &Handle,
        address: &str,
        open: proto::Open,
        first_env: usize,
        options: &ClientOptions,
        deadline: Instant,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<Self, SessionError> {
        let endpoint = endpoint(address, options)?;
        let (requests, outgoing) = mpsc::unbounded_channel();
        let (incoming, replies) = channel();
        let sent = Arc::new(AtomicU64::new(0));
        let (token, task_address, sent_count) = (options.token.clone(), address.to_owned(), Arc::clone(&sent));
        let task = runtime.spawn(async move {
            if let Err(session_error) =
                run_session(endpoint, token, outgoing, &sent_count, &incoming, &task_address).await
            {
                // Sending fails only if the session was dropped.
                let _ = incoming.send(Err(session_error));
            }
        });
        let (address, opened, process) = (address.to_owned(), proto::Opened::default(), std::process::id());
        let (requests, task) = (Some(requests), Some(task));
        let (version, received) = (None, 0);
        let mut session =
            Self { address, first_env, opened, version, requests, replies, sent, received, task, process };
        session.send(request::What::Open(open))?;
        let timeout = options.connect_timeout + options.reply_timeout.min(options.connect_timeout);
        match session.receive(timeout.min(deadline.saturating_duration_since(Instant::now())), stop)? {
            reply::What::Opened(opened) => session.opened = opened,
            _ => return Err(session.unexpected("the reply to Open")),
        }
        Ok(session)
    }

    /// Sends a request.
    pub(super) fn send(&mut self, body: request::What) -> std::result::Result<(), SessionError> {
        let sequence = self.sent.fetch_add(1, Relaxed) + 1;
        let request = proto::Request { sequence, what: Some(body) };
        if self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok()) {
            return Ok(());
        }
        // The reason for the end of the session is among the replies.
        Err(self.replies.try_iter().find_map(std::result::Result::err).unwrap_or_else(|| self.session_ended()))
    }

    /// Returns true if another request may be sent before a reply arrives.
    pub(super) fn has_credit(&self) -> bool {
        self.sent.load(Relaxed) - self.received < u64::from(self.opened.credits.max(1))
    }

    /// Waits for the next reply. A rejection of the request by the worker is returned as an error.
    pub(super) fn receive(
        &mut self,
        timeout: Duration,
        stop: &dyn Fn() -> bool,
    ) -> std::result::Result<reply::What, SessionError> {
        let (start, mut interrupt) = (Instant::now(), InterruptCheck::default());
        loop {
            match self.replies.recv_timeout(POLL_INTERVAL.min(timeout)) {
                Ok(Ok(reply)) => {
                    self.received += 1;
                    if reply.sequence != self.received {
                        return Err(SessionError::Lost(format!(
                            "worker {}: expected the reply to request {}, got the reply to {}",
                            self.address, self.received, reply.sequence
                        )));
                    }
                    return match reply.what {
                        Some(reply::What::Failure(failure)) => {
                            Err(codec::failure_from(failure, &self.address, self.first_env).into())
                        }
                        Some(body) => Ok(body),
                        None => Err(self.unexpected("a known kind of reply")),
                    };
                }
                Ok(Err(session_error)) => return Err(session_error),
                Err(RecvTimeoutError::Disconnected) => return Err(self.session_ended()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            interrupt.check()?;
            if stop() {
                return Err(Error::Interrupted.into());
            }
            if start.elapsed() >= timeout {
                let seconds = timeout.as_secs_f64();
                return Err(SessionError::Lost(format!("worker {}: no answer within {seconds} s", self.address)));
            }
        }
    }

    /// Returns the error for a reply that is not of the expected kind.
    pub(super) fn unexpected(&self, expected: &str) -> SessionError {
        let fix = "install the same version of rlox on both sides";
        Error::config("reply", expected, "another reply", fix).on_worker(&self.address).into()
    }

    fn session_ended(&self) -> SessionError {
        SessionError::Lost(format!("worker {}: the session has ended", self.address))
    }
}

fn endpoint(address: &str, options: &ClientOptions) -> Result<Endpoint> {
    let mismatch = |got: String| {
        let fix = "pass an address such as http://127.0.0.1:50051, or https:// for a worker with a certificate";
        Error::config("address", "the address of a worker", got, fix)
    };
    let endpoint =
        Endpoint::from_shared(address.to_owned()).map_err(|error| mismatch(format!("{address:?} ({error})")))?;
    let scheme = endpoint.uri().scheme_str().map(str::to_owned);
    if !matches!(scheme.as_deref(), Some("http" | "https")) || endpoint.uri().port().is_none() {
        return Err(mismatch(format!("{address:?}")));
    }
    if scheme.as_deref() == Some("http") && options.token.is_some() && !is_loopback(endpoint.uri().host()) {
        let expected = format!("an address with https, because others could read the token on its way to {address}");
        return Err(Error::config(
            "token",
            expected,
            "an address with http",
            "start the worker with a certificate, and write https://",
        ));
    }
    let endpoint = endpoint
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keepalive_timeout / 3)
        .keep_alive_timeout(options.keepalive_timeout / 3 * 2)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME);
    if scheme.as_deref() == Some("http") {
        return Ok(endpoint);
    }
    let Some(ca) = &options.tls_ca else {
        let fix = "pass the certificate of the authority that signed the worker's certificate";
        return Err(Error::config("tls_ca", format!("a certificate to verify {address}"), "no certificate", fix));
    };
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    if let Some(domain) = &options.tls_domain {
        config = config.domain_name(domain);
    }
    endpoint.tls_config(config).map_err(|error| {
        Error::config(
            "tls_ca",
            "a certificate as PEM",
            with_sources(&error),
            "pass the certificate of the authority that signed the worker's certificate",
        )
    })
}

fn is_loopback(host: Option<&str>) -> bool {
    let host = host.unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Connects, and transfers requests and replies until one side ends the session.
async fn run_session(
    endpoint: Endpoint,
    token: Option<String>,
    requests: mpsc::UnboundedReceiver<proto::Request>,
    sent_count: &AtomicU64,
    replies: &Sender<std::result::Result<proto::Reply, SessionError>>,
    address: &str,
) -> std::result::Result<(), SessionError> {
    let connection_lost = |error: &(dyn std::error::Error + 'static)| {
        let hint = match io_error_kind(error) {
            Some(ErrorKind::ConnectionRefused) => "check that the worker is running",
            // The TLS handshake failed. A server without TLS also closes the connection.
            Some(ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
                if address.starts_with("https") =>
            {
                "check the name and dates of its certificate, and that it uses TLS"
            }
            _ => "check the name, and that this machine can reach it",
        };
        SessionError::Lost(format!("worker {address}: expected a connection, got: {}; {hint}", with_sources(error)))
    };
    let has_token = token.is_some();
    let channel: Channel = endpoint.connect().await.map_err(|error| connection_lost(&error))?;
    let mut client = WorkerClient::new(channel)
        .max_decoding_message_size(LARGEST_MESSAGE)
        .max_encoding_message_size(LARGEST_MESSAGE);
    let mut request = tonic::Request::new(UnboundedReceiverStream::new(requests));
    if let Some(token) = token {
        let mismatch =
            |_| Error::config("token", "visible ASCII characters", "other characters", "pass the worker's token");
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().map_err(mismatch)?);
    }
    let mut incoming =
        client.session(request).await.map_err(|status| open_error(&status, address, has_token))?.into_inner();
    let mut received = 0;
    loop {
        match incoming.message().await {
            Ok(Some(reply)) => {
                received += 1;
                if received > sent_count.load(Relaxed) {
                    return Err(SessionError::Lost(format!("worker {address}: it sent a reply without a request")));
                }
                if replies.send(Ok(reply)).is_err() {
                    return Ok(());
                }
            }
            Ok(None) => return Err(SessionError::Lost(format!("worker {address}: it ended the session"))),
            Err(status) => return Err(status_error(&status, address, has_token)),
        }
    }
}

/// Returns the kind of the innermost I/O error among an error and its sources.
fn io_error_kind(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let inner = error.source().and_then(io_error_kind);
    inner.or_else(|| error.downcast_ref::<std::io::Error>().map(std::io::Error::kind))
}

/// Returns the error for a session that could not be opened.
fn open_error(status: &Status, address: &str, has_token: bool) -> SessionError {
    let Some(cause) = status.source() else { return status_error(status, address, has_token) };
    let other = if address.starts_with("https") { "http without TLS" } else { "https with TLS" };
    let text = with_sources(cause);
    SessionError::Lost(format!(
        "worker {address}: expected a session, got: {text}; check that it is a worker, and does not use {other}"
    ))
}

/// Returns the error for a status that a worker returned. `has_token` is true if a token was sent.
fn status_error(status: &Status, address: &str, has_token: bool) -> SessionError {
    match status.code() {
        Code::Unauthenticated => {
            let got = if has_token { "a different token" } else { "no token" };
            let fix = "pass the token of its --token-file, or from Python set RLOX_WORKER_TOKEN";
            Error::config("token", format!("the token of worker {address}"), got, fix).into()
        }
        Code::FailedPrecondition | Code::InvalidArgument | Code::OutOfRange => {
            Error::Backend(format!("worker {address}: {}", status.message())).into()
        }
        Code::Unimplemented => {
            let got = format!("another kind of server at {address}");
            Error::config("address", "a worker of rlox", got, "pass the address that rlox-worker printed").into()
        }
        code => SessionError::Lost(format!("worker {address}: {} ({code:?})", status.message())),
    }
}
