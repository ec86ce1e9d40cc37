//! Algorithms from environments to trained policies, without Python and on any backend.

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
    pub fn value_at(self, initial: f32, progress: f64) -> f32 {
        match self {
            Self::Constant => initial,
            Self::Linear => (f64::from(initial) * (1.0 - progress)) as f32,
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
    pub last_update: UpdateStats,
    /// Passes over a rollout so far.
    pub updates: u64,
}

/// What learning from a rollout said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateStats {
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

/// What a minibatch of an off-policy method said, or the means of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffPolicyUpdateStats {
    /// The loss of the critics, or of the Q-function.
    pub critic_loss: f32,
    /// The mean value of the actions that were taken.
    pub mean_value: f32,
    /// The norm of the critics' gradients, or the Q-function's, before they were clipped.
    pub grad_norm: f32,
    /// The loss of the actor, where there is one that has learned.
    pub actor_loss: Option<f32>,
    /// What entropy is worth, to SAC.
    pub ent_coef: Option<f32>,
    /// The loss of that, where it is learned.
    pub ent_coef_loss: Option<f32>,
    /// The learning rate there was.
    pub learning_rate: f32,
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

/// Means of what minibatches of off-policy methods say.
#[derive(Debug, Default)]
struct OffPolicyMeans {
    /// How many said something, and the sum.
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

    /// The means, if there are any; what no minibatch told is as it was before.
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

/// Episodes whose mean is reported.
const RECENT: usize = 100;

/// The newest of them, and how many there were.
#[derive(Debug)]
struct Episodes {
    /// Returns and lengths, oldest first.
    recent: VecDeque<(f64, u32)>,
    total: u64,
    /// Their means; NaN before the first.
    mean_return: f64,
    mean_length: f64,
    /// How many the environments had counted when they were last asked.
    known: u64,
    drained: (Vec<f64>, Vec<u32>),
}

impl Episodes {
    /// So many, the newest of which are `recent`.
    fn new(total: u64, mut recent: VecDeque<(f64, u32)>) -> Self {
        recent.reserve(RECENT.saturating_sub(recent.len()));
        let (known, drained) = (0, Default::default());
        let mut episodes = Self { recent, total, mean_return: f64::NAN, mean_length: f64::NAN, known, drained };
        episodes.average();
        episodes
    }

    /// Drops those that the environments tell of: they are not this trainer's.
    fn discard(&mut self, env: &mut dyn VectorEnv) {
        self.drain(env);
    }

    /// Takes in those that were finished since the last time.
    fn update(&mut self, env: &mut dyn VectorEnv) {
        let new = self.drain(env);
        let (returns, lengths) = std::mem::take(&mut self.drained);
        self.record(new, &returns, &lengths);
        self.drained = (returns, lengths);
    }

    /// Takes in so many, of which the newest are told, oldest first.
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

    /// Puts them into `drained`, in the place of what is there; says how many there were.
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
