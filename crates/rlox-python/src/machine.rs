//! What native code finds of the machine, and uses.

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
