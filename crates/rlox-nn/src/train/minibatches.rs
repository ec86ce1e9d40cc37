//! The rows of a rollout that are transitions, and those of a minibatch, side by side.

use std::ops::Range;

use rlox_core::{Actions, Error, Field, FieldData, Pcg64, Result, RolloutBuffer, Watch};

use super::Encoding;
use super::corrected::Corrected;
use crate::Minibatch;
use crate::losses::explained_variance;
use crate::room::make_room;

/// Memory for minibatches of rollouts, to be used again.
#[derive(Debug)]
pub struct Minibatches {
    encoding: Encoding,
    /// The numbers of the rows, in the order of this epoch.
    pub(super) index: Vec<usize>,
    obs: Vec<f32>,
    discrete: Vec<i64>,
    continuous: Vec<f32>,
    masks: Vec<bool>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    pub(super) advantages: Vec<f32>,
    returns: Vec<f32>,
    /// Where targets are not those of the rollout.
    pub(super) corrected: Corrected,
}

/// A field of f32.
pub(super) fn numbers<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [f32] {
    match buffer.field(name).map(Field::data) {
        Some(FieldData::F32(numbers)) => numbers,
        _ => &[],
    }
}

impl Minibatches {
    /// None yet, of observations that become inputs in this way.
    pub fn new(encoding: Encoding) -> Self {
        let [obs, continuous, log_probs, values, advantages, returns] = Default::default();
        let (index, discrete, masks, corrected) = Default::default();
        Self { encoding, index, obs, discrete, continuous, masks, log_probs, values, advantages, returns, corrected }
    }

    /// How observations become inputs.
    pub(super) fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// All transitions in their own order.
    ///
    /// # Errors
    /// [`Error::Config`] for a rollout that is not finished, or has none.
    pub(super) fn all(&mut self, buffer: &RolloutBuffer) -> Result<()> {
        if !buffer.is_finished() || buffer.transitions() == 0 {
            let got = if buffer.is_finished() { "one of resets alone" } else { "one that is not" };
            return Err(Error::config("buffer", "a finished rollout with transitions", got, "collect one first"));
        }
        self.index.clear();
        make_room("batch_size", &mut self.index, buffer.transitions())?;
        if let Some(FieldData::Bool(valid)) = buffer.field("valid").map(Field::data) {
            self.index.extend(valid.iter().enumerate().filter(|(_, valid)| **valid != 0).map(|(row, _)| row));
        }
        Ok(())
    }

    /// A new random order (Fisher and Yates); false where `stop` ended it.
    pub(super) fn shuffle(&mut self, rng: &mut Pcg64, stop: &mut dyn FnMut() -> bool) -> bool {
        for i in (1..self.index.len()).rev() {
            if i.is_multiple_of(Watch::STRETCH) && stop() {
                return false;
            }
            let j = rng.integers(0, i as i64 + 1) as usize;
            self.index.swap(i, j);
        }
        true
    }

    /// Copies the rows of this epoch.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where `stop` says so; [`Error::Shape`] for observations of another width, [`Error::Memory`],
    /// and those of [`Encoding::encode`].
    pub(super) fn gather(
        &mut self,
        buffer: &RolloutBuffer,
        rows: Range<usize>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let index = &self.index[rows];
        if let Some(obs) = buffer.field("obs") {
            self.encoding.check(obs)?;
            let width = self.encoding.inputs();
            self.obs.clear();
            make_room("batch_size", &mut self.obs, index.len().saturating_mul(width))?;
            for rows in index.chunks((Watch::STRETCH / width.max(1)).max(1)) {
                if stop() {
                    return Err(Error::Interrupted);
                }
                self.encoding.append(obs.data(), rows.iter().copied(), &mut self.obs)?;
            }
        }
        for (name, out) in [
            ("log_probs", &mut self.log_probs),
            ("values", &mut self.values),
            ("advantages", &mut self.advantages),
            ("returns", &mut self.returns),
        ] {
            take(index, numbers(buffer, name), 1, out)?;
        }
        // Those of a former rollout may have been of the other kind.
        self.discrete.clear();
        self.continuous.clear();
        if let Some(field) = buffer.field("actions") {
            match field.data() {
                FieldData::F32(actions) => take(index, actions, field.width(), &mut self.continuous)?,
                FieldData::I64(actions) => take(index, actions, field.width(), &mut self.discrete)?,
                _ => {}
            }
        }
        self.masks.clear();
        if let Some(field) = buffer.field("action_masks")
            && let FieldData::Bool(masks) = field.data()
        {
            make_room("batch_size", &mut self.masks, index.len() * field.width())?;
            let rows = index.iter().flat_map(|row| &masks[row * field.width()..][..field.width()]);
            self.masks.extend(rows.map(|flag| *flag != 0));
        }
        Ok(())
    }

    /// What was gathered.
    pub(super) fn minibatch(&self) -> Minibatch<'_> {
        let discrete = self.continuous.is_empty();
        Minibatch {
            obs: &self.obs,
            actions: if discrete { Actions::Discrete(&self.discrete) } else { Actions::Continuous(&self.continuous) },
            masks: (!self.masks.is_empty()).then_some(&self.masks[..]),
            log_probs: &self.log_probs,
            values: &self.values,
            advantages: &self.advantages,
            returns: &self.returns,
        }
    }

    /// How much of the returns the values explained, over all transitions.
    pub(super) fn explained_variance(&mut self, buffer: &RolloutBuffer) -> Result<f32> {
        self.all(buffer)?;
        take(&self.index, numbers(buffer, "values"), 1, &mut self.values)?;
        take(&self.index, numbers(buffer, "returns"), 1, &mut self.returns)?;
        explained_variance(&self.values, &self.returns)
    }
}

fn take<T: Copy>(index: &[usize], from: &[T], width: usize, out: &mut Vec<T>) -> Result<()> {
    out.clear();
    make_room("batch_size", out, index.len().saturating_mul(width))?;
    for row in index {
        out.extend_from_slice(&from[row * width..][..width]);
    }
    Ok(())
}
