//! Pushes of the usual case, arrays that lie as the buffer takes them, which takes half the time of all that is allowed.

use numpy::{Element, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use rlox_core::replay::{Layout, Part, Steps};
use rlox_core::{DType, FieldData};

use super::buffer::{Buffer, LONG, Transition, of_action};
use super::parts::key_of;
use super::source::Source;
use crate::argument::is_subclassed;
use crate::array::{Elements, Kind, typed};
use crate::detach::alone;

impl<B: Source> Buffer<B> {
    /// `push` of float32 arrays of the right shapes beside a float and two bools; none of anything else.
    pub(super) fn push_arrays(&self, py: Python<'_>, given: &Transition<'_, '_>) -> Option<PyResult<()>> {
        let Self { layout: Layout { obs: parts, action, extra, .. }, num_envs: 1, .. } = self else { return None };
        let (false, [part], [], None) = (B::WAITS, &**parts, &**extra, given.extra) else { return None };
        if self.width > LONG || !alone(py) {
            return None;
        }
        let (obs, action) = (row(given.obs, part, None)?, row(given.action, action, None)?);
        let next_obs = given.next_obs.map(|next| row(next, part, None).ok_or(())).transpose().ok()?;
        let flag = |flag: &Bound<'_, PyAny>| flag.cast::<PyBool>().map(PyBoolMethods::is_true).ok();
        let rewards = [given.reward.cast_exact::<PyFloat>().ok()?.value() as f32];
        let (terminated, truncated) = ([flag(given.terminated)?], [flag(given.truncated)?]);
        let next_obs = next_obs.as_ref().map(|next| [FieldData::F32(next.slice())]);
        let steps = Steps {
            obs: &[FieldData::F32(obs.slice())],
            actions: FieldData::F32(action.slice()),
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            next_obs: next_obs.as_ref().map(|next| &next[..]),
            extra: &[],
        };
        Some(
            self.inner
                .write(py, false, |buffer| buffer.push(&steps, false).map_err(|error| self.name(of_action(error)))),
        )
    }

    /// `push_batch` of float32 and bool arrays of the right shapes; none of anything else.
    pub(super) fn push_array_batch(
        &self,
        py: Python<'_>,
        given: &Transition<'_, '_>,
        in_order: bool,
    ) -> Option<PyResult<()>> {
        let Layout { obs: parts, action, extra, .. } = &self.layout;
        let (false, [part], [], None) = (B::WAITS, &**parts, &**extra, given.extra) else { return None };
        let rewards = flat::<f32>(given.reward)?;
        let rows = rewards.slice().len();
        if rows.saturating_mul(self.width) > LONG || !alone(py) {
            return None;
        }
        let (obs, actions) = (row(given.obs, part, Some(rows))?, row(given.action, action, Some(rows))?);
        let next_obs = given.next_obs.map(|next| row(next, part, Some(rows)).ok_or(())).transpose().ok()?;
        let (terminated, truncated) = (flat::<bool>(given.terminated)?, flat::<bool>(given.truncated)?);
        if terminated.slice().len() != rows || truncated.slice().len() != rows {
            return None;
        }
        let next_obs = next_obs.as_ref().map(|next| [FieldData::F32(next.slice())]);
        let steps = Steps {
            obs: &[FieldData::F32(obs.slice())],
            actions: FieldData::F32(actions.slice()),
            rewards: rewards.slice(),
            terminated: terminated.slice(),
            truncated: truncated.slice(),
            next_obs: next_obs.as_ref().map(|next| &next[..]),
            extra: &[],
        };
        Some(self.inner.write(py, false, |buffer| buffer.push(&steps, in_order).map_err(|error| self.name(error))))
    }
}

/// The numbers of an array of the part's dtype and shape, or of so many rows of it, float32, as they lie; none of any other
/// object.
fn row<'py>(object: &Bound<'py, PyAny>, part: &Part, rows: Option<usize>) -> Option<Elements<'py, f32>> {
    let usual = |_: &&_| part.dtype == DType::F32 && key_of(part).is_none() && !is_subclassed(object);
    let array = typed::<f32>(object).filter(usual)?;
    // Compared in place: a call for a few numbers takes longer than they do.
    array.shape().iter().eq(rows.iter().chain(&part.shape)).then(|| Elements::of(array)).flatten()
}

/// What an array of one axis holds, as it lies; none of any other object.
fn flat<'py, T: Kind + Element + 'static>(object: &Bound<'py, PyAny>) -> Option<Elements<'py, T>> {
    let array = typed::<T>(object).filter(|_| !is_subclassed(object))?;
    (array.ndim() == 1).then(|| Elements::of(array)).flatten()
}
