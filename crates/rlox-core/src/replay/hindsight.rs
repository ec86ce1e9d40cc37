//! Hindsight experience replay: transitions are sampled with goals that their episodes achieved.

use std::collections::VecDeque;
use std::ops::Range;

use super::Replay;
use super::batch::GoalRelabel;
use super::sampler::Sampler;
use super::schema::count;
use super::state::{PersistSampler, SamplerConfig, check_sampler, invalid_field, number, number_field};
use super::storage::{ReplayStorage, draw};
use crate::{Error, Pcg64, Result, alloc, field::Field, interrupt::InterruptCheck};

/// Number of goals between two interrupt checks.
const POLL_EVERY_ROWS: usize = 1 << 12;

/// Selection of the new goals (Andrychowicz et al. 2017, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// A goal that this or a later step of the episode achieves, drawn uniformly.
    Future,
    /// The goal that the last step of the episode achieves.
    Final,
    /// A goal that any step of the episode achieves, drawn uniformly.
    Episode,
}

impl Strategy {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::Future, "future"), (Self::Final, "final"), (Self::Episode, "episode")];

    /// Returns the strategy with the given name: "future", "final" or "episode".
    ///
    /// # Errors
    /// [`Error::Config`] for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|named| named.1 == name).map(|named| named.0);
        let invalid =
            || Error::config("strategy", "future, final or episode", format!("{name:?}"), "pass one of these names");
        found.ok_or_else(invalid)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|named| named.0 == self).map_or("", |named| named.1)
    }
}

/// Uniform sampling with hindsight goals.
///
/// The method is that of Andrychowicz et al. 2017, "Hindsight Experience Replay",
/// <https://arxiv.org/abs/1707.01495>. All transitions that can be sampled are equally likely.
///
/// With `n = n_sampled_goal`, the first `B * n / (n + 1)` (rounded down) of B sampled transitions
/// get a goal that their own episode achieved ([`super::SampleIndices::relabelled`]). The caller
/// must recompute the rewards of these transitions, and the flags that depend on the goal.
///
/// The goals of an unfinished episode are those up to its newest step. The goals of a partly
/// overwritten episode are those from its oldest stored step on.
///
/// ```
/// use rlox_core::replay::{FieldSpec, Hindsight, Replay, ReplayStorage, SampledBatch, Strategy};
/// use rlox_core::replay::{TransitionBatch, TransitionSchema};
/// use rlox_core::field::{DType, FieldData};
///
/// let field = |name| FieldSpec::new(name, &[1], DType::F32);
/// let schema = TransitionSchema::new(field("achieved"), field("actions"));
/// let schema = TransitionSchema { obs: vec![field("achieved"), field("desired")], ..schema };
/// let storage = ReplayStorage::new(100, 1, schema)?;
/// let sampler = Hindsight::new(&storage, (0, 1), Strategy::Final, 4)?;
/// let mut buffer = Replay::from_parts(storage, sampler)?;
/// for t in 0..3 {
///     let obs = |t: i32| [t as f32];
///     buffer.push_batch(&TransitionBatch {
///         obs: &[FieldData::F32(&obs(t)), FieldData::F32(&[9.0])],
///         actions: FieldData::F32(&[0.0]),
///         rewards: &[-1.0],
///         terminated: &[false],
///         truncated: &[t == 2],
///         next_obs: Some(&[FieldData::F32(&obs(t + 1)), FieldData::F32(&[9.0])]),
///         extra: &[],
///     })?;
/// }
/// let mut batch = SampledBatch::default();
/// buffer.sample_into(&mut batch, 3, 7)?;
/// // Two of three transitions have the goal that the last step achieved.
/// assert_eq!((batch.f32s("desired"), batch.sample_indices().relabelled()), (&[3.0, 3.0, 9.0][..], 2));
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Hindsight {
    relabel: GoalRelabel,
    strategy: Strategy,
    n_sampled_goal: usize,
    /// First time steps of the episodes in ascending order, per environment.
    starts: Vec<VecDeque<usize>>,
}

/// Replay buffer with hindsight goals.
pub type HindsightReplayBuffer = Replay<Hindsight>;

impl Hindsight {
    /// Creates a sampler for a storage.
    ///
    /// `parts` are the positions in the schema of the observation fields that hold the achieved and
    /// the desired goal.
    ///
    /// # Errors
    /// [`Error::Config`] if a field does not exist. [`Error::Space`] if the fields are the same or
    /// differ in shape or dtype. [`Error::Memory`] if an allocation fails.
    pub fn new(
        storage: &ReplayStorage,
        parts: (usize, usize),
        strategy: Strategy,
        n_sampled_goal: usize,
    ) -> Result<Self> {
        let obs = &storage.schema().obs;
        let (Some(achieved), Some(desired)) = (obs.get(parts.0), obs.get(parts.1)) else {
            let (expected, got) = (format!("two of {} observation fields", obs.len()), format!("{parts:?}"));
            return Err(Error::config("parts", expected, got, "pass positions counted from 0"));
        };
        if (&achieved.shape, achieved.dtype) != (&desired.shape, desired.dtype) || parts.0 == parts.1 {
            let describe = |spec: &super::FieldSpec| format!("{:?} {:?}", spec.dtype, spec.shape);
            let expected = format!("{}, as {} has", describe(achieved), achieved.name);
            let (got, hint) = (describe(desired), "use two fields of the same shape and dtype");
            return Err(Error::space(desired.name.clone(), expected, got, hint));
        }
        let mut starts = alloc::with_capacity("num_envs", storage.num_envs())?;
        starts.resize_with(storage.num_envs(), VecDeque::new);
        let relabel = GoalRelabel { achieved: parts.0, desired: parts.1 };
        Ok(Self { relabel, strategy, n_sampled_goal, starts })
    }

