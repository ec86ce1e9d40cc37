//! A policy and the values of states: what PPO, A2C and IMPALA learn.

mod built_in;
mod losses;
mod parts;

pub use losses::{
    ClippedLoss, clipped_policy_loss, explained_variance, normalize_advantages, policy_gradient_loss, value_loss,
};

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Policy, PolicyOut, Result, check_len, join};

use crate::{Distribution, Given, NamedTensors, Network, Optimizer, Parameters, Scratch, Step, clipped_step};

/// A minibatch of B steps. All but the observations and actions are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct Minibatch<'a> {
    /// `[B, d]`.
    pub obs: &'a [f32],
    /// `[B, a]`, discrete ones counted from 0, continuous ones as they were sampled.
    pub actions: Actions<'a>,
    /// What was allowed, `[B, n]`.
    pub masks: Option<&'a [bool]>,
    /// The log-probabilities the actions had when they were chosen.
    pub log_probs: &'a [f32],
    /// The values the observations had then.
    pub values: &'a [f32],
    /// Advantages, normalised or not.
    pub advantages: &'a [f32],
    /// What values are to be.
    pub returns: &'a [f32],
}

/// How the policy learns from advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyLoss {
    /// [`clipped_policy_loss`], PPO's.
    Clipped {
        /// How far the ratio of new to old probability may pay off.
        clip_coef: f32,
    },
    /// [`policy_gradient_loss`], A2C's and, with V-trace's advantages and targets, IMPALA's.
    Gradient,
}

/// `policy + vf_coef value - ent_coef entropy`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActorCriticLoss {
    /// How the policy learns.
    pub policy: PolicyLoss,
    /// How far values may move; `None` for any way.
    pub clip_coef_vf: Option<f32>,
    /// Weight of the value loss.
    pub vf_coef: f32,
    /// Weight of the entropy bonus.
    pub ent_coef: f32,
}

/// What a minibatch said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActorCriticStats {
    /// The policy's part of the loss.
    pub policy_loss: f32,
    /// The mean squared error of the values.
    pub value_loss: f32,
    /// Minus the mean entropy.
    pub entropy_loss: f32,
    /// The whole.
    pub loss: f32,
    /// As [`ClippedLoss::approx_kl`]; 0 for [`PolicyLoss::Gradient`].
    pub approx_kl: f32,
    /// As [`ClippedLoss::clip_fraction`]; 0 for [`PolicyLoss::Gradient`].
    pub clip_fraction: f32,
    /// The norm of all gradients before they were clipped.
    pub grad_norm: f32,
}

/// A policy with values, of any backend: acts, evaluates, learns.
pub trait ActorCritic: Policy + Send {
    /// The likeliest actions of `obs`, `[N, d]`.
    ///
    /// # Errors
    /// Those of [`Policy::act`].
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;

    /// The loss of a minibatch, and its gradient with respect to the networks' outputs.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Action`] for a minibatch that does not fit.
    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats>;

    /// Adds the gradient of what [`ActorCritic::evaluate`] said last to the parameters' gradients.
    ///
    /// # Errors
    /// [`Error::Shape`] if nothing was evaluated before.
    fn backward(&mut self) -> Result<()>;

