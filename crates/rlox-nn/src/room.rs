//! Memory of batches: what the system refuses is an error.

use rlox_core::{Error, Result};

/// Makes sure that there is memory for so many items.
pub(crate) fn make_room<T>(vector: &mut Vec<T>, len: usize) -> Result<()> {
    let refused = |_| {
        let expected = "a minibatch that fits into memory";
        Error::memory("batch_size", expected, format!("{len} numbers"), "ask for less")
    };
    vector.try_reserve(len.saturating_sub(vector.len())).map_err(refused)
}

/// Makes a vector so long; what is new holds `item`.
pub(crate) fn resize<T: Clone>(vector: &mut Vec<T>, len: usize, item: T) -> Result<()> {
    make_room(vector, len)?;
    vector.resize(len, item);
    Ok(())
}
