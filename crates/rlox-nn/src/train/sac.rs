//! Soft actor-critic (Haarnoja et al. 2018): config, learner and trainer.

use rlox_core::{ActionsMut, EnvSpec, Error, Normalizer, Pcg64, Result, VectorEnv, normalize::NormalizerOptions};

use super::algorithm::{Algorithm, Method, as_continuous, check_dims, merge_tensors, select_tensors};
use super::checkpoint::settings::{self, ConfigMap, ConfigValue};
use super::evaluate::as_continuous_mut;
use super::replay::{ReplayBatch, ReplayConfig, replay_config};
use super::{
    ActionNoise, NoiseProcess, OffPolicy, OffPolicyUpdateStats, Schedule, check_counts, check_share, evaluate_policy,
};
use crate::alloc::resize;
use crate::losses::{soft_values, td_targets};
use crate::{
    ActionScaling, ActionValue, Activation, CriticBatch, CriticEnsemble, Mlp, NamedTensors, Optimizer, SquashedPolicy,
    StochasticPolicy, Temperature, validate,
};

/// Entropy coefficient of SAC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EntCoef {
    /// Learned coefficient that keeps the entropy near a target.
    Auto {
        /// Initial value, above 0.
        initial: f32,
        /// Target entropy; `None` for minus the number of action components.
        target_entropy: Option<f32>,
    },
    /// Constant coefficient.
    Fixed(f32),
}

/// Settings of SAC, with the names and defaults of Stable-Baselines3.
#[derive(Clone, Debug, PartialEq)]
pub struct SacConfig {
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
    /// Number of minibatches between updates of the target networks.
    pub target_update_interval: usize,
    /// Optimiser of actor, critics and entropy coefficient, with the initial learning rate.
    pub optimizer: Optimizer,
    /// Schedule of the learning rate.
    pub lr_schedule: Schedule,
    /// Entropy coefficient.
    pub ent_coef: EntCoef,
    /// Action noise in addition to the policy's own; `None` for no additional noise.
    pub action_noise: Option<ActionNoise>,
    /// `true` for generalised state-dependent exploration, gSDE ([`SquashedPolicy::mlp_with_sde`]).
    pub use_sde: bool,
    /// Number of steps between draws of the gSDE noise; 0 (-1 in Stable-Baselines3) draws the noise
    /// once per iteration.
    pub sde_sample_freq: usize,
    /// `true` if warm-up actions come from gSDE instead of a uniform distribution.
    pub use_sde_at_warmup: bool,
    /// Initial logarithm of the standard deviations of gSDE.
    pub log_std_init: f32,
    /// Normalisation of observations and rewards; `None` for no normalisation.
    pub normalize: Option<NormalizerOptions>,
}

impl Default for SacConfig {
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
            target_update_interval: 1,
            optimizer: Optimizer::adam(3e-4),
            lr_schedule: Schedule::Constant,
            ent_coef: EntCoef::Auto { initial: 1.0, target_entropy: None },
            action_noise: None,
            use_sde: false,
            sde_sample_freq: 0,
            use_sde_at_warmup: false,
            log_std_init: -3.0,
            normalize: None,
        }
    }
}

impl SacConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] for the first setting out of range.
    pub fn check(&self) -> Result<()> {
        self.replay_config().check()?;
        check_share("tau", f64::from(self.tau))?;
        check_counts(&[("target_update_interval", self.target_update_interval)])?;
        self.optimizer.check()?;
        self.temperature(1).map_err(|error| error.rename_argument("alpha", "ent_coef"))?;
        self.action_noise.map_or(Ok(()), |noise| noise.check())?;
        if self.use_sde_at_warmup && !self.use_sde {
            let fix = "set use_sde = true, or this to false";
            return Err(Error::config("use_sde_at_warmup", "false without use_sde", "true", fix));
        }
        if self.log_std_init.is_finite() {
            return Ok(());
        }
        Err(Error::config("log_std_init", "a finite number", self.log_std_init.to_string(), "pass a number such as -3"))
    }

    /// Creates a policy and two critics that are built-in networks with hidden layers of widths
    /// `net_arch`.
    ///
    /// Stable-Baselines3 uses 256 and 256.
    ///
    /// # Errors
    /// Errors of [`SquashedPolicy::mlp`], [`SquashedPolicy::mlp_with_sde`] and [`CriticEnsemble::mlp`].
    pub fn mlp(
        &self,
        spec: &EnvSpec,
        net_arch: &[usize],
        rng: &mut Pcg64,
    ) -> Result<(SquashedPolicy<Mlp>, CriticEnsemble<Mlp>)> {
        let policy = if self.use_sde {
            SquashedPolicy::mlp_with_sde(spec, net_arch, Activation::Relu, self.log_std_init, rng)?
        } else {
            SquashedPolicy::mlp(spec, net_arch, Activation::Relu, rng)?
        };
        Ok((policy, CriticEnsemble::mlp(spec, net_arch, Activation::Relu, 2, rng)?))
    }

    fn replay_config(&self) -> ReplayConfig {
        replay_config!(self, None)
    }

    /// Returns the temperature for actions of `dim` components.
    fn temperature(&self, dim: usize) -> Result<Temperature> {
        match self.ent_coef {
            EntCoef::Auto { initial, target_entropy } => {
                Temperature::learned(initial, target_entropy.unwrap_or(-(dim as f32)))
            }
            EntCoef::Fixed(alpha) => Temperature::fixed(alpha),
        }
    }

    /// Returns the settings under their names in checkpoints, without those of [`ReplayConfig`].
    fn config_map(&self) -> ConfigMap {
        use ConfigValue::{Auto, Count, Flag, Once, Single, Word};
        let (ent_coef, target_entropy) = match self.ent_coef {
            EntCoef::Auto { initial, target_entropy } => (Auto(initial), target_entropy),
            EntCoef::Fixed(alpha) => (Single(alpha), None),
        };
        let every = self.sde_sample_freq;
        let mut config_map = vec![
            ("tau", Single(self.tau)),
            ("target_update_interval", Count(self.target_update_interval)),
            ("lr_schedule", self.lr_schedule.into()),
            ("action_noise", self.action_noise.into()),
            ("use_sde", Flag(self.use_sde)),
            ("sde_sample_freq", if every == 0 { Once } else { Count(every) }),
            ("use_sde_at_warmup", Flag(self.use_sde_at_warmup)),
        ];
        if matches!(ent_coef, Auto(_)) {
            config_map.push(("target_entropy", target_entropy.map_or(Word("auto"), Single)));
        }
        config_map.push(("ent_coef", ent_coef));
        config_map.extend(settings::optimizer(self.optimizer));
        config_map
    }
}

