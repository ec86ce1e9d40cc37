//! The Python functions `compute_token_kl`, `compute_batch_token_kl` and their variants.

use bytemuck::Pod;
use pyo3::prelude::*;
use rlox_core::advantage::Float;
use rlox_core::llm::{KlEstimator, Reduction};

use crate::convert::args::positive;
use crate::convert::array::FromArray;
use crate::error::value_error;
use crate::llm::kl::{parse_estimator, reduce_all, reduce_rows};
use crate::llm::options;
use crate::llm::tokens::Arguments;

const NAMES: [&str; 2] = ["log_probs_policy", "log_probs_ref"];

/// Estimate the KL divergence of a policy from a reference policy, summed over one sequence.
///
/// The tokens are samples of the policy. The estimate is the sum of one term per token, with
/// `x = log_probs_ref - log_probs_policy`. The term is `-x` for "k1", `x**2 / 2` for "k2", and
/// `exp(x) - 1 - x` for "k3" (Schulman 2020, <http://joschu.net/blog/kl-approx.html>). The expected
/// values of "k1" and "k3" are the divergence KL(policy || ref). For "full", the term is
/// `exp(log_probs_policy) * -x`. Its sum over a whole vocabulary is the divergence itself.
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (T,), in nats; converted to float64.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///     estimator: "k1", "k2", "k3" or "full".
///
/// Returns:
///     A float.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, or the estimator is unknown.
///
/// >>> import rlox
/// >>> rlox.compute_token_kl([-1.0, -2.0], [-2.0, -4.0])
/// 3.0
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, *, mask=None, estimator="k1"))]
pub(crate) fn compute_token_kl<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::estimator)] estimator: &str,
) -> PyResult<Bound<'py, PyAny>> {
    sequence::<f64>(log_probs_policy, log_probs_ref, mask, parse_estimator(estimator)?)
}

/// Estimate the KL divergence of a policy from a reference policy, summed over one sequence.
///
/// The tokens are samples of the policy. The estimate is the sum of one term per token, with
/// `x = log_probs_ref - log_probs_policy`. The term is `-x` for "k1", `x**2 / 2` for "k2", and
/// `exp(x) - 1 - x` for "k3" (Schulman 2020, <http://joschu.net/blog/kl-approx.html>). The expected
/// values of "k1" and "k3" are the divergence KL(policy || ref). For "full", the term is
/// `exp(log_probs_policy) * -x`. Its sum over a whole vocabulary is the divergence itself.
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (T,), in nats; converted to float32.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///     estimator: "k1", "k2", "k3" or "full".
///
/// Returns:
///     A float.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, or the estimator is unknown.
///
/// >>> import rlox
/// >>> rlox.compute_token_kl_f32([-1.0, -2.0], [-2.0, -4.0])
/// 3.0
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, *, mask=None, estimator="k1"))]
pub(crate) fn compute_token_kl_f32<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::estimator)] estimator: &str,
) -> PyResult<Bound<'py, PyAny>> {
    sequence::<f32>(log_probs_policy, log_probs_ref, mask, parse_estimator(estimator)?)
}

/// Compute the k3 estimate of the KL divergence of a policy, summed over one sequence.
///
/// The tokens are samples of the policy. The estimate of KL(policy || ref) is the sum of
/// `exp(x) - 1 - x` over the tokens, with `x = log_probs_ref - log_probs_policy`. It is never
/// negative (Schulman 2020, <http://joschu.net/blog/kl-approx.html>).
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (T,), in nats; converted to float64.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///
/// Returns:
///     A float.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match.
///
/// >>> import rlox
/// >>> round(rlox.compute_token_kl_schulman([-1.0, -2.0], [-2.0, -4.0]), 4)
/// 1.5032
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, *, mask=None))]
pub(crate) fn compute_token_kl_schulman<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    sequence::<f64>(log_probs_policy, log_probs_ref, mask, KlEstimator::K3)
}

