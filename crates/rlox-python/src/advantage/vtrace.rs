//! The Python function `compute_vtrace`.

use bytemuck::Pod;
use num_traits::AsPrimitive;
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use rlox_core::advantage::{Float, VtraceConfig, compute_vtrace as one, compute_vtrace_time_major as time_major};

use crate::advantage::trajectory::{EpisodeEndsArgument, LastValue, Pair, TrajectoryShape, like};
use crate::convert::args::{REAL, argument, argument_like, asarray, is_single, numbers};
use crate::convert::array::{FromArray, empty};
use crate::error::to_py;
use crate::sync::gil::{detach, is_alone};

/// Element count above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 1024;

/// Compute V-trace targets and policy gradient advantages.
///
/// The algorithm is equation 1 of Espeholt et al. 2018, arXiv:1802.01561. With
/// `ratio_t = exp(log_rhos_t)`, `done = terminated | truncated`, `rho_t = min(rho_bar, ratio_t)`
/// and `c_t = lam * min(c_bar, ratio_t)`:
/// `delta_t = r_t + gamma * (1 - terminated_t) * next_value_t - v_t`,
/// `vs_t - v_t = rho_t * delta_t + gamma * c_t * (1 - done_t) * (vs_{t+1} - v_{t+1})`,
/// `pg_advantage_t = min(pg_rho_bar, ratio_t) * (r_t + gamma * (1 - terminated_t) * next_vs_t - v_t)`.
/// `next_value_t` and `next_vs_t` are `final_values_t` where an episode was truncated, and
/// `bootstrap_value` at the last step. At all other steps, they are `v_{t+1}` and `vs_{t+1}`.
///
/// Ratios are computed in the dtype of the results; float32 ratios are within 2 units in the last
/// place. All other numbers are computed in float64.
///
/// Args:
///     log_rhos: Log-probabilities of the actions under the learning policy minus those under the
///         acting policy, of the shape of `rewards`. Minus infinity means a ratio of zero. NaN
///         makes the results of its step and of the earlier steps of the episode NaN.
///     rewards: (T,) for one trajectory or (T, N) time-major. Results are float32 for float32,
///         float16 and bfloat16 rewards, and float64 for any other dtype.
///     values: Values of the states in which the actions were taken, of the shape of `rewards`.
///     dones: Flags of episode ends that are all terminations; None if `terminated` is given.
///     bootstrap_value: Value of the state after the last step: a number, or (N,).
///     gamma: Discount factor in [0, 1].
///     rho_bar: Upper bound of the ratio in the temporal difference, at least 0; infinity for none.
///     c_bar: Upper bound of the ratio in the traces, at least 0; the paper assumes
///         `c_bar <= rho_bar`.
///     lam: Factor of the traces `c_t`, in [0, 1].
///     pg_rho_bar: Upper bound of the ratio in the policy gradient advantages, at least 0.
///     terminated: True where the environment reached a terminal state; replaces `dones`.
///     truncated: True where the episode was cut off, for example by a time limit.
///     final_values: Values of the last observations of truncated episodes, of the shape of
///         `rewards`. Elements are read only where an episode was truncated and not terminated.
///
/// Returns:
///     (vs, pg_advantages), both of the shape of `rewards`: the targets of the value function, and
///     the factors of the gradient of the log-probabilities in the policy gradient.
///
/// Raises:
///     TypeError: An array is not numeric, or not exactly one of `dones` and `terminated` is given.
///     ValueError: Shapes do not match, a setting is out of range, or steps are truncated without
///         `final_values`.
///
/// >>> import numpy as np, rlox
/// >>> log_rhos = np.log([0.5, 4.0])
/// >>> vs, pg_advantages = rlox.compute_vtrace(log_rhos, [1.0, 2.0], [2.0, 1.0], [0, 0], 4.0, gamma=0.5)
/// >>> vs
/// array([2.5, 4. ])
/// >>> pg_advantages
/// array([0.5, 3. ])
#[pyfunction]
#[pyo3(signature = (log_rhos, rewards, values, dones, bootstrap_value, gamma, rho_bar=1.0, c_bar=1.0, *, lam=1.0, pg_rho_bar=1.0, terminated=None, truncated=None, final_values=None))]
pub(crate) fn compute_vtrace<'py>(
    log_rhos: &Bound<'py, PyAny>,
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: Option<&Bound<'py, PyAny>>,
    bootstrap_value: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
    #[pyo3(from_py_with = numbers::rho_bar)] rho_bar: f64,
    #[pyo3(from_py_with = numbers::c_bar)] c_bar: f64,
    #[pyo3(from_py_with = numbers::lam)] lam: f64,
    #[pyo3(from_py_with = numbers::pg_rho_bar)] pg_rho_bar: f64,
    terminated: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
) -> PyResult<Pair<'py>> {
    let rewards = &asarray("rewards", rewards)?;
    let single = is_single(rewards.as_any());
    let ends = EpisodeEndsArgument::new(dones, terminated, truncated, rewards)?;
    let config = VtraceConfig { gamma, rho_bar, c_bar, lambda: lam, pg_rho_bar };
    let arrays = [log_rhos, values, bootstrap_value];
    if single {
        run::<f32>(rewards, arrays, final_values, ends, config)
    } else {
        run::<f64>(rewards, arrays, final_values, ends, config)
    }
}

