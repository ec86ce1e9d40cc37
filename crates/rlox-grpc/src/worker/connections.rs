//! Connections: how many there are, how much they carry, and how long they may be silent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::Counters;

/// Who says nothing for so long, not even to a ping, is gone.
const SILENCE: Duration = Duration::from_secs(20);

/// Who connects and then says nothing at all, after so long.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// One of a bounded number of connections.
pub(super) struct Connection {
    stream: TcpStream,
    counters: Arc<Counters>,
    heard: Instant,
    patience: Duration,
    silence: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.connections.fetch_sub(1, Relaxed);
    }
}

/// The connections that come. Those beyond the limit are closed at once.
pub(super) fn accept(
    listener: TcpListener,
    limit: usize,
    counters: Arc<Counters>,
    mut stopped: watch::Receiver<bool>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    let room = Arc::new(Semaphore::new(limit));
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            let Ok((stream, _)) = accepted else {
                // Such as too many open files: some may be closed meanwhile.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                counters.refused.fetch_add(1, Relaxed);
                continue;
            };
            // Without it answers are only slower.
            let _ = stream.set_nodelay(true);
            counters.connections.fetch_add(1, Relaxed);
            let heard = Instant::now();
            let silence = Box::pin(sleep_until(heard + FIRST_WORD));
            let counters = Arc::clone(&counters);
            if sender
                .send(Ok(Connection { stream, counters, heard, patience: FIRST_WORD, silence, _permit: permit }))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, into) {
            (this.heard, this.patience) = (Instant::now(), SILENCE);
            this.counters.received_bytes.fetch_add((into.filled().len() - before) as u64, Relaxed);
            return Poll::Ready(read);
        }
        loop {
            ready!(this.silence.as_mut().poll(context));
            let end = this.heard + this.patience;
            if Instant::now() >= end {
                this.counters.refused.fetch_add(1, Relaxed);
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            this.silence.as_mut().reset(end);
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        this.counters.sent_bytes.fetch_add(written as u64, Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, bytes))?;
        this.counters.sent_bytes.fetch_add(written as u64, Relaxed);
        Poll::Ready(Ok(written))
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
