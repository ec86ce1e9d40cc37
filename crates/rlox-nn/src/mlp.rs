//! The built-in network: fully connected layers on the CPU.
//!
//! An arena is an array of lines that holds a number for each parameter of a network. A line is 16
//! f32 in memory ([`AlignedF32x16`]). Parameters, gradients and running means are arenas with the
//! same layout.

mod activation;
mod backward;
mod forward;
mod init;
mod layout;

pub use activation::Activation;
pub use init::{Init, orthogonal};
pub use layout::{LayerLayout, MlpLayout};

use rlox_core::{Pcg64, Result};

use crate::alloc::{check_available, try_vec};
use crate::kernels::elementwise::move_towards;
use crate::network::check_stepped;
use crate::optimizer::{MEANS, Moments, STEP, check_state, read_step};
use crate::simd::AlignedF32x16;
use crate::{NamedTensors, Network, Optimizer, Workspace};
use forward::{ForwardCache, Layer};

/// Name of the argument in errors about memory, because the widths determine all allocations.
const SIZES: &str = "sizes";

/// Network of fully connected layers, with one activation for all hidden layers and none after the
/// last layer.
///
/// The forward pass, the backward pass and the optimizer step use the best SIMD instructions of the
/// CPU. All parameters are in one array. After the first step with the largest batch, no memory is
/// allocated. In a large network, two threads share the rows of the batch, and then the parameters,
/// unless each thread computes a network of its own. Products with the zeros of a `ReLU` are
/// skipped.
///
/// The number of threads does not change any bit of the results. An output row is the same for any
/// number of other rows in the batch. Between instruction sets, results differ in the last digits.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Workspace};
///
/// let net = Mlp::new(&[4, 64, 64, 2], Activation::Tanh, Init::orthogonal(0.01), &mut Pcg64::seed_from(0))?;
/// let (mut y, mut workspace) = ([0.0; 2], Workspace::default());
/// net.infer(&[0.1, 0.2, 0.3, 0.4], 1, &mut y, &mut workspace)?;
/// assert_eq!(net.tensors().iter().next().unwrap().shape, [64, 4]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    layout: MlpLayout,
    layers: Vec<Layer>,
    parameters: Vec<AlignedF32x16>,
    gradients: Vec<AlignedF32x16>,
    moments: Moments,
    /// True if `gradients` holds the result of a backward pass since the last step.
    live: bool,
    /// Sum of the squares of `gradients`.
    squares: f64,
    cache: ForwardCache,
    /// Index of the first arena line of the second thread, if two threads share the parameters.
    middle: usize,
    /// True if two threads have computed the gradients. The same threads then apply the step.
    fork_step: bool,
}

impl Mlp {
    /// Creates a network; `sizes` are the widths of the layers, starting with the input:
    /// `[4, 64, 64, 2]`.
    ///
    /// # Errors
    /// - [`rlox_core::Error::Config`]: there are fewer than two widths, a width is 0, or a gain is
    ///   not finite.
    /// - [`rlox_core::Error::Memory`]: the padded parameters do not fit into memory.
    /// - [`rlox_core::Error::Interrupted`]: the check of
    ///   [`rlox_core::interrupt::set_interrupt_check`] asks to stop.
    pub fn new(sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        let layout = MlpLayout::new(sizes, activation)?;
        let mut layers: Vec<Layer> = Vec::new();
        for (i, pair) in sizes.windows(2).enumerate() {
            let from = layers.last().map_or(0, |layer| layer.bias.end);
            layers.push(Layer::new(pair[0], pair[1], i > 0 && i + 2 == sizes.len(), from));
        }
        let total = layers.last().map_or(0, |layer| layer.bias.end);
        // Four arenas, for parameters, gradients and two running means, and the transposed weights.
        let needed = layers.iter().fold(4 * total as u128, |sum, layer| sum + layer.transposed() as u128);
        check_available(SIZES, needed * size_of::<AlignedF32x16>() as u128, || format!("{sizes:?}"))?;
        let arena = || try_vec(SIZES, total, AlignedF32x16::ZERO);
        let mut net = Self {
            layout,
            parameters: arena()?,
            gradients: arena()?,
            moments: Moments::new(SIZES, total)?,
            live: false,
            squares: 0.0,
            cache: ForwardCache::new(&layers, activation)?,
            middle: backward::middle(&layers),
            fork_step: false,
            layers,
        };
        for i in 0..net.layers.len() {
            let layer = &net.layers[i];
            let last = i + 1 == net.layers.len();
            let (weight, bias) = init.draw(layer.outputs, layer.inputs, last, rng)?;
            layer.write(&mut net.parameters, &weight, &bias);
        }
        Ok(net)
    }

