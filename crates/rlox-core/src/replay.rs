//! Replay buffers: transitions that can be sampled more than once.
//!
//! A [`ReplayStorage`] stores transitions, a [`Sampler`] samples indices, and a [`Replay`] combines both.

mod any_sampler;
mod batch;
mod hindsight;
mod mmap;
mod n_step;
mod prioritized;
mod push;
mod sampler;
mod schema;
mod sequence;
mod state;
mod storage;
mod sum_tree;
#[cfg(test)]
mod tests;

pub use any_sampler::AnySampler;
pub use batch::{Column, GoalRelabel, SampleIndices, SampledBatch};
pub use hindsight::{Hindsight, HindsightReplayBuffer, Strategy};
pub use mmap::MmapReplayBuffer;
pub use n_step::NStep;
pub use prioritized::{Prioritized, PrioritizedReplayBuffer};
pub use sampler::{Sampler, Uniform};
pub use schema::{FieldSpec, TransitionBatch, TransitionSchema};
pub use sequence::{SequenceIndices, Sequences};
pub use state::{PersistSampler, SamplerConfig};
pub use storage::ReplayStorage;
pub use sum_tree::SumTree;

use crate::{
    Error, Pcg64, Result,
    field::{DType, FieldData},
};
use sampler::check_count;

/// One transition that owns its memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExperienceRecord {
    /// Observation before the step.
    pub obs: Vec<f32>,
    /// Observation after the step. If the episode ended, this is the final observation.
    pub next_obs: Vec<f32>,
    /// Action of the step.
    pub action: Vec<f32>,
    /// Reward of the step.
    pub reward: f32,
    /// True if the episode reached a terminal state of the task.
    pub terminated: bool,
    /// True if the episode was truncated.
    pub truncated: bool,
}

/// Replay buffer: a [`ReplayStorage`] and a [`Sampler`].
///
/// ```
/// use rlox_core::replay::{ReplayBuffer, SampledBatch};
///
/// let mut buffer = ReplayBuffer::new(1000, 2, 1)?;
/// buffer.push_slices(&[0.0, 0.1], &[0.2, 0.3], &[1.0], 0.5, false, false)?;
/// buffer.push_slices(&[0.2, 0.3], &[0.4, 0.5], &[0.0], 1.5, true, false)?;
/// let mut batch = SampledBatch::default();
/// buffer.sample_into(&mut batch, 2, 7)?;
/// assert_eq!(batch.f32s("obs").len(), 2 * 2);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Replay<S> {
    storage: ReplayStorage,
    sampler: S,
    n_step: Option<NStep>,
}

/// Replay buffer with uniform sampling (Lin 1992; Mnih et al. 2015).
pub type ReplayBuffer = Replay<Uniform>;

impl ReplayBuffer {
    /// Creates a buffer for one environment, with f32 observations and actions of the given sizes.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::new`].
    pub fn new(capacity: usize, obs_dim: usize, act_dim: usize) -> Result<Self> {
        let field = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
        Self::from_parts(
            ReplayStorage::new(capacity, 1, TransitionSchema::new(field("obs", obs_dim), field("actions", act_dim)))?,
            Uniform,
        )
    }
}

impl<S: Sampler> Replay<S> {
    /// Creates a buffer from an empty storage and a sampler.
    ///
    /// # Errors
    /// [`Error::Config`] if the storage is not empty.
    pub fn from_parts(storage: ReplayStorage, sampler: S) -> Result<Self> {
        if storage.is_empty() {
            return Ok(Self { storage, sampler, n_step: None });
        }
        let got = format!("a storage of {} transitions", storage.len());
        Err(Error::config("storage", "an empty storage", got, "pass a new storage"))
    }

    /// Sets n-step returns, with which a sampled transition spans up to `n` steps.
    ///
    /// # Errors
    /// [`Error::Config`] if `n` is 0, if `gamma` is outside [0, 1], or if the sampler does not support n-step returns.
    pub fn with_n_step(mut self, n_step: NStep) -> Result<Self> {
        n_step.check()?;
        if !self.sampler.supports_n_step() {
            let hint = "use n_step = 1, because rewards over several steps depend on the goal";
            return Err(Error::config("n_step", "1 with hindsight", n_step.n.to_string(), hint));
        }
        self.n_step = Some(n_step);
        Ok(self)
    }

    /// Returns the storage.
    pub fn storage(&self) -> &ReplayStorage {
        &self.storage
    }

    /// Returns the sampler.
    pub fn sampler(&self) -> &S {
        &self.sampler
    }

    /// Returns the sampler mutably.
    pub fn sampler_mut(&mut self) -> &mut S {
        &mut self.sampler
    }

    /// Returns the storage, and the sampler mutably.
    pub fn parts_mut(&mut self) -> (&ReplayStorage, &mut S) {
        (&self.storage, &mut self.sampler)
    }

    fn all_mut(&mut self) -> (&mut ReplayStorage, &mut S) {
        (&mut self.storage, &mut self.sampler)
    }

    /// Returns the n-step settings, or `None` for one-step transitions.
    pub fn n_step(&self) -> Option<NStep> {
        self.n_step
    }

