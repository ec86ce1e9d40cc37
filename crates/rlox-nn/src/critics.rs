//! Critics of SAC and TD3: values of continuous actions and their gradients.

use rlox_core::{Error, Result, error::check_len};

use crate::alloc::resize;
use crate::losses::td_loss;
use crate::optimizer::check_state;
use crate::parallel::{join_if, worth_forking};
use crate::{
    CriticStats, Learnable, NamedTensors, Network, NetworkArch, Optimizer, TdLoss, Workspace, clip_and_step, validate,
};

/// Reduction of the values of several critics to the value that an actor maximizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriticReduction {
    /// The smallest value of each row, as in SAC.
    Min,
    /// The value of the first critic, as in TD3.
    First,
}

/// A minibatch of B state-action pairs; arrays have the shape `[B]` unless stated otherwise.
///
/// In shapes, `d` is the number of elements of an observation, and `a` the number of elements of an
/// action.
#[derive(Clone, Copy, Debug)]
pub struct CriticBatch<'a> {
    /// Observations, `[B, d]`.
    pub obs: &'a [f32],
    /// Actions in [-1, 1], `[B, a]`.
    pub actions: &'a [f32],
    /// Targets of the values ([`crate::losses::td_targets`]).
    pub targets: &'a [f32],
    /// Importance weights of prioritized replay.
    pub weights: Option<&'a [f32]>,
}

impl CriticBatch<'_> {
    /// Checks the lengths of all arrays, and that all numbers are finite.
    fn check(&self, obs_dim: usize, action_dim: usize) -> Result<()> {
        let rows = validate::count_rows("actions", self.actions, action_dim)?;
        let weights = self.weights.unwrap_or(&[]);
        check_len("obs", self.obs.len(), rows.saturating_mul(obs_dim))?;
        check_len("targets", self.targets.len(), rows)?;
        check_len("weights", weights.len(), self.weights.map_or(0, |_| rows))?;
        for (name, numbers, dim) in [
            ("obs", self.obs, obs_dim),
            ("actions", self.actions, action_dim),
            ("targets", self.targets, 1),
            ("weights", weights, 1),
        ] {
            validate::check_finite(name, numbers, dim)?;
        }
        Ok(())
    }
}

/// Values Q(s, a) of continuous actions and their gradients dQ/da, for networks of any backend.
///
/// In shapes, `N` is the number of rows, `d` the number of elements of an observation, and `a` the
/// number of elements of an action.
pub trait ActionValue: Send {
    /// Returns the number of elements of an observation.
    fn obs_dim(&self) -> usize;

    /// Returns the number of elements of an action.
    fn action_dim(&self) -> usize;

    /// Returns the number of critics.
    fn num_critics(&self) -> usize;

    /// Computes the values of each critic, `[critics, N]`.
    ///
    /// `obs` has the shape `[N, d]`, and `actions` has the shape `[N, a]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length.
    fn values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()>;

    /// Computes the smallest value of the target networks for each row, `[N]`.
    ///
    /// The target values of next states are computed in this way in clipped double Q-learning
    /// (Fujimoto et al. 2018).
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length.
    fn target_values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()>;

    /// Computes the values Q(s, a), `[N]`, reduced over the critics, and their gradients dQ/da,
    /// `[N, a]`.
    ///
    /// If several critics have the smallest value of a row, the gradient is that of the first of
    /// them. The stored gradients of the parameters remain as they are.
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length.
    fn action_gradients(
        &mut self,
        obs: &[f32],
        actions: &[f32],
        reduction: CriticReduction,
        values: &mut [f32],
        d_actions: &mut [f32],
    ) -> Result<()>;