/// Compute the k3 estimate of the KL divergence of a policy, summed over one sequence.
///
/// The tokens are samples of the policy. The estimate of KL(policy || ref) is the sum of
/// `exp(x) - 1 - x` over the tokens, with `x = log_probs_ref - log_probs_policy`. It is never
/// negative (Schulman 2020, <http://joschu.net/blog/kl-approx.html>).
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (T,), in nats; converted to float32.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///
/// Returns:
///     A float.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match.
///
/// >>> import rlox
/// >>> round(rlox.compute_token_kl_schulman_f32([-1.0, -2.0], [-2.0, -4.0]), 4)
/// 1.5032
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, *, mask=None))]
pub(crate) fn compute_token_kl_schulman_f32<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    sequence::<f32>(log_probs_policy, log_probs_ref, mask, KlEstimator::K3)
}

/// Estimate the KL divergence of a policy from a reference policy, summed over each sequence.
///
/// The tokens are samples of the policy. The estimate is the sum of one term per token, with
/// `x = log_probs_ref - log_probs_policy`. The term is `-x` for "k1", `x**2 / 2` for "k2", and
/// `exp(x) - 1 - x` for "k3" (Schulman 2020, <http://joschu.net/blog/kl-approx.html>). The expected
/// values of "k1" and "k3" are the divergence KL(policy || ref). For "full", the term is
/// `exp(log_probs_policy) * -x`. Its sum over a whole vocabulary is the divergence itself.
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (B, T) or concatenated (B * T,), in
///         nats; converted to float64.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     seq_len: T, the number of tokens in a sequence.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///     estimator: "k1", "k2", "k3" or "full".
///
/// Returns:
///     (B,) float64.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, or the estimator is unknown.
///
/// >>> import rlox
/// >>> rlox.compute_batch_token_kl([-1.0, -2.0, -3.0, -3.0], [-2.0, -4.0, -3.0, -3.0], 2)
/// array([3., 0.])
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, seq_len, *, mask=None, estimator="k1"))]
pub(crate) fn compute_batch_token_kl<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    seq_len: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::estimator)] estimator: &str,
) -> PyResult<Bound<'py, PyAny>> {
    batch::<f64>(log_probs_policy, log_probs_ref, seq_len, mask, parse_estimator(estimator)?)
}

/// Estimate the KL divergence of a policy from a reference policy, summed over each sequence.
///
/// The tokens are samples of the policy. The estimate is the sum of one term per token, with
/// `x = log_probs_ref - log_probs_policy`. The term is `-x` for "k1", `x**2 / 2` for "k2", and
/// `exp(x) - 1 - x` for "k3" (Schulman 2020, <http://joschu.net/blog/kl-approx.html>). The expected
/// values of "k1" and "k3" are the divergence KL(policy || ref). For "full", the term is
/// `exp(log_probs_policy) * -x`. Its sum over a whole vocabulary is the divergence itself.
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (B, T) or concatenated (B * T,), in
///         nats; converted to float32.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     seq_len: T, the number of tokens in a sequence.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///     estimator: "k1", "k2", "k3" or "full".
///
/// Returns:
///     (B,) float32.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, or the estimator is unknown.
///
/// >>> import rlox
/// >>> rlox.compute_batch_token_kl_f32([-1.0, -2.0, -3.0, -3.0], [-2.0, -4.0, -3.0, -3.0], 2)
/// array([3., 0.], dtype=float32)
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, seq_len, *, mask=None, estimator="k1"))]
pub(crate) fn compute_batch_token_kl_f32<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    seq_len: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::estimator)] estimator: &str,
) -> PyResult<Bound<'py, PyAny>> {
    batch::<f32>(log_probs_policy, log_probs_ref, seq_len, mask, parse_estimator(estimator)?)
}

