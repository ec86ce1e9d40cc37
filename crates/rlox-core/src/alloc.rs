//! Allocation that returns an error if a request exceeds the free memory, instead of aborting the
//! process.

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;

use crate::{Error, Result};

/// Size in bytes up to which a request is not compared with the free memory. Reading the free
/// memory takes about 20 us.
const MEMINFO_CHECK_ABOVE: u128 = 1 << 20;

/// Checks that `count` items of `bytes_each` bytes fit into the free memory.
///
/// # Errors
/// [`Error::Memory`] with the size of the request in bytes if the request exceeds the free memory.
pub(crate) fn check_available(argument: &'static str, count: usize, bytes_each: usize) -> Result<()> {
    check_request(argument, count as u128 * bytes_each as u128, || format!("{count}, which needs"))
}

/// Performs the check of [`check_available`]. In the error, the text of `request`, such as "5 rows,
/// which needs", precedes the number of bytes.
///
/// # Errors
/// [`Error::Memory`] with the size of the request in bytes if the request exceeds the free memory.
pub(crate) fn check_available_for(
    argument: &'static str,
    count: usize,
    bytes_each: usize,
    request: impl Fn() -> String,
) -> Result<()> {
    check_request(argument, count as u128 * bytes_each as u128, request)
}

/// Allocates `count * bytes_each` zero bytes, after the check of [`check_available_for`].
pub(crate) fn zeroed_named(
    argument: &'static str,
    count: usize,
    bytes_each: usize,
    request: impl Fn() -> String,
) -> Result<Vec<u8>> {
    check_available_for(argument, count, bytes_each, &request)?;
    let error = || out_of_memory_for(argument, count as u128 * bytes_each as u128, &request());
    try_zeroed_vec(count.checked_mul(bytes_each).ok_or_else(error)?).map_err(|()| error())
}

/// Checks that a number of bytes fits into the free memory.
///
/// # Errors
/// [`Error::Memory`] with the size of the request in bytes if the request exceeds the free memory.
pub(crate) fn check_bytes(argument: &'static str, bytes: u128) -> Result<()> {
    check_request(argument, bytes, || "a size of".into())
}

fn check_request(argument: &'static str, bytes: u128, request: impl Fn() -> String) -> Result<()> {
    if bytes <= MEMINFO_CHECK_ABOVE {
        return Ok(());
    }
    // If the free memory is unknown, Rust's own limit on an allocation applies.
    let available = available_memory().map_or(isize::MAX as u128, u128::from);
    if bytes <= available {
        return Ok(());
    }
    let got = format!("{} {bytes} bytes ({})", request(), human(bytes));
    Err(Error::memory(argument, format!("at most {} of memory", human(available)), got, "use a smaller value"))
}

/// Allocates a vector of `len` zeros, after a check of the free memory. The operating system
/// provides each memory page at its first access.
pub(crate) fn zeroed<T: Zeroable>(argument: &'static str, len: usize) -> Result<Vec<T>> {
    check_available(argument, len, size_of::<T>())?;
    try_zeroed_vec(len).map_err(|()| out_of_memory(argument, len, size_of::<T>()))
}

/// Allocates an empty vector with a capacity of `len` items, after a check of the free memory.
pub(crate) fn with_capacity<T>(argument: &'static str, len: usize) -> Result<Vec<T>> {
    check_available(argument, len, size_of::<T>())?;
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).map_err(|_| out_of_memory(argument, len, size_of::<T>()))?;
    Ok(vector)
}

/// Appends an item, or returns [`Error::Memory`] if the vector cannot grow.
#[inline]
pub(crate) fn push<T>(argument: &'static str, vector: &mut Vec<T>, item: T) -> Result<()> {
    vector.try_reserve(1).map_err(|_| out_of_memory(argument, vector.len() + 1, size_of::<T>()))?;
    vector.push(item);
    Ok(())
}

/// Returns a copy of a text, or [`Error::Memory`] if the allocation fails.
pub(crate) fn try_to_string(argument: &'static str, text: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| out_of_memory(argument, text.len(), 1))?;
    copy.push_str(text);
    Ok(copy)
}

/// Reserves capacity for `more` further items. The capacity at least doubles, unless the system
/// cannot allocate that much.
pub(crate) fn try_reserve<T>(argument: &'static str, vector: &mut Vec<T>, more: usize) -> Result<()> {
    let grown = vector.try_reserve(more).or_else(|_| vector.try_reserve_exact(more));
    grown.map_err(|_| out_of_memory(argument, vector.len().saturating_add(more), size_of::<T>()))
}

/// Returns the size in bytes of the allocation of a vector.
pub(crate) fn allocated_bytes<T>(vector: &Vec<T>) -> usize {
    vector.capacity() * size_of::<T>()
}

pub(crate) fn out_of_memory(argument: &'static str, count: usize, bytes_each: usize) -> Error {
    out_of_memory_for(argument, count as u128 * bytes_each as u128, &format!("{count}, which needs"))
}

fn out_of_memory_for(argument: &'static str, bytes: u128, request: &str) -> Error {
    let got = format!("{request} {bytes} bytes ({})", human(bytes));
    Error::memory(argument, "a size that the system can allocate", got, "use a smaller value")
}

fn human(bytes: u128) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Returns the free memory in bytes, or `None` if it is unknown.
///
/// On Linux, the result is the smaller of the free memory of the system and that of the control
/// group.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .map(|limit| limit.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    match (system, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_available_rejects_absurd_sizes_and_reports_them() {
        let rejected =
            crate::testing::assert_rejects(check_available("num_envs", 1 << 62, 100), Error::Memory, "num_envs");
        assert!(rejected.got.ends_with("461168601842738790400 bytes (400.0 EiB)"), "{rejected}");
        assert!(check_available("num_envs", usize::MAX, usize::MAX).is_err());
        assert!(check_available("num_envs", 1024, 100).is_ok());
    }
}