fn run<'py, T: Float + FromArray + Pod>(
    rewards: &Bound<'py, PyUntypedArray>,
    [log_rhos, values, bootstrap_value]: [&Bound<'py, PyAny>; 3],
    final_values: Option<&Bound<'py, PyAny>>,
    ends: EpisodeEndsArgument<'py>,
    config: VtraceConfig,
) -> PyResult<Pair<'py>>
where
    f64: AsPrimitive<T>,
{
    let py = rewards.py();
    let like = Some(like(rewards));
    let log_rhos = argument_like::<T>("log_rhos", log_rhos, &REAL, like)?;
    let values = argument_like::<T>("values", values, &REAL, like)?;
    let final_values = final_values.map(|x| argument_like::<T>("final_values", x, &REAL, like)).transpose()?;
    let last = LastValue::<T>::new("bootstrap_value", bootstrap_value, rewards)?;
    let rewards = argument::<T>("rewards", rewards, &REAL)?;

    let trajectory = TrajectoryShape::from_shape(rewards.shape())?;
    let long = trajectory.is_long(
        DETACH_ABOVE_ELEMENTS,
        &[Some(&log_rhos), Some(&values), final_values.as_ref()],
        &ends,
        Some(&last),
    )?;
    let hold = !long && is_alone(py);
    let rewards = rewards.read(hold)?;
    let trajectory = TrajectoryShape::from_shape(rewards.shape())?;
    let (log_rhos, values) = (trajectory.read(log_rhos, hold)?, trajectory.read(values, hold)?);
    let final_values = final_values.map(|x| trajectory.read(x, hold)).transpose()?;
    let flags = ends.read(py, hold)?;
    let ends = trajectory.episode_ends(&flags, final_values.as_ref())?;
    let last = trajectory.last(last, hold)?;
    let (mut vs, mut pg_advantages) = (empty::<T>(py, trajectory.shape)?, empty::<T>(py, trajectory.shape)?);
    let (vs_out, pg_advantages_out) = (vs.slice(), pg_advantages.slice());
    let (log_rhos, rewards, values, last) = (log_rhos.slice(), rewards.slice(), values.slice(), last.slice());
    let mut work = || match trajectory.num_envs {
        None => one(log_rhos, rewards, values, ends, last[0], config, vs_out, pg_advantages_out),
        Some(n) => time_major(log_rhos, rewards, values, ends, n, last, config, vs_out, pg_advantages_out),
    };
    if long { detach(py, work) } else { work() }.map_err(to_py)?;
    Ok((vs.into_array().into_any(), pg_advantages.into_array().into_any()))
}