    /// Returns the time steps, within `valid`, of the episode that contains `step` of environment
    /// `env`.
    fn episode(&self, env: usize, step: usize, valid: &Range<usize>) -> Range<usize> {
        let (starts, n) = (&self.starts[env], self.starts.len());
        let after = starts.partition_point(|start| *start <= step);
        let first = after.checked_sub(1).and_then(|index| starts.get(index)).copied().unwrap_or(0);
        let end = starts.get(after).copied().unwrap_or(usize::MAX);
        first.max(valid.start / n)..end.min(valid.end / n)
    }

    /// Returns the settings that must equal those of a loaded state.
    ///
    /// The number of the strategy is its position in `Strategy::NAMES`.
    fn settings(&self) -> [(&'static str, usize); 4] {
        let GoalRelabel { achieved, desired } = self.relabel;
        let strategy = Strategy::NAMES.iter().position(|named| named.0 == self.strategy).unwrap_or(0);
        [("achieved", achieved), ("desired", desired), ("n_sampled_goal", self.n_sampled_goal), ("strategy", strategy)]
    }
}

impl Sampler for Hindsight {
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

    fn relabel_goals(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &[usize],
        goals: &mut Vec<usize>,
    ) -> Result<Option<GoalRelabel>> {
        let (valid, n) = (storage.indices(), storage.num_envs());
        let k = self.n_sampled_goal as u128;
        let count = (indices.len() as u128 * k / (k + 1)) as usize;
        alloc::try_reserve("batch_size", goals, count)?;
        let mut interrupt = InterruptCheck::default();
        for (i, index) in indices[..count].iter().enumerate() {
            if i % POLL_EVERY_ROWS == POLL_EVERY_ROWS - 1 {
                interrupt.check()?;
            }
            let (env, step) = (index % n, index / n);
            let episode = self.episode(env, step, &valid);
            let from = match self.strategy {
                Strategy::Future => step..episode.end,
                Strategy::Final => episode.end - 1..episode.end,
                Strategy::Episode => episode,
            };
            let mut goal = [from.start];
            if from.len() > 1 {
                draw(&from, rng, &mut goal);
            }
            goals.push(goal[0] * n + env);
        }
        Ok(Some(self.relabel))
    }

    fn supports_n_step(&self) -> bool {
        false
    }

    fn on_push(&mut self, storage: &ReplayStorage, indices: Range<usize>) -> Result<()> {
        let n = storage.num_envs();
        let oldest = storage.oldest();
        for index in indices.start.max(oldest)..indices.end {
            let starts = &mut self.starts[index % n];
            while starts.get(1).is_some_and(|second| *second <= oldest / n) {
                starts.pop_front();
            }
            if !storage.is_cut(index) {
                starts.try_reserve(1).map_err(|_| alloc::out_of_memory("capacity", starts.len() + 1, 8))?;
                starts.push_back(index / n);
            }
        }
        Ok(())
    }

    fn memory(&self) -> usize {
        self.starts.iter().map(|starts| starts.capacity() * size_of::<usize>()).sum()
    }

    fn clear(&mut self) -> Result<()> {
        self.starts.iter_mut().for_each(VecDeque::clear);
        Ok(())
    }

    fn state(&self, _: &ReplayStorage) -> Result<Vec<Field>> {
        self.settings().into_iter().map(|(name, number)| number_field(name, number)).collect()
    }

    fn check_state(&self, _: usize, state: &[Field]) -> Result<Vec<String>> {
        for (name, expected) in self.settings() {
            let got = number(state, name)?;
            if got != expected {
                let named = |place: usize| Strategy::NAMES.get(place).map_or("unknown", |named| named.1);
                return Err(match name {
                    "strategy" => invalid_field(name, named(expected), named(got)),
                    _ => invalid_field(name, expected, got),
                });
            }
        }
        Ok(self.settings().map(|(name, _)| name.to_owned()).into())
    }

    fn load_state(&mut self, storage: &ReplayStorage, _: &[Field]) -> Result<()> {
        self.on_push(storage, storage.oldest()..storage.next_index())
    }
}

impl PersistSampler for Hindsight {
    fn to_config(&self) -> SamplerConfig {
        let names = [("sampler", "hindsight"), ("strategy", self.strategy.name())];
        // The name of the strategy comes last and replaces the number of the strategy.
        let numbers = self.settings().map(|(key, number)| (key.to_owned(), number.into()));
        numbers.into_iter().chain(names.map(|(key, name)| (key.to_owned(), name.into()))).collect()
    }

    fn from_config(config: &SamplerConfig, storage: &ReplayStorage) -> Result<Self> {
        check_sampler(config, "hindsight")?;
        let number = |key| {
            count(config, key)
                .map_err(|got| Error::config("replay", "the settings of a hindsight buffer", got, "use another copy"))
        };
        let strategy = config.get("strategy").and_then(|name| name.as_str()).unwrap_or("none");
        let parts = (number("achieved")?, number("desired")?);
        Self::new(storage, parts, Strategy::from_name(strategy)?, number("n_sampled_goal")?)
    }
}
