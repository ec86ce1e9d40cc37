//! One critic: a network of `[observation | action]` rows, its target, and the memory of a batch.

use rlox_core::Result;

use super::ValuedActions;
use crate::losses::td_loss;
use crate::room::resize;
use crate::{Network, Scratch, TdLoss};

#[derive(Clone, Debug)]
pub(super) struct Critic<N> {
    pub(super) online: N,
    pub(super) target: N,
    scratch: Scratch,
    /// `[B]`, and so are the next two.
    pub(super) values: Vec<f32>,
    pub(super) td_errors: Vec<f32>,
    pub(super) d_values: Vec<f32>,
    /// `[B, d + a]`.
    pub(super) d_inputs: Vec<f32>,
    pub(super) loss: f32,
}

impl<N: Network> Critic<N> {
    pub(super) fn new(online: N, target: N) -> Self {
        let [values, td_errors, d_values, d_inputs] = Default::default();
        Self { online, target, scratch: Scratch::default(), values, td_errors, d_values, d_inputs, loss: 0.0 }
    }

    /// What the network, or its target, says.
    pub(super) fn infer(&mut self, inputs: &[f32], rows: usize, target: bool) -> Result<()> {
        resize("obs", &mut self.values, rows, 0.0)?;
        let network = if target { &self.target } else { &self.online };
        network.infer(inputs, rows, &mut self.values, &mut self.scratch)
    }

    /// What the network says, keeping what [`Critic::slopes`] needs.
    pub(super) fn say(&mut self, inputs: &[f32], rows: usize) -> Result<()> {
        resize("obs", &mut self.values, rows, 0.0)?;
        resize("obs", &mut self.d_values, rows, 0.0)?;
        self.online.forward(inputs, rows, &mut self.values)
    }

    /// The gradients with respect to so many numbers of inputs of what it said, times `d_values`.
    pub(super) fn slopes(&mut self, inputs: usize) -> Result<()> {
        resize("obs", &mut self.d_inputs, inputs, 0.0)?;
        self.online.backward(&self.d_values, false, Some(&mut self.d_inputs))
    }

    /// The loss of a minibatch; adds its gradient to the parameters'.
    pub(super) fn learn(&mut self, inputs: &[f32], rows: usize, batch: &ValuedActions<'_>, coef: f32) -> Result<()> {
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

/// The first critic that said least of a row, and what it said. One that did not say a number says least.
pub(super) fn smallest<N>(critics: &[Critic<N>], row: usize) -> (usize, f32) {
    let mut least = (0, critics.first().map_or(f32::NAN, |critic| critic.values[row]));
    for (which, critic) in critics.iter().enumerate() {
        let value = critic.values[row];
        if value < least.1 || value.is_nan() && !least.1.is_nan() {
            least = (which, value);
        }
    }
    least
}

/// Which critic said least, of each row.
pub(super) fn all_smallest<N>(critics: &[Critic<N>], rows: usize, which: &mut Vec<usize>) {
    which.clear();
    which.extend((0..rows).map(|row| smallest(critics, row).0));
}