    /// One step of the optimiser with the parameters' gradients, cut together to a norm; returns the norm before.
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
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorCriticStats> {
        let stats = self.evaluate(batch, loss)?;
        self.backward()?;
        Ok(ActorCriticStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
    }

    /// Draws the noise of state-dependent exploration anew.
    fn draw_noise(&mut self, rngs: &mut [Pcg64]);

    /// All parameters by name: `actor.0.weight`, `critic.0.weight`, `log_std`.
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

    /// Takes what [`ActorCritic::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// An [`ActorCritic`] of two networks, or of one whose outputs are `[policy | value]`.
#[derive(Clone, Debug)]
pub struct PolicyNetworks<N> {
    actor: N,
    /// `None` where the actor's last output is the value.
    critic: Option<N>,
    distribution: Distribution,
    memory: Memory,
}

/// Memory of a batch.
#[derive(Debug, Default)]
struct Memory {
    scratch: Scratch,
    /// `[policy | value]` rows of a shared trunk.
    joint: Vec<f32>,
    policy: PolicyMemory,
    value: ValueMemory,
}

#[derive(Debug, Default)]
struct PolicyMemory {
    outputs: Vec<f32>,
    hidden: Vec<f32>,
    log_probs: Vec<f32>,
    entropies: Vec<f32>,
    d_log_probs: Vec<f32>,
    d_outputs: Vec<f32>,
}

#[derive(Debug, Default)]
struct ValueMemory {
    values: Vec<f32>,
    d_values: Vec<f32>,
}

impl Clone for Memory {
    /// What it holds between calls means nothing.
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// From so many multiplications on, actor and critic are computed at once: about 10 us of work each.
const SHARED_FROM: usize = 200_000;

impl<N: Network> PolicyNetworks<N> {
    /// A policy of a network for the distribution's outputs and one with a single output for values.
    ///
    /// # Errors
    /// [`Error::Shape`] if the networks do not fit the distribution or each other.
    pub fn new(actor: N, critic: N, distribution: Distribution) -> Result<Self> {
        let wanted = [distribution.outputs(), 1, actor.in_dim()];
        let got = [actor.out_dim(), critic.out_dim(), critic.in_dim()];
        if wanted != got {
            let said = |[actor, critic, input]: [usize; 3]| {
                format!("an actor of {actor} outputs, a critic of {critic} for {input} inputs")
            };
            return Err(Error::shape("networks", said(wanted), said(got), "make them for this action space"));
        }
        Self::made(actor, Some(critic), distribution)
    }

    /// A policy of one network whose outputs are the distribution's, and last the value.
    ///
    /// # Errors
    /// [`Error::Shape`] if the network does not fit the distribution.
    pub fn shared(network: N, distribution: Distribution) -> Result<Self> {
        let wanted = distribution.outputs() + 1;
        if network.out_dim() != wanted {
            let (expected, got) = (format!("{wanted} outputs"), network.out_dim().to_string());
            return Err(Error::shape("network", expected, got, "make it for this action space and a value"));
        }
        Self::made(network, None, distribution)
    }

    fn made(actor: N, critic: Option<N>, distribution: Distribution) -> Result<Self> {
        let hidden = distribution.reads_hidden();
        if hidden > 0 && hidden != actor.hidden_dim() {
            let (expected, got) = (format!("a last hidden layer of {hidden}"), actor.hidden_dim().to_string());
            return Err(Error::shape("network", expected, got, "make the distribution for this network"));
        }
        Ok(Self { actor, critic, distribution, memory: Memory::default() })
    }

    /// The network that says what to do.
    pub fn actor(&self) -> &N {
        &self.actor
    }

    /// The network of values; none where the trunk is shared.
    pub fn critic(&self) -> Option<&N> {
        self.critic.as_ref()
    }

    /// How actions are spread.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// The number of rows of observations.
    fn rows(&self, obs: &[f32]) -> Result<usize> {
        let dim = self.actor.in_dim();
        if obs.is_empty() || !obs.len().is_multiple_of(dim) {
            let expected = format!("rows of {dim} numbers");
            return Err(Error::shape("obs", expected, format!("{} numbers", obs.len()), "pass whole observations"));
        }
        Ok(obs.len() / dim)
    }

    fn check(&self, batch: &Minibatch<'_>) -> Result<usize> {
        let rows = self.rows(batch.obs)?;
        for (name, numbers) in [
            ("log_probs", batch.log_probs),
            ("values", batch.values),
            ("advantages", batch.advantages),
            ("returns", batch.returns),
        ] {
            check_len(name, numbers.len(), rows)?;
        }
        Ok(rows)
    }

    /// Forward and loss, and where it is wanted backward: two networks at once if that is worth it.
    fn pass(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        rows: usize,
        backward: bool,
    ) -> Result<ActorCriticStats> {
        let Self { actor, critic, distribution, memory } = self;
        memory.make_room(rows, distribution.outputs(), actor.out_dim(), distribution.reads_hidden());
        let Memory { joint, policy, value, .. } = memory;
        let (said, value_loss) = if let Some(critic) = critic {
            at_once(
                rows * multiplications(actor),
                || {
                    actor.forward(batch.obs, rows, &mut policy.outputs)?;
                    if !policy.hidden.is_empty() {
                        actor.hidden(&mut policy.hidden)?;
                    }
                    let said = policy.learn(distribution, batch, loss)?;
                    if backward { actor.backward(&policy.d_outputs, true, None).map(|()| said) } else { Ok(said) }
                },
                || {
                    critic.forward(batch.obs, rows, &mut value.values)?;
                    let said = value.learn(batch, loss);
                    if backward { critic.backward(&value.d_values, true, None).map(|()| said) } else { Ok(said) }
                },
            )?
        } else {
            actor.forward(batch.obs, rows, joint)?;
            split(joint, distribution.outputs(), &mut policy.outputs, Some(&mut value.values));
            if !policy.hidden.is_empty() {
                actor.hidden(&mut policy.hidden)?;
            }
            let said = (policy.learn(distribution, batch, loss)?, value.learn(batch, loss));
            if backward {
                merge(joint, distribution.outputs(), &policy.d_outputs, &value.d_values);
                actor.backward(joint, true, None)?;
            }
            said
        };
        let loss = said.policy_loss + loss.vf_coef * value_loss + loss.ent_coef * said.entropy_loss;
        Ok(ActorCriticStats { value_loss, loss, ..said })
    }

    /// Outputs, hidden layer and, if wanted, values, kept nowhere else than in memory.
    fn infer(&mut self, obs: &[f32], values: Option<&mut [f32]>) -> Result<usize> {
        let rows = self.rows(obs)?;
        let Memory { scratch, joint, policy: PolicyMemory { outputs, hidden, .. }, .. } = &mut self.memory;
        hidden.resize(rows * self.distribution.reads_hidden(), 0.0);
        joint.resize(rows * self.actor.out_dim(), 0.0);
        if hidden.is_empty() {
            self.actor.infer(obs, rows, joint, scratch)?;
        } else {
            self.actor.infer_hidden(obs, rows, joint, hidden, scratch)?;
        }
        match (&self.critic, values) {
            (Some(critic), values) => {
                std::mem::swap(joint, outputs);
                values.map_or(Ok(()), |values| critic.infer(obs, rows, values, scratch))?;
            }
            (None, values) => {
                outputs.resize(rows * self.distribution.outputs(), 0.0);
                split(joint, self.distribution.outputs(), outputs, values);
            }
        }
        Ok(rows)
    }
}

/// How many multiplications a row of a network takes, about.
pub(crate) fn multiplications<N: Network>(net: &N) -> usize {
    net.hidden_dim() * net.hidden_dim()
}

/// Both pieces, at once if there is enough to do.
pub(crate) fn at_once<A: Send, B: Send>(
    multiplications: usize,
    a: impl FnOnce() -> Result<A> + Send,
    b: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    if multiplications < SHARED_FROM {
        return Ok((a()?, b()?));
    }
    let (a, b) = join(a, b)?;
    Ok((a?, b?))
}

impl PolicyMemory {
    /// The policy's part of the loss and its gradient.
    fn learn(
        &mut self,
        distribution: &mut Distribution,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
    ) -> Result<ActorCriticStats> {
        let Self { outputs, hidden, log_probs, entropies, d_log_probs, d_outputs } = self;
        let given = Given { outputs, hidden, masks: batch.masks };
        distribution.evaluate(given, batch.actions, log_probs, entropies)?;
        let mut said = ActorCriticStats::default();
        match loss.policy {
            PolicyLoss::Clipped { clip_coef } => {
                let clipped = clipped_policy_loss(log_probs, batch.log_probs, batch.advantages, clip_coef, d_log_probs);
                said.policy_loss = clipped.loss;
                (said.approx_kl, said.clip_fraction) = (clipped.approx_kl, clipped.clip_fraction);
            }
            PolicyLoss::Gradient => {
                said.policy_loss = policy_gradient_loss(log_probs, batch.advantages, d_log_probs);
            }
        }
        let rows = entropies.len();
        said.entropy_loss = -(entropies.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64) as f32;
        let d_entropy = -loss.ent_coef / rows as f32;
        distribution.backward(given, batch.actions, d_log_probs, d_entropy, d_outputs)?;
        Ok(said)
    }
}

impl ValueMemory {
    /// The value loss and its gradient.
    fn learn(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> f32 {
        let clip = loss.clip_coef_vf.map(|most| (batch.values, most));
        value_loss(&self.values, batch.returns, clip, loss.vf_coef, &mut self.d_values)
    }
}

/// Policy rows and values as `[policy | value]` rows.
fn merge(joint: &mut [f32], width: usize, outputs: &[f32], values: &[f32]) {
    for (row, (policy, value)) in joint.chunks_exact_mut(width + 1).zip(outputs.chunks_exact(width).zip(values)) {
        row[..width].copy_from_slice(policy);
        row[width] = *value;
    }
}

/// `[policy | value]` rows as policy rows and values.
fn split(joint: &[f32], width: usize, outputs: &mut [f32], values: Option<&mut [f32]>) {
    for (row, out) in joint.chunks_exact(width + 1).zip(outputs.chunks_exact_mut(width)) {
        out.copy_from_slice(&row[..width]);
    }
    if let Some(values) = values {
        values.iter_mut().zip(joint.chunks_exact(width + 1)).for_each(|(value, row)| *value = row[width]);
    }
}

impl<N: Network> Policy for PolicyNetworks<N> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        let rows = self.rows(obs)?;
        check_len("values", out.values.len(), rows)?;
        check_len("rngs", rngs.len(), rows)?;
        self.infer(obs, Some(out.values))?;
        let Self { distribution, memory, .. } = self;
        let given = Given { outputs: &memory.policy.outputs, hidden: &memory.policy.hidden, masks };
        distribution.sample(given, rngs, out.actions, out.log_probs)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        if obs.is_empty() && values.is_empty() {
            return Ok(());
        }
        let rows = self.rows(obs)?;
        check_len("values", values.len(), rows)?;
        match &self.critic {
            Some(critic) => critic.infer(obs, rows, values, &mut self.memory.scratch),
            None => self.infer(obs, Some(values)).map(|_| ()),
        }
    }
}

impl<N: Network> ActorCritic for PolicyNetworks<N> {
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.infer(obs, None)?;
        let PolicyMemory { outputs, hidden, .. } = &self.memory.policy;
        let given = Given { outputs, hidden, masks };
        self.distribution.mode(given, actions)
    }

    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats> {
        let rows = self.check(batch)?;
        self.pass(batch, loss, rows, false)
    }

    fn backward(&mut self) -> Result<()> {
        let Self { actor, critic, distribution, memory } = self;
        let Memory { joint, policy, value, .. } = memory;
        let Some(critic) = critic else {
            merge(joint, distribution.outputs(), &policy.d_outputs, &value.d_values);
            return actor.backward(joint, true, None);
        };
        let rows = value.d_values.len();
        at_once(
            rows * multiplications(actor),
            || actor.backward(&policy.d_outputs, true, None),
            || critic.backward(&value.d_values, true, None),
        )?;
        Ok(())
    }

    fn update(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<ActorCriticStats> {
        let rows = self.check(batch)?;
        let stats = self.pass(batch, loss, rows, true)?;
        Ok(ActorCriticStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let Self { actor, critic, distribution, .. } = self;
        let beside = distribution.parameters_mut().map(|beside| ("policy", beside as &mut dyn Step));
        // At most three parts, and no vector of them.
        match (critic, beside) {
            (Some(critic), None) => clipped_step(&mut [("actor", actor), ("critic", critic)], optimizer, max_grad_norm),
            (Some(critic), Some(beside)) => {
                clipped_step(&mut [("actor", actor), ("critic", critic), beside], optimizer, max_grad_norm)
            }
            (None, None) => clipped_step(&mut [("trunk", actor)], optimizer, max_grad_norm),
            (None, Some(beside)) => clipped_step(&mut [("trunk", actor), beside], optimizer, max_grad_norm),
        }
    }

    fn draw_noise(&mut self, rngs: &mut [Pcg64]) {
        self.distribution.draw_noise(rngs);
    }

    fn tensors(&self) -> NamedTensors {
        self.named(N::tensors, Parameters::tensors)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        self.hand_out(tensors, N::load, Parameters::load)
    }

    fn gradients(&self) -> NamedTensors {
        self.named(N::gradients, Step::named_gradients)
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.named(N::optimizer_state, Parameters::optimizer_state)
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        state.check(&self.optimizer_state())?;
        self.hand_out(state, N::load_optimizer_state, Parameters::load_optimizer_state)
    }
}