/// Trainer of SAC for any policy and critics.
///
/// ```
/// use rlox_core::{AutoresetMode, VecEnv, envs::Pendulum};
/// use rlox_nn::train::{Sac, SacConfig};
///
/// let env = VecEnv::new(1, None, AutoresetMode::SameStep, Pendulum::default)?;
/// let config = SacConfig { learning_starts: 64, batch_size: 32, ..SacConfig::default() };
/// let make = |spec: &_, rng: &mut _| config.mlp(spec, &[16, 16], rng);
/// let mut sac = Sac::new(Box::new(env), make, config.clone(), 1)?;
/// let metrics = sac.train(100, |_| true)?;
/// assert_eq!((metrics.timesteps, metrics.updates), (100, 36));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub type Sac<P, C> = OffPolicy<SacLearner<P, C>>;

/// Learner of SAC with its networks.
#[derive(Debug)]
pub struct SacLearner<P, C> {
    policy: P,
    critics: C,
    temperature: Temperature,
    config: SacConfig,
    noise: Option<NoiseProcess>,
    /// Steps of each environment in the current iteration.
    steps: usize,
    updates: u64,
    memory: Memory,
}

/// Buffers for one minibatch.
#[derive(Clone, Debug, Default)]
struct Memory {
    actions: Vec<f32>,
    /// The shape is `[B]`, as for all following fields.
    log_probs: Vec<f32>,
    next_log_probs: Vec<f32>,
    next_values: Vec<f32>,
    targets: Vec<f32>,
}

impl<P, C> SacLearner<P, C> {
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

    /// Returns the temperature, which is the entropy coefficient.
    pub fn temperature(&self) -> &Temperature {
        &self.temperature
    }
}

impl<P: StochasticPolicy, C: ActionValue> Method for SacLearner<P, C> {
    type Config = SacConfig;
    type Networks = (P, C);
    const NAME: &'static str = "sac";
    const HIDDEN: &'static [usize] = &[256, 256];

    fn replay_config(config: &SacConfig, spec: &EnvSpec) -> Result<ReplayConfig> {
        config.check()?;
        // Rejects spaces other than a Box with finite bounds.
        ActionScaling::new(&spec.action)?;
        Ok(config.replay_config())
    }

    fn new(config: SacConfig, (policy, critics): (P, C), spec: &EnvSpec, num_envs: usize) -> Result<Self> {
        let dims = (spec.observation.dim(), spec.action.dim());
        check_dims("policy", (policy.obs_dim(), policy.action_dim()), dims)?;
        check_dims("critics", (critics.obs_dim(), critics.action_dim()), dims)?;
        let noise = config.action_noise.map(|noise| NoiseProcess::new(noise, num_envs, dims.1)).transpose()?;
        let temperature = config.temperature(dims.1)?;
        Ok(Self { policy, critics, temperature, config, noise, steps: 0, updates: 0, memory: Memory::default() })
    }

    fn config_map(config: &SacConfig) -> ConfigMap {
        config.config_map()
    }

    fn arch(&self) -> ConfigMap {
        settings::actor_critic_arch(self.policy.arch(), self.critics.arch(), self.critics.num_critics())
    }
}

impl<P: StochasticPolicy, C: ActionValue> Algorithm for SacLearner<P, C> {
    fn begin(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        self.steps = 0;
        self.policy.draw_noise(rngs)
    }

