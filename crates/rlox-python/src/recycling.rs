//! Memory that the next call uses again: of large results when NumPy lets go of them, and of converted flags.

use std::cell::Cell;
use std::sync::Mutex;

use pyo3::prelude::*;

/// Results smaller than this, in bytes, come from NumPy's own allocator, which keeps such sizes itself.
pub(crate) const SMALLEST: usize = 64 << 10;

/// How many bytes are kept at most.
const KEPT: usize = 64 << 20;

static FREE: Mutex<Vec<Box<[u64]>>> = Mutex::new(Vec::new());

/// A block of memory that owns what a result array shows. Dropped with the array, it waits for the next result.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct Block(Box<[u64]>);

impl Block {
    /// A block of at least `bytes`, of which at most half is wasted. Its content is arbitrary.
    pub(crate) fn take(bytes: usize) -> Self {
        let words = bytes.div_ceil(8);
        // Never waits for the lock: after a fork its holder may not exist in this process.
        if let Ok(mut free) = FREE.try_lock()
            && let Some(at) = free.iter().position(|block| (words..=2 * words).contains(&block.len()))
        {
            return Self(free.swap_remove(at));
        }
        Self(vec![0; words].into_boxed_slice())
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Ok(mut free) = FREE.try_lock() else { return };
        let block = std::mem::take(&mut self.0);
        free.push(block);
        let mut bytes: usize = free.iter().map(|block| 8 * block.len()).sum();
        while bytes > KEPT && !free.is_empty() {
            bytes -= 8 * free.remove(0).len();
        }
    }
}

thread_local! {
    static FLAGS: Cell<Vec<bool>> = const { Cell::new(Vec::new()) };
}

/// Room for flags, each thread's own, which goes back when dropped unless it is large.
pub(crate) struct Scratch(Vec<bool>, usize);

impl Scratch {
    pub(crate) fn take(len: usize) -> Self {
        let mut flags = FLAGS.take();
        if flags.len() < len {
            flags.resize(len, false);
        }
        Self(flags, len)
    }

    pub(crate) fn slice(&self) -> &[bool] {
        &self.0[..self.1]
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [bool] {
        &mut self.0[..self.1]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0.len() <= KEPT / 16 {
            FLAGS.set(std::mem::take(&mut self.0));
        }
    }
}
