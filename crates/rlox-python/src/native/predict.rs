//! Actions for observations, in one call.

use pyo3::prelude::*;
use rlox_core::{FieldData, Normalizer};
use rlox_nn::train::{Encoding, Observations, mask_width, predict_actions};

use super::{Chosen, Inner, NativePolicy, of_masks};
use crate::argument::{Argument, INTEGER, Input, REAL, argument, expect_shape};
use crate::error::{to_py, value_error};
use crate::flags::Flags;
use crate::normalize::normalizer_of;
use crate::seeds::seed_of;
use crate::shared::locked;

/// From how many numbers on a call may take more than 5 us.
const LONG: usize = 64;

/// Observations whose Python code has run.
enum Observed<'py> {
    Numbers(Argument<'py, f32>),
    Integers(Argument<'py, i64>),
}

/// The same, to be looked at.
enum Rows<'py> {
    Numbers(Input<'py, f32>),
    Integers(Input<'py, i64>),
}

impl Rows<'_> {
    fn shape(&self) -> &[usize] {
        match self {
            Self::Numbers(rows) => rows.shape(),
            Self::Integers(rows) => rows.shape(),
        }
    }

    fn data(&self) -> FieldData<'_> {
        match self {
            Self::Numbers(rows) => FieldData::F32(rows.slice()),
            Self::Integers(rows) => FieldData::I64(rows.slice()),
        }
    }
}

/// Greedy actions, or with a seed samples, `[n, *action_shape]`, or `[*action_shape]` for one observation: as environments
/// take them, Discrete ones with the space's start added, those of a Box inside its bounds.
pub(super) fn predict<'py>(
    this: &NativePolicy,
    py: Python<'py>,
    obs: &Bound<'py, PyAny>,
    seed: Option<&Bound<'py, PyAny>>,
    action_masks: Option<&Bound<'py, PyAny>>,
    normalizer: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let normalizer = normalizer_of(normalizer)?;
    let seed = seed.map(seed_of).transpose()?;
    let observed = match this.encoding {
        Encoding::Numbers(_) => Observed::Numbers(argument("obs", obs, &REAL)?),
        Encoding::OneHot(_) => Observed::Integers(argument("obs", obs, &INTEGER)?),
    };
    let masks = NativePolicy::masks(py, action_masks)?;
    let rows = match observed {
        Observed::Numbers(rows) => Rows::Numbers(rows.read(false)?),
        Observed::Integers(rows) => Rows::Integers(rows.read(false)?),
    };
    let lead = lead_of(rows.shape(), &this.obs_shape)?;
    let n = lead.iter().product();
    let width = mask_width(&this.action).map_err(to_py)?;
    if let Some(masks) = &masks {
        expect_shape("action_masks", masks.shape(), n, &[width])?;
    }
    let masks = masks.as_ref().map(Flags::slice);
    let mut chosen = Chosen::zeroed(&this.action, n).map_err(to_py)?;
    let (data, encoding) = (rows.data(), &this.encoding);
    let mut act = |normalizer: Option<&Normalizer>| {
        this.inner.enter(|inner| {
            let Inner { policy, inputs, .. } = inner;
            let obs = Observations { data, encoding, normalizer, masks };
            predict_actions(policy.as_mut(), obs, seed, &this.action, inputs, chosen.all()).map_err(of_masks)
        })
    };
    let long = n.saturating_mul(encoding.inputs()) > LONG;
    match normalizer {
        Some(normalizer) => normalizer.inner.with(py, long, |normalizer| act(Some(normalizer))),
        None => locked(py, long, || act(None)),
    }?;
    chosen.into_array(py, &[&lead[..], &this.action.shape()].concat())
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
