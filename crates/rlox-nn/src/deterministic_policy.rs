//! Deterministic policies with a target network: TD3's actor.

use rlox_core::{Error, Pcg64, Result, error::check_len};

use crate::alloc::resize;
use crate::distribution::{Squash, draw_normal};
use crate::losses::td3_actor_loss;
use crate::optimizer::check_state;
use crate::{
    ActionValue, ActorStats, CriticReduction, NamedTensors, Network, NetworkArch, Optimizer, Workspace, clip_and_step,
    validate,
};

/// Target policy smoothing of TD3: noise on the actions from which the values of next states are
/// computed.
///
/// See Fujimoto et al. 2018, section 5.3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smoothing {
    /// Standard deviation of the noise; 0.2 in TD3.
    pub noise: f32,
    /// Largest magnitude of the noise; 0.5 in TD3.
    pub clip: f32,
}

impl Smoothing {
    /// Adds scaled and clipped noise to actions, and clamps the results to [-1, 1].
    ///
    /// `noise` has standard normal numbers.
    ///
    /// ```
    /// use rlox_nn::Smoothing;
    ///
    /// let mut actions = [0.0, 0.0, 0.9];
    /// Smoothing { noise: 0.25, clip: 0.5 }.apply(&[1.0, -4.0, 1.0], &mut actions);
    /// assert_eq!(actions, [0.25, -0.5, 1.0]);
    /// ```
    pub fn apply(&self, noise: &[f32], actions: &mut [f32]) {
        for (action, noise) in actions.iter_mut().zip(noise) {
            // NaN stays NaN. A negative clip counts as 0.
            let noise = (self.noise * noise).clamp(-self.clip.max(0.0), self.clip.max(0.0));
            *action = (*action + noise).clamp(-1.0, 1.0);
        }
    }
}

/// A deterministic policy with actions in [-1, 1], for networks of any backend.
///
/// In shapes, `N` is the number of rows, `d` the number of elements of an observation, and `a` the
/// number of elements of an action.
///
/// [`crate::ActionScaling`] scales actions to the bounds of an environment.
pub trait DeterministicPolicy: Send {
    /// Returns the number of elements of an observation.
    fn obs_dim(&self) -> usize;

    /// Returns the number of elements of an action.
    fn action_dim(&self) -> usize;

