//! Samplers: the trait that chooses transitions of a storage, and uniform sampling.

use std::ops::Range;

use super::batch::GoalRelabel;
use super::storage::{ReplayStorage, draw};
use crate::{Error, Field, Pcg64, Result};

/// Chooses transitions of a storage.
pub trait Sampler: Send + Sync {
    /// Writes the numbers of transitions, and their importance weights, `[B]` each. There is at least one to choose from.
    ///
    /// # Errors
    /// Whatever the sampler cannot do, before it wrote anything.
    fn sample_indices(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &mut [usize],
        weights: &mut [f32],
    ) -> Result<()>;

    /// Adds the numbers of transitions whose next observations hold other goals for the first of those that were chosen,
    /// and says which parts of observations goals are; by default there are none.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for them.
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

    /// Whether what it chooses may span several steps.
    fn supports_n_step(&self) -> bool {
        true
    }

    /// Takes notice of what a push has added.
    ///
    /// # Errors
    /// None is expected: the transitions are stored already.
    fn on_push(&mut self, storage: &ReplayStorage, indices: Range<usize>) -> Result<()> {
        let _ = (storage, indices);
        Ok(())
    }

    /// Bytes of memory; none by default.
    fn memory(&self) -> usize {
        0
    }

    /// What it remembers of a storage, as fields of its own names; nothing by default.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it.
    fn state(&self, storage: &ReplayStorage) -> Result<Vec<Field>> {
        let _ = storage;
        Ok(Vec::new())
    }

    /// Forgets all transitions, of a storage that has done so.
    ///
    /// # Errors
    /// None is expected.
    fn clear(&mut self) -> Result<()> {
        Ok(())
    }

    /// Checks what is its own of a state in which `count` transitions can be sampled, and gives its fields' names.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`] or [`Error::Shape`] naming the array that makes no sense.
    fn check_state(&self, count: usize, state: &[Field]) -> Result<Vec<String>> {
        let _ = (count, state);
        Ok(Vec::new())
    }

    /// Takes back a state that was checked, after it was cleared. The storage has taken its own.
    ///
    /// # Errors
    /// None is expected.
    fn load_state(&mut self, storage: &ReplayStorage, state: &[Field]) -> Result<()> {
        let _ = (storage, state);
        Ok(())
    }
}

/// Every transition is as likely as another, and may be chosen several times.
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

/// Checks that so many of `sampleable` transitions can be sampled, where so many are stored.
pub(super) fn check_count(sampleable: usize, stored: usize, batch_size: usize) -> Result<()> {
    if (1..=sampleable).contains(&batch_size) {
        return Ok(());
    }
    let unknown = "next observation is not known yet";
    let requested = batch_size.to_string();
    let (expected, got, hint) = match (sampleable, stored) {
        (0, 0) => ("a buffer with transitions".to_owned(), "an empty one".to_owned(), "push some first"),
        (0, _) => {
            let expected = format!("more than a last row, whose {unknown}");
            (expected, "that row alone".to_owned(), "push on, or pass next_obs")
        }
        _ if sampleable < stored => {
            let expected = format!("1 to {sampleable}, all but the last row, whose {unknown}");
            (expected, requested, "sample fewer, push on, or pass next_obs")
        }
        _ => (format!("1 to {sampleable}, as many as are stored"), requested, "sample fewer, or push more first"),
    };
    Err(Error::config("batch_size", expected, got, hint))
}
