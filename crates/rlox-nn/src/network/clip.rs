//! The joint step of the optimiser for several parts, whose gradients are clipped together, and its checks.

use rlox_core::{Error, Result};

use super::Learnable;
use crate::optimizer::check_squares;
use crate::parallel::join_if;
use crate::validate::check_not_negative;
use crate::{NamedTensor, NamedTensors, Optimizer};

/// What errors call parameters.
const PARAMETERS: &str = "parameters";

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

/// The same; `apart` says whether two threads have computed the gradients of the first two parts, and step them.
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

/// The norm of all gradients together, and what they are multiplied by so that it is at most another.
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

/// The gradients of all parts.
fn collect_gradients(parts: &[(&'static str, &mut dyn Learnable)]) -> Vec<NamedTensor> {
    let mut all = vec![];
    for (part, it) in parts {
        let add_prefix = |tensor: NamedTensor| NamedTensor { name: format!("{part}.{}", tensor.name), ..tensor };
        all.extend(it.named_gradients().into_iter().map(add_prefix));
    }
    all
}

/// The same error, of a part's parameters.
fn with_part(mut error: Error, part: &str) -> Error {
    if let Some(mismatch) = error.mismatch_mut().filter(|wrong| wrong.argument == PARAMETERS) {
        mismatch.argument = format!("{PARAMETERS} of {part}").into();
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
