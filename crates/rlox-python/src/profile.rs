//! Profiling clock of a thread: seconds per phase.

use pyo3::prelude::*;
use pyo3::types::PyString;
use rlox_core::__private::profile::{self, Phase};

use crate::convert::scalar::text;
use crate::error::value_error;

/// Starts this thread's clock in the phase "other".
///
/// A running clock continues until `stop_phases` was called once per start.
///
/// >>> from rlox import _rlox
/// >>> _rlox.start_phases()
/// >>> _rlox.stop_phases()
#[pyfunction]
pub(crate) fn start_phases() {
    profile::start();
}

/// Stops this thread's clock; does nothing if the clock is not running.
///
/// >>> from rlox import _rlox
/// >>> _rlox.stop_phases()
#[pyfunction]
pub(crate) fn stop_phases() {
    profile::stop();
}

/// Switches this thread to a phase; does nothing if the clock is not running.
///
/// Args:
///     phase: Name of the phase, one of `rlox._timing.PHASES`.
///
/// Raises:
///     TypeError, ValueError: The phase is unknown.
///
/// >>> from rlox import _rlox
/// >>> _rlox.enter_phase("inference")
#[pyfunction]
pub(crate) fn enter_phase(phase: &Bound<'_, PyAny>) -> PyResult<()> {
    // Called a few times per step, so the name is not copied.
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

/// Returns this thread's seconds in each phase of `rlox._timing.PHASES`; 0 without a clock.
///
/// >>> from rlox import _rlox
/// >>> len(_rlox.phase_seconds())
/// 6
#[pyfunction]
pub(crate) fn phase_seconds() -> [f64; 6] {
    profile::read()
}
