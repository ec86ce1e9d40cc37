//! What chooses transitions of replay.

use std::ops::Range;

use rlox_core::replay::{Prioritized, ReplayStorage, Sampler, Uniform};
use rlox_core::{Field, Pcg64, Result};

/// What chooses transitions: asked once a minibatch.
#[derive(Debug)]
pub(super) enum Chooser {
    Uniform(Uniform),
    Prioritized(Prioritized),
}

impl Sampler for Chooser {
    fn choose(
        &self,
        storage: &ReplayStorage,
        rng: &mut Pcg64,
        indices: &mut [usize],
        weights: &mut [f32],
    ) -> Result<()> {
        match self {
            Self::Uniform(sampler) => sampler.choose(storage, rng, indices, weights),
            Self::Prioritized(sampler) => sampler.choose(storage, rng, indices, weights),
        }
    }

    fn added(&mut self, storage: &ReplayStorage, indices: Range<usize>) -> Result<()> {
        match self {
            Self::Uniform(sampler) => sampler.added(storage, indices),
            Self::Prioritized(sampler) => sampler.added(storage, indices),
        }
    }

    fn state(&self, storage: &ReplayStorage) -> Result<Vec<Field>> {
        match self {
            Self::Uniform(sampler) => sampler.state(storage),
            Self::Prioritized(sampler) => sampler.state(storage),
        }
    }

    fn check_state(&self, count: usize, state: &[Field]) -> Result<Vec<String>> {
        match self {
            Self::Uniform(sampler) => sampler.check_state(count, state),
            Self::Prioritized(sampler) => sampler.check_state(count, state),
        }
    }

    fn load_state(&mut self, storage: &ReplayStorage, state: &[Field]) -> Result<()> {
        match self {
            Self::Uniform(sampler) => sampler.load_state(storage, state),
            Self::Prioritized(sampler) => sampler.load_state(storage, state),
        }
    }
}
