//! Independent random streams of a run.

use rlox_core::{Error, Pcg64, Result, SeedSequence};

/// Random streams of a run.
///
/// The Python package derives the same streams from the same seed.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) policy: Pcg64,
    pub(super) resets: Pcg64,
    pub(super) iterations: Pcg64,
    /// Stream for actions sampled by predictions. Only the Python package draws from this stream.
    pub(super) predictions: Pcg64,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        let mut root = SeedSequence::new(seed.into());
        let [policy, resets, iterations, predictions] = [(); 4].map(|()| root.spawn_rng());
        Self { policy, resets, iterations, predictions }
    }

    /// Returns the streams that checkpoints store. The stream `policy` is omitted, because nothing
    /// is drawn from it after the initial weights.
    pub(super) fn named(&mut self) -> [(&'static str, &mut Pcg64); 3] {
        let Self { resets, iterations, predictions, .. } = self;
        [("resets", resets), ("iterations", iterations), ("predictions", predictions)]
    }

    /// Draws a base seed for a reset of all environments.
    pub(super) fn reset(&mut self) -> u64 {
        self.resets.integers(0, 1 << 31).cast_unsigned()
    }

    /// Draws the seed of the next iteration.
    pub(super) fn iteration(&mut self) -> u64 {
        self.iterations.integers_inclusive(0, i64::MAX).cast_unsigned()
    }
}

/// Spawn key that separates the streams of an iteration from the streams of a run with the same seed.
const ITERATION: u32 = u32::MAX - 1;

/// Random streams of one iteration.
#[derive(Clone, Debug)]
pub struct IterationStreams {
    /// One stream per environment, for actions.
    pub actions: Vec<Pcg64>,
    /// Stream for the order of transitions in minibatches.
    pub order: Pcg64,
    root: SeedSequence,
}

impl IterationStreams {
    /// Creates the streams that `seed` determines for `num_envs` environments.
    ///
    /// # Errors
    /// [`Error::Memory`] if the streams do not fit into memory.
    ///
    /// ```
    /// use rlox_nn::train::IterationStreams;
    ///
    /// let mut streams = IterationStreams::new(7, 2)?;
    /// assert_ne!(streams.actions[0].next_u64(), streams.actions[1].next_u64());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn new(seed: u64, num_envs: usize) -> Result<Self> {
        let root = SeedSequence::new(seed.into());
        let mut streams = Self { actions: Vec::new(), order: Pcg64::from_seed_sequence(&root), root };
        streams.renew(seed, num_envs)?;
        Ok(streams)
    }

    /// Replaces the streams by those of another seed. The memory is reused if it suffices.
    ///
    /// # Errors
    /// Errors of [`IterationStreams::new`]; nothing changes then.
    pub fn renew(&mut self, seed: u64, num_envs: usize) -> Result<()> {
        let out_of_memory = |_| {
            let expected = "streams that fit into memory";
            Error::memory("num_envs", expected, format!("{num_envs} environments"), "pass a smaller number")
        };
        self.actions.try_reserve_exact(num_envs.saturating_sub(self.actions.len())).map_err(out_of_memory)?;
        let Self { actions, order, root } = self;
        root.restart(seed.into(), &[ITERATION]);
        *order = root.spawn_rng();
        actions.clear();
        actions.extend(std::iter::repeat_with(|| root.spawn_rng()).take(num_envs));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_runs_and_iterations_differ() {
        let Streams { policy, resets, iterations, predictions } = Streams::new(7);
        let IterationStreams { actions, order, .. } = IterationStreams::new(7, 5).unwrap();
        let all = [policy, resets, iterations, predictions, order].into_iter().chain(actions);
        let mut first: Vec<_> = all.map(|mut stream| stream.next_u64()).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 10);
    }
}
