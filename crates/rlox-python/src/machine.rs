//! What native code finds of the machine and uses, and where its time goes.

use pyo3::prelude::*;

/// The instruction set that native code runs on in this process: "avx512", "avx2" or "portable", the best that the CPU
/// has, or less if the environment variable RLOX_SIMD says so.
///
/// >>> from rlox import _rlox
/// >>> _rlox.isa() in ("avx512", "avx2", "portable")
/// True
#[pyfunction]
pub(crate) fn isa() -> &'static str {
    rlox_core::simd::isa().name()
}

/// How many threads native code shares its work between: as many as the process may run on, or as the environment
/// variable RLOX_NUM_THREADS says when they are first needed; at least 1.
///
/// >>> from rlox import _rlox
/// >>> _rlox.num_threads() >= 1
/// True
#[pyfunction]
pub(crate) fn num_threads() -> usize {
    rlox_core::num_threads()
}

/// Seconds of this thread in native calls that collect and learn, since they were read last: in environments, inference,
/// advantages, gradients, buffers. Steps of few environments are timed now and then, for those between.
///
/// >>> from rlox import _rlox
/// >>> len(_rlox.phase_seconds())
/// 5
#[pyfunction]
pub(crate) fn phase_seconds() -> [f64; 5] {
    rlox_core::Clock::read()
}
