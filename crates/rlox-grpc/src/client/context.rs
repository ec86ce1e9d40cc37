//! State shared by all sessions of a client: addresses, options, fault counts and the runtime.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rlox_core::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

use super::options::ClientOptions;

/// Numbers of lost and restarted sessions of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of lost sessions.
    pub lost: u64,
    /// Number of lost sessions that were restarted, on another worker or on the same worker.
    pub restarted: u64,
    /// Number of requests that were repeated to restart sessions.
    pub replayed: u64,
    /// Longest time from the loss of a session to the next reply.
    pub longest: Duration,
}

/// Handle from which any thread can read the [`Faults`] of a client, even after the client was
/// dropped.
///
/// ```
/// use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};
///
/// let worker = Worker::start(WorkerOptions::default())?;
/// let env = EnvOptions::new("CartPole-v1", 1, 0);
/// let env = RemoteVecEnv::new(&[worker.address()], &env, &ClientOptions::default())?;
/// let counts = env.fault_counts();
/// drop(env);
/// assert_eq!(counts.now().lost, 0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FaultCounts(Arc<Mutex<Faults>>);

impl FaultCounts {
    /// Returns the faults so far.
    pub fn now(&self) -> Faults {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Addresses, options and the runtime with the network thread.
pub(super) struct ClientContext {
    pub(super) addresses: Vec<String>,
    pub(super) options: ClientOptions,
    faults: Arc<Mutex<Faults>>,
    /// Time of the first loss of a session that the current call has to recover from.
    outage_start: Mutex<Option<Instant>>,
    runtime: Option<Runtime>,
    process: u32,
}

impl Drop for ClientContext {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            if std::process::id() == self.process {
                runtime.shutdown_background();
            } else {
                // A forked process has none of the runtime's threads.
                std::mem::forget(runtime);
            }
        }
    }
}

impl ClientContext {
    pub(super) fn new<S: AsRef<str>>(addresses: &[S], options: &ClientOptions) -> Result<Self> {
        options.check()?;
        if addresses.is_empty() {
            return Err(Error::config(
                "addresses",
                "at least one worker address",
                "no address",
                "start a worker and pass its address",
            ));
        }
        let addresses = addresses.iter().map(|address| address.as_ref().to_owned()).collect();
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("rlox-remote").enable_all().build();
        let runtime = runtime.map_err(|source| Error::Io { path: "the client's thread".into(), source })?;
        let (faults, outage_start, process) = (Arc::default(), Mutex::default(), std::process::id());
        Ok(Self { addresses, options: options.clone(), faults, outage_start, runtime: Some(runtime), process })
    }

    /// Returns an error in a forked process, which has none of the runtime's threads.
    pub(super) fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        let (expected, got) = ("the process that made the client", "a forked process");
        Err(Error::closed("workers", expected, got, "make a new client in this process"))
    }

    /// Returns the handle of the runtime.
    pub(super) fn runtime(&self) -> Result<&Handle> {
        self.check_process()?;
        let closed = || Error::closed("workers", "an open client", "a closed client", "make a new client");
        self.runtime.as_ref().map(Runtime::handle).ok_or_else(closed)
    }

    /// Clears the start of the outage, at the start or end of a call, so that each call has the
    /// full recovery time.
    pub(super) fn clear_outage(&self) {
        *self.outage_start.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the time until which a call tries to restart its lost sessions.
    pub(super) fn deadline(&self) -> Instant {
        let mut outage_start = self.outage_start.lock().unwrap_or_else(PoisonError::into_inner);
        *outage_start.get_or_insert_with(Instant::now) + self.options.recovery_timeout
    }

    /// Returns a handle of the fault counts.
    pub(super) fn fault_counts(&self) -> FaultCounts {
        FaultCounts(Arc::clone(&self.faults))
    }

    pub(super) fn update_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
