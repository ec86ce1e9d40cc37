//! Fully connected layers on Candle.

mod forward_backward;

use std::sync::Arc;

use candle_core::{DType, Tensor};
use rlox_core::{EnvSpec, Pcg64, Result};
use rlox_nn::{
    Activation, Init, MlpLayout, NamedTensors, Network, Optimizer, PolicyBuilder, PolicyNetworks, Workspace,
};

use crate::Device;
use crate::tensor::failed;
use crate::tensor::{copy, numbers, rows, sum_of_squares};
use forward_backward::{ForwardCache, Layer, apply_update, backward, forward, is_fused, step, views};

/// Fully connected layers with an activation after every layer except the last, like [`rlox_nn::Mlp`].
///
/// One tensor holds all parameters, and the layers are views of this tensor, so that an optimiser
/// step takes few operations for any number of layers.
///
/// ```
/// use rlox_candle::CandleMlp;
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Workspace};
///
/// let init = Init::orthogonal(0.01);
/// let net = CandleMlp::new(&[4, 64, 2], Activation::Tanh, init, &mut Pcg64::seed_from(0))?;
/// let mut built_in = Mlp::new(&[4, 64, 2], Activation::Tanh, init, &mut Pcg64::seed_from(1))?;
/// built_in.load(&net.tensors())?;
/// let (mut y, mut workspace) = ([0.0; 2], Workspace::default());
/// net.infer(&[0.1, 0.2, 0.3, 0.4], 1, &mut y, &mut workspace)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CandleMlp {
    layout: MlpLayout,
    device: candle_core::Device,
    /// All parameters: the weight matrix and the bias of each layer, first layer first.
    flat: Tensor,
    layers: Vec<Layer>,
    /// Sum of the gradients since the last step, in the order of `flat`.
    gradients: Tensor,
    /// False if no gradients were computed since the last step; `gradients` then has no meaning.
    has_gradients: bool,
    /// Sum of the squared gradients; `None` until the sum is computed.
    squares: Option<f64>,
    /// The optimiser's running means of gradients and of squared gradients, in the order of `flat`.
    means: [Tensor; 2],
    step: u32,
    cache: Option<ForwardCache>,
    /// Reference count of the clones that share the tensors. A shared tensor is copied before a
    /// write.
    clone_count: Arc<()>,
}

impl CandleMlp {
    /// Creates a network on the CPU. `sizes` are the widths of the layers, input first, for example
    /// `[4, 64, 64, 2]`.
    ///
    /// The weights equal those of [`rlox_nn::Mlp::new`] with the same arguments.
    ///
    /// # Errors
    /// - [`rlox_core::Error::Config`]: `sizes` has fewer than two widths, or a width is 0.
    /// - [`rlox_core::Error::Memory`]: the parameters do not fit into memory.
    pub fn new(sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        Self::on(Device::Cpu, sizes, activation, init, rng)
    }

    /// Creates a network like [`CandleMlp::new`], but on `device`.
    ///
    /// # Errors
    /// The errors of [`CandleMlp::new`], and [`rlox_core::Error::Backend`] if the device is not available.
    pub fn on(device: Device, sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        let layout = MlpLayout::new(sizes, activation)?;
        let device = device.open()?;
        let count = layout.parameters();
        let flat = Tensor::from_vec(layout.draw(init, rng)?, count, &device).map_err(failed)?;
        let zeros = || Tensor::zeros(count, DType::F32, &device).map_err(failed);
        let layers = views(&layout, &flat).map_err(failed)?;
        let (gradients, means, clone_count) = (zeros()?, [zeros()?, zeros()?], Arc::new(()));
        Ok(Self {
            layout,
            device,
            flat,
            layers,
            gradients,
            has_gradients: false,
            squares: None,
            means,
            step: 0,
            cache: None,
            clone_count,
        })
    }

    /// Returns the widths of the layers, input first.
    pub fn sizes(&self) -> &[usize] {
        self.layout.sizes()
    }

    /// Returns the activation of the hidden layers.
    pub fn activation(&self) -> Activation {
        self.layout.activation()
    }

