//! Counters of a worker, and the HTTP endpoint that serves them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// What a worker has counted since it began.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sessions that are open.
    pub sessions: AtomicU64,
    /// Sessions that were opened.
    pub opened: AtomicU64,
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Steps of single environments.
    pub steps: AtomicU64,
    /// Bytes that came.
    pub received_bytes: AtomicU64,
    /// Bytes that were sent.
    pub sent_bytes: AtomicU64,
    /// Connections, sessions and requests that were refused.
    pub refused: AtomicU64,
    /// Environments that panicked.
    pub panics: AtomicU64,
}

impl Counters {
    /// All of them in Prometheus' text format.
    ///
    /// ```
    /// let text = rlox_grpc::Counters::default().prometheus();
    /// assert!(text.contains("# TYPE rlox_worker_steps_total counter\nrlox_worker_steps_total 0\n"));
    /// ```
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("sessions", "gauge", "Sessions that are open.", &self.sessions),
            ("connections", "gauge", "Connections that are open.", &self.connections),
            ("sessions_total", "counter", "Sessions that were opened.", &self.opened),
            ("steps_total", "counter", "Steps of single environments.", &self.steps),
            ("received_bytes_total", "counter", "Bytes that came.", &self.received_bytes),
            ("sent_bytes_total", "counter", "Bytes that were sent.", &self.sent_bytes),
            ("refused_total", "counter", "Connections, sessions and requests that were refused.", &self.refused),
            ("panics_total", "counter", "Environments that panicked.", &self.panics),
        ] {
            let name = format!("rlox_worker_{name}");
            let value = value.load(Relaxed);
            // A string takes everything.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
        text
    }
}

/// Answers requests for metrics, one after the other.
pub(super) async fn serve(listener: TcpListener, counters: Arc<Counters>) {
    loop {
        match listener.accept().await {
            // One that is slow or gone is nobody else's affair.
            Ok((stream, _)) => drop(tokio::time::timeout(REQUEST_TIMEOUT, respond(stream, &counters)).await),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn respond(mut stream: TcpStream, counters: &Counters) -> std::io::Result<()> {
    let (mut request, mut len) = ([0; 4096], 0);
    while !request[..len].windows(4).any(|end| end == b"\r\n\r\n") && len < request.len() {
        let read = stream.read(&mut request[len..]).await?;
        if read == 0 {
            return Ok(());
        }
        len += read;
    }
    let found = request.starts_with(b"GET /metrics ");
    let (status, body) = if found { ("200 OK", counters.prometheus()) } else { ("404 Not Found", String::new()) };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
