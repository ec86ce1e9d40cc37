//! Fallible allocation: `Error::Memory` names the argument that asked for too much.

use rlox_core::{Error, Result, available_memory};

/// So many bytes are asked for without a look at what is free, which takes some 20 us.
const MEMINFO_CHECK_ABOVE: u128 = 1 << 20;

/// Checks that so many bytes are free: where the system promises more memory than there is, it ends the process later.
///
/// # Errors
/// [`Error::Memory`] naming the argument and what was `got`.
pub(crate) fn check_available(argument: &'static str, bytes: u128, got: impl Fn() -> String) -> Result<()> {
    if bytes <= MEMINFO_CHECK_ABOVE {
        return Ok(());
    }
    // Rust's own limit on an allocation holds where the free memory is unknown.
    let free = available_memory().map_or(isize::MAX as u128, u128::from);
    if bytes <= free {
        return Ok(());
    }
    let got = format!("{}, which needs {bytes}", got());
    Err(Error::memory(argument, format!("what fits into {free} free bytes"), got, "ask for less"))
}

/// Makes sure that there is memory for so many items.
///
/// # Errors
/// [`Error::Memory`] naming the argument that asked for them.
pub(crate) fn try_reserve<T>(argument: &'static str, vector: &mut Vec<T>, len: usize) -> Result<()> {
    if len <= vector.capacity() {
        return Ok(());
    }
    let got = || format!("{len} numbers");
    check_available(argument, len as u128 * size_of::<T>() as u128, got)?;
    let out_of_memory = |_| Error::memory(argument, "memory that the system grants", got(), "ask for less");
    vector.try_reserve(len - vector.len()).map_err(out_of_memory)
}

/// Makes a vector so long; what is new holds `item`.
///
/// # Errors
/// Those of [`resize_buffers`].
pub(crate) fn resize<T: Clone>(argument: &'static str, vector: &mut Vec<T>, len: usize, item: T) -> Result<()> {
    try_reserve(argument, vector, len)?;
    vector.resize(len, item);
    Ok(())
}

/// A vector of so many times the same.
///
/// # Errors
/// Those of [`resize_buffers`].
pub(crate) fn try_vec<T: Clone>(argument: &'static str, len: usize, item: T) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    resize(argument, &mut vector, len, item)?;
    Ok(vector)
}
