//! Memory of calls that are over, for later ones.

use std::sync::Mutex;

use crate::shared::free;

/// As many as are kept: so many calls at once find memory that is there already.
const KEPT: usize = 8;

/// Nobody ever waits for it.
pub(super) struct Spare<T>(Mutex<Vec<T>>);

impl<T: Default> Spare<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// What another call has left, or something new.
    pub(super) fn take(&self) -> T {
        free(self.0.try_lock()).and_then(|mut kept| kept.pop()).unwrap_or_default()
    }

    /// Leaves it to others.
    pub(super) fn leave(&self, thing: T) {
        if let Some(mut kept) = free(self.0.try_lock())
            && kept.len() < KEPT
        {
            kept.push(thing);
        }
    }
}
