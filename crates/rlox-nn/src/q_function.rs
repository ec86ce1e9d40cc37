//! The values of all actions of a state: what DQN learns.

use rlox_core::{Error, Pcg64, Result, check_len};

use crate::alloc::resize;
use crate::losses::{td_loss, td_targets};
use crate::optimizer::check_state;
use crate::parallel::join_if_worth;
use crate::{Discount, NamedTensors, Network, NetworkArch, Optimizer, TdLoss, Workspace, clip_and_step, validate};

/// How a Q-function learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QLoss {
    /// How errors are measured; Huber is usual.
    pub distance: TdLoss,
    /// Whether the online network chooses the next action that the target network values (van Hasselt et al. 2016,
    /// "Deep Reinforcement Learning with Double Q-learning").
    pub double: bool,
}

/// What a minibatch said to critics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CriticStats {
    /// The loss; with several critics their sum.
    pub loss: f32,
    /// The mean value of the actions that were taken.
    pub mean_value: f32,
    /// The norm of all gradients before they were clipped.
    pub grad_norm: f32,
}

/// A minibatch of B transitions. All but the observations and masks are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct QBatch<'a> {
    /// `[B, d]`.
    pub obs: &'a [f32],
    /// Counters from 0.
    pub actions: &'a [i64],
    /// What the actions were paid.
    pub rewards: &'a [f32],
    /// `[B, d]`: the true next observations, never those of a reset.
    pub next_obs: &'a [f32],
    /// Where nothing comes after; never where the time was over.
    pub terminated: &'a [bool],
    /// What the next values count.
    pub discount: Discount<'a>,
    /// Importance weights of prioritized replay.
    pub weights: Option<&'a [f32]>,
    /// Which actions are allowed in the next states, `[B, n]`; anything where `terminated`.
    pub next_masks: Option<&'a [bool]>,
}

impl QBatch<'_> {
    /// The number of rows, of observations of `obs_dim` numbers and so many actions.
    fn check(&self, obs_dim: usize, num_actions: usize) -> Result<usize> {
        let rows = validate::count_rows("obs", self.obs, obs_dim)?;
        check_len("next_obs", self.next_obs.len(), self.obs.len())?;
        check_len("actions", self.actions.len(), rows)?;
        check_len("rewards", self.rewards.len(), rows)?;
        check_len("terminated", self.terminated.len(), rows)?;
        self.discount.check(rows)?;
        check_len("weights", self.weights.map_or(rows, <[f32]>::len), rows)?;
        // In a terminated state nothing is chosen.
        check_masks("next_masks", self.next_masks, rows, num_actions, |row| !self.terminated[row])?;
        if let Some(row) = self.actions.iter().position(|action| !(0..num_actions as i64).contains(action)) {
            let (expected, got) = (format!("numbers from 0 to {}", num_actions - 1), self.actions[row].to_string());
            return Err(Error::action("actions", expected, got, "correct it").at_row(row));
        }
        validate::check_finite("obs", self.obs, obs_dim)?;
        validate::check_finite("rewards", self.rewards, 1)?;
        validate::check_finite("weights", self.weights.unwrap_or(&[]), 1)?;
        self.check_next_obs(obs_dim)?;
        Ok(rows)
    }

    /// What comes after a terminated row counts for nothing, and may be anything.
    fn check_next_obs(&self, obs_dim: usize) -> Result<()> {
        let has_non_finite = |(next, terminated): (&[f32], &bool)| !terminated && next.iter().any(|x| !x.is_finite());
        match self.next_obs.chunks_exact(obs_dim).zip(self.terminated).position(has_non_finite) {
            None => Ok(()),
            Some(row) => {
                let (expected, got) = ("finite numbers where an episode goes on", "NaN or infinity");
                Err(Error::not_finite("next_obs", expected, got, "look at where it comes from").at_row(row))
            }
        }
    }
}

/// The values of all actions, of any backend: acts, evaluates, learns.
pub trait QFunction: Send {
    /// Numbers in an observation.
    fn obs_dim(&self) -> usize;

    /// How many actions there are.
    fn num_actions(&self) -> usize;

    /// The best actions of `obs`, `[N, d]`, or, with probability `epsilon`, any. Masks, `[N, n]`, say what is allowed;
    /// row i draws from `rngs[i]` alone.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit, [`Error::Config`] for an epsilon that is no probability,
    /// [`Error::NotFinite`] for values that are not numbers, [`Error::Action`] for a row whose mask allows nothing.
    fn act(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        epsilon: f32,
        rngs: &mut [Pcg64],
        actions: &mut [i64],
    ) -> Result<()>;

