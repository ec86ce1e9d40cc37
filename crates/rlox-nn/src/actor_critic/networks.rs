//! An actor-critic of networks of any backend.

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Policy, PolicyOut, Result, Watch, check_len};

use super::acting::Acting;
use super::memory::{Memory, merge, policies_of, values_of};
use super::{ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, PolicyShape};
use crate::at_once::{at_once_if, pays};
use crate::network::clipped_step_if;
use crate::shape::widths;
use crate::{Distribution, Learnable, NamedTensors, Network, Optimizer, Parameters, rows};

/// Rows that are passed forward and back at once.
const BLOCK: usize = 1024;

/// An [`ActorCritic`] of two networks, or of one whose outputs are `[policy | value]`.
#[derive(Clone, Debug)]
pub struct PolicyNetworks<N> {
    pub(super) actor: N,
    /// `None` where the actor's last output is the value.
    pub(super) critic: Option<N>,
    pub(super) distribution: Distribution,
    pub(super) acting: Acting,
    memory: Memory,
}

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
        let (acting, memory) = Default::default();
        Ok(Self { actor, critic, distribution, acting, memory })
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
    pub(super) fn rows(&self, obs: &[f32]) -> Result<usize> {
        rows::count("obs", obs, self.actor.in_dim())
    }

    fn check(&self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<usize> {
        loss.check()?;
        let rows = self.rows(batch.obs)?;
        rows::check_finite("obs", batch.obs, self.actor.in_dim())?;
        for (name, numbers) in [
            ("log_probs", batch.log_probs),
            ("values", batch.values),
            ("advantages", batch.advantages),
            ("returns", batch.returns),
        ] {
            check_len(name, numbers.len(), rows)?;
            rows::check_finite(name, numbers, 1)?;
        }
        rows::check_actions(batch.actions, self.distribution.action_dim())?;
        Ok(rows)
    }

    /// Forward, loss and backward, of many rows block by block: memory stays small, and `stop` or Ctrl-C end it.
    fn learn(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        rows: usize,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<ActorCriticStats> {
        if rows <= BLOCK {
            return self.pass(batch, loss, rows, true, 1.0);
        }
        let actions = match batch.actions {
            Actions::Discrete(actions) => actions.len(),
            Actions::Continuous(actions) => actions.len(),
        };
        check_len("actions", actions, rows * self.distribution.action_dim())?;
        if let Some(masks) = batch.masks {
            self.distribution.check_masks(masks, rows)?;
        }
        let (mut watch, mut all) = (Watch::default(), ActorCriticStats::default());
        for from in (0..rows).step_by(BLOCK) {
            watch.check()?;
            if stop() {
                return Err(Error::Interrupted);
            }
            let to = rows.min(from + BLOCK);
            let share = (to - from) as f32 / rows as f32;
            let said = self.pass(&batch.rows(from..to, rows), loss, to - from, true, share);
            all.add(&said.map_err(|error| error.offset_row(from))?, share);
        }
        Ok(all)
    }

    /// Forward and loss, and where it is wanted backward: two networks at once if that is worth it. Gradients are those of
    /// the loss times `share`.
    fn pass(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        rows: usize,
        backward: bool,
        share: f32,
    ) -> Result<ActorCriticStats> {
        let Self { actor, critic, distribution, memory, .. } = self;
        memory.evaluated = false;
        memory.make_room(rows, distribution.outputs(), actor.out_dim(), distribution.reads_hidden())?;
        let Memory { joint, policy, value, evaluated, apart } = memory;
        let (said, value_loss) = if let Some(critic) = critic {
            let pays = pays(rows * actor.num_parameters());
            *apart |= backward && pays;
            at_once_if(
                pays,
                || {
                    actor.forward(batch.obs, rows, &mut policy.outputs)?;
                    if !policy.hidden.is_empty() {
                        actor.hidden(&mut policy.hidden)?;
                    }
                    let said = policy.learn(distribution, batch, loss, share)?;
                    if backward {
                        actor.backward(&policy.d_outputs, true, None)?;
                        distribution.add_gradients();
                    }
                    Ok(said)
                },
                || {
                    critic.forward(batch.obs, rows, &mut value.values)?;
                    let said = value.learn(batch, loss, share)?;
                    if backward { critic.backward(&value.d_values, true, None).map(|()| said) } else { Ok(said) }
                },
            )?
        } else {
            actor.forward(batch.obs, rows, joint)?;
            policies_of(joint, distribution.outputs(), &mut policy.outputs);
            values_of(joint, distribution.outputs(), &mut value.values);
            if !policy.hidden.is_empty() {
                actor.hidden(&mut policy.hidden)?;
            }
            let said = (policy.learn(distribution, batch, loss, share)?, value.learn(batch, loss, share)?);
            if backward {
                merge(joint, distribution.outputs(), &policy.d_outputs, &value.d_values);
                actor.backward(joint, true, None)?;
                distribution.add_gradients();
            }
            said
        };
        *evaluated = !backward;
        let loss = said.policy_loss + loss.vf_coef * value_loss + loss.ent_coef * said.entropy_loss;
        Ok(ActorCriticStats { value_loss, loss, ..said })
    }
}

impl<N: Network> ActorCritic for PolicyNetworks<N> {
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.infer(obs)?;
        let done = self.distribution.mode(self.acting.given(masks), actions);
        done.map_err(|error| rows::blame_input(error, obs, self.actor.in_dim()))
    }

    fn evaluate_actions(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        self.say((obs, masks), actions, log_probs, values)
    }

    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats> {
        let rows = self.check(batch, loss)?;
        self.pass(batch, loss, rows, false, 1.0)
    }

    fn backward(&mut self) -> Result<()> {
        let Self { actor, critic, distribution, memory, .. } = self;
        let Memory { joint, policy, value, evaluated, apart } = memory;
        if !*evaluated {
            return Err(Error::shape("backward", "an evaluate before it", "none", "call evaluate first, once a step"));
        }
        if let Some(critic) = critic {
            *apart = pays(value.d_values.len() * actor.num_parameters());
            at_once_if(
                *apart,
                || actor.backward(&policy.d_outputs, true, None),
                || critic.backward(&value.d_values, true, None),
            )?;
        } else {
            merge(joint, distribution.outputs(), &policy.d_outputs, &value.d_values);
            actor.backward(joint, true, None)?;
        }
        distribution.add_gradients();
        Ok(())
    }

    fn update_unless(
        &mut self,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
        max_kl: Option<f32>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<ActorCriticStats> {
        let mut work = || {
            optimizer.check()?;
            let rows = self.check(batch, loss)?;
            let stats = self.learn(batch, loss, rows, stop)?;
            let moved = max_kl.is_some_and(|most| stats.approx_kl > most);
            let grad_norm = if moved { 0.0 } else { self.step(optimizer, max_grad_norm)? };
            Ok(ActorCriticStats { grad_norm, ..stats })
        };
        let done = work();
        // Without a step there may be some, perhaps of one part alone.
        self.zero_gradients();
        done
    }

    fn zero_gradients(&mut self) {
        self.memory.apart = false;
        self.actor.zero_gradients();
        self.critic.iter_mut().for_each(N::zero_gradients);
        self.distribution.parameters_mut().into_iter().for_each(Learnable::forget);
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let Self { actor, critic, distribution, memory, .. } = self;
        // What was evaluated was the former weights'.
        memory.evaluated = false;
        let beside = distribution.parameters_mut().map(|beside| ("policy", beside as &mut dyn Learnable));
        // At most three parts, and no vector of them.
        let apart = std::mem::take(&mut memory.apart);
        let step =
            |parts: &mut [(&'static str, &mut dyn Learnable)]| clipped_step_if(apart, parts, optimizer, max_grad_norm);
        match (critic, beside) {
            (Some(critic), None) => step(&mut [("actor", actor), ("critic", critic)]),
            (Some(critic), Some(beside)) => step(&mut [("actor", actor), ("critic", critic), beside]),
            (None, None) => step(&mut [("trunk", actor)]),
            (None, Some(beside)) => step(&mut [("trunk", actor), beside]),
        }
    }

    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        self.distribution.draw_noise(rngs)
    }

    fn act_once(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        let mut kept = Vec::new();
        self.distribution.swap_noise(&mut kept);
        let done = self.distribution.draw_noise(rngs).and_then(|()| self.act(obs, masks, rngs, out));
        self.distribution.swap_noise(&mut kept);
        done
    }

    fn mean_std(&self) -> Option<f32> {
        let log_stds = self.distribution.parameters()?.values();
        Some(log_stds.iter().map(|log_std| log_std.exp()).sum::<f32>() / log_stds.len() as f32)
    }

    fn shape(&self) -> Option<PolicyShape> {
        let policy = widths(&self.actor);
        let value = self.critic.as_ref().map_or_else(|| policy.clone(), widths);
        let activation = self.actor.hidden_activation();
        let alike = self.critic.as_ref().is_none_or(|critic| critic.hidden_activation() == activation);
        Some(PolicyShape {
            policy,
            value,
            activation: activation.filter(|_| alike),
            shared_trunk: self.critic.is_none(),
            use_sde: self.distribution.reads_hidden() > 0,
        })
    }

    fn tensors(&self) -> NamedTensors {
        self.named(N::tensors, Parameters::tensors)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.check_tensors(tensors)?;
        self.memory.evaluated = false;
        self.hand_out(tensors, N::load, Parameters::load)
    }

    fn gradients(&self) -> NamedTensors {
        self.named(N::gradients, Learnable::named_gradients)
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.named(N::optimizer_state, Parameters::optimizer_state)
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.check_optimizer_state(state)?;
        self.hand_out(state, N::load_optimizer_state, Parameters::load_optimizer_state)
    }
}
