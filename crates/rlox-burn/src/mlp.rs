//! Fully connected layers on Burn.

mod forward_backward;

use burn::tensor::Tensor;
use rlox_core::{EnvSpec, Pcg64, Result};
use rlox_nn::{
    Activation, Init, MlpLayout, NamedTensors, Network, Optimizer, PolicyBuilder, PolicyNetworks, Workspace,
};

use crate::Device;
use crate::tensor::catch_panic;
use crate::tensor::{copy, in_place, numbers, rows, vector};
use forward_backward::{ForwardCache, Hidden, Layer, apply_update, views};

/// Fully connected layers with an activation after every layer except the last, like [`rlox_nn::Mlp`].
///
/// One tensor holds all parameters, and the layers are views of this tensor, so that an optimiser
/// step takes few operations for any number of layers. The vector-Jacobian product does not use
/// Burn's autodiff, which would build a graph and take locks in each pass.
///
/// ```
/// use rlox_burn::BurnMlp;
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Workspace};
///
/// let init = Init::orthogonal(0.01);
/// let net = BurnMlp::new(&[4, 64, 2], Activation::Tanh, init, &mut Pcg64::seed_from(0))?;
/// let mut built_in = Mlp::new(&[4, 64, 2], Activation::Tanh, init, &mut Pcg64::seed_from(1))?;
/// built_in.load(&net.tensors())?;
/// let (mut y, mut workspace) = ([0.0; 2], Workspace::default());
/// net.infer(&[0.1, 0.2, 0.3, 0.4], 1, &mut y, &mut workspace)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BurnMlp {
    layout: MlpLayout,
    device: burn::tensor::Device,
    hidden: Hidden,
    /// All parameters: the weight matrix and the bias of each layer, first layer first.
    flat: Tensor<1>,
    layers: Vec<Layer>,
    /// Sum of the gradients since the last step, in the order of `flat`; `None` if there are none.
    gradients: Option<Tensor<1>>,
    /// Sum of the squared gradients; `None` until the sum is computed.
    squares: Option<f64>,
    /// The optimiser's running means of gradients and of squared gradients, in the order of `flat`.
    means: [Tensor<1>; 2],
    step: u32,
    cache: Option<ForwardCache>,
}

impl BurnMlp {
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

