//! The seam between algorithms and libraries of networks: forward, vector-Jacobian product, a step of the optimiser.

mod arch;
mod clip;
mod free_params;

use std::any::Any;
use std::fmt;

use rlox_core::Result;

pub use arch::NetworkArch;
pub(crate) use arch::widths;
pub use clip::clip_and_step;
pub(crate) use clip::{check_stepped, clip_and_step_if};
pub use free_params::Parameters;

use crate::simd::AlignedF32x16;
use crate::{Activation, NamedTensors, Optimizer};

/// A function of rows with parameters that can be learned: the only thing a backend implements.
///
/// Losses and their gradients with respect to a network's outputs are written once, on slices; a network multiplies such
/// a gradient back. All arrays are row-major f32, `[rows, dim]`. A call that returns an error has changed nothing.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Optimizer, clip_and_step};
///
/// // A step down the slope of (y - 1)^2 / 2.
/// let mut net = Mlp::new(&[2, 8, 1], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(0))?;
/// let (x, mut y) = ([0.5, -0.5], [0.0]);
/// net.forward(&x, 1, &mut y)?;
/// let before = (y[0] - 1.0).abs();
/// net.backward(&[y[0] - 1.0], true, None)?;
/// clip_and_step(&mut [("net", &mut net)], &Optimizer::adam(1e-2), Some(0.5))?;
/// net.forward(&x, 1, &mut y)?;
/// assert!((y[0] - 1.0).abs() < before);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub trait Network: Send {
    /// Numbers in an input row.
    fn in_dim(&self) -> usize;

    /// Numbers in an output row.
    fn out_dim(&self) -> usize;

    /// Numbers in a row of the last hidden layer; 0 without one.
    fn hidden_dim(&self) -> usize;

    /// How many parameters there are, which a row is multiplied by: two networks whose work is worth it are computed at
    /// once. Asked at every step.
    fn num_parameters(&self) -> usize {
        self.tensors().iter().map(|tensor| tensor.data.len()).sum()
    }

    /// What hidden layers apply to their sums, for checkpoints; `None` if that is none of [`Activation`]'s.
    fn hidden_activation(&self) -> Option<Activation> {
        None
    }

    /// Whether its outputs are made of advantages and the value of the state, for checkpoints ([`crate::Dueling`]).
    fn is_dueling(&self) -> bool {
        false
    }

    /// `y = f(x)`, keeping nothing. A row's result does not depend on the others': of the built-in network bit for bit, of
    /// other libraries, which may sum in another order where there are more rows, up to rounding.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices of wrong lengths or no rows.
    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], workspace: &mut Workspace) -> Result<()>;

    /// As [`Network::infer`], and the last hidden layer, `[rows, hidden_dim]`.
    ///
    /// # Errors
    /// Those of [`Network::infer`].
    fn infer_hidden(
        &self,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        h: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<()>;

    /// `y = f(x)`, keeping what [`Network::backward`] needs until the parameters change.
    ///
    /// # Errors
    /// Those of [`Network::infer`].
    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()>;

    /// The last hidden layer of the last [`Network::forward`], `[rows, hidden_dim]`.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for a slice of wrong length, or if there was no forward since the parameters changed.
    fn hidden(&self, h: &mut [f32]) -> Result<()>;

    /// The vector-Jacobian product of the last [`Network::forward`]: with `params` adds to the gradients of the
    /// parameters, and writes that of the input into `dx` if it is there.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for slices that do not fit the last forward, or if there was none since the parameters
    /// changed, by [`Network::apply_gradients`], [`Network::load`] or [`Network::track`]: it would be a product with
    /// nothing's Jacobian.
    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()>;

    /// As [`Network::backward`] with `params`, of a function that has used [`Network::hidden`] besides: `dh`, `[rows,
    /// hidden_dim]`, is its gradient with respect to that.
    ///
    /// # Errors
    /// Those of [`Network::backward`].
    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()>;

    /// The sum of the squares of all gradients: clipping is joint over several networks.
    ///
    /// # Errors
    /// Those of the backend.
    fn grad_norm_sq(&mut self) -> Result<f64>;

    /// Drops the gradients: the next backward starts from zero.
    fn zero_gradients(&mut self);

    /// One step of the optimiser with the gradients times `scale`. The next backward starts from zero.
    ///
    /// # Errors
    /// Those of [`Optimizer::check_step`] and of the backend; [`rlox_core::Error::Config`] naming a parameter that the step
    /// has made infinite or NaN, as a huge learning rate does: here alone the step has been made.
    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()>;

    /// Moves the parameters towards those of another network of the same shape by a share `tau` (Polyak averaging); 1
    /// copies them.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] for a network of another shape.
    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()>
    where
        Self: Sized;

    /// The parameters by name, as torch's `Sequential` calls and shapes them: `0.weight` `[out, in]`, `0.bias` `[out]`,
    /// `2.weight`, ...
    fn tensors(&self) -> NamedTensors;

    /// Takes parameters by name.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] naming the tensor that is absent, superfluous or of another shape,
    /// [`rlox_core::Error::Config`] naming one with a number that is not finite.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// The gradients since the last step, by the parameters' names.
    fn gradients(&self) -> NamedTensors;

    /// What the optimiser keeps, by the parameters' names and torch's: `0.weight.exp_avg` and `0.weight.exp_avg_sq`, the
    /// means of gradients and of their squares, and `step`. `RMSprop`, whose mean of squares is `square_avg` in torch, has
    /// it as `exp_avg_sq` beside zeros.
    fn optimizer_state(&self) -> NamedTensors;

    /// Takes what [`Network::optimizer_state`] gave.
    ///
    /// # Errors
    /// As [`Network::load`].
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// Memory for [`Network::infer`]. It grows to what the largest batch needs; what it holds between calls means nothing.
///
/// A backend of another crate keeps its own in it:
///
/// ```
/// let mut scratch = rlox_nn::Workspace::default();
/// scratch.of::<Vec<f64>>().resize(8, 0.0);
/// assert_eq!(scratch.of::<Vec<f64>>().len(), 8);
/// ```
#[derive(Default)]
pub struct Workspace {
    pub(crate) layers: [Vec<AlignedF32x16>; 2],
    /// Of a network inside another.
    pub(crate) outputs: Vec<f32>,
    backend_state: Option<Box<dyn Any + Send>>,
}

impl Workspace {
    /// Memory of one type, that of the last call with this type if there was no other since.
    pub fn get_or_default<T: Any + Default + Send>(&mut self) -> &mut T {
        if !self.backend_state.as_ref().is_some_and(|other| other.is::<T>()) {
            self.backend_state = Some(Box::new(T::default()));
        }
        let state = self.backend_state.as_mut().and_then(|other| other.downcast_mut());
        state.unwrap_or_else(|| unreachable!("it is of this type"))
    }
}

/// A copy holds nothing, as what is held means nothing.
impl Clone for Workspace {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// What a joint step changes: networks of any backend, and free parameters.
pub trait Learnable: Send {
    /// The sum of the squares of the gradients.
    ///
    /// # Errors
    /// Those of the backend.
    fn sum_of_squares(&mut self) -> Result<f64>;

    /// One step of the optimiser with the gradients times `scale`.
    ///
    /// # Errors
    /// Those of [`Network::apply_gradients`].
    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()>;

    /// The gradients, by name.
    fn named_gradients(&self) -> NamedTensors;

    /// Drops the gradients.
    fn zero_grad(&mut self);
}

impl<N: Network> Learnable for N {
    fn sum_of_squares(&mut self) -> Result<f64> {
        self.grad_norm_sq()
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        self.apply_gradients(optimizer, scale)
    }

    fn named_gradients(&self) -> NamedTensors {
        self.gradients()
    }

    fn zero_grad(&mut self) {
        self.zero_gradients();
    }
}
