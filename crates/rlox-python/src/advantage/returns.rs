//! The Python functions `compute_returns` and `compute_lambda_returns`.

use bytemuck::Pod;
use num_traits::AsPrimitive;
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use rlox_core::advantage::{
    Float, compute_lambda_returns as lambda_one, compute_lambda_returns_time_major as lambda_time_major,
    compute_returns as one, compute_returns_time_major as time_major,
};

use crate::advantage::trajectory::{EpisodeEndsArgument, LastValue, TrajectoryShape, like};
use crate::convert::args::{Input, REAL, argument, argument_like, asarray, is_single, numbers};
use crate::convert::array::{FromArray, empty};
use crate::error::to_py;
use crate::sync::gil::{detach, is_alone};

/// Element count above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 4096;

/// Compute discounted returns, `G_t = r_t + gamma * (1 - terminated_t) * G_{t+1}`.
///
/// `G_{t+1}` is `final_values_t` where an episode was truncated, and `last_value` at the last step.
/// The computation uses float64.
///
/// Args:
///     rewards: (T,) for one trajectory or (T, N) time-major. Results are float32 for float32,
///         float16 and bfloat16 rewards, and float64 for any other dtype.
///     dones: Flags of episode ends that are all terminations; None if `terminated` is given.
///     last_value: Value of the state after the last step: a number, or (N,); 0 for the plain sum
///         of the rewards.
///     gamma: Discount factor in [0, 1].
///     terminated: True where the environment reached a terminal state; replaces `dones`.
///     truncated: True where the episode was cut off, for example by a time limit.
///     final_values: Values of the last observations of truncated episodes, of the shape of
///         `rewards`. Elements are read only where an episode was truncated and not terminated.
///
/// Returns:
///     The returns, of the shape of `rewards`.
///
/// Raises:
///     TypeError: An array is not numeric, or not exactly one of `dones` and `terminated` is given.
///     ValueError: Shapes do not match, a factor is outside [0, 1], or steps are truncated without
///         `final_values`.
///
/// >>> import rlox
/// >>> rlox.compute_returns([1.0, 2.0, 3.0], [False, True, False], 4.0, gamma=0.5)
/// array([2., 2., 5.])
#[pyfunction]
#[pyo3(signature = (rewards, dones, last_value, gamma=0.99, *, terminated=None, truncated=None, final_values=None))]
pub(crate) fn compute_returns<'py>(
    rewards: &Bound<'py, PyAny>,
    dones: Option<&Bound<'py, PyAny>>,
    last_value: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
    terminated: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    dispatch(rewards, None, last_value, final_values, [dones, terminated, truncated], gamma, 1.0)
}

/// Compute lambda returns, the targets of TD(lambda) (Sutton and Barto 2018, eq. 12.18).
///
/// `G_t = r_t + gamma * (1 - terminated_t) * ((1 - lam) * next_value_t + lam * G_{t+1})`. Both
/// `next_value_t` and `G_{t+1}` are `final_values_t` where an episode was truncated, and
/// `last_value` at the last step. Lambda returns equal the returns of `compute_gae`. The
/// computation uses float64.
///
/// Args:
///     rewards: (T,) for one trajectory or (T, N) time-major. Results are float32 for float32,
///         float16 and bfloat16 rewards, and float64 for any other dtype.
///     values: Values of the states in which the actions were taken, of the shape of `rewards`.
///     dones: Flags of episode ends that are all terminations; None if `terminated` is given.
///     last_value: Value of the state after the last step: a number, or (N,).
///     gamma: Discount factor in [0, 1].
///     lam: Lambda in [0, 1]: 0 for one-step targets, 1 for discounted returns.
///     terminated: True where the environment reached a terminal state; replaces `dones`.
///     truncated: True where the episode was cut off, for example by a time limit.
///     final_values: Values of the last observations of truncated episodes, of the shape of
///         `rewards`. Elements are read only where an episode was truncated and not terminated.
///
/// Returns:
///     The returns, of the shape of `rewards`.
///
/// Raises:
///     TypeError: An array is not numeric, or not exactly one of `dones` and `terminated` is given.
///     ValueError: Shapes do not match, a factor is outside [0, 1], or steps are truncated without
///         `final_values`.
///
/// >>> import rlox
/// >>> rlox.compute_lambda_returns([1.0, 2.0], [2.0, 1.0], [False, False], 4.0, gamma=0.5, lam=0.5)
/// array([2.25, 4.  ])
#[pyfunction]
#[pyo3(signature = (rewards, values, dones, last_value, gamma=0.99, lam=0.95, *, terminated=None, truncated=None, final_values=None))]
pub(crate) fn compute_lambda_returns<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: Option<&Bound<'py, PyAny>>,
    last_value: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
    #[pyo3(from_py_with = numbers::lam)] lam: f64,
    terminated: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    dispatch(rewards, Some(values), last_value, final_values, [dones, terminated, truncated], gamma, lam)
}

