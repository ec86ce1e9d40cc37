//! Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018): config, learner and trainer.

use rlox_core::{ActionsMut, EnvSpec, Normalizer, Pcg64, Result, VectorEnv, normalize::NormalizerOptions};

use super::algorithm::{Algorithm, Method, as_continuous, check_dims, merge_tensors, select_tensors};
use super::checkpoint::settings::{self, ConfigMap, ConfigValue};
use super::evaluate::as_continuous_mut;
use super::replay::{ReplayBatch, ReplayConfig, replay_config};
use super::{
    ActionNoise, NoiseProcess, OffPolicy, OffPolicyUpdateStats, Schedule, check_counts, check_share, evaluate_policy,
};
use crate::alloc::resize;
use crate::losses::td_targets;
use crate::{
    ActionScaling, ActionValue, Activation, CriticBatch, CriticEnsemble, DeterministicActor, DeterministicPolicy, Mlp,
    NamedTensors, Optimizer, Smoothing, validate,
};

/// Settings of TD3, with the names and defaults of Stable-Baselines3.
#[derive(Clone, Debug, PartialEq)]
pub struct Td3Config {
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
    /// Soft update coefficient of the target networks: `target += tau * (online - target)`.
    pub tau: f32,
    /// Number of minibatches between updates of the actor and the target networks.
    pub policy_delay: usize,
    /// Standard deviation of the smoothing noise on the target policy's actions.
    pub target_policy_noise: f32,
    /// Bound to which the smoothing noise is clipped.
    pub target_noise_clip: f32,
    /// Optimiser of actor and critics, with the initial learning rate.
    pub optimizer: Optimizer,
    /// Schedule of the learning rate.
    pub lr_schedule: Schedule,
    /// Exploration noise; `None` for greedy actions after the warm-up.
    pub action_noise: Option<ActionNoise>,
    /// Normalisation of observations and rewards; `None` for no normalisation.
    pub normalize: Option<NormalizerOptions>,
}

impl Default for Td3Config {
    fn default() -> Self {
        Self {
            buffer_size: 1_000_000,
            learning_starts: 100,
            batch_size: 256,
            train_freq: 1,
            gradient_steps: Some(1),
            utd_ratio: None,
            n_steps: 1,
            gamma: 0.99,
            tau: 0.005,
            policy_delay: 2,
            target_policy_noise: 0.2,
            target_noise_clip: 0.5,
            optimizer: Optimizer::adam(1e-3),
            lr_schedule: Schedule::Constant,
            action_noise: None,
            normalize: None,
        }
    }
}

impl Td3Config {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for the first setting out of range.
    pub fn check(&self) -> Result<()> {
        self.replay_config().check()?;
        check_share("tau", f64::from(self.tau))?;
        check_counts(&[("policy_delay", self.policy_delay)])?;
        validate::check_not_negative("target_policy_noise", self.target_policy_noise)?;
        validate::check_not_negative("target_noise_clip", self.target_noise_clip)?;
        self.optimizer.check()?;
        self.action_noise.map_or(Ok(()), |noise| noise.check())
    }

    /// Creates a policy and two critics that are built-in networks with hidden layers of widths
    /// `net_arch`.
    ///
    /// Stable-Baselines3 uses 400 and 300.
    ///
    /// # Errors
    /// Errors of [`DeterministicActor::mlp`] and [`CriticEnsemble::mlp`].
    pub fn mlp(
        &self,
        spec: &EnvSpec,
        net_arch: &[usize],
        rng: &mut Pcg64,
    ) -> Result<(DeterministicActor<Mlp>, CriticEnsemble<Mlp>)> {
        let policy = DeterministicActor::mlp(spec, net_arch, Activation::Relu, rng)?;
        Ok((policy, CriticEnsemble::mlp(spec, net_arch, Activation::Relu, 2, rng)?))
    }

    fn replay_config(&self) -> ReplayConfig {
        replay_config!(self, None)
    }
}

