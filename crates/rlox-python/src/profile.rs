//! Profiling clock: the seconds that a thread spends in each phase of a training run.

use pyo3::prelude::*;
use pyo3::types::PyString;
use rlox_core::__private::profile::{self, Phase};

use crate::convert::scalar::text;
use crate::error::value_error;

/// Start this thread's clock in the phase "other".
///
/// A clock that already runs continues in its phase. It stops once `stop_phases` has been called as
/// often as `start_phases`.
///
/// >>> from rlox import _rlox
/// >>> _rlox.start_phases()
/// >>> _rlox.stop_phases()
#[pyfunction]
pub(crate) fn start_phases() {
    profile::start();
}

/// Stop this thread's clock, after as many calls as of `start_phases`.
///
/// If the clock is not running, nothing happens.
///
/// >>> from rlox import _rlox
/// >>> _rlox.stop_phases()
#[pyfunction]
pub(crate) fn stop_phases() {
    profile::stop();
}

/// Switch this thread's clock to a phase; do nothing if the clock is not running.
///
/// Args:
///     phase: Name of the phase, one of `rlox._timing.PHASES`.
///
/// Raises:
///     TypeError: `phase` is not a string.
///     ValueError: The phase is unknown.
///
/// >>> from rlox import _rlox
/// >>> _rlox.enter_phase("inference")
#[pyfunction]
pub(crate) fn enter_phase(phase: &Bound<'_, PyAny>) -> PyResult<()> {
    // This function runs a few times per environment step, so a valid name is not copied.
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

/// Return the seconds that this thread spent in each phase of `rlox._timing.PHASES`.
///
/// The seconds count from the start of the clock, and are 0 if the clock is not running.
///
/// >>> from rlox import _rlox
/// >>> len(_rlox.phase_seconds())
/// 6
#[pyfunction]
pub(crate) fn phase_seconds() -> [f64; 6] {
    profile::read()
}
