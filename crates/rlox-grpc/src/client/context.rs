//! State that all sessions of a client share: addresses, options, fault counts and the runtime.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rlox_core::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

use super::options::ClientOptions;

/// What went wrong with workers so far, and was made good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Sessions that were lost.
    pub lost: u64,
    /// Those that went on, on another worker or when the same one was back.
    pub restarted: u64,
    /// Requests that were made again for it.
    pub replayed: u64,
    /// The longest time from the loss to the answer.
    pub longest: Duration,
}

/// The faults of a client, which may be asked for while another thread uses it, and after it has ended.
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
    /// What went wrong so far.
    pub fn now(&self) -> Faults {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Addresses, settings, and the thread that talks.
pub(super) struct ClientContext {
    pub(super) addresses: Vec<String>,
    pub(super) options: ClientOptions,
    faults: Arc<Mutex<Faults>>,
    /// When the first session was lost of those that the present call has to make good.
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
                // A forked process has none of its threads.
                std::mem::forget(runtime);
            }
        }
    }
}

impl ClientContext {
    pub(super) fn new<S: AsRef<str>>(addresses: &[S], options: &ClientOptions) -> Result<Self> {
        options.check()?;
        if addresses.is_empty() {
            return Err(Error::config("addresses", "at least one worker's", "none", "start some and name them"));
        }
        let addresses = addresses.iter().map(|address| address.as_ref().to_owned()).collect();
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("rlox-remote").enable_all().build();
        let runtime = runtime.map_err(|source| Error::Io { path: "the client's thread".into(), source })?;
        let (faults, outage_start, process) = (Arc::default(), Mutex::default(), std::process::id());
        Ok(Self { addresses, options: options.clone(), faults, outage_start, runtime: Some(runtime), process })
    }

    /// Refuses a process that has none of the threads.
    pub(super) fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        let (expected, got) = ("the process that made it", "one that was forked from it");
        Err(Error::closed("workers", expected, got, "connect anew in this process"))
    }

    /// The thread that talks.
    pub(super) fn runtime(&self) -> Result<&Handle> {
        self.check_process()?;
        let closed = || Error::closed("workers", "a client that is open", "one that was closed", "make a new one");
        self.runtime.as_ref().map(Runtime::handle).ok_or_else(closed)
    }

    /// A call begins, or has been left: what it loses has the whole time to be made good.
    pub(super) fn clear_outage(&self) {
        *self.outage_start.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Until when lost sessions are tried to be begun elsewhere, all of a call together.
    pub(super) fn deadline(&self) -> Instant {
        let mut outage_start = self.outage_start.lock().unwrap_or_else(PoisonError::into_inner);
        *outage_start.get_or_insert_with(Instant::now) + self.options.recovery_timeout
    }

    /// What went wrong, now and later.
    pub(super) fn fault_counts(&self) -> FaultCounts {
        FaultCounts(Arc::clone(&self.faults))
    }

    pub(super) fn update_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
