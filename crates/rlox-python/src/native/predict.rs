//! Actions for observations, in one call.

use pyo3::prelude::*;
use rlox_core::{Error, FieldData, PolicyOut, Space, Watch};
use rlox_nn::train::{Encoding, IterationStreams};

use super::{Chosen, Inner, NativePolicy, of_masks};
use crate::argument::{Argument, INTEGER, Input, REAL, argument};
use crate::error::{to_py, value_error};
use crate::flags::Flags;
use crate::normalize::normalizer_of;
use crate::recycling::zeroed;
use crate::seeds::seed_of;

/// From how many numbers on a call may take more than 5 us.
const LONG: usize = 64;

/// Observations whose actions are chosen at once.
const CHUNK: usize = 1024;

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
    let masks = masks.as_ref().map(Flags::slice);
    let width = masks.map_or(0, <[bool]>::len).checked_div(n).unwrap_or(0);
    let mut chosen = Chosen::zeroed(&this.action, n).map_err(to_py)?;
    let (data, encoding) = (rows.data(), &this.encoding);
    let long = n.saturating_mul(encoding.inputs()) > LONG;
    this.inner.with(py, long, |inner| {
        let Inner { policy, inputs, .. } = inner;
        let mut rngs =
            seed.map_or(Ok(Vec::new()), |seed| IterationStreams::new(seed, n).map(|streams| streams.actions))?;
        let mut watch = Watch::default();
        // So many that memory stays small.
        for from in (0..n).step_by(CHUNK) {
            watch.check()?;
            let to = n.min(from + CHUNK);
            encoding.encode(data, from..to, inputs)?;
            if let Some(normalizer) = normalizer {
                normalizer.inner.enter(|normalizer| normalizer.normalize_obs(inputs))?;
            }
            let masks = masks.map(|masks| &masks[from * width..to * width]);
            let slots = chosen.slots(from * this.action.dim()..to * this.action.dim());
            if seed.is_none() {
                policy.act_deterministic(inputs, masks, slots).map_err(of_masks)?;
                continue;
            }
            let (mut log_probs, mut values) = (zeroed(to - from)?, zeroed(to - from)?);
            let rngs = &mut rngs[from..to];
            policy.draw_noise(rngs);
            let out = PolicyOut { actions: slots, log_probs: &mut log_probs, values: &mut values };
            policy.act(inputs, masks, rngs, out).map_err(of_masks)?;
        }
        Ok(())
    })?;
    send(&this.action, &mut chosen).map_err(to_py)?;
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
