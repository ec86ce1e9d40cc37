//! An actor-critic of networks of any backend.

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Policy, PolicyOut, Result, Watch, check_len};

use super::{ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, PolicyLoss, PolicyShape};
use crate::alloc::resize;
use crate::distribution::check_actions;
use crate::losses::{clipped_policy_loss, policy_gradient_loss, value_loss};
use crate::network::{clipped_step_if, widths};
use crate::parallel::{at_once_if, pays};
use crate::{
    Distribution, Given, Learnable, NamedTensor, NamedTensors, Network, Optimizer, Parameters, Scratch, validate,
};

/// Rows that are passed forward and back at once.
const BLOCK: usize = 1024;

/// What a head is called beside a trunk that it shares: a network of one layer.
const HEADS: [&str; 2] = ["actor.0.", "critic.0."];

/// An [`ActorCritic`] of two networks, or of one whose outputs are `[policy | value]`.
#[derive(Clone, Debug)]
pub struct PolicyNetworks<N> {
    actor: N,
    /// `None` where the actor's last output is the value.
    critic: Option<N>,
    distribution: Distribution,
    acting: Acting,
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
    fn rows(&self, obs: &[f32]) -> Result<usize> {
        validate::count_rows("obs", obs, self.actor.in_dim())
    }

    fn check(&self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<usize> {
        loss.check()?;
        let rows = self.rows(batch.obs)?;
        validate::check_finite("obs", batch.obs, self.actor.in_dim())?;
        for (name, numbers) in [
            ("log_probs", batch.log_probs),
            ("values", batch.values),
            ("advantages", batch.advantages),
            ("returns", batch.returns),
        ] {
            check_len(name, numbers.len(), rows)?;
            validate::check_finite(name, numbers, 1)?;
        }
        check_actions(batch.actions, self.distribution.action_dim())?;
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

impl<N: Network> PolicyNetworks<N> {
    /// Outputs and hidden layer, kept nowhere else than in memory for acting.
    fn infer(&mut self, obs: &[f32]) -> Result<()> {
        let (rows, width) = (self.rows(obs)?, self.distribution.outputs());
        let Acting { scratch, joint, outputs, hidden, .. } = &mut self.acting;
        resize("obs", outputs, rows * width, 0.0)?;
        resize("obs", hidden, rows * self.distribution.reads_hidden(), 0.0)?;
        let shared = self.critic.is_none();
        resize("obs", joint, if shared { rows * (width + 1) } else { 0 }, 0.0)?;
        let said = if shared { &mut *joint } else { &mut *outputs };
        if hidden.is_empty() {
            self.actor.infer(obs, rows, said, scratch)?;
        } else {
            self.actor.infer_hidden(obs, rows, said, hidden, scratch)?;
        }
        if shared {
            policies_of(joint, width, outputs);
        }
        Ok(())
    }

    /// The values of the observations that were inferred last.
    fn infer_values(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        let Acting { scratch, joint, .. } = &mut self.acting;
        if let Some(critic) = &self.critic {
            return critic.infer(obs, values.len(), values, scratch);
        }
        values_of(joint, self.distribution.outputs(), values);
        Ok(())
    }

    /// See [`ActorCritic::evaluate_actions`].
    fn say(
        &mut self,
        (obs, masks): (&[f32], Option<&[bool]>),
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        let rows = self.rows(obs)?;
        check_len("log_probs", log_probs.len(), rows)?;
        check_len("values", values.len(), rows)?;
        self.infer(obs)?;
        let Self { distribution, acting: Acting { outputs, hidden, entropies, .. }, .. } = self;
        resize("obs", entropies, rows, 0.0)?;
        let done = distribution.evaluate(Given { outputs, hidden, masks }, actions, log_probs, entropies);
        done.map_err(|error| validate::blame_input(error, obs, self.actor.in_dim()))?;
        self.infer_values(obs, values)
    }
}

impl<N: Network> PolicyNetworks<N> {
    /// What each part gives, by name: `actor.0.weight`, `critic.0.weight`, `log_std`. The last layer of a trunk that is
    /// shared goes by the names of two heads.
    fn named(
        &self,
        of_network: impl Fn(&N) -> NamedTensors,
        of_parameters: impl Fn(&Parameters) -> NamedTensors,
    ) -> NamedTensors {
        let mut all = NamedTensors::default();
        // The parts' names differ, so that nothing is refused.
        if let Some(critic) = &self.critic {
            let _ = all.extend("actor", &of_network(&self.actor));
            let _ = all.extend("critic", &of_network(critic));
        } else {
            let _ = self.add_trunk(&of_network(&self.actor), &mut all);
        }
        if let Some(parameters) = self.distribution.parameters() {
            for tensor in &of_parameters(parameters) {
                let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
            }
        }
        all
    }

    /// The name of the last layer of a shared trunk, "4.".
    fn last_layer(&self) -> String {
        let tensors = self.actor.tensors();
        let numbers = tensors.iter().filter_map(|tensor| tensor.name.split('.').next()?.parse::<usize>().ok());
        format!("{}.", numbers.max().unwrap_or(0))
    }

    /// A shared trunk's hidden layers, and the rows of its last one as two heads. What the last one has beside a row for
    /// each output stays with the trunk.
    fn add_trunk(&self, trunk: &NamedTensors, all: &mut NamedTensors) -> Result<()> {
        let (last, outputs) = (self.last_layer(), self.distribution.outputs());
        let mut values = Vec::new();
        for NamedTensor { name, shape, data } in trunk {
            let part = name.strip_prefix(&last).filter(|_| shape.first() == Some(&(outputs + 1)));
            let Some(part) = part else {
                all.push(format!("trunk.{name}"), shape, data.clone())?;
                continue;
            };
            let (policy, value) = data.split_at(data.len() / (outputs + 1) * outputs);
            let shaped = |rows: usize| [&[rows], &shape[1..]].concat();
            all.push(format!("{}{part}", HEADS[0]), &shaped(outputs), policy.to_vec())?;
            values.push((format!("{}{part}", HEADS[1]), shaped(1), value.to_vec()));
        }
        values.into_iter().try_for_each(|(name, shape, value)| all.push(name, &shape, value))
    }

    /// A shared trunk by its own names, of what [`PolicyNetworks::add_trunk`] gave.
    fn trunk_of(&self, tensors: &NamedTensors) -> Result<NamedTensors> {
        let (last, mut trunk) = (self.last_layer(), tensors.part("trunk"));
        for NamedTensor { name, shape, data } in tensors {
            let Some(part) = name.strip_prefix(HEADS[0]) else { continue };
            let value = tensors.find(&format!("{}{part}", HEADS[1])).map_or(&[][..], |value| &value.data);
            let rows = [&[shape[0] + 1], &shape[1..]].concat();
            trunk.push(format!("{last}{part}"), &rows, [data, value].concat())?;
        }
        Ok(trunk)
    }

    /// Hands each part what is its own. All has been checked.
    fn hand_out(
        &mut self,
        tensors: &NamedTensors,
        to_network: impl Fn(&mut N, &NamedTensors) -> Result<()>,
        to_parameters: impl Fn(&mut Parameters, &NamedTensors) -> Result<()>,
    ) -> Result<()> {
        if let Some(critic) = &mut self.critic {
            to_network(&mut self.actor, &tensors.part("actor"))?;
            to_network(critic, &tensors.part("critic"))?;
        } else {
            let trunk = self.trunk_of(tensors)?;
            to_network(&mut self.actor, &trunk)?;
        }
        let Some(beside) = self.distribution.parameters_mut() else { return Ok(()) };
        let mut own = NamedTensors::default();
        for tensor in tensors.iter().filter(|tensor| tensor.name.split('.').next() == Some(beside.name())) {
            own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone())?;
        }
        to_parameters(beside, &own)
    }
}

impl<N: Network> Policy for PolicyNetworks<N> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        let rows = self.rows(obs)?;
        check_len("values", out.values.len(), rows)?;
        check_len("rngs", rngs.len(), rows)?;
        self.infer(obs)?;
        let Self { distribution, acting, .. } = self;
        let done = distribution.sample(acting.given(masks), rngs, out.actions, out.log_probs);
        done.map_err(|error| validate::blame_input(error, obs, self.actor.in_dim()))?;
        self.infer_values(obs, out.values)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        if obs.is_empty() && values.is_empty() {
            return Ok(());
        }
        check_len("values", values.len(), self.rows(obs)?)?;
        if self.critic.is_none() {
            self.infer(obs)?;
        }
        self.infer_values(obs, values)
    }
}

