//! Memory that calls reuse: blocks for large result arrays, and buffers for boolean arguments.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use bytemuck::Zeroable;
use bytemuck::allocation::{try_zeroed_slice_box, try_zeroed_vec};
use pyo3::prelude::*;
use rlox_core::{Error, Result};

use crate::error::to_py;

/// Size in bytes below which result arrays use NumPy's own allocator, which caches small blocks.
pub(crate) const MIN_BLOCK_BYTES: usize = 64 << 10;

/// Maximum number of bytes in [`FREE_LIST`].
const FREE_LIST_MAX_BYTES: usize = 64 << 20;

/// Memory blocks of dropped result arrays, for reuse by later results.
static FREE_LIST: Mutex<Vec<Box<[AtomicU64]>>> = Mutex::new(Vec::new());

/// Memory block that holds the elements of a result array.
///
/// Dropping a block moves its memory to [`FREE_LIST`]. The elements are atomics because NumPy
/// writes to the block while Rust shares it.
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct Block(Box<[AtomicU64]>);

impl Block {
    /// Returns a block of at least `bytes` bytes with arbitrary content.
    ///
    /// A block from the free list is at most twice as long as requested.
    pub(crate) fn take(bytes: usize) -> PyResult<Self> {
        let len = bytes.div_ceil(8);
        // `try_lock` does not wait: after a fork, the thread that holds the lock may not exist.
        if let Ok(mut free) = FREE_LIST.try_lock()
            && let Some(index) = free.iter().position(|block| (len..=2 * len).contains(&block.len()))
        {
            return Ok(Self(free.swap_remove(index)));
        }
        try_zeroed_slice_box(len).map(Self).map_err(|()| out_of_memory_error(bytes))
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u64 {
        self.0.as_ptr().cast_mut().cast()
    }
}

pub(crate) fn out_of_memory_error(bytes: usize) -> PyErr {
    to_py(out_of_memory(bytes))
}

fn out_of_memory(bytes: usize) -> Error {
    Error::memory("the result", "enough free memory", format!("an allocation of {bytes} bytes"), "use a smaller size")
}

/// Returns `len` zeros, or an error if the allocation fails.
pub(crate) fn zeroed<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    try_zeroed_vec(len).map_err(|()| out_of_memory(len.saturating_mul(size_of::<T>())))
}

/// Returns an empty vector with capacity for `len` items, or an error if the allocation fails.
pub(crate) fn with_capacity<T>(len: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).map_err(|_| out_of_memory(len.saturating_mul(size_of::<T>())))?;
    Ok(vector)
}

/// Maps the elements into a new vector, or returns an error if the allocation fails.
pub(crate) fn try_map<S: Copy, T>(elements: &[S], make: impl Fn(S) -> T) -> Result<Vec<T>> {
    let mut all = with_capacity(elements.len())?;
    all.extend(elements.iter().map(|x| make(*x)));
    Ok(all)
}

/// Collects at most `len` items of an iterator and stops at the first error.
pub(crate) fn try_collect<T>(len: usize, items: impl Iterator<Item = PyResult<T>>) -> PyResult<Vec<T>> {
    let mut all = with_capacity(len).map_err(to_py)?;
    for item in items.take(len) {
        all.push(item?);
    }
    Ok(all)
}

impl Drop for Block {
    fn drop(&mut self) {
        let Ok(mut free) = FREE_LIST.try_lock() else { return };
        let block = std::mem::take(&mut self.0);
        free.push(block);
        let mut bytes: usize = free.iter().map(|block| 8 * block.len()).sum();
        while bytes > FREE_LIST_MAX_BYTES && !free.is_empty() {
            bytes -= 8 * free.remove(0).len();
        }
    }
}

thread_local! {
    static FREE_FLAGS: Cell<(Vec<bool>, Vec<usize>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// Boolean array with a shape. Later arrays of the thread reuse its memory, unless it is large.
pub(crate) struct FlagBuffer {
    flags: Vec<bool>,
    len: usize,
    shape: Vec<usize>,
}

impl FlagBuffer {
    pub(crate) fn take(shape: &[usize]) -> PyResult<Self> {
        let (len, (mut flags, mut dims)) = (shape.iter().product(), FREE_FLAGS.take());
        if flags.len() < len {
            flags.try_reserve_exact(len - flags.len()).map_err(|_| out_of_memory_error(len))?;
            flags.resize(len, false);
        }
        dims.clear();
        dims.extend_from_slice(shape);
        Ok(Self { flags, len, shape: dims })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn slice(&self) -> &[bool] {
        &self.flags[..self.len]
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [bool] {
        &mut self.flags[..self.len]
    }
}

impl Drop for FlagBuffer {
    fn drop(&mut self) {
        if self.flags.len() <= FREE_LIST_MAX_BYTES / 16 {
            FREE_FLAGS.set((std::mem::take(&mut self.flags), std::mem::take(&mut self.shape)));
        }
    }
}
