//! The Python functions `compute_gae` and `compute_gae_batched`.

use bytemuck::Pod;
use num_traits::AsPrimitive;
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use rlox_core::{
    advantage::{Float, compute_gae_time_major as time_major},
    compute_gae as one, compute_gae_batched as batched,
};

use crate::advantage::trajectory::{EpisodeEndsArgument, LastValue, Pair, TrajectoryShape, like};
use crate::convert::args::{
    REAL, argument, argument_like, asarray, is_single, numbers, output, positive, sequence, short_repr,
};
use crate::convert::array::{FromArray, empty};
use crate::error::{replace_ordinary_error, to_py, type_error, value_error};
use crate::sync::gil::{detach, is_alone};

/// Element count above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 4096;

/// Compute generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16).
///
/// With `done = terminated | truncated`:
/// `delta_t = r_t + gamma * (1 - terminated_t) * next_value_t - v_t`,
/// `A_t = delta_t + gamma * lam * (1 - done_t) * A_{t+1}`.
/// `next_value_t` is `final_values_t` where an episode was truncated, `last_value` at the last
/// step, and `v_{t+1}` at all other steps.
///
/// Args:
///     rewards: (T,) for one trajectory or (T, N) time-major. Results are float32 for float32,
///         float16 and bfloat16 rewards, and float64 for any other dtype.
///     values: Values of the states in which the actions were taken, of the shape of `rewards`.
///     dones: Flags of episode ends that are all terminations; None if `terminated` is given.
///     last_value: Value of the state after the last step: a number, or (N,).
///     gamma: Discount factor in [0, 1].
///     lam: GAE's lambda in [0, 1].
///     terminated: True where the environment reached a terminal state; replaces `dones`.
///     truncated: True where the episode was cut off, for example by a time limit.
///     final_values: Values of the last observations of truncated episodes, of the shape of
///         `rewards`. Elements are read only where an episode was truncated and not terminated.
///     out: Pair of arrays (advantages, returns) that the results are written to, of the results'
///         dtype and shape.
///
/// Returns:
///     (advantages, returns), both of the shape of `rewards`; returns = advantages + values.
///
/// Raises:
///     TypeError: An array is not numeric, or not exactly one of `dones` and `terminated` is given.
///     ValueError: Shapes do not match, a factor is outside [0, 1], or steps are truncated without
///         `final_values`.
///
/// >>> import numpy as np, rlox
/// >>> advantages, returns = rlox.compute_gae(np.ones(3), np.zeros(3), [0, 0, 1], 0.0, gamma=1.0, lam=1.0)
/// >>> returns
/// array([3., 2., 1.])
#[pyfunction]
#[pyo3(signature = (rewards, values, dones, last_value, gamma=0.99, lam=0.95, *, terminated=None, truncated=None, final_values=None, out=None))]
pub(crate) fn compute_gae<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: Option<&Bound<'py, PyAny>>,
    last_value: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
    #[pyo3(from_py_with = numbers::lam)] lam: f64,
    terminated: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Pair<'py>> {
    let pair = |out: &Bound<'py, PyAny>| {
        let pair = sequence(out).and_then(|pair| pair.extract());
        let mismatch = || type_error("out", "a pair of arrays", &short_repr(out), "pass (advantages, returns)");
        pair.map_err(|error| replace_ordinary_error(out.py(), error, mismatch))
    };
    let out = out.map(pair).transpose()?;
    let rewards = &asarray("rewards", rewards)?;
    let single = is_single(rewards.as_any());
    let call = Call { rewards, values, last_value, final_values, gamma, lam, out };
    let ends = EpisodeEndsArgument::new(dones, terminated, truncated, rewards)?;
    if single { call.run::<f32>(ends) } else { call.run::<f64>(ends) }
}

