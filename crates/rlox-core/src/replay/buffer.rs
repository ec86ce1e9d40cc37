//! A storage and what chooses from it.

use std::ops::Range;

use super::batch::{Chosen, Relabel, SampledBatch};
use super::layout::{Layout, Part};
use super::n_step::NStep;
use super::steps::Steps;
use super::storage::ReplayStorage;
use crate::{DType, Error, Field, FieldData, Pcg64, Result};

/// Chooses transitions of a storage.
pub trait Sampler: Send + Sync {
    /// Writes the numbers of transitions, and their importance weights, `[B]` each. There is at least one to choose from.
    ///
    /// # Errors
    /// Whatever the sampler cannot do, before it wrote anything.
    fn choose(
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
    fn goals(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &[usize],
        goals: &mut Vec<usize>,
    ) -> Result<Option<Relabel>> {
        let _ = (storage, rng, indices, goals);
        Ok(None)
    }

    /// Whether what it chooses may span several steps.
    fn spans_steps(&self) -> bool {
        true
    }

    /// Takes notice of what a push has added.
    ///
    /// # Errors
    /// None is expected: the transitions are stored already.
    fn added(&mut self, storage: &ReplayStorage, indices: Range<usize>) -> Result<()> {
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
    fn choose(
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

/// Draws numbers of transitions, each as likely as another.
pub(super) fn draw(held: &Range<usize>, rng: &mut Pcg64, indices: &mut [usize]) {
    let count = held.len() as u128;
    for index in indices {
        // The high half of the product; the bias, of count / 2^64, cannot be noticed.
        *index = held.start + ((u128::from(rng.next_u64()) * count) >> 64) as usize;
    }
}

/// Checks that so many of `held` transitions can be sampled, where so many are stored.
pub(super) fn check_count(held: usize, stored: usize, batch_size: usize) -> Result<()> {
    if (1..=held).contains(&batch_size) {
        return Ok(());
    }
    let unknown = "next observation is not known yet";
    let asked = batch_size.to_string();
    let (expected, got, fix) = match (held, stored) {
        (0, 0) => ("a buffer with transitions".to_owned(), "an empty one".to_owned(), "push some first"),
        (0, _) => {
            let expected = format!("more than a last row, whose {unknown}");
            (expected, "that row alone".to_owned(), "push on, or pass next_obs")
        }
        _ if held < stored => {
            let expected = format!("1 to {held}, all but the last row, whose {unknown}");
            (expected, asked, "sample fewer, push on, or pass next_obs")
        }
        _ => (format!("1 to {held}, as many as are stored"), asked, "sample fewer, or push more first"),
    };
    Err(Error::config("batch_size", expected, got, fix))
}

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
        let part = |name, dim| Part::new(name, &[dim], DType::F32);
        Self::with(
            ReplayStorage::new(capacity, 1, Layout::new(part("obs", obs_dim), part("actions", act_dim)))?,
            Uniform,
        )
    }
}

impl<S: Sampler> Replay<S> {
    /// A buffer of an empty storage and a sampler.
    ///
    /// # Errors
    /// [`Error::Config`] if the storage is not empty.
    pub fn with(storage: ReplayStorage, sampler: S) -> Result<Self> {
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
        if !self.sampler.spans_steps() {
            let fix = "sample single steps: rewards over several ones depend on a goal, and on what was done for it";
            return Err(Error::config("n_step", "1 with hindsight", n_step.n.to_string(), fix));
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

    pub(super) fn all_mut(&mut self) -> (&mut ReplayStorage, &mut S) {
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
    pub fn push_batch(&mut self, steps: &Steps<'_>) -> Result<()> {
        self.push_by(|storage| storage.push(steps))
    }

    fn push_by(&mut self, push: impl FnOnce(&mut ReplayStorage) -> Result<()>) -> Result<()> {
        let from = self.storage.next_index();
        let pushed = push(&mut self.storage);
        // Some of the rows are there if it was told to stop.
        self.sampler.added(&self.storage, from..self.storage.next_index())?;
        pushed
    }

    /// Adds what [`ReplayStorage::push_in_order`] adds.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::push_in_order`].
    pub fn push_in_order(&mut self, steps: &Steps<'_>) -> Result<()> {
        self.push_by(|storage| storage.push_in_order(steps))
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
        self.push_batch(&Steps {
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
        let prepared = batch.prepare(self.storage.layout(), batch_size);
        prepared
            .and_then(|()| self.choose(&mut batch.chosen, batch_size, rng))
            .and_then(|()| batch.fill_by(|chosen, column, out| chosen.read(&self.storage, column, out)))
            .inspect_err(|_| {
                batch.clear();
                *rng = before;
            })
    }

    /// Chooses `batch_size` transitions, to be read column by column ([`Chosen::read`]).
    ///
    /// # Errors
    /// Those of [`Replay::sample_with`].
    pub fn choose(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        let before = rng.clone();
        self.draw(chosen, batch_size, rng)?;
        self.find(chosen).inspect_err(|_| *rng = before)
    }

    /// The first half of [`Replay::choose`], all that draws: threads that share a generator need it no longer than that.
    ///
    /// # Errors
    /// Those of [`Replay::sample_with`].
    pub fn draw(&self, chosen: &mut Chosen, batch_size: usize, rng: &mut Pcg64) -> Result<()> {
        self.check_batch_size(batch_size)?;
        let before = rng.clone();
        chosen.prepare(batch_size)?;
        let Chosen { indices, weights, goals, relabel, .. } = chosen;
        let drawn = self.sampler.choose(&self.storage, rng, indices, weights);
        let drawn = drawn.and_then(|()| self.sampler.goals(&self.storage, rng, indices, goals));
        *relabel = drawn.inspect_err(|_| *rng = before)?;
        Ok(())
    }

    /// The second half of [`Replay::choose`]: finds where transitions lie that were drawn.
    ///
    /// # Errors
    /// [`Error::Config`] if they are not held any more, [`Error::Memory`] if there is no room, [`Error::Interrupted`] if it
    /// was told to stop. Nothing can be read then.
    pub fn find(&self, chosen: &mut Chosen) -> Result<()> {
        chosen.locate(&self.storage, self.n_step).inspect_err(|_| chosen.clear())
    }

    /// Checks that so many transitions can be sampled.
    ///
    /// # Errors
    /// [`Error::Config`] for no transitions or more than there are.
    pub fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        check_count(self.storage.indices().len(), self.storage.len(), batch_size)
    }
}
