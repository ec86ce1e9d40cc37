//! Interface between algorithms and network backends: forward pass, gradients and optimizer steps.

mod clip;
mod free_params;

use std::any::Any;
use std::fmt;

use rlox_core::Result;

pub use clip::clip_and_step;
pub(crate) use clip::{check_stepped, clip_and_step_if};
pub use free_params::Parameters;

use crate::simd::AlignedF32x16;
use crate::{Activation, NamedTensors, Optimizer};

/// A trainable function of the rows of a batch, which each network backend implements.
///
/// Losses and their gradients with respect to network outputs are computed on slices, for all
/// backends. A network multiplies such a gradient by its Jacobian. All arrays are row-major f32
/// with the shape `[rows, dim]`. A call that returns an error has changed nothing, unless its
/// documentation says otherwise.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Optimizer, clip_and_step};
///
/// // One gradient step on (y - 1)^2 / 2.
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
    /// Returns the number of elements of an input row.
    fn in_dim(&self) -> usize;

    /// Returns the number of elements of an output row.
    fn out_dim(&self) -> usize;

    /// Returns the number of units of the last hidden layer, or 0 if there is no hidden layer.
    fn hidden_dim(&self) -> usize;

    /// Returns the number of parameters.
    ///
    /// Algorithms call this method in every step. They multiply the number by the rows of a batch
    /// to decide if two networks run in parallel.
    fn num_parameters(&self) -> usize {
        self.tensors().iter().map(|tensor| tensor.data.len()).sum()
    }

    /// Returns the activation of the hidden layers, for checkpoints; `None` if it is not an
    /// [`Activation`].
    fn hidden_activation(&self) -> Option<Activation> {
        None
    }

    /// Returns true if the outputs combine advantages and a state value ([`crate::Dueling`]).
    fn is_dueling(&self) -> bool {
        false
    }

    /// Computes `y = f(x)` and stores nothing for [`Network::backward`].
    ///
    /// The result of a row does not depend on the other rows. In the built-in network, this holds
    /// bit for bit. In other libraries, it holds up to rounding errors, because their order of
    /// summation can depend on the number of rows.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if a slice has the wrong length, or `rows` is 0.
    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], workspace: &mut Workspace) -> Result<()>;

    /// Computes `y = f(x)` like [`Network::infer`], and the last hidden layer,
    /// `[rows, hidden_dim]`, into `h`.
    ///
    /// # Errors
    /// The errors of [`Network::infer`].
    fn infer_hidden(
        &self,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        h: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<()>;

    /// Computes `y = f(x)` and stores the data for [`Network::backward`], which stays valid until
    /// the parameters change.
    ///
    /// # Errors
    /// The errors of [`Network::infer`].
    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()>;

    /// Copies the last hidden layer, `[rows, hidden_dim]`, of the last [`Network::forward`] into
    /// `h`.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if `h` has the wrong length, or there was no forward pass since
    /// the parameters changed.
    fn hidden(&self, h: &mut [f32]) -> Result<()>;

    /// Computes the vector-Jacobian product of `dy` and the last [`Network::forward`].
    ///
    /// `dy` is the gradient of the loss with respect to the outputs. If `params` is true, the
    /// gradients of the parameters are added to the stored gradients. `dx` receives the gradient
    /// with respect to the input.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if a slice does not fit the last forward pass, or there was no
    /// forward pass since the parameters changed. [`Network::apply_gradients`], [`Network::load`]
    /// and [`Network::soft_update`] change the parameters.
    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()>;

    /// Works as [`Network::backward`] with `params`, for a loss that also depends on the last
    /// hidden layer.
    ///
    /// `dh`, `[rows, hidden_dim]`, is the gradient of the loss with respect to [`Network::hidden`].
    ///
    /// # Errors
    /// The errors of [`Network::backward`].
    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()>;

    /// Returns the sum of the squares of all gradients, so that callers can clip several networks
    /// together.
    ///
    /// # Errors
    /// Errors of the backend.
    fn grad_norm_sq(&mut self) -> Result<f64>;

    /// Zeroes the gradients.
    fn zero_gradients(&mut self);

    /// Applies one optimizer step with the gradients times `scale`, then zeroes the gradients.
    ///
    /// # Errors
    /// The errors of [`Optimizer::check_step`] and of the backend. [`rlox_core::Error::NotFinite`]
    /// if the step has made a parameter infinite or NaN, for example with a huge learning rate.
    /// This error names the parameter, and the step has been applied.
    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()>;

    /// Moves each parameter `p` towards the parameter of `online`: `p += tau (online - p)` (Polyak
    /// averaging).
    ///
    /// A `tau` of 1 copies the parameters.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if `online` has another architecture.
    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()>
    where
        Self: Sized;

    /// Returns the parameters with the names and shapes of torch's `Sequential`.
    ///
    /// The names are `0.weight` `[out, in]`, `0.bias` `[out]`, `2.weight`, ...
    fn tensors(&self) -> NamedTensors;

    /// Loads parameters by name.
    ///
    /// # Errors
    /// - [`rlox_core::Error::Shape`]: a tensor is missing, unexpected or of another shape.
    /// - [`rlox_core::Error::NotFinite`]: a tensor has a number that is not finite.
    ///
    /// The error names the tensor.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// Returns the gradients since the last step, by parameter name.
    fn gradients(&self) -> NamedTensors;

    /// Returns the state of the optimizer by parameter name.
    ///
    /// The names are those of torch's Adam. `0.weight.exp_avg` and `0.weight.exp_avg_sq` are the
    /// running means of the gradients and of their squares, and `step` is the number of steps. For
    /// `RMSprop`, `exp_avg_sq` is torch's `square_avg`, and `exp_avg` is zero.
    fn optimizer_state(&self) -> NamedTensors;

    /// Loads a state that [`Network::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`Network::load`]. [`rlox_core::Error::Config`] if the number of steps is not
    /// an integer of at least 0, or a mean of squares is negative.
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// Memory for [`Network::infer`], which grows to the size of the largest batch.
///
/// The contents have no meaning between calls. A backend of another crate can store its own memory
/// in a workspace:
///
/// ```
/// let mut workspace = rlox_nn::Workspace::default();
/// workspace.get_or_default::<Vec<f64>>().resize(8, 0.0);
/// assert_eq!(workspace.get_or_default::<Vec<f64>>().len(), 8);
/// ```
#[derive(Default)]
pub struct Workspace {
    pub(crate) layers: [Vec<AlignedF32x16>; 2],
    /// Outputs of the inner network, if a network such as [`crate::Dueling`] contains another
    /// network.
    pub(crate) outputs: Vec<f32>,
    backend_state: Option<Box<dyn Any + Send>>,
}

impl Workspace {
    /// Returns the stored value of type `T`, or stores and returns a default value if there is
    /// none.
    pub fn get_or_default<T: Any + Default + Send>(&mut self) -> &mut T {
        if !self.backend_state.as_ref().is_some_and(|other| other.is::<T>()) {
            self.backend_state = Some(Box::new(T::default()));
        }
        let state = self.backend_state.as_mut().and_then(|other| other.downcast_mut());
        state.unwrap_or_else(|| unreachable!("the value has this type"))
    }
}

/// Cloning returns an empty workspace, because the contents have no meaning between calls.
impl Clone for Workspace {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace").finish_non_exhaustive()
    }
}

