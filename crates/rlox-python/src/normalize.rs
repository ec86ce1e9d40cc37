//! The classes `Normalizer` and `RunningMeanStd`.

use numpy::{IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rlox_core::{
    Normalizer as Core,
    interrupt::InterruptCheck,
    normalize::{NormalizerOptions, RunningMeanStd as Statistics},
};

use crate::alloc::try_map;
use crate::convert::args::{Input, REAL, argument, count, instance, item, numbers, shape, switches};
use crate::convert::array::{empty, new_dict};
use crate::error::{to_py, value_error};
use crate::sync::cell::GuardedCell;
use crate::sync::gil::is_alone;

/// Element count above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 2048;

/// Normaliser of observations and rewards, like Stable-Baselines3's VecNormalize.
///
/// Observations are normalised to mean 0 and variance 1. Rewards are divided by the standard
/// deviation of the running discounted return. Collecting a rollout updates the statistics.
/// Evaluation and prediction use `normalize_obs`, which does not update them.
///
/// Args:
///     num_envs: Number of environments.
///     obs_shape: Shape of one observation.
///     obs: True to normalise observations.
///     reward: True to normalise rewards.
///     gamma: Discount factor of the running return, in [0, 1].
///     clip_obs, clip_reward: Maximum absolute value of normalised numbers.
///     epsilon: Added to the variance.
///
/// Raises:
///     ValueError: A size is 0, or a number is out of range.
///
/// >>> import numpy as np, rlox
/// >>> normalizer = rlox.Normalizer(num_envs=2, obs_shape=(1,))
/// >>> normalizer.update_obs([[1.0], [3.0]])
/// >>> normalizer.normalize_obs([[1.0], [3.0]]).round(3)
/// array([[-1.],
///        [ 1.]], dtype=float32)
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct Normalizer {
    pub(crate) inner: GuardedCell<Core>,
    obs_shape: Vec<usize>,
    /// True if observations are normalised. If False, `normalize_obs` returns them unchanged.
    #[pyo3(get)]
    normalizes_obs: bool,
}

/// Parses the argument `normalizer`.
pub(crate) fn normalizer_of<'a>(object: Option<&'a Bound<'_, PyAny>>) -> PyResult<Option<&'a Normalizer>> {
    let cast = |object| Ok(instance::<Normalizer>("normalizer", object, "Normalizer, or None")?.get());
    object.map(cast).transpose()
}

impl Normalizer {
    fn check(&self, obs: &[usize]) -> PyResult<()> {
        if obs.ends_with(&self.obs_shape) {
            return Ok(());
        }
        let expected = format!("observations of shape {:?}", self.obs_shape);
        Err(value_error("obs", &expected, &format!("shape {obs:?}"), "pass observations of that shape"))
    }
}

#[pymethods]
impl Normalizer {
    #[new]
    #[pyo3(signature = (num_envs, obs_shape, *, obs=true, reward=true, gamma=0.99, clip_obs=10.0, clip_reward=10.0, epsilon=1e-8))]
    fn new(
        num_envs: &Bound<'_, PyAny>,
        obs_shape: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = switches::obs)] obs: bool,
        #[pyo3(from_py_with = switches::reward)] reward: bool,
        #[pyo3(from_py_with = numbers::gamma)] gamma: f64,
        #[pyo3(from_py_with = numbers::clip_obs)] clip_obs: f64,
        #[pyo3(from_py_with = numbers::clip_reward)] clip_reward: f64,
        #[pyo3(from_py_with = numbers::epsilon)] epsilon: f64,
    ) -> PyResult<Self> {
        let num_envs = count("num_envs", num_envs)?;
        let obs_shape = shape("obs_shape", obs_shape)?;
        let dim = obs_shape.iter().fold(1, |product: usize, n| product.saturating_mul(*n));
        let options = NormalizerOptions { obs, reward, gamma, clip_obs, clip_reward, epsilon };
        let core = Core::new(num_envs, dim, options).map_err(to_py)?;
        Ok(Self { inner: GuardedCell::new("Normalizer", core), obs_shape, normalizes_obs: obs })
    }

    /// Number of environments.
    #[getter]
    fn num_envs(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.with(py, false, |normalizer| Ok(normalizer.returns().len()))
    }

    /// Shape of one observation.
    #[getter]
    fn obs_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.obs_shape)
    }

    /// Update the statistics with K observations, (K, *obs_shape).
    ///
    /// Raises:
    ///     ValueError: The shape is wrong, or a number is not finite; the statistics are unchanged.
    fn update_obs(&self, py: Python<'_>, obs: &Bound<'_, PyAny>) -> PyResult<()> {
        let obs = argument::<f32>("obs", obs, &REAL)?.read(false)?;
        self.check(obs.shape())?;
        let rows = obs.slice();
        self.inner.with(py, rows.len() > DETACH_ABOVE_ELEMENTS, |normalizer| {
            normalizer.update_obs(rows).map_err(|error| error.rename_argument("rows", "obs"))
        })
    }

    /// Return normalised copies of observations, (..., *obs_shape) float32.
    ///
    /// The statistics are not updated.
    ///
    /// Raises:
    ///     ValueError: The shape is wrong.
    fn normalize_obs<'py>(&self, py: Python<'py>, obs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let obs = argument::<f32>("obs", obs, &REAL)?;
        let long = obs.len() > DETACH_ABOVE_ELEMENTS;
        let obs = obs.read(!long && is_alone(py))?;
        self.check(obs.shape())?;
        let mut array = empty::<f32>(py, obs.shape())?;
        let (raw, rows, dim) = (obs.slice(), array.slice(), self.obs_shape.iter().product::<usize>());
        // Chunks are short, because each number takes several times as long as in other loops.
        let chunk_len = (InterruptCheck::POLL_ELEMENTS / 4 / dim).max(1) * dim;
        self.inner.with(py, long, |normalizer| {
            let mut interrupt = InterruptCheck::default();
            for (rows, raw) in rows.chunks_mut(chunk_len).zip(raw.chunks(chunk_len)) {
                rows.copy_from_slice(raw);
                normalizer.normalize_obs(rows)?;
                interrupt.check()?;
            }
            Ok(())
        })?;
        Ok(array.into_array())
    }

    /// Return the statistics as a dict of float64 arrays.
    ///
    /// The keys are obs_mean, obs_var, obs_count, return_mean, return_var, return_count and
    /// returns.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.inner.with(py, false, |normalizer| state_arrays(normalizer))?)
    }

    /// Restore the statistics that `state` returned.
    ///
    /// Raises:
    ///     ValueError: An array is missing or of another length; the statistics are unchanged.
    fn load_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let get = |name: &'static str| -> PyResult<Vec<f64>> {
            let numbers = item(state, name, "pass the result of state()")?;
            let numbers = argument::<f64>(name, &numbers, &REAL)?.read(is_alone(py))?;
            if numbers.shape().len() != 1 {
                let got = format!("shape {:?}", numbers.shape());
                return Err(value_error(name, "an array of one axis", &got, "pass the result of state()"));
            }
            try_map(numbers.slice(), |x| x).map_err(to_py)
        };
        let scalar = |name: &'static str| -> PyResult<f64> {
            let numbers = get(name)?;
            let mismatch = || {
                value_error(
                    name,
                    "a single number",
                    &format!("{} numbers", numbers.len()),
                    "pass the result of state()",
                )
            };
            if numbers.len() == 1 { Ok(numbers[0]) } else { Err(mismatch()) }
        };
        let statistics = |[mean, var, count]: [&'static str; 3]| -> PyResult<Statistics> {
            let parts = Statistics::from_parts(get(mean)?, get(var)?, scalar(count)?);
            parts.map_err(|error| {
                to_py(error.rename_argument("mean", mean).rename_argument("var", var).rename_argument("count", count))
            })
        };
        let obs = statistics(["obs_mean", "obs_var", "obs_count"])?;
        let reward = statistics(["return_mean", "return_var", "return_count"])?;
        let returns = get("returns")?;
        self.inner.with(py, false, |normalizer| normalizer.restore(obs, reward, &returns))
    }
}

