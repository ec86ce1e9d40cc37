//! The seam between algorithms and libraries of networks: forward, vector-Jacobian product, a step of the optimiser.

use std::any::Any;
use std::fmt;

use rlox_core::{Error, Result};

use crate::at_once::at_once_if;
use crate::rows::check_not_negative;
use crate::simd::Line;
use crate::{Activation, NamedTensor, NamedTensors, Optimizer};

/// A function of rows with parameters that can be learned: the only thing a backend implements.
///
/// Losses and their gradients with respect to a network's outputs are written once, on slices; a network multiplies such
/// a gradient back. All arrays are row-major f32, `[rows, dim]`. A call that returns an error has changed nothing.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Optimizer, clipped_step};
///
/// // A step down the slope of (y - 1)^2 / 2.
/// let mut net = Mlp::new(&[2, 8, 1], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(0))?;
/// let (x, mut y) = ([0.5, -0.5], [0.0]);
/// net.forward(&x, 1, &mut y)?;
/// let before = (y[0] - 1.0).abs();
/// net.backward(&[y[0] - 1.0], true, None)?;
/// clipped_step(&mut [("net", &mut net)], &Optimizer::adam(1e-2), Some(0.5))?;
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
    /// [`Error::Shape`] for slices of wrong lengths or no rows.
    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Scratch) -> Result<()>;

    /// As [`Network::infer`], and the last hidden layer, `[rows, hidden_dim]`.
    ///
    /// # Errors
    /// Those of [`Network::infer`].
    fn infer_hidden(&self, x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], scratch: &mut Scratch) -> Result<()>;

    /// `y = f(x)`, keeping what [`Network::backward`] needs until the parameters change.
    ///
    /// # Errors
    /// Those of [`Network::infer`].
    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()>;

    /// The last hidden layer of the last [`Network::forward`], `[rows, hidden_dim]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for a slice of wrong length, or if there was no forward since the parameters changed.
    fn hidden(&self, h: &mut [f32]) -> Result<()>;

    /// The vector-Jacobian product of the last [`Network::forward`]: with `params` adds to the gradients of the
    /// parameters, and writes that of the input into `dx` if it is there.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit the last forward, or if there was none since the parameters changed, by
    /// [`Network::apply_gradients`], [`Network::load`] or [`Network::track`]: it would be a product with nothing's Jacobian.
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
    fn grad_sq(&mut self) -> Result<f64>;

    /// Drops the gradients: the next backward starts from zero.
    fn zero_gradients(&mut self);

    /// One step of the optimiser with the gradients times `scale`. The next backward starts from zero.
    ///
    /// # Errors
    /// Those of [`Optimizer::check_step`] and of the backend; [`Error::Config`] naming a parameter that the step has made
    /// infinite or NaN, as a huge learning rate does: here alone the step has been made.
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

/// What errors call parameters.
const PARAMETERS: &str = "parameters";

/// Memory for [`Network::infer`]. It grows to what the largest batch needs; what it holds between calls means nothing.
///
/// A backend of another crate keeps its own in it:
///
/// ```
/// let mut scratch = rlox_nn::Scratch::default();
/// scratch.of::<Vec<f64>>().resize(8, 0.0);
/// assert_eq!(scratch.of::<Vec<f64>>().len(), 8);
/// ```
#[derive(Default)]
pub struct Scratch {
    pub(crate) layers: [Vec<Line>; 2],
    /// Of a network inside another.
    pub(crate) outputs: Vec<f32>,
    other: Option<Box<dyn Any + Send>>,
}

impl Scratch {
    /// Memory of one type, that of the last call with this type if there was no other since.
    pub fn of<T: Any + Default + Send>(&mut self) -> &mut T {
        if !self.other.as_ref().is_some_and(|other| other.is::<T>()) {
            self.other = Some(Box::new(T::default()));
        }
        let other = self.other.as_mut().and_then(|other| other.downcast_mut());
        other.unwrap_or_else(|| unreachable!("it is of this type"))
    }
}

