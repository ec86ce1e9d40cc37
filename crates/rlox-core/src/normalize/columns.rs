//! Columns of statistics, and how they follow rows: whatever is long looks for interruptions; the few rows of a step do not,
//! as a look costs as much as they do.

use std::ops::Range;

use crate::Result;
use crate::interrupt::Watch;

/// Calls `add` with each row, or with parts of long ones, and the columns that they are of.
pub(super) fn sweep<T>(
    rows: &[T],
    dim: usize,
    watch: &mut Watch,
    mut add: impl FnMut(Range<usize>, &[T]),
) -> Result<()> {
    for (i, stretch) in rows.chunks((Watch::STRETCH / dim).max(1) * dim).enumerate() {
        if i > 0 {
            watch.check()?;
        }
        for row in stretch.chunks_exact(dim) {
            for (i, part) in row.chunks(Watch::STRETCH).enumerate() {
                if i > 0 {
                    watch.check()?;
                }
                add(i * Watch::STRETCH..i * Watch::STRETCH + part.len(), part);
            }
        }
    }
    Ok(())
}

/// Puts what is made of each number in its place.
pub(super) fn change(column: &mut [f64], watch: &mut Watch, make: impl Fn(f64) -> f64) -> Result<()> {
    for (i, stretch) in column.chunks_mut(Watch::STRETCH).enumerate() {
        if i > 0 {
            watch.check()?;
        }
        for x in stretch {
            *x = make(*x);
        }
    }
    Ok(())
}

/// Chan et al.'s update of (mean, variance, count) by a batch's, put in the batch's place.
pub(super) fn merge(
    (mean, var, count): (&[f64], &[f64], f64),
    (batch_mean, batch_var, batch_count): (&mut [f64], &mut [f64], f64),
    watch: &mut Watch,
) -> Result<()> {
    const STRETCH: usize = Watch::STRETCH / 4;
    let total = count + batch_count;
    let batch = batch_mean.chunks_mut(STRETCH).zip(batch_var.chunks_mut(STRETCH));
    let parts = mean.chunks(STRETCH).zip(var.chunks(STRETCH)).zip(batch);
    for (i, ((mean, var), (batch_mean, batch_var))) in parts.enumerate() {
        if i > 0 {
            watch.check()?;
        }
        for ((mean, var), (batch_mean, batch_var)) in mean.iter().zip(var).zip(batch_mean.iter_mut().zip(batch_var)) {
            let delta = *batch_mean - mean;
            let squares = var * count + *batch_var * batch_count + delta * delta * count * batch_count / total;
            *batch_mean = mean + delta * batch_count / total;
            *batch_var = squares / total;
        }
    }
    Ok(())
}
