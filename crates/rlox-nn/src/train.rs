//! Trainers for all algorithms, with networks of any backend, and their training loops.

mod a2c;
mod agent;
mod algorithm;
mod checkpoint;
mod dqn;
mod encoding;
mod env_stepper;
mod evaluate;
mod impala;
mod minibatches;
mod noise;
mod ppo;
mod replay;
mod sac;
mod streams;
mod td3;
mod trainer;

pub use a2c::{A2c, A2cConfig};
pub use agent::{OffPolicyAgent, StopFn};
pub use algorithm::{Algorithm as OffPolicyAlgorithm, Method as OffPolicyMethod};
pub use checkpoint::settings::{ConfigMap, ConfigValue};
pub use dqn::{Dqn, DqnConfig, DqnLearner};
pub use encoding::Encoding;
pub use env_stepper::StepResult;
pub use evaluate::{Greedy, Observations, evaluate_policy, mask_width, predict_actions, predict_with};
pub use impala::{Impala, ImpalaConfig};
pub use minibatches::Minibatches;
pub use noise::{ActionNoise, NoiseProcess};
pub use ppo::{Ppo, PpoConfig};
pub use replay::{EnvInfo, Priorities, ReplayBatch, ReplayConfig};
pub use sac::{EntCoef, Sac, SacConfig, SacLearner};
pub use streams::IterationStreams;
pub use td3::{Td3, Td3Config, Td3Learner};
pub use trainer::{
    ActorPlan, AsyncOnPolicy, CollectConfig, OffPolicy, OffPolicyMetrics, OnPolicy, OnPolicyAlgorithm,
    collect_transitions, estimate_advantages,
};

use std::collections::VecDeque;

use rlox_core::{Error, Result, VectorEnv};

use crate::ActorCriticStats;

/// Change of a setting over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Constant initial value.
    Constant,
    /// Linear decrease to 0 at the end of the run.
    Linear,
}

impl Schedule {
    /// Returns the value at `progress` of a setting that starts at `initial`.
    ///
    /// `progress` is the finished fraction of the run, in [0, 1].
    ///
    /// ```
    /// assert_eq!(rlox_nn::train::Schedule::Linear.value_at(0.2, 0.75), 0.05);
    /// ```
    pub fn value_at(self, initial: f32, progress: f64) -> f32 {
        match self {
            Self::Constant => initial,
            Self::Linear => (f64::from(initial) * (1.0 - progress)) as f32,
        }
    }
}

/// Metrics of one training iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Number of environment steps, over all environments, from which the policy has learned.
    pub timesteps: u64,
    /// Mean return of the last 100 finished episodes; NaN before the first episode ends.
    pub mean_return: f64,
    /// Mean length of the last 100 finished episodes, in steps; NaN before the first episode ends.
    pub mean_length: f64,
    /// Number of finished episodes.
    pub episodes: u64,
    /// Statistics of the last update.
    pub last_update: UpdateStats,
    /// Number of passes over rollouts so far: epochs of PPO, or gradient steps of A2C and IMPALA.
    pub updates: u64,
}

/// Statistics of the update from one rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateStats {
    /// Means over all minibatches, except for two statistics, as in Stable-Baselines3. `loss` is
    /// the loss of the last minibatch, and `approx_kl` is the mean over the last epoch.
    pub stats: ActorCriticStats,
    /// Explained variance of the values, `1 - Var(returns - values) / Var(returns)`.
    pub explained_variance: f32,
    /// Learning rate of the update.
    pub learning_rate: f32,
    /// Number of passes over the rollout that learned from at least one minibatch.
    pub updates: u64,
}

/// Statistics of one minibatch of an off-policy algorithm, or means over several minibatches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffPolicyUpdateStats {
    /// Loss of the critics or the Q-function.
    pub critic_loss: f32,
    /// Mean Q-value of the actions in the minibatch.
    pub mean_value: f32,
    /// Gradient norm of the critics or the Q-function before clipping.
    pub grad_norm: f32,
    /// Loss of the actor; `None` if the algorithm has no actor or did not update the actor.
    pub actor_loss: Option<f32>,
    /// Entropy coefficient of SAC; `None` for other algorithms.
    pub ent_coef: Option<f32>,
    /// Loss of the entropy coefficient; `None` if no coefficient is learned.
    pub ent_coef_loss: Option<f32>,
    /// Learning rate of the update.
    pub learning_rate: f32,
}

/// Running means over the statistics of minibatches.
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

/// Running means over the statistics of minibatches of an off-policy algorithm.
#[derive(Debug, Default)]
struct OffPolicyMeans {
    /// For each statistic, the number of minibatches that reported it, and the sum of its values.
    sums: [(f64, f64); 6],
    learning_rate: f32,
}

