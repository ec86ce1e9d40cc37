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

/// Period of the polls. A call notices Ctrl-C after this time plus the work between two polls.
const PERIOD: Duration = Duration::from_millis(50);

static STOP: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the process-wide check that long calls poll about every 50 ms on the calling thread.
///
/// If `stop` returns true, the call ends with [`Error::Interrupted`] and leaves its outputs partly written. Only the
/// first call of a process has an effect. The Python package passes a function that reports signals such as Ctrl-C.
///
/// ```
/// rlox_core::interrupt::set_interrupt_check(|| false);
/// ```
pub fn set_interrupt_check(stop: fn() -> bool) {
    STOP.get_or_init(|| stop);
}

/// Callback that long work calls about every millisecond. An error stops the work.
pub(crate) type PollFn<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Poller for a long loop: created before the loop, checked in each pass.
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
    /// Number of elements that a loop processes in about a millisecond: the maximum between two checks.
    pub const POLL_ELEMENTS: usize = 1 << 20;

    /// Polls the function of [`set_interrupt_check`], if a poll is due.
    ///
    /// A poll is due 50 ms after the last one or the first check. A check is cheap enough to run every 10 us.
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

/// Splits the rows below `rows` into chunks, the last chunk first.
///
/// Callers poll a [`PollFn`] after each chunk except the last one, whose start is 0.
#[inline(always)]
pub(crate) fn reverse_chunks(rows: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    let chunk = (InterruptCheck::POLL_ELEMENTS / width.max(1)).max(1);
    (0..rows.div_ceil(chunk)).map(move |i| {
        let end = rows - i * chunk;
        end.saturating_sub(chunk)..end
    })
}