struct Call<'a, 'py> {
    rewards: &'a Bound<'py, PyUntypedArray>,
    values: &'a Bound<'py, PyAny>,
    last_value: &'a Bound<'py, PyAny>,
    final_values: Option<&'a Bound<'py, PyAny>>,
    gamma: f64,
    lam: f64,
    out: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
}

impl<'py> Call<'_, 'py> {
    fn run<T: Float + FromArray + Pod>(self, ends: EpisodeEndsArgument<'py>) -> PyResult<Pair<'py>>
    where
        f64: AsPrimitive<T>,
    {
        let py = self.rewards.py();
        let rewards = argument::<T>("rewards", self.rewards, &REAL)?;
        let like = Some(like(self.rewards));
        let values = argument_like::<T>("values", self.values, &REAL, like)?;
        let final_values = self.final_values.map(|x| argument_like::<T>("final_values", x, &REAL, like)).transpose()?;
        let last = LastValue::<T>::new("last_value", self.last_value, self.rewards)?;

        let trajectory = TrajectoryShape::from_shape(rewards.shape())?;
        let long =
            trajectory.is_long(DETACH_ABOVE_ELEMENTS, &[Some(&values), final_values.as_ref()], &ends, Some(&last))?;
        let hold = self.out.is_none() && !long && is_alone(py);
        let rewards = rewards.read(hold)?;
        let trajectory = TrajectoryShape::from_shape(rewards.shape())?;
        let TrajectoryShape { shape, num_envs } = trajectory;
        let values = trajectory.read(values, hold)?;
        let final_values = final_values.map(|x| trajectory.read(x, hold)).transpose()?;
        let flags = ends.read(py, hold)?;
        let ends = trajectory.episode_ends(&flags, final_values.as_ref())?;
        let last = trajectory.last(last, hold)?;
        let (gamma, lam) = (self.gamma, self.lam);
        let (rewards, values, last) = (rewards.slice(), values.slice(), last.slice());
        let work = |advantages: &mut [T], returns: &mut [T]| {
            let mut kernel = || match num_envs {
                None => one(rewards, values, ends, last[0], gamma, lam, advantages, returns),
                Some(n) => time_major(rewards, values, ends, n, last, gamma, lam, advantages, returns),
            };
            if long { detach(py, kernel) } else { kernel() }.map_err(to_py)
        };
        let Some((advantages, returns)) = self.out else {
            let (mut advantages, mut returns) = (empty::<T>(py, shape)?, empty::<T>(py, shape)?);
            work(advantages.slice(), returns.slice())?;
            return Ok((advantages.into_array().into_any(), returns.into_array().into_any()));
        };
        let (mut a, mut r) = (output::<T>("out[0]", &advantages)?, output::<T>("out[1]", &returns)?);
        trajectory.expect_same("out[0]", a.shape())?;
        trajectory.expect_same("out[1]", r.shape())?;
        work(a.slice(), r.slice())?;
        Ok((advantages, returns))
    }
}

