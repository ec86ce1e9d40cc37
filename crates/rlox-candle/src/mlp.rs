//! Fully connected layers on Candle.

use candle_core::{DType, Tensor};
use rlox_core::{EnvSpec, Pcg64, Result};
use rlox_nn::{Activation, Distribution, Init, MlpLayout, NamedTensors, Network, Optimizer, PolicyNetworks, Scratch};

use crate::Device;
use crate::device::failed;
use crate::passes::{Kept, Layer, backward, forward, numbers, rows, updated, views};

/// Fully connected layers of any widths with one activation between them and none after the last, as [`rlox_nn::Mlp`].
///
/// All parameters lie in one tensor of which layers are views, so that a step of the optimiser is a dozen operations
/// whatever the number of layers.
///
/// ```
/// use rlox_candle::CandleMlp;
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Scratch};
///
/// let init = Init::orthogonal(0.01);
/// let net = CandleMlp::new(&[4, 64, 2], Activation::Tanh, init, &mut Pcg64::seed_from(0))?;
/// let mut built_in = Mlp::new(&[4, 64, 2], Activation::Tanh, init, &mut Pcg64::seed_from(1))?;
/// built_in.load(&net.tensors())?;
/// let (mut y, mut scratch) = ([0.0; 2], Scratch::default());
/// net.infer(&[0.1, 0.2, 0.3, 0.4], 1, &mut y, &mut scratch)?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CandleMlp {
    layout: MlpLayout,
    device: candle_core::Device,
    flat: Tensor,
    layers: Vec<Layer>,
    /// In the flat order, since the last step.
    gradients: Option<Tensor>,
    /// The optimiser's, of gradients and of their squares.
    means: [Tensor; 2],
    step: u32,
    kept: Option<Kept>,
}

impl CandleMlp {
    /// A network of the given widths, the input's first: `[4, 64, 64, 2]`, on the CPU. The weights are those that
    /// [`rlox_nn::Mlp::new`] draws.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for fewer than two widths, or one that is 0.
    pub fn new(sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        Self::on(Device::Cpu, sizes, activation, init, rng)
    }

