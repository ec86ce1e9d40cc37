//! Concurrent calls of two functions.

use std::sync::{Mutex, PoisonError};

use super::{num_threads, run_uninterrupted};
use crate::{Error, Result};

/// Calls two functions, concurrently if a second thread is free, and returns their results.
///
/// Interruptions are ignored. Each function should take at least 10 us, because waking a thread
/// takes about as long.
///
/// # Errors
/// [`crate::Error::Closed`] in a process that was forked during the call.
///
/// ```
/// let (sum, product) = rlox_core::__private::join(|| 2 + 3, || 2 * 3)?;
/// assert_eq!((sum, product), (5, 6));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn join<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> Result<(A, B)> {
    if num_threads() == 1 {
        return Ok((a(), b()));
    }
    let (a, b) = (Piece::new(a), Piece::new(b));
    run_uninterrupted(2, &|part, _| {
        if part == 0 {
            a.work();
        } else {
            b.work();
        }
        Ok(())
    })?;
    Ok((a.result()?, b.result()?))
}

/// Function that one of the threads calls once, and its result.
struct Piece<F, R> {
    work: Mutex<Option<F>>,
    result: Mutex<Option<R>>,
}

impl<R, F: FnOnce() -> R> Piece<F, R> {
    fn new(work: F) -> Self {
        Self { work: Mutex::new(Some(work)), result: Mutex::new(None) }
    }

    fn work(&self) {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = work.map(|work| work());
    }

    fn result(self) -> Result<R> {
        let result = self.result.into_inner().unwrap_or_else(PoisonError::into_inner);
        result.ok_or_else(|| Error::Backend("a piece of work was not done".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_runs_both_pieces_on_any_threads() {
        for i in 0..1000_u64 {
            let mut numbers = [i; 2];
            let [first, second] = &mut numbers;
            let both = join(
                || {
                    *first += 1;
                    "first"
                },
                || *second += 2,
            );
            assert_eq!(both.unwrap(), ("first", ()));
            assert_eq!(numbers, [i + 1, i + 2]);
        }
    }

    #[test]
    fn panics_reach_the_caller() {
        let panicked = std::panic::catch_unwind(|| join(|| panic!("here"), || 1));
        assert!(panicked.is_err());
        assert_eq!(join(|| 1, || 2).unwrap(), (1, 2));
    }
}
