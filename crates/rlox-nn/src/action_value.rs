//! The values of continuous actions, and which way they rise: the critics of SAC and TD3.

mod critic;
mod together;
mod valued_actions;

use rlox_core::{Error, Result, check_len};

use crate::adam::check_state;
use crate::at_once::pays;
use crate::room::resize;
use crate::{CriticStats, Learnable, NamedTensors, Network, NetworkShape, Optimizer, clipped_step, rows};
use critic::Critic;
use together::{Together, each};
pub use valued_actions::ValuedActions;

/// Which critics speak to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Critics {
    /// The one that says least, row by row: SAC's way.
    Smallest,
    /// The first one: TD3's way.
    First,
}

/// The values of actions, of any backend: Q(s, a) and dQ/da.
pub trait ActionValue: Send {
    /// Numbers in an observation.
    fn obs_dim(&self) -> usize;

    /// Numbers in an action.
    fn action_dim(&self) -> usize;

    /// How many critics there are.
    fn num_critics(&self) -> usize;

    /// What each critic says of `obs`, `[N, d]`, and `actions`, `[N, a]`, as `[critics, N]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit.
    fn values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()>;

    /// The least that a target network says, `[N]`: values of next states (clipped double Q-learning, Fujimoto et al.
    /// 2018).
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit.
    fn target_values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()>;

    /// Q(s, a), `[N]`, and each row's own gradient dQ/da, `[N, a]`. Where two critics say the same, the first one counts.
    /// The gradients of the critics' parameters stay as they are.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit.
    fn action_gradients(
        &mut self,
        obs: &[f32],
        actions: &[f32],
        critics: Critics,
        values: &mut [f32],
        d_actions: &mut [f32],
    ) -> Result<()>;

    /// The loss of a minibatch, `coef` times the sum over critics of mean squared errors (SAC has 0.5, TD3 has 1), and its
    /// gradient, which is added to the parameters' gradients.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Config`] for a minibatch that does not fit; [`Error::Config`] naming a number of it that
    /// is not finite. Of a critic that fails after that all gradients are dropped.
    fn backward(&mut self, batch: &ValuedActions<'_>, coef: f32) -> Result<CriticStats>;

    /// One step of the optimiser with the parameters' gradients, cut together to a norm; returns the norm before.
    ///
    /// # Errors
    /// [`Error::Config`] naming a gradient that is not finite; nothing has changed then.
    fn step(&mut self, optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;

    /// Both in one.
    ///
    /// # Errors
    /// Those of the two.
    fn update(
        &mut self,
        batch: &ValuedActions<'_>,
        coef: f32,
        optimizer: &Optimizer,
        max_grad_norm: Option<f32>,
    ) -> Result<CriticStats> {
        optimizer.check()?;
        let stats = self.backward(batch, coef)?;
        Ok(CriticStats { grad_norm: self.step(optimizer, max_grad_norm)?, ..stats })
    }

    /// `target - value` of each row of the last minibatch, the mean over critics: priorities are made from them.
    fn td_errors(&self) -> &[f32];

    /// Moves the target networks towards the online ones by a share `tau`; 1 copies.
    ///
    /// # Errors
    /// [`Error::Config`] for a share outside of 0 to 1.
    fn track(&mut self, tau: f32) -> Result<()>;

    /// How its networks are made; `None` if they are not of fully connected layers of the same widths.
    fn shape(&self) -> Option<NetworkShape> {
        None
    }

    /// All parameters by name: `critic.qf0.0.weight`, `critic_target.qf0.0.weight`.
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

    /// Takes what [`ActionValue::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// An [`ActionValue`] of two critics, or any other number of them, each a network of `[observation | action]` rows with
/// one output, and a target that follows it. Two halves of the critics are computed at once where that pays.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::Pendulum};
/// use rlox_nn::{ActionValue, Activation, Critics, Optimizer, TwinCritics, ValuedActions};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Pendulum::default)?;
/// let mut critics = TwinCritics::mlp(env.spec(), &[64, 64], Activation::Relu, 2, &mut Pcg64::seed_from(0))?;
/// let (obs, actions) = ([1.0, 0.0, 0.5], [-0.3]);
/// let batch = ValuedActions { obs: &obs, actions: &actions, targets: &[-1.0], weights: None };
/// critics.update(&batch, 0.5, &Optimizer::adam(3e-4), None)?;
/// critics.track(0.005)?;
/// let (mut values, mut slopes) = ([0.0], [0.0]);
/// critics.action_gradients(&obs, &actions, Critics::Smallest, &mut values, &mut slopes)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TwinCritics<N> {
    critics: Vec<Critic<N>>,
    obs_dim: usize,
    /// `[observation | action]` rows.
    inputs: Vec<f32>,
    td_errors: Vec<f32>,
    /// Which critic says least of each row.
    smallest: Vec<usize>,
    /// So many rows were learned from last, and by two threads; 0 otherwise.
    apart: usize,
}

impl<N: Network> TwinCritics<N> {
    /// Critics for observations of `obs_dim` numbers, each a pair of networks, the online one and its target, of one
    /// architecture. Targets become copies.
    ///
    /// # Errors
    /// [`Error::Shape`] for networks that differ, that have other than one output, or no room for an action.
    pub fn new(networks: Vec<[N; 2]>, obs_dim: usize) -> Result<Self> {
        const FIX: &str = "make pairs of networks of [observation | action] rows with one output";
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
                let got = format!("{} and {}", online.in_dim(), online.out_dim());
                return Err(Error::shape("networks", format!("{inputs} inputs and 1 output"), got, FIX));
            }
            target.track(&online, 1.0)?;
            critics.push(Critic::new(online, target));
        }
        Ok(Self { critics, obs_dim, inputs: Vec::new(), td_errors: Vec::new(), smallest: Vec::new(), apart: 0 })
    }

