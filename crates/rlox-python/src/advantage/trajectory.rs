//! Arguments that all functions of trajectories have: shapes, episode ends and the last value.

use num_traits::AsPrimitive;
use numpy::{Element, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use rlox_core::advantage::{EpisodeEnds, Float};

use crate::convert::args::{Argument, Input, Like, REAL, argument_like, expect_like};
use crate::convert::array::FromArray;
use crate::convert::flags::{FlagArgument, Flags, flag_argument_like};
use crate::error::{type_error, value_error};

/// Returns the requirement that an argument has the same shape as `rewards`.
pub(crate) fn like<'a, 'py>(rewards: &'a Bound<'py, PyUntypedArray>) -> Like<'a, 'py> {
    Like { name: "rewards", array: rewards, skipped: 0 }
}

/// Tuple of two result arrays.
pub(crate) type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Flags of episode ends, converted but not yet read: `dones`, or `terminated` and `truncated`.
pub(crate) struct EpisodeEndsArgument<'py> {
    /// Name of the argument in `terminated`: "dones" or "terminated".
    name: &'static str,
    terminated: FlagArgument<'py>,
    truncated: Option<FlagArgument<'py>>,
}

impl<'py> EpisodeEndsArgument<'py> {
    /// Converts the flags, which must have the shape of `rewards`. May run Python code.
    pub(crate) fn new(
        dones: Option<&Bound<'py, PyAny>>,
        terminated: Option<&Bound<'py, PyAny>>,
        truncated: Option<&Bound<'py, PyAny>>,
        rewards: &Bound<'py, PyUntypedArray>,
    ) -> PyResult<Self> {
        let flag_argument = |name, flags| flag_argument_like(name, flags, Some(like(rewards)));
        match (dones, terminated, truncated) {
            (None, Some(terminated), truncated) => Ok(Self {
                name: "terminated",
                terminated: flag_argument("terminated", terminated)?,
                truncated: truncated.map(|flags| flag_argument("truncated", flags)).transpose()?,
            }),
            (Some(dones), None, None) => {
                Ok(Self { name: "dones", terminated: flag_argument("dones", dones)?, truncated: None })
            }
            (dones, _, _) => {
                let got = if dones.is_some() { "both of them" } else { "neither of them" };
                let fix = "pass dones=None together with terminated= and truncated=";
                Err(type_error("dones", "either dones, or terminated (and truncated)", got, fix))
            }
        }
    }

    pub(crate) fn read(self, py: Python<'py>, hold: bool) -> PyResult<EndFlags<'py>> {
        let truncated = self.truncated.map(|flags| flags.read(py, hold)).transpose()?;
        Ok(EndFlags { name: self.name, terminated: self.terminated.read(py, hold)?, truncated })
    }
}

pub(crate) struct EndFlags<'py> {
    name: &'static str,
    terminated: Flags<'py>,
    truncated: Option<Flags<'py>>,
}

/// Value of the state after the last step: one number, or one per environment.
pub(crate) enum LastValue<'py, T> {
    One(&'static str, T),
    Each(Argument<'py, T>),
}

impl<'py, T: FromArray + Float> LastValue<'py, T>
where
    f64: AsPrimitive<T>,
{
    pub(crate) fn new(
        name: &'static str,
        object: &Bound<'py, PyAny>,
        rewards: &Bound<'py, PyUntypedArray>,
    ) -> PyResult<Self> {
        if let Ok(float) = object.cast::<PyFloat>() {
            return Ok(Self::One(name, float.value().as_()));
        }
        let like = Like { name: "one row of rewards", array: rewards, skipped: 1 };
        Ok(Self::Each(argument_like(name, object, &REAL, Some(like))?))
    }
}

impl<T: FromArray> LastValue<'_, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(..) => 1,
            Self::Each(argument) => argument.len(),
        }
    }
}

/// Shape of `rewards`, which all arrays with one number per step must have.
#[derive(Clone, Copy)]
pub(crate) struct TrajectoryShape<'a> {
    pub(crate) shape: &'a [usize],
    /// Number of environments of a (T, N) array; `None` for a single trajectory of shape (T,).
    pub(crate) num_envs: Option<usize>,
}

