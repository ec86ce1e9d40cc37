//! Prioritized sampling: transitions with large errors are drawn more often.

use std::ops::Range;

use super::Replay;
use super::batch::invalid_index;
use super::sampler::Sampler;
use super::schema::{FieldSpec, TransitionSchema};
use super::state::{FieldDescriptor, PersistSampler, SamplerConfig, check_sampler, float, invalid_field};
use super::storage::ReplayStorage;
use super::sum_tree::SumTree;
use crate::{
    Error, Pcg64, Result, alloc,
    error::check_len,
    field::{DType, Field, FieldData},
};

/// Number added to priorities, so that a transition with an error of 0 can be drawn again.
const EPS: f32 = 1e-6;

/// Proportional prioritized sampling.
///
/// The method is that of Schaul et al. 2016, "Prioritized Experience Replay", section 3.3. A
/// transition of priority p is drawn with probability `P = p^alpha / sum(p^alpha)`. Its importance
/// weight is `(N P)^-beta` for N transitions, divided by the largest weight of all stored
/// transitions. A new transition gets the largest priority so far. A batch of B draws is
/// stratified: the sum is divided into B equal parts, and one transition is drawn from each part.
#[derive(Debug)]
pub struct Prioritized {
    tree: SumTree,
    alpha: f32,
    beta: f32,
    /// Largest priority so far, before the exponent `alpha` is applied.
    largest: f32,
    /// Transitions with a smaller index have, or had, a priority in the tree.
    known: usize,
    /// Transitions with a smaller index have no priority in the tree any more.
    gone: usize,
    /// Leaves and new priorities of an update, in memory that is reused between calls.
    changes: (Vec<usize>, Vec<f32>),
}

/// Replay buffer with prioritized sampling.
pub type PrioritizedReplayBuffer = Replay<Prioritized>;

impl PrioritizedReplayBuffer {
    /// Creates a buffer for one environment, with f32 observations and actions of the given sizes.
    ///
    /// ```
    /// use rlox_core::replay::{PrioritizedReplayBuffer, SampledBatch};
    ///
    /// let mut buffer = PrioritizedReplayBuffer::new(1000, 1, 1, 0.6, 0.4)?;
    /// for i in 0..4 {
    ///     buffer.push_slices(&[i as f32], &[i as f32 + 1.0], &[0.0], 0.0, false, true)?;
    /// }
    /// buffer.update_priorities(&[0, 1, 2], &[0.0; 3])?;
    /// let mut batch = SampledBatch::default();
    /// buffer.sample_into(&mut batch, 4, 0)?;
    /// // Nearly all of the sum belongs to the last transition. It is drawn most often and has the
    /// // least weight.
    /// assert_eq!(batch.indices(), [3; 4]);
    /// assert!(batch.weights().iter().all(|weight| *weight < 0.1));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::new`] and [`Prioritized::new`].
    pub fn new(capacity: usize, obs_dim: usize, act_dim: usize, alpha: f32, beta: f32) -> Result<Self> {
        let field = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
        let schema = TransitionSchema::new(field("obs", obs_dim), field("actions", act_dim));
        let storage = ReplayStorage::new(capacity, 1, schema)?;
        let sampler = Prioritized::new(&storage, alpha, beta)?;
        Self::from_parts(storage, sampler)
    }

    /// Sets the priorities of transitions. Both arrays are `[B]`.
    ///
    /// Transitions that are no longer stored are ignored. If an index is repeated, its last priority counts.
    ///
    /// # Errors
    /// - [`Error::Shape`] if the lengths differ;
    /// - [`Error::Config`] if an index has never been available for sampling or a priority is
    ///   negative;
    /// - [`Error::NotFinite`] if a priority is not finite;
    /// - [`Error::Memory`] if an allocation fails.
    ///
    /// Nothing has changed after an error.
    pub fn update_priorities(&mut self, indices: &[usize], priorities: &[f32]) -> Result<()> {
        let (storage, sampler) = self.parts_mut();
        sampler.update_priorities(storage, indices, priorities)
    }
}

