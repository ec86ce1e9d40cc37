//! Memory of calls that are over, for later ones.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlox_core::replay::{Chosen, ChosenSequences};

use crate::shared::free;

/// As many as are kept: so many calls at once find memory that is there already.
const KEPT: usize = 8;
/// Bytes that all of them have at most: what a larger call has used goes back to the system.
const BYTES: usize = 8 << 20;

/// What can be kept.
pub(super) trait Kept: Default {
    /// Bytes of memory.
    fn bytes(&self) -> usize;
}

impl Kept for Chosen {
    fn bytes(&self) -> usize {
        self.memory()
    }
}

impl Kept for ChosenSequences {
    fn bytes(&self) -> usize {
        self.memory()
    }
}

/// Nobody ever waits for it. The bytes change under its lock.
pub(super) struct Spare<T> {
    /// None once it is closed.
    kept: Mutex<Option<Vec<T>>>,
    bytes: AtomicUsize,
}

impl<T: Kept> Spare<T> {
    pub(super) fn new() -> Self {
        Self { kept: Mutex::new(Some(Vec::new())), bytes: AtomicUsize::new(0) }
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What another call has left, or something new.
    pub(super) fn take(&self) -> T {
        let thing = free(self.kept.try_lock()).and_then(|mut kept| {
            let thing = kept.as_mut()?.pop()?;
            self.bytes.store(self.bytes() - thing.bytes(), Ordering::Relaxed);
            Some(thing)
        });
        thing.unwrap_or_default()
    }

    /// Leaves it to others, if there is room.
    pub(super) fn leave(&self, thing: T) {
        if let Some(mut guard) = free(self.kept.try_lock())
            && let Some(kept) = guard.as_mut()
            && kept.len() < KEPT
            && self.bytes().saturating_add(thing.bytes()) <= BYTES
        {
            self.bytes.store(self.bytes() + thing.bytes(), Ordering::Relaxed);
            kept.push(thing);
        }
    }

    /// Lets everything go, and keeps nothing any more.
    pub(super) fn close(&self) {
        // Others have it for no longer than it takes to push or pop; after a fork its holder may not be there.
        for _ in 0..1000 {
            if let Some(mut kept) = free(self.kept.try_lock()) {
                self.bytes.store(0, Ordering::Relaxed);
                return drop(kept.take());
            }
            std::thread::yield_now();
        }
    }
}