impl<'a> TrajectoryShape<'a> {
    pub(crate) fn from_shape(shape: &'a [usize]) -> PyResult<Self> {
        let num_envs = match shape {
            [_] => None,
            [_, num_envs] => Some(*num_envs),
            _ => return Err(value_error("rewards", "shape (T,) or (T, N)", &format!("{shape:?}"), "reshape it")),
        };
        Ok(Self { shape, num_envs })
    }

    pub(crate) fn expect_same(&self, name: &str, got: &[usize]) -> PyResult<()> {
        expect_like(name, got, "rewards", self.shape)
    }

    /// Returns true if any argument has more than `limit` elements.
    ///
    /// The call then releases the GIL, and all shapes are checked here, because reading a long
    /// argument of a wrong shape would waste time. Otherwise, the shape of each argument is checked
    /// when it is read.
    pub(crate) fn is_long<T: FromArray>(
        &self,
        limit: usize,
        arguments: &[Option<&Argument<'_, T>>],
        ends: &EpisodeEndsArgument<'_>,
        last: Option<&LastValue<'_, T>>,
    ) -> PyResult<bool> {
        let is_long = |shape: &[usize]| shape.iter().product::<usize>() > limit;
        let long = is_long(self.shape)
            || arguments.iter().flatten().any(|argument| argument.len() > limit)
            || is_long(ends.terminated.shape())
            || ends.truncated.as_ref().is_some_and(|truncated| is_long(truncated.shape()))
            || last.is_some_and(|last| last.len() > limit);
        if long {
            arguments.iter().flatten().try_for_each(|argument| self.expect_same(argument.name(), argument.shape()))?;
            self.expect_same(ends.name, ends.terminated.shape())?;
            if let Some(truncated) = &ends.truncated {
                self.expect_same("truncated", truncated.shape())?;
            }
            if let Some(LastValue::Each(last)) = last {
                self.expect_last(last.name(), last.shape())?;
            }
        }
        Ok(long)
    }

    fn expect_last(&self, name: &str, got: &[usize]) -> PyResult<()> {
        let fits = self.num_envs.map_or_else(|| got.iter().product::<usize>() == 1, |n| got == [n]);
        if fits {
            return Ok(());
        }
        let expected = self.num_envs.map_or_else(|| "a single number".into(), |n| format!("shape ({n},)"));
        let got = format!("shape {got:?}");
        Err(value_error(name, &expected, &got, "pass V of the state after the last step"))
    }

    /// Reads an argument and checks that it has the shape of `rewards`.
    pub(crate) fn read<'py, T: FromArray>(&self, argument: Argument<'py, T>, hold: bool) -> PyResult<Input<'py, T>> {
        let name = argument.name();
        let input = argument.read(hold)?;
        self.expect_same(name, input.shape())?;
        Ok(input)
    }

    pub(crate) fn episode_ends<'b, T: Element + 'static>(
        &self,
        flags: &'b EndFlags<'_>,
        final_values: Option<&'b Input<'_, T>>,
    ) -> PyResult<EpisodeEnds<'b, T>> {
        self.expect_same(flags.name, flags.terminated.shape())?;
        if let Some(truncated) = &flags.truncated {
            self.expect_same("truncated", truncated.shape())?;
        }
        Ok(EpisodeEnds {
            terminated: flags.terminated.slice(),
            truncated: flags.truncated.as_ref().map(Flags::slice),
            final_values: final_values.map(Input::slice),
        })
    }

    /// Reads the values after the last step: one number, or one per environment.
    pub(crate) fn last<'py, T: FromArray>(&self, last: LastValue<'py, T>, hold: bool) -> PyResult<Last<'py, T>> {
        let (name, last) = match last {
            LastValue::One(_, number) if self.num_envs.is_none() => return Ok(Last::One([number])),
            LastValue::One(name, number) => (name, Input::Owned(vec![number], Vec::new())),
            LastValue::Each(argument) => (argument.name(), argument.read(hold)?),
        };
        self.expect_last(name, last.shape())?;
        Ok(Last::Each(last))
    }
}

pub(crate) enum Last<'py, T: Element> {
    One([T; 1]),
    Each(Input<'py, T>),
}

impl<T: Element + 'static> Last<'_, T> {
    pub(crate) fn slice(&self) -> &[T] {
        match self {
            Self::One(number) => number,
            Self::Each(input) => input.slice(),
        }
    }
}