impl Prioritized {
    /// Creates a sampler for a storage.
    ///
    /// # Errors
    /// [`Error::Config`] if `alpha` or `beta` is outside [0, 1]. [`Error::Memory`] if the tree does
    /// not fit into memory.
    pub fn new(storage: &ReplayStorage, alpha: f32, beta: f32) -> Result<Self> {
        check_share("alpha", alpha)?;
        check_share("beta", beta)?;
        let leaves = storage.capacity_steps() * storage.num_envs();
        let request = || format!("capacity = {} with priorities, which needs", storage.capacity());
        alloc::check_available_for(
            "capacity",
            1,
            storage.promised().saturating_add(leaves.saturating_mul(5)),
            request,
        )?;
        let tree = SumTree::new(leaves)?;
        Ok(Self { tree, alpha, beta, largest: 1.0, known: 0, gone: 0, changes: Default::default() })
    }

    /// Returns the exponent of the importance weights: 0 for no correction, 1 for full correction.
    pub fn beta(&self) -> f32 {
        self.beta
    }

    /// Sets the exponent of the importance weights, usually raised from 0.4 to 1 over a run.
    ///
    /// # Errors
    /// [`Error::Config`] if `beta` is outside [0, 1].
    pub fn set_beta(&mut self, beta: f32) -> Result<()> {
        check_share("beta", beta)?;
        self.beta = beta;
        Ok(())
    }

    /// Returns the exponent of the priorities: 0 for uniform sampling, 1 for proportional sampling.
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    /// Sets priorities as [`Replay::update_priorities`] does. `storage` is the storage of the
    /// sampler.
    ///
    /// # Errors
    /// The errors of [`Replay::update_priorities`].
    pub fn update_priorities(&mut self, storage: &ReplayStorage, indices: &[usize], priorities: &[f32]) -> Result<()> {
        check_len("priorities", priorities.len(), indices.len())?;
        let valid = storage.indices();
        if let Some(invalid) = indices.iter().find(|index| **index >= valid.end) {
            return Err(invalid_index(*invalid, &valid));
        }
        if let Some(pos) = priorities.iter().position(|priority| !(0.0..=f32::MAX).contains(priority)) {
            let (expected, got) = ("finite numbers >= 0", priorities[pos].to_string());
            let hint = "pass absolute values of the errors";
            let error = if priorities[pos].is_finite() {
                Error::config("priorities", expected, got, hint)
            } else {
                Error::not_finite("priorities", expected, got, hint)
            };
            return Err(error.at_row(pos));
        }
        let (mut leaves, mut powers) = std::mem::take(&mut self.changes);
        leaves.clear();
        powers.clear();
        alloc::try_reserve("indices", &mut leaves, indices.len())?;
        alloc::try_reserve("indices", &mut powers, indices.len())?;
        let live = || indices.iter().zip(priorities).filter(|(index, _)| **index >= valid.start);
        leaves.extend(live().map(|(index, _)| storage.row_of(*index)));
        powers.extend(live().map(|(_, priority)| self.power(*priority)));
        self.tree.set_many(&leaves, &powers)?;
        self.largest = live().fold(self.largest, |most, (_, priority)| most.max(*priority));
        self.changes = (leaves, powers);
        Ok(())
    }

    /// Returns the fields of a state with `count` transitions that can be sampled.
    ///
    /// The priorities in a state are those of the tree, after the exponent `alpha` was applied.
    fn descriptor(count: usize) -> [FieldDescriptor; 4] {
        let number = |name| FieldDescriptor::new(name, &[], DType::F32, 1);
        [
            FieldDescriptor::new("priorities", &[], DType::F32, count),
            number("alpha"),
            number("beta"),
            number("largest_priority"),
        ]
    }

    /// Returns the priority that the tree stores, `(priority + EPS)^alpha`, which is positive and
    /// finite.
    fn power(&self, priority: f32) -> f32 {
        (priority + EPS).powf(self.alpha).clamp(f32::MIN_POSITIVE, f32::MAX)
    }
}

fn check_share(name: &'static str, share: f32) -> Result<()> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::config(name, "a number in [0, 1]", share.to_string(), "pass a number from 0 to 1"))
}

impl Sampler for Prioritized {
    fn sample_indices(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &mut [usize],
        weights: &mut [f32],
    ) -> Result<()> {
        self.tree.sample_stratified(rng, indices)?;
        let least = self.tree.min().unwrap_or(1.0);
        for (index, weight) in indices.iter_mut().zip(weights) {
            // The number of transitions and the sum cancel out in the quotient of two weights.
            *weight = (self.tree.priorities()[*index] / least).powf(-self.beta);
            *index = storage.index_of(*index);
        }
        Ok(())
    }