/// Compute the k3 estimate of the KL divergence of a policy, summed over each sequence.
///
/// The tokens are samples of the policy. The estimate of KL(policy || ref) is the sum of
/// `exp(x) - 1 - x` over the tokens, with `x = log_probs_ref - log_probs_policy`. It is never
/// negative (Schulman 2020, <http://joschu.net/blog/kl-approx.html>).
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (B, T) or concatenated (B * T,), in
///         nats; converted to float64.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     seq_len: T, the number of tokens in a sequence.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///
/// Returns:
///     (B,) float64.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match.
///
/// >>> import rlox
/// >>> rlox.compute_batch_token_kl_schulman([-1.0, -2.0, -3.0, -3.0], [-1.0, -2.0, -3.0, -3.0], 2)
/// array([0., 0.])
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, seq_len, *, mask=None))]
pub(crate) fn compute_batch_token_kl_schulman<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    seq_len: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    batch::<f64>(log_probs_policy, log_probs_ref, seq_len, mask, KlEstimator::K3)
}

/// Compute the k3 estimate of the KL divergence of a policy, summed over each sequence.
///
/// The tokens are samples of the policy. The estimate of KL(policy || ref) is the sum of
/// `exp(x) - 1 - x` over the tokens, with `x = log_probs_ref - log_probs_policy`. It is never
/// negative (Schulman 2020, <http://joschu.net/blog/kl-approx.html>).
///
/// Args:
///     log_probs_policy: Log-probabilities under the policy, (B, T) or concatenated (B * T,), in
///         nats; converted to float32.
///     log_probs_ref: Log-probabilities of the same tokens under the reference policy, of the same
///         shape.
///     seq_len: T, the number of tokens in a sequence.
///     mask: True or 1 for tokens to include, False or 0 for others, of the same shape.
///
/// Returns:
///     (B,) float32.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match.
///
/// >>> import rlox
/// >>> rlox.compute_batch_token_kl_schulman_f32([-1.0, -2.0, -3.0, -3.0], [-1.0, -2.0, -3.0, -3.0], 2)
/// array([0., 0.], dtype=float32)
#[pyfunction]
#[pyo3(signature = (log_probs_policy, log_probs_ref, seq_len, *, mask=None))]
pub(crate) fn compute_batch_token_kl_schulman_f32<'py>(
    log_probs_policy: &Bound<'py, PyAny>,
    log_probs_ref: &Bound<'py, PyAny>,
    seq_len: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    batch::<f32>(log_probs_policy, log_probs_ref, seq_len, mask, KlEstimator::K3)
}

fn sequence<'py, T: Float + FromArray + Pod>(
    log_probs: &Bound<'py, PyAny>,
    others: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    estimator: KlEstimator,
) -> PyResult<Bound<'py, PyAny>> {
    let tokens = Arguments::<T>::new(NAMES, log_probs, others, mask)?.read(log_probs.py())?;
    if let [_] = tokens.shape() {
        return reduce_all(log_probs.py(), &tokens, estimator, Reduction::Sum);
    }
    let got = format!("shape {:?}", tokens.shape());
    Err(value_error(NAMES[0], "shape (T,)", &got, "pass a single sequence, or use compute_batch_token_kl or token_kl"))
}

fn batch<'py, T: Float + FromArray + Pod>(
    log_probs: &Bound<'py, PyAny>,
    others: &Bound<'py, PyAny>,
    seq_len: &Bound<'py, PyAny>,
    mask: Option<&Bound<'py, PyAny>>,
    estimator: KlEstimator,
) -> PyResult<Bound<'py, PyAny>> {
    let seq_len = positive("seq_len", seq_len)?;
    let tokens = Arguments::<T>::new(NAMES, log_probs, others, mask)?.read(log_probs.py())?;
    let rows = match tokens.shape() {
        [0] => Some(0),
        [len] if seq_len > 0 && len.is_multiple_of(seq_len) => Some(len / seq_len),
        [rows, len] if *len == seq_len => Some(*rows),
        _ => None,
    };
    if let Some(rows) = rows {
        return reduce_rows(log_probs.py(), &tokens, rows, estimator, Reduction::Sum);
    }
    let expected = format!("a flat array of sequences of seq_len = {seq_len} tokens, or shape (B, {seq_len})");
    let got = format!("shape {:?}", tokens.shape());
    Err(value_error(NAMES[0], &expected, &got, "pass whole sequences, one after the other"))
}
