//! `compute_gae` and `compute_gae_batched`.

use bytemuck::Pod;
use numpy::{Element, PyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use rlox_core::{
    Ends, Float, compute_gae as one, compute_gae_batched as batched, compute_gae_time_major as time_major,
};

use crate::array::{FlagInput, Input, REAL, Reader, asarray, count, flags, held, input, out_slice, output, result};
use crate::detach::detached;
use crate::error::{to_py, type_error, value_error};

pub(crate) type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// From how many elements on a call may take more than 5 us.
const LONG: usize = 4096;

/// Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16).
///
/// `delta_t = r_t + gamma * (1 - terminated_t) * next_value_t - v_t`,
/// `A_t = delta_t + gamma * lam * (1 - done_t) * A_{t+1}`, with `done = terminated | truncated` and
/// `next_value_t = final_values_t` where an episode was truncated.
///
/// Args:
///     rewards: (T,) for one trajectory or (T, N) time-major; float32 stays float32, all else is float64.
///     values: V of the state each action was taken in, shape of `rewards`.
///     dones: Ends of episodes, read as terminated; None where `terminated` is given.
///     last_value: V of the state after the last step: a number, or (N,).
///     gamma: Discount factor in [0, 1].
///     lam: GAE's lambda in [0, 1].
///     terminated: The task itself ended; takes the place of `dones`.
///     truncated: The episode was cut, by a time limit for example.
///     final_values: V of the true last observation, shape of `rewards`, read only where truncated and
///         not terminated.
///     out: A pair of arrays to write to, of the dtype and shape of the result.
///
/// Returns:
///     (advantages, returns), both of the shape of `rewards`; returns = advantages + values.
///
/// Raises:
///     TypeError: An array of no numbers, or no ends given.
///     ValueError: Shapes that do not fit, a factor outside [0, 1], truncated rows without `final_values`.
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
    gamma: f64,
    lam: f64,
    terminated: Option<&Bound<'py, PyAny>>,
    truncated: Option<&Bound<'py, PyAny>>,
    final_values: Option<&Bound<'py, PyAny>>,
    out: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
) -> PyResult<Pair<'py>> {
    let rewards = asarray("rewards", rewards)?;
    let hold = rewards.len() <= LONG && out.is_none();
    let ends = Flags::read(dones, terminated, truncated, hold)?;
    let rewards = rewards.into_any();
    let single = rewards.cast::<PyArrayDyn<f32>>().is_ok();
    let call = Call { rewards, values, last_value, final_values, ends, gamma, lam, hold };
    if single { call.run(|x| x as f32, out) } else { call.run(|x: f64| x, out) }
}

pub(crate) struct Flags<'py> {
    terminated: FlagInput<'py>,
    truncated: Option<FlagInput<'py>>,
}

impl<'py> Flags<'py> {
    pub(crate) fn read(
        dones: Option<&Bound<'py, PyAny>>,
        terminated: Option<&Bound<'py, PyAny>>,
        truncated: Option<&Bound<'py, PyAny>>,
        hold: bool,
    ) -> PyResult<Self> {
        match (dones, terminated, truncated) {
            (None, Some(terminated), truncated) => Ok(Self {
                terminated: flags("terminated", terminated, hold)?,
                truncated: truncated.map(|flag| flags("truncated", flag, hold)).transpose()?,
            }),
            (Some(dones), None, None) => Ok(Self { terminated: flags("dones", dones, hold)?, truncated: None }),
            (dones, _, _) => {
                let got = if dones.is_some() { "both" } else { "neither" };
                let fix = "pass None as dones beside terminated= and truncated=";
                Err(type_error("dones", "either dones, or terminated (and truncated)", got, fix))
            }
        }
    }
}

/// One number, or one per environment.
pub(crate) enum LastValue<'py, T: Element> {
    One([T; 1]),
    Each(Input<'py, T>),
}