/// Running mean and variance of rows, in float64.
///
/// Batches are merged by the formula of Chan et al. (1979). As in Gymnasium and Stable-Baselines3,
/// the statistics start with a count of 1e-4, mean 0 and variance 1, so that the variance is
/// positive before the first row. `count` includes the initial 1e-4.
///
/// Args:
///     shape: Shape of one row; () for single numbers.
///
/// >>> import rlox
/// >>> statistics = rlox.RunningMeanStd(())
/// >>> statistics.update([1.0, 3.0])
/// >>> round(float(statistics.mean), 3), round(float(statistics.var), 3)
/// (2.0, 1.0)
#[pyclass(frozen, module = "rlox._rlox")]
pub(crate) struct RunningMeanStd {
    inner: GuardedCell<Statistics>,
    shape: Vec<usize>,
}

impl RunningMeanStd {
    fn column<'py>(&self, py: Python<'py>, column: fn(&Statistics) -> &[f64]) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
        let numbers = self.inner.with(py, false, |statistics| try_map(column(statistics), |x| x))?;
        PyArray1::from_vec(py, numbers).reshape(self.shape.clone())
    }
}

#[pymethods]
impl RunningMeanStd {
    #[new]
    #[pyo3(signature = (shape=None))]
    fn new(shape: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let shape = shape.map_or_else(|| Ok(Vec::new()), |object| crate::convert::args::shape("shape", object))?;
        let dim = shape.iter().fold(1, |product: usize, n| product.saturating_mul(*n));
        let statistics = Statistics::try_new(dim).map_err(to_py)?;
        Ok(Self { inner: GuardedCell::new("RunningMeanStd", statistics), shape })
    }