    /// The values of `obs`, `[N, d]`, as `[N, n]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit.
    fn values(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()>;

    /// The loss of a minibatch, and its gradient with respect to the network's outputs.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Config`] and [`Error::Action`] for a minibatch that does not fit; [`Error::Config`] naming
    /// a number of it that is not finite.
    fn evaluate(&mut self, batch: &QBatch<'_>, loss: QLoss) -> Result<CriticStats>;

    /// Adds the gradient of what [`QFunction::evaluate`] said last to the parameters' gradients.
    ///
    /// # Errors
    /// [`Error::Shape`] if nothing was evaluated since the last step or load.
    fn backward(&mut self) -> Result<()>;

    /// One step of the optimiser with the parameters' gradients, cut to a norm; returns the norm before.
    ///
    /// # Errors
    /// [`Error::Config`] naming a gradient that is not finite; nothing has changed then.
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// All three in one.
    ///
    /// # Errors
    /// Those of the three.
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

    /// `target - value` of each row of the last minibatch: priorities are made from them.
    fn td_errors(&self) -> &[f32];

    /// Moves the target network towards the online one by a share `tau`; 1 copies.
    ///
    /// # Errors
    /// [`Error::Config`] for a share outside of 0 to 1.
    fn soft_update(&mut self, tau: f32) -> Result<()>;

    /// How its networks are made; `None` if they are not of fully connected layers.
    fn arch(&self) -> Option<NetworkArch> {
        None
    }

    /// All parameters by name: `q_net.0.weight`, `q_net_target.0.weight`.
    fn tensors(&self) -> NamedTensors;

    /// Takes parameters by name.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// The gradients since the last step, by the parameters' names.
    fn gradients(&self) -> NamedTensors;

    /// What the optimiser keeps, by the parameters' names.
    fn optimizer_state(&self) -> NamedTensors;

    /// Takes what [`QFunction::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// A [`QFunction`] of two networks of one architecture: an online one that learns, and a target that follows it.
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
/// q.track(1.0)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QNetworks<N> {
    online: N,
    target: N,
    memory: Memory,
}

impl<N: Network> QNetworks<N> {
    /// A Q-function of an online network with one output an action, and of another one of the same architecture, which
    /// becomes its copy.
    ///
    /// # Errors
    /// [`Error::Shape`] if they differ.
    pub fn new(online: N, mut target: N) -> Result<Self> {
        target.soft_update(&online, 1.0)?;
        Ok(Self { online, target, memory: Memory::default() })
    }

    /// The network that learns.
    pub fn online(&self) -> &N {
        &self.online
    }

    /// The network that follows.
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
            let fix = "pass a share of random actions";
            return Err(Error::config("epsilon", "a number between 0 and 1", epsilon.to_string(), fix));
        }
        let Memory { workspaces: [workspace, _], next_values: values, .. } = &mut self.memory;
        resize("obs", values, rows * count, 0.0)?;
        self.online.infer(obs, rows, values, workspace)?;
        if let Some(index) = values.iter().position(|value| value.is_nan()) {
            let error =
                Error::not_finite("values", "numbers", "NaN", "look for NaN in the weights").at_row(index / count);
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
            // Forward only, which is a third of a step.
            rows * online.num_parameters() / 3,
            || {
                if loss.double {
                    online.infer(batch.next_obs, rows, next_choices, workspace)?;
                }
                online.forward(batch.obs, rows, values)
            },
            // Moved: networks may be sent to another thread, but not shared with it.
            move || target.infer(batch.next_obs, rows, next_values, target_workspace),
        )?;
        let stats = memory.learn(batch, loss, count)?;
        memory.evaluated = true;
        Ok(stats)
    }

    fn backward(&mut self) -> Result<()> {
        if !self.memory.evaluated {
            return Err(Error::shape("backward", "an evaluate before it", "none", "call evaluate first, once a step"));
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
        // The two names differ: nothing is refused.
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

/// Memory of a batch.
#[derive(Clone, Debug, Default)]
struct Memory {
    workspaces: [Workspace; 2],
    /// `[B, n]`, and so are the next two.
    values: Vec<f32>,
    next_values: Vec<f32>,
    next_choices: Vec<f32>,
    d_values: Vec<f32>,
    /// `[B]`, and so is all below.
    action_values: Vec<f32>,
    targets: Vec<f32>,
    next: Vec<f32>,
    td_errors: Vec<f32>,
    d_action_values: Vec<f32>,
    /// Whether it holds what an evaluation said of the weights as they are, to go back from.
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

    /// The loss of what the networks said, and its gradient.
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

/// Checks that there are masks for all rows, and that each allows something where a choice `matters`.
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
            Err(Error::action(name, "at least one allowed action a row", "none", "allow one").at_row(row))
        }
    }
}

/// The first action of the largest value among those allowed. A value that is not a number counts as the largest.
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

/// Any of the allowed actions, all alike.
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
    fn the_first_of_the_largest_allowed_values_is_best() {
        assert_eq!(masked_argmax(&[1.0, 3.0, 3.0], None), 1);
        assert_eq!(masked_argmax(&[1.0, 3.0, 3.0], Some(&[true, false, true])), 2);
        assert_eq!(masked_argmax(&[1.0, f32::NAN, 3.0, f32::NAN], None), 1);
        assert_eq!(masked_argmax(&[f32::NEG_INFINITY; 2], Some(&[false, true])), 1);
    }

    #[test]
    fn any_allowed_action_is_as_likely() {
        let mut rng = Pcg64::seed_from(1);
        let mut counts = [0; 4];
        for _ in 0..3000 {
            counts[random_action(4, Some(&[true, false, true, true]), &mut rng) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!([0, 2, 3].iter().all(|i| (900..1100).contains(&counts[*i])), "{counts:?}");
    }
}
