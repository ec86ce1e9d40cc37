//! Algorithms from environments to trained policies, without Python and on any backend.

mod a2c;
mod agent;
mod algorithm;
mod asynchronous;
mod checkpoint;
mod collector;
mod corrected;
mod dqn;
mod encoding;
mod episodes;
mod evaluate;
mod experience;
mod gatherer;
mod greedy;
mod impala;
mod learned;
mod minibatches;
mod noise;
mod off_policy;
mod on_policy;
mod packed;
mod ppo;
mod predict;
mod sac;
mod settings;
mod standing;
mod streams;
mod td3;

pub use a2c::{A2c, A2cConfig};
pub use agent::{OffPolicyAgent, Pause};
pub use algorithm::{Algorithm as OffPolicyAlgorithm, Method as OffPolicyMethod};
pub use asynchronous::{ActorPlan, AsyncOnPolicy};
pub use collector::{Collection, collect_transitions, estimate_advantages};
pub use dqn::{Dqn, DqnConfig, DqnLearner};
pub use encoding::Encoding;
pub use evaluate::evaluate_policy;
pub use experience::{Gathering, Priorities, Replayed};
pub use gatherer::{Outcome, Surroundings};
pub use greedy::Greedy;
pub use impala::{Impala, ImpalaConfig};
pub use learned::OffPolicyLearned;
pub use minibatches::Minibatches;
pub use noise::{ActionNoise, NoiseProcess};
pub use off_policy::{OffPolicy, OffPolicyMetrics};
pub use on_policy::{Algorithm as OnPolicyAlgorithm, OnPolicy};
pub use ppo::{Ppo, PpoConfig};
pub use predict::{Observations, mask_width, predict_actions, predict_with};
pub use sac::{EntCoef, Sac, SacConfig, SacLearner};
pub use settings::{Setting, Settings};
pub use streams::IterationStreams;
pub use td3::{Td3, Td3Config, Td3Learner};

use rlox_core::{Error, Result};

use crate::ActorCriticStats;

/// How a setting moves over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// It stays.
    Constant,
    /// It falls to 0 in a straight line.
    Linear,
}

impl Schedule {
    /// A setting when `progress`, between 0 and 1, of the run is done.
    ///
    /// ```
    /// assert_eq!(rlox_nn::train::Schedule::Linear.at(0.2, 0.75), 0.05);
    /// ```
    pub fn at(self, setting: f32, progress: f64) -> f32 {
        match self {
            Self::Constant => setting,
            Self::Linear => (f64::from(setting) * (1.0 - progress)) as f32,
        }
    }
}

/// What an iteration of training said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Environment steps learned from so far.
    pub timesteps: u64,
    /// The mean return of the last 100 finished episodes; NaN before the first.
    pub mean_return: f64,
    /// Their mean length.
    pub mean_length: f64,
    /// How many episodes were finished.
    pub episodes: u64,
    /// What was learned.
    pub learned: Learned,
    /// Passes over a rollout so far.
    pub updates: u64,
}

/// What learning from a rollout said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Learned {
    /// Means over the minibatches; as in Stable-Baselines3, `loss` is that of the last one, and `approx_kl` the last
    /// epoch's.
    pub stats: ActorCriticStats,
    /// How much of the returns the values explained.
    pub explained_variance: f32,
    /// The learning rate there was.
    pub learning_rate: f32,
    /// Passes that were begun; 0 if it was stopped before the first minibatch.
    pub updates: u64,
}

/// Checks a share.
fn check_share(name: &'static str, share: f64) -> Result<()> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::config(name, "a number in [0, 1]", share.to_string(), "correct it"))
}

/// Checks counts.
fn check_counts(counts: &[(&'static str, usize)]) -> Result<()> {
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((name, _)) => Err(Error::config(*name, "at least 1", "0", "pass a positive number")),
        None => Ok(()),
    }
}

/// What `work` gives, which asks `stop` now and then; `None` if it ended because that said so.
fn unless_stopped<T>(
    stop: &mut dyn FnMut() -> bool,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T>,
) -> Result<Option<T>> {
    let mut stopped = false;
    let done = work(&mut || {
        stopped = stopped || stop();
        stopped
    });
    match done {
        Err(Error::Interrupted) if stopped => Ok(None),
        done => done.map(Some),
    }
}

/// Means of what minibatches say.
#[derive(Debug, Default)]
struct Means {
    count: f64,
    sums: [f64; 7],
}

impl Means {
    fn add(&mut self, stats: ActorCriticStats) {
        let ActorCriticStats { policy_loss, value_loss, entropy_loss, loss, approx_kl, clip_fraction, grad_norm } =
            stats;
        let all = [policy_loss, value_loss, entropy_loss, loss, approx_kl, clip_fraction, grad_norm];
        self.count += 1.0;
        self.sums.iter_mut().zip(all).for_each(|(sum, x)| *sum += f64::from(x));
    }

    fn mean(&self) -> ActorCriticStats {
        let [policy_loss, value_loss, entropy_loss, loss, approx_kl, clip_fraction, grad_norm] =
            self.sums.map(|sum| (sum / self.count) as f32);
        ActorCriticStats { policy_loss, value_loss, entropy_loss, loss, approx_kl, clip_fraction, grad_norm }
    }
}
