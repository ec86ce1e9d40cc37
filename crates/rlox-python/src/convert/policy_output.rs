//! Conversion of a policy's output: actions, log-probabilities and values.

use pyo3::prelude::*;
use rlox_core::{Actions, rollout::PolicyStep};

use crate::convert::args::{Argument, INTEGER, Input, REAL, argument, asarray, expect_shape};
use crate::convert::array::{FieldMemory, beyond_f32, no_copy};
use crate::error::value_error;
use crate::sync::borrow::{DisjointBorrows, typed};

/// Action argument that is converted but not yet read; see [`crate::convert::args`].
pub(crate) enum ActionArgument<'py> {
    Discrete(Argument<'py, i64>),
    Continuous(Argument<'py, f32>),
}

impl<'py> ActionArgument<'py> {
    /// Converts the argument `name`: to integers if `discrete` is true, otherwise to real numbers.
    ///
    /// The conversion may run Python code.
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

    /// Adds the memory of the actions to `borrows`; returns true if it overlaps no other array.
    pub(crate) fn is_disjoint(&self, borrows: &mut DisjointBorrows) -> bool {
        match self {
            Self::Discrete(actions) => borrows.try_add(actions.memory()),
            Self::Continuous(actions) => borrows.try_add(actions.memory()),
        }
    }

    /// Returns the length of the first axis.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Discrete(actions) => actions.rows(),
            Self::Continuous(actions) => actions.rows(),
        }
    }

    /// Reads actions of shape `[rows, *shape]`; see [`Argument::read`].
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

/// Elements of an action argument.
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

    fn copy_if_overlapping(self, fields: &[(String, FieldMemory)]) -> PyResult<Self> {
        Ok(match self {
            Self::Discrete(array) => Self::Discrete(array.copy_if_overlapping(fields)?),
            Self::Continuous(array) => Self::Continuous(array.copy_if_overlapping(fields)?),
        })
    }
}

/// Policy output of one step that is converted but not yet read; see [`crate::convert::args`].
pub(crate) struct PolicyStepArgument<'py> {
    actions: ActionArgument<'py>,
    log_probs: Argument<'py, f32>,
    values: Argument<'py, f32>,
}

impl<'py> PolicyStepArgument<'py> {
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

    /// Reads the output before it is stored in a buffer with these fields.
    ///
    /// Arrays that overlap the memory of a field are copied, because storing the step writes to it.
    pub(crate) fn read(
        self,
        fields: &[(String, FieldMemory)],
        num_envs: usize,
        action_shape: &[usize],
    ) -> PyResult<PolicyStepInput<'py>> {
        let actions = self.actions.read(false, num_envs, action_shape)?.copy_if_overlapping(fields)?;
        let log_probs = self.log_probs.read(false)?.copy_if_overlapping(fields)?;
        let values = self.values.read(false)?.copy_if_overlapping(fields)?;
        expect_shape("log_probs", log_probs.shape(), num_envs, &[])?;
        expect_shape("values", values.shape(), num_envs, &[])?;
        Ok(PolicyStepInput { actions, log_probs, values })
    }
}

/// Elements of the policy output of one step.
pub(crate) struct PolicyStepInput<'py> {
    actions: ActionInput<'py>,
    log_probs: Input<'py, f32>,
    values: Input<'py, f32>,
}

impl PolicyStepInput<'_> {
    pub(crate) fn get(&self) -> PolicyStep<'_> {
        PolicyStep { actions: self.actions.get(), log_probs: self.log_probs.slice(), values: self.values.slice() }
    }
}