/// Trainer of TD3 for any policy and critics.
///
/// ```
/// use rlox_core::{AutoresetMode, VecEnv, envs::Pendulum};
/// use rlox_nn::train::{ActionNoise, Td3, Td3Config};
///
/// let env = VecEnv::new(2, None, AutoresetMode::SameStep, Pendulum::default)?;
/// let action_noise = Some(ActionNoise::Gaussian { sigma: 0.1 });
/// let config = Td3Config { learning_starts: 64, batch_size: 32, action_noise, ..Td3Config::default() };
/// let make = |spec: &_, rng: &mut _| config.mlp(spec, &[16, 16], rng);
/// let mut td3 = Td3::new(Box::new(env), make, config.clone(), 1)?;
/// let metrics = td3.train(100, |_| true)?;
/// assert_eq!((metrics.timesteps, metrics.updates), (100, 18));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub type Td3<P, C> = OffPolicy<Td3Learner<P, C>>;

/// Learner of TD3 with its networks.
#[derive(Debug)]
pub struct Td3Learner<P, C> {
    policy: P,
    critics: C,
    config: Td3Config,
    noise: Option<NoiseProcess>,
    updates: u64,
    memory: Memory,
}

/// Buffers for one minibatch.
#[derive(Clone, Debug, Default)]
struct Memory {
    next_actions: Vec<f32>,
    /// The shape is `[B]`, as for `targets`.
    next_values: Vec<f32>,
    targets: Vec<f32>,
}

impl<P, C> Td3Learner<P, C> {
    /// Returns the policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns a mutable reference to the policy, for example to load weights.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Returns the critics.
    pub fn critics(&self) -> &C {
        &self.critics
    }

    /// Returns a mutable reference to the critics, for example to compute values.
    pub fn critics_mut(&mut self) -> &mut C {
        &mut self.critics
    }
}

impl<P: DeterministicPolicy, C: ActionValue> Method for Td3Learner<P, C> {
    type Config = Td3Config;
    type Networks = (P, C);
    const NAME: &'static str = "td3";
    const HIDDEN: &'static [usize] = &[400, 300];

    fn replay_config(config: &Td3Config, spec: &EnvSpec) -> Result<ReplayConfig> {
        config.check()?;
        // Rejects spaces other than a Box with finite bounds.
        ActionScaling::new(&spec.action)?;
        Ok(config.replay_config())
    }

    fn new(config: Td3Config, (policy, critics): (P, C), spec: &EnvSpec, num_envs: usize) -> Result<Self> {
        let dims = (spec.observation.dim(), spec.action.dim());
        check_dims("policy", (policy.obs_dim(), policy.action_dim()), dims)?;
        check_dims("critics", (critics.obs_dim(), critics.action_dim()), dims)?;
        let noise = config.action_noise.map(|noise| NoiseProcess::new(noise, num_envs, dims.1)).transpose()?;
        Ok(Self { policy, critics, config, noise, updates: 0, memory: Memory::default() })
    }

    fn config_map(config: &Td3Config) -> ConfigMap {
        use ConfigValue::{Count, Single};
        let mut config_map = vec![
            ("tau", Single(config.tau)),
            ("policy_delay", Count(config.policy_delay)),
            ("target_policy_noise", Single(config.target_policy_noise)),
            ("target_noise_clip", Single(config.target_noise_clip)),
            ("lr_schedule", config.lr_schedule.into()),
            ("action_noise", config.action_noise.into()),
        ];
        config_map.extend(settings::optimizer(config.optimizer));
        config_map
    }

    fn arch(&self) -> ConfigMap {
        settings::actor_critic_arch(self.policy.arch(), self.critics.arch(), self.critics.num_critics())
    }
}