    /// Returns the widths of the layers, starting with the input.
    pub fn sizes(&self) -> &[usize] {
        self.layout.sizes()
    }

    /// Returns the activation of the hidden layers.
    pub fn activation(&self) -> Activation {
        self.layout.activation()
    }

    /// Returns the contents of an arena as tensors with the names of the parameters.
    fn named_tensors(&self, arena: &[AlignedF32x16]) -> NamedTensors {
        self.layout.names(|i, _| self.layers[i].read(arena))
    }

    /// Discards the data of the last forward pass, because the parameters have changed.
    fn invalidate_cache(&mut self) {
        (self.cache.rows, self.cache.transposed_is_valid) = (0, false);
    }
}

impl Network for Mlp {
    fn in_dim(&self) -> usize {
        self.layout.in_dim()
    }

    fn out_dim(&self) -> usize {
        self.layout.out_dim()
    }

    fn hidden_dim(&self) -> usize {
        self.layout.hidden_dim()
    }

    fn num_parameters(&self) -> usize {
        self.layout.parameters()
    }

    fn hidden_activation(&self) -> Option<Activation> {
        Some(self.layout.activation())
    }

    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], workspace: &mut Workspace) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.run(x, rows, y, workspace).map(|_| ())
    }

    fn infer_hidden(
        &self,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        h: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.layout.check_hidden(rows, h)?;
        let first = self.run(x, rows, y, workspace)?;
        self.copy_hidden(workspace, first, h);
        Ok(())
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.run_cached(x, rows, y)
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        self.layout.check_hidden(self.cache.rows, h)?;
        self.cache.hidden(self.hidden_dim(), h);
        Ok(())
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        self.layout.check_backward(self.cache.rows, dy, dx.as_deref())?;
        self.run_backward(dy, None, params, dx)
    }

    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()> {
        self.layout.check_backward_hidden(self.cache.rows, dy, dh)?;
        self.run_backward(dy, Some(dh), true, None)
    }

    fn grad_norm_sq(&mut self) -> Result<f64> {
        Ok(if self.live { self.squares } else { 0.0 })
    }

    fn zero_gradients(&mut self) {
        self.live = false;
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        let squares = self.grad_norm_sq()?;
        optimizer.check_step(scale, squares, || self.gradients())?;
        if !self.live {
            self.gradients.fill(AlignedF32x16::ZERO);
        }
        let middle = if self.fork_step { self.middle } else { self.gradients.len() };
        let finite = self.moments.apply(optimizer, scale, &self.gradients, &mut self.parameters, middle);
        self.live = false;
        self.invalidate_cache();
        check_stepped(finite?, || self.tensors())
    }

    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.layout.check_soft_update(&online.layout, tau)?;
        if tau == 1.0 {
            self.parameters.copy_from_slice(&online.parameters);
        } else {
            move_towards(tau, &online.parameters, &mut self.parameters);
        }
        self.invalidate_cache();
        Ok(())
    }

    fn tensors(&self) -> NamedTensors {
        self.named_tensors(&self.parameters)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        write_layers(&self.layers, self.layout.find_tensors(tensors, ""), &mut self.parameters);
        self.invalidate_cache();
        Ok(())
    }

    fn gradients(&self) -> NamedTensors {
        if self.live {
            self.named_tensors(&self.gradients)
        } else {
            self.named_tensors(&vec![AlignedF32x16::ZERO; self.gradients.len()])
        }
    }

    fn optimizer_state(&self) -> NamedTensors {
        let Moments { step, mean, square } = &self.moments;
        self.layout.names_state(*step, [mean, square], |mean, i, _| self.layers[i].read(mean))
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.moments.step = read_step(state, STEP);
        for (means, name) in [&mut self.moments.mean, &mut self.moments.square].into_iter().zip(MEANS) {
            write_layers(&self.layers, self.layout.find_tensors(state, &format!(".{name}")), means);
        }
        Ok(())
    }
}

/// Writes the weights and biases of all layers into an arena.
fn write_layers<'a>(layers: &[Layer], tensors: impl Iterator<Item = [&'a [f32]; 2]>, arena: &mut [AlignedF32x16]) {
    for (layer, [weight, bias]) in layers.iter().zip(tensors) {
        layer.write(arena, weight, bias);
    }
}