impl<N: Network> ActorCritic for PolicyNetworks<N> {
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.infer(obs)?;
        let done = self.distribution.mode(self.acting.given(masks), actions);
        done.map_err(|error| validate::blame_input(error, obs, self.actor.in_dim()))
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

/// Memory for what is said; that of [`ActorCritic::evaluate`] stays as it is.
#[derive(Clone, Debug, Default)]
struct Acting {
    scratch: Scratch,
    /// `[policy | value]` rows of a shared trunk.
    joint: Vec<f32>,
    outputs: Vec<f32>,
    hidden: Vec<f32>,
    entropies: Vec<f32>,
}

impl Acting {
    /// What a distribution makes actions of.
    fn given<'a>(&'a self, masks: Option<&'a [bool]>) -> Given<'a> {
        Given { outputs: &self.outputs, hidden: &self.hidden, masks }
    }
}

/// Memory of a batch.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// `[policy | value]` rows of a shared trunk.
    joint: Vec<f32>,
    policy: PolicyMemory,
    value: ValueMemory,
    /// Whether it holds what an evaluation said, to go back from.
    evaluated: bool,
    /// Whether two threads have computed gradients since the last step.
    apart: bool,
}

#[derive(Clone, Debug, Default)]
struct PolicyMemory {
    outputs: Vec<f32>,
    hidden: Vec<f32>,
    log_probs: Vec<f32>,
    entropies: Vec<f32>,
    d_log_probs: Vec<f32>,
    d_outputs: Vec<f32>,
}

