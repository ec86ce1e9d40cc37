//! Conversion of stored observations to network inputs.

use rlox_core::{
    Error, Result,
    field::{Field, FieldData},
};

use crate::alloc::try_reserve;

/// Conversion of a stored observation to the inputs of a network.
///
/// ```
/// use rlox_core::field::FieldData;
/// use rlox_nn::train::Encoding;
///
/// let encoding = Encoding::OneHot(vec![2, 3]);
/// let mut inputs = Vec::new();
/// encoding.encode(FieldData::I64(&[1, 0]), [0].into_iter(), &mut inputs)?;
/// assert_eq!(inputs, [0.0, 1.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Observations of this many numbers, whose values do not change.
    Numbers(usize),
    /// One-hot encoding of integers; component i is in `[0, counts[i])`. Discrete and MultiDiscrete
    /// observations that start at 0 have this form.
    OneHot(Vec<usize>),
}

impl Encoding {
    /// Returns the number of components of a stored observation.
    pub fn stored(&self) -> usize {
        match self {
            Self::Numbers(dim) => *dim,
            Self::OneHot(counts) => counts.len(),
        }
    }

    /// Returns the number of network inputs per observation.
    pub fn inputs(&self) -> usize {
        match self {
            Self::Numbers(dim) => *dim,
            Self::OneHot(counts) => counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count)),
        }
    }

    /// Checks that each row of the field `obs` has [`Encoding::stored`] components.
    pub(super) fn check(&self, obs: &Field) -> Result<()> {
        if obs.width() == self.stored() {
            return Ok(());
        }
        let (expected, got) = (format!("rows of {} numbers for {self:?}", self.stored()), format!("{}", obs.width()));
        Err(Error::shape("obs", expected, got, "create the policy for this observation space"))
    }

    /// Writes the network inputs for `rows` of `data`, row by row, and replaces the content of
    /// `out`.
    ///
    /// # Errors
    /// [`Error::Space`] for a wrong data type, or for an integer outside its range.
    /// [`Error::Shape`] for a row past the end of `data`. [`Error::Memory`] if the inputs do not
    /// fit into memory.
    pub fn encode(
        &self,
        data: FieldData<'_>,
        rows: impl ExactSizeIterator<Item = usize>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        out.clear();
        try_reserve("obs", out, rows.len().saturating_mul(self.inputs()))?;
        self.append(data, rows, out)
    }

    /// Appends the network inputs for `rows` of `data` to `out`, which has the capacity for them.
    pub(super) fn append(
        &self,
        data: FieldData<'_>,
        rows: impl Iterator<Item = usize>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        match (self, data) {
            (Self::OneHot(counts), FieldData::I64(data)) => one_hot(counts, data, rows, out),
            (Self::Numbers(dim), FieldData::F32(data)) => {
                for row in rows {
                    out.extend_from_slice(row_of(data, row, *dim)?);
                }
                Ok(())
            }
            (Self::Numbers(dim), FieldData::U8(data) | FieldData::Bool(data)) => {
                for row in rows {
                    out.extend(row_of(data, row, *dim)?.iter().map(|x| f32::from(*x)));
                }
                Ok(())
            }
            (_, other) => {
                let (expected, got) = (format!("observations for {self:?}"), format!("{:?}", other.dtype()));
                Err(Error::space("obs", expected, got, "create the policy for this observation space"))
            }
        }
    }
}

/// Returns row `row` of `data`, in which each row has `width` elements.
fn row_of<T>(data: &[T], row: usize, width: usize) -> Result<&[T]> {
    let missing = || {
        let (expected, got) = (format!("more than {row} rows of {width} numbers"), format!("{} numbers", data.len()));
        Error::shape("obs", expected, got, "pass complete observations")
    };
    let start = row.checked_mul(width).filter(|_| width > 0).ok_or_else(missing)?;
    data.get(start..).and_then(|rest| rest.get(..width)).ok_or_else(missing)
}

fn one_hot(counts: &[usize], data: &[i64], rows: impl Iterator<Item = usize>, out: &mut Vec<f32>) -> Result<()> {
    for row in rows {
        for (column, (x, count)) in row_of(data, row, counts.len())?.iter().zip(counts).enumerate() {
            let Some(index) = usize::try_from(*x).ok().filter(|at| at < count) else {
                let (expected, hint) = (format!("integers in [0, {count})"), "pass observations of the space");
                let error = Error::space("obs", expected, x.to_string(), hint).at_row(row);
                return Err(if counts.len() > 1 { error.at_column(column) } else { error });
            };
            let start = out.len();
            out.resize(start + count, 0.0);
            out[start + index] = 1.0;
        }
    }
    Ok(())
}
