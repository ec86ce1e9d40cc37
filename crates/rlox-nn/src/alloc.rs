//! Memory allocation that returns [`Error::Memory`] if the memory is not available. The error names
//! the argument that determines the size.

use rlox_core::{__private::available_memory, Error, Result};

/// Size in bytes up to which an allocation skips the check of the free memory, which takes about 20
/// us.
const MEMINFO_CHECK_ABOVE: u128 = 1 << 20;

/// Checks that `bytes` of memory are free.
///
/// Without this check, a system that overcommits would grant the allocation and end the process
/// later.
///
/// # Errors
/// [`Error::Memory`] naming `argument`; `got` describes the value of the argument.
pub(crate) fn check_available(argument: &'static str, bytes: u128, got: impl Fn() -> String) -> Result<()> {
    if bytes <= MEMINFO_CHECK_ABOVE {
        return Ok(());
    }
    // If the free memory is unknown, the limit is the largest allocation that Rust allows.
    let free = available_memory().map_or(isize::MAX as u128, u128::from);
    if bytes <= free {
        return Ok(());
    }
    let got = format!("{}, which needs {bytes} bytes", got());
    Err(Error::memory(argument, format!("at most {free} bytes of memory"), got, "ask for less"))
}

/// Reserves memory so that the vector can hold `len` items in total.
///
/// # Errors
/// [`Error::Memory`] naming `argument`, which determines the length.
pub(crate) fn try_reserve<T>(argument: &'static str, vector: &mut Vec<T>, len: usize) -> Result<()> {
    if len <= vector.capacity() {
        return Ok(());
    }
    let got = || format!("{len} numbers");
    check_available(argument, len as u128 * size_of::<T>() as u128, got)?;
    let out_of_memory = |_| Error::memory(argument, "memory that the system grants", got(), "ask for less");
    vector.try_reserve(len - vector.len()).map_err(out_of_memory)
}

/// Resizes a vector to `len` items; new items are copies of `item`.
///
/// # Errors
/// The errors of [`try_reserve`].
pub(crate) fn resize<T: Clone>(argument: &'static str, vector: &mut Vec<T>, len: usize, item: T) -> Result<()> {
    try_reserve(argument, vector, len)?;
    vector.resize(len, item);
    Ok(())
}

/// Returns a vector of `len` copies of `item`.
///
/// # Errors
/// The errors of [`try_reserve`].
pub(crate) fn try_vec<T: Clone>(argument: &'static str, len: usize, item: T) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    resize(argument, &mut vector, len, item)?;
    Ok(vector)
}
