//! The built-in network: fully connected layers on the CPU.

mod activation;
mod init;
mod layer;
mod layout;
mod passes;

pub use activation::Activation;
pub use init::{Init, orthogonal};
pub use layout::{LayerLayout, MlpLayout};

use rlox_core::{Error, Pcg64, Result};

use crate::adam::{MEANS, Moments, check_state, step_of};
use crate::network::check_stepped;
use crate::simd::elementwise::{move_towards, sum_of_squares};
use crate::simd::{Line, lines};
use crate::{NamedTensors, Network, Optimizer, Scratch};
use layer::Layer;
use layout::{check_forward_before, check_rows};
use passes::Kept;

/// Fully connected layers of any widths with one activation between them and none after the last.
///
/// Forward, backward and the optimiser run on one core with the best instructions the CPU has, over parameters that lie
/// side by side; after the first step with the largest batch nothing is allocated. The same inputs give the same bits
/// whatever the number of rows or threads; instruction sets differ in the last digits.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Scratch};
///
/// let net = Mlp::new(&[4, 64, 64, 2], Activation::Tanh, Init::orthogonal(0.01), &mut Pcg64::seed_from(0))?;
/// let (mut y, mut scratch) = ([0.0; 2], Scratch::default());
/// net.infer(&[0.1, 0.2, 0.3, 0.4], 1, &mut y, &mut scratch)?;
/// assert_eq!(net.tensors().iter().next().unwrap().shape, [64, 4]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    sizes: Vec<usize>,
    activation: Activation,
    layers: Vec<Layer>,
    parameters: Vec<Line>,
    gradients: Vec<Line>,
    moments: Moments,
    /// Whether there are gradients since the last step.
    live: bool,
    kept: Kept,
}

impl Mlp {
    /// A network of the given widths, the input's first: `[4, 64, 64, 2]`.
    ///
    /// # Errors
    /// [`Error::Config`] for fewer than two widths, one that is 0 or a gain that is not finite, [`Error::Memory`] for more
    /// parameters than fit into memory, [`Error::Interrupted`] if that is asked for.
    pub fn new(sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        MlpLayout::new(sizes, activation)?;
        let mut layers: Vec<Layer> = Vec::new();
        for (i, pair) in sizes.windows(2).enumerate() {
            let from = layers.last().map_or(0, |layer| layer.bias.end);
            layers.push(Layer::new(pair[0], pair[1], i > 0 && i + 2 == sizes.len(), from));
        }
        let total = layers.last().map_or(0, |layer| layer.bias.end);
        let mut net = Self {
            sizes: sizes.to_vec(),
            activation,
            parameters: vec![Line::ZERO; total],
            gradients: vec![Line::ZERO; total],
            moments: Moments::new(total),
            live: false,
            kept: Kept::new(&layers, activation),
            layers,
        };
        for i in 0..net.layers.len() {
            let layer = &net.layers[i];
            let last = i + 1 == net.layers.len();
            let (weight, bias) = init.draw(layer.outputs, layer.inputs, last, rng)?;
            layer.put(&mut net.parameters, &weight, &bias);
        }
        Ok(net)
    }

    /// The widths, the input's first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// What hidden layers apply.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// `arena` by the names of the parameters, with a suffix.
    fn export(&self, arena: &[Line], suffix: &str, out: &mut NamedTensors) {
        for (i, layer) in self.layers.iter().enumerate() {
            let (weight, bias) = layer.take(arena);
            let name = |kind: &str| format!("{}.{kind}{suffix}", 2 * i);
            // Names differ and shapes fit, so nothing is refused.
            let _ = out.push(name("weight"), &[layer.outputs, layer.inputs], weight);
            let _ = out.push(name("bias"), &[layer.outputs], bias);
        }
    }

    fn named(&self, arena: &[Line]) -> NamedTensors {
        let mut tensors = NamedTensors::default();
        self.export(arena, "", &mut tensors);
        tensors
    }

    /// Puts checked tensors into an arena.
    fn import(layers: &[Layer], tensors: &NamedTensors, suffix: &str, arena: &mut [Line]) {
        for (i, layer) in layers.iter().enumerate() {
            let data = |kind: &str| tensors.find(&format!("{}.{kind}{suffix}", 2 * i)).map_or(&[][..], |t| &t.data);
            layer.put(arena, data("weight"), data("bias"));
        }
    }
}