    /// The online networks.
    pub fn online(&self) -> impl Iterator<Item = &N> {
        self.critics.iter().map(|critic| &critic.online)
    }

    /// Checks the rows of a batch and puts them together.
    fn put_together(&mut self, obs: &[f32], actions: &[f32]) -> Result<usize> {
        let (obs_dim, action_dim) = (self.obs_dim, self.action_dim());
        let rows = rows::count("actions", actions, action_dim)?;
        check_len("obs", obs.len(), rows.saturating_mul(obs_dim))?;
        resize("actions", &mut self.inputs, rows * (obs_dim + action_dim), 0.0)?;
        for (row, input) in self.inputs.chunks_exact_mut(obs_dim + action_dim).enumerate() {
            input[..obs_dim].copy_from_slice(&obs[row * obs_dim..][..obs_dim]);
            input[obs_dim..].copy_from_slice(&actions[row * action_dim..][..action_dim]);
        }
        Ok(rows)
    }

    /// `work` with each critic, given the inputs: two halves of them at once, or one after the other.
    fn each(&mut self, apart: bool, work: impl Fn(&mut Critic<N>, &[f32]) -> Result<()> + Sync) -> Result<()> {
        let inputs = &self.inputs[..];
        each(&mut self.critics, apart, |critic| work(critic, inputs))
    }

    /// Whether two threads share some passes over a batch: where that pays, or where as many rows have just been
    /// learned from by two, of which each has its critics at hand.
    fn pays(&self, rows: usize, passes: usize) -> bool {
        rows == self.apart || pays(self.work(rows, passes))
    }

    /// How much work some passes over a batch are to each critic; forward and backward, with two products, are three.
    fn work(&self, rows: usize, passes: usize) -> usize {
        rows * self.critics[0].online.num_parameters() * passes / 3 * self.critics.len().div_ceil(2)
    }

    /// What each network gives, by name.
    fn named(&self, prefix: &str, all: &mut NamedTensors, of: impl Fn(&Critic<N>) -> NamedTensors) {
        for (i, critic) in self.critics.iter().enumerate() {
            // Each has a number of its own: nothing is refused.
            let _ = all.extend(&format!("{prefix}qf{i}"), &of(critic));
        }
    }
}

