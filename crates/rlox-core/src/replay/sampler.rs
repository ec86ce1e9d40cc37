//! The trait of samplers, and uniform sampling.

use std::ops::Range;

use super::batch::GoalRelabel;
use super::storage::{ReplayStorage, draw};
use crate::{Error, Pcg64, Result, field::Field};

/// Strategy that selects transitions of a storage.
pub trait Sampler: Send + Sync {
    /// Draws transitions: writes their indices and their importance weights, `[B]` each.
    ///
    /// At least one transition can be sampled when this method is called.
    ///
    /// # Errors
    /// Any error of the sampler. The contents of `indices` and `weights` are unspecified after an
    /// error.
    fn sample_indices(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &mut [usize],
        weights: &mut [f32],
    ) -> Result<()>;

    /// Appends to `goals` the indices of transitions whose next observations provide new goals.
    ///
    /// Element i of `goals` belongs to element i of `indices`. Returns the observation fields that
    /// hold goals. The default implementation returns `None`, because it relabels no goals.
    ///
    /// # Errors
    /// [`Error::Memory`] if an allocation fails. [`Error::Interrupted`] if the interrupt check of
    /// the process stops the call.
    fn relabel_goals(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &[usize],
        goals: &mut Vec<usize>,
    ) -> Result<Option<GoalRelabel>> {
        let _ = (storage, rng, indices, goals);
        Ok(None)
    }

    /// Returns true if sampled transitions may span several steps.
    fn supports_n_step(&self) -> bool {
        true
    }

    /// Updates the sampler after a push of the given transitions.
    ///
    /// # Errors
    /// Implementations should return no error, because the transitions are already stored.
    fn on_push(&mut self, storage: &ReplayStorage, indices: Range<usize>) -> Result<()> {
        let _ = (storage, indices);
        Ok(())
    }

    /// Returns the number of allocated bytes. The default is 0.
    fn memory(&self) -> usize {
        0
    }

    /// Returns the sampler's state as named fields. By default, there are no fields.
    ///
    /// # Errors
    /// [`Error::Memory`] if an allocation fails.
    fn state(&self, storage: &ReplayStorage) -> Result<Vec<Field>> {
        let _ = storage;
        Ok(Vec::new())
    }

    /// Removes the state of all transitions, after the storage was cleared.
    ///
    /// # Errors
    /// Implementations should return no error.
    fn clear(&mut self) -> Result<()> {
        Ok(())
    }

    /// Checks the sampler's fields of a state, and returns the names of these fields.
    ///
    /// `count` is the number of transitions in the state that can be sampled.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`] or [`Error::Shape`] if a field is invalid. The error
    /// names the field.
    fn check_state(&self, count: usize, state: &[Field]) -> Result<Vec<String>> {
        let _ = (count, state);
        Ok(Vec::new())
    }

    /// Loads a checked state into a cleared sampler. The storage has already loaded its state.
    ///
    /// # Errors
    /// Implementations should return no error.
    fn load_state(&mut self, storage: &ReplayStorage, state: &[Field]) -> Result<()> {
        let _ = (storage, state);
        Ok(())
    }
}

/// Uniform sampling with replacement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uniform;

impl Sampler for Uniform {
    fn sample_indices(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &mut [usize],
        weights: &mut [f32],
    ) -> Result<()> {
        draw(&storage.indices(), rng, indices);
        weights.fill(1.0);
        Ok(())
    }
}

/// Checks that `batch_size` is at least 1 and at most `sampleable`.
///
/// `sampleable` and `stored` are the numbers of transitions that can be sampled and that are
/// stored.
pub(super) fn check_count(sampleable: usize, stored: usize, batch_size: usize) -> Result<()> {
    if (1..=sampleable).contains(&batch_size) {
        return Ok(());
    }
    let unknown = "next observation is unknown";
    let requested = batch_size.to_string();
    let (expected, got, hint) = match (sampleable, stored) {
        (0, 0) => ("a buffer with transitions".to_owned(), "an empty buffer".to_owned(), "push transitions first"),
        (0, _) => {
            let expected = format!("rows besides the last one, whose {unknown}");
            (expected, "only the last row".to_owned(), "push more rows, or pass next_obs")
        }
        _ if sampleable < stored => {
            let expected = format!("1 to {sampleable}: all rows except the last one, whose {unknown}");
            (expected, requested, "use a smaller batch_size, push more rows, or pass next_obs")
        }
        _ => {
            let expected = format!("1 to {sampleable}, the number of stored transitions");
            (expected, requested, "use a smaller batch_size, or push more transitions")
        }
    };
    Err(Error::config("batch_size", expected, got, hint))
}
