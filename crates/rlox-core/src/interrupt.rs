//! Long calls ask from time to time whether to stop.

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

static STOP: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets what calls that take longer than 50 ms ask, about every 50 ms, on the thread that called: whether to stop.
///
/// They then end with [`Error::Interrupted`]; what they were to write is half written. The first setting of a process
/// stays. The Python package asks whether a signal such as Ctrl-C has come.
///
/// ```
/// rlox_core::set_interrupt_check(|| false);
/// ```
pub fn set_interrupt_check(stop: fn() -> bool) {
    STOP.get_or_init(|| stop);
}

/// What long work calls between its pieces, about every millisecond: an error if it is to stop.
pub(crate) type PollFn<'a> = &'a mut dyn FnMut() -> Result<()>;

/// What a long loop asks whether to stop: made when it begins, checked as it goes.
///
/// ```
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

    /// Asks what [`set_interrupt_check`] was given if 50 ms have passed since it last did, or since the first check.
    /// Cheap enough for every 10 us.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the answer is to stop.
    pub fn check(&mut self) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        let stop = STOP.get().is_some_and(|stop| stop());
        self.0 = Some(Instant::now());
        if stop { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Whether [`InterruptCheck::check`] would ask now.
    pub fn is_due(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() >= PERIOD
    }
}

/// Stretches of the rows below `rows`, the last ones first. After each but the last, whose start is 0, it is time for a
/// [`PollFn`].
#[inline(always)]
pub(crate) fn reverse_chunks(rows: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    let chunk = (InterruptCheck::POLL_ELEMENTS / width.max(1)).max(1);
    (0..rows.div_ceil(chunk)).map(move |i| {
        let end = rows - i * chunk;
        end.saturating_sub(chunk)..end
    })
}
