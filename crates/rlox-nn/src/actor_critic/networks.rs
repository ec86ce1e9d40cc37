//! Actor-critic that consists of one or two networks of any backend.
//!
//! A shared trunk is one network for policy and values. Its output rows are `[policy | value]`: the
//! outputs that parameterize the distribution of actions, and then the value.

use rlox_core::{
    Actions, ActionsMut, Error, Pcg64, Policy, PolicyOut, Result, error::check_len, interrupt::InterruptCheck,
};

use super::{ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, PolicyArch, PolicyLoss};
use crate::alloc::resize;
use crate::distribution::check_actions;
use crate::losses::{clipped_policy_loss, policy_gradient_loss, value_loss};
use crate::network::{clip_and_step_if, widths};
use crate::parallel::{join_if, worth_forking};
use crate::{
    DistInputs, Distribution, Learnable, NamedTensor, NamedTensors, Network, Optimizer, Parameters, Workspace, validate,
};

/// Largest number of rows in one forward and backward pass.
const BLOCK: usize = 1024;

/// Prefixes of the tensor names of the two heads of a shared trunk. Each head is named like a
/// network with one layer.
const HEADS: [&str; 2] = ["actor.0.", "critic.0."];

/// [`ActorCritic`] with two networks, or with one network whose output rows are `[policy | value]`.
#[derive(Clone, Debug)]
pub struct PolicyNetworks<N> {
    actor: N,
    /// Network of the values; `None` if the last output of `actor` is the value.
    critic: Option<N>,
    distribution: Distribution,
    acting: Acting,
    memory: Memory,
}

impl<N: Network> PolicyNetworks<N> {
    /// Creates a policy from an actor, whose outputs parameterize the distribution, and a critic
    /// with one output.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sizes of the networks do not fit the distribution or each other.
    pub fn new(actor: N, critic: N, distribution: Distribution) -> Result<Self> {
        let wanted = [distribution.outputs(), 1, actor.in_dim()];
        let got = [actor.out_dim(), critic.out_dim(), critic.in_dim()];
        if wanted != got {
            let describe = |[actor, critic, input]: [usize; 3]| {
                format!("an actor with {actor} outputs and a critic with {critic}, both with {input} inputs")
            };
            let fix = "create the networks for this action space";
            return Err(Error::shape("networks", describe(wanted), describe(got), fix));
        }
        Self::from_parts(actor, Some(critic), distribution)
    }

    /// Creates a policy from one network with the output rows `[policy | value]`.
    ///
    /// The policy part of a row parameterizes the distribution. The value is one number.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sizes of the network do not fit the distribution.
    pub fn with_shared_trunk(network: N, distribution: Distribution) -> Result<Self> {
        let wanted = distribution.outputs() + 1;
        if network.out_dim() != wanted {
            let (expected, got) = (format!("{wanted} outputs"), network.out_dim().to_string());
            return Err(Error::shape("network", expected, got, "create the network for this action space and a value"));
        }
        Self::from_parts(network, None, distribution)
    }

    fn from_parts(actor: N, critic: Option<N>, distribution: Distribution) -> Result<Self> {
        let hidden = distribution.hidden_dim();
        if hidden > 0 && hidden != actor.hidden_dim() {
            let (expected, got) = (format!("a last hidden layer of {hidden}"), actor.hidden_dim().to_string());
            return Err(Error::shape("network", expected, got, "create the distribution for this network"));
        }
        let (acting, memory) = Default::default();
        Ok(Self { actor, critic, distribution, acting, memory })
    }

    /// Returns the network of the policy, which also computes the values if the trunk is shared.
    pub fn actor(&self) -> &N {
        &self.actor
    }

    /// Returns the network of the values; `None` if the trunk is shared.
    pub fn critic(&self) -> Option<&N> {
        self.critic.as_ref()
    }

    /// Returns the distribution of actions.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Returns the number of observations in `obs`.
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