#[derive(Clone, Debug, Default)]
struct ValueMemory {
    values: Vec<f32>,
    d_values: Vec<f32>,
}

impl Memory {
    /// Makes every slice as long as a minibatch of `rows` needs, and no longer.
    fn make_room(&mut self, rows: usize, outputs: usize, joint: usize, hidden: usize) -> Result<()> {
        resize("obs", &mut self.joint, rows * joint, 0.0)?;
        let PolicyMemory { outputs: policy, hidden: last, log_probs, entropies, d_log_probs, d_outputs } =
            &mut self.policy;
        resize("obs", last, rows * hidden, 0.0)?;
        for vector in [policy, d_outputs] {
            resize("obs", vector, rows * outputs, 0.0)?;
        }
        let ValueMemory { values, d_values } = &mut self.value;
        for vector in [log_probs, entropies, d_log_probs, values, d_values] {
            resize("obs", vector, rows, 0.0)?;
        }
        Ok(())
    }
}

impl PolicyMemory {
    /// The policy's part of the loss, and the gradient of it times `share`; that of what is learned beside the network
    /// waits for [`Distribution::add_gradients`].
    fn learn(
        &mut self,
        distribution: &mut Distribution,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        share: f32,
    ) -> Result<ActorCriticStats> {
        let Self { outputs, hidden, log_probs, entropies, d_log_probs, d_outputs } = self;
        let given = Given { outputs, hidden, masks: batch.masks };
        distribution.evaluate(given, batch.actions, log_probs, entropies)?;
        let mut said = ActorCriticStats::default();
        match loss.policy {
            PolicyLoss::Clipped { clip_coef } => {
                let clipped =
                    clipped_policy_loss(log_probs, batch.log_probs, batch.advantages, clip_coef, d_log_probs)?;
                said.policy_loss = clipped.loss;
                (said.approx_kl, said.clip_fraction) = (clipped.approx_kl, clipped.clip_fraction);
            }
            PolicyLoss::Gradient => {
                said.policy_loss = policy_gradient_loss(log_probs, batch.advantages, d_log_probs)?;
            }
        }
        let rows = entropies.len();
        said.entropy_loss = -(entropies.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64) as f32;
        for d in d_log_probs.iter_mut() {
            *d *= share;
        }
        let d_entropy = -loss.ent_coef * share / rows as f32;
        distribution.differentiate(given, batch.actions, d_log_probs, d_entropy, d_outputs)?;
        Ok(said)
    }
}

impl ValueMemory {
    /// The value loss, and the gradient of it times `share`.
    fn learn(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss, share: f32) -> Result<f32> {
        let clip = loss.clip_coef_vf.map(|most| (batch.values, most));
        value_loss(&self.values, batch.returns, clip, loss.vf_coef * share, &mut self.d_values)
    }
}

/// Policy rows and values as `[policy | value]` rows.
fn merge(joint: &mut [f32], width: usize, outputs: &[f32], values: &[f32]) {
    for (row, (policy, value)) in joint.chunks_exact_mut(width + 1).zip(outputs.chunks_exact(width).zip(values)) {
        row[..width].copy_from_slice(policy);
        row[width] = *value;
    }
}

/// The policy rows of `[policy | value]` rows.
fn policies_of(joint: &[f32], width: usize, outputs: &mut [f32]) {
    for (row, out) in joint.chunks_exact(width + 1).zip(outputs.chunks_exact_mut(width)) {
        out.copy_from_slice(&row[..width]);
    }
}

/// The values of `[policy | value]` rows.
fn values_of(joint: &[f32], width: usize, values: &mut [f32]) {
    values.iter_mut().zip(joint.chunks_exact(width + 1)).for_each(|(value, row)| *value = row[width]);
}
