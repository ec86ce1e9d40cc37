//! What a policy said - actions, log-probabilities, values - as arguments of calls.

use pyo3::prelude::*;
use rlox_core::{Actions, PolicySaid};

use crate::argument::{Argument, INTEGER, Input, REAL, argument, asarray, expect_shape, index, instance};
use crate::array::{Apart, beyond_f32, no_copy, typed};
use crate::error::value_error;
use crate::normalize::normalizer_of;
use crate::rollout::RolloutBuffer;

/// Actions whose Python code has run.
pub(crate) enum ActionArgument<'py> {
    Discrete(Argument<'py, i64>),
    Continuous(Argument<'py, f32>),
}

impl<'py> ActionArgument<'py> {
    /// Takes integers where `discrete`, real numbers where not, for the argument `name`. May run Python code.
    pub(crate) fn new(name: &'static str, object: &Bound<'py, PyAny>, discrete: bool) -> PyResult<Self> {
        if discrete {
            return Ok(Self::Discrete(argument(name, object, &INTEGER)?));
        }
        if typed::<f32>(object).is_some() {
            return Ok(Self::Continuous(argument(name, object, &REAL)?));
        }
        let array = asarray(name, object)?;
        let beyond = beyond_f32(array.as_any()).map_err(|error| no_copy(name, &array, error))?;
        if let Some(number) = beyond {
            let expected = "numbers that float32 can hold";
            return Err(value_error(name, expected, &format!("{number:e}"), "scale or clip them"));
        }
        Ok(Self::Continuous(argument(name, array.as_any(), &REAL)?))
    }

    /// Whether elements that are borrowed are apart from all that was taken.
    pub(crate) fn is_apart(&self, apart: &mut Apart) -> bool {
        match self {
            Self::Discrete(actions) => apart.take(actions.borrowed()),
            Self::Continuous(actions) => apart.take(actions.borrowed()),
        }
    }

    /// The length of the first axis.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Discrete(actions) => actions.rows(),
            Self::Continuous(actions) => actions.rows(),
        }
    }

    /// The actions, of shape `[rows, *shape]`; see [`Argument::read`].
    pub(crate) fn read(self, hold: bool, rows: usize, shape: &[usize]) -> PyResult<ActionInput<'py>> {
        let (name, actions) = match self {
            Self::Discrete(actions) => (actions.name(), ActionInput::Discrete(actions.read(hold)?)),
            Self::Continuous(actions) => (actions.name(), ActionInput::Continuous(actions.read(hold)?)),
        };
        let got = match &actions {
            ActionInput::Discrete(array) => array.shape(),
            ActionInput::Continuous(array) => array.shape(),
        };
        expect_shape(name, got, rows, shape)?;
        Ok(actions)
    }
}

/// Actions as the core wants them.
pub(crate) enum ActionInput<'py> {
    Discrete(Input<'py, i64>),
    Continuous(Input<'py, f32>),
}

impl ActionInput<'_> {
    pub(crate) fn get(&self) -> Actions<'_> {
        match self {
            Self::Discrete(array) => Actions::Discrete(array.slice()),
            Self::Continuous(array) => Actions::Continuous(array.slice()),
        }
    }

    fn apart_from(self, buffer: &RolloutBuffer) -> PyResult<Self> {
        Ok(match self {
            Self::Discrete(array) => Self::Discrete(buffer.apart(array)?),
            Self::Continuous(array) => Self::Continuous(buffer.apart(array)?),
        })
    }
}

/// What a policy said, whose Python code has run.
pub(crate) struct SaidArgument<'py> {
    actions: ActionArgument<'py>,
    log_probs: Argument<'py, f32>,
    values: Argument<'py, f32>,
}

impl<'py> SaidArgument<'py> {
    pub(crate) fn new(
        actions: &Bound<'py, PyAny>,
        log_probs: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        discrete: bool,
    ) -> PyResult<Self> {
        let actions = ActionArgument::new("actions", actions, discrete)?;
        let (log_probs, values) = (argument("log_probs", log_probs, &REAL)?, argument("values", values, &REAL)?);
        Ok(Self { actions, log_probs, values })
    }

    /// What is to be stored in `buffer`.
    pub(crate) fn read(
        self,
        buffer: &RolloutBuffer,
        num_envs: usize,
        action_shape: &[usize],
    ) -> PyResult<SaidInput<'py>> {
        let actions = self.actions.read(false, num_envs, action_shape)?.apart_from(buffer)?;
        let log_probs = buffer.apart(self.log_probs.read(false)?)?;
        let values = buffer.apart(self.values.read(false)?)?;
        expect_shape("log_probs", log_probs.shape(), num_envs, &[])?;
        expect_shape("values", values.shape(), num_envs, &[])?;
        Ok(SaidInput { actions, log_probs, values })
    }
}

/// What a policy said, as the core wants it.
pub(crate) struct SaidInput<'py> {
    actions: ActionInput<'py>,
    log_probs: Input<'py, f32>,
    values: Input<'py, f32>,
}

impl SaidInput<'_> {
    pub(crate) fn get(&self) -> PolicySaid<'_> {
        PolicySaid { actions: self.actions.get(), log_probs: self.log_probs.slice(), values: self.values.slice() }
    }
}

/// Refuses a normaliser that `buffer.begin` and `buffer.record` would refuse.
#[pyfunction]
pub(crate) fn check_normalizer(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    normalizer: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let Some(normalizer) = normalizer_of(normalizer)? else { return Ok(()) };
    buffer
        .inner
        .with(py, false, |buffer| normalizer.inner.enter(|normalizer| buffer.check_normalizer(Some(normalizer))))
}

/// Refuses what `buffer.record` would refuse of a step before it is made.
#[pyfunction]
pub(crate) fn check_step(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    t: &Bound<'_, PyAny>,
    actions: &Bound<'_, PyAny>,
    log_probs: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    normalizer: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    check_normalizer(py, buffer, normalizer)?;
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let t = index("t", t)?;
    let said = SaidArgument::new(actions, log_probs, values, buffer.discrete)?;
    let said = said.read(buffer, buffer.num_envs, &buffer.action_shape)?;
    let said = said.get();
    buffer.inner.with(py, buffer.long, |buffer| buffer.check_step(t, said, None))
}
