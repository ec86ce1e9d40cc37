//! Deep Q-networks (Mnih et al. 2015): config, learner and trainer.

use std::ops::Range;

use rlox_core::{
    Actions, ActionsMut, EnvSpec, Error, Normalizer, Pcg64, Result, VectorEnv, normalize::NormalizerOptions,
};

use super::algorithm::{Algorithm, Method, check_dims};
use super::checkpoint::settings::{self, ConfigMap, ConfigValue};
use super::replay::{ReplayBatch, ReplayConfig, replay_config};
use super::{
    Greedy, OffPolicy, OffPolicyUpdateStats, Priorities, Schedule, check_counts, check_share, evaluate_policy,
};
use crate::builders::num_actions;
use crate::validate::check_not_negative;
use crate::{NamedTensors, Optimizer, QBatch, QFunction, QLoss, TdLoss};

/// Settings of DQN, with the names and defaults of Stable-Baselines3.
#[derive(Clone, Debug, PartialEq)]
pub struct DqnConfig {
    /// Capacity of the replay buffer in transitions.
    pub buffer_size: usize,
    /// Number of environment steps with random actions, before learning starts.
    pub learning_starts: u64,
    /// Number of transitions per minibatch. Minibatches are smaller while the buffer holds fewer.
    pub batch_size: usize,
    /// Number of steps of each environment per iteration.
    pub train_freq: usize,
    /// Number of minibatches per iteration. `None` (-1 in Stable-Baselines3) means one minibatch
    /// per transition that the iteration collected.
    pub gradient_steps: Option<usize>,
    /// Number of minibatches per collected transition, which replaces `gradient_steps`. A fraction
    /// of a minibatch carries over to the next iteration.
    pub utd_ratio: Option<f64>,
    /// Number of steps of the n-step returns.
    pub n_steps: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Soft update coefficient of the target network: `target += tau * (online - target)`.
    pub tau: f32,
    /// Number of environment steps, over all environments, between updates of the target network.
    pub target_update_interval: u64,
    /// `true` for double Q-learning (van Hasselt et al. 2016), which Stable-Baselines3 does not have.
    ///
    /// The online network chooses the next action, and the target network computes its value.
    pub double: bool,
    /// Loss function of the temporal difference errors.
    pub loss: TdLoss,
    /// Optimiser with the initial learning rate.
    pub optimizer: Optimizer,
    /// Schedule of the learning rate.
    pub lr_schedule: Schedule,
    /// Maximum norm of the gradient of all parameters.
    pub max_grad_norm: f32,
    /// Fraction of the run over which epsilon, the probability of a random action, decays.
    pub exploration_fraction: f64,
    /// Epsilon at the start of the run.
    pub exploration_initial_eps: f32,
    /// Epsilon after `exploration_fraction` of the run.
    pub exploration_final_eps: f32,
    /// Normalisation of observations and rewards; `None` for no normalisation.
    pub normalize: Option<NormalizerOptions>,
    /// Prioritized replay (Schaul et al. 2016), not in Stable-Baselines3; `None` for uniform sampling.
    pub prioritized: Option<Priorities>,
}

impl Default for DqnConfig {
    fn default() -> Self {
        Self {
            buffer_size: 1_000_000,
            learning_starts: 100,
            batch_size: 32,
            train_freq: 4,
            gradient_steps: Some(1),
            utd_ratio: None,
            n_steps: 1,
            gamma: 0.99,
            tau: 1.0,
            target_update_interval: 10_000,
            double: false,
            loss: TdLoss::Huber,
            optimizer: Optimizer::adam(1e-4),
            lr_schedule: Schedule::Constant,
            max_grad_norm: 10.0,
            exploration_fraction: 0.1,
            exploration_initial_eps: 1.0,
            exploration_final_eps: 0.05,
            normalize: None,
            prioritized: None,
        }
    }
}

impl DqnConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] for the first setting out of range.
    pub fn check(&self) -> Result<()> {
        self.replay_config().check()?;
        check_share("tau", f64::from(self.tau))?;
        check_counts(&[("target_update_interval", usize::from(self.target_update_interval > 0))])?;
        self.optimizer.check()?;
        check_not_negative("max_grad_norm", self.max_grad_norm)?;
        check_share("exploration_fraction", self.exploration_fraction)?;
        check_share("exploration_initial_eps", f64::from(self.exploration_initial_eps))?;
        check_share("exploration_final_eps", f64::from(self.exploration_final_eps))
    }

    /// Returns epsilon at `progress`, the finished fraction of the run in [0, 1].
    ///
    /// ```
    /// let config = rlox_nn::train::DqnConfig { exploration_fraction: 0.5, ..Default::default() };
    /// assert_eq!(config.exploration_rate(0.25), 0.525);
    /// assert_eq!(config.exploration_rate(0.75), 0.05);
    /// ```
    pub fn exploration_rate(&self, progress: f64) -> f32 {
        let (from, to) = (f64::from(self.exploration_initial_eps), f64::from(self.exploration_final_eps));
        if progress >= self.exploration_fraction {
            return self.exploration_final_eps;
        }
        (from + (to - from) * progress / self.exploration_fraction) as f32
    }

    fn replay_config(&self) -> ReplayConfig {
        replay_config!(self, self.prioritized)
    }
}

/// Trainer of DQN for any Q-function.
///
/// ```
/// use rlox_core::{AutoresetMode, VecEnv, envs::CartPole};
/// use rlox_nn::{Activation, QNetworks, train::{Dqn, DqnConfig}};
///
/// let env = VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?;
/// let make = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[64, 64], Activation::Relu, rng);
/// let mut dqn = Dqn::new(Box::new(env), make, DqnConfig::default(), 1)?;
/// let metrics = dqn.train(400, |_| true)?;
/// assert_eq!((metrics.timesteps, metrics.updates), (400, 19));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub type Dqn<Q> = OffPolicy<DqnLearner<Q>>;