/// Compute generalized advantage estimates of several trajectories in one flat array.
///
/// The arrays have shape (n_envs * n_steps,), with the `n_steps` numbers of each environment
/// contiguous.
///
/// Args:
///     rewards, values: As for `compute_gae`, but flat.
///     dones: Flags of episode ends that are all terminations; None if `terminated` is given.
///     last_values: Values of the states after the last steps, (n_envs,).
///     n_steps: Number of steps of each environment.
///     gamma, lam: As for `compute_gae`.
///     terminated, truncated, final_values: As for `compute_gae`, but flat.
///
/// Returns:
///     (advantages, returns), flat like `rewards`; float32 or float64 as for `compute_gae`.
///
/// Raises:
///     TypeError: An array is not numeric, or not exactly one of `dones` and `terminated` is given.
///     ValueError: Lengths do not match, a factor is outside [0, 1], or steps are truncated without
///         `final_values`.
///
/// >>> import numpy as np, rlox
/// >>> advantages, returns = rlox.compute_gae_batched(
/// ...     np.ones(4), np.zeros(4), np.zeros(4), np.zeros(2), n_steps=2, gamma=1.0, lam=1.0)
/// >>> returns
/// array([2., 1., 2., 1.])
#[pyfunction]
#[pyo3(signature = (
    rewards, values, dones, last_values, n_steps, gamma=0.99, lam=0.95,
    *, terminated=None, truncated=None, final_values=None
))]
pub(crate) fn compute_gae_batched<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: Option<&Bound<'py, PyAny>>,
    last_values: &Bound<'py, PyAny>,
    n_steps: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
    #[pyo3(from_py_with = numbers::lam)] lam: f64,
    terminated: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
) -> PyResult<Pair<'py>> {
    let n_steps = positive("n_steps", n_steps)?;
    let rewards = &asarray("rewards", rewards)?;
    let single = is_single(rewards.as_any());
    let ends = EpisodeEndsArgument::new(dones, terminated, truncated, rewards)?;
    let call = FlatCall { rewards, values, last_values, final_values, n_steps, gamma, lam };
    if single { call.run::<f32>(ends) } else { call.run::<f64>(ends) }
}

struct FlatCall<'a, 'py> {
    rewards: &'a Bound<'py, PyUntypedArray>,
    values: &'a Bound<'py, PyAny>,
    last_values: &'a Bound<'py, PyAny>,
    final_values: Option<&'a Bound<'py, PyAny>>,
    n_steps: usize,
    gamma: f64,
    lam: f64,
}

impl<'py> FlatCall<'_, 'py> {
    fn run<T: Float + FromArray + Pod>(self, ends: EpisodeEndsArgument<'py>) -> PyResult<Pair<'py>> {
        let (py, n_steps, gamma, lam) = (self.rewards.py(), self.n_steps, self.gamma, self.lam);
        let rewards = argument::<T>("rewards", self.rewards, &REAL)?;
        let like = Some(like(self.rewards));
        let values = argument_like::<T>("values", self.values, &REAL, like)?;
        let final_values = self.final_values.map(|x| argument_like::<T>("final_values", x, &REAL, like)).transpose()?;
        let last = argument::<T>("last_values", self.last_values, &REAL)?;

        let trajectory = TrajectoryShape { shape: flat("rewards", rewards.shape())?, num_envs: None };
        flat("last_values", last.shape())?;
        let long = trajectory.is_long(DETACH_ABOVE_ELEMENTS, &[Some(&values), final_values.as_ref()], &ends, None)?
            || last.len() > DETACH_ABOVE_ELEMENTS;
        let hold = !long && is_alone(py);
        let (rewards, last) = (rewards.read(hold)?, last.read(hold)?);
        flat("last_values", last.shape())?;
        let trajectory = TrajectoryShape { shape: flat("rewards", rewards.shape())?, num_envs: None };
        let values = trajectory.read(values, hold)?;
        let final_values = final_values.map(|x| trajectory.read(x, hold)).transpose()?;
        let flags = ends.read(py, hold)?;
        let ends = trajectory.episode_ends(&flags, final_values.as_ref())?;
        let (mut advantages, mut returns) = (empty::<T>(py, trajectory.shape)?, empty::<T>(py, trajectory.shape)?);
        let (rewards, values, last) = (rewards.slice(), values.slice(), last.slice());
        let (a, r) = (advantages.slice(), returns.slice());
        let mut work = || batched(rewards, values, ends, last, n_steps, gamma, lam, a, r);
        if long { detach(py, work) } else { work() }.map_err(to_py)?;
        Ok((advantages.into_array().into_any(), returns.into_array().into_any()))
    }
}

fn flat<'a>(name: &str, shape: &'a [usize]) -> PyResult<&'a [usize]> {
    if shape.len() == 1 {
        return Ok(shape);
    }
    let (got, fix) = (format!("shape {shape:?}"), "ravel it environment by environment");
    Err(value_error(name, "a flat array", &got, fix))
}
