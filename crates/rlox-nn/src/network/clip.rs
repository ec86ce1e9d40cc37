//! Joint optimizer step for several parts, whose gradients are clipped together.

use rlox_core::{Error, Result};

use super::Learnable;
use crate::optimizer::check_squares;
use crate::parallel::join_if;
use crate::validate::check_not_negative;
use crate::{NamedTensor, NamedTensors, Optimizer};

/// Argument that errors name for parameters.
const PARAMETERS: &str = "parameters";

/// Clips the gradients of several parts together and applies one optimizer step to each part.
///
/// Returns the joint norm before clipping. The gradients are scaled so that their joint norm is at most
/// `max_grad_norm`, as by torch's `clip_grad_norm_`. The built-in network sums squares in f32, where the squares of
/// gradients of 1e19 and more are infinite. Other libraries may sum in f64 and accept larger gradients, as long as
/// their squares fit into f32 after clipping.
///
/// # Errors
/// - The errors of [`Optimizer::check`], or [`Error::Config`] for a `max_grad_norm` that is negative or not finite.
/// - [`Error::NotFinite`] naming the part and a gradient that is not finite or whose square is not finite.
///
/// These errors zero the gradients and change nothing else: training can go on with the next minibatch.
///
/// After the step, [`Error::NotFinite`] naming the part and a parameter that the step has made infinite or NaN. Only a
/// checkpoint helps then.
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

/// Works as [`clip_and_step`]; with `fork`, two threads step the first two parts.
///
/// Set `fork` if two threads have computed the gradients of these parts.
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

/// Returns the joint norm of all gradients and the factor that brings it to at most `max_grad_norm`.
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

/// Returns the gradients of all parts.
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

/// Checks the parameters after a step; calls `parameters` only if `finite` is false.
///
/// # Errors
/// [`Error::NotFinite`] naming the first parameter that is not finite.
pub(crate) fn check_stepped(finite: bool, parameters: impl FnOnce() -> NamedTensors) -> Result<()> {
    if finite { Ok(()) } else { parameters().check_finite(PARAMETERS) }
}
