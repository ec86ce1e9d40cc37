//! Stochastic policies with actions in [-1, 1], and the temperature of their entropy: SAC's actor.

use rlox_core::{Error, Pcg64, Result, error::check_len};

use crate::alloc::resize;
use crate::distribution::{Exploration, Explored, check_log_std, draw_normal};
use crate::losses::{sac_actor_loss, temperature_loss};
use crate::optimizer::check_state;
use crate::{
    ActionValue, CriticReduction, Learnable, NamedTensors, Network, NetworkArch, Optimizer, Parameters,
    SquashedGaussian, Workspace, clip_and_step, validate,
};

/// Statistics of an actor for a minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActorStats {
    /// Loss.
    pub loss: f32,
    /// Mean value of the policy's actions according to the critics.
    pub mean_value: f32,
    /// Mean log-probability with a minus sign, an estimate of the entropy; 0 for deterministic
    /// policies.
    pub entropy: f32,
    /// Norm of all gradients before clipping.
    pub grad_norm: f32,
}

/// A policy that draws actions in [-1, 1], for networks of any backend.
///
/// In shapes, `N` is the number of rows, `d` the number of elements of an observation, and `a` the
/// number of elements of an action.
///
/// [`crate::ActionScaling`] scales actions to the bounds of an environment.
pub trait StochasticPolicy: Send {
    /// Returns the number of elements of an observation.
    fn obs_dim(&self) -> usize;

    /// Returns the number of elements of an action.
    fn action_dim(&self) -> usize;

    /// Draws new noise for state-dependent exploration, for environment `i` from `rngs[i]`.
    ///
    /// Policies without state-dependent exploration do nothing.
    ///
    /// # Errors
    /// [`Error::Memory`] if the noise does not fit into memory.
    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()>;

