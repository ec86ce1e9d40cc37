//! Counters of a worker, and the HTTP endpoint that serves them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Counters of a worker since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of open sessions.
    pub sessions: AtomicU64,
    /// Number of sessions that were opened.
    pub opened: AtomicU64,
    /// Number of open connections.
    pub connections: AtomicU64,
    /// Number of steps of single environments.
    pub steps: AtomicU64,
    /// Number of received bytes.
    pub received_bytes: AtomicU64,
    /// Number of sent bytes.
    pub sent_bytes: AtomicU64,
    /// Number of rejected connections, sessions and requests.
    pub refused: AtomicU64,
    /// Number of panics in environments.
    pub panics: AtomicU64,
}

impl Counters {
    /// Returns all counters in Prometheus' text format.
    ///
    /// ```
    /// let text = rlox_grpc::Counters::default().prometheus();
    /// assert!(text.contains("# TYPE rlox_worker_steps_total counter\nrlox_worker_steps_total 0\n"));
    /// ```
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("sessions", "gauge", "Open sessions.", &self.sessions),
            ("connections", "gauge", "Open connections.", &self.connections),
            ("sessions_total", "counter", "Sessions opened so far.", &self.opened),
            ("steps_total", "counter", "Steps of single environments.", &self.steps),
            ("received_bytes_total", "counter", "Bytes received.", &self.received_bytes),
            ("sent_bytes_total", "counter", "Bytes sent.", &self.sent_bytes),
            ("refused_total", "counter", "Rejected connections, sessions and requests.", &self.refused),
            ("panics_total", "counter", "Panics in environments.", &self.panics),
        ] {
            let name = format!("rlox_worker_{name}");
            let value = value.load(Relaxed);
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
        text
    }
}

/// Serves metrics, one request at a time.
pub(super) async fn serve(listener: TcpListener, counters: Arc<Counters>) {
    loop {
        match listener.accept().await {
            // A slow or broken client must not stop the endpoint.
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