    /// Copies the tensors if clones of this network share them, before a write.
    fn detach_clones(&mut self) -> Result<()> {
        if Arc::strong_count(&self.clone_count) > 1 { self.copy_all() } else { Ok(()) }
    }

    fn copy_all(&mut self) -> Result<()> {
        let own = |tensor: &Tensor| tensor.copy().map_err(failed);
        let [mean, square] = self.means.each_ref().map(own);
        let (flat, gradients, means) = (own(&self.flat)?, own(&self.gradients)?, [mean?, square?]);
        self.set_flat(flat)?;
        (self.gradients, self.means, self.clone_count) = (gradients, means, Arc::new(()));
        Ok(())
    }

    /// Replaces the tensor of the parameters and keeps the last forward pass.
    fn set_flat(&mut self, flat: Tensor) -> Result<()> {
        self.layers = views(&self.layout, &flat).map_err(failed)?;
        self.flat = flat;
        Ok(())
    }

    /// Replaces the parameters and discards the last forward pass.
    fn replace(&mut self, flat: Tensor) -> Result<()> {
        self.set_flat(flat)?;
        self.cache = None;
        Ok(())
    }

    fn pass(&self, x: &[f32], count: usize, y: &mut [f32], keep: bool) -> Result<ForwardCache> {
        let pass = || forward(&self.layers, self.activation(), rows(x, count, &self.device)?, keep);
        let (out, cache) = pass().map_err(failed)?;
        copy(&out, y)?;
        Ok(cache)
    }

    /// Computes the vector-Jacobian product of the last forward pass.
    ///
    /// `dy` is the gradient of the outputs, and `dh` an additional gradient of the last hidden
    /// layer. Gradients of parameters are added to `gradients` if `params` is true. `dx` receives
    /// the gradient of the input.
    fn back(&mut self, dy: &[f32], dh: Option<&[f32]>, params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        if params {
            self.detach_clones()?;
            self.squares = None;
        }
        let Some(cache) = &self.cache else { return Ok(()) };
        // On devices other than the CPU the pass may fail. The existing gradients therefore change
        // only after the pass.
        let new_gradients =
            if params && !is_fused(&self.flat) { Some(self.gradients.zeros_like().map_err(failed)?) } else { None };
        let accumulator =
            new_gradients.as_ref().map_or((&self.gradients, self.has_gradients), |zeroed| (zeroed, false));
        let pass = || {
            backward(
                &self.layers,
                self.activation(),
                cache,
                (rows(dy, cache.rows, &self.device)?, dh.map(|dh| rows(dh, cache.rows, &self.device)).transpose()?),
                params.then_some(accumulator),
                dx.is_some(),
            )
        };
        let input = pass().map_err(failed)?;
        let sum = match new_gradients {
            Some(more) if self.has_gradients => Some((&self.gradients + more).map_err(failed)?),
            more => more,
        };
        if let (Some(dx), Some(input)) = (dx, input) {
            copy(&input, dx)?;
        }
        if let Some(sum) = sum {
            self.gradients = sum;
        }
        self.has_gradients |= params;
        Ok(())
    }

    fn tensor(&self, flat: Vec<f32>) -> Result<Tensor> {
        Tensor::from_vec(flat, self.layout.parameters(), &self.device).map_err(failed)
    }
}

