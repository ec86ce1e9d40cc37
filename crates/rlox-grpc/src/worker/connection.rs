//! Connections of clients: the limit of their number, the count of their sessions, and their
//! timeouts.

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::metrics::Counters;

/// Timeouts after which an unused connection is closed.
#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    /// Timeout of a new connection that has sent no data yet.
    first_byte: Duration,
    /// Timeout of a connection that no longer sends data, not even replies to pings.
    silence: Duration,
    /// Timeout of a connection without a session.
    idle: Duration,
    /// Timeout of a connection without a session that has made health checks.
    health: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let [first_byte, silence, idle, health] = [3, 20, 10, 60].map(Duration::from_secs);
        Self { first_byte, silence, idle, health }
    }
}

/// Maximum time that a new connection waits for a connection without a session to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Handle of a connection for request handlers. The handle counts the connection's sessions.
#[derive(Clone)]
pub(super) struct Peer(Arc<Mutex<ConnectionState>>);

struct ConnectionState {
    sessions: usize,
    /// Time at which the last session ended, or at which the connection was accepted.
    since: Instant,
    has_health_check: bool,
    close_sender: Option<oneshot::Sender<()>>,
}

/// Guard that counts a session on a connection until the guard is dropped.
pub(super) struct SessionGuard(Peer);

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock_state();
        state.sessions -= 1;
        state.since = Instant::now();
    }
}

impl Peer {
    fn lock_state(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a session until the returned guard is dropped.
    pub(super) fn begin_session(&self) -> SessionGuard {
        self.lock_state().sessions += 1;
        SessionGuard(self.clone())
    }

    /// Records that the connection is used for health checks.
    pub(super) fn record_health_check(&self) {
        self.lock_state().has_health_check = true;
    }

    /// Returns the time at which a connection without a session is closed; `None` if it has a
    /// session.
    fn idle_until(&self, timeouts: &Timeouts) -> Option<Instant> {
        let state = self.lock_state();
        let idle_limit = if state.has_health_check { timeouts.health } else { timeouts.idle };
        (state.sessions == 0).then(|| state.since + idle_limit)
    }
}

/// Accepted connection, with its permit and timeouts.
pub(super) struct Connection {
    stream: TcpStream,
    counters: Arc<Counters>,
    peer: Peer,
    timeouts: Timeouts,
    last_read: Instant,
    has_read: bool,
    silence: Pin<Box<Sleep>>,
    close_signal: oneshot::Receiver<()>,
    is_closing: bool,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, counters: Arc<Counters>, timeouts: Timeouts, permit: OwnedSemaphorePermit) -> Self {
        let now = Instant::now();
        let (close_sender, close_signal) = oneshot::channel();
        let state =
            ConnectionState { sessions: 0, since: now, has_health_check: false, close_sender: Some(close_sender) };
        counters.connections.fetch_add(1, Relaxed);
        Self {
            stream,
            counters,
            peer: Peer(Arc::new(Mutex::new(state))),
            timeouts,
            last_read: now,
            has_read: false,
            silence: Box::pin(sleep_until(now + timeouts.first_byte)),
            close_signal,
            is_closing: false,
            _permit: permit,
        }
    }

    /// Returns the time at which the connection is closed if no data arrives and no session begins.
    fn deadline(&self) -> Instant {
        let silence_deadline =
            self.last_read + if self.has_read { self.timeouts.silence } else { self.timeouts.first_byte };
        self.peer
            .idle_until(&self.timeouts)
            .map_or(silence_deadline, |idle_deadline| idle_deadline.min(silence_deadline))
    }

    /// Returns true if the connection has to close so that a new connection can be accepted.
    fn poll_close(&mut self, context: &mut Context<'_>) -> bool {
        self.is_closing = self.is_closing || Pin::new(&mut self.close_signal).poll(context).is_ready();
        self.is_closing
    }

    /// Counts written bytes, and aborts a blocked write if the connection has to close.
    fn finish_write(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending if self.poll_close(context) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            Poll::Ready(Ok(count)) => {
                self.counters.sent_bytes.fetch_add(count as u64, Relaxed);
                Poll::Ready(Ok(count))
            }
            other => other,
        }
    }

    /// Completes with an error when the connection has to close.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.poll_close(context) {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        loop {
            let deadline = self.deadline();
            if Instant::now() >= deadline {
                self.counters.refused.fetch_add(1, Relaxed);
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            if deadline != self.silence.deadline() && (deadline < self.silence.deadline() || self.silence.is_elapsed())
            {
                self.silence.as_mut().reset(deadline);
            }
            ready!(self.silence.as_mut().poll(context));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.connections.fetch_sub(1, Relaxed);
    }
}

