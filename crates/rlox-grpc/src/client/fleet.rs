//! What the sessions of a client have in common.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use rlox_core::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

use super::ClientOptions;

/// What went wrong with workers so far, and was made good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Sessions that were lost.
    pub lost: u64,
    /// Those that went on, on another worker or when the same one was back.
    pub recovered: u64,
    /// Requests that were made again for it.
    pub replayed: u64,
    /// The longest time from the loss to the answer.
    pub longest: Duration,
}

/// Addresses, settings, and the thread that talks.
pub(super) struct Fleet {
    pub(super) addresses: Vec<String>,
    pub(super) options: ClientOptions,
    pub(super) faults: Mutex<Faults>,
    runtime: Option<Runtime>,
    process: u32,
}

impl Drop for Fleet {
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

impl Fleet {
    pub(super) fn new<S: AsRef<str>>(addresses: &[S], options: &ClientOptions) -> Result<Self> {
        options.check()?;
        if addresses.is_empty() {
            return Err(Error::config("addresses", "at least one worker's", "none", "start some and name them"));
        }
        let addresses = addresses.iter().map(|address| address.as_ref().to_owned()).collect();
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("rlox-remote").enable_all().build();
        let runtime = runtime.map_err(|source| Error::Io { path: "the client's thread".into(), source })?;
        let (faults, process) = (Mutex::default(), std::process::id());
        Ok(Self { addresses, options: options.clone(), faults, runtime: Some(runtime), process })
    }

    /// The thread that talks.
    pub(super) fn runtime(&self) -> Result<&Handle> {
        if std::process::id() != self.process {
            let (expected, got) = ("the process that made it", "one that was forked from it");
            return Err(Error::closed("workers", expected, got, "connect anew in this process"));
        }
        let gone = || Error::closed("workers", "a client that is open", "one that was closed", "make a new one");
        self.runtime.as_ref().map(Runtime::handle).ok_or_else(gone)
    }

    /// What went wrong so far.
    pub(super) fn faults(&self) -> Faults {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