    fn explores_at_warmup(&self) -> bool {
        self.config.use_sde_at_warmup
    }

    fn explore(
        &mut self,
        obs: &[f32],
        _masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        _progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()> {
        let actions = as_continuous_mut(actions)?;
        let every = self.config.sde_sample_freq;
        if self.steps > 0 && every > 0 && self.steps.is_multiple_of(every) {
            self.policy.draw_noise(rngs)?;
        }
        resize("num_envs", &mut self.memory.log_probs, rngs.len(), 0.0)?;
        self.policy.act(obs, rngs, actions, &mut self.memory.log_probs)
    }

    fn explore_stateless(
        &mut self,
        obs: &[f32],
        _masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        _progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()> {
        resize("num_envs", &mut self.memory.log_probs, rngs.len(), 0.0)?;
        self.policy.act_stateless(obs, rngs, as_continuous_mut(actions)?, &mut self.memory.log_probs)
    }

    fn perturb(&mut self, rngs: &mut [Pcg64], actions: ActionsMut<'_>) -> Result<()> {
        self.noise.as_mut().map_or(Ok(()), |noise| noise.apply(rngs, as_continuous_mut(actions)?))
    }

    fn act_greedy(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.policy.act_deterministic(obs, as_continuous_mut(actions)?)
    }

    fn end_episodes(&mut self, ended: &dyn Fn(usize) -> bool) {
        if let Some(noise) = &mut self.noise {
            noise.end_episodes(ended);
        }
    }

    fn on_step(&mut self, _timesteps: std::ops::Range<u64>) -> Result<()> {
        self.steps += 1;
        Ok(())
    }

    fn learn(&mut self, batch: &ReplayBatch<'_>, rng: &mut Pcg64, progress: f64) -> Result<OffPolicyUpdateStats> {
        let Self { policy, critics, temperature, config, memory, .. } = self;
        let optimizer = config.optimizer.with_lr(config.lr_schedule.value_at(config.optimizer.lr(), progress));
        let Memory { actions, log_probs, next_log_probs, next_values, targets } = memory;
        let rows = batch.rewards.len();
        resize("batch_size", actions, rows * policy.action_dim(), 0.0)?;
        for numbers in [&mut *log_probs, &mut *next_log_probs, &mut *next_values, &mut *targets] {
            resize("batch_size", numbers, rows, 0.0)?;
        }
        // The actor's actions are sampled before the critics' update, as in Stable-Baselines3. The
        // actor's update follows the critics'.
        policy.rsample(batch.obs, rng, actions, log_probs)?;
        let alpha = temperature.alpha();
        validate::check_finite_outputs("log_probs", log_probs, 1)?;
        policy.sample(batch.next_obs, rng, actions, next_log_probs)?;
        critics.target_values(batch.next_obs, actions, next_values)?;
        soft_values(next_values, next_log_probs, alpha)?;
        td_targets(batch.rewards, batch.terminated, batch.discount, next_values, targets)?;
        let critic_batch =
            CriticBatch { obs: batch.obs, actions: as_continuous(batch.actions)?, targets, weights: batch.weights };
        let critic = critics.update(&critic_batch, 0.5, &optimizer, None)?;
        let actor = policy.update(batch.obs, critics, alpha, &optimizer, None)?;
        // The coefficient is updated last, so that an error of another update leaves it unchanged.
        // The other updates use its old value.
        let learns = matches!(config.ent_coef, EntCoef::Auto { .. });
        let ent_coef_loss = if learns { Some(temperature.update(log_probs, &optimizer)?) } else { None };
        if self.updates.is_multiple_of(config.target_update_interval as u64) {
            critics.soft_update(config.tau)?;
        }
        self.updates += 1;
        Ok(OffPolicyUpdateStats {
            critic_loss: critic.loss,
            mean_value: critic.mean_value,
            grad_norm: critic.grad_norm,
            actor_loss: Some(actor.loss),
            ent_coef: Some(alpha),
            ent_coef_loss,
            learning_rate: optimizer.lr(),
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
        merge_tensors(&[self.policy.tensors(), self.critics.tensors(), self.temperature.tensors()])
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.check_tensors(tensors)?;
        let Self { policy, critics, temperature, .. } = self;
        policy.load(&select_tensors(tensors, &policy.tensors()))?;
        critics.load(&select_tensors(tensors, &critics.tensors()))?;
        temperature.load(&select_tensors(tensors, &temperature.tensors()))
    }

    fn optimizer_state(&self) -> NamedTensors {
        let Self { policy, critics, temperature, .. } = self;
        merge_tensors(&[policy.optimizer_state(), critics.optimizer_state(), temperature.optimizer_state()])
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.check_optimizer_state(state)?;
        let Self { policy, critics, temperature, .. } = self;
        policy.load_optimizer_state(&select_tensors(state, &policy.optimizer_state()))?;
        critics.load_optimizer_state(&select_tensors(state, &critics.optimizer_state()))?;
        temperature.load_optimizer_state(&select_tensors(state, &temperature.optimizer_state()))
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
