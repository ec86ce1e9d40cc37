//! The Python functions `compute_group_advantages` and `compute_batch_group_advantages`.

use bytemuck::Pod;
use numpy::{IntoPyArray, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rlox_core::llm::{GroupOptions, RewardScale, combine_rewards, compute_batch_group_advantages as batch};
use rlox_core::{advantage::Float, interrupt::InterruptCheck};

use crate::alloc::{try_collect, zeroed};
use crate::convert::args::{
    Argument, Input, Like, REAL, argument, argument_like, asarray, attribute, count, float, is_single, no_number,
    positive, sequence,
};
use crate::convert::array::{FromArray, empty};
use crate::error::{to_py, value_error};
use crate::llm::options;
use crate::sync::gil::{call, check_signals, detach, is_alone};

/// Element count above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 4096;

/// Compute advantages within one group of completions (GRPO, Shao et al. 2024, arXiv:2402.03300).
///
/// The advantage is `(r - mean) / (std + eps)` over the completions of one prompt.
///
/// Args:
///     rewards: (G,), or (G, F) from F reward functions if `weights` is given. NaN or None means
///         that a reward is missing: the mean ignores it, and its advantage is 0. Results are
///         float32 for float32, float16 and bfloat16 rewards, and float64 for any other dtype.
///     ddof: The standard deviation divides by `count - ddof`; PyTorch and TRL use 1.
///     eps: Number that is added to the standard deviation; TRL adds 1e-4.
///     scale: "group" divides by the standard deviation of the group, and "batch" by that of all
///         rewards of the call. "none" does not divide (Dr. GRPO, RLOO).
///     leave_one_out: True to subtract the mean of the other rewards of the group (RLOO,
///         arXiv:2402.14740) instead of the group's mean.
///     weights: Weights (F,) of the reward functions. The reward is the weighted sum, without the
///         functions that returned NaN.
///
/// Returns:
///     Advantages (G,). All are 0 if the rewards differ by at most two rounding errors or by
///     1e-162, or if there are at most `ddof` rewards.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, the absolute value of a reward exceeds 1e140 (1e37 in
///         float32), `scale` is unknown, or `eps` is negative.
///
/// >>> import numpy as np, rlox
/// >>> rlox.compute_group_advantages([0.0, 1.0, 1.0, 0.0])
/// array([-1.,  1.,  1., -1.])
/// >>> rlox.compute_group_advantages([0.0, 3.0, np.nan], scale="none", leave_one_out=True)
/// array([-3.,  3.,  0.])
#[pyfunction]
#[pyo3(signature = (rewards, *, ddof=None, eps=0.0, scale="group", leave_one_out=false, weights=None))]
pub(crate) fn compute_group_advantages<'py>(
    rewards: &Bound<'py, PyAny>,
    ddof: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::eps)] eps: f64,
    #[pyo3(from_py_with = options::scale)] scale: &str,
    #[pyo3(from_py_with = options::leave_one_out)] leave_one_out: bool,
    weights: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    run(rewards, None, options(ddof, eps, scale, leave_one_out)?, weights)
}

/// Compute advantages of several groups of completions (GRPO, Shao et al. 2024, arXiv:2402.03300).
///
/// Args:
///     rewards: (num_groups * group_size,) with the completions of each prompt contiguous, or
///         (num_groups, group_size), or (num_groups * group_size, F) if `weights` is given. NaN or
///         None means that a reward is missing: the mean ignores it, and its advantage is 0.
///         Results are float32 for float32, float16 and bfloat16 rewards, and float64 for any other
///         dtype.
///     group_size: Number of completions per prompt.
///     ddof: The standard deviation divides by `count - ddof`; PyTorch and TRL use 1.
///     eps: Number that is added to the standard deviation; TRL adds 1e-4.
///     scale: "group" divides by the standard deviation of the group, and "batch" by that of all
///         rewards of the call. "none" does not divide (Dr. GRPO, RLOO).
///     leave_one_out: True to subtract the mean of the other rewards of the group (RLOO,
///         arXiv:2402.14740) instead of the group's mean.
///     weights: Weights (F,) of the reward functions. The reward is the weighted sum, without the
///         functions that returned NaN.
///
/// Returns:
///     One advantage per completion, of the shape of `rewards` without F. All advantages of a group
///     are 0 if its rewards differ by at most two rounding errors or by 1e-162, or if there are at
///     most `ddof` rewards.
///
/// Raises:
///     TypeError: An array is not numeric.
///     ValueError: Shapes do not match, the absolute value of a reward exceeds 1e140 (1e37 in
///         float32), `scale` is unknown, or `eps` is negative.
///
/// >>> import rlox
/// >>> rlox.compute_batch_group_advantages([0.0, 1.0, 5.0, 9.0, 2.0, 2.0], 2)
/// array([-1.,  1., -1.,  1.,  0.,  0.])
#[pyfunction]
#[pyo3(signature = (rewards, group_size, *, ddof=None, eps=0.0, scale="group", leave_one_out=false, weights=None))]
pub(crate) fn compute_batch_group_advantages<'py>(
    rewards: &Bound<'py, PyAny>,
    group_size: &Bound<'py, PyAny>,
    ddof: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::eps)] eps: f64,
    #[pyo3(from_py_with = options::scale)] scale: &str,
    #[pyo3(from_py_with = options::leave_one_out)] leave_one_out: bool,
    weights: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let group_size = positive("group_size", group_size)?;
    run(rewards, Some(group_size), options(ddof, eps, scale, leave_one_out)?, weights)
}