    /// Computes the loss of a minibatch and adds its gradient to the gradients of the parameters.
    ///
    /// The loss is `coef` times the sum of the mean squared errors of all critics. `coef` is 0.5 in
    /// SAC and 1 in TD3.
    ///
    /// # Errors
    /// - [`Error::Shape`]: an array of the minibatch has the wrong length.
    /// - [`Error::Config`]: `coef` is negative or not finite.
    /// - [`Error::NotFinite`]: a number in the minibatch is not finite.
    ///
    /// If a critic fails after these checks, all gradients are zeroed.
    fn backward(&mut self, batch: &CriticBatch<'_>, coef: f32) -> Result<CriticStats>;

    /// Clips all gradients together and applies one optimizer step; returns the norm of the
    /// gradients before clipping.
    ///
    /// # Errors
    /// The errors of [`clip_and_step`].
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Runs [`ActionValue::backward`] and [`ActionValue::step`].
    ///
    /// # Errors
    /// The errors of the two methods.
    fn update(
        &mut self,
        batch: &CriticBatch<'_>,
        coef: f32,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<CriticStats> {
        optimizer.check()?;
        let stats = self.backward(batch, coef)?;
        Ok(CriticStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
    }

    /// Returns `target - value` of each row of the last minibatch, averaged over critics.
    ///
    /// The magnitudes are the priorities of prioritized replay.
    fn td_errors(&self) -> &[f32];

    /// Moves each parameter `p` of the target networks towards the online network:
    /// `p += tau (online - p)`.
    ///
    /// A `tau` of 1 copies the parameters.
    ///
    /// # Errors
    /// [`Error::Config`] if `tau` is outside [0, 1].
    fn soft_update(&mut self, tau: f32) -> Result<()>;

    /// Returns the architecture, or `None` if the networks do not all have fully connected layers
    /// of the same widths.
    fn arch(&self) -> Option<NetworkArch> {
        None
    }

    /// Returns all parameters by name: `critic.qf0.0.weight`, `critic_target.qf0.0.weight`.
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

    /// Loads a state that [`ActionValue::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`Error::Config`] if a number of steps is not an
    /// integer of at least 0, or a mean of squares is negative.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// [`ActionValue`] with any number of critics, usually two, and their target networks.
///
/// Each critic is a network with one output. Its input rows are `[observation | action]`. Two
/// threads share the critics if that is faster.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::Pendulum};
/// use rlox_nn::{ActionValue, Activation, CriticReduction, Optimizer, CriticEnsemble, CriticBatch};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Pendulum::default)?;
/// let mut critics = CriticEnsemble::mlp(env.spec(), &[64, 64], Activation::Relu, 2, &mut Pcg64::seed_from(0))?;
/// let (obs, actions) = ([1.0, 0.0, 0.5], [-0.3]);
/// let batch = CriticBatch { obs: &obs, actions: &actions, targets: &[-1.0], weights: None };
/// critics.update(&batch, 0.5, &Optimizer::adam(3e-4), None)?;
/// critics.soft_update(0.005)?;
/// let (mut values, mut slopes) = ([0.0], [0.0]);
/// critics.action_gradients(&obs, &actions, CriticReduction::Min, &mut values, &mut slopes)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CriticEnsemble<N> {
    critics: Vec<Critic<N>>,
    obs_dim: usize,
    /// Input rows `[observation | action]`.
    inputs: Vec<f32>,
    td_errors: Vec<f32>,
    /// Index of the critic with the smallest value in each row.
    min_indices: Vec<usize>,
    /// Number of rows of the last minibatch if two threads computed its gradients, else 0.
    forked_rows: usize,
}

impl<N: Network> CriticEnsemble<N> {
    /// Creates critics from pairs of an online and a target network.
    ///
    /// Observations have `obs_dim` elements. The networks of a pair must have the same
    /// architecture. The target becomes a copy of the online network.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are no networks, if architectures differ, if a network has more
    /// than one output, or if there are no inputs for an action.
    pub fn new(networks: Vec<[N; 2]>, obs_dim: usize) -> Result<Self> {
        const FIX: &str = "pass pairs of networks of [observation | action] rows with one output";
        let Some([first, _]) = networks.first() else {
            return Err(Error::shape("networks", "at least one pair", "none", FIX));
        };
        let inputs = first.in_dim();
        if inputs <= obs_dim {
            let expected = format!("more than {obs_dim} inputs");
            return Err(Error::shape("networks", expected, inputs.to_string(), FIX));
        }
        let mut critics = Vec::with_capacity(networks.len());
        for [online, mut target] in networks {
            if (online.in_dim(), online.out_dim()) != (inputs, 1) {
                let got = format!("{} inputs and {} outputs", online.in_dim(), online.out_dim());
                return Err(Error::shape("networks", format!("{inputs} inputs and 1 output"), got, FIX));
            }
            target.soft_update(&online, 1.0)?;
            critics.push(Critic::new(online, target));
        }
        Ok(Self {
            critics,
            obs_dim,
            inputs: Vec::new(),
            td_errors: Vec::new(),
            min_indices: Vec::new(),
            forked_rows: 0,
        })
    }

    /// Returns an iterator over the online networks.
    pub fn online(&self) -> impl Iterator<Item = &N> {
        self.critics.iter().map(|critic| &critic.online)
    }

    /// Checks the lengths of a batch, concatenates observations and actions, and returns the number
    /// of rows.
    fn concat_inputs(&mut self, obs: &[f32], actions: &[f32]) -> Result<usize> {
        let (obs_dim, action_dim) = (self.obs_dim, self.action_dim());
        let rows = validate::count_rows("actions", actions, action_dim)?;
        check_len("obs", obs.len(), rows.saturating_mul(obs_dim))?;
        resize("actions", &mut self.inputs, rows * (obs_dim + action_dim), 0.0)?;
        for (row, input) in self.inputs.chunks_exact_mut(obs_dim + action_dim).enumerate() {
            input[..obs_dim].copy_from_slice(&obs[row * obs_dim..][..obs_dim]);
            input[obs_dim..].copy_from_slice(&actions[row * action_dim..][..action_dim]);
        }
        Ok(rows)
    }

    /// Calls `work` with each critic and the input rows; if `fork` is true, two threads share the
    /// critics.
    fn for_each_critic(
        &mut self,
        fork: bool,
        work: impl Fn(&mut Critic<N>, &[f32]) -> Result<()> + Sync,
    ) -> Result<()> {
        let inputs = &self.inputs[..];
        for_each_critic(&mut self.critics, fork, |critic| work(critic, inputs))
    }

    /// Returns true if two threads should share the critics for `passes` passes over a batch.
    ///
    /// Two threads are faster for large batches. They are also faster if they have shared the last
    /// minibatch and the batch has the same size, because each critic is then in the cache of its
    /// thread.
    fn worth_forking(&self, rows: usize, passes: usize) -> bool {
        rows == self.forked_rows || worth_forking(self.multiplications(rows, passes))
    }

    /// Returns the number of multiplications per thread if two threads share `passes` passes over a
    /// batch.
    ///
    /// A forward and a backward pass together count as three passes.
    fn multiplications(&self, rows: usize, passes: usize) -> usize {
        rows * self.critics[0].online.num_parameters() * passes / 3 * self.critics.len().div_ceil(2)
    }

    /// Adds the tensors that `get_tensors` returns for each critic to `all`, by name.
    fn named(&self, prefix: &str, all: &mut NamedTensors, get_tensors: impl Fn(&Critic<N>) -> NamedTensors) {
        for (i, critic) in self.critics.iter().enumerate() {
            // Each critic has its own number, so that `extend` cannot fail.
            let _ = all.extend(&format!("{prefix}qf{i}"), &get_tensors(critic));
        }
    }
}

impl<N: Network> ActionValue for CriticEnsemble<N> {
    fn obs_dim(&self) -> usize {
        self.obs_dim
    }

    fn action_dim(&self) -> usize {
        self.critics[0].online.in_dim() - self.obs_dim
    }

    fn num_critics(&self) -> usize {
        self.critics.len()
    }

    fn values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()> {
        check_len("values", values.len(), self.critics.len() * (actions.len() / self.action_dim()))?;
        let rows = self.concat_inputs(obs, actions)?;
        self.for_each_critic(self.worth_forking(rows, 1), |critic, inputs| critic.infer(inputs, rows, false))?;
        for (values, critic) in values.chunks_exact_mut(rows).zip(&self.critics) {
            values.copy_from_slice(&critic.values);
        }
        Ok(())
    }

    fn target_values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()> {
        check_len("values", values.len(), actions.len() / self.action_dim())?;
        let rows = self.concat_inputs(obs, actions)?;
        self.for_each_critic(self.worth_forking(rows, 1), |critic, inputs| critic.infer(inputs, rows, true))?;
        for (row, value) in values.iter_mut().enumerate() {
            *value = min_critic(&self.critics, row).1;
        }
        Ok(())
    }

    fn action_gradients(
        &mut self,
        obs: &[f32],
        actions: &[f32],
        reduction: CriticReduction,
        values: &mut [f32],
        d_actions: &mut [f32],
    ) -> Result<()> {
        check_len("values", values.len(), actions.len() / self.action_dim())?;
        check_len("d_actions", d_actions.len(), actions.len())?;
        let rows = self.concat_inputs(obs, actions)?;
        let (fork_each_pass, fork_both_passes) =
            (worth_forking(self.multiplications(rows, 1)), self.worth_forking(rows, 2));
        let (obs_dim, action_dim) = (self.obs_dim, self.action_dim());
        let num_used = if reduction == CriticReduction::First { 1 } else { self.critics.len() };
        let Self { critics, inputs, min_indices, .. } = self;
        let critics = &mut critics[..num_used];
        if fork_both_passes && !fork_each_pass {
            // For batches of this size, two threads are faster only if each thread runs both passes
            // without waiting between them.
            for_each_critic(critics, true, |critic| {
                critic.forward(inputs, rows)?;
                critic.d_values.fill(1.0);
                critic.input_gradients(inputs.len())
            })?;
            fill_min_indices(critics, rows, min_indices);
        } else {
            for_each_critic(critics, fork_each_pass, |critic| critic.forward(inputs, rows))?;
            fill_min_indices(critics, rows, min_indices);
            // A critic has a gradient of 0 in rows in which another critic is smaller. Networks can
            // skip these rows.
            for (which, critic) in critics.iter_mut().enumerate() {
                let wanted = min_indices.iter().map(|smallest| f32::from(u8::from(*smallest == which)));
                critic.d_values.iter_mut().zip(wanted).for_each(|(d_value, wanted)| *d_value = wanted);
            }
            for_each_critic(critics, fork_each_pass, |critic| critic.input_gradients(inputs.len()))?;
        }
        let slopes = d_actions.chunks_exact_mut(action_dim);
        for (row, ((value, slopes), which)) in values.iter_mut().zip(slopes).zip(min_indices).enumerate() {
            *value = critics[*which].values[row];
            let inputs = &critics[*which].d_inputs[row * (obs_dim + action_dim)..];
            slopes.copy_from_slice(&inputs[obs_dim..obs_dim + action_dim]);
        }
        Ok(())
    }

    fn backward(&mut self, batch: &CriticBatch<'_>, coef: f32) -> Result<CriticStats> {
        validate::check_not_negative("coef", coef)?;
        batch.check(self.obs_dim, self.action_dim())?;
        let rows = self.concat_inputs(batch.obs, batch.actions)?;
        let fork = worth_forking(self.multiplications(rows, 3));
        self.forked_rows = if fork { rows } else { 0 };
        let result = self.for_each_critic(fork, |critic, inputs| critic.learn(inputs, rows, batch, coef));
        let Self { critics, td_errors, .. } = self;
        if result.is_err() {
            // Some critics may have new gradients, and others not.
            OnlineCritics { critics, fork }.zero_grad();
        }
        result?;
        let share = 1.0 / critics.len() as f32;
        td_errors.clear();
        td_errors.extend((0..rows).map(|row| critics.iter().map(|critic| share * critic.td_errors[row]).sum::<f32>()));
        let mut stats = CriticStats::default();
        for critic in critics {
            stats.loss += coef * critic.loss;
            stats.mean_value += share * (critic.values.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64) as f32;
        }
        Ok(stats)
    }

    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32> {
        let mut online = OnlineCritics { critics: &mut self.critics, fork: self.forked_rows > 0 };
        clip_and_step(&mut [("critic", &mut online)], optimizer, max_grad_norm)
    }

    fn td_errors(&self) -> &[f32] {
        &self.td_errors
    }

    fn soft_update(&mut self, tau: f32) -> Result<()> {
        for_each_critic(&mut self.critics, self.forked_rows > 0, |critic| {
            critic.target.soft_update(&critic.online, tau)
        })
    }

    fn arch(&self) -> Option<NetworkArch> {
        let mut archs = self.online().map(NetworkArch::from_network);
        let first = archs.next()?;
        archs.all(|shape| shape == first).then_some(first)
    }

    fn tensors(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        self.named("critic.", &mut all, |critic| critic.online.tensors());
        self.named("critic_target.", &mut all, |critic| critic.target.tensors());
        all
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        for (i, critic) in self.critics.iter_mut().enumerate() {
            critic.online.load(&tensors.strip_prefix(&format!("critic.qf{i}")))?;
            critic.target.load(&tensors.strip_prefix(&format!("critic_target.qf{i}")))?;
        }
        Ok(())
    }

    fn gradients(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        self.named("critic.", &mut all, |critic| critic.online.gradients());
        all
    }

    fn optimizer_state(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        self.named("critic.", &mut all, |critic| critic.online.optimizer_state());
        all
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        let mut critics = self.critics.iter_mut().enumerate();
        critics.try_for_each(|(i, critic)| {
            critic.online.load_optimizer_state(&state.strip_prefix(&format!("critic.qf{i}")))
        })
    }
}

/// A critic: its online network, its target network, and memory for a batch.
#[derive(Clone, Debug)]
struct Critic<N> {
    online: N,
    target: N,
    workspace: Workspace,
    /// Values. This field and the next fields, up to `d_values`, have the shape `[B]`.
    values: Vec<f32>,
    td_errors: Vec<f32>,
    d_values: Vec<f32>,
    /// Gradients with respect to the input rows, `[B, d + a]`.
    d_inputs: Vec<f32>,
    loss: f32,
}

impl<N: Network> Critic<N> {
    fn new(online: N, target: N) -> Self {
        let [values, td_errors, d_values, d_inputs] = Default::default();
        Self { online, target, workspace: Workspace::default(), values, td_errors, d_values, d_inputs, loss: 0.0 }
    }

    /// Computes the values of the online network, or of the target network if `target` is true.
    fn infer(&mut self, inputs: &[f32], rows: usize, target: bool) -> Result<()> {
        resize("obs", &mut self.values, rows, 0.0)?;
        let network = if target { &self.target } else { &self.online };
        network.infer(inputs, rows, &mut self.values, &mut self.workspace)
    }

    /// Computes the values and stores the data that [`Critic::input_gradients`] needs.
    fn forward(&mut self, inputs: &[f32], rows: usize) -> Result<()> {
        resize("obs", &mut self.values, rows, 0.0)?;
        resize("obs", &mut self.d_values, rows, 0.0)?;
        self.online.forward(inputs, rows, &mut self.values)
    }

    /// Computes the gradients with respect to the input rows from the gradients `d_values`.
    ///
    /// `inputs` is the number of elements of all input rows.
    fn input_gradients(&mut self, inputs: usize) -> Result<()> {
        resize("obs", &mut self.d_inputs, inputs, 0.0)?;
        self.online.backward(&self.d_values, false, Some(&mut self.d_inputs))
    }

    /// Computes the loss of a minibatch and adds its gradient to the gradients of the parameters.
    fn learn(&mut self, inputs: &[f32], rows: usize, batch: &CriticBatch<'_>, coef: f32) -> Result<()> {
        let Self { online, values, d_values, td_errors, .. } = self;
        for vector in [&mut *values, &mut *d_values, &mut *td_errors] {
            resize("obs", vector, rows, 0.0)?;
        }
        online.forward(inputs, rows, values)?;
        let kind = TdLoss::SquaredError;
        self.loss = td_loss(kind, values, batch.targets, batch.weights, coef, td_errors, d_values)?;
        online.backward(d_values, true, None)
    }
}

/// Returns the index of the first critic with the smallest value in a row, and this value.
///
/// NaN counts as the smallest value.
fn min_critic<N>(critics: &[Critic<N>], row: usize) -> (usize, f32) {
    let mut least = (0, critics.first().map_or(f32::NAN, |critic| critic.values[row]));
    for (which, critic) in critics.iter().enumerate() {
        let value = critic.values[row];
        if value < least.1 || value.is_nan() && !least.1.is_nan() {
            least = (which, value);
        }
    }
    least
}

/// Stores the index of the critic with the smallest value in each row.
fn fill_min_indices<N>(critics: &[Critic<N>], rows: usize, which: &mut Vec<usize>) {
    which.clear();
    which.extend((0..rows).map(|row| min_critic(critics, row).0));
}

/// Calls `work` with each critic; if `fork` is true, two threads share the critics.
fn for_each_critic<N: Network>(
    critics: &mut [Critic<N>],
    fork: bool,
    work: impl Fn(&mut Critic<N>) -> Result<()> + Sync,
) -> Result<()> {
    let (left, right) = critics.split_at_mut(critics.len().div_ceil(2));
    if right.is_empty() {
        return left.iter_mut().try_for_each(work);
    }
    let work = &work;
    join_if(fork, || left.iter_mut().try_for_each(work), || right.iter_mut().try_for_each(work))?;
    Ok(())
}

/// The online networks of all critics, as one part of an optimizer step.
struct OnlineCritics<'a, N> {
    critics: &'a mut [Critic<N>],
    /// True if two threads have computed the gradients.
    fork: bool,
}

impl<N: Network> Learnable for OnlineCritics<'_, N> {
    fn sum_of_squares(&mut self) -> Result<f64> {
        self.critics.iter_mut().try_fold(0.0, |sum, critic| Ok(sum + critic.online.grad_norm_sq()?))
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        for_each_critic(self.critics, self.fork, |critic| critic.online.apply_gradients(optimizer, scale))
    }

    fn named_gradients(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        for (i, critic) in self.critics.iter().enumerate() {
            let _ = all.extend(&format!("qf{i}"), &critic.online.gradients());
        }
        all
    }

    fn zero_grad(&mut self) {
        self.critics.iter_mut().for_each(|critic| critic.online.zero_gradients());
    }
}