    /// Draws actions, `[N, a]`, for the observations `obs`, `[N, d]`, of N environments.
    ///
    /// `log_probs`, `[N]`, receives the log-probabilities. The action of row `i` uses only the
    /// random generator `rngs[i]`.
    ///
    /// # Errors
    /// - [`Error::Shape`]: a slice has the wrong length.
    /// - [`Error::NotFinite`]: a `mean`, a `log_std` or an observation is NaN or infinite.
    ///
    /// After these errors, nothing was drawn.
    fn act(&mut self, obs: &[f32], rngs: &mut [Pcg64], actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// Works as [`StochasticPolicy::act`], but with exploration noise that is drawn for this call
    /// alone.
    ///
    /// Later calls of [`StochasticPolicy::act`] use the noise of the last
    /// [`StochasticPolicy::draw_noise`].
    ///
    /// # Errors
    /// The errors of [`StochasticPolicy::act`] and [`StochasticPolicy::draw_noise`].
    fn act_stateless(
        &mut self,
        obs: &[f32],
        rngs: &mut [Pcg64],
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()>;

    /// Computes the actions without noise, `tanh(mean)`, `[N, a]`.
    ///
    /// # Errors
    /// The errors of [`StochasticPolicy::act`].
    fn act_deterministic(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()>;

    /// Draws actions for a minibatch from one random generator, to compute the values of next
    /// states.
    ///
    /// After [`StochasticPolicy::rsample`], a policy with state-dependent exploration draws nothing
    /// until the step, but uses the random matrix of that sample.
    ///
    /// # Errors
    /// The errors of [`StochasticPolicy::act`].
    fn sample(&mut self, obs: &[f32], rng: &mut Pcg64, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// Draws a reparameterized sample, and stores the data that [`StochasticPolicy::backward`]
    /// needs.
    ///
    /// # Errors
    /// The errors of [`StochasticPolicy::act`].
    fn rsample(&mut self, obs: &[f32], rng: &mut Pcg64, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()>;

    /// Adds the gradient of a loss, with the noise held constant, to the gradients of the
    /// parameters.
    ///
    /// `d_actions` and `d_log_probs` are the gradients of the loss with respect to the results of
    /// the last [`StochasticPolicy::rsample`].
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length, or [`StochasticPolicy::rsample`] was not
    /// called since the last step or load.
    fn backward(&mut self, d_actions: &[f32], d_log_probs: &[f32]) -> Result<()>;

    /// Clips all gradients together and applies one optimizer step; returns the norm of the
    /// gradients before clipping.
    ///
    /// # Errors
    /// The errors of [`clip_and_step`].
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Applies one optimizer step on [`crate::losses::sac_actor_loss`], with the smallest value of
    /// the critics.
    ///
    /// `obs` must be the observations of the last [`StochasticPolicy::rsample`]. The gradients of
    /// the critics' parameters do not change.
    ///
    /// # Errors
    /// - The errors of [`StochasticPolicy::backward`], [`StochasticPolicy::step`] and
    ///   [`ActionValue::action_gradients`].
    /// - [`Error::Config`]: `alpha` is negative or not finite.
    fn update(
        &mut self,
        obs: &[f32],
        critics: &mut dyn ActionValue,
        alpha: f32,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorStats>;

    /// Returns the architecture, or `None` if the network does not consist of fully connected
    /// layers.
    fn arch(&self) -> Option<NetworkArch> {
        None
    }

    /// Returns all parameters by name: `actor.0.weight`, and `log_std` for state-dependent
    /// exploration.
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

    /// Loads a state that [`StochasticPolicy::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`Error::Config`] if a number of steps is not an
    /// integer of at least 0, or a mean of squares is negative.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// [`StochasticPolicy`] with a [`SquashedGaussian`], or with state-dependent exploration (gSDE).
///
/// The output rows of the network are `[mean | log_std]`, or only the means with gSDE (Raffin et
/// al. 2021, "Smooth Exploration for Robotic Reinforcement Learning"). With gSDE, the noise is a
/// random matrix times the last hidden layer, and means are clamped to [-2, 2]. The noise
/// contributes to the gradient of the last hidden layer.
///
/// Each environment keeps its random matrix until [`StochasticPolicy::draw_noise`]. Each
/// [`StochasticPolicy::rsample`] draws a matrix for its minibatch. [`StochasticPolicy::sample`]
/// uses the same matrix until the step, as in Stable-Baselines3.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::Pendulum};
/// use rlox_nn::{Activation, Optimizer, SquashedPolicy, StochasticPolicy, CriticEnsemble};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Pendulum::default)?;
/// let mut rng = Pcg64::seed_from(0);
/// let mut policy = SquashedPolicy::mlp(env.spec(), &[64, 64], Activation::Relu, &mut rng)?;
/// let mut critics = CriticEnsemble::mlp(env.spec(), &[64, 64], Activation::Relu, 2, &mut rng)?;
/// let (obs, mut actions, mut log_probs) = ([1.0, 0.0, 0.5], [0.0], [0.0]);
/// policy.rsample(&obs, &mut rng, &mut actions, &mut log_probs)?;
/// let stats = policy.update(&obs, &mut critics, 0.2, &Optimizer::adam(3e-4), None)?;
/// assert!(stats.grad_norm > 0.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SquashedPolicy<N> {
    actor: N,
    action_dim: usize,
    exploration: Option<Exploration>,
    acting: Memory,
    /// Memory of the last [`StochasticPolicy::rsample`].
    learning: Memory,
    update: UpdateMemory,
}

/// Memory for an actor step with the critics.
#[derive(Clone, Debug, Default)]
struct UpdateMemory {
    values: Vec<f32>,
    d_actions: Vec<f32>,
    d_log_probs: Vec<f32>,
}

impl<N: Network> SquashedPolicy<N> {
    /// Creates a policy from a network with two outputs per action element.
    ///
    /// # Errors
    /// [`Error::Shape`] if the network has another number of outputs.
    pub fn new(actor: N, action_dim: usize) -> Result<Self> {
        check_outputs(&actor, action_dim, 2)?;
        Self::from_parts(actor, action_dim, None)
    }

    /// Creates a policy with state-dependent exploration from a network with one output per action
    /// element.
    ///
    /// `log_std_init` is the initial log standard deviation, usually -3.
    ///
    /// # Errors
    /// - [`Error::Shape`]: the network has another number of outputs, or no hidden layer.
    /// - [`Error::Config`]: `log_std_init` is outside [-20, 20].
    /// - [`Error::Memory`]: a random matrix does not fit into memory.
    pub fn state_dependent(actor: N, action_dim: usize, log_std_init: f32) -> Result<Self> {
        check_log_std(log_std_init, "start with -3")?;
        check_outputs(&actor, action_dim, 1)?;
        let hidden = actor.hidden_dim();
        if hidden == 0 {
            let fix = "use a network with a hidden layer";
            return Err(Error::shape("actor", "a network with a hidden layer", "none", fix));
        }
        let exploration = Exploration::new(hidden, action_dim, log_std_init)?;
        Self::from_parts(actor, action_dim, Some(exploration))
    }

    fn from_parts(actor: N, action_dim: usize, exploration: Option<Exploration>) -> Result<Self> {
        let [acting, learning] = [Memory::new(action_dim)?, Memory::new(action_dim)?];
        Ok(Self { actor, action_dim, exploration, acting, learning, update: UpdateMemory::default() })
    }

    /// Returns the network of the policy.
    pub fn actor(&self) -> &N {
        &self.actor
    }

    /// Returns the number of elements of the noise for a minibatch with `rows` rows.
    ///
    /// The noise has the shape `[rows, a]`, or `[hidden, a]` with state-dependent exploration.
    pub fn noise_len(&self, rows: usize) -> usize {
        self.action_dim * self.exploration.as_ref().map_or(rows, |exploration| exploration.hidden)
    }

    /// Works as [`StochasticPolicy::rsample`], with standard normal noise of the caller.
    ///
    /// `noise` has [`SquashedPolicy::noise_len`] elements.
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length, and the errors of
    /// [`StochasticPolicy::rsample`].
    pub fn rsample_with(
        &mut self,
        obs: &[f32],
        noise: &[f32],
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        let rows = self.rows(obs, actions.len(), log_probs.len())?;
        check_len("noise", noise.len(), self.noise_len(rows))?;
        self.forward(obs, rows)?;
        self.learning.noise.clear();
        self.learning.noise.extend_from_slice(noise);
        self.rsample_from_noise(actions, log_probs)
    }

    /// Returns the number of observations; checks the lengths of actions and log-probabilities.
    fn rows(&self, obs: &[f32], actions: usize, log_probs: usize) -> Result<usize> {
        let rows = validate::count_rows("obs", obs, self.actor.in_dim())?;
        check_len("actions", actions, rows.saturating_mul(self.action_dim))?;
        check_len("log_probs", log_probs, rows)?;
        Ok(rows)
    }

    /// Runs the forward pass of a minibatch, and discards the previous sample.
    fn forward(&mut self, obs: &[f32], rows: usize) -> Result<()> {
        let Self { actor, exploration, learning: memory, .. } = self;
        memory.log_probs.clear();
        resize("obs", &mut memory.outputs, rows * actor.out_dim(), 0.0)?;
        actor.forward(obs, rows, &mut memory.outputs)?;
        if let Some(exploration) = exploration {
            resize("obs", &mut memory.hidden, rows * exploration.hidden, 0.0)?;
            actor.hidden(&mut memory.hidden)?;
        }
        let result = memory.check_finite(exploration.is_some());
        result.map_err(|error| validate::blame_input(error, obs, actor.in_dim()))
    }

    /// Samples actions with the noise in memory, and stores the data that the backward pass needs.
    fn rsample_from_noise(&mut self, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        let Self { exploration, learning: memory, .. } = self;
        memory.sample(exploration.as_ref(), actions, log_probs)?;
        memory.actions.clear();
        memory.actions.extend_from_slice(actions);
        memory.log_probs.clear();
        memory.log_probs.extend_from_slice(log_probs);
        Ok(())
    }

    /// Computes the outputs and, for state-dependent exploration, the last hidden layer of `obs`.
    fn infer(&mut self, obs: &[f32], rows: usize) -> Result<()> {
        let Self { actor, exploration, acting, .. } = self;
        let Memory { workspace, outputs, hidden, .. } = acting;
        resize("obs", outputs, rows * actor.out_dim(), 0.0)?;
        if let Some(exploration) = exploration {
            resize("obs", hidden, rows * exploration.hidden, 0.0)?;
            actor.infer_hidden(obs, rows, outputs, hidden, workspace)?;
        } else {
            actor.infer(obs, rows, outputs, workspace)?;
        }
        let result = acting.check_finite(exploration.is_some());
        result.map_err(|error| validate::blame_input(error, obs, actor.in_dim()))
    }

    fn named(
        &self,
        network_tensors: impl Fn(&N) -> NamedTensors,
        parameter_tensors: impl Fn(&Parameters) -> NamedTensors,
    ) -> NamedTensors {
        let mut all = NamedTensors::default();
        // The names are different, so that `extend` cannot fail.
        let _ = all.extend("actor", &network_tensors(&self.actor));
        if let Some(exploration) = &self.exploration {
            for tensor in &parameter_tensors(&exploration.log_std) {
                let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
            }
        }
        all
    }
}

/// Checks that a network has `each` outputs per action element.
fn check_outputs<N: Network>(actor: &N, action_dim: usize, each: usize) -> Result<()> {
    let wanted = action_dim.checked_mul(each).filter(|wanted| *wanted > 0);
    if wanted == Some(actor.out_dim()) {
        return Ok(());
    }
    let expected = match wanted {
        Some(wanted) => format!("{wanted} outputs"),
        None => format!("{each} outputs for each of {action_dim} action elements"),
    };
    let fix = "create the network for this action space";
    Err(Error::shape("actor", expected, actor.out_dim().to_string(), fix))
}

impl<N: Network> StochasticPolicy for SquashedPolicy<N> {
    fn obs_dim(&self) -> usize {
        self.actor.in_dim()
    }

    fn action_dim(&self) -> usize {
        self.action_dim
    }

    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        self.exploration.as_mut().map_or(Ok(()), |exploration| exploration.draw(rngs))
    }

    fn act(&mut self, obs: &[f32], rngs: &mut [Pcg64], actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        let rows = self.rows(obs, actions.len(), log_probs.len())?;
        check_len("rngs", rngs.len(), rows)?;
        self.infer(obs, rows)?;
        let Self { action_dim, exploration, acting: memory, .. } = self;
        let Some(exploration) = exploration else {
            resize("obs", &mut memory.noise, actions.len(), 0.0)?;
            let noise = memory.noise.chunks_exact_mut(*action_dim);
            noise.zip(rngs).for_each(|(noise, rng)| draw_normal(noise, rng));
            return memory.sample(None, actions, log_probs);
        };
        if exploration.matrices.len() != rows * exploration.hidden * *action_dim {
            exploration.draw(rngs)?;
        }
        let Memory { outputs, hidden, explored, .. } = memory;
        explored.sample(exploration, &exploration.matrices, (outputs, hidden), actions, log_probs)
    }

    fn act_stateless(
        &mut self,
        obs: &[f32],
        rngs: &mut [Pcg64],
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        let saved_matrices = self.exploration.as_mut().map(|exploration| std::mem::take(&mut exploration.matrices));
        let result = self.draw_noise(rngs).and_then(|()| self.act(obs, rngs, actions, log_probs));
        if let (Some(exploration), Some(saved_matrices)) = (&mut self.exploration, saved_matrices) {
            exploration.matrices = saved_matrices;
        }
        result
    }

    fn act_deterministic(&mut self, obs: &[f32], actions: &mut [f32]) -> Result<()> {
        let rows = self.rows(obs, actions.len(), obs.len() / self.actor.in_dim())?;
        self.infer(obs, rows)?;
        let Memory { outputs, gaussian, explored, .. } = &mut self.acting;
        if self.exploration.is_none() {
            return gaussian.mode(outputs, actions);
        }
        explored.mode(outputs, actions);
        Ok(())
    }

    fn sample(&mut self, obs: &[f32], rng: &mut Pcg64, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        let rows = self.rows(obs, actions.len(), log_probs.len())?;
        let count = self.noise_len(rows);
        self.infer(obs, rows)?;
        let Self { exploration, acting: memory, learning, .. } = self;
        if let Some(exploration) = exploration.as_ref().filter(|_| !learning.log_probs.is_empty()) {
            let Memory { outputs, hidden, explored, .. } = memory;
            return explored.sample(exploration, &learning.matrix, (outputs, hidden), actions, log_probs);
        }
        resize("obs", &mut memory.noise, count, 0.0)?;
        draw_normal(&mut memory.noise, rng);
        memory.sample(exploration.as_ref(), actions, log_probs)
    }

    fn rsample(&mut self, obs: &[f32], rng: &mut Pcg64, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        let rows = self.rows(obs, actions.len(), log_probs.len())?;
        self.forward(obs, rows)?;
        let count = self.noise_len(rows);
        let noise = &mut self.learning.noise;
        resize("obs", noise, count, 0.0)?;
        draw_normal(noise, rng);
        self.rsample_from_noise(actions, log_probs)
    }

    fn backward(&mut self, d_actions: &[f32], d_log_probs: &[f32]) -> Result<()> {
        let Self { actor, exploration, learning: memory, .. } = self;
        memory.check_sampled()?;
        check_len("d_actions", d_actions.len(), memory.actions.len())?;
        check_len("d_log_probs", d_log_probs.len(), memory.log_probs.len())?;
        let Memory { outputs, hidden, matrix, gaussian, explored, d_outputs, d_hidden, .. } = memory;
        resize("obs", d_outputs, outputs.len(), 0.0)?;
        let Some(exploration) = exploration else {
            gaussian.backward(outputs, d_actions, d_log_probs, d_outputs)?;
            return actor.backward(d_outputs, true, None);
        };
        resize("obs", d_hidden, hidden.len(), 0.0)?;
        let (network_outputs, gradients) = ((&outputs[..], &hidden[..]), (d_actions, d_log_probs));
        explored.backward(exploration, matrix, network_outputs, gradients, (d_outputs, d_hidden));
        actor.backward_hidden(d_outputs, d_hidden)?;
        // The network comes first because it can fail. Gradients are added completely or not at
        // all.
        explored.add_gradients(exploration, matrix);
        Ok(())
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let Self { actor, exploration, learning, .. } = self;
        let norm = match exploration {
            None => clip_and_step(&mut [("actor", actor)], optimizer, max_grad_norm),
            Some(it) => clip_and_step(&mut [("actor", actor), ("policy", &mut it.log_std)], optimizer, max_grad_norm),
        }?;
        // The sample belongs to the parameters before the step.
        learning.log_probs.clear();
        Ok(norm)
    }

    fn update(
        &mut self,
        obs: &[f32],
        critics: &mut dyn ActionValue,
        alpha: f32,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorStats> {
        optimizer.check()?;
        validate::check_not_negative("alpha", alpha)?;
        self.learning.check_sampled()?;
        let Memory { actions, log_probs, .. } = &self.learning;
        check_len("obs", obs.len(), log_probs.len().saturating_mul(self.actor.in_dim()))?;
        let mut memory = std::mem::take(&mut self.update);
        let UpdateMemory { values, d_actions, d_log_probs } = &mut memory;
        resize("obs", values, log_probs.len(), 0.0)?;
        resize("obs", d_log_probs, log_probs.len(), 0.0)?;
        resize("obs", d_actions, actions.len(), 0.0)?;
        critics.action_gradients(obs, actions, CriticReduction::Min, values, d_actions)?;
        let loss = sac_actor_loss(log_probs, values, alpha, d_log_probs, d_actions)?;
        let mean = |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / numbers.len() as f64;
        let stats =
            ActorStats { loss, mean_value: mean(values) as f32, entropy: -mean(log_probs) as f32, grad_norm: 0.0 };
        self.backward(d_actions, d_log_probs)?;
        self.update = memory;
        Ok(ActorStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
    }

    fn arch(&self) -> Option<NetworkArch> {
        Some(NetworkArch::from_network(&self.actor))
    }

    fn tensors(&self) -> NamedTensors {
        self.named(N::tensors, Parameters::tensors)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        // The sample belongs to the parameters before the load.
        self.learning.log_probs.clear();
        self.actor.load(&tensors.strip_prefix("actor"))?;
        self.exploration.as_mut().map_or(Ok(()), |it| it.log_std.load(&tensors.without_prefix("actor")))
    }

    fn gradients(&self) -> NamedTensors {
        self.named(N::gradients, Learnable::named_gradients)
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.named(N::optimizer_state, Parameters::optimizer_state)
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.actor.load_optimizer_state(&state.strip_prefix("actor"))?;
        self.exploration.as_mut().map_or(Ok(()), |it| it.log_std.load_optimizer_state(&state.without_prefix("actor")))
    }
}

/// Memory for a minibatch.
#[derive(Clone, Debug)]
struct Memory {
    workspace: Workspace,
    outputs: Vec<f32>,
    hidden: Vec<f32>,
    noise: Vec<f32>,
    matrix: Vec<f32>,
    gaussian: SquashedGaussian,
    explored: Explored,
    actions: Vec<f32>,
    log_probs: Vec<f32>,
    d_outputs: Vec<f32>,
    d_hidden: Vec<f32>,
}

impl Memory {
    fn new(action_dim: usize) -> Result<Self> {
        let [outputs, hidden, noise, matrix, actions, log_probs, d_outputs, d_hidden] = Default::default();
        let (gaussian, explored) = (SquashedGaussian::new(action_dim)?, Explored::default());
        let workspace = Workspace::default();
        Ok(Self {
            workspace,
            outputs,
            hidden,
            noise,
            matrix,
            gaussian,
            explored,
            actions,
            log_probs,
            d_outputs,
            d_hidden,
        })
    }

    fn check_sampled(&self) -> Result<()> {
        if self.log_probs.is_empty() {
            let fix = "call rsample first, once per step";
            return Err(Error::shape("rsample", "a previous rsample call", "none", fix));
        }
        Ok(())
    }

    /// Checks that the outputs are finite; `means_alone` is true if they have no log standard
    /// deviations.
    fn check_finite(&self, means_alone: bool) -> Result<()> {
        if means_alone {
            return validate::check_finite_outputs("mean", &self.outputs, self.gaussian.outputs() / 2);
        }
        self.gaussian.check_finite(&self.outputs)
    }

    /// Samples actions from the outputs and the noise in memory.
    fn sample(&mut self, exploration: Option<&Exploration>, actions: &mut [f32], log_probs: &mut [f32]) -> Result<()> {
        let Self { outputs, hidden, noise, matrix, gaussian, explored, .. } = self;
        let Some(exploration) = exploration else { return gaussian.sample(outputs, noise, actions, log_probs) };
        exploration.matrix(noise, matrix)?;
        explored.sample(exploration, matrix, (outputs, hidden), actions, log_probs)
    }
}

/// Temperature alpha, the weight of the entropy in SAC, constant or learned (Haarnoja et al. 2018,
/// section 5).
///
/// A learned temperature keeps the entropy near a target.
///
/// ```
/// use rlox_nn::{Optimizer, Temperature};
///
/// let mut temperature = Temperature::learned(1.0, -1.0)?;
/// // The entropy, about 3, is above the target, so its weight decreases.
/// temperature.update(&[-3.0, -3.1], &Optimizer::adam(3e-4))?;
/// assert!(temperature.alpha() < 1.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Temperature(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fixed(f32),
    Learned {
        /// Logarithm of alpha, of shape `[1]`.
        log_alpha: Parameters,
        target_entropy: f32,
    },
}

impl Temperature {
    /// Creates a constant temperature.
    ///
    /// # Errors
    /// [`Error::Config`] for an `alpha` that is negative or not finite.
    pub fn fixed(alpha: f32) -> Result<Self> {
        validate::check_not_negative("alpha", alpha)?;
        Ok(Self(Kind::Fixed(alpha)))
    }

    /// Creates a learned temperature with the initial value `alpha`.
    ///
    /// The usual `target_entropy` is minus the number of elements of an action.
    ///
    /// # Errors
    /// [`Error::Config`] if `alpha` is not positive, or a number is not finite.
    pub fn learned(alpha: f32, target_entropy: f32) -> Result<Self> {
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(Error::config("alpha", "a positive number", alpha.to_string(), "start with 1"));
        }
        if !target_entropy.is_finite() {
            let fix = "pass minus the number of elements of an action";
            return Err(Error::config("target_entropy", "a finite number", target_entropy.to_string(), fix));
        }
        let log_alpha = Parameters::new("log_alpha", &[1], &[alpha.ln()])?;
        Ok(Self(Kind::Learned { log_alpha, target_entropy }))
    }

    /// Returns alpha, the weight of the entropy.
    pub fn alpha(&self) -> f32 {
        match &self.0 {
            Kind::Fixed(alpha) => *alpha,
            Kind::Learned { log_alpha, .. } => log_alpha.values()[0].exp(),
        }
    }

    /// Applies one optimizer step on [`temperature_loss`] and returns the loss.
    ///
    /// `log_probs` are the log-probabilities of sampled actions. A constant temperature does not
    /// change, and the result is 0.
    ///
    /// # Errors
    /// - [`Error::Shape`]: there are no log-probabilities.
    /// - [`Error::NotFinite`]: a log-probability is not finite.
    /// - The errors of [`clip_and_step`].
    ///
    /// After the first two errors, nothing has changed.
    pub fn update(&mut self, log_probs: &[f32], optimizer: &Optimizer) -> Result<f32> {
        let Kind::Learned { log_alpha, target_entropy } = &mut self.0 else { return Ok(0.0) };
        optimizer.check()?;
        if let Some(row) = log_probs.iter().position(|log_prob| !log_prob.is_finite()) {
            let (got, hint) = (log_probs[row].to_string(), "check observations and weights for extreme values");
            return Err(Error::not_finite("log_probs", "finite numbers", got, hint).at_row(row));
        }
        let (loss, gradient) = temperature_loss(log_alpha.values()[0], log_probs, *target_entropy)?;
        log_alpha.add_gradients([gradient].into_iter());
        clip_and_step(&mut [("temperature", log_alpha)], optimizer, None)?;
        Ok(loss)
    }

    /// Returns `log_alpha` of a learned temperature, or no tensors for a constant temperature.
    pub fn tensors(&self) -> NamedTensors {
        self.map_parameters(Parameters::tensors)
    }

    /// Loads tensors that [`Temperature::tensors`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. After an error, nothing has changed.
    pub fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        match &mut self.0 {
            Kind::Fixed(_) => tensors.check(&NamedTensors::default()),
            Kind::Learned { log_alpha, .. } => log_alpha.load(tensors),
        }
    }

    /// Returns the state of the optimizer.
    pub fn optimizer_state(&self) -> NamedTensors {
        self.map_parameters(Parameters::optimizer_state)
    }

    /// Loads a state that [`Temperature::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`Error::Config`] if the number of steps is not an
    /// integer of at least 0, or a mean of squares is negative.
    pub fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        match &mut self.0 {
            Kind::Fixed(_) => state.check(&NamedTensors::default()),
            Kind::Learned { log_alpha, .. } => log_alpha.load_optimizer_state(state),
        }
    }

    fn map_parameters(&self, get_tensors: impl Fn(&Parameters) -> NamedTensors) -> NamedTensors {
        match &self.0 {
            Kind::Fixed(_) => NamedTensors::default(),
            Kind::Learned { log_alpha, .. } => get_tensors(log_alpha),
        }
    }
}