    /// Returns the number of stored transitions.
    pub fn len(&self) -> usize {
        self.storage.len()
    }

    /// Returns true if no transitions are stored.
    pub fn is_empty(&self) -> bool {
        self.storage.is_empty()
    }

    /// Returns the number of allocated bytes of the storage ([`ReplayStorage::memory`]) and the
    /// sampler.
    pub fn memory(&self) -> usize {
        self.storage.memory() + self.sampler.memory()
    }

    /// Appends transitions as [`ReplayStorage::push`] does.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::push`].
    pub fn push_batch(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        self.push_with(|storage| storage.push(batch))
    }

    fn push_with(&mut self, push: impl FnOnce(&mut ReplayStorage) -> Result<()>) -> Result<()> {
        let from = self.storage.next_index();
        let pushed = push(&mut self.storage);
        // After an interrupted push, the first rows are stored, and the sampler has to include
        // them.
        self.sampler.on_push(&self.storage, from..self.storage.next_index())?;
        pushed
    }

    /// Appends consecutive steps as [`ReplayStorage::push_in_order`] does.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::push_in_order`].
    pub fn push_in_order(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        self.push_with(|storage| storage.push_in_order(batch))
    }

    /// Appends one transition. The data is copied once, directly into the storage.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::push`].
    pub fn push_slices(
        &mut self,
        obs: &[f32],
        next_obs: &[f32],
        action: &[f32],
        reward: f32,
        terminated: bool,
        truncated: bool,
    ) -> Result<()> {
        self.push_batch(&TransitionBatch {
            obs: &[FieldData::F32(obs)],
            actions: FieldData::F32(action),
            rewards: &[reward],
            terminated: &[terminated],
            truncated: &[truncated],
            next_obs: Some(&[FieldData::F32(next_obs)]),
            extra: &[],
        })
    }

    /// Appends one transition.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::push`].
    pub fn push(&mut self, record: &ExperienceRecord) -> Result<()> {
        let ExperienceRecord { obs, next_obs, action, reward, terminated, truncated } = record;
        self.push_slices(obs, next_obs, action, *reward, *terminated, *truncated)
    }

    /// Samples `batch_size` transitions with a generator of the given seed.
    ///
    /// The same seed samples the same transitions from the same buffer.
    ///
    /// # Errors
    /// The errors of [`Replay::sample_with`].
    pub fn sample_into(&self, batch: &mut SampledBatch, batch_size: usize, seed: u64) -> Result<()> {
        self.sample_with(batch, batch_size, &mut Pcg64::seed_from(seed.into()))
    }

    /// Samples `batch_size` transitions with the given generator.
    ///
    /// # Errors
    /// - [`Error::Config`] if `batch_size` is 0 or exceeds the number of transitions that can be sampled;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, the generator is unchanged, and the batch is empty or unchanged.
    pub fn sample_with(&self, batch: &mut SampledBatch, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        let before = rng.clone();
        let prepared = batch.prepare(self.storage.schema(), batch_size);
        prepared
            .and_then(|()| self.sample_indices(&mut batch.sample_indices, batch_size, rng))
            .and_then(|()| batch.fill_by(|sample_indices, column, out| sample_indices.read(&self.storage, column, out)))
            .inspect_err(|_| {
                batch.clear();
                *rng = before;
            })
    }

    /// Samples the indices of `batch_size` transitions, which [`SampleIndices::read`] can read.
    ///
    /// # Errors
    /// The errors of [`Replay::sample_with`].
    pub fn sample_indices(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        let before = rng.clone();
        self.draw(sample_indices, batch_size, rng)?;
        self.find(sample_indices).inspect_err(|_| *rng = before)
    }

    /// Draws indices, the first part of [`Replay::sample_indices`].
    ///
    /// Only this part uses the generator. Threads that share a generator can release it before they
    /// call [`Replay::find`], the second part.
    ///
    /// # Errors
    /// The errors of [`Replay::sample_with`].
    pub fn draw(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        let before = rng.clone();
        sample_indices.prepare(batch_size)?;
        let SampleIndices { indices, weights, goals, relabel, .. } = sample_indices;
        let drawn = self.sampler.sample_indices(&self.storage, rng, indices, weights);
        let drawn = drawn.and_then(|()| self.sampler.relabel_goals(&self.storage, rng, indices, goals));
        *relabel = drawn.inspect_err(|_| *rng = before)?;
        Ok(())
    }

    /// Finds the stored rows of drawn transitions, the second part of [`Replay::sample_indices`].
    ///
    /// # Errors
    /// - [`Error::Config`] if a transition is no longer stored;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// The indices are cleared after an error.
    pub fn find(&self, sample_indices: &mut SampleIndices) -> Result<()> {
        sample_indices.locate(&self.storage, self.n_step).inspect_err(|_| sample_indices.clear())
    }

    /// Checks that `batch_size` transitions can be sampled.
    ///
    /// # Errors
    /// [`Error::Config`] if `batch_size` is 0 or exceeds the number of transitions that can be sampled.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.storage.indices().len(), self.storage.len(), batch_size)
    }
}
