//! Q-functions with a value for every discrete action, which DQN trains.

use rlox_core::{Error, Pcg64, Result, error::check_len};

use crate::alloc::resize;
use crate::losses::{td_loss, td_targets};
use crate::optimizer::check_state;
use crate::parallel::join_if_worth;
use crate::{Discount, NamedTensors, Network, NetworkArch, Optimizer, TdLoss, Workspace, clip_and_step, validate};

/// Loss of a Q-function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QLoss {
    /// Distance between values and targets, usually Huber's.
    pub distance: TdLoss,
    /// True for double Q-learning: the online network chooses the next action, and the target
    /// network computes its value.
    ///
    /// See van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning".
    pub double: bool,
}

/// Statistics of critics for a minibatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CriticStats {
    /// Loss, summed over the critics.
    pub loss: f32,
    /// Mean value of the actions in the minibatch.
    pub mean_value: f32,
    /// Norm of all gradients before clipping.
    pub grad_norm: f32,
}

/// A minibatch of B transitions; arrays have the shape `[B]` unless stated otherwise.
///
/// In shapes, `d` is the number of elements of an observation, and `n` the number of actions.
#[derive(Clone, Copy, Debug)]
pub struct QBatch<'a> {
    /// Observations, `[B, d]`.
    pub obs: &'a [f32],
    /// Actions, counted from 0.
    pub actions: &'a [i64],
    /// Rewards.
    pub rewards: &'a [f32],
    /// Next observations, `[B, d]`. At the end of an episode, this is the final observation of the
    /// episode, not the first observation after a reset.
    pub next_obs: &'a [f32],
    /// True if the episode terminated at this step; false if it was truncated or continues.
    pub terminated: &'a [bool],
    /// Factor of the next values in the targets.
    pub discount: Discount<'a>,
    /// Importance weights of prioritized replay.
    pub weights: Option<&'a [f32]>,
    /// Flags of the allowed actions in the next states, `[B, n]`; ignored in terminated rows.
    pub next_masks: Option<&'a [bool]>,
}

impl QBatch<'_> {
    /// Checks the minibatch and returns its number of rows.
    fn check(&self, obs_dim: usize, num_actions: usize) -> Result<usize> {
        let rows = validate::count_rows("obs", self.obs, obs_dim)?;
        check_len("next_obs", self.next_obs.len(), self.obs.len())?;
        check_len("actions", self.actions.len(), rows)?;
        check_len("rewards", self.rewards.len(), rows)?;
        check_len("terminated", self.terminated.len(), rows)?;
        self.discount.check(rows)?;
        check_len("weights", self.weights.map_or(rows, <[f32]>::len), rows)?;
        // In terminated rows, no next action is chosen.
        check_masks("next_masks", self.next_masks, rows, num_actions, |row| !self.terminated[row])?;
        if let Some(row) = self.actions.iter().position(|action| !(0..num_actions as i64).contains(action)) {
            let (expected, got) = (format!("integers from 0 to {}", num_actions - 1), self.actions[row].to_string());
            return Err(Error::action("actions", expected, got, "number the actions from 0").at_row(row));
        }
        validate::check_finite("obs", self.obs, obs_dim)?;
        validate::check_finite("rewards", self.rewards, 1)?;
        validate::check_finite("weights", self.weights.unwrap_or(&[]), 1)?;
        self.check_next_obs(obs_dim)?;
        Ok(rows)
    }

    /// Checks that next observations are finite, except in terminated rows, where they are not
    /// used.
    fn check_next_obs(&self, obs_dim: usize) -> Result<()> {
        let has_non_finite = |(next, terminated): (&[f32], &bool)| !terminated && next.iter().any(|x| !x.is_finite());
        match self.next_obs.chunks_exact(obs_dim).zip(self.terminated).position(has_non_finite) {
            None => Ok(()),
            Some(row) => {
                let (expected, got) = ("finite numbers in rows that are not terminated", "NaN or infinity");
                Err(Error::not_finite("next_obs", expected, got, "check the source of the numbers").at_row(row))
            }
        }
    }
}

/// A function that computes the values of all actions, for networks of any backend.
///
/// In shapes, `N` is the number of rows, `d` the number of elements of an observation, and `n` the
/// number of actions.
pub trait QFunction: Send {
    /// Returns the number of elements of an observation.
    fn obs_dim(&self) -> usize;

    /// Returns the number of actions.
    fn num_actions(&self) -> usize;

