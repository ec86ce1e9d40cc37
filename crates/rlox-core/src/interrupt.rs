//! Interruption of long calls, for example by Ctrl-C. Long calls poll a check function of the
//! process.

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

/// Time between two polls of the check function. A call notices an interruption after at most this
/// time plus the time between two calls of [`InterruptCheck::check`].
const PERIOD: Duration = Duration::from_millis(50);

static STOP: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the check function of the process. Long calls poll the function about every 50 ms on the
/// thread of their caller.
///
/// If `stop` returns true, the long call returns [`Error::Interrupted`] and may have written a part
/// of its outputs. Only the first call of `set_interrupt_check` in a process has an effect. The
/// Python package passes a function that reports signals such as Ctrl-C.
///
/// ```
/// rlox_core::interrupt::set_interrupt_check(|| false);
/// ```
pub fn set_interrupt_check(stop: fn() -> bool) {
    STOP.get_or_init(|| stop);
}

/// Callback that a long computation calls about every millisecond. If the callback returns an
/// error, the computation stops and returns the error.
pub(crate) type PollFn<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Interruption check of a long loop. Create the check before the loop, and call
/// [`InterruptCheck::check`] in each pass.
///
/// ```
/// let mut watch = rlox_core::interrupt::InterruptCheck::default();
/// for _ in 0..1000 {
///     watch.check()?;
/// }
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct InterruptCheck(Option<Instant>);

impl InterruptCheck {
    /// Maximum number of elements that a loop processes between two checks. Processing this number
    /// takes about a millisecond.
    pub const POLL_ELEMENTS: usize = 1 << 20;

    /// Polls the function of [`set_interrupt_check`], at most once every 50 ms.
    ///
    /// The first poll happens at least 50 ms after the first check. A check between two polls is so
    /// fast that a loop may run one every 10 us.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the function returns true.
    pub fn check(&mut self) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        let stop = STOP.get().is_some_and(|stop| stop());
        self.0 = Some(Instant::now());
        if stop { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Returns true if [`InterruptCheck::check`] would poll the function now.
    pub fn is_due(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() >= PERIOD
    }
}

/// Splits the rows `0..rows`, of `width` elements each, into ranges. Returns the last range first.
///
/// A range has at most [`InterruptCheck::POLL_ELEMENTS`] elements, or one row. Callers call a
/// [`PollFn`] after each range except the one that starts at row 0, because no work follows it.
#[inline(always)]
pub(crate) fn reverse_chunks(rows: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    let chunk = (InterruptCheck::POLL_ELEMENTS / width.max(1)).max(1);
    (0..rows.div_ceil(chunk)).map(move |i| {
        let end = rows - i * chunk;
        end.saturating_sub(chunk)..end
    })
}
