//! Soft actor-critic (Haarnoja et al. 2018), from settings to trained policy.

mod config;

use rlox_core::{ActionsMut, EnvSpec, Normalizer, Pcg64, Result, VectorEnv};

use super::algorithm::{Algorithm, Method, check_dims, part_of, together};
use super::experience::{Gathering, Replayed};
use super::greedy::numbers;
use super::{NoiseProcess, OffPolicy, OffPolicyLearned, Settings, evaluate_policy, settings};
use crate::losses::{soft_values, td_targets};
use crate::room::resize;
use crate::{ActionScaling, ActionValue, NamedTensors, StochasticPolicy, Temperature, ValuedActions, rows};
pub use config::{EntCoef, SacConfig};

/// SAC's trainer, of any policy and critics.
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

/// What SAC acts with and learns.
#[derive(Debug)]
pub struct SacLearner<P, C> {
    policy: P,
    critics: C,
    temperature: Temperature,
    config: SacConfig,
    noise: Option<NoiseProcess>,
    /// Steps of each environment since the iteration began.
    steps: usize,
    updates: u64,
    memory: Memory,
}

/// Memory of a minibatch.
#[derive(Clone, Debug, Default)]
struct Memory {
    actions: Vec<f32>,
    /// `[B]`, and so is all below.
    log_probs: Vec<f32>,
    next_log_probs: Vec<f32>,
    next_values: Vec<f32>,
    targets: Vec<f32>,
}

impl<P, C> SacLearner<P, C> {
    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, to act with or to load weights into.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The critics.
    pub fn critics(&self) -> &C {
        &self.critics
    }

    /// The critics, to ask them or to load weights into.
    pub fn critics_mut(&mut self) -> &mut C {
        &mut self.critics
    }

    /// What entropy is worth.
    pub fn temperature(&self) -> &Temperature {
        &self.temperature
    }
}

impl<P: StochasticPolicy, C: ActionValue> Method for SacLearner<P, C> {
    type Config = SacConfig;
    type Networks = (P, C);
    const NAME: &'static str = "sac";
    const HIDDEN: &'static [usize] = &[256, 256];

    fn gathering(config: &SacConfig, spec: &EnvSpec) -> Result<Gathering> {
        config.check()?;
        // Which refuses what is no Box with finite bounds.
        ActionScaling::new(&spec.action)?;
        Ok(config.gathering())
    }

    fn new(config: SacConfig, (policy, critics): (P, C), spec: &EnvSpec, num_envs: usize) -> Result<Self> {
        let dims = (spec.observation.dim(), spec.action.dim());
        check_dims("policy", (policy.obs_dim(), policy.action_dim()), dims)?;
        check_dims("critics", (critics.obs_dim(), critics.action_dim()), dims)?;
        let noise = config.action_noise.map(|noise| NoiseProcess::new(noise, num_envs, dims.1)).transpose()?;
        let temperature = config.temperature(dims.1)?;
        Ok(Self { policy, critics, temperature, config, noise, steps: 0, updates: 0, memory: Memory::default() })
    }

    fn settings(config: &SacConfig) -> Settings {
        config.settings()
    }

    fn shape(&self) -> Settings {
        settings::shape_of_actor_critic(self.policy.shape(), self.critics.shape(), self.critics.num_critics())
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
        let actions = numbers(actions)?;
        let every = self.config.sde_sample_freq;
        if self.steps > 0 && every > 0 && self.steps.is_multiple_of(every) {
            self.policy.draw_noise(rngs)?;
        }
        resize("num_envs", &mut self.memory.log_probs, rngs.len(), 0.0)?;
        self.policy.act(obs, rngs, actions, &mut self.memory.log_probs)
    }

    fn explore_once(
        &mut self,
        obs: &[f32],
        _masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        _progress: f64,
        actions: ActionsMut<'_>,
    ) -> Result<()> {
        resize("num_envs", &mut self.memory.log_probs, rngs.len(), 0.0)?;
        self.policy.act_once(obs, rngs, numbers(actions)?, &mut self.memory.log_probs)
    }