    /// Runs forward pass, loss and backward pass for one block of rows after the other.
    ///
    /// Blocks limit the memory. Between blocks, `stop` and Ctrl-C are checked.
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
        let (mut interrupt, mut total) = (InterruptCheck::default(), ActorCriticStats::default());
        for from in (0..rows).step_by(BLOCK) {
            interrupt.check()?;
            if stop() {
                return Err(Error::Interrupted);
            }
            let to = rows.min(from + BLOCK);
            let share = (to - from) as f32 / rows as f32;
            let block_stats = self.pass(&batch.rows(from..to, rows), loss, to - from, true, share);
            total.add(&block_stats.map_err(|error| error.offset_row(from))?, share);
        }
        Ok(total)
    }

    /// Runs the forward pass, the loss and, if `backward` is true, the backward pass.
    ///
    /// The gradients are multiplied by `share`. Actor and critic run in parallel if that is faster.
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
        memory.resize_buffers(rows, distribution.outputs(), actor.out_dim(), distribution.hidden_dim())?;
        let Memory { joint, policy, value, evaluated, fork_step } = memory;
        let (stats, value_loss) = if let Some(critic) = critic {
            let fork = worth_forking(rows * actor.num_parameters());
            *fork_step |= backward && fork;
            join_if(
                fork,
                || {
                    actor.forward(batch.obs, rows, &mut policy.outputs)?;
                    if !policy.hidden.is_empty() {
                        actor.hidden(&mut policy.hidden)?;
                    }
                    let stats = policy.learn(distribution, batch, loss, share)?;
                    if backward {
                        actor.backward(&policy.d_outputs, true, None)?;
                        distribution.add_gradients();
                    }
                    Ok(stats)
                },
                || {
                    critic.forward(batch.obs, rows, &mut value.values)?;
                    let value_loss = value.learn(batch, loss, share)?;
                    if backward {
                        critic.backward(&value.d_values, true, None).map(|()| value_loss)
                    } else {
                        Ok(value_loss)
                    }
                },
            )?
        } else {
            actor.forward(batch.obs, rows, joint)?;
            copy_policy_outputs(joint, distribution.outputs(), &mut policy.outputs);
            copy_values(joint, distribution.outputs(), &mut value.values);
            if !policy.hidden.is_empty() {
                actor.hidden(&mut policy.hidden)?;
            }
            let losses = (policy.learn(distribution, batch, loss, share)?, value.learn(batch, loss, share)?);
            if backward {
                merge(joint, distribution.outputs(), &policy.d_outputs, &value.d_values);
                actor.backward(joint, true, None)?;
                distribution.add_gradients();
            }
            losses
        };
        *evaluated = !backward;
        let loss = stats.policy_loss + loss.vf_coef * value_loss + loss.ent_coef * stats.entropy_loss;
        Ok(ActorCriticStats { value_loss, loss, ..stats })
    }
}

impl<N: Network> PolicyNetworks<N> {
    /// Computes the policy outputs and the last hidden layer of `obs` into the memory for acting.
    fn infer(&mut self, obs: &[f32]) -> Result<()> {
        let (rows, width) = (self.rows(obs)?, self.distribution.outputs());
        let Acting { workspace, joint, outputs, hidden, .. } = &mut self.acting;
        resize("obs", outputs, rows * width, 0.0)?;
        resize("obs", hidden, rows * self.distribution.hidden_dim(), 0.0)?;
        let shared_trunk = self.critic.is_none();
        resize("obs", joint, if shared_trunk { rows * (width + 1) } else { 0 }, 0.0)?;
        let network_outputs = if shared_trunk { &mut *joint } else { &mut *outputs };
        if hidden.is_empty() {
            self.actor.infer(obs, rows, network_outputs, workspace)?;
        } else {
            self.actor.infer_hidden(obs, rows, network_outputs, hidden, workspace)?;
        }
        if shared_trunk {
            copy_policy_outputs(joint, width, outputs);
        }
        Ok(())
    }

    /// Computes the values of the observations of the last [`PolicyNetworks::infer`].
    ///
    /// If the trunk is shared, that call has computed the values, and they are only copied.
    fn infer_values(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        let Acting { workspace, joint, .. } = &mut self.acting;
        if let Some(critic) = &self.critic {
            return critic.infer(obs, values.len(), values, workspace);
        }
        copy_values(joint, self.distribution.outputs(), values);
        Ok(())
    }

    /// Computes log-probabilities and values; see [`ActorCritic::evaluate_actions`].
    fn compute_log_probs(
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
        let result = distribution.evaluate(DistInputs { outputs, hidden, masks }, actions, log_probs, entropies);
        result.map_err(|error| validate::blame_input(error, obs, self.actor.in_dim()))?;
        self.infer_values(obs, values)
    }
}

