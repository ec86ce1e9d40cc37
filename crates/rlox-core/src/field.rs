//! Fields: named arrays of rows, with any row shape and element type. The columns of buffers are
//! fields.

use crate::{Error, Result, alloc};

/// Element type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 64-bit signed integer.
    I64,
    /// Unsigned 8-bit integer, as in images.
    U8,
    /// Boolean.
    Bool,
}

impl DType {
    /// Returns the size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::U8 | Self::Bool => 1,
        }
    }
}

/// Borrowed elements of a field.
///
/// Booleans are stored as `u8`, and every byte except 0 means true. The type is not `bool`, which
/// allows only the bytes 0 and 1, because other programs may write other bytes into shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the dtypes")]
pub enum FieldData<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    Bool(&'a [u8]),
}

/// Expands to a `match` on the element type with the same expression in every arm.
macro_rules! each {
    ($kind:ident, $elements:expr, $data:ident => $result:expr) => {
        match $elements {
            $kind::F32($data) => $result,
            $kind::F64($data) => $result,
            $kind::I64($data) => $result,
            $kind::U8($data) | $kind::Bool($data) => $result,
        }
    };
}

macro_rules! from_slices {
    ($($number:ty: $kind:ident),*) => {
        $(
            impl<'a> From<&'a [$number]> for FieldData<'a> {
                fn from(data: &'a [$number]) -> Self {
                    Self::$kind(data)
                }
            }
        )*
    };
}
from_slices!(f32: F32, f64: F64, i64: I64, u8: U8);

impl<'a> From<&'a [bool]> for FieldData<'a> {
    fn from(data: &'a [bool]) -> Self {
        Self::Bool(bytemuck::cast_slice(data))
    }
}

impl<'a> FieldData<'a> {
    /// Returns the number of elements.
    ///
    /// ```
    /// use rlox_core::field::FieldData;
    ///
    /// assert_eq!(FieldData::from(&[1_u8, 2, 3][..]).len(), 3);
    /// ```
    pub fn len(&self) -> usize {
        each!(Self, self, data => data.len())
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I64(_) => DType::I64,
            Self::U8(_) => DType::U8,
            Self::Bool(_) => DType::Bool,
        }
    }

    /// Returns the `len` elements from index `from` on.
    pub(crate) fn slice(self, from: usize, len: usize) -> Self {
        match self {
            Self::F32(data) => Self::F32(&data[from..][..len]),
            Self::F64(data) => Self::F64(&data[from..][..len]),
            Self::I64(data) => Self::I64(&data[from..][..len]),
            Self::U8(data) => Self::U8(&data[from..][..len]),
            Self::Bool(data) => Self::Bool(&data[from..][..len]),
        }
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        each!(Self, self, data => bytemuck::cast_slice(data))
    }
}

/// Mutably borrowed elements of a field.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants are the dtypes")]
pub enum FieldMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I64(&'a mut [i64]),
    U8(&'a mut [u8]),
    Bool(&'a mut [u8]),
}

impl<'a> FieldMut<'a> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        each!(Self, self, data => data.len())
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I64(_) => DType::I64,
            Self::U8(_) => DType::U8,
            Self::Bool(_) => DType::Bool,
        }
    }

    pub(crate) fn into_bytes(self) -> &'a mut [u8] {
        each!(Self, self, data => bytemuck::cast_slice_mut(data))
    }
}

/// Maximum number of axes of a row. Every version of NumPy supports this number.
pub(crate) const AXES: usize = 32;

/// Owned elements of a field.
#[derive(Clone, Debug, PartialEq)]
enum Elements {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    Bool(Vec<u8>),
}

/// A named array of rows of equal shape, in row-major order.
///
/// ```
/// use rlox_core::field::{DType, Field};
///
/// let frames = Field::new("frames", 10, &[84, 84], DType::U8)?;
/// assert_eq!((frames.width(), frames.rows()), (84 * 84, 10));
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    name: String,
    shape: Vec<usize>,
    rows: usize,
    data: Elements,
}

