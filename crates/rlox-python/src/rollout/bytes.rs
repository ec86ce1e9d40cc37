//! Rollouts as bytes, for transfer between processes.

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::convert::args::{INTEGER, argument, expect_shape, instance};
use crate::rollout::RolloutBuffer;

/// Returns a finished rollout as bytes, for `read_rollout`.
///
/// Args:
///     buffer: A RolloutBuffer after `finish`.
///
/// Returns:
///     uint8 (k,): all fields in order, then the final observations; numbers are little-endian.
///
/// Raises:
///     ValueError: The rollout is not finished.
///     MemoryError: The bytes do not fit into memory.
///
/// >>> import rlox
/// >>> from rlox._rlox import read_rollout, write_rollout
/// >>> made, copy = rlox.RolloutBuffer(2, 1, (4,)), rlox.RolloutBuffer(2, 1, (4,))
/// >>> env = rlox.VecEnv(n=1, seed=0)
/// >>> env.begin_rollout(made)
/// >>> for t in range(2):
/// ...     env.step_rollout(made, t, [1], log_probs=[-0.7], values=[0.0])
/// >>> made.finish(last_values=[0.0], gamma=1.0, gae_lambda=1.0)
/// >>> read_rollout(copy, write_rollout(made))
/// >>> bool((copy.obs == made.obs).all()), copy.returns[0]
/// (True, array([2.], dtype=float32))
#[pyfunction]
pub(crate) fn write_rollout<'py>(py: Python<'py>, buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let bytes = buffer.inner.with(py, true, |buffer| {
        let mut bytes = Vec::new();
        buffer.to_bytes(&mut bytes)?;
        Ok(bytes)
    })?;
    Ok(bytes.into_pyarray(py))
}

/// Replaces the content of a buffer by a rollout from `write_rollout`.
///
/// Args:
///     buffer: A RolloutBuffer of the same sizes and fields.
///     data: uint8 (k,).
///
/// Raises:
///     ValueError: The bytes are of another rollout, or numbers are not finite; the buffer is unchanged.
///     MemoryError: The final observations do not fit into memory.
#[pyfunction]
pub(crate) fn read_rollout(py: Python<'_>, buffer: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let data = argument::<u8>("data", data, &INTEGER)?.read(true)?;
    let bytes = data.slice();
    expect_shape("data", data.shape(), bytes.len(), &[])?;
    buffer.inner.with(py, true, |buffer| buffer.load_bytes(bytes))
}