    /// Computes the actions, `[N, a]`, for `obs`, `[N, d]`.
    ///
    /// # Errors
    /// - [`rlox_core::Error::Shape`]: a slice has the wrong length.
    /// - [`rlox_core::Error::NotFinite`]: an action or an observation is NaN or infinite.
    fn act(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()>;

    /// Computes the actions of the target network with smoothing noise, for the values of next
    /// states.
    ///
    /// # Errors
    /// - The errors of [`DeterministicPolicy::act`].
    /// - [`rlox_core::Error::Config`]: a number of `smoothing` is negative or not finite.
    fn target_actions(&mut self, obs: &[f32], smoothing: Smoothing, rng: &mut Pcg64, actions: &mut [f32])
    -> Result<()>;

    /// Computes the actions, and stores the data that [`DeterministicPolicy::backward`] needs until
    /// the weights change.
    ///
    /// # Errors
    /// The errors of [`DeterministicPolicy::act`].
    fn forward(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()>;

    /// Adds the gradient of a loss to the gradients of the parameters.
    ///
    /// `d_actions` is the gradient of the loss with respect to the actions of the last
    /// [`DeterministicPolicy::forward`].
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if `d_actions` has the wrong length, or there was no forward
    /// pass since the last step or load.
    fn backward(&mut self, d_actions: &[f32]) -> Result<()>;

    /// Clips the gradients and applies one optimizer step; returns the norm of the gradients before
    /// clipping.
    ///
    /// # Errors
    /// The errors of [`clip_and_step`].
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Applies one optimizer step on [`td3_actor_loss`] for `obs`, with the values of the first
    /// critic.
    ///
    /// The gradients of the critics' parameters do not change.
    ///
    /// # Errors
    /// The errors of [`DeterministicPolicy::forward`], [`DeterministicPolicy::step`] and
    /// [`ActionValue::action_gradients`].
    fn update(
        &mut self,
        obs: &[f32],
        critics: &mut dyn ActionValue,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorStats>;

    /// Moves each parameter `p` of the target network towards the online network:
    /// `p += tau (online - p)`.
    ///
    /// A `tau` of 1 copies the parameters.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] if `tau` is outside [0, 1].
    fn soft_update(&mut self, tau: f32) -> Result<()>;

    /// Returns the architecture, or `None` if the networks do not consist of fully connected
    /// layers.
    fn arch(&self) -> Option<NetworkArch> {
        None
    }

    /// Returns all parameters by name: `actor.0.weight`, `actor_target.0.weight`.
    fn tensors(&self) -> NamedTensors;

    /// Loads parameters by name.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. After an error, nothing has changed.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// Returns the gradients since the last step by parameter name.
    fn gradients(&self) -> NamedTensors;

    /// Returns the state of the optimizer by parameter name.
    fn optimizer_state(&self) -> NamedTensors;

    /// Loads a state that [`DeterministicPolicy::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`rlox_core::Error::Config`] if a number of steps is
    /// not an integer of at least 0, or a mean of squares is negative.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// [`DeterministicPolicy`] with an online and a target network of the same architecture, whose
/// outputs are squashed by `tanh`.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::Pendulum};
/// use rlox_nn::{Activation, DeterministicActor, DeterministicPolicy, Optimizer, CriticEnsemble};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Pendulum::default)?;
/// let mut rng = Pcg64::seed_from(0);
/// let mut policy = DeterministicActor::mlp(env.spec(), &[64, 64], Activation::Relu, &mut rng)?;
/// let mut critics = CriticEnsemble::mlp(env.spec(), &[64, 64], Activation::Relu, 2, &mut rng)?;
/// let stats = policy.update(&[1.0, 0.0, 0.5], &mut critics, &Optimizer::adam(1e-3), None)?;
/// assert!(stats.grad_norm > 0.0);
/// policy.soft_update(0.005)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeterministicActor<N> {
    online: N,
    target: N,
    memory: Memory,
}

/// Memory for a batch.
#[derive(Clone, Debug, Default)]
struct Memory {
    workspace: Workspace,
    outputs: Vec<f32>,
    noise: Vec<f32>,
    acting: Squash,
    /// Derivatives of `tanh` in the last forward pass.
    learning: Squash,
    d_outputs: Vec<f32>,
    actions: Vec<f32>,
    values: Vec<f32>,
    d_actions: Vec<f32>,
}

impl<N: Network> DeterministicActor<N> {
    /// Creates a policy from two networks with one output per action element.
    ///
    /// `target` becomes a copy of `online`.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if the architectures are different.
    pub fn new(online: N, mut target: N) -> Result<Self> {
        target.soft_update(&online, 1.0)?;
        Ok(Self { online, target, memory: Memory::default() })
    }

    /// Returns the network that is trained.
    pub fn online(&self) -> &N {
        &self.online
    }

    /// Returns the network that follows the online network.
    pub fn target(&self) -> &N {
        &self.target
    }

    fn rows(&self, obs: &[f32], actions: usize) -> Result<usize> {
        let rows = validate::count_rows("obs", obs, self.online.in_dim())?;
        check_len("actions", actions, rows.saturating_mul(self.online.out_dim()))?;
        Ok(rows)
    }

    fn infer(&mut self, target: bool, obs: &[f32], actions: &mut [f32]) -> Result<()> {
        let rows = self.rows(obs, actions.len())?;
        let Memory { workspace, outputs, acting, .. } = &mut self.memory;
        resize("obs", outputs, actions.len(), 0.0)?;
        let network = if target { &self.target } else { &self.online };
        network.infer(obs, rows, outputs, workspace)?;
        let result = validate::check_finite_outputs("actions", outputs, actions.len() / rows);
        result.map_err(|error| validate::blame_input(error, obs, self.online.in_dim()))?;
        acting.run(outputs, actions);
        Ok(())
    }
}

impl<N: Network> DeterministicPolicy for DeterministicActor<N> {
    fn obs_dim(&self) -> usize {
        self.online.in_dim()
    }

    fn action_dim(&self) -> usize {
        self.online.out_dim()
    }

    fn act(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()> {
        self.infer(false, obs, actions)
    }

    fn target_actions(
        &mut self,
        obs: &[f32],
        smoothing: Smoothing,
        rng: &mut Pcg64,
        actions: &mut [f32],
    ) -> Result<()> {
        validate::check_not_negative("smoothing.noise", smoothing.noise)?;
        validate::check_not_negative("smoothing.clip", smoothing.clip)?;
        self.infer(true, obs, actions)?;
        let noise = &mut self.memory.noise;
        resize("obs", noise, actions.len(), 0.0)?;
        draw_normal(noise, rng);
        smoothing.apply(noise, actions);
        Ok(())
    }

    fn forward(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()> {
        let rows = self.rows(obs, actions.len())?;
        let Memory { outputs, learning, .. } = &mut self.memory;
        // After a failed forward pass, the backward pass must not use older derivatives.
        learning.slopes.clear();
        resize("obs", outputs, actions.len(), 0.0)?;
        self.online.forward(obs, rows, outputs)?;
        let result = validate::check_finite_outputs("actions", outputs, actions.len() / rows);
        result.map_err(|error| validate::blame_input(error, obs, self.online.in_dim()))?;
        learning.run(outputs, actions);
        Ok(())
    }

    fn backward(&mut self, d_actions: &[f32]) -> Result<()> {
        let Memory { learning, d_outputs, .. } = &mut self.memory;
        if learning.slopes.is_empty() {
            let fix = "call forward first, once per step";
            return Err(Error::shape("backward", "a previous forward call", "none", fix));
        }
        check_len("d_actions", d_actions.len(), learning.slopes.len())?;
        d_outputs.clear();
        d_outputs.extend(d_actions.iter().zip(&learning.slopes).map(|(d_action, slope)| d_action * slope));
        self.online.backward(d_outputs, true, None)
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let norm = clip_and_step(&mut [("actor", &mut self.online)], optimizer, max_grad_norm)?;
        // The derivatives belong to the parameters before the step.
        self.memory.learning.slopes.clear();
        Ok(norm)
    }

    fn update(
        &mut self,
        obs: &[f32],
        critics: &mut dyn ActionValue,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorStats> {
        optimizer.check()?;
        let rows = validate::count_rows("obs", obs, self.obs_dim())?;
        let count = rows * self.action_dim();
        let [mut actions, mut values, mut d_actions] =
            [&mut self.memory.actions, &mut self.memory.values, &mut self.memory.d_actions].map(std::mem::take);
        resize("obs", &mut actions, count, 0.0)?;
        resize("obs", &mut d_actions, count, 0.0)?;
        resize("obs", &mut values, rows, 0.0)?;
        self.forward(obs, &mut actions)?;
        critics.action_gradients(obs, &actions, CriticReduction::First, &mut values, &mut d_actions)?;
        let loss = td3_actor_loss(&values, &mut d_actions)?;
        self.backward(&d_actions)?;
        let Memory { actions: a, values: v, d_actions: d, .. } = &mut self.memory;
        (*a, *v, *d) = (actions, values, d_actions);
        let grad_norm = self.step(optimizer, max_grad_norm)?;
        Ok(ActorStats { loss, mean_value: -loss, entropy: 0.0, grad_norm })
    }

    fn soft_update(&mut self, tau: f32) -> Result<()> {
        self.target.soft_update(&self.online, tau)
    }

    fn arch(&self) -> Option<NetworkArch> {
        Some(NetworkArch::from_network(&self.online))
    }

    fn tensors(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        // The names are different, so that `extend` cannot fail.
        let _ = all.extend("actor", &self.online.tensors());
        let _ = all.extend("actor_target", &self.target.tensors());
        all
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        self.memory.learning.slopes.clear();
        self.online.load(&tensors.strip_prefix("actor"))?;
        self.target.load(&tensors.strip_prefix("actor_target"))
    }

    fn gradients(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        let _ = all.extend("actor", &self.online.gradients());
        all
    }

    fn optimizer_state(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        let _ = all.extend("actor", &self.online.optimizer_state());
        all
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.online.load_optimizer_state(&state.strip_prefix("actor"))
    }
}