impl<'py, T: Element> LastValue<'py, T> {
    pub(crate) fn read(
        argument: &str,
        object: &Bound<'py, PyAny>,
        num_envs: Option<usize>,
        number: fn(f64) -> T,
    ) -> PyResult<Self> {
        if num_envs.is_none()
            && let Ok(float) = object.cast::<PyFloat>()
        {
            return Ok(Self::One([number(float.value())]));
        }
        let array = input::<T>(argument, object, &REAL)?;
        let fits = num_envs.map_or(array.slice().len() == 1, |n| array.shape() == [n]);
        if fits {
            return Ok(Self::Each(array));
        }
        let expected = num_envs.map_or_else(|| "one number".into(), |n| format!("shape ({n},)"));
        let got = format!("shape {:?}", array.shape());
        Err(value_error(argument, &expected, &got, "pass V of the state after the last step"))
    }

    pub(crate) fn slice(&self) -> &[T] {
        match self {
            Self::One(number) => number,
            Self::Each(array) => array.slice(),
        }
    }
}

/// The shape of the rewards, which the other arrays share.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) shape: &'a [usize],
    /// None for one trajectory.
    pub(crate) num_envs: Option<usize>,
}

impl<'a> Layout<'a> {
    pub(crate) fn of(shape: &'a [usize]) -> PyResult<Self> {
        let num_envs = match shape {
            [_] => None,
            [_, num_envs] => Some(*num_envs),
            _ => return Err(value_error("rewards", "shape (T,) or (T, N)", &format!("{shape:?}"), "reshape it")),
        };
        Ok(Self { shape, num_envs })
    }

    pub(crate) fn same(&self, argument: &str, got: &[usize]) -> PyResult<()> {
        if got == self.shape {
            return Ok(());
        }
        let expected = format!("the shape of rewards, {:?}", self.shape);
        Err(value_error(argument, &expected, &format!("{got:?}"), "pass arrays of one shape"))
    }

    pub(crate) fn ends<'b, T: Element>(
        &self,
        flags: &'b Flags<'_>,
        final_values: Option<&'b Input<'_, T>>,
    ) -> PyResult<Ends<'b, T>> {
        self.same("dones/terminated", flags.terminated.shape())?;
        if let Some(truncated) = &flags.truncated {
            self.same("truncated", truncated.shape())?;
        }
        if let Some(final_values) = final_values {
            self.same("final_values", final_values.shape())?;
        }
        Ok(Ends {
            terminated: flags.terminated.slice(),
            truncated: flags.truncated.as_ref().map(FlagInput::slice),
            final_values: final_values.map(Input::slice),
        })
    }
}

struct Call<'a, 'py> {
    rewards: Bound<'py, PyAny>,
    values: &'a Bound<'py, PyAny>,
    last_value: &'a Bound<'py, PyAny>,
    final_values: Option<&'a Bound<'py, PyAny>>,
    ends: Flags<'py>,
    gamma: f64,
    lam: f64,
    hold: bool,
}

impl<'py> Call<'_, 'py> {
    fn run<T: Float + Element + Pod>(
        self,
        number: fn(f64) -> T,
        out: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    ) -> PyResult<Pair<'py>> {
        let py = self.rewards.py();
        let read: Reader<'py, T> = if self.hold { held } else { input };
        let rewards = read("rewards", &self.rewards, &REAL)?;
        let layout = Layout::of(rewards.shape())?;
        let Layout { shape, num_envs } = layout;
        let values = read("values", self.values, &REAL)?;
        layout.same("values", values.shape())?;
        let final_values = self.final_values.map(|x| read("final_values", x, &REAL)).transpose()?;
        let ends = layout.ends(&self.ends, final_values.as_ref())?;
        let last = LastValue::read("last_value", self.last_value, num_envs, number)?;
        let (gamma, lam) = (self.gamma, self.lam);
        let (rewards, values, last) = (rewards.slice(), values.slice(), last.slice());
        let work = |advantages: &mut [T], returns: &mut [T]| {
            let mut kernel = || match num_envs {
                None => one(rewards, values, ends, last[0], gamma, lam, advantages, returns),
                Some(n) => time_major(rewards, values, ends, n, last, gamma, lam, advantages, returns),
            };
            if rewards.len() > LONG { detached(py, kernel) } else { kernel() }.map_err(to_py)
        };
        let Some((advantages, returns)) = out else {
            let (mut advantages, mut returns) = (result::<T>(py, shape)?, result::<T>(py, shape)?);
            work(advantages.slice(), returns.slice())?;
            return Ok((advantages.into_array().into_any(), returns.into_array().into_any()));
        };
        let (mut a, mut r) = (output::<T>("out[0]", &advantages)?, output::<T>("out[1]", &returns)?);
        layout.same("out[0]", a.shape())?;
        layout.same("out[1]", r.shape())?;
        work(out_slice(&mut a), out_slice(&mut r))?;
        Ok((advantages, returns))
    }
}

