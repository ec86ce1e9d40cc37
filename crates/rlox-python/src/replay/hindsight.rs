//! The class `GoalReplayBuffer`, the base of `rlox.HindsightReplayBuffer`.

use pyo3::prelude::*;
use rlox_core::replay::{Hindsight, Strategy};

use super::ReplayBuffer;
use super::buffer::{Buffer, BufferOptions, make_parts};
use super::schema::key_of;
use crate::convert::args::{count, text};
use crate::error::{to_py, value_error};

/// Replay buffer whose samples have hindsight goals (Andrychowicz et al. 2017).
///
/// In a sample of B transitions, the first `B * n_sampled_goal // (n_sampled_goal + 1)` have a
/// hindsight goal: a `desired_goal` that their episode achieved. Their rewards still belong to the
/// original goals; `rlox.HindsightReplayBuffer` computes new rewards. The buffer has all features
/// of `ReplayBuffer` except `n_step` and `frame_stack`.
///
/// Args:
///     capacity, act_dim: As for `ReplayBuffer`, and so are the keywords that are not listed here.
///     obs_dim: {name: shape} or {name: (shape, dtype)} with the names observation, achieved_goal
///         and desired_goal.
///     strategy: Step whose achieved goal becomes the hindsight goal: this or a later step of the
///         episode ("future"), the last step ("final") or any step ("episode").
///     n_sampled_goal: Number of transitions with a hindsight goal per transition with its own
///         goal.
///
/// Raises:
///     ValueError: `obs_dim` has no goals, goals have different shapes, or the strategy is unknown.
///     MemoryError: The buffer does not fit into memory; the message has its size in bytes.
#[pyclass(frozen, extends = ReplayBuffer, subclass, module = "rlox._rlox")]
pub(crate) struct GoalReplayBuffer;

#[pymethods]
impl GoalReplayBuffer {
    #[new]
    #[pyo3(signature = (capacity, obs_dim, act_dim, strategy=None, n_sampled_goal=None, *, num_envs=None, obs_dtype=None, act_dtype=None, extra=None, seed=None, capacity_name=None),
        text_signature = "(capacity, obs_dim, act_dim, strategy='future', n_sampled_goal=4, *, num_envs=1, obs_dtype='float32', act_dtype='float32', extra=None, seed=None)")]
    fn new(
        py: Python<'_>,
        capacity: &Bound<'_, PyAny>,
        obs_dim: &Bound<'_, PyAny>,
        act_dim: &Bound<'_, PyAny>,
        strategy: Option<&Bound<'_, PyAny>>,
        n_sampled_goal: Option<&Bound<'_, PyAny>>,
        num_envs: Option<&Bound<'_, PyAny>>,
        obs_dtype: Option<&Bound<'_, PyAny>>,
        act_dtype: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        capacity_name: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let strategy = strategy.map_or(Ok("future".to_owned()), |value| text("strategy", value))?;
        let strategy = Strategy::from_name(&strategy).map_err(to_py)?;
        let n_sampled_goal = n_sampled_goal.map_or(Ok(4), |value| count("n_sampled_goal", value))?;
        let options = BufferOptions {
            num_envs,
            obs_dtype,
            act_dtype,
            extra,
            seed,
            capacity_name,
            frame_stack: None,
            n_step: None,
            gamma: 0.99,
        };
        let buffer_parts = make_parts(py, [capacity, obs_dim, act_dim], options)?;
        let specs = &buffer_parts.storage.schema().obs;
        let field_index = |name: &str| {
            specs.iter().position(|spec| key_of(spec) == Some(name)).ok_or_else(|| {
                let names: Vec<_> = specs.iter().filter_map(key_of).collect();
                let expected = format!("the keys observation, achieved_goal and desired_goal, including {name}");
                let fix = "pass {name: shape} for the observations of a goal environment";
                value_error("obs_dim", &expected, &format!("{names:?}"), fix)
            })
        };
        let _ = field_index("observation")?;
        let goal_specs = (field_index("achieved_goal")?, field_index("desired_goal")?);
        let sampler = Hindsight::new(&buffer_parts.storage, goal_specs, strategy, n_sampled_goal)
            .map_err(|error| to_py(buffer_parts.name(error)))?;
        let buffer = Buffer::new(py, buffer_parts, sampler.into(), "HindsightReplayBuffer")?;
        Ok(PyClassInitializer::from(ReplayBuffer { buffer }).add_subclass(Self))
    }

    /// Read a buffer that `save` wrote.
    ///
    /// `rlox.HindsightReplayBuffer.load` returns a buffer that also computes rewards.
    #[staticmethod]
    fn load(py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let buffer = Buffer::load(py, path, "HindsightReplayBuffer")?;
        Py::new(py, PyClassInitializer::from(ReplayBuffer { buffer }).add_subclass(Self))
    }
}
