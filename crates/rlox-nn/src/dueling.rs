//! Dueling networks: action values from the value of the state and the advantages of actions.

use rlox_core::{Error, Result, error::check_len};

use crate::alloc::resize;
use crate::{Activation, NamedTensors, Network, Optimizer, Workspace};

/// Network of action values `Q = V + A - mean(A)`, for the value V of a state and the advantages A
/// of the actions.
///
/// An inner network has the output rows `[advantages | value]`. Advantages and value share its
/// hidden layers (Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement
/// Learning", eq. 9).
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, QFunction, QNetworks};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let q = QNetworks::dueling(env.spec(), &[64, 64], Activation::Relu, &mut Pcg64::seed_from(0))?;
/// assert_eq!(q.num_actions(), 2);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dueling<N> {
    network: N,
    /// Outputs of the inner network in the last forward pass, or their gradients, `[rows, n + 1]`
    /// for n actions.
    outputs: Vec<f32>,
}

impl<N: Network> Dueling<N> {
    /// Wraps an inner network, which has one output per action and one output for the value of the
    /// state.
    ///
    /// # Errors
    /// [`Error::Shape`] if the network has fewer than two outputs.
    pub fn new(network: N) -> Result<Self> {
        if network.out_dim() < 2 {
            let fix = "pass a network with one output per action and one for the state";
            return Err(Error::shape("network", "at least 2 outputs", network.out_dim().to_string(), fix));
        }
        Ok(Self { network, outputs: Vec::new() })
    }

    /// Returns the inner network of advantages and value.
    pub fn network(&self) -> &N {
        &self.network
    }

    /// Returns the number of actions.
    fn actions(&self) -> usize {
        self.network.out_dim() - 1
    }
}

/// Computes action values, `[rows, n]`, from rows of advantages and a value, `[rows, n + 1]`.
fn combine(outputs: &[f32], actions: usize, values: &mut [f32]) {
    for (values, row) in values.chunks_exact_mut(actions).zip(outputs.chunks_exact(actions + 1)) {
        let (advantages, value) = row.split_at(actions);
        let level = value[0] - advantages.iter().sum::<f32>() / actions as f32;
        values.iter_mut().zip(advantages).for_each(|(value, advantage)| *value = level + advantage);
    }
}

/// Computes the gradients of advantages and values, `[rows, n + 1]`, from the gradients of action
/// values, `[rows, n]`.
fn separate(d_values: &[f32], actions: usize, d_outputs: &mut [f32]) {
    for (d_row, d_values) in d_outputs.chunks_exact_mut(actions + 1).zip(d_values.chunks_exact(actions)) {
        let (d_advantages, d_value) = d_row.split_at_mut(actions);
        d_value[0] = d_values.iter().sum();
        let mean = d_value[0] / actions as f32;
        d_advantages.iter_mut().zip(d_values).for_each(|(d_advantage, d_value)| *d_advantage = d_value - mean);
    }
}

impl<N: Network> Network for Dueling<N> {
    fn in_dim(&self) -> usize {
        self.network.in_dim()
    }

    fn out_dim(&self) -> usize {
        self.actions()
    }

    fn hidden_dim(&self) -> usize {
        self.network.hidden_dim()
    }

    fn num_parameters(&self) -> usize {
        self.network.num_parameters()
    }

    fn hidden_activation(&self) -> Option<Activation> {
        self.network.hidden_activation()
    }

    fn is_dueling(&self) -> bool {
        true
    }

    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], workspace: &mut Workspace) -> Result<()> {
        check_len("y", y.len(), rows.saturating_mul(self.actions()))?;
        let mut outputs = std::mem::take(&mut workspace.outputs);
        let result = resize("obs", &mut outputs, rows * (self.actions() + 1), 0.0)
            .and_then(|()| self.network.infer(x, rows, &mut outputs, workspace));
        if result.is_ok() {
            combine(&outputs, self.actions(), y);
        }
        workspace.outputs = outputs;
        result
    }

    fn infer_hidden(
        &self,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        h: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<()> {
        check_len("y", y.len(), rows.saturating_mul(self.actions()))?;
        let mut outputs = std::mem::take(&mut workspace.outputs);
        let result = resize("obs", &mut outputs, rows * (self.actions() + 1), 0.0)
            .and_then(|()| self.network.infer_hidden(x, rows, &mut outputs, h, workspace));
        if result.is_ok() {
            combine(&outputs, self.actions(), y);
        }
        workspace.outputs = outputs;
        result
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        let actions = self.actions();
        check_len("x", x.len(), rows.saturating_mul(self.in_dim()))?;
        check_len("y", y.len(), rows.saturating_mul(actions))?;
        resize("obs", &mut self.outputs, rows * (actions + 1), 0.0)?;
        self.network.forward(x, rows, &mut self.outputs)?;
        combine(&self.outputs, actions, y);
        Ok(())
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        self.network.hidden(h)
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        let actions = self.actions();
        check_len("dy", dy.len(), self.outputs.len() / (actions + 1) * actions)?;
        separate(dy, actions, &mut self.outputs);
        self.network.backward(&self.outputs, params, dx)
    }

    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()> {
        let actions = self.actions();
        check_len("dy", dy.len(), self.outputs.len() / (actions + 1) * actions)?;
        separate(dy, actions, &mut self.outputs);
        self.network.backward_hidden(&self.outputs, dh)
    }

    fn grad_norm_sq(&mut self) -> Result<f64> {
        self.network.grad_norm_sq()
    }

    fn zero_gradients(&mut self) {
        self.network.zero_gradients();
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        self.network.apply_gradients(optimizer, scale)
    }

    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.network.soft_update(&online.network, tau)
    }

    fn tensors(&self) -> NamedTensors {
        self.network.tensors()
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.network.load(tensors)
    }

    fn gradients(&self) -> NamedTensors {
        self.network.gradients()
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.network.optimizer_state()
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.network.load_optimizer_state(state)
    }
}
