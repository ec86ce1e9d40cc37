//! The clock of a thread: seconds in each phase.

use pyo3::prelude::*;
use pyo3::types::PyString;
use rlox_core::profile::{self, Phase};

use crate::convert::scalar::text;
use crate::error::value_error;

/// Starts this thread's clock, in the phase "other"; if it runs, it goes on until it was stopped as often.
///
/// >>> from rlox import _rlox
/// >>> _rlox.start_phases()
/// >>> _rlox.stop_phases()
#[pyfunction]
pub(crate) fn start_phases() {
    profile::start();
}

/// Stops this thread's clock, if it was started.
///
/// >>> from rlox import _rlox
/// >>> _rlox.stop_phases()
#[pyfunction]
pub(crate) fn stop_phases() {
    profile::stop();
}

/// Ends the phase that this thread was in, and begins another, or the same again; without a clock that was started, does
/// nothing.
///
/// Args:
///     phase: Its name, one of `rlox._timing.PHASES`.
///
/// Raises:
///     TypeError, ValueError: There is none of this name.
///
/// >>> from rlox import _rlox
/// >>> _rlox.enter_phase("inference")
#[pyfunction]
pub(crate) fn enter_phase(phase: &Bound<'_, PyAny>) -> PyResult<()> {
    // Called a few times for each step: no copy of the text.
    let known = phase.cast_exact::<PyString>().ok().and_then(|name| phase_named(name.to_str().ok()?));
    let unknown = || {
        let name = text("phase", phase)?;
        let names = Phase::ALL.map(|(_, name)| name).join(", ");
        phase_named(&name)
            .ok_or_else(|| value_error("phase", &format!("one of {names}"), &format!("{name:?}"), "correct it"))
    };
    profile::enter(known.map_or_else(unknown, Ok)?);
    Ok(())
}

fn phase_named(name: &str) -> Option<Phase> {
    Phase::ALL.iter().find(|(_, known)| *known == name).map(|(phase, _)| *phase)
}

/// Seconds of this thread in each of `rlox._timing.PHASES` since its clock was started; 0 without one.
///
/// >>> from rlox import _rlox
/// >>> len(_rlox.phase_seconds())
/// 6
#[pyfunction]
pub(crate) fn phase_seconds() -> [f64; 6] {
    profile::read()
}
