//! Interruption of long calls: a process-wide check that long calls poll.

#![expect(clippy::inline_always, reason = "called from loops that are compiled for several instruction sets")]

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;
#[cfg(not(test))]
use std::time::Instant;

#[cfg(test)]
use self::tests::Instant;
use crate::{Error, Result};

#[cfg(test)]
pub(crate) mod tests;

/// Between two questions. A press of Ctrl-C is noticed after this at the latest, and the work between two looks.
const PERIOD: Duration = Duration::from_millis(50);
/// Period of the checks: a call notices Ctrl-C after this period plus the work between two polls.
static STOP: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets what calls that take longer than 50 ms ask, about every 50 ms, on the thread that called: whether to stop.
///
/// Sets the process-wide check that calls of more than 50 ms poll about every 50 ms on the calling thread.
///
/// If `stop` returns true, the call ends with [`Error::Interrupted`] and leaves its outputs partly written. Only the
/// first call of a process has an effect. The Python package passes a function that reports signals such as Ctrl-C.
/// rlox_core::set_interrupt_check(|| false);
/// ```
pub fn set_interrupt_check(stop: fn() -> bool) {
    STOP.get_or_init(|| stop);
}

/// What long work calls between its pieces, about every millisecond: an error if it is to stop.
pub(crate) type PollFn<'a> = &'a mut dyn FnMut() -> Result<()>;
/// A callback that long work calls about every millisecond. An error stops the work.
/// What a long loop asks whether to stop: made when it begins, checked as it goes.
///
/// Poller for a long loop: created before the loop, checked in each pass.
/// let mut watch = rlox_core::InterruptCheck::default();
/// for _ in 0..1000 {
///     watch.check()?;
/// }
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct InterruptCheck(Option<Instant>);

impl InterruptCheck {
    /// Elements that take a loop about a millisecond: so many may come between two checks.
    pub const POLL_ELEMENTS: usize = 1 << 20;

    /// Number of elements that a loop handles in about a millisecond; the maximum between two checks.
    /// Cheap enough for every 10 us.
    ///
    /// Polls the function of [`set_interrupt_check`] if 50 ms have passed since the last poll or the first check.
    ///
    /// A check is cheap enough to run every 10 us.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the function returns true.
        }
        let stop = STOP.get().is_some_and(|stop| stop());
        self.0 = Some(Instant::now());
        if stop { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Whether [`InterruptCheck::check`] would ask now.
    pub fn is_due(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() >= PERIOD
    }
/// Returns true if [`InterruptCheck::check`] would poll the function now.

/// Stretches of the rows below `rows`, the last ones first. After each but the last, whose start is 0, it is time for a
/// [`PollFn`].
#[inline(always)]
pub(crate) fn reverse_chunks(rows: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    /// Splits the rows below `rows` into chunks, the last chunk first.
    ///
    /// Callers poll a [`PollFn`] after each chunk except the last one, whose start is 0.
        let end = rows - i * chunk;
        end.saturating_sub(chunk)..end
    })
}