/// GAE of several trajectories laid end to end: flat and environment-major, `(n_envs * n_steps,)`.
///
/// Each environment's `n_steps` numbers stand together; `last_values` has one number per environment. `dones` are
/// read as terminated. For time limits use `compute_gae` with (T, N) arrays.
///
/// Returns:
///     (advantages, returns), flat as `rewards`; float32 stays float32, all else is float64.
///
/// Raises:
///     TypeError: An array of no numbers.
///     ValueError: Lengths that do not fit, a factor outside [0, 1].
///
/// >>> import numpy as np, rlox
/// >>> advantages, returns = rlox.compute_gae_batched(
/// ...     np.ones(4), np.zeros(4), np.zeros(4), np.zeros(2), n_steps=2, gamma=1.0, lam=1.0)
/// >>> returns
/// array([2., 1., 2., 1.])
#[pyfunction]
#[pyo3(signature = (rewards, values, dones, last_values, n_steps, gamma=0.99, lam=0.95))]
pub(crate) fn compute_gae_batched<'py>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    last_values: &Bound<'py, PyAny>,
    n_steps: &Bound<'py, PyAny>,
    gamma: f64,
    lam: f64,
) -> PyResult<Pair<'py>> {
    let n_steps = count("n_steps", n_steps)?;
    let rewards = &asarray("rewards", rewards)?.into_any();
    if rewards.cast::<PyArrayDyn<f32>>().is_ok() {
        run_batched::<f32>(rewards, values, dones, last_values, n_steps, gamma, lam)
    } else {
        run_batched::<f64>(rewards, values, dones, last_values, n_steps, gamma, lam)
    }
}

fn run_batched<'py, T: Float + Element + Pod>(
    rewards: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    dones: &Bound<'py, PyAny>,
    last_values: &Bound<'py, PyAny>,
    n_steps: usize,
    gamma: f64,
    lam: f64,
) -> PyResult<Pair<'py>> {
    let py = rewards.py();
    let rewards = input::<T>("rewards", rewards, &REAL)?;
    let values = input::<T>("values", values, &REAL)?;
    let dones = flags("dones", dones, false)?;
    let last = input::<T>("last_values", last_values, &REAL)?;
    for (argument, shape) in [
        ("rewards", rewards.shape()),
        ("values", values.shape()),
        ("dones", dones.shape()),
        ("last_values", last.shape()),
    ] {
        if shape.len() != 1 {
            return Err(value_error(
                argument,
                "a flat array",
                &format!("shape {shape:?}"),
                "ravel it environment by environment",
            ));
        }
    }
    let (mut advantages, mut returns) = (result::<T>(py, rewards.shape())?, result::<T>(py, rewards.shape())?);
    let ends = Ends { terminated: dones.slice(), truncated: None, final_values: None };
    let (rewards, values, last) = (rewards.slice(), values.slice(), last.slice());
    let (a, r) = (advantages.slice(), returns.slice());
    let mut work = || batched(rewards, values, ends, last, n_steps, gamma, lam, a, r);
    if rewards.len() > LONG { detached(py, work) } else { work() }.map_err(to_py)?;
    Ok((advantages.into_array().into_any(), returns.into_array().into_any()))
}