    /// As [`CandleMlp::new`], on a device.
    ///
    /// # Errors
    /// Those of [`CandleMlp::new`], and [`rlox_core::Error::Backend`] for a device that is not there.
    pub fn on(device: Device, sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<Self> {
        let layout = MlpLayout::new(sizes, activation)?;
        let device = device.open()?;
        let count = layout.parameters();
        let flat = Tensor::from_vec(layout.draw(init, rng), count, &device).map_err(failed)?;
        let zeros = Tensor::zeros(count, DType::F32, &device).map_err(failed)?;
        let layers = views(&layout, &flat).map_err(failed)?;
        let means = [zeros.clone(), zeros];
        Ok(Self { layout, device, flat, layers, gradients: None, means, step: 0, kept: None })
    }

    /// The widths, the input's first.
    pub fn sizes(&self) -> &[usize] {
        self.layout.sizes()
    }

    /// What hidden layers apply.
    pub fn activation(&self) -> Activation {
        self.layout.activation()
    }

    /// Other parameters in the place of these.
    fn put(&mut self, flat: Tensor) -> Result<()> {
        self.layers = views(&self.layout, &flat).map_err(failed)?;
        self.flat = flat;
        Ok(())
    }

    fn pass(&self, x: &[f32], count: usize, keep: bool) -> candle_core::Result<(Vec<f32>, Kept)> {
        let x = rows(x, count, &self.device)?;
        let (y, kept) = forward(&self.layers, self.activation(), x, keep)?;
        Ok((numbers(&y)?, kept))
    }

    fn tensor(&self, flat: Vec<f32>) -> Result<Tensor> {
        Tensor::from_vec(flat, self.layout.parameters(), &self.device).map_err(failed)
    }
}

/// A policy and values of Candle's networks for an environment's spaces, as [`PolicyNetworks::mlp`] makes them of the
/// built-in one: the same seed gives the same weights.
///
/// # Errors
/// Those of [`PolicyNetworks::mlp`].
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
    let distribution = Distribution::new(&spec.action, 0.0)?;
    PolicyNetworks::with(spec, net_arch, distribution, |sizes, gain| {
        CandleMlp::new(sizes, activation, Init::orthogonal(gain), rng)
    })
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

    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], _: &mut Scratch) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        let (out, _) = self.pass(x, rows, false).map_err(failed)?;
        y.copy_from_slice(&out);
        Ok(())
    }

    fn infer_hidden(&self, x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], _: &mut Scratch) -> Result<()> {
        self.layout.check_hidden(rows, h)?;
        self.layout.check_forward(rows, x, y)?;
        let (out, kept) = self.pass(x, rows, false).map_err(failed)?;
        if let ([hidden], false) = (&kept.inputs[..], h.is_empty()) {
            h.copy_from_slice(&numbers(hidden).map_err(failed)?);
        }
        y.copy_from_slice(&out);
        Ok(())
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        self.layout.check_forward(rows, x, y)?;
        let (out, kept) = self.pass(x, rows, true).map_err(failed)?;
        y.copy_from_slice(&out);
        self.kept = Some(kept);
        Ok(())
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        self.layout.check_hidden(self.kept.as_ref().map_or(1, |kept| kept.rows), h)?;
        if let (Some(hidden), false) = (self.kept.as_ref().and_then(|kept| kept.inputs.last()), h.is_empty()) {
            h.copy_from_slice(&numbers(hidden).map_err(failed)?);
        }
        Ok(())
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        self.layout.check_backward(self.kept.as_ref().map_or(0, |kept| kept.rows), dy, dx.as_deref())?;
        let Some(kept) = &self.kept else { return Ok(()) };
        let pass = || -> candle_core::Result<_> {
            let dy = rows(dy, kept.rows, &self.device)?;
            let (gradients, input) = backward(&self.layers, self.activation(), kept, dy, params, dx.is_some())?;
            let gradients = match (gradients, &self.gradients) {
                (Some(more), Some(sum)) => Some((sum + more)?),
                (more, sum) => more.or_else(|| sum.clone()),
            };
            Ok((gradients, input.map(|input| numbers(&input)).transpose()?))
        };
        let (gradients, input) = pass().map_err(failed)?;
        if let (Some(dx), Some(input)) = (dx, input) {
            dx.copy_from_slice(&input);
        }
        self.gradients = gradients;
        Ok(())
    }

    fn grad_sq(&mut self) -> Result<f64> {
        let Some(gradients) = &self.gradients else { return Ok(0.0) };
        let sum = gradients.sqr().and_then(|squares| squares.sum_all()?.to_scalar::<f32>());
        sum.map(f64::from).map_err(failed)
    }

    fn zero_gradients(&mut self) {
        self.gradients = None;
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        optimizer.check()?;
        let step = self.step.saturating_add(1);
        let gradients = match &self.gradients {
            Some(gradients) if scale == 1.0 => Ok(gradients.clone()),
            Some(gradients) => gradients.affine(scale.into(), 0.0),
            None => self.flat.zeros_like(),
        };
        let after = |gradients| updated(optimizer.update(step), &gradients, &self.flat, self.means.each_ref());
        let (flat, means) = gradients.and_then(after).map_err(failed)?;
        self.put(flat)?;
        (self.means, self.step, self.gradients) = (means, step, None);
        Ok(())
    }

    fn track(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.layout.check_track(&online.layout, tau)?;
        if tau == 1.0 {
            return self.put(online.flat.clone());
        }
        let moved = (&online.flat - &self.flat).and_then(|way| &self.flat + way.affine(tau.into(), 0.0)?);
        self.put(moved.map_err(failed)?)
    }

    /// Empty if the device fails.
    fn tensors(&self) -> NamedTensors {
        self.layout.named(&numbers(&self.flat).unwrap_or_default())
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        let flat = self.layout.flat(tensors)?;
        self.put(self.tensor(flat)?)
    }

    /// Empty if the device fails.
    fn gradients(&self) -> NamedTensors {
        match &self.gradients {
            Some(gradients) => self.layout.named(&numbers(gradients).unwrap_or_default()),
            None => self.layout.named(&vec![0.0; self.layout.parameters()]),
        }
    }

    /// Empty but for the steps if the device fails.
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