    /// Creates a network like [`BurnMlp::new`], but on `device`.
    ///
    /// # Errors
    /// The errors of [`BurnMlp::new`], and [`rlox_core::Error::Backend`] if the device is not available.
    pub fn on(device: Device, sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        let layout = MlpLayout::new(sizes, activation)?;
        let hidden = Hidden { activation, cpu: device == Device::Cpu };
        let device = device.open()?;
        let drawn = layout.draw(init, rng)?;
        catch_panic(move || {
            let flat = vector(drawn, &device);
            let (means, layers) = ([flat.zeros_like(), flat.zeros_like()], views(&layout, &flat));
            Self { layout, device, hidden, flat, layers, gradients: None, squares: None, means, step: 0, cache: None }
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

    /// Switches to the operations of devices other than the CPU, to test them on the CPU.
    #[cfg(test)]
    pub(crate) fn force_generic_path(&mut self) {
        self.hidden.cpu = false;
    }

    /// Replaces the parameters and discards the last forward pass.
    fn set_flat(&mut self, flat: Tensor<1>) -> Result<()> {
        self.layers = catch_panic(|| views(&self.layout, &flat))?;
        self.flat = flat;
        self.cache = None;
        Ok(())
    }

    /// Returns the outputs and, if `hidden` is true, the last hidden layer; otherwise an empty
    /// vector.
    fn pass(&self, x: &[f32], count: usize, hidden: bool) -> Result<(Vec<f32>, Vec<f32>)> {
        catch_panic(|| {
            let (y, mut cache) = self.hidden.forward(&self.layers, rows(x, count, &self.device), false);
            (numbers(y), cache.inputs.pop().filter(|_| hidden).map(numbers).unwrap_or_default())
        })
    }

    /// Computes the vector-Jacobian product of the last forward pass.
    ///
    /// `dy` is the gradient of the outputs, and `dh` an additional gradient of the last hidden
    /// layer. Gradients of parameters are added to `gradients` if `params` is true. `dx` receives
    /// the gradient of the input.
    fn back(&mut self, dy: &[f32], dh: Option<&[f32]>, params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        let Self { hidden, layers, cache: Some(cache), gradients, squares, device, .. } = self else { return Ok(()) };
        let (sum, input) = catch_panic(|| {
            let output_gradients = (rows(dy, cache.rows, device), dh.map(|dh| rows(dh, cache.rows, device)));
            let (more, input) = hidden.backward(layers, cache, output_gradients, params, dx.is_some());
            let sum = match (more, &*gradients) {
                (Some(more), Some(sum)) => Some(more + sum.clone()),
                (more, sum) => more.or_else(|| sum.clone()),
            };
            (sum, input.map(numbers))
        })?;
        if let (Some(dx), Some(input)) = (dx, input) {
            copy(&input, dx)?;
        }
        (*gradients, *squares) = (sum, None);
        Ok(())
    }

    /// Returns `flat` as tensors with the names of the parameters, or no tensors if the device
    /// fails.
    fn named_tensors(&self, flat: &Tensor<1>) -> NamedTensors {
        self.layout.named(&catch_panic(|| numbers(flat.clone())).unwrap_or_default())
    }
}

/// Creates policy and value networks of Burn for the spaces of `spec`, like
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
/// let burn = rlox_burn::policy_networks(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// let built_in = PolicyNetworks::mlp(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// assert_eq!(burn.tensors(), built_in.tensors());
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn policy_networks(
    spec: &EnvSpec,
    net_arch: &[usize],
    activation: Activation,
    rng: &mut Pcg64,
) -> Result<PolicyNetworks<BurnMlp>> {
    PolicyBuilder::new(spec).net_arch(net_arch).activation(activation).build_with(rng, BurnMlp::new)
}

impl Network for BurnMlp {
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
        copy(&self.pass(x, rows, false)?.0, y)
    }

    fn infer_hidden(&self, x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], _: &mut Workspace) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        self.layout.check_hidden(rows, h)?;
        let (out, hidden) = self.pass(x, rows, !h.is_empty())?;
        copy(&hidden, h)?;
        copy(&out, y)
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        let (out, cache) = catch_panic(|| {
            let (y, cache) = self.hidden.forward(&self.layers, crate::tensor::rows(x, rows, &self.device), true);
            (numbers(y), cache)
        })?;
        copy(&out, y)?;
        self.cache = Some(cache);
        Ok(())
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        self.layout.check_hidden(self.cache.as_ref().map_or(0, |cache| cache.rows), h)?;
        match self.cache.as_ref().and_then(|cache| cache.inputs.last()) {
            Some(hidden) if !h.is_empty() => copy(&catch_panic(|| numbers(hidden.clone()))?, h),
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
        match (&self.gradients, self.squares) {
            (None, _) => Ok(0.0),
            (_, Some(squares)) => Ok(squares),
            (Some(gradients), None) => {
                let sum = catch_panic(|| f64::from(gradients.clone().square().sum().into_scalar::<f32>()))?;
                Ok(*self.squares.insert(sum))
            }
        }
    }

    fn zero_gradients(&mut self) {
        self.gradients = None;
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        let squares = self.grad_norm_sq()?;
        optimizer.check_step(scale, squares, || self.gradients())?;
        let step = self.step.saturating_add(1);
        let update = optimizer.update(step);
        if self.hidden.cpu {
            let Self { layout, layers, flat, gradients, means: [mean, square], .. } = self;
            let mut all = catch_panic(|| gradients.clone().unwrap_or_else(|| flat.zeros_like()))?;
            *gradients = None;
            // The step would copy the parameters if the layers still shared their memory.
            layers.clear();
            let stepped = catch_panic(|| {
                in_place([&mut *flat, &mut all, mean, square], |[flat, gradients, mean, square]| {
                    update.apply(scale, gradients, [mean, square], flat)
                })
            });
            *layers = catch_panic(|| views(layout, flat))?;
            if stepped.is_err() {
                *gradients = Some(all);
            }
            let finite = stepped?;
            (self.step, self.cache) = (step, None);
            return if finite { Ok(()) } else { self.tensors().check_finite("parameters") };
        }
        let (flat, means) = catch_panic(|| {
            let gradients = match &self.gradients {
                Some(gradients) if scale == 1.0 => gradients.clone(),
                Some(gradients) => gradients.clone() * scale,
                None => self.flat.zeros_like(),
            };
            apply_update(update, gradients, self.flat.clone(), self.means.clone())
        })?;
        let sum = catch_panic(|| flat.clone().sum().into_scalar::<f32>())?;
        self.set_flat(flat)?;
        (self.means, self.step, self.gradients) = (means, step, None);
        if sum.is_finite() { Ok(()) } else { self.tensors().check_finite("parameters") }
    }

    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.layout.check_soft_update(&online.layout, tau)?;
        let flat = catch_panic(|| {
            if tau == 1.0 {
                return online.flat.clone();
            }
            self.flat.clone() + (online.flat.clone() - self.flat.clone()) * tau
        })?;
        self.set_flat(flat)
    }

    /// Returns the parameters, or no tensors if the device fails.
    fn tensors(&self) -> NamedTensors {
        self.named_tensors(&self.flat)
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        let flat = self.layout.flat(tensors)?;
        self.set_flat(catch_panic(|| vector(flat, &self.device))?)
    }

    /// Returns the gradients, or no tensors if the device fails.
    fn gradients(&self) -> NamedTensors {
        match &self.gradients {
            Some(gradients) => self.named_tensors(gradients),
            None => self.layout.named(&vec![0.0; self.layout.parameters()]),
        }
    }

    /// Returns the optimiser's state, or only the number of steps if the device fails.
    fn optimizer_state(&self) -> NamedTensors {
        let [mean, square] =
            self.means.each_ref().map(|mean| catch_panic(|| numbers(mean.clone())).unwrap_or_default());
        self.layout.named_state([&mean, &square], self.step)
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        let (means, step) = self.layout.flat_state(state)?;
        (self.means, self.step) = (catch_panic(|| means.map(|mean| vector(mean, &self.device)))?, step);
        Ok(())
    }
}