impl<P: DeterministicPolicy, C: ActionValue> Algorithm for Td3Learner<P, C> {
    fn explore(
        &mut self,
        obs: &[f32],
        _masks: Option<&[bool]>,
        _rngs: &mut [Pcg64],
        _progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()> {
        let actions = as_continuous_mut(actions)?;
        self.policy.act(obs, actions)
    }

    fn perturb(&mut self, rngs: &mut [Pcg64], actions: ActionsMut<'_>) -> Result<()> {
        self.noise.as_mut().map_or(Ok(()), |noise| noise.apply(rngs, as_continuous_mut(actions)?))
    }

    fn act_greedy(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.policy.act(obs, as_continuous_mut(actions)?)
    }

    fn end_episodes(&mut self, ended: &dyn Fn(usize) -> bool) {
        if let Some(noise) = &mut self.noise {
            noise.end_episodes(ended);
        }
    }

    fn learn(&mut self, batch: &ReplayBatch<'_>, rng: &mut Pcg64, progress: f64) -> Result<OffPolicyUpdateStats> {
        let Self { policy, critics, config, memory, updates, .. } = self;
        let optimizer = config.optimizer.with_lr(config.lr_schedule.value_at(config.optimizer.lr(), progress));
        let Memory { next_actions, next_values, targets } = memory;
        let rows = batch.rewards.len();
        resize("batch_size", next_actions, rows * policy.action_dim(), 0.0)?;
        resize("batch_size", next_values, rows, 0.0)?;
        resize("batch_size", targets, rows, 0.0)?;
        let smoothing = Smoothing { noise: config.target_policy_noise, clip: config.target_noise_clip };
        policy.target_actions(batch.next_obs, smoothing, rng, next_actions)?;
        critics.target_values(batch.next_obs, next_actions, next_values)?;
        td_targets(batch.rewards, batch.terminated, batch.discount, next_values, targets)?;
        let critic_batch =
            CriticBatch { obs: batch.obs, actions: as_continuous(batch.actions)?, targets, weights: batch.weights };
        let critic = critics.update(&critic_batch, 1.0, &optimizer, None)?;
        *updates += 1;
        let mut actor_loss = None;
        if updates.is_multiple_of(config.policy_delay as u64) {
            actor_loss = Some(policy.update(batch.obs, critics, &optimizer, None)?.loss);
            critics.soft_update(config.tau)?;
            policy.soft_update(config.tau)?;
        }
        Ok(OffPolicyUpdateStats {
            critic_loss: critic.loss,
            mean_value: critic.mean_value,
            grad_norm: critic.grad_norm,
            actor_loss,
            learning_rate: optimizer.lr(),
            ..OffPolicyUpdateStats::default()
        })
    }

    fn td_errors(&self) -> &[f32] {
        self.critics.td_errors()
    }

    fn evaluate(
        &mut self,
        env: &mut dyn VectorEnv,
        episodes: usize,
        seed: u64,
        normalizer: Option<&Normalizer>,
    ) -> Result<Vec<f64>> {
        evaluate_policy(&mut self.policy, env, episodes, seed, normalizer)
    }

    fn tensors(&self) -> NamedTensors {
        merge_tensors(&[self.policy.tensors(), self.critics.tensors()])
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.check_tensors(tensors)?;
        let Self { policy, critics, .. } = self;
        policy.load(&select_tensors(tensors, &policy.tensors()))?;
        critics.load(&select_tensors(tensors, &critics.tensors()))
    }

    fn optimizer_state(&self) -> NamedTensors {
        merge_tensors(&[self.policy.optimizer_state(), self.critics.optimizer_state()])
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.check_optimizer_state(state)?;
        let Self { policy, critics, .. } = self;
        policy.load_optimizer_state(&select_tensors(state, &policy.optimizer_state()))?;
        critics.load_optimizer_state(&select_tensors(state, &critics.optimizer_state()))
    }

    fn noise(&self) -> &[f32] {
        self.noise.as_ref().map_or(&[], NoiseProcess::state)
    }

    fn set_noise(&mut self, noise: &[f32]) -> Result<()> {
        match &mut self.noise {
            Some(process) => process.set_state(noise),
            None => rlox_core::error::check_len("noise", noise.len(), 0),
        }
    }

    fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }
}