fn options(ddof: Option<&Bound<'_, PyAny>>, eps: f64, scale: &str, leave_one_out: bool) -> PyResult<GroupOptions> {
    let scale = match scale {
        "group" => RewardScale::Group,
        "batch" => RewardScale::Batch,
        "none" => RewardScale::None,
        _ => return Err(value_error("scale", "\"group\", \"batch\" or \"none\"", &format!("{scale:?}"), "correct it")),
    };
    let ddof = ddof.map_or(Ok(0), |ddof| count("ddof", ddof))?;
    Ok(GroupOptions { ddof, eps, scale, leave_one_out })
}

fn run<'py>(
    rewards: &Bound<'py, PyAny>,
    group_size: Option<usize>,
    options: GroupOptions,
    weights: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let rewards = &with_nan_for_none(asarray("rewards", rewards)?)?;
    if is_single(rewards.as_any()) {
        run_as::<f32>(rewards, group_size, options, weights)
    } else {
        run_as::<f64>(rewards, group_size, options, weights)
    }
}

/// Converts an object array with None, for missing rewards, to float64 with NaN.
fn with_nan_for_none<'py>(rewards: Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if rewards.dtype().kind() != b'O' {
        return Ok(rewards);
    }
    let py = rewards.py();
    let items = sequence(&call(&attribute(&rewards, "ravel")?, &PyTuple::empty(py), None)?)?;
    let number = |item: Bound<'py, PyAny>| {
        let number = if item.is_none() { Ok(f64::NAN) } else { float(&item) };
        number.map_err(|error| no_number("rewards", "numbers or None", &item, error))
    };
    let poll_and_convert = |(index, item): (usize, Bound<'py, PyAny>)| {
        if index.is_multiple_of(InterruptCheck::POLL_ELEMENTS) {
            check_signals(py)?;
        }
        number(item)
    };
    let numbers = try_collect(items.len(), items.iter().enumerate().map(poll_and_convert))?;
    Ok(numbers.into_pyarray(py).reshape(rewards.shape())?.as_untyped().clone())
}

fn run_as<'py, T: Float + FromArray + Pod>(
    rewards: &Bound<'py, PyUntypedArray>,
    group_size: Option<usize>,
    options: GroupOptions,
    weights: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = rewards.py();
    let like = Like { name: "one row of rewards", array: rewards, skipped: 1 };
    let rewards = argument::<T>("rewards", rewards, &REAL)?;
    let weights = weights.map(|x| argument_like::<f64>("weights", x, &REAL, Some(like))).transpose()?;

    result_shape(rewards.shape(), group_size, weights.as_ref().map(Argument::shape))?;
    let long = rewards.len() > DETACH_ABOVE_ELEMENTS
        || weights.as_ref().is_some_and(|weights| weights.len() > DETACH_ABOVE_ELEMENTS);
    let hold = !long && is_alone(py);
    let rewards = rewards.read(hold)?;
    let weights = weights.map(|weights| weights.read(hold)).transpose()?;
    let shape = result_shape(rewards.shape(), group_size, weights.as_ref().map(Input::shape))?;
    let mut advantages = empty::<T>(py, shape)?;
    let (rewards, weights) = (rewards.slice(), weights.as_ref().map(Input::slice));
    let out = advantages.slice();
    let group_size = group_size.unwrap_or(out.len());
    let mut work = || match weights {
        None => batch(rewards, group_size, &options, out),
        Some(weights) => {
            let (mut combined, mut advantages_f64) = (zeroed(out.len())?, zeroed(out.len())?);
            combine_rewards(rewards, weights, &mut combined)?;
            batch(&combined, group_size, &options, &mut advantages_f64)?;
            out.iter_mut().zip(advantages_f64).for_each(|(out, x)| *out = T::from_f64(x));
            Ok(())
        }
    };
    if long { detach(py, work) } else { work() }.map_err(to_py)?;
    Ok(advantages.into_array().into_any())
}

/// Returns the shape of the result, which has one number per completion.
fn result_shape<'a>(
    rewards: &'a [usize],
    group_size: Option<usize>,
    weights: Option<&[usize]>,
) -> PyResult<&'a [usize]> {
    if let Some(weights) = weights
        && weights.len() != 1
    {
        return Err(value_error(
            "weights",
            "shape (F,)",
            &format!("shape {weights:?}"),
            "pass one weight per column of rewards",
        ));
    }
    let fits = match (rewards, weights) {
        ([_], None) => true,
        ([_, group_len], None) => Some(*group_len) == group_size,
        ([_, functions], Some(weights)) => weights == [*functions],
        _ => false,
    };
    if fits {
        return Ok(if weights.is_some() { &rewards[..1] } else { rewards });
    }
    let expected = match (weights, group_size) {
        (Some(weights), _) => format!("shape (N, {}), one column per weight", weights[0]),
        (None, None) => "shape (G,), or weights= for (G, F)".into(),
        (None, Some(size)) => format!("a flat array or shape (num_groups, {size}), or weights= for (N, F)"),
    };
    Err(value_error("rewards", &expected, &format!("shape {rewards:?}"), "reshape it"))
}