impl<N: Network> ActionValue for TwinCritics<N> {
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
        let rows = self.put_together(obs, actions)?;
        self.each(self.pays(rows, 1), |critic, inputs| critic.infer(inputs, rows, false))?;
        for (values, critic) in values.chunks_exact_mut(rows).zip(&self.critics) {
            values.copy_from_slice(&critic.values);
        }
        Ok(())
    }

    fn target_values(&mut self, obs: &[f32], actions: &[f32], values: &mut [f32]) -> Result<()> {
        check_len("values", values.len(), actions.len() / self.action_dim())?;
        let rows = self.put_together(obs, actions)?;
        self.each(self.pays(rows, 1), |critic, inputs| critic.infer(inputs, rows, true))?;
        for (row, value) in values.iter_mut().enumerate() {
            *value = critic::smallest(&self.critics, row).1;
        }
        Ok(())
    }

    fn action_gradients(
        &mut self,
        obs: &[f32],
        actions: &[f32],
        critics: Critics,
        values: &mut [f32],
        d_actions: &mut [f32],
    ) -> Result<()> {
        check_len("values", values.len(), actions.len() / self.action_dim())?;
        check_len("d_actions", d_actions.len(), actions.len())?;
        let rows = self.put_together(obs, actions)?;
        let (at_once, whole) = (pays(self.work(rows, 1)), self.pays(rows, 2));
        let (obs_dim, action_dim) = (self.obs_dim, self.action_dim());
        let counted = if critics == Critics::First { 1 } else { self.critics.len() };
        let Self { critics, inputs, smallest, .. } = self;
        let critics = &mut critics[..counted];
        if whole && !at_once {
            // Worth two threads only in one piece.
            each(critics, true, |critic| {
                critic.say(inputs, rows)?;
                critic.d_values.fill(1.0);
                critic.slopes(inputs.len())
            })?;
            critic::all_smallest(critics, rows, smallest);
        } else {
            each(critics, at_once, |critic| critic.say(inputs, rows))?;
            critic::all_smallest(critics, rows, smallest);
            // Of a row of which another one says less no gradient is wanted, and networks need not compute it.
            for (which, critic) in critics.iter_mut().enumerate() {
                let wanted = smallest.iter().map(|smallest| f32::from(u8::from(*smallest == which)));
                critic.d_values.iter_mut().zip(wanted).for_each(|(d_value, wanted)| *d_value = wanted);
            }
            each(critics, at_once, |critic| critic.slopes(inputs.len()))?;
        }
        let slopes = d_actions.chunks_exact_mut(action_dim);
        for (row, ((value, slopes), which)) in values.iter_mut().zip(slopes).zip(smallest).enumerate() {
            *value = critics[*which].values[row];
            let inputs = &critics[*which].d_inputs[row * (obs_dim + action_dim)..];
            slopes.copy_from_slice(&inputs[obs_dim..obs_dim + action_dim]);
        }
        Ok(())
    }

    fn backward(&mut self, batch: &ValuedActions<'_>, coef: f32) -> Result<CriticStats> {
        rows::check_not_negative("coef", coef)?;
        batch.check(self.obs_dim, self.action_dim())?;
        let rows = self.put_together(batch.obs, batch.actions)?;
        let apart = pays(self.work(rows, 3));
        self.apart = if apart { rows } else { 0 };
        let learned = self.each(apart, |critic, inputs| critic.learn(inputs, rows, batch, coef));
        let Self { critics, td_errors, .. } = self;
        if learned.is_err() {
            // One may have learned where another has not.
            Together { critics, apart }.forget();
        }
        learned?;
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
        let mut together = Together { critics: &mut self.critics, apart: self.apart > 0 };
        clipped_step(&mut [("critic", &mut together)], optimizer, max_grad_norm)
    }

    fn td_errors(&self) -> &[f32] {
        &self.td_errors
    }

    fn track(&mut self, tau: f32) -> Result<()> {
        each(&mut self.critics, self.apart > 0, |critic| critic.target.track(&critic.online, tau))
    }

    fn shape(&self) -> Option<NetworkShape> {
        let mut shapes = self.online().map(NetworkShape::of);
        let first = shapes.next()?;
        shapes.all(|shape| shape == first).then_some(first)
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
            critic.online.load(&tensors.part(&format!("critic.qf{i}")))?;
            critic.target.load(&tensors.part(&format!("critic_target.qf{i}")))?;
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
        critics.try_for_each(|(i, critic)| critic.online.load_optimizer_state(&state.part(&format!("critic.qf{i}"))))
    }
}