impl<N: Network> PolicyNetworks<N> {
    /// Returns the tensors of all parts by name: `actor.0.weight`, `critic.0.weight`, `log_std`.
    ///
    /// The last layer of a shared trunk is named as two heads, one for the policy and one for the
    /// value.
    fn named(
        &self,
        network_tensors: impl Fn(&N) -> NamedTensors,
        parameter_tensors: impl Fn(&Parameters) -> NamedTensors,
    ) -> NamedTensors {
        let mut all = NamedTensors::default();
        // The names of the parts are different, so that `extend` cannot fail.
        if let Some(critic) = &self.critic {
            let _ = all.extend("actor", &network_tensors(&self.actor));
            let _ = all.extend("critic", &network_tensors(critic));
        } else {
            let _ = self.add_trunk(&network_tensors(&self.actor), &mut all);
        }
        if let Some(parameters) = self.distribution.parameters() {
            for tensor in &parameter_tensors(parameters) {
                let _ = all.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
            }
        }
        all
    }

    /// Returns the name prefix of the last layer of a shared trunk, such as "4.".
    fn last_layer(&self) -> String {
        let tensors = self.actor.tensors();
        let numbers = tensors.iter().filter_map(|tensor| tensor.name.split('.').next()?.parse::<usize>().ok());
        format!("{}.", numbers.max().unwrap_or(0))
    }

    /// Adds the tensors of a shared trunk to `all`, with the rows of the last layer as two heads.
    ///
    /// Tensors of the last layer that do not have a row per output, such as the optimizer's step,
    /// are named as the other layers of the trunk.
    fn add_trunk(&self, trunk: &NamedTensors, all: &mut NamedTensors) -> Result<()> {
        let (last, outputs) = (self.last_layer(), self.distribution.outputs());
        let mut values = Vec::new();
        for NamedTensor { name, shape, data } in trunk {
            let suffix = name.strip_prefix(&last).filter(|_| shape.first() == Some(&(outputs + 1)));
            let Some(suffix) = suffix else {
                all.push(format!("trunk.{name}"), shape, data.clone())?;
                continue;
            };
            let (policy, value) = data.split_at(data.len() / (outputs + 1) * outputs);
            let shaped = |rows: usize| [&[rows], &shape[1..]].concat();
            all.push(format!("{}{suffix}", HEADS[0]), &shaped(outputs), policy.to_vec())?;
            values.push((format!("{}{suffix}", HEADS[1]), shaped(1), value.to_vec()));
        }
        values.into_iter().try_for_each(|(name, shape, value)| all.push(name, &shape, value))
    }

    /// Returns the tensors of a shared trunk with the names in the network; the inverse of
    /// [`PolicyNetworks::add_trunk`].
    fn extract_trunk(&self, tensors: &NamedTensors) -> Result<NamedTensors> {
        let (last, mut trunk) = (self.last_layer(), tensors.strip_prefix("trunk"));
        for NamedTensor { name, shape, data } in tensors {
            let Some(suffix) = name.strip_prefix(HEADS[0]) else { continue };
            let value = tensors.find(&format!("{}{suffix}", HEADS[1])).map_or(&[][..], |value| &value.data);
            let rows = [&[shape[0] + 1], &shape[1..]].concat();
            trunk.push(format!("{last}{suffix}"), &rows, [data, value].concat())?;
        }
        Ok(trunk)
    }

    /// Passes tensors, whose names and shapes were checked, to the parts.
    fn load_parts(
        &mut self,
        tensors: &NamedTensors,
        to_network: impl Fn(&mut N, &NamedTensors) -> Result<()>,
        to_parameters: impl Fn(&mut Parameters, &NamedTensors) -> Result<()>,
    ) -> Result<()> {
        if let Some(critic) = &mut self.critic {
            to_network(&mut self.actor, &tensors.strip_prefix("actor"))?;
            to_network(critic, &tensors.strip_prefix("critic"))?;
        } else {
            let trunk = self.extract_trunk(tensors)?;
            to_network(&mut self.actor, &trunk)?;
        }
        let Some(parameters) = self.distribution.parameters_mut() else { return Ok(()) };
        let mut own = NamedTensors::default();
        for tensor in tensors.iter().filter(|tensor| tensor.name.split('.').next() == Some(parameters.name())) {
            own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone())?;
        }
        to_parameters(parameters, &own)
    }
}

