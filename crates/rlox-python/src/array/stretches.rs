//! Conversion of arrays' elements, of long ones part by part.

use numpy::ndarray::{ArrayView, Axis, IxDyn};
use pyo3::prelude::*;
use rlox_core::{Result, Watch};

use crate::detach::detached;
use crate::error::to_py;
use crate::recycling::reserved;

/// What is made of the elements, in C order. Where it is `long`, Ctrl-C ends it.
pub(super) fn mapped<S, T>(
    py: Python<'_>,
    view: ArrayView<'_, S, IxDyn>,
    long: bool,
    number: impl Fn(S) -> T + Sync,
) -> PyResult<Vec<T>>
where
    S: Copy + Sync,
    T: Send,
{
    let mut numbers = reserved(view.len()).map_err(to_py)?;
    // Rows one by one: to step through all axes for each element would take many times as long.
    let mut extend = |view: ArrayView<'_, S, IxDyn>| match (view.as_slice(), view.ndim()) {
        (Some(slice), _) => numbers.extend(slice.iter().map(|x| number(*x))),
        (None, 0) => numbers.extend(view.iter().map(|x| number(*x))),
        (None, axes) => view.lanes(Axis(axes - 1)).into_iter().for_each(|row| match row.as_slice() {
            Some(slice) => numbers.extend(slice.iter().map(|x| number(*x))),
            None => numbers.extend(row.iter().map(|x| number(*x))),
        }),
    };
    if long {
        detached(py, || in_stretches(view, &mut Watch::default(), &mut extend)).map_err(to_py)?;
    } else {
        extend(view);
    }
    Ok(numbers)
}

/// The first of the elements, in C order, for which it is true. Ctrl-C ends it where there are many.
pub(super) fn found<S: Copy + Sync + Send>(
    py: Python<'_>,
    view: ArrayView<'_, S, IxDyn>,
    is: impl Fn(S) -> bool + Sync,
) -> PyResult<Option<S>> {
    if view.len() <= Watch::STRETCH / 64 {
        return Ok(view.iter().find(|x| is(**x)).copied());
    }
    // Who looks converts them next: where a copy is out of the question, so is the look.
    drop(reserved::<f32>(view.len()).map_err(to_py)?);
    let mut first = None;
    let mut look = |view: ArrayView<'_, S, IxDyn>| first = first.or_else(|| view.iter().find(|x| is(**x)).copied());
    detached(py, || in_stretches(view, &mut Watch::default(), &mut look)).map_err(to_py)?;
    Ok(first)
}

/// Parts of an array, one after the other in C order.
fn in_stretches<S>(
    view: ArrayView<'_, S, IxDyn>,
    watch: &mut Watch,
    take: &mut impl FnMut(ArrayView<'_, S, IxDyn>),
) -> Result<()> {
    if view.len() <= Watch::STRETCH {
        take(view);
        return watch.check();
    }
    // Halves of the first axis that has any keep the order.
    let axis = view.shape().iter().position(|n| *n > 1).unwrap_or(0);
    let half = view.len_of(Axis(axis)) / 2;
    let (first, rest) = view.split_at(Axis(axis), half);
    in_stretches(first, watch, take)?;
    in_stretches(rest, watch, take)
}
