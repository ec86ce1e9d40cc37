//! The seam between algorithms and libraries of networks: forward, vector-Jacobian product, a step of the optimiser.

use rlox_core::{Error, Result};

use crate::simd::Line;
use crate::{Activation, NamedTensors, Optimizer};

/// A function of rows with parameters that can be learned: the only thing a backend implements.
///
/// Losses and their gradients with respect to a network's outputs are written once, on slices; a network multiplies such
/// a gradient back. All arrays are row-major f32, `[rows, dim]`. A call that returns an error has changed nothing.
pub trait Network: Send {
    /// Numbers in an input row.
    fn in_dim(&self) -> usize;

    /// Numbers in an output row.
    fn out_dim(&self) -> usize;

    /// Numbers in a row of the last hidden layer; 0 without one.
    fn hidden_dim(&self) -> usize;

    /// What hidden layers apply to their sums, for checkpoints; `None` if that is none of [`Activation`]'s.
    fn hidden_activation(&self) -> Option<Activation> {
        None
    }

    /// `y = f(x)`, keeping nothing. A row's result does not depend on the others.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices of wrong lengths or no rows.
    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Scratch) -> Result<()>;

    /// As [`Network::infer`], and the last hidden layer, `[rows, hidden_dim]`.
    ///
    /// # Errors
    /// Those of [`Network::infer`].
    fn infer_hidden(&self, x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], scratch: &mut Scratch) -> Result<()>;

    /// `y = f(x)`, keeping what [`Network::backward`] needs.
    ///
    /// # Errors
    /// Those of [`Network::infer`].
    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()>;

    /// The last hidden layer of the last [`Network::forward`], `[rows, hidden_dim]`, read only: no gradient flows back
    /// through it.
    ///
    /// # Errors
    /// [`Error::Shape`] for a slice of wrong length.
    fn hidden(&self, h: &mut [f32]) -> Result<()>;

    /// The vector-Jacobian product of the last [`Network::forward`]: with `params` adds to the gradients of the
    /// parameters, and writes that of the input into `dx` if it is there.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit the last forward, or if there was none.
    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()>;

    /// The sum of the squares of all gradients: clipping is joint over several networks.
    ///
    /// # Errors
    /// Those of the backend.
    fn grad_sq(&mut self) -> Result<f64>;

    /// Drops the gradients: the next backward starts from zero.
    fn zero_gradients(&mut self);

    /// One step of the optimiser with the gradients times `scale`. The next backward starts from zero.
    ///
    /// # Errors
    /// Those of [`Optimizer::check`] and of the backend.
    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()>;

    /// Moves the parameters towards those of another network of the same shape by a share `tau` (Polyak averaging); 1
    /// copies them.
    ///
    /// # Errors
    /// [`Error::Shape`] for a network of another shape.
    fn track(&mut self, online: &Self, tau: f32) -> Result<()>
    where
        Self: Sized;

    /// The parameters by name, as torch's `Sequential` calls and shapes them: `0.weight` `[out, in]`, `0.bias` `[out]`,
    /// `2.weight`, ...
    fn tensors(&self) -> NamedTensors;

    /// Takes parameters by name.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the tensor that is absent, superfluous or of another shape, [`Error::Config`] naming one
    /// with a number that is not finite.
    fn load(&mut self, tensors: &NamedTensors) -> Result<()>;

    /// The gradients since the last step, by the parameters' names.
    fn gradients(&self) -> NamedTensors;

    /// What the optimiser keeps, by the parameters' names and torch's: `0.weight.exp_avg`, `0.weight.exp_avg_sq` of Adam,
    /// `0.weight.square_avg` of `RMSprop`; and `step`.
    fn optimizer_state(&self) -> NamedTensors;

    /// Takes what [`Network::optimizer_state`] gave.
    ///
    /// # Errors
    /// As [`Network::load`].
    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()>;
}

/// Memory for [`Network::infer`]. It grows to what the largest batch needs; what it holds between calls means nothing.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(crate) layers: [Vec<Line>; 2],
}

/// What a joint step changes: networks of any backend, and free parameters.
pub trait Step {
    /// The sum of the squares of the gradients.
    ///
    /// # Errors
    /// Those of the backend.
    fn sum_of_squares(&mut self) -> Result<f64>;

    /// One step of the optimiser with the gradients times `scale`.
    ///
    /// # Errors
    /// Those of the backend.
    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()>;

    /// The gradients, by name.
    fn named_gradients(&self) -> NamedTensors;

    /// Drops the gradients.
    fn forget(&mut self);
}

impl<N: Network> Step for N {
    fn sum_of_squares(&mut self) -> Result<f64> {
        self.grad_sq()
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        self.apply_gradients(optimizer, scale)
    }

    fn named_gradients(&self) -> NamedTensors {
        self.gradients()
    }

    fn forget(&mut self) {
        self.zero_gradients();
    }
}

/// One step of the optimiser for several parts, their gradients scaled together so that their norm is at most
/// `max_grad_norm` (as torch's `clip_grad_norm_`); returns the norm before.
///
/// # Errors
/// [`Error::Config`] naming the part and its first gradient that is not finite. The gradients are dropped then, and
/// nothing else has changed: the next minibatch may be a better one.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Optimizer, clipped_step};
///
/// let mut net = Mlp::new(&[2, 8, 1], Activation::Tanh, Init::orthogonal(1.0), &mut Pcg64::seed_from(0))?;
/// let mut y = [0.0];
/// net.forward(&[0.5, -0.5], 1, &mut y)?;
/// net.backward(&[1.0], true, None)?;
/// let norm = clipped_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), Some(0.5))?;
/// assert!(norm > 0.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn clipped_step(
    parts: &mut [(&'static str, &mut dyn Step)],
    optimizer: &Optimizer,
    max_grad_norm: Option<f32>,
) -> Result<f32> {
    optimizer.check()?;
    let mut squares = 0.0;
    for (_, part) in parts.iter_mut() {
        squares += part.sum_of_squares()?;
    }
    let norm = squares.sqrt() as f32;
    if !norm.is_finite() {
        let error = not_finite(parts);
        for (_, part) in parts.iter_mut() {
            part.forget();
        }
        return Err(error);
    }
    let scale = max_grad_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
    for (_, part) in parts.iter_mut() {
        part.step(optimizer, scale)?;
    }
    Ok(norm)
}

/// Names the gradient that made a norm infinite or NaN.
fn not_finite(parts: &[(&'static str, &mut dyn Step)]) -> Error {
    let found = parts.iter().find_map(|(name, part)| {
        let gradients = part.named_gradients();
        let (tensor, at) = gradients.iter().find_map(|tensor| Some((tensor, tensor.first_not_finite()?)))?;
        Some(format!("{} in {name}.{}", tensor.data[at], tensor.name))
    });
    let got = found.unwrap_or_else(|| "numbers whose squares overflow".into());
    Error::config(
        "gradients",
        "finite numbers",
        got,
        "lower the learning rate, or look for extreme rewards or observations",
    )
}