impl<N: Network> Policy for PolicyNetworks<N> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        let rows = self.rows(obs)?;
        check_len("values", out.values.len(), rows)?;
        check_len("rngs", rngs.len(), rows)?;
        self.infer(obs)?;
        let Self { distribution, acting, .. } = self;
        let result = distribution.sample(acting.dist_inputs(masks), rngs, out.actions, out.log_probs);
        result.map_err(|error| validate::blame_input(error, obs, self.actor.in_dim()))?;
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
        let result = self.distribution.mode(self.acting.dist_inputs(masks), actions);
        result.map_err(|error| validate::blame_input(error, obs, self.actor.in_dim()))
    }

    fn evaluate_actions(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        self.compute_log_probs((obs, masks), actions, log_probs, values)
    }

    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats> {
        let rows = self.check(batch, loss)?;
        self.pass(batch, loss, rows, false, 1.0)
    }

    fn backward(&mut self) -> Result<()> {
        let Self { actor, critic, distribution, memory, .. } = self;
        let Memory { joint, policy, value, evaluated, fork_step } = memory;
        if !*evaluated {
            let fix = "call evaluate first, once per step";
            return Err(Error::shape("backward", "a previous evaluate call", "none", fix));
        }
        if let Some(critic) = critic {
            *fork_step = worth_forking(value.d_values.len() * actor.num_parameters());
            join_if(
                *fork_step,
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

    fn update_with_early_stopping(
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
            let exceeds_kl = max_kl.is_some_and(|most| stats.approx_kl > most);
            let grad_norm = if exceeds_kl { 0.0 } else { self.step(optimizer, max_grad_norm)? };
            Ok(ActorCriticStats { grad_norm, ..stats })
        };
        let result = work();
        // If there was no step, some parts may still have gradients.
        self.zero_gradients();
        result
    }

    fn zero_gradients(&mut self) {
        self.memory.fork_step = false;
        self.actor.zero_gradients();
        self.critic.iter_mut().for_each(N::zero_gradients);
        self.distribution.parameters_mut().into_iter().for_each(Learnable::zero_grad);
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let Self { actor, critic, distribution, memory, .. } = self;
        // The evaluation belongs to the parameters before the step.
        memory.evaluated = false;
        let parameters = distribution.parameters_mut().map(|beside| ("policy", beside as &mut dyn Learnable));
        // The parts are in arrays of at most three elements, which need no allocation.
        let fork_step = std::mem::take(&mut memory.fork_step);
        let step = |parts: &mut [(&'static str, &mut dyn Learnable)]| {
            clip_and_step_if(fork_step, parts, optimizer, max_grad_norm)
        };
        match (critic, parameters) {
            (Some(critic), None) => step(&mut [("actor", actor), ("critic", critic)]),
            (Some(critic), Some(parameters)) => step(&mut [("actor", actor), ("critic", critic), parameters]),
            (None, None) => step(&mut [("trunk", actor)]),
            (None, Some(parameters)) => step(&mut [("trunk", actor), parameters]),
        }
    }

    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        self.distribution.draw_noise(rngs)
    }

    fn act_stateless(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        out: PolicyOut<'_>,
    ) -> Result<()> {
        let mut saved_noise = Vec::new();
        self.distribution.swap_noise(&mut saved_noise);
        let result = self.distribution.draw_noise(rngs).and_then(|()| self.act(obs, masks, rngs, out));
        self.distribution.swap_noise(&mut saved_noise);
        result
    }

    fn mean_std(&self) -> Option<f32> {
        let log_stds = self.distribution.parameters()?.values();
        Some(log_stds.iter().map(|log_std| log_std.exp()).sum::<f32>() / log_stds.len() as f32)
    }

    fn arch(&self) -> Option<PolicyArch> {
        let policy = widths(&self.actor);
        let value = self.critic.as_ref().map_or_else(|| policy.clone(), widths);
        let activation = self.actor.hidden_activation();
        let same_activation = self.critic.as_ref().is_none_or(|critic| critic.hidden_activation() == activation);
        Some(PolicyArch {
            policy,
            value,
            activation: activation.filter(|_| same_activation),
            shared_trunk: self.critic.is_none(),
            use_sde: self.distribution.hidden_dim() > 0,
        })
    }

    fn tensors(&self) -> NamedTensors {
        self.named(N::tensors, Parameters::tensors)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.check_tensors(tensors)?;
        self.memory.evaluated = false;
        self.load_parts(tensors, N::load, Parameters::load)
    }

    fn gradients(&self) -> NamedTensors {
        self.named(N::gradients, Learnable::named_gradients)
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.named(N::optimizer_state, Parameters::optimizer_state)
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.check_optimizer_state(state)?;
        self.load_parts(state, N::load_optimizer_state, Parameters::load_optimizer_state)
    }
}

/// Memory for acting, separate from the memory of [`ActorCritic::evaluate`].
#[derive(Clone, Debug, Default)]
struct Acting {
    workspace: Workspace,
    /// Rows `[policy | value]` of a shared trunk.
    joint: Vec<f32>,
    outputs: Vec<f32>,
    hidden: Vec<f32>,
    entropies: Vec<f32>,
}

impl Acting {
    /// Returns the inputs of the distribution.
    fn dist_inputs<'a>(&'a self, masks: Option<&'a [bool]>) -> DistInputs<'a> {
        DistInputs { outputs: &self.outputs, hidden: &self.hidden, masks }
    }
}

/// Memory for a minibatch.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// Rows `[policy | value]` of a shared trunk.
    joint: Vec<f32>,
    policy: PolicyMemory,
    value: ValueMemory,
    /// True if the memory holds the result of an evaluation for [`ActorCritic::backward`].
    evaluated: bool,
    /// True if two threads have computed gradients since the last step.
    fork_step: bool,
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
    /// Resizes every vector to exactly the length for a minibatch of `rows` rows.
    fn resize_buffers(&mut self, rows: usize, outputs: usize, joint: usize, hidden: usize) -> Result<()> {
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
    /// Computes the policy loss, and `share` times its gradient with respect to the network
    /// outputs.
    ///
    /// [`Distribution::add_gradients`] adds the gradient with respect to `log_std`.
    fn learn(
        &mut self,
        distribution: &mut Distribution,
        batch: &Minibatch<'_>,
        loss: &ActorCriticLoss,
        share: f32,
    ) -> Result<ActorCriticStats> {
        let Self { outputs, hidden, log_probs, entropies, d_log_probs, d_outputs } = self;
        let inputs = DistInputs { outputs, hidden, masks: batch.masks };
        distribution.evaluate(inputs, batch.actions, log_probs, entropies)?;
        let mut stats = ActorCriticStats::default();
        match loss.policy {
            PolicyLoss::Clipped { clip_coef } => {
                let clipped =
                    clipped_policy_loss(log_probs, batch.log_probs, batch.advantages, clip_coef, d_log_probs)?;
                stats.policy_loss = clipped.loss;
                (stats.approx_kl, stats.clip_fraction) = (clipped.approx_kl, clipped.clip_fraction);
            }
            PolicyLoss::Gradient => {
                stats.policy_loss = policy_gradient_loss(log_probs, batch.advantages, d_log_probs)?;
            }
        }
        let rows = entropies.len();
        stats.entropy_loss = -(entropies.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64) as f32;
        for d in d_log_probs.iter_mut() {
            *d *= share;
        }
        let d_entropy = -loss.ent_coef * share / rows as f32;
        distribution.differentiate(inputs, batch.actions, d_log_probs, d_entropy, d_outputs)?;
        Ok(stats)
    }
}

impl ValueMemory {
    /// Computes the value loss, and `vf_coef * share` times its gradient.
    fn learn(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss, share: f32) -> Result<f32> {
        let clip = loss.clip_coef_vf.map(|most| (batch.values, most));
        value_loss(&self.values, batch.returns, clip, loss.vf_coef * share, &mut self.d_values)
    }
}

/// Merges policy outputs and values into `[policy | value]` rows.
fn merge(joint: &mut [f32], width: usize, outputs: &[f32], values: &[f32]) {
    for (row, (policy, value)) in joint.chunks_exact_mut(width + 1).zip(outputs.chunks_exact(width).zip(values)) {
        row[..width].copy_from_slice(policy);
        row[width] = *value;
    }
}

/// Copies the policy part of `[policy | value]` rows.
fn copy_policy_outputs(joint: &[f32], width: usize, outputs: &mut [f32]) {
    for (row, out) in joint.chunks_exact(width + 1).zip(outputs.chunks_exact_mut(width)) {
        out.copy_from_slice(&row[..width]);
    }
}

/// Copies the values of `[policy | value]` rows.
fn copy_values(joint: &[f32], width: usize, values: &mut [f32]) {
    values.iter_mut().zip(joint.chunks_exact(width + 1)).for_each(|(value, row)| *value = row[width]);
}