impl OffPolicyMeans {
    fn add(&mut self, stats: &OffPolicyUpdateStats) {
        let OffPolicyUpdateStats {
            critic_loss,
            mean_value,
            grad_norm,
            actor_loss,
            ent_coef,
            ent_coef_loss,
            learning_rate,
        } = *stats;
        let all = [Some(critic_loss), Some(mean_value), Some(grad_norm), actor_loss, ent_coef, ent_coef_loss];
        for ((count, sum), x) in self.sums.iter_mut().zip(all) {
            if let Some(x) = x {
                *count += 1.0;
                *sum += f64::from(x);
            }
        }
        self.learning_rate = learning_rate;
    }

    /// Returns the means, or `None` if there were no minibatches.
    ///
    /// A statistic that no minibatch reported keeps its value in `before`.
    fn mean(&self, before: Option<&OffPolicyUpdateStats>) -> Option<OffPolicyUpdateStats> {
        let [critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss] =
            self.sums.map(|(count, sum)| (count > 0.0).then_some((sum / count) as f32));
        let or = |mean: Option<f32>, field: fn(&OffPolicyUpdateStats) -> Option<f32>| mean.or(before.and_then(field));
        Some(OffPolicyUpdateStats {
            critic_loss: critic_loss?,
            mean_value: mean_value?,
            grad_norm: grad_norm?,
            actor_loss: or(actor_loss, |before| before.actor_loss),
            ent_coef: or(ent_coef, |before| before.ent_coef),
            ent_coef_loss: or(ent_coef_loss, |before| before.ent_coef_loss),
            learning_rate: self.learning_rate,
        })
    }
}

/// Number of recent episodes over which the mean return and the mean length are taken.
const RECENT: usize = 100;

/// The last finished episodes, and the number of all finished episodes.
#[derive(Debug)]
struct Episodes {
    /// Returns and lengths of up to 100 episodes, oldest first.
    recent: VecDeque<(f64, u32)>,
    total: u64,
    /// Mean return and length of `recent`; NaN before the first episode.
    mean_return: f64,
    mean_length: f64,
    /// Number of finished episodes that the environments reported at the last call of `drain`.
    known: u64,
    drained: (Vec<f64>, Vec<u32>),
}

impl Episodes {
    /// Creates a log of `total` finished episodes, of which `recent` are the last.
    fn new(total: u64, mut recent: VecDeque<(f64, u32)>) -> Self {
        recent.reserve(RECENT.saturating_sub(recent.len()));
        let (known, drained) = (0, Default::default());
        let mut episodes = Self { recent, total, mean_return: f64::NAN, mean_length: f64::NAN, known, drained };
        episodes.average();
        episodes
    }

    /// Drops the finished episodes from the environments' log, because an earlier run made them.
    fn discard(&mut self, env: &mut dyn VectorEnv) {
        self.drain(env);
    }

    /// Adds the episodes that finished since the last call of `update` or `discard`.
    fn update(&mut self, env: &mut dyn VectorEnv) {
        let new = self.drain(env);
        let (returns, lengths) = std::mem::take(&mut self.drained);
        self.record(new, &returns, &lengths);
        self.drained = (returns, lengths);
    }

    /// Adds `new` episodes.
    ///
    /// `returns` and `lengths` hold the most recent of these episodes, oldest first. The
    /// environments' log drops older episodes, but counts them in `new`.
    fn record(&mut self, new: u64, returns: &[f64], lengths: &[u32]) {
        if new == 0 {
            return;
        }
        self.total += new;
        for episode in returns.iter().copied().zip(lengths.iter().copied()) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(episode);
        }
        self.average();
    }

    fn average(&mut self) {
        let mean =
            |value: &dyn Fn(&(f64, u32)) -> f64| self.recent.iter().map(value).sum::<f64>() / self.recent.len() as f64;
        (self.mean_return, self.mean_length) = (mean(&|episode| episode.0), mean(&|episode| f64::from(episode.1)));
    }

    /// Moves the episodes of the environments' log into `drained`. Returns the number of episodes
    /// that finished since the last call.
    fn drain(&mut self, env: &mut dyn VectorEnv) -> u64 {
        let (returns, lengths) = &mut self.drained;
        returns.clear();
        lengths.clear();
        let log = env.episodes();
        let new = log.total() - self.known;
        self.known = log.total();
        log.drain(returns, lengths);
        new
    }
}

/// Checks that a number is in [0, 1].
fn check_share(name: &'static str, share: f64) -> Result<()> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Error::config(name, "a number in [0, 1]", share.to_string(), "correct it"))
}

/// Checks that all counts are at least 1; each count has the name of its setting.
fn check_counts(counts: &[(&'static str, usize)]) -> Result<()> {
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((name, _)) => Err(Error::config(*name, "at least 1", "0", "pass a positive number")),
        None => Ok(()),
    }
}

/// Calls `work` with a callback that polls `stop`.
///
/// Returns `None` if `work` ended with [`Error::Interrupted`] because `stop` returned `true`.
fn run_interruptible<T>(
    stop: &mut dyn FnMut() -> bool,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T>,
) -> Result<Option<T>> {
    let mut stopped = false;
    let result = work(&mut || {
        stopped = stopped || stop();
        stopped
    });
    match result {
        Err(Error::Interrupted) if stopped => Ok(None),
        result => result.map(Some),
    }
}