/// Learner of DQN with its Q-function.
#[derive(Debug)]
pub struct DqnLearner<Q> {
    q: Q,
    config: DqnConfig,
}

impl<Q> DqnLearner<Q> {
    /// Returns the Q-function.
    pub fn q_function(&self) -> &Q {
        &self.q
    }

    /// Returns a mutable reference to the Q-function, for example to load weights.
    pub fn q_function_mut(&mut self) -> &mut Q {
        &mut self.q
    }
}

impl<Q: QFunction> Method for DqnLearner<Q> {
    type Config = DqnConfig;
    type Networks = Q;
    const NAME: &'static str = "dqn";
    const HIDDEN: &'static [usize] = &[64, 64];

    fn replay_config(config: &DqnConfig, spec: &EnvSpec) -> Result<ReplayConfig> {
        config.check()?;
        num_actions(spec)?;
        Ok(config.replay_config())
    }

    fn new(config: DqnConfig, q: Q, spec: &EnvSpec, _num_envs: usize) -> Result<Self> {
        let dims = (spec.observation.dim(), num_actions(spec)?);
        check_dims("q_function", (q.obs_dim(), q.num_actions()), dims)?;
        Ok(Self { q, config })
    }

    fn config_map(config: &DqnConfig) -> ConfigMap {
        use ConfigValue::{Double, Flag, Single, Word};
        let loss = match config.loss {
            TdLoss::Huber => "huber",
            TdLoss::SquaredError => "squared_error",
        };
        let mut config_map = vec![
            ("tau", Single(config.tau)),
            ("target_update_interval", settings::count(config.target_update_interval)),
            ("double", Flag(config.double)),
            ("loss", Word(loss)),
            ("lr_schedule", config.lr_schedule.into()),
            ("max_grad_norm", Single(config.max_grad_norm)),
            ("exploration_fraction", Double(config.exploration_fraction)),
            ("exploration_initial_eps", Single(config.exploration_initial_eps)),
            ("exploration_final_eps", Single(config.exploration_final_eps)),
            ("prioritized", Flag(config.prioritized.is_some())),
        ];
        if let Some(Priorities { alpha, beta }) = config.prioritized {
            config_map.extend([("priority_alpha", Single(alpha)), ("priority_beta", Single(beta))]);
        }
        config_map.extend(settings::optimizer(config.optimizer));
        config_map
    }

    fn arch(&self) -> ConfigMap {
        let arch = self.q.arch();
        let dueling = arch.as_ref().map(|shape| ("dueling", ConfigValue::Flag(shape.dueling)));
        let mut config_map = settings::network_arch(&[arch]);
        config_map.extend(dueling);
        config_map
    }
}

impl<Q: QFunction> Algorithm for DqnLearner<Q> {
    fn explore(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()> {
        let ActionsMut::Discrete(actions) = actions else {
            return Err(Error::space("actions", "integers", "f32 numbers", "use SAC, TD3, PPO or A2C"));
        };
        self.q.act(obs, masks, self.config.exploration_rate(progress), rngs, actions)
    }

    fn on_step(&mut self, timesteps: Range<u64>) -> Result<()> {
        let moves = |timesteps: u64| timesteps / self.config.target_update_interval;
        if moves(timesteps.start) < moves(timesteps.end) { self.q.soft_update(self.config.tau) } else { Ok(()) }
    }

    fn learn(&mut self, batch: &ReplayBatch<'_>, _rng: &mut Pcg64, progress: f64) -> Result<OffPolicyUpdateStats> {
        let Self { q, config, .. } = self;
        let Actions::Discrete(actions) = batch.actions else {
            return Err(Error::space("actions", "integers", "f32 numbers", "use SAC, TD3, PPO or A2C"));
        };
        let ReplayBatch { obs, rewards, next_obs, terminated, discount, weights, next_masks, .. } = *batch;
        let batch = QBatch { obs, actions, rewards, next_obs, terminated, discount, weights, next_masks };
        let optimizer = config.optimizer.with_lr(config.lr_schedule.value_at(config.optimizer.lr(), progress));
        let loss = QLoss { distance: config.loss, double: config.double };
        let stats = q.update(&batch, loss, &optimizer, Some(config.max_grad_norm))?;
        Ok(OffPolicyUpdateStats {
            critic_loss: stats.loss,
            mean_value: stats.mean_value,
            grad_norm: stats.grad_norm,
            learning_rate: optimizer.lr(),
            ..OffPolicyUpdateStats::default()
        })
    }

    fn td_errors(&self) -> &[f32] {
        self.q.td_errors()
    }

    fn act_greedy(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        Greedy::<dyn QFunction>::act_greedy(&mut self.q, obs, masks, actions)
    }

    fn exploration_rate(&self, progress: f64) -> Option<f32> {
        Some(self.config.exploration_rate(progress))
    }

    fn evaluate(
        &mut self,
        env: &mut dyn VectorEnv,
        episodes: usize,
        seed: u64,
        normalizer: Option<&Normalizer>,
    ) -> Result<Vec<f64>> {
        evaluate_policy(&mut self.q, env, episodes, seed, normalizer)
    }

    fn tensors(&self) -> NamedTensors {
        self.q.tensors()
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.q.load(tensors)
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.q.optimizer_state()
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.q.load_optimizer_state(state)
    }

    fn set_updates(&mut self, _updates: u64) {}
}
