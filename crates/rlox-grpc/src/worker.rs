//! The server of a worker: sessions in threads, limits, start and shutdown.

mod budget;
mod connection;
mod metrics;
mod options;
mod rollout;
mod session;
mod session_task;

use std::iter::successors;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rlox_core::{Error, Result};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use connection::{Peer, Timeouts};
pub use metrics::Counters;
use options::{FRAME_IN, THREADS, WINDOW};
pub use options::{Identity, Limits, MakeEnv, WorkerOptions};
use session_task::Service;

use crate::proto::worker_server::WorkerServer;

/// Time limit for sessions to end at shutdown.
const GRACE: Duration = Duration::from_secs(10);
/// Time limit for connections to end after all sessions have ended.
const LAST: Duration = Duration::from_secs(1);
/// Time without data after which the server pings a client. A client that does not reply within the
/// same time is disconnected.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Maximum bytes of a health request.
const LARGEST_HEALTH: usize = 1 << 10;
const LARGEST_HEADERS: u32 = 8 << 10;

/// Server that runs until it is stopped or dropped.
///
/// ```
/// use rlox_grpc::{Worker, WorkerOptions};
///
/// let worker = Worker::start(WorkerOptions::default())?;
/// assert!(worker.address().starts_with("http://127.0.0.1:"));
/// worker.stop()?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct Worker {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    health: HealthReporter,
    /// One permit per session that may still be opened. A session releases its permit after its
    /// environments are dropped.
    sessions: Arc<Semaphore>,
    max_sessions: u32,
    server_task: Option<tokio::task::JoinHandle<std::result::Result<(), tonic::transport::Error>>>,
    counters: Arc<Counters>,
    bound: SocketAddr,
    metrics: Option<SocketAddr>,
    tls: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Worker {
    /// Binds the address and starts the server in separate threads.
    ///
    /// # Errors
    /// - [`Error::Config`]: the address is not loopback and TLS or a token is missing, a certificate is invalid, or a
    ///   limit is 0.
    /// - [`Error::Io`]: the system refuses the address or a thread.
    pub fn start(options: WorkerOptions) -> Result<Self> {
        options.check()?;
        run_outside_runtime(|| Self::start_server(options))?
    }

    fn start_server(options: WorkerOptions) -> Result<Self> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name("rlox-worker").enable_all().build();
        let runtime = runtime.map_err(|source| Error::Io { path: "the worker's threads".into(), source })?;
        let runtime_guard = runtime.enter();
        let listener = runtime.block_on(bind(options.bind))?;
        let bound = address_of(&listener, options.bind)?;
        let counters = Arc::new(Counters::default());
        let (stop, stopped) = watch::channel(false);
        let metrics = options.metrics.map(|address| {
            let listener = runtime.block_on(bind(address))?;
            let bound = address_of(&listener, address)?;
            runtime.spawn(metrics::serve(listener, Arc::clone(&counters)));
            Ok::<_, Error>(bound)
        });
        let metrics = metrics.transpose()?;
        let mut server = Server::builder()
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME_IN)
            .max_concurrent_streams(options.limits.max_streams)
            .http2_max_header_list_size(LARGEST_HEADERS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .tcp_nodelay(true);
        let tls = options.identity.is_some();
        if let Some(identity) = &options.identity {
            let identity = tonic::transport::Identity::from_pem(&identity.certificate, &identity.key);
            let config = ServerTlsConfig::new().identity(identity).timeout(KEEPALIVE);
            server = server.tls_config(config).map_err(|error| {
                let fix = "pass a certificate chain and its private key, both as PEM";
                Error::config("tls_cert, tls_key", "a certificate and its private key", with_sources(&error), fix)
            })?;
        }
        let limits = options.limits;
        let sessions = Arc::new(Semaphore::new(limits.max_sessions));
        let service = Service::new(options.make, limits, Arc::clone(&counters), Arc::clone(&sessions), stopped.clone());
        let service = WorkerServer::new(service)
            .max_decoding_message_size(limits.max_message_bytes)
            .max_encoding_message_size(limits.max_message_bytes);
        let (token, guard_counters) = (options.token, Arc::clone(&counters));
        let guard = move |request: Request<()>| admit(token.as_deref(), &guard_counters, request);
        let (health, health_service) = tonic_health::server::health_reporter();
        let health_service = health_service.max_decoding_message_size(LARGEST_HEALTH);
        runtime.block_on(health.set_serving::<WorkerServer<Service>>());
        let incoming = connection::accept(
            listener,
            limits.max_connections,
            Timeouts::default(),
            Arc::clone(&counters),
            stopped.clone(),
        );
        let router = server
            .add_service(InterceptedService::new(health_service, note_health_check))
            .add_service(InterceptedService::new(service, guard));
        let stop_signal = wait_for_stop(stopped);
        let server_task = runtime.spawn(router.serve_with_incoming_shutdown(incoming, stop_signal));
        drop(runtime_guard);
        let (runtime, server_task, max_sessions) = (Some(runtime), Some(server_task), limits.max_sessions as u32);
        Ok(Self { runtime, stop, health, sessions, max_sessions, server_task, counters, bound, metrics, tls })
    }

    /// Returns the address for clients, with `http://` or `https://`.
    pub fn address(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.bound)
    }

    /// Returns the address of the metrics; `None` if the worker does not serve metrics.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Rejects new sessions, answers the requests received so far and waits for all sessions.
    ///
    /// The wait takes at most eleven seconds. Health checks already report during the wait that the
    /// worker is not serving.
    ///
    /// # Errors
    /// [`Error::Backend`] if sessions did not end within ten seconds, or the worker has failed.
    pub fn stop(mut self) -> Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<()> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let result = run_outside_runtime(|| runtime.block_on(self.wait_for_sessions()));
        runtime.shutdown_background();
        result?
    }

    async fn wait_for_sessions(&mut self) -> Result<()> {
        self.health.set_not_serving::<WorkerServer<Service>>().await;
        self.health.set_service_status("", ServingStatus::NotServing).await;
        self.stop.send_replace(true);
        let all_sessions = timeout(GRACE, self.sessions.acquire_many(self.max_sessions)).await;
        if all_sessions.is_err() {
            return Err(Error::Backend(format!("sessions did not end within {} s", GRACE.as_secs())));
        }
        let Some(server_task) = self.server_task.take() else { return Ok(()) };
        match timeout(LAST, server_task).await {
            // Clients that watch the health or receive no replies keep their connections and are
            // cut off.
            Ok(Ok(Ok(()))) | Err(_) => Ok(()),
            Ok(Ok(Err(error))) => Err(Error::Backend(format!("the worker failed: {}", with_sources(&error)))),
            Ok(Err(error)) => Err(Error::Backend(format!("the worker failed: {error}"))),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Drop cannot return an error.
        let _ = self.shut_down();
    }
}