    /// Update the statistics with K rows, (K, *shape).
    ///
    /// Raises:
    ///     ValueError: The shape is wrong, or a number is not finite; the statistics are unchanged.
    fn update(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<()> {
        let x = argument::<f64>("x", x, &REAL)?.read(false)?;
        if !x.shape().ends_with(&self.shape) {
            let (expected, got) = (format!("rows of shape {:?}", self.shape), format!("shape {:?}", x.shape()));
            return Err(value_error("x", &expected, &got, "pass rows of that shape"));
        }
        let rows = Input::slice(&x);
        self.inner.with(py, rows.len() > DETACH_ABOVE_ELEMENTS, |statistics| {
            statistics.update(rows).map_err(|error| error.rename_argument("rows", "x"))
        })
    }

    /// Merge the statistics of another object into this object.
    ///
    /// Raises:
    ///     ValueError: `other` has another shape.
    fn merge(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = instance::<Self>("other", other, "RunningMeanStd")?.get();
        let other = other.inner.with(py, false, |statistics| {
            let copy = |numbers| try_map(numbers, |x| x);
            Statistics::from_parts(copy(statistics.mean())?, copy(statistics.var())?, statistics.count())
        })?;
        self.inner.with(py, false, |statistics| statistics.merge(&other))
    }

    /// Mean, of the constructor's shape.
    #[getter]
    fn mean<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
        self.column(py, Statistics::mean)
    }

    /// Population variance, of the constructor's shape.
    #[getter]
    fn var<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
        self.column(py, Statistics::var)
    }

    /// Number of rows, plus the initial 1e-4.
    #[getter]
    fn count(&self, py: Python<'_>) -> PyResult<f64> {
        self.inner.with(py, false, |statistics| Ok(statistics.count()))
    }
}

/// Names and values of all statistics of a normaliser.
pub(crate) type StateArrays = [(&'static str, Vec<f64>); 7];

/// Copies a normaliser's statistics.
pub(crate) fn state_arrays(normalizer: &rlox_core::Normalizer) -> rlox_core::Result<StateArrays> {
    let copy = |numbers: &[f64]| try_map(numbers, |x| x);
    let (obs, reward) = (normalizer.obs(), normalizer.reward());
    Ok([
        ("obs_mean", copy(obs.mean())?),
        ("obs_var", copy(obs.var())?),
        ("obs_count", copy(&[obs.count()])?),
        ("return_mean", copy(reward.mean())?),
        ("return_var", copy(reward.var())?),
        ("return_count", copy(&[reward.count()])?),
        ("returns", copy(normalizer.returns())?),
    ])
}

/// Converts statistics to the dict of `Normalizer.state`.
pub(crate) fn to_dict(py: Python<'_>, arrays: StateArrays) -> PyResult<Bound<'_, PyDict>> {
    let dict = new_dict(py)?;
    for (name, numbers) in arrays {
        dict.set_item(name, numbers.into_pyarray(py))?;
    }
    Ok(dict)
}