/// Computes discounted returns or, if `values` is given, lambda returns.
///
/// The precision is that of the rewards.
fn dispatch<'py>(
    rewards: &Bound<'py, PyAny>,
    values: Option<&Bound<'py, PyAny>>,
    last_value: &Bound<'py, PyAny>,
    final_values: Option<&Bound<'py, PyAny>>,
    [dones, terminated, truncated]: [Option<&Bound<'py, PyAny>>; 3],
    gamma: f64,
    lam: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let rewards = &asarray("rewards", rewards)?;
    let ends = EpisodeEndsArgument::new(dones, terminated, truncated, rewards)?;
    if is_single(rewards.as_any()) {
        run::<f32>(rewards, values, last_value, final_values, ends, gamma, lam)
    } else {
        run::<f64>(rewards, values, last_value, final_values, ends, gamma, lam)
    }
}

fn run<'py, T: Float + FromArray + Pod>(
    rewards: &Bound<'py, PyUntypedArray>,
    values: Option<&Bound<'py, PyAny>>,
    last_value: &Bound<'py, PyAny>,
    final_values: Option<&Bound<'py, PyAny>>,
    ends: EpisodeEndsArgument<'py>,
    gamma: f64,
    lam: f64,
) -> PyResult<Bound<'py, PyAny>>
where
    f64: AsPrimitive<T>,
{
    let py = rewards.py();
    let like = Some(like(rewards));
    let values = values.map(|x| argument_like::<T>("values", x, &REAL, like)).transpose()?;
    let final_values = final_values.map(|x| argument_like::<T>("final_values", x, &REAL, like)).transpose()?;
    let last = LastValue::<T>::new("last_value", last_value, rewards)?;
    let rewards = argument::<T>("rewards", rewards, &REAL)?;

    let trajectory = TrajectoryShape::from_shape(rewards.shape())?;
    let long =
        trajectory.is_long(DETACH_ABOVE_ELEMENTS, &[values.as_ref(), final_values.as_ref()], &ends, Some(&last))?;
    let hold = !long && is_alone(py);
    let rewards = rewards.read(hold)?;
    let trajectory = TrajectoryShape::from_shape(rewards.shape())?;
    let values = values.map(|x| trajectory.read(x, hold)).transpose()?;
    let final_values = final_values.map(|x| trajectory.read(x, hold)).transpose()?;
    let flags = ends.read(py, hold)?;
    let ends = trajectory.episode_ends(&flags, final_values.as_ref())?;
    let last = trajectory.last(last, hold)?;
    let mut returns = empty::<T>(py, trajectory.shape)?;
    let (out, num_envs) = (returns.slice(), trajectory.num_envs);
    let (rewards, values, last) = (rewards.slice(), values.as_ref().map(Input::slice), last.slice());
    let mut work = || match (values, num_envs) {
        (None, None) => one(rewards, ends, last[0], gamma, out),
        (None, Some(n)) => time_major(rewards, ends, n, last, gamma, out),
        (Some(values), None) => lambda_one(rewards, values, ends, last[0], gamma, lam, out),
        (Some(values), Some(n)) => lambda_time_major(rewards, values, ends, n, last, gamma, lam, out),
    };
    if long { detach(py, work) } else { work() }.map_err(to_py)?;
    Ok(returns.into_array().into_any())
}
