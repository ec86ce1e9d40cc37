//! The command line of `rlox-worker`.

use std::io::{Write, stdout};
use std::str::FromStr;

use rlox_core::{Error, Result};
use tokio::signal;

use crate::{Identity, Worker, WorkerOptions};

const USAGE: &str = "\
rlox-worker steps environments and collects rollouts for rlox on other machines.

It prints its address and serves until SIGTERM or Ctrl-C; then it answers the requests received so far.

  --bind ADDRESS            address to listen on, 127.0.0.1:0 by default; port 0 is a free one. Others than loopback
                            need --tls-cert, --tls-key and a token
  --tls-cert FILE           certificate chain as PEM
  --tls-key FILE            private key of the certificate as PEM
  --token-file FILE         file with the token of clients; or the environment variable RLOX_WORKER_TOKEN
  --metrics ADDRESS         loopback address of /metrics for Prometheus
  --max-sessions N          maximum number of open sessions, each with a thread (8)
  --max-connections N       maximum number of open connections (64)
  --max-envs N              maximum number of environments in a session (4096)
  --max-message-bytes N     maximum bytes of a message in both directions (4194304)
  --credits N               maximum number of unanswered requests in a session (4)
  --help, --version
";

/// Runs the `rlox-worker` program: prints the address and serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// - [`Error::Config`]: a flag is invalid, or the worker would be unsafe to serve.
/// - [`Error::Io`]: a file cannot be read, an address is in use, or signals are not available.
///
/// ```
/// let args = ["--bind".to_owned(), "0.0.0.0:0".to_owned()];
/// let error = rlox_grpc::run(&args).unwrap_err().to_string();
/// assert!(error.starts_with("bind: expected a loopback address"));
/// ```
pub fn run(args: &[String]) -> Result<()> {
    for (flag, text) in
        [("--help", USAGE), ("-h", USAGE), ("--version", concat!("rlox-worker ", env!("CARGO_PKG_VERSION"), "\n"))]
    {
        if args.iter().any(|arg| arg == flag) {
            return write_stdout(text);
        }
    }
    let options = parse_options(args)?;
    let signals = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let signals = signals.map_err(|source| Error::Io { path: "signals".into(), source })?;
    let _inside = signals.enter();
    let shutdown = shutdown_signal()?;
    let worker = Worker::start(options)?;
    let metrics = worker.metrics_address().map(|address| format!(", metrics on http://{address}/metrics"));
    write_stdout(&format!("rlox-worker listens on {}{}\n", worker.address(), metrics.unwrap_or_default()))?;
    signals.block_on(shutdown);
    worker.stop()
}

/// Installs signal handlers; the returned future completes when a signal has arrived.
fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    let io_error = |source| Error::Io { path: "signals".into(), source };
    #[cfg(unix)]
    let mut terminate = signal::unix::signal(signal::unix::SignalKind::terminate()).map_err(io_error)?;
    #[cfg(unix)]
    let mut interrupt = signal::unix::signal(signal::unix::SignalKind::interrupt()).map_err(io_error)?;
    #[cfg(unix)]
    return Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    #[cfg(not(unix))]
    return Ok(async move { drop(signal::ctrl_c().await.map_err(io_error)) });
}

fn write_stdout(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.map_err(|source| Error::Io { path: "standard output".into(), source })
}

fn parse_options(args: &[String]) -> Result<WorkerOptions> {
    let mut options = WorkerOptions::default();
    let (mut certificate, mut key, mut token_file) = (None, None, None);
    let mut remaining = args.iter();
    while let Some(arg) = remaining.next() {
        let (flag, inline) = arg.split_once('=').map_or((arg.as_str(), None), |(flag, value)| (flag, Some(value)));
        let mut value = || {
            let absent = || Error::config(flag.to_owned(), "a value", "no value", "write the value after the flag");
            inline.or_else(|| remaining.next().map(String::as_str)).ok_or_else(absent)
        };
        match flag {
            "--bind" => options.bind = parse_value(flag, value()?, "an address with a port, such as 127.0.0.1:50051")?,
            "--metrics" => options.metrics = Some(parse_value(flag, value()?, "an address such as 127.0.0.1:9100")?),
            "--tls-cert" => certificate = Some(read(value()?)?),
            "--tls-key" => key = Some(read(value()?)?),
            "--token-file" => token_file = Some(read(value()?)?),
            "--max-sessions" => options.limits.max_sessions = number(flag, value()?)?,
            "--max-connections" => options.limits.max_connections = number(flag, value()?)?,
            "--max-envs" => options.limits.max_envs = number(flag, value()?)?,
            "--max-message-bytes" => options.limits.max_message_bytes = number(flag, value()?)?,
            "--credits" => options.limits.credits = number(flag, value()?)?,
            _ => return Err(Error::config("arguments", "a flag of rlox-worker", flag, "see rlox-worker --help")),
        }
    }
    options.identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        (None, None) => None,
        (certificate, _) => {
            let got = if certificate.is_some() { "--tls-cert alone" } else { "--tls-key alone" };
            return Err(Error::config("--tls-cert, --tls-key", "both or none", got, "pass the other one, too"));
        }
    };
    let token = token_file.or_else(|| std::env::var("RLOX_WORKER_TOKEN").ok());
    options.token = token.map(|token| token.trim().to_owned());
    Ok(options)
}

fn parse_value<T: FromStr>(flag: &str, text: &str, expected: &str) -> Result<T> {
    text.parse().map_err(|_| Error::config(flag.to_owned(), expected, format!("{text:?}"), "correct it"))
}

fn number<T: FromStr>(flag: &str, text: &str) -> Result<T> {
    parse_value(flag, text, "a positive number")
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.into(), source })
}