    fn on_push(&mut self, storage: &ReplayStorage, _: Range<usize>) -> Result<()> {
        let valid = storage.indices();
        let rows = storage.capacity_steps() * storage.num_envs();
        // A transition that was removed more than one lap of the ring ago shares its leaf with a
        // newer one.
        let gone = self.gone.max(valid.start.saturating_sub(rows))..valid.start;
        let fresh = self.known.max(valid.start)..valid.end;
        let largest = self.power(self.largest);
        for (indices, priority) in [(gone, 0.0), (fresh, largest)] {
            for leaves in storage.rows_of(indices) {
                self.tree.fill(leaves, priority)?;
            }
        }
        (self.gone, self.known) = (valid.start, valid.end);
        Ok(())
    }

    fn memory(&self) -> usize {
        self.tree.memory() + alloc::allocated_bytes(&self.changes.0) + alloc::allocated_bytes(&self.changes.1)
    }

    fn state(&self, storage: &ReplayStorage) -> Result<Vec<Field>> {
        let mut fields = Self::descriptor(storage.indices().len())
            .into_iter()
            .map(|descriptor| descriptor.field())
            .collect::<Result<Vec<_>>>()?;
        let mut index = 0;
        for leaves in storage.rows_of(storage.indices()) {
            let leaves = &self.tree.priorities()[leaves];
            fields[0].write_at(index, FieldData::F32(leaves));
            index += leaves.len();
        }
        for (field, number) in fields[1..].iter_mut().zip([self.alpha, self.beta, self.largest]) {
            field.write_at(0, FieldData::F32(&[number]));
        }
        Ok(fields)
    }

    fn clear(&mut self) -> Result<()> {
        (self.largest, self.gone, self.known) = (1.0, 0, 0);
        self.tree.fill(0..self.tree.capacity(), 0.0)
    }

    fn check_state(&self, count: usize, state: &[Field]) -> Result<Vec<String>> {
        let [priorities, alpha, beta, largest] = Self::descriptor(count);
        let FieldData::F32(powers) = priorities.lookup(state)? else { return Ok(Vec::new()) };
        if let Some(invalid) = powers.iter().find(|power| !(f32::MIN_POSITIVE..=f32::MAX).contains(*power)) {
            return Err(invalid_field(&priorities.name, "positive finite numbers", invalid));
        }
        let number = |descriptor: &FieldDescriptor| match descriptor.lookup(state)? {
            FieldData::F32(&[number]) => Ok(number),
            _ => Ok(f32::NAN),
        };
        for (descriptor, fits, expected) in [
            (&alpha, number(&alpha)? == self.alpha, self.alpha.to_string()),
            (&beta, (0.0..=1.0).contains(&number(&beta)?), "a number in [0, 1]".to_owned()),
            (&largest, (1.0..=f32::MAX).contains(&number(&largest)?), "a finite number of at least 1".to_owned()),
        ] {
            if !fits {
                return Err(invalid_field(&descriptor.name, expected, number(descriptor)?));
            }
        }
        Ok([priorities, alpha, beta, largest].map(|descriptor| descriptor.name).into())
    }

    fn load_state(&mut self, storage: &ReplayStorage, state: &[Field]) -> Result<()> {
        let valid = storage.indices();
        let [priorities, _, beta, largest] = Self::descriptor(valid.len());
        let (FieldData::F32(powers), FieldData::F32(&[beta]), FieldData::F32(&[largest])) =
            (priorities.lookup(state)?, beta.lookup(state)?, largest.lookup(state)?)
        else {
            return Ok(());
        };
        let mut powers = powers;
        for leaves in storage.rows_of(valid.clone()) {
            let (first, rest) = powers.split_at(leaves.len());
            self.tree.set_range(leaves.start, first)?;
            powers = rest;
        }
        (self.beta, self.largest, self.gone, self.known) = (beta, largest, valid.start, valid.end);
        Ok(())
    }
}

impl PersistSampler for Prioritized {
    fn to_config(&self) -> SamplerConfig {
        let shares = [("alpha", self.alpha()), ("beta", self.beta())];
        let shares = shares.map(|(name, share)| (name.to_owned(), f64::from(share).into()));
        shares.into_iter().chain([("sampler".to_owned(), "prioritized".into())]).collect()
    }

    fn from_config(config: &SamplerConfig, storage: &ReplayStorage) -> Result<Self> {
        check_sampler(config, "prioritized")?;
        Self::new(storage, float(config, "alpha")? as f32, float(config, "beta")? as f32)
    }
}