impl Field {
    /// Creates a field of `rows` rows whose elements are 0 or false.
    ///
    /// # Errors
    /// [`Error::Memory`] if the allocation fails. [`Error::Shape`] if a row has no elements or more
    /// than 32 axes.
    pub fn new(name: impl Into<String>, rows: usize, shape: &[usize], dtype: DType) -> Result<Self> {
        let name = name.into();
        if shape.len() > AXES {
            let (expected, got) = (format!("at most {AXES} axes"), shape.len().to_string());
            return Err(Error::shape(name, expected, got, "flatten some axes"));
        }
        if shape.contains(&0) {
            return Err(Error::shape(name, "a row with elements", format!("{shape:?}"), "drop the empty dimension"));
        }
        let len = shape.iter().try_fold(rows, |len, n| len.checked_mul(*n)).unwrap_or(usize::MAX);
        let data = match dtype {
            DType::F32 => Elements::F32(alloc::zeroed("rows", len)?),
            DType::F64 => Elements::F64(alloc::zeroed("rows", len)?),
            DType::I64 => Elements::I64(alloc::zeroed("rows", len)?),
            DType::U8 => Elements::U8(alloc::zeroed("rows", len)?),
            DType::Bool => Elements::Bool(alloc::zeroed("rows", len)?),
        };
        let mut axes = alloc::with_capacity("rows", shape.len())?;
        axes.extend_from_slice(shape);
        Ok(Self { name, shape: axes, rows, data })
    }

    /// Returns the name of the field.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shape of one row.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements of a row.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.data().dtype()
    }

    /// Reserves capacity for `rows` more rows.
    pub(crate) fn reserve(&mut self, rows: usize) -> Result<()> {
        let len = rows.saturating_mul(self.width());
        each!(Elements, &mut self.data, data => try_reserve(data, len))
    }

    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        each!(Elements, &mut self.data, data => data.clear());
    }

    /// Changes the number of rows. The elements of new rows are 0 or false.
    pub(crate) fn set_rows(&mut self, rows: usize) -> Result<()> {
        self.reserve(rows.saturating_sub(self.rows))?;
        let len = rows * self.width();
        match &mut self.data {
            Elements::F32(data) => data.resize(len, 0.0),
            Elements::F64(data) => data.resize(len, 0.0),
            Elements::I64(data) => data.resize(len, 0),
            Elements::U8(data) | Elements::Bool(data) => data.resize(len, 0),
        }
        self.rows = rows;
        Ok(())
    }

    /// Appends a row. Does nothing if the element types of the row and the field differ.
    pub(crate) fn push(&mut self, row: FieldData<'_>) {
        match (&mut self.data, row) {
            (Elements::F32(data), FieldData::F32(row)) => data.extend_from_slice(row),
            (Elements::F64(data), FieldData::F64(row)) => data.extend_from_slice(row),
            (Elements::I64(data), FieldData::I64(row)) => data.extend_from_slice(row),
            (Elements::U8(data), FieldData::U8(row)) | (Elements::Bool(data), FieldData::Bool(row)) => {
                data.extend_from_slice(row);
            }
            _ => return,
        }
        self.rows += 1;
    }

    /// Overwrites the elements from index `from` on. Does nothing if the element types of `data`
    /// and the field differ.
    pub(crate) fn write_at(&mut self, from: usize, data: FieldData<'_>) {
        if self.dtype() != data.dtype() {
            return;
        }
        let (from, new) = (from * self.dtype().size(), data.bytes());
        let bytes: &mut [u8] = each!(Elements, &mut self.data, data => bytemuck::cast_slice_mut(data));
        bytes[from..from + new.len()].copy_from_slice(new);
    }

    /// Returns the elements.
    pub fn data(&self) -> FieldData<'_> {
        match &self.data {
            Elements::F32(data) => FieldData::F32(data),
            Elements::F64(data) => FieldData::F64(data),
            Elements::I64(data) => FieldData::I64(data),
            Elements::U8(data) => FieldData::U8(data),
            Elements::Bool(data) => FieldData::Bool(data),
        }
    }

    /// Returns the mutable elements.
    pub fn data_mut(&mut self) -> FieldMut<'_> {
        match &mut self.data {
            Elements::F32(data) => FieldMut::F32(data),
            Elements::F64(data) => FieldMut::F64(data),
            Elements::I64(data) => FieldMut::I64(data),
            Elements::U8(data) => FieldMut::U8(data),
            Elements::Bool(data) => FieldMut::Bool(data),
        }
    }
}

fn try_reserve<T>(elements: &mut Vec<T>, more: usize) -> Result<()> {
    if elements.capacity() - elements.len() >= more {
        return Ok(());
    }
    alloc::check_available("rows", more, size_of::<T>())?;
    alloc::try_reserve("rows", elements, more)
}