/// Creates policy and value networks of Candle for the spaces of `spec`, like
/// [`PolicyNetworks::mlp`].
///
/// The weights equal those of [`PolicyNetworks::mlp`] with the same arguments.
///
/// # Errors
/// The errors of [`PolicyNetworks::mlp`].
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, ActorCritic, PolicyNetworks};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let candle = rlox_candle::policy_networks(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// let built_in = PolicyNetworks::mlp(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// assert_eq!(candle.tensors(), built_in.tensors());
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn policy_networks(
    spec: &EnvSpec,
    net_arch: &[usize],
    activation: Activation,
    rng: &mut Pcg64,
) -> Result<PolicyNetworks<CandleMlp>> {
    PolicyBuilder::new(spec).net_arch(net_arch).activation(activation).build_with(rng, CandleMlp::new)
}

impl Network for CandleMlp {
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

    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], _: &mut Workspace) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.pass(x, rows, y, false).map(drop)
    }

    fn infer_hidden(&self, x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], _: &mut Workspace) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.layout.check_hidden(rows, h)?;
        let cache = self.pass(x, rows, y, false)?;
        match &cache.inputs[..] {
            [hidden] if !h.is_empty() => copy(hidden, h),
            _ => Ok(()),
        }
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.cache = Some(self.pass(x, rows, y, true)?);
        Ok(())
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        self.layout.check_hidden(self.cache.as_ref().map_or(0, |cache| cache.rows), h)?;
        match self.cache.as_ref().and_then(|cache| cache.inputs.last()) {
            Some(hidden) if !h.is_empty() => copy(hidden, h),
            _ => Ok(()),
        }
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        self.layout.check_backward(self.cache.as_ref().map_or(0, |cache| cache.rows), dy, dx.as_deref())?;
        self.back(dy, None, params, dx)
    }

    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()> {
        self.layout.check_backward_hidden(self.cache.as_ref().map_or(0, |cache| cache.rows), dy, dh)?;
        self.back(dy, Some(dh).filter(|dh| !dh.is_empty()), true, None)
    }

    fn grad_norm_sq(&mut self) -> Result<f64> {
        match self.squares {
            _ if !self.has_gradients => Ok(0.0),
            Some(squares) => Ok(squares),
            None => Ok(*self.squares.insert(sum_of_squares(&self.gradients)?)),
        }
    }

    fn zero_gradients(&mut self) {
        self.has_gradients = false;
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        let squares = self.grad_norm_sq()?;
        optimizer.check_step(scale, squares, || self.gradients())?;
        self.detach_clones()?;
        let (step_count, means) = (self.step.saturating_add(1), self.means.each_ref());
        let update = optimizer.update(step_count);
        if !self.has_gradients {
            self.gradients = self.gradients.zeros_like().map_err(failed)?;
        }
        if is_fused(&self.flat) {
            step(update, &self.gradients, scale, &self.flat, means).map_err(failed)?;
        } else {
            let scaled =
                if scale == 1.0 { Ok(self.gradients.clone()) } else { self.gradients.affine(scale.into(), 0.0) };
            let (flat, means) =
                scaled.and_then(|gradients| apply_update(update, &gradients, &self.flat, means)).map_err(failed)?;
            self.set_flat(flat)?;
            self.means = means;
        }
        (self.step, self.has_gradients, self.cache) = (step_count, false, None);
        let sum = self.flat.sum_all().and_then(|sum| sum.to_scalar::<f32>()).map_err(failed)?;
        if sum.is_finite() { Ok(()) } else { self.tensors().check_finite("parameters") }
    }

    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.layout.check_soft_update(&online.layout, tau)?;
        if tau == 1.0 {
            return self.replace(online.flat.copy().map_err(failed)?);
        }
        let updated_flat =
            (&online.flat - &self.flat).and_then(|difference| &self.flat + difference.affine(tau.into(), 0.0)?);
        self.replace(updated_flat.map_err(failed)?)
    }

    /// Returns the parameters, or no tensors if the device fails.
    fn tensors(&self) -> NamedTensors {
        self.layout.named(&numbers(&self.flat).unwrap_or_default())
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        let flat = self.layout.flat(tensors)?;
        self.replace(self.tensor(flat)?)
    }

    /// Returns the gradients, or no tensors if the device fails.
    fn gradients(&self) -> NamedTensors {
        if self.has_gradients {
            return self.layout.named(&numbers(&self.gradients).unwrap_or_default());
        }
        self.layout.named(&vec![0.0; self.layout.parameters()])
    }

    /// Returns the optimiser's state, or only the number of steps if the device fails.
    fn optimizer_state(&self) -> NamedTensors {
        let [mean, square] = self.means.each_ref().map(|mean| numbers(mean).unwrap_or_default());
        self.layout.named_state([&mean, &square], self.step)
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        let ([mean, square], step) = self.layout.flat_state(state)?;
        (self.means, self.step) = ([self.tensor(mean)?, self.tensor(square)?], step);
        Ok(())
    }
}
