//! Actions for observations, in one call.

use pyo3::prelude::*;
use rlox_core::{FieldData, Normalizer, Result, Space};
use rlox_nn::train::{Encoding, Observations, mask_width};

use super::{Chosen, NativePolicy};
use crate::argument::{Argument, INTEGER, Input, REAL, argument, expect_shape};
use crate::error::{to_py, value_error};
use crate::flags::Flags;
use crate::normalize::normalizer_of;
use crate::seeds::seed_of;
use crate::shared::locked;

/// From how many numbers on a call may take more than 5 us.
const LONG: usize = 64;

/// Observations whose Python code has run.
pub(super) enum Observed<'py> {
    Numbers(Argument<'py, f32>),
    Integers(Argument<'py, i64>),
}

impl<'py> Observed<'py> {
    /// Takes what an encoding is for. May run Python code.
    pub(super) fn new(name: &'static str, encoding: &Encoding, obs: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(match encoding {
            Encoding::Numbers(_) => Self::Numbers(argument(name, obs, &REAL)?),
            Encoding::OneHot(_) => Self::Integers(argument(name, obs, &INTEGER)?),
        })
    }

    pub(super) fn read(self) -> PyResult<Rows<'py>> {
        Ok(match self {
            Self::Numbers(rows) => Rows::Numbers(rows.read(false)?),
            Self::Integers(rows) => Rows::Integers(rows.read(false)?),
        })
    }
}

/// The same, to be looked at.
pub(super) enum Rows<'py> {
    Numbers(Input<'py, f32>),
    Integers(Input<'py, i64>),
}

impl Rows<'_> {
    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Numbers(rows) => rows.shape(),
            Self::Integers(rows) => rows.shape(),
        }
    }

    pub(super) fn data(&self) -> FieldData<'_> {
        match self {
            Self::Numbers(rows) => FieldData::F32(rows.slice()),
            Self::Integers(rows) => FieldData::I64(rows.slice()),
        }
    }
}

/// Who is asked, and what of.
pub(super) struct Asked<'a> {
    pub(super) encoding: &'a Encoding,
    /// The shape of one observation.
    pub(super) obs_shape: &'a [usize],
    pub(super) action: &'a Space,
}

/// Greedy actions, or with a seed samples, `[n, *action_shape]`, or `[*action_shape]` for one observation: as environments
/// take them, Discrete ones with the space's start added, those of a Box inside its bounds. `predict` gives them.
pub(super) fn predict<'py>(
    asked: &Asked<'_>,
    py: Python<'py>,
    obs: &Bound<'py, PyAny>,
    seed: Option<&Bound<'py, PyAny>>,
    action_masks: Option<&Bound<'py, PyAny>>,
    normalizer: Option<&Bound<'py, PyAny>>,
    mut predict: impl FnMut(Observations<'_>, Option<u64>, &mut Chosen) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let Asked { encoding, obs_shape, action } = *asked;
    let normalizer = normalizer_of(normalizer)?;
    let seed = seed.map(seed_of).transpose()?;
    let observed = Observed::new("obs", encoding, obs)?;
    let masks = NativePolicy::masks(py, action_masks)?;
    let rows = observed.read()?;
    let lead = lead_of(rows.shape(), obs_shape)?;
    let n = lead.iter().product();
    let width = mask_width(action).map_err(to_py)?;
    if let Some(masks) = &masks {
        expect_shape("action_masks", masks.shape(), n, &[width])?;
    }
    let masks = masks.as_ref().map(Flags::slice);
    let mut chosen = Chosen::zeroed(action, n).map_err(to_py)?;
    let data = rows.data();
    let mut act = |normalizer: Option<&Normalizer>| {
        predict(Observations { data, encoding, normalizer, masks }, seed, &mut chosen)
    };
    let long = n.saturating_mul(encoding.inputs()) > LONG;
    match normalizer {
        Some(normalizer) => normalizer.inner.with(py, long, |normalizer| act(Some(normalizer))),
        None => locked(py, long, || act(None)),
    }?;
    chosen.into_array(py, &[&lead[..], &action.shape()].concat())
}

/// What comes before the shape of one observation: nothing, or the number of observations.
fn lead_of(got: &[usize], one: &[usize]) -> PyResult<Vec<usize>> {
    if got == one {
        return Ok(Vec::new());
    }
    match got.split_first() {
        Some((n, rest)) if rest == one => Ok(vec![*n]),
        _ => {
            let expected = format!("one observation of shape {one:?} or a batch with one more dimension in front");
            Err(value_error("obs", &expected, &format!("shape {got:?}"), "reshape it"))
        }
    }
}
