//! The Python functions `policy_ratios` and `policy_ratio_stats`.

use bytemuck::Pod;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::advantage::Float;
use rlox_core::llm::{policy_ratios as each, ratio_stats, sequence_ratios};

use crate::convert::args::{Input, REAL, argument, asarray, is_single, number};
use crate::convert::array::{FromArray, empty, new_dict};
use crate::error::{to_py, value_error};
use crate::llm::options;
use crate::llm::tokens::Arguments;
use crate::sync::gil::detach;

const NAMES: [&str; 2] = ["log_probs", "old_log_probs"];

/// Compute the importance ratios `exp(log_probs - old_log_probs)` of tokens or sequences.
///
/// PPO and GRPO use the ratios of tokens, GSPO those of sequences.
///
/// Args:
///     log_probs: Log-probabilities of the tokens under the policy, (B, T) or (T,), in nats.
///         Results are float32 for float32, float16 and bfloat16, and float64 for any other dtype.
///     old_log_probs: Log-probabilities of the tokens under the sampling policy, of the same shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///     level: "token" for one ratio per token, which is 1 for excluded tokens. "sequence" for one
///         ratio per sequence: `exp` of the mean log-ratio of its included tokens (GSPO,
///         arXiv:2507.18071).
///
/// Returns:
///     An array of the shape of `log_probs`; for "sequence" (B,), or () for a single sequence.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes differ, the level is unknown, or the mask has numbers other than 0 and 1.
///
/// >>> import rlox
/// >>> rlox.policy_ratios([[0.0, -1.0]], [[0.0, -2.0]], mask=[[1, 0]])
/// array([[1., 1.]])
#[pyfunction]
#[pyo3(signature = (log_probs, old_log_probs, mask=None, level="token"))]
pub(crate) fn policy_ratios<'py>(
    log_probs: &Bound<'py, PyAny>,
    old_log_probs: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::level)] level: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let by_token = match level {
        "token" => true,
        "sequence" => false,
        _ => return Err(value_error("level", "\"token\" or \"sequence\"", &format!("{level:?}"), "correct it")),
    };
    let log_probs = asarray(NAMES[0], log_probs)?;
    let log_probs = log_probs.as_any();
    if is_single(log_probs) {
        ratios::<f32>(log_probs, old_log_probs, mask, by_token)
    } else {
        ratios::<f64>(log_probs, old_log_probs, mask, by_token)
    }
}

fn ratios<'py, T: Float + FromArray + Pod>(
    log_probs: &Bound<'py, PyAny>,
    old_log_probs: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    by_token: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = log_probs.py();
    let tokens = Arguments::<T>::new(NAMES, log_probs, old_log_probs, mask)?.read(py)?;
    let shape = if by_token { tokens.shape() } else { tokens.sequences(NAMES[0])? };
    let mut ratios = empty::<T>(py, shape)?;
    let (new, old, mask) = tokens.slices();
    let out = ratios.slice();
    let mut work = || if by_token { each(new, old, mask, out) } else { sequence_ratios(new, old, mask, out) };
    if tokens.long() { detach(py, work) } else { work() }.map_err(to_py)?;
    Ok(ratios.into_array().into_any())
}

/// Compute statistics of the importance ratios of a batch, such as the fraction that PPO clips.
///
/// Args:
///     log_probs: Log-probabilities of the tokens under the policy, (B, T) or (T,), in nats.
///     old_log_probs: Log-probabilities of the tokens under the sampling policy, of the same shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///     clip_low: Ratios below `1 - clip_low` are clipped.
///     clip_high: Ratios above `1 + clip_high` are clipped; `clip_low` if None.
///     advantages: (B,) or of the shape of `log_probs`. If they are given, a ratio counts as
///         clipped only if clipping changes the loss: a low ratio with a negative advantage, or a
///         high ratio with a positive advantage.
///
/// Returns:
///     A dict. `count` is the number of included tokens, and `mean`, `min` and `max` are those of
///     their ratios. `clip_fraction_low` and `clip_fraction_high` are the fractions of clipped
///     ratios, and `clip_fraction` is their sum. `approx_kl` is the mean of
///     `(ratio - 1) - log(ratio)`. If no token is included, the fractions and `approx_kl` are 0,
///     and the ratios are 1.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, a clip range is negative, or the mask has numbers other
///         than 0 and 1.
///
/// >>> import numpy as np, rlox
/// >>> rlox.policy_ratio_stats(np.log([0.5, 1.0, 1.1, 1.6]), np.zeros(4)).get("clip_fraction")
/// 0.5
#[pyfunction]
#[pyo3(signature = (log_probs, old_log_probs, mask=None, *, clip_low=0.2, clip_high=None, advantages=None))]
pub(crate) fn policy_ratio_stats<'py>(
    log_probs: &Bound<'py, PyAny>,
    old_log_probs: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::clip_low)] clip_low: f64,
    clip_high: Option<&Bound<'py, PyAny>>,
    advantages: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let clip_high = clip_high.map_or(Ok(clip_low), |clip| number("clip_high", clip))?;
    let clips = [clip_low, clip_high];
    let log_probs = asarray(NAMES[0], log_probs)?;
    let log_probs = log_probs.as_any();
    if is_single(log_probs) {
        stats::<f32>(log_probs, old_log_probs, mask, clips, advantages)
    } else {
        stats::<f64>(log_probs, old_log_probs, mask, clips, advantages)
    }
}

fn stats<'py, T: Float + FromArray>(
    log_probs: &Bound<'py, PyAny>,
    old_log_probs: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    [low, high]: [f64; 2],
    advantages: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = log_probs.py();
    let tokens = Arguments::<T>::new(NAMES, log_probs, old_log_probs, mask)?;
    let advantages = advantages.map(|x| argument::<T>("advantages", x, &REAL)).transpose()?;

    let tokens = tokens.read(py)?;
    let fits = |got: &[usize]| {
        let rows = tokens.sequences(NAMES[0])?;
        let one = rows.is_empty() && got.iter().product::<usize>() == 1;
        if got == rows || got == tokens.shape() || one {
            return Ok(());
        }
        let expected = format!("shape {rows:?}, one per sequence, or {:?}, one per token", tokens.shape());
        Err(value_error("advantages", &expected, &format!("shape {got:?}"), "pass one of these shapes"))
    };
    advantages.as_ref().map_or(Ok(()), |advantages| fits(advantages.shape()))?;
    let advantages = advantages.map(|advantages| advantages.read(tokens.hold)).transpose()?;
    advantages.as_ref().map_or(Ok(()), |advantages| fits(advantages.shape()))?;
    let (new, old, mask) = tokens.slices();
    let advantages = advantages.as_ref().map(Input::slice);
    let work = || ratio_stats(new, old, mask, low, high, advantages);
    let stats = if tokens.long() { detach(py, work) } else { work() }.map_err(to_py)?;
    let dict = new_dict(py)?;
    dict.set_item("count", stats.count)?;
    for (name, value) in [
        ("mean", stats.mean),
        ("min", stats.min),
        ("max", stats.max),
        ("clip_fraction", stats.clip_fraction_low + stats.clip_fraction_high),
        ("clip_fraction_low", stats.clip_fraction_low),
        ("clip_fraction_high", stats.clip_fraction_high),
        ("approx_kl", stats.approx_kl),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