/// Runs blocking work, in a new thread if the caller's thread belongs to an async runtime.
fn run_outside_runtime<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    if Handle::try_current().is_err() {
        return Ok(work());
    }
    let source = |source| Error::Io { path: "a thread".into(), source };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("rlox-worker".into()).spawn_scoped(scope, work).map_err(source)?;
        thread.join().map_err(|_| Error::Backend("a worker's thread panicked".into()))
    })
}

/// Maximum bytes of a message, on both sides.
pub(crate) const LARGEST_MESSAGE: usize = (u32::MAX >> 1) as usize;
/// Maximum bytes of an HTTP/2 frame that a client receives.
pub(crate) const FRAME: u32 = 1 << 18;

/// Returns the text of an error followed by the texts of its sources.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let chain = successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|source| Error::Io { path: address.to_string(), source })
}

fn address_of(listener: &TcpListener, requested: SocketAddr) -> Result<SocketAddr> {
    listener.local_addr().map_err(|source| Error::Io { path: requested.to_string(), source })
}

async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    // An error means that the worker was dropped.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Records that the connection of a request is used for health checks.
#[expect(clippy::unnecessary_wraps, reason = "as interceptors are")]
fn note_health_check(request: Request<()>) -> std::result::Result<Request<()>, Status> {
    if let Some(peer) = request.extensions().get::<Peer>() {
        peer.record_health_check();
    }
    Ok(request)
}

/// Accepts requests with the token, or all requests if the worker has no token.
fn admit(token: Option<&str>, counters: &Counters, request: Request<()>) -> std::result::Result<Request<()>, Status> {
    use std::sync::atomic::Ordering::Relaxed;
    use subtle::ConstantTimeEq;

    let Some(token) = token else { return Ok(request) };
    let credential = request.metadata().get("authorization").map(tonic::metadata::MetadataValue::as_bytes);
    let credential = credential.and_then(|value| value.strip_prefix(b"Bearer "));
    if credential.is_some_and(|token_bytes| token_bytes.ct_eq(token.as_bytes()).into()) {
        return Ok(request);
    }
    counters.refused.fetch_add(1, Relaxed);
    let got = if credential.is_some() { "a different token" } else { "no token" };
    Err(Status::unauthenticated(format!(
        "token: expected the worker's token, got {got}; pass the token of its --token-file"
    )))
}
