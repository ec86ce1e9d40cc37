//! Actions for observations, in one call.

use pyo3::prelude::*;
use rlox_core::{Error, FieldData, Normalizer, PolicyOut, Space, Watch};
use rlox_nn::train::{Encoding, IterationStreams};

use super::{Chosen, Inner, NativePolicy, of_masks};
use crate::argument::{Argument, INTEGER, Input, REAL, argument, expect_shape};
use crate::error::{to_py, value_error};
use crate::flags::Flags;
use crate::normalize::normalizer_of;
use crate::recycling::zeroed;
use crate::seeds::seed_of;
use crate::shared::locked;

/// From how many numbers on a call may take more than 5 us.
const LONG: usize = 64;

/// Numbers of observations whose actions are chosen at once.
const CHUNK: usize = 1 << 14;

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
    if let Rows::Numbers(rows) = &rows
        && let Some(wrong) = rows.slice().iter().find(|x| !x.is_finite())
    {
        return Err(value_error("obs", "finite numbers", &wrong.to_string(), "look at their source"));
    }
    let width = mask_width(&this.action);
    if let Some(masks) = &masks {
        expect_shape("action_masks", masks.shape(), n, &[width])?;
    }
    let masks = masks.as_ref().map(Flags::slice);
    let mut chosen = Chosen::zeroed(&this.action, n).map_err(to_py)?;
    let (data, encoding, dim) = (rows.data(), &this.encoding, this.action.dim());
    // Few enough that memory stays small.
    let chunk = (CHUNK / encoding.inputs()).max(1);
    let mut act = |normalizer: Option<&Normalizer>| {
        this.inner.enter(|inner| {
            let Inner { policy, inputs, .. } = inner;
            let rngs = seed.map(|seed| IterationStreams::new(seed, n)).transpose()?;
            let (mut rngs, mut watch) = (rngs.map(|streams| streams.actions), Watch::default());
            for from in (0..n).step_by(chunk) {
                watch.check()?;
                let to = n.min(from + chunk);
                encoding.encode(data, from..to, inputs)?;
                normalizer.map_or(Ok(()), |normalizer| normalizer.normalize_obs(inputs))?;
                let masks = masks.map(|masks| &masks[from * width..to * width]);
                let actions = chosen.slots(from * dim..to * dim);
                let Some(rngs) = &mut rngs else {
                    policy.act_deterministic(inputs, masks, actions).map_err(of_masks)?;
                    continue;
                };
                let (mut log_probs, mut values) = (zeroed(to - from)?, zeroed(to - from)?);
                let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
                policy.act_once(inputs, masks, &mut rngs[from..to], out).map_err(of_masks)?;
            }
            Ok(())
        })
    };
    let long = n.saturating_mul(encoding.inputs()) > LONG;
    match normalizer {
        Some(normalizer) => normalizer.inner.with(py, long, |normalizer| act(Some(normalizer))),
        None => locked(py, long, || act(None)),
    }?;
    send(&this.action, &mut chosen).map_err(to_py)?;
    chosen.into_array(py, &[&lead[..], &this.action.shape()].concat())
}

/// How many flags a row of masks has; 0 for actions without.
fn mask_width(space: &Space) -> usize {
    match space {
        Space::Discrete { n, .. } => *n as usize,
        Space::MultiDiscrete { nvec } => nvec.iter().map(|n| *n as usize).sum(),
        Space::MultiBinary { n } => 2 * n,
        Space::Box { .. } => 0,
    }
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

/// Actions as environments take them.
fn send(space: &Space, chosen: &mut Chosen) -> Result<(), Error> {
    match (space, chosen) {
        (Space::Discrete { start, .. }, Chosen::Discrete(actions)) => actions.iter_mut().for_each(|x| *x += start),
        (Space::Box { low, high, .. }, Chosen::Continuous(actions)) => {
            if let Some(wrong) = actions.iter().find(|x| !x.is_finite()) {
                let fix = "go back to a checkpoint, and lower learning_rate";
                return Err(Error::config("actions", "finite numbers", wrong.to_string(), fix));
            }
            for row in actions.chunks_exact_mut(low.len()) {
                row.iter_mut().zip(low.iter().zip(high)).for_each(|(x, (low, high))| *x = x.clamp(*low, *high));
            }
        }
        _ => {}
    }
    Ok(())
}