    /// Computes epsilon-greedy actions for `obs`, `[N, d]`.
    ///
    /// `masks`, `[N, n]`, has flags that are true for allowed actions. The action of row `i` uses
    /// only the random generator `rngs[i]`.
    ///
    /// # Errors
    /// - [`Error::Shape`]: a slice has the wrong length.
    /// - [`Error::Config`]: `epsilon` is outside [0, 1].
    /// - [`Error::NotFinite`]: a value is NaN.
    /// - [`Error::Action`]: the mask of a row allows no action.
    fn act(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        epsilon: f32,
        rngs: &mut [Pcg64],
        actions: &mut [i64],
    ) -> Result<()>;

    /// Computes the values of all actions, `[N, n]`, for `obs`, `[N, d]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length.
    fn values(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()>;

    /// Computes the loss of a minibatch and its gradient with respect to the network outputs.
    ///
    /// # Errors
    /// - [`Error::Shape`]: an array of the minibatch has the wrong length.
    /// - [`Error::Config`]: a discount is outside [0, 1].
    /// - [`Error::Action`]: an action is outside the action space, or a mask allows no next action.
    /// - [`Error::NotFinite`]: a number in the minibatch is not finite.
    fn evaluate(&mut self, batch: &QBatch<'_>, loss: QLoss) -> Result<CriticStats>;

    /// Adds the gradient of the last [`QFunction::evaluate`] to the gradients of the parameters.
    ///
    /// # Errors
    /// [`Error::Shape`] if [`QFunction::evaluate`] was not called since the last step or load.
    fn backward(&mut self) -> Result<()>;

    /// Clips the gradients and applies one optimizer step; returns the norm of the gradients before
    /// clipping.
    ///
    /// # Errors
    /// The errors of [`clip_and_step`].
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Runs [`QFunction::evaluate`], [`QFunction::backward`] and [`QFunction::step`].
    ///
    /// # Errors
    /// The errors of the three methods.
    fn update(
        &mut self,
        batch: &QBatch<'_>,
        loss: QLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<CriticStats> {
        optimizer.check()?;
        let stats = self.evaluate(batch, loss)?;
        self.backward()?;
        Ok(CriticStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
    }

    /// Returns `target - value` of each row of the last minibatch.
    ///
    /// The magnitudes are the priorities of prioritized replay.
    fn td_errors(&self) -> &[f32];

    /// Moves each parameter `p` of the target network towards the online network:
    /// `p += tau (online - p)`.
    ///
    /// A `tau` of 1 copies the parameters.
    ///
    /// # Errors
    /// [`Error::Config`] if `tau` is outside [0, 1].
    fn soft_update(&mut self, tau: f32) -> Result<()>;

    /// Returns the architecture, or `None` if the networks do not consist of fully connected
    /// layers.
    fn arch(&self) -> Option<NetworkArch> {
        None
    }

    /// Returns all parameters by name: `q_net.0.weight`, `q_net_target.0.weight`.
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

    /// Loads a state that [`QFunction::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`Error::Config`] if a number of steps is not an
    /// integer of at least 0, or a mean of squares is negative.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// [`QFunction`] with an online network and a target network of the same architecture.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, Discount, Optimizer, QFunction, QLoss, QNetworks, TdLoss, QBatch};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut q = QNetworks::mlp(env.spec(), &[64, 64], Activation::Relu, &mut Pcg64::seed_from(0))?;
/// let batch = QBatch {
///     obs: &[0.0; 8],
///     actions: &[0, 1],
///     rewards: &[1.0; 2],
///     next_obs: &[0.1; 8],
///     terminated: &[false, true],
///     discount: Discount::Same(0.99),
///     weights: None,
///     next_masks: None,
/// };
/// let loss = QLoss { distance: TdLoss::Huber, double: true };
/// q.update(&batch, loss, &Optimizer::adam(1e-3), Some(10.0))?;
/// assert_eq!(q.td_errors().len(), 2);
/// q.soft_update(1.0)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QNetworks<N> {
    online: N,
    target: N,
    memory: Memory,
}

impl<N: Network> QNetworks<N> {
    /// Creates a Q-function from two networks with one output per action.
    ///
    /// `target` becomes a copy of `online`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the architectures are different.
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
}

impl<N: Network> QFunction for QNetworks<N> {
    fn obs_dim(&self) -> usize {
        self.online.in_dim()
    }

    fn num_actions(&self) -> usize {
        self.online.out_dim()
    }

    fn act(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        epsilon: f32,
        rngs: &mut [Pcg64],
        actions: &mut [i64],
    ) -> Result<()> {
        let (rows, count) = (validate::count_rows("obs", obs, self.obs_dim())?, self.num_actions());
        check_len("rngs", rngs.len(), rows)?;
        check_len("actions", actions.len(), rows)?;
        check_masks("masks", masks, rows, count, |_| true)?;
        if !(0.0..=1.0).contains(&epsilon) {
            let fix = "pass the share of random actions";
            return Err(Error::config("epsilon", "a number from 0 to 1", epsilon.to_string(), fix));
        }
        let Memory { workspaces: [workspace, _], next_values: values, .. } = &mut self.memory;
        resize("obs", values, rows * count, 0.0)?;
        self.online.infer(obs, rows, values, workspace)?;
        if let Some(index) = values.iter().position(|value| value.is_nan()) {
            let error =
                Error::not_finite("values", "numbers", "NaN", "check the weights for NaN").at_row(index / count);
            return Err(validate::blame_input(error, obs, self.online.in_dim()));
        }
        for (row, (action, rng)) in actions.iter_mut().zip(rngs).enumerate() {
            let range = row * count..(row + 1) * count;
            let allowed = masks.map(|masks| &masks[range.clone()]);
            let explores = epsilon > 0.0 && rng.random() < f64::from(epsilon);
            *action = if explores {
                random_action(count, allowed, rng)
            } else {
                masked_argmax(&values[range], allowed) as i64
            };
        }
        Ok(())
    }

    fn values(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        let rows = validate::count_rows("obs", obs, self.obs_dim())?;
        check_len("values", values.len(), rows.saturating_mul(self.num_actions()))?;
        self.online.infer(obs, rows, values, &mut self.memory.workspaces[0])
    }

    fn evaluate(&mut self, batch: &QBatch<'_>, loss: QLoss) -> Result<CriticStats> {
        let count = self.num_actions();
        let rows = batch.check(self.obs_dim(), count)?;
        let Self { online, target, memory } = self;
        memory.evaluated = false;
        memory.resize_buffers(rows, count, loss.double)?;
        let Memory { workspaces, values, next_values, next_choices, .. } = memory;
        let [workspace, target_workspace] = workspaces;
        join_if_worth(
            // A forward pass counts as a third of a forward and a backward pass.
            rows * online.num_parameters() / 3,
            || {
                if loss.double {
                    online.infer(batch.next_obs, rows, next_choices, workspace)?;
                }
                online.forward(batch.obs, rows, values)
            },
            // `move` is necessary because networks are `Send`, but need not be `Sync`.
            move || target.infer(batch.next_obs, rows, next_values, target_workspace),
        )?;
        let stats = memory.learn(batch, loss, count)?;
        memory.evaluated = true;
        Ok(stats)
    }

    fn backward(&mut self) -> Result<()> {
        if !self.memory.evaluated {
            let fix = "call evaluate first, once per step";
            return Err(Error::shape("backward", "a previous evaluate call", "none", fix));
        }
        self.online.backward(&self.memory.d_values, true, None)
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let norm = clip_and_step(&mut [("q_net", &mut self.online)], optimizer, max_grad_norm)?;
        self.memory.evaluated = false;
        Ok(norm)
    }

    fn td_errors(&self) -> &[f32] {
        &self.memory.td_errors
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
        let _ = all.extend("q_net", &self.online.tensors());
        let _ = all.extend("q_net_target", &self.target.tensors());
        all
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        self.memory.evaluated = false;
        self.online.load(&tensors.strip_prefix("q_net"))?;
        self.target.load(&tensors.strip_prefix("q_net_target"))
    }

    fn gradients(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        let _ = all.extend("q_net", &self.online.gradients());
        all
    }

    fn optimizer_state(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        let _ = all.extend("q_net", &self.online.optimizer_state());
        all
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.online.load_optimizer_state(&state.strip_prefix("q_net"))
    }
}

/// Memory for a minibatch.
#[derive(Clone, Debug, Default)]
struct Memory {
    workspaces: [Workspace; 2],
    /// Values of all actions. This field and the next fields, up to `d_values`, have the shape
    /// `[B, n]`.
    values: Vec<f32>,
    next_values: Vec<f32>,
    next_choices: Vec<f32>,
    d_values: Vec<f32>,
    /// Values of the actions in the minibatch. This field and the next fields, up to
    /// `d_action_values`, have the shape `[B]`.
    action_values: Vec<f32>,
    targets: Vec<f32>,
    next: Vec<f32>,
    td_errors: Vec<f32>,
    d_action_values: Vec<f32>,
    /// True if the memory holds the result of [`QFunction::evaluate`] for the current weights.
    evaluated: bool,
}

impl Memory {
    fn resize_buffers(&mut self, rows: usize, actions: usize, double: bool) -> Result<()> {
        for vector in [&mut self.values, &mut self.next_values, &mut self.d_values] {
            resize("obs", vector, rows * actions, 0.0)?;
        }
        resize("obs", &mut self.next_choices, if double { rows * actions } else { 0 }, 0.0)?;
        let [action_values, targets, next] = [&mut self.action_values, &mut self.targets, &mut self.next];
        for vector in [action_values, targets, next, &mut self.td_errors, &mut self.d_action_values] {
            resize("obs", vector, rows, 0.0)?;
        }
        Ok(())
    }

    /// Computes the loss and its gradient with respect to the outputs of the online network.
    fn learn(&mut self, batch: &QBatch<'_>, loss: QLoss, count: usize) -> Result<CriticStats> {
        let choices = if loss.double { &self.next_choices } else { &self.next_values };
        for (row, next) in self.next.iter_mut().enumerate() {
            let range = row * count..(row + 1) * count;
            let allowed = batch.next_masks.map(|masks| &masks[range.clone()]);
            *next = self.next_values[row * count + masked_argmax(&choices[range], allowed)];
        }
        td_targets(batch.rewards, batch.terminated, batch.discount, &self.next, &mut self.targets)?;
        for (row, (action_value, action)) in self.action_values.iter_mut().zip(batch.actions).enumerate() {
            *action_value = self.values[row * count + *action as usize];
        }
        let Self { action_values, targets, td_errors, d_action_values, d_values, .. } = self;
        let loss = td_loss(loss.distance, action_values, targets, batch.weights, 1.0, td_errors, d_action_values)?;
        d_values.fill(0.0);
        for (row, (slope, action)) in d_action_values.iter().zip(batch.actions).enumerate() {
            d_values[row * count + *action as usize] = *slope;
        }
        let mean_value = (action_values.iter().map(|x| f64::from(*x)).sum::<f64>() / action_values.len() as f64) as f32;
        Ok(CriticStats { loss, mean_value, grad_norm: 0.0 })
    }
}

/// Checks the length of masks, and that a mask allows an action in each row for which `is_required`
/// is true.
fn check_masks(
    name: &'static str,
    masks: Option<&[bool]>,
    rows: usize,
    actions: usize,
    is_required: impl Fn(usize) -> bool,
) -> Result<()> {
    let Some(masks) = masks else { return Ok(()) };
    check_len(name, masks.len(), rows.saturating_mul(actions))?;
    let mut rows = masks.chunks_exact(actions).enumerate();
    match rows.find(|(row, allowed)| !allowed.contains(&true) && is_required(*row)) {
        None => Ok(()),
        Some((row, _)) => {
            let fix = "allow an action in every row";
            Err(Error::action(name, "at least one allowed action", "none", fix).at_row(row))
        }
    }
}

/// Returns the first allowed action with the largest value. NaN counts as the largest value.
fn masked_argmax(values: &[f32], allowed: Option<&[bool]>) -> usize {
    let mut best: Option<usize> = None;
    for (action, value) in values.iter().enumerate() {
        let larger = best.is_none_or(|best| *value > values[best] || value.is_nan() && !values[best].is_nan());
        if larger && allowed.is_none_or(|allowed| allowed[action]) {
            best = Some(action);
        }
    }
    best.unwrap_or(0)
}

/// Draws an allowed action uniformly from `actions` actions.
fn random_action(actions: usize, allowed: Option<&[bool]>, rng: &mut Pcg64) -> i64 {
    let Some(allowed) = allowed else { return rng.integers(0, actions as i64) };
    let count = allowed.iter().filter(|allowed| **allowed).count();
    let choice = rng.integers(0, count as i64) as usize;
    allowed.iter().enumerate().filter(|(_, allowed)| **allowed).nth(choice).map_or(0, |(action, _)| action as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_argmax_returns_the_first_largest_allowed_action() {
        assert_eq!(masked_argmax(&[1.0, 3.0, 3.0], None), 1);
        assert_eq!(masked_argmax(&[1.0, 3.0, 3.0], Some(&[true, false, true])), 2);
        assert_eq!(masked_argmax(&[1.0, f32::NAN, 3.0, f32::NAN], None), 1);
        assert_eq!(masked_argmax(&[f32::NEG_INFINITY; 2], Some(&[false, true])), 1);
    }

    #[test]
    fn random_action_is_uniform_over_allowed_actions() {
        let mut rng = Pcg64::seed_from(1);
        let mut counts = [0; 4];
        for _ in 0..3000 {
            counts[random_action(4, Some(&[true, false, true, true]), &mut rng) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!([0, 2, 3].iter().all(|i| (900..1100).contains(&counts[*i])), "{counts:?}");
    }
}
