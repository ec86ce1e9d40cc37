//! What is refused of rows that are pushed.

use super::layout::Part;
use crate::rollout::finite::first_not_finite;
use crate::{DType, Error, FieldData, Result, Watch};

/// What a next observation's part is called.
pub(super) fn next_name(part: &Part) -> String {
    format!("next_{}", part.name)
}

/// Checks the dtypes and lengths of so many rows of each part.
pub(super) fn check_parts(name: &'static str, parts: &[Part], data: &[FieldData<'_>], rows: usize) -> Result<()> {
    if parts.len() != data.len() {
        let (expected, got) = (format!("{} parts", parts.len()), data.len().to_string());
        return Err(Error::shape(name, expected, got, "pass each part of the layout"));
    }
    for (part, data) in parts.iter().zip(data) {
        let named = || if name == "next_obs" { next_name(part) } else { part.name.clone() };
        if data.dtype() != part.dtype {
            let (expected, got) = (format!("{:?}", part.dtype), format!("{:?}", data.dtype()));
            return Err(Error::space(named(), expected, got, "pass the dtype that the buffer was made for"));
        }
        let wanted = rows.saturating_mul(part.width());
        if data.len() != wanted {
            let (expected, got) = (format!("{rows} rows of {:?}", part.shape), format!("{} elements", data.len()));
            return Err(Error::shape(named(), expected, got, "pass whole rows"));
        }
    }
    Ok(())
}

/// Checks rows of `width` numbers.
pub(super) fn check_finite(name: &str, data: FieldData<'_>, width: usize, watch: &mut Watch) -> Result<()> {
    check_finite_as(|| name.to_owned(), data, width, watch)
}

/// The same of what is named only if it is wrong.
pub(super) fn check_finite_as(
    name: impl Fn() -> String,
    data: FieldData<'_>,
    width: usize,
    watch: &mut Watch,
) -> Result<()> {
    if matches!(data.dtype(), DType::I64 | DType::U8 | DType::Bool) {
        return Ok(());
    }
    let wrong = |(row, got): (usize, f64)| {
        Error::not_finite(name(), "finite numbers", got.to_string(), "find out where it comes from").at_row(row)
    };
    if data.len() <= Watch::STRETCH {
        return first_not_finite(data, width).map_or(Ok(()), |found| Err(wrong(found)));
    }
    let width = width.max(1);
    let together = (Watch::STRETCH / width).max(1);
    for first in (0..data.len() / width).step_by(together) {
        watch.check()?;
        let from = first * width;
        let piece = data.part(from, (together * width).min(data.len() - from));
        if let Some((row, got)) = first_not_finite(piece, width) {
            return Err(wrong((first + row, got)));
        }
    }
    Ok(())
}