/// A copy holds nothing, as what is held means nothing.
impl Clone for Scratch {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Scratch {
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
    fn forget(&mut self);
}

impl<N: Network> Learnable for N {
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
/// The built-in network sums squares in f32, where those of gradients of 1e19 and more are infinite; other libraries may
/// sum them in f64, and refuse those that are as large after they were cut.
///
/// # Errors
/// Those of [`Optimizer::check`], [`Error::Config`] for a `max_grad_norm` that is no number of 0 or more, or naming the
/// part and its first gradient that is not finite or whose square is not. The gradients are dropped then, and nothing else
/// has changed: the next minibatch may be a better one. [`Error::Config`] naming the part and the parameter that the step
/// has made infinite or NaN: only a checkpoint helps then.
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
    parts: &mut [(&'static str, &mut dyn Learnable)],
    optimizer: &Optimizer,
    max_grad_norm: Option<f32>,
) -> Result<f32> {
    clipped_step_if(false, parts, optimizer, max_grad_norm)
}

/// The same; `apart` says whether two threads have computed the gradients of the first two parts, and step them.
pub(crate) fn clipped_step_if(
    apart: bool,
    parts: &mut [(&'static str, &mut dyn Learnable)],
    optimizer: &Optimizer,
    max_grad_norm: Option<f32>,
) -> Result<f32> {
    let checked = optimizer
        .check()
        .and_then(|()| max_grad_norm.map_or(Ok(()), |most| check_not_negative("max_grad_norm", most)))
        .and_then(|()| norm_and_scale(parts, max_grad_norm));
    let (norm, scale) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            for (_, part) in parts.iter_mut() {
                part.forget();
            }
            return Err(error);
        }
    };
    let step = |(name, part): &mut (&'static str, &mut dyn Learnable)| {
        part.step(optimizer, scale).map_err(|error| of_part(error, name))
    };
    let rest = match parts {
        [first, second, rest @ ..] => {
            at_once_if(apart, || step(first), || step(second))?;
            rest
        }
        rest => rest,
    };
    rest.iter_mut().try_for_each(step)?;
    Ok(norm)
}

/// The norm of all gradients together, and what they are multiplied by so that it is at most another.
fn norm_and_scale(parts: &mut [(&'static str, &mut dyn Learnable)], max_grad_norm: Option<f32>) -> Result<(f32, f32)> {
    let mut squares = 0.0;
    for (_, part) in parts.iter_mut() {
        squares += part.sum_of_squares()?;
    }
    let norm = squares.sqrt() as f32;
    let scale = max_grad_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
    check_squares(scale, squares, || gradients_of(parts))?;
    Ok((norm, scale))
}

/// The gradients of all parts.
fn gradients_of(parts: &[(&'static str, &mut dyn Learnable)]) -> Vec<NamedTensor> {
    let mut all = vec![];
    for (part, it) in parts {
        let renamed = |one: NamedTensor| NamedTensor { name: format!("{part}.{}", one.name), ..one };
        all.extend(it.named_gradients().into_iter().map(renamed));
    }
    all
}

/// Checks that the squares of gradients times `scale` stay in the range of f32, given the sum of them without it.
///
/// # Errors
/// [`Error::Config`] naming the gradient that made it infinite or NaN.
pub(crate) fn check_squares(scale: f32, squares: f64, gradients: impl FnOnce() -> Vec<NamedTensor>) -> Result<()> {
    // So far below its end that rounding does not lead there.
    const MOST: f64 = f32::MAX as f64 / 2.0;
    let fits = (squares.sqrt() as f32).is_finite() && squares * f64::from(scale).powi(2) <= MOST;
    if fits { Ok(()) } else { Err(not_finite(&gradients())) }
}

/// The same error, of a part's parameters.
fn of_part(mut error: Error, part: &str) -> Error {
    if let Some(wrong) = error.mismatch_mut().filter(|wrong| wrong.argument == PARAMETERS) {
        wrong.argument = format!("{PARAMETERS} of {part}").into();
    }
    error
}

/// Whether a step has left the parameters finite, which were asked for otherwise.
///
/// # Errors
/// [`Error::NotFinite`] naming one that is not.
pub(crate) fn check_stepped(finite: bool, parameters: impl FnOnce() -> NamedTensors) -> Result<()> {
    if finite { Ok(()) } else { parameters().check_finite(PARAMETERS) }
}

/// Names the gradient that made a norm infinite or NaN.
fn not_finite(gradients: &[NamedTensor]) -> Error {
    let first = gradients.iter().find_map(|one| Some((one, one.first_not_finite()?)));
    let largest = || {
        let numbers = gradients.iter().flat_map(|one| (0..one.data.len()).map(move |at| (one, at)));
        let size = |(one, at): (&NamedTensor, usize)| one.data[at].abs();
        numbers.reduce(|most, next| if size(next) > size(most) { next } else { most })
    };
    let hint = "lower the learning rate, or look for extreme rewards or observations";
    let error = |got| Error::not_finite("gradients", "finite numbers", got, hint);
    match (first, largest()) {
        (Some((one, at)), _) => one.locate(error(one.data[at].to_string()), at),
        (None, Some((one, at))) => one.locate(error(format!("{}, whose square overflows", one.data[at])), at),
        (None, None) => error(String::new()),
    }
}