impl Network for Mlp {
    fn in_dim(&self) -> usize {
        self.sizes[0]
    }

    fn out_dim(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    fn hidden_dim(&self) -> usize {
        if self.sizes.len() > 2 { self.sizes[self.sizes.len() - 2] } else { 0 }
    }

    fn hidden_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }

    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        check_rows(rows, &[("x", x.len(), self.in_dim()), ("y", y.len(), self.out_dim())])?;
        self.run(x, rows, y, scratch)
    }

    fn infer_hidden(&self, x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        check_rows(rows, &[("h", h.len(), self.hidden_dim())])?;
        self.infer(x, rows, y, scratch)?;
        if self.layers.len() > 1 {
            // Layers write to the two halves of the scratch memory in turns.
            layer::unpad(&scratch.layers[(self.layers.len() - 1) % 2], self.hidden_dim(), h);
        }
        Ok(())
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        check_rows(rows, &[("x", x.len(), self.in_dim()), ("y", y.len(), self.out_dim())])?;
        self.run_keeping(x, rows, y)
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        check_forward_before(self.kept.rows)?;
        check_rows(self.kept.rows, &[("h", h.len(), self.hidden_dim())])?;
        if let [.., hidden, _] = &self.kept.outputs[..] {
            layer::unpad(hidden, self.hidden_dim(), h);
        }
        Ok(())
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        let input = dx.as_ref().map_or(self.kept.rows * self.in_dim(), |dx| dx.len());
        check_forward_before(self.kept.rows)?;
        check_rows(self.kept.rows, &[("dy", dy.len(), self.out_dim()), ("dx", input, self.in_dim())])?;
        self.run_back(dy, params, dx);
        Ok(())
    }

    fn grad_sq(&mut self) -> Result<f64> {
        Ok(if self.live { sum_of_squares(&self.gradients) } else { 0.0 })
    }

    fn zero_gradients(&mut self) {
        self.live = false;
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        optimizer.check()?;
        if !self.live {
            self.gradients.fill(Line::ZERO);
        }
        let finite = self.moments.apply(optimizer, scale, &self.gradients, &mut self.parameters);
        (self.live, self.kept.fresh) = (false, false);
        check_stepped(finite, || self.tensors())
    }

    fn track(&mut self, online: &Self, tau: f32) -> Result<()> {
        if self.sizes != online.sizes || self.activation != online.activation {
            let said = |net: &Self| format!("{:?} with {:?}", net.sizes, net.activation);
            let fix = "make both networks alike";
            return Err(Error::shape("online", format!("a network of {}", said(self)), said(online), fix));
        }
        if !(0.0..=1.0).contains(&tau) {
            return Err(Error::config("tau", "a share between 0 and 1", tau.to_string(), "pass 0.005, or 1 to copy"));
        }
        if tau == 1.0 {
            self.parameters.copy_from_slice(&online.parameters);
        } else {
            move_towards(tau, &online.parameters, &mut self.parameters);
        }
        self.kept.fresh = false;
        Ok(())
    }

    fn tensors(&self) -> NamedTensors {
        self.named(&self.parameters)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        Self::import(&self.layers, tensors, "", &mut self.parameters);
        self.kept.fresh = false;
        Ok(())
    }

    fn gradients(&self) -> NamedTensors {
        if self.live { self.named(&self.gradients) } else { self.named(&vec![Line::ZERO; self.gradients.len()]) }
    }

    fn optimizer_state(&self) -> NamedTensors {
        let mut state = NamedTensors::default();
        for (means, name) in [&self.moments.mean, &self.moments.square].into_iter().zip(MEANS) {
            self.export(means, &format!(".{name}"), &mut state);
        }
        let _ = state.push("step", &[], vec![self.moments.step as f32]);
        state
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.moments.step = step_of(state, "step");
        for (means, name) in [&mut self.moments.mean, &mut self.moments.square].into_iter().zip(MEANS) {
            Self::import(&self.layers, state, &format!(".{name}"), means);
        }
        Ok(())
    }
}

/// The widest row of any layer, in lines.
fn widest(layers: &[Layer]) -> usize {
    layers.iter().map(|layer| lines(layer.outputs).max(lines(layer.inputs))).max().unwrap_or(0)
}
