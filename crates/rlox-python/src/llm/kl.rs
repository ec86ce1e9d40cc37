//! The Python function `token_kl`, and sums and means of its terms over sequences.

use bytemuck::Pod;
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use rlox_core::advantage::Float;
use rlox_core::llm::{KlEstimator, Reduction, sequence_kl, token_kl as each};

use crate::convert::args::{asarray, is_single};
use crate::convert::array::{FromArray, empty};
use crate::error::{to_py, value_error};
use crate::llm::options;
use crate::llm::tokens::{Arguments, Tokens};
use crate::sync::gil::detach;

/// Estimate the divergence KL(policy || ref) from tokens that the policy sampled.
///
/// The estimate has one term per token, with `x = ref_log_probs - log_probs`. The term is `-x` for
/// "k1", `x**2 / 2` for "k2", and `exp(x) - 1 - x` for "k3" (Schulman 2020,
/// <http://joschu.net/blog/kl-approx.html>). The expected values of "k1" and "k3" are the
/// divergence. "k3" has a smaller variance and is never negative. For "full", the term is
/// `exp(log_probs) * -x`. With the log-probabilities of all tokens of a vocabulary instead of sampled
/// tokens, the sum of these terms is the divergence itself.
///
/// Args:
///     log_probs: Log-probabilities of the tokens under the policy, (B, T) or (T,), in nats.
///         Results are float32 for float32, float16 and bfloat16, and float64 for any other dtype.
///     ref_log_probs: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape. The
///         log-probabilities of excluded tokens are ignored.
///     estimator: "k1", "k2", "k3" or "full".
///     reduction: "none" returns one number per token, which is 0 for excluded tokens. "sum" and
///         "mean" return one number per sequence. "token_mean" returns the mean over all included
///         tokens. A mean over no tokens is 0.
///
/// Returns:
///     For "none", an array of the shape of `log_probs`. For "token_mean" or a single sequence, a
///     float. Otherwise, an array (B,).
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes differ, the estimator or reduction is unknown, or the mask has numbers
///         other than 0 and 1.
///
/// >>> import rlox
/// >>> rlox.token_kl([[-1.0, -2.0]], [[-2.0, -4.0]], estimator="k1")
/// array([[1., 2.]])
/// >>> rlox.token_kl([[-1.0, -2.0]], [[-2.0, -4.0]], mask=[[1, 0]], estimator="k2", reduction="mean")
/// array([0.5])
#[pyfunction]
#[pyo3(signature = (log_probs, ref_log_probs, mask=None, estimator="k3", reduction="none"))]
pub(crate) fn token_kl<'py>(
    log_probs: &Bound<'py, PyAny>,
    ref_log_probs: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::estimator)] estimator: &str,
    #[pyo3(from_py_with = options::reduction)] reduction: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let (estimator, reduction) = (parse_estimator(estimator)?, parse_reduction(reduction)?);
    let log_probs = asarray("log_probs", log_probs)?;
    let log_probs = log_probs.as_any();
    if is_single(log_probs) {
        run::<f32>(log_probs, ref_log_probs, mask, estimator, reduction)
    } else {
        run::<f64>(log_probs, ref_log_probs, mask, estimator, reduction)
    }
}

pub(super) fn parse_estimator(estimator: &str) -> PyResult<KlEstimator> {
    match estimator {
        "k1" => Ok(KlEstimator::K1),
        "k2" => Ok(KlEstimator::K2),
        "k3" => Ok(KlEstimator::K3),
        "full" => Ok(KlEstimator::Full),
        _ => {
            Err(value_error("estimator", "\"k1\", \"k2\", \"k3\" or \"full\"", &format!("{estimator:?}"), "correct it"))
        }
    }
}

/// Parses `reduction`.
///
/// Returns `None` for "none". Otherwise, returns the kind of reduction, and true if it combines all
/// sequences.
fn parse_reduction(reduction: &str) -> PyResult<Option<(Reduction, bool)>> {
    match reduction {
        "none" => Ok(None),
        "sum" => Ok(Some((Reduction::Sum, false))),
        "mean" => Ok(Some((Reduction::Mean, false))),
        "token_mean" => Ok(Some((Reduction::Mean, true))),
        _ => {
            let expected = "\"none\", \"sum\", \"mean\" or \"token_mean\"";
            Err(value_error("reduction", expected, &format!("{reduction:?}"), "correct it"))
        }
    }
}

fn run<'py, T: Float + FromArray + Pod>(
    log_probs: &Bound<'py, PyAny>,
    ref_log_probs: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    estimator: KlEstimator,
    reduction: Option<(Reduction, bool)>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = log_probs.py();
    let tokens = Arguments::<T>::new(["log_probs", "ref_log_probs"], log_probs, ref_log_probs, mask)?.read(py)?;
    match reduction {
        None => {
            let mut kl = empty::<T>(py, tokens.shape())?;
            let (policy, reference, mask) = tokens.slices();
            let out = kl.slice();
            let mut work = || each(policy, reference, mask, estimator, out);
            if tokens.long() { detach(py, work) } else { work() }.map_err(to_py)?;
            Ok(kl.into_array().into_any())
        }
        Some((kind, true)) => reduce_all(py, &tokens, estimator, kind),
        Some((kind, false)) => match tokens.sequences("log_probs")? {
            [] => reduce_all(py, &tokens, estimator, kind),
            [rows, ..] => reduce_rows(py, &tokens, *rows, estimator, kind),
        },
    }
}

/// Reduces all tokens to one number.
pub(super) fn reduce_all<'py, T: Float + FromArray>(
    py: Python<'py>,
    tokens: &Tokens<'py, T>,
    estimator: KlEstimator,
    reduction: Reduction,
) -> PyResult<Bound<'py, PyAny>> {
    let (policy, reference, mask) = tokens.slices();
    let mut kl = [T::from_f64(0.0)];
    let mut work = || sequence_kl(policy, reference, mask, estimator, reduction, &mut kl);
    if tokens.long() { detach(py, work) } else { work() }.map_err(to_py)?;
    Ok(PyFloat::new(py, kl[0].to_f64()).into_any())
}

/// Reduces each of `rows` sequences to one number.
pub(super) fn reduce_rows<'py, T: Float + FromArray + Pod>(
    py: Python<'py>,
    tokens: &Tokens<'py, T>,
    rows: usize,
    estimator: KlEstimator,
    reduction: Reduction,
) -> PyResult<Bound<'py, PyAny>> {
    let (policy, reference, mask) = tokens.slices();
    let mut kl = empty::<T>(py, &[rows])?;
    let out = kl.slice();
    let mut work = || sequence_kl(policy, reference, mask, estimator, reduction, out);
    if tokens.long() { detach(py, work) } else { work() }.map_err(to_py)?;
    Ok(kl.into_array().into_any())
}
