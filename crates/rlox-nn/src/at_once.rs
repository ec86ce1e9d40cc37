//! Networks that do not depend on each other, at once.

use rlox_core::{Result, join};

/// From so many multiplications on, networks are computed at once: about 10 us of work each.
const SHARED_FROM: usize = 200_000;
/// Both pieces, at once if there is enough to do.
pub(crate) fn at_once<A: Send, B: Send>(
    multiplications: usize,
    a: impl FnOnce() -> Result<A> + Send,
    b: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    if multiplications < SHARED_FROM {
        return Ok((a()?, b()?));
    }
    let (a, b) = join(a, b)?;
    Ok((a?, b?))
}
