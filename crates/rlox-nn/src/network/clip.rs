//! Optimizer step of several networks and parameters whose gradients are clipped together.

use rlox_core::{Error, Result};

use super::Learnable;
use crate::optimizer::check_squares;
use crate::parallel::join_if;
use crate::validate::check_not_negative;
use crate::{NamedTensor, NamedTensors, Optimizer};

/// Name of the argument in errors about parameters.
const PARAMETERS: &str = "parameters";

/// Clips the gradients of several parts together and applies one optimizer step to each part.
///
/// A part is a network or [`crate::Parameters`], with a name for errors. Returns the norm of all
/// gradients before clipping. The gradients are scaled so that this joint norm is at most
/// `max_grad_norm`, as by torch's `clip_grad_norm_`.
///
/// The built-in network sums squares in f32, in which the squares of gradients of 1e19 and more are
/// infinite. Other backends may sum in f64. They accept larger gradients if the squares fit into
/// f32 after clipping.
///
/// # Errors
/// - The errors of [`Optimizer::check`].
/// - [`Error::Config`]: `max_grad_norm` is negative or not finite.
/// - [`Error::NotFinite`]: a gradient or its square is not finite. The error names the part and the
///   gradient.
///
/// These errors zero the gradients and change nothing else, so that training can continue with the
/// next minibatch.
///
/// [`Error::NotFinite`] is also returned after a step that has made a parameter infinite or NaN.
/// The error names the part and the parameter. Then training can only continue from a checkpoint.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, Network, Optimizer, clip_and_step};
///
/// let mut net = Mlp::new(&[2, 8, 1], Activation::Tanh, Init::orthogonal(1.0), &mut Pcg64::seed_from(0))?;
/// let mut y = [0.0];
/// net.forward(&[0.5, -0.5], 1, &mut y)?;
/// net.backward(&[1.0], true, None)?;
/// let norm = clip_and_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), Some(0.5))?;
/// assert!(norm > 0.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn clip_and_step(
    parts: &mut [(&'static str, &mut dyn Learnable)],
    optimizer: &Optimizer,
    max_grad_norm: Option<f32>,
) -> Result<f32> {
    clip_and_step_if(false, parts, optimizer, max_grad_norm)
}

/// Works as [`clip_and_step`]; if `fork` is true, two threads apply the steps of the first two
/// parts.
///
/// Callers set `fork` if two threads have computed the gradients of these parts, which are then in
/// the caches of two cores.
pub(crate) fn clip_and_step_if(
    fork: bool,
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
                part.zero_grad();
            }
            return Err(error);
        }
    };
    let step = |(name, part): &mut (&'static str, &mut dyn Learnable)| {
        part.step(optimizer, scale).map_err(|error| with_part(error, name))
    };
    let rest = match parts {
        [first, second, rest @ ..] => {
            join_if(fork, || step(first), || step(second))?;
            rest
        }
        rest => rest,
    };
    rest.iter_mut().try_for_each(step)?;
    Ok(norm)
}

/// Returns the norm of all gradients, and the factor that reduces this norm to at most
/// `max_grad_norm`.
fn norm_and_scale(parts: &mut [(&'static str, &mut dyn Learnable)], max_grad_norm: Option<f32>) -> Result<(f32, f32)> {
    let mut squares = 0.0;
    for (_, part) in parts.iter_mut() {
        squares += part.sum_of_squares()?;
    }
    let norm = squares.sqrt() as f32;
    let scale = max_grad_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
    check_squares(scale, squares, || collect_gradients(parts))?;
    Ok((norm, scale))
}

/// Returns the gradients of all parts; each name starts with the name of the part.
fn collect_gradients(parts: &[(&'static str, &mut dyn Learnable)]) -> Vec<NamedTensor> {
    let mut all = vec![];
    for (part, it) in parts {
        let add_prefix = |tensor: NamedTensor| NamedTensor { name: format!("{part}.{}", tensor.name), ..tensor };
        all.extend(it.named_gradients().into_iter().map(add_prefix));
    }
    all
}

/// Adds the name of a part to an error about its parameters.
fn with_part(mut error: Error, part: &str) -> Error {
    if let Some(mismatch) = error.mismatch_mut().filter(|wrong| wrong.argument == PARAMETERS) {
        mismatch.argument = format!("{PARAMETERS} of {part}").into();
    }
    error
}

/// Checks that all parameters are finite after a step.
///
/// `parameters` is called only if `finite` is false, to name a parameter in the error.
///
/// # Errors
/// [`Error::NotFinite`] naming the first parameter that is not finite.
pub(crate) fn check_stepped(finite: bool, parameters: impl FnOnce() -> NamedTensors) -> Result<()> {
    if finite { Ok(()) } else { parameters().check_finite(PARAMETERS) }
}
