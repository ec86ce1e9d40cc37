//! A sampler that is selected at run time.

use std::ops::Range;

use super::batch::GoalRelabel;
use super::hindsight::Hindsight;
use super::prioritized::Prioritized;
use super::sampler::{Sampler, Uniform};
use super::state::{PersistSampler, SamplerConfig};
use super::storage::ReplayStorage;
use crate::{Pcg64, Result, field::Field};

/// One of the samplers of this crate, for buffers whose sampler is selected at run time.
///
/// All calls are forwarded to the inner sampler. Methods that only one sampler has, such as
/// [`Prioritized::update_priorities`], need a match on the variant.
///
/// ```
/// use rlox_core::field::DType;
/// use rlox_core::replay::{AnySampler, FieldSpec, Prioritized, Replay, ReplayStorage, TransitionSchema, Uniform};
///
/// let field = |name| FieldSpec::new(name, &[1], DType::F32);
/// let schema = TransitionSchema::new(field("obs"), field("actions"));
/// let storage = ReplayStorage::new(1000, 1, schema)?;
/// let prioritized = std::env::args().any(|argument| argument == "--prioritized");
/// let sampler = if prioritized { Prioritized::new(&storage, 0.6, 0.4)?.into() } else { Uniform.into() };
/// let mut buffer: Replay<AnySampler> = Replay::from_parts(storage, sampler)?;
/// buffer.push_slices(&[0.0], &[1.0], &[0.5], 1.0, true, false)?;
/// if let (storage, AnySampler::Prioritized(sampler)) = buffer.parts_mut() {
///     sampler.update_priorities(storage, &[0], &[2.0])?;
/// }
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Debug)]
pub enum AnySampler {
    /// Uniform sampling.
    Uniform(Uniform),
    /// Sampling by priority.
    Prioritized(Prioritized),
    /// Uniform sampling with hindsight goals.
    Hindsight(Hindsight),
}

impl From<Uniform> for AnySampler {
    fn from(sampler: Uniform) -> Self {
        Self::Uniform(sampler)
    }
}

impl From<Prioritized> for AnySampler {
    fn from(sampler: Prioritized) -> Self {
        Self::Prioritized(sampler)
    }
}

impl From<Hindsight> for AnySampler {
    fn from(sampler: Hindsight) -> Self {
        Self::Hindsight(sampler)
    }
}

/// Forwards a call to the inner sampler without dynamic dispatch.
macro_rules! inside {
    ($sampler:expr, $it:ident => $done:expr) => {
        match $sampler {
            AnySampler::Uniform($it) => $done,
            AnySampler::Prioritized($it) => $done,
            AnySampler::Hindsight($it) => $done,
        }
    };
}

impl Sampler for AnySampler {
    fn sample_indices(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &mut [usize],
        weights: &mut [f32],
    ) -> Result<()> {
        inside!(self, it => it.sample_indices(storage, rng, indices, weights))
    }

    fn relabel_goals(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &[usize],
        goals: &mut Vec<usize>,
    ) -> Result<Option<GoalRelabel>> {
        inside!(self, it => it.relabel_goals(storage, rng, indices, goals))
    }

    fn supports_n_step(&self) -> bool {
        inside!(self, it => it.supports_n_step())
    }

    fn on_push(&mut self, storage: &ReplayStorage, indices: Range<usize>) -> Result<()> {
        inside!(self, it => it.on_push(storage, indices))
    }

    fn memory(&self) -> usize {
        inside!(self, it => it.memory())
    }

    fn state(&self, storage: &ReplayStorage) -> Result<Vec<Field>> {
        inside!(self, it => it.state(storage))
    }

    fn clear(&mut self) -> Result<()> {
        inside!(self, it => it.clear())
    }

    fn check_state(&self, count: usize, state: &[Field]) -> Result<Vec<String>> {
        inside!(self, it => it.check_state(count, state))
    }

    fn load_state(&mut self, storage: &ReplayStorage, state: &[Field]) -> Result<()> {
        inside!(self, it => it.load_state(storage, state))
    }
}

impl PersistSampler for AnySampler {
    fn to_config(&self) -> SamplerConfig {
        inside!(self, it => it.to_config())
    }

    fn from_config(config: &SamplerConfig, storage: &ReplayStorage) -> Result<Self> {
        match config.get("sampler").and_then(|name| name.as_str()) {
            Some("prioritized") => Prioritized::from_config(config, storage).map(Self::Prioritized),
            Some("hindsight") => Hindsight::from_config(config, storage).map(Self::Hindsight),
            _ => Uniform::from_config(config, storage).map(Self::Uniform),
        }
    }
}