/// Parameters that [`clip_and_step`] changes: a network of any backend, or [`Parameters`] outside
/// networks.
pub trait Learnable: Send {
    /// Returns the sum of the squares of the gradients.
    ///
    /// # Errors
    /// Errors of the backend.
    fn sum_of_squares(&mut self) -> Result<f64>;

    /// Applies one optimizer step with the gradients times `scale`.
    ///
    /// # Errors
    /// The errors of [`Network::apply_gradients`].
    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()>;

    /// Returns the gradients by name.
    fn named_gradients(&self) -> NamedTensors;

    /// Zeroes the gradients.
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

/// Architecture of a network of fully connected layers, for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkArch {
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Activation of the hidden layers; `None` if unknown.
    pub activation: Option<Activation>,
    /// True if the outputs combine advantages and a state value ([`crate::Dueling`]).
    pub dueling: bool,
}

impl NetworkArch {
    /// Returns the architecture of a network.
    ///
    /// ```
    /// use rlox_core::Pcg64;
    /// use rlox_nn::{Activation, Init, Mlp, NetworkArch};
    ///
    /// let network = Mlp::new(&[4, 32, 16, 2], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(0))?;
    /// let arch = NetworkArch::from_network(&network);
    /// assert_eq!((arch.hidden, arch.activation), (vec![32, 16], Some(Activation::Tanh)));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn from_network(network: &impl Network) -> Self {
        Self { hidden: widths(network), activation: network.hidden_activation(), dueling: network.is_dueling() }
    }
}

/// Returns the widths of the hidden layers of a network.
pub(crate) fn widths(network: &impl Network) -> Vec<usize> {
    let tensors = network.tensors();
    let mut rows: Vec<_> = tensors.iter().filter(|tensor| tensor.shape.len() == 2).map(|it| it.shape[0]).collect();
    rows.pop();
    rows
}