    fn perturb(&mut self, rngs: &mut [Pcg64], actions: ActionsMut<'_>) -> Result<()> {
        self.noise.as_mut().map_or(Ok(()), |noise| noise.apply(rngs, numbers(actions)?))
    }

    fn act_greedily(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.policy.act_deterministic(obs, numbers(actions)?)
    }

    fn end_episodes(&mut self, ended: &dyn Fn(usize) -> bool) {
        if let Some(noise) = &mut self.noise {
            noise.end_episodes(ended);
        }
    }

    fn stepped(&mut self, _made: std::ops::Range<u64>) -> Result<()> {
        self.steps += 1;
        Ok(())
    }

    fn learn(&mut self, batch: &Replayed<'_>, rng: &mut Pcg64, progress: f64) -> Result<OffPolicyLearned> {
        let Self { policy, critics, temperature, config, memory, .. } = self;
        let optimizer = config.optimizer.with_lr(config.lr_schedule.at(config.optimizer.lr(), progress));
        let Memory { actions, log_probs, next_log_probs, next_values, targets } = memory;
        let rows = batch.rewards.len();
        resize("batch_size", actions, rows * policy.action_dim(), 0.0)?;
        for numbers in [&mut *log_probs, &mut *next_log_probs, &mut *next_values, &mut *targets] {
            resize("batch_size", numbers, rows, 0.0)?;
        }
        // The actor is asked before the critics learn, and learns after them, as in Stable-Baselines3.
        policy.rsample(batch.obs, rng, actions, log_probs)?;
        let alpha = temperature.alpha();
        rows::check_said("log_probs", log_probs, 1)?;
        policy.sample(batch.next_obs, rng, actions, next_log_probs)?;
        critics.target_values(batch.next_obs, actions, next_values)?;
        soft_values(next_values, next_log_probs, alpha)?;
        td_targets(batch.rewards, batch.terminated, batch.discount, next_values, targets)?;
        let valued = ValuedActions {
            obs: batch.obs,
            actions: rows::continuous(batch.actions)?,
            targets,
            weights: batch.weights,
        };
        let critic = critics.update(&valued, 0.5, &optimizer, None)?;
        let actor = policy.update(batch.obs, critics, alpha, &optimizer, None)?;
        // Last, so that it stays what it was if the others refuse to learn: nothing else goes by its new value.
        let learns = matches!(config.ent_coef, EntCoef::Auto { .. });
        let ent_coef_loss = if learns { Some(temperature.update(log_probs, &optimizer)?) } else { None };
        if self.updates.is_multiple_of(config.target_update_interval as u64) {
            critics.track(config.tau)?;
        }
        self.updates += 1;
        Ok(OffPolicyLearned {
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
        together(&[self.policy.tensors(), self.critics.tensors(), self.temperature.tensors()])
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.check_tensors(tensors)?;
        let Self { policy, critics, temperature, .. } = self;
        policy.load(&part_of(tensors, &policy.tensors()))?;
        critics.load(&part_of(tensors, &critics.tensors()))?;
        temperature.load(&part_of(tensors, &temperature.tensors()))
    }

    fn optimizer_state(&self) -> NamedTensors {
        let Self { policy, critics, temperature, .. } = self;
        together(&[policy.optimizer_state(), critics.optimizer_state(), temperature.optimizer_state()])
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.check_optimizer_state(state)?;
        let Self { policy, critics, temperature, .. } = self;
        policy.load_optimizer_state(&part_of(state, &policy.optimizer_state()))?;
        critics.load_optimizer_state(&part_of(state, &critics.optimizer_state()))?;
        temperature.load_optimizer_state(&part_of(state, &temperature.optimizer_state()))
    }

    fn noise(&self) -> &[f32] {
        self.noise.as_ref().map_or(&[], NoiseProcess::state)
    }

    fn set_noise(&mut self, noise: &[f32]) -> Result<()> {
        match &mut self.noise {
            Some(process) => process.set_state(noise),
            None => rlox_core::check_len("noise", noise.len(), 0),
        }
    }

    fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }
}