/// Accepts at most `limit` connections at the same time.
///
/// At the limit, the connection that has had no session for the longest time is closed, and the new
/// connection is accepted. If all connections have sessions, the new connection is closed.
pub(super) fn accept(
    listener: TcpListener,
    limit: usize,
    timeouts: Timeouts,
    counters: Arc<Counters>,
    mut stopped: watch::Receiver<bool>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    let connections = Arc::new(Semaphore::new(limit));
    tokio::spawn(async move {
        let mut peers = Vec::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            let Ok((stream, _)) = accepted else {
                // The process may have too many open files. Some of them may be closed soon.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let Some(permit) = acquire_connection(&connections, &peers).await else {
                counters.refused.fetch_add(1, Relaxed);
                continue;
            };
            // If the option cannot be set, replies are only slower.
            let _ = stream.set_nodelay(true);
            let connection = Connection::new(stream, Arc::clone(&counters), timeouts, permit);
            // Removing closed peers bounds the list by the limit.
            peers.retain(|peer: &Weak<_>| peer.strong_count() > 0);
            peers.push(Arc::downgrade(&connection.peer.0));
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Acquires a permit for a new connection; `None` if all connections have sessions.
///
/// If there is no free permit, the connection that has had no session for the longest time is
/// closed.
async fn acquire_connection(
    connections: &Arc<Semaphore>,
    peers: &[Weak<Mutex<ConnectionState>>],
) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = Arc::clone(connections).try_acquire_owned() {
        return Some(permit);
    }
    let live_peers: Vec<_> = peers.iter().filter_map(Weak::upgrade).map(Peer).collect();
    let idle = live_peers.iter().filter_map(|peer| {
        let state = peer.lock_state();
        (state.sessions == 0 && state.close_sender.is_some()).then_some((state.since, peer))
    });
    let (_, longest) = idle.min_by_key(|(since, _)| *since)?;
    let close_sender = longest.lock_state().close_sender.take();
    // The connection may have closed already.
    close_sender?.send(()).ok();
    timeout(CLOSE_TIMEOUT, Arc::clone(connections).acquire_owned()).await.ok()?.ok()
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if read.is_ready() {
            (this.last_read, this.has_read) = (Instant::now(), true);
            this.counters.received_bytes.fetch_add((into.filled().len() - before) as u64, Relaxed);
        }
        match this.poll_timeout(context) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.finish_write(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, bytes);
        this.finish_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(20);

    fn short_timeouts() -> Timeouts {
        Timeouts { first_byte: SHORT, silence: LONG, idle: 5 * SHORT, health: 15 * SHORT }
    }

    struct Listener {
        incoming: ReceiverStream<io::Result<Connection>>,
        address: std::net::SocketAddr,
        _stop: watch::Sender<bool>,
    }

    async fn start_listener(limit: usize) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        Listener { incoming: accept(listener, limit, short_timeouts(), Arc::default(), stopped), address, _stop: stop }
    }

    impl Listener {
        /// Connects a client that has sent a byte, and returns its connection.
        async fn connect(&mut self) -> (TcpStream, Connection) {
            let mut client = TcpStream::connect(self.address).await.unwrap();
            client.write_all(b"x").await.unwrap();
            let mut connection = self.incoming.next().await.unwrap().unwrap();
            connection.read_exact(&mut [0]).await.unwrap();
            (client, connection)
        }
    }

    /// Returns the time until reading fails, and the kind of the error.
    async fn read_until_closed(connection: &mut Connection) -> (Duration, io::ErrorKind) {
        let start = Instant::now();
        let error = timeout(Duration::from_secs(5), connection.read(&mut [0])).await.expect("it goes on").unwrap_err();
        (start.elapsed(), error.kind())
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn connections_without_a_session_are_closed() {
        run(async {
            let mut served = start_listener(8).await;
            let (_client, mut idle) = served.connect().await;
            let (took, kind) = read_until_closed(&mut idle).await;
            assert!(kind == io::ErrorKind::TimedOut && took > 4 * SHORT && took < 14 * SHORT, "{took:?} {kind:?}");
            let (_client, mut asks) = served.connect().await;
            asks.peer.record_health_check();
            let (took, kind) = read_until_closed(&mut asks).await;
            assert!(kind == io::ErrorKind::TimedOut && took > 14 * SHORT, "{took:?} {kind:?}");
            let _silent = TcpStream::connect(served.address).await.unwrap();
            let (took, _) = read_until_closed(&mut served.incoming.next().await.unwrap().unwrap()).await;
            assert!(took < 4 * SHORT, "{took:?}");
        });
    }

    #[test]
    fn a_session_keeps_its_connection_until_it_ends() {
        run(async {
            let mut served = start_listener(1).await;
            let (mut client, mut carries) = served.connect().await;
            let session = carries.peer.begin_session();
            assert!(timeout(8 * SHORT, carries.read(&mut [0])).await.is_err(), "it was closed");
            // All connections have sessions, so the next connection is rejected.
            let mut refused = TcpStream::connect(served.address).await.unwrap();
            assert_eq!(refused.read(&mut [0]).await.unwrap_or(0), 0);
            drop(session);
            // Incoming data, such as replies to pings, restarts the timeout for silence.
            client.write_all(b"x").await.unwrap();
            carries.read_exact(&mut [0]).await.unwrap();
            let (took, _) = read_until_closed(&mut carries).await;
            assert!(took > 4 * SHORT && took < 14 * SHORT, "{took:?}");
        });
    }

    #[test]
    fn the_oldest_idle_connection_is_closed_for_a_new_one() {
        run(async {
            let mut served = start_listener(3).await;
            let (_a, carries) = served.connect().await;
            let _session = carries.peer.begin_session();
            let (_b, mut oldest) = served.connect().await;
            let (_c, mut newer) = served.connect().await;
            let left = tokio::spawn(async move { read_until_closed(&mut oldest).await });
            let (_d, _connection) = served.connect().await;
            assert_eq!(left.await.unwrap().1, io::ErrorKind::ConnectionAborted);
            assert!(timeout(SHORT / 2, newer.read(&mut [0])).await.is_err(), "the newer one left");
        });
    }
}
