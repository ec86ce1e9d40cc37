//! Replay: transitions that are learned from more than once.
//!
//! [`ReplayStorage`] holds them, a [`Sampler`] chooses among them, and [`Replay`] is a buffer of both.

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

use crate::{DType, Error, FieldData, Pcg64, Result};
use sampler::check_count;

/// One transition, with memory of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExperienceRecord {
    /// The observation.
    pub obs: Vec<f32>,
    /// The one after it: of an episode that ended its last.
    pub next_obs: Vec<f32>,
    /// The action.
    pub action: Vec<f32>,
    /// The reward.
    pub reward: f32,
    /// The task itself ended.
    pub terminated: bool,
    /// The episode was cut.
    pub truncated: bool,
}

/// A replay buffer: a [`ReplayStorage`] and a [`Sampler`].
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

/// A replay buffer that samples uniformly (Lin 1992; Mnih et al. 2015).
pub type ReplayBuffer = Replay<Uniform>;

impl ReplayBuffer {
    /// A buffer of one environment's transitions: observations of `obs_dim` and actions of `act_dim` f32.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::new`].
    pub fn new(capacity: usize, obs_dim: usize, act_dim: usize) -> Result<Self> {
        let field = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
        Self::from_parts(
            ReplayStorage::new(capacity, 1, TransitionSchema::new(field("obs", obs_dim), field("actions", act_dim)))?,
            Uniform,
        )
    }
}

impl<S: Sampler> Replay<S> {
    /// A buffer of an empty storage and a sampler.
    ///
    /// # Errors
    /// [`Error::Config`] if the storage is not empty.
    pub fn from_parts(storage: ReplayStorage, sampler: S) -> Result<Self> {
        if storage.is_empty() {
            return Ok(Self { storage, sampler, n_step: None });
        }
        let got = format!("one of {} transitions", storage.len());
        Err(Error::config("storage", "an empty storage", got, "give the buffer a storage of its own"))
    }

    /// The same, whose transitions span several steps.
    ///
    /// # Errors
    /// [`Error::Config`] for no steps or a discount outside of [0, 1].
    pub fn with_n_step(mut self, n_step: NStep) -> Result<Self> {
        n_step.check()?;
        if !self.sampler.supports_n_step() {
            let hint = "sample single steps: rewards over several ones depend on a goal, and on what was done for it";
            return Err(Error::config("n_step", "1 with hindsight", n_step.n.to_string(), hint));
        }
        self.n_step = Some(n_step);
        Ok(self)
    }

    /// What holds the transitions.
    pub fn storage(&self) -> &ReplayStorage {
        &self.storage
    }

    /// What chooses.
    pub fn sampler(&self) -> &S {
        &self.sampler
    }

    /// The same, to be told something.
    pub fn sampler_mut(&mut self) -> &mut S {
        &mut self.sampler
    }

    /// What holds the transitions, and what chooses, to be told something of them.
    pub fn parts_mut(&mut self) -> (&ReplayStorage, &mut S) {
        (&self.storage, &mut self.sampler)
    }

    fn all_mut(&mut self) -> (&mut ReplayStorage, &mut S) {
        (&mut self.storage, &mut self.sampler)
    }

    /// How many steps transitions span; `None` for one.
    pub fn n_step(&self) -> Option<NStep> {
        self.n_step
    }

    /// How many transitions are held.
    pub fn len(&self) -> usize {
        self.storage.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.storage.is_empty()
    }

    /// Bytes of memory so far: those of [`ReplayStorage::memory`], and the sampler's.
    pub fn memory(&self) -> usize {
        self.storage.memory() + self.sampler.memory()
    }

    /// Adds what [`ReplayStorage::push`] adds.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::push`].
    pub fn push_batch(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        self.push_with(|storage| storage.push(batch))
    }

    fn push_with(&mut self, push: impl FnOnce(&mut ReplayStorage) -> Result<()>) -> Result<()> {
        let from = self.storage.next_index();
        let pushed = push(&mut self.storage);
        // Some of the rows are there if it was told to stop.
        self.sampler.on_push(&self.storage, from..self.storage.next_index())?;
        pushed
    }

    /// Adds what [`ReplayStorage::push_in_order`] adds.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::push_in_order`].
    pub fn push_in_order(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        self.push_with(|storage| storage.push_in_order(batch))
    }

    /// Adds one transition, without a copy beside the one into the ring.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::push`].
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

    /// Adds one transition.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::push`].
    pub fn push(&mut self, record: &ExperienceRecord) -> Result<()> {
        let ExperienceRecord { obs, next_obs, action, reward, terminated, truncated } = record;
        self.push_slices(obs, next_obs, action, *reward, *terminated, *truncated)
    }

    /// Samples `batch_size` transitions with what `seed` draws. The same seed gives the same transitions of the same
    /// buffer.
    ///
    /// # Errors
    /// Those of [`Replay::sample_with`].
    pub fn sample_into(&self, batch: &mut SampledBatch, batch_size: usize, seed: u64) -> Result<()> {
        self.sample_with(batch, batch_size, &mut Pcg64::seed_from(seed.into()))
    }

    /// Samples `batch_size` transitions with what a generator draws.
    ///
    /// # Errors
    /// [`Error::Config`] for no transitions or more than are held, [`Error::Memory`] if there is no room,
    /// [`Error::Interrupted`] if it was told to stop. Nothing is drawn then, and the batch is empty or as it was.
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

    /// Chooses `batch_size` transitions, to be read column by column ([`SampleIndices::read`]).
    ///
    /// # Errors
    /// Those of [`Replay::sample_with`].
    pub fn sample_indices(&self, sample_indices: &mut SampleIndices, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        let before = rng.clone();
        self.draw(sample_indices, batch_size, rng)?;
        self.find(sample_indices).inspect_err(|_| *rng = before)
    }

    /// The first half of [`Replay::sample_indices`], all that draws: threads that share a generator need it no longer than that.
    ///
    /// # Errors
    /// Those of [`Replay::sample_with`].
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

    /// The second half of [`Replay::sample_indices`]: finds where transitions lie that were drawn.
    ///
    /// # Errors
    /// [`Error::Config`] if they are not held any more, [`Error::Memory`] if there is no room, [`Error::Interrupted`] if it
    /// was told to stop. Nothing can be read then.
    pub fn find(&self, sample_indices: &mut SampleIndices) -> Result<()> {
        sample_indices.locate(&self.storage, self.n_step).inspect_err(|_| sample_indices.clear())
    }

    /// Checks that so many transitions can be sampled.
    ///
    /// # Errors
    /// [`Error::Config`] for no transitions or more than there are.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.storage.indices().len(), self.storage.len(), batch_size)
    }
}
