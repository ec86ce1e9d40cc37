//! Arrays that samples are written to: new arrays, or those of the caller's dict `out`.

use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rlox_core::replay::{Column, SampleIndices, TransitionSchema};
use rlox_core::{
    Result,
    field::{DType, FieldMut},
};

use super::source::ReplayBackend;
use crate::alloc::try_map;
use crate::convert::args::{expect_shape_or, item_of, output};
use crate::convert::array::{New, empty, new_dict, zeros};
use crate::error::to_py;
use crate::sync::borrow::{Kind, Output};

/// Array in the result of a sample.
pub(crate) struct OutputColumn {
    /// Key in the result, and the key in the inner dict for a Dict observation.
    name: (Py<PyString>, Option<Py<PyString>>),
    shape: Vec<usize>,
    dtype: DType,
    column: Column,
}

/// Returns the columns of samples from a buffer with a schema.
pub(crate) fn output_columns(py: Python<'_>, schema: &TransitionSchema) -> Vec<OutputColumn> {
    let text = |text: &str| PyString::intern(py, text).unbind();
    let column_of = |(name, shape, dtype, column): (String, Vec<usize>, DType, Column)| {
        let name = match (column, name.split_once('.')) {
            (Column::Obs(_) | Column::NextObs(_), Some((outer, inner))) => (text(outer), Some(text(inner))),
            _ => (text(&name), None),
        };
        OutputColumn { name, shape, dtype, column }
    };
    schema.columns().into_iter().map(column_of).collect()
}

/// Elements of a column to be written without the GIL.
pub(crate) enum Target<'a> {
    Numbers(FieldMut<'a>),
    Flags(&'a mut [bool]),
}

impl Target<'_> {
    /// Copies a column of the sampled transitions.
    pub(crate) fn write(
        self,
        sample_indices: &SampleIndices,
        source: &impl ReplayBackend,
        column: Column,
    ) -> Result<()> {
        match self {
            Self::Numbers(numbers) => source.read(sample_indices, column, numbers),
            Self::Flags(flags) => source.read_bools(sample_indices, column, flags),
        }
    }
}

/// Memory of one column: a new array, or the caller's.
pub(crate) enum OutputMemory<'py> {
    NewF32(New<'py, f32>),
    NewF64(New<'py, f64>),
    NewI64(New<'py, i64>),
    NewU8(New<'py, u8>),
    NewBool(New<'py, bool>),
    F32(Output<'py, f32>),
    F64(Output<'py, f64>),
    I64(Output<'py, i64>),
    U8(Output<'py, u8>),
    Bool(Output<'py, bool>),
}

impl<'py> OutputMemory<'py> {
    pub(crate) fn new(py: Python<'py>, dtype: DType, shape: &[usize]) -> PyResult<Self> {
        Ok(match dtype {
            DType::F32 => Self::NewF32(empty(py, shape)?),
            DType::F64 => Self::NewF64(empty(py, shape)?),
            DType::I64 => Self::NewI64(empty(py, shape)?),
            DType::U8 => Self::NewU8(empty(py, shape)?),
            DType::Bool => Self::NewBool(zeros(py, shape)?),
        })
    }

    /// Borrows the caller's array.
    pub(crate) fn from_out(object: &Bound<'py, PyAny>, dtype: DType, shape: &[usize]) -> PyResult<Self> {
        fn array<'py, T: crate::sync::borrow::Kind>(
            object: &Bound<'py, PyAny>,
            shape: &[usize],
        ) -> PyResult<Output<'py, T>> {
            let array = output("out", object)?;
            let (rows, row) = shape.split_first().map_or((0, shape), |(rows, row)| (*rows, row));
            expect_shape_or("out", array.shape(), (rows, row), FIX)?;
            Ok(array)
        }
        Ok(match dtype {
            DType::F32 => Self::F32(array(object, shape)?),
            DType::F64 => Self::F64(array(object, shape)?),
            DType::I64 => Self::I64(array(object, shape)?),
            DType::U8 => Self::U8(array(object, shape)?),
            DType::Bool => Self::Bool(array(object, shape)?),
        })
    }

    /// Returns the elements that the column is written to.
    pub(crate) fn target(&mut self) -> Target<'_> {
        Target::Numbers(match self {
            Self::NewBool(new) => return Target::Flags(new.slice()),
            Self::Bool(array) => return Target::Flags(array.slice()),
            Self::NewF32(new) => FieldMut::F32(new.slice()),
            Self::NewF64(new) => FieldMut::F64(new.slice()),
            Self::NewI64(new) => FieldMut::I64(new.slice()),
            Self::NewU8(new) => FieldMut::U8(new.slice()),
            Self::F32(array) => FieldMut::F32(array.slice()),
            Self::F64(array) => FieldMut::F64(array.slice()),
            Self::I64(array) => FieldMut::I64(array.slice()),
            Self::U8(array) => FieldMut::U8(array.slice()),
        })
    }

    /// Returns the new array; `None` for the caller's array.
    pub(crate) fn into_array(self) -> Option<Bound<'py, PyAny>> {
        match self {
            Self::NewF32(new) => Some(new.into_array().into_any()),
            Self::NewF64(new) => Some(new.into_array().into_any()),
            Self::NewI64(new) => Some(new.into_array().into_any()),
            Self::NewU8(new) => Some(new.into_array().into_any()),
            Self::NewBool(new) => Some(new.into_array().into_any()),
            Self::F32(_) | Self::F64(_) | Self::I64(_) | Self::U8(_) | Self::Bool(_) => None,
        }
    }
}

/// Memory of all columns.
pub(crate) struct OutputArrays<'a, 'py> {
    columns: &'a [OutputColumn],
    memory: Vec<OutputMemory<'py>>,
}

impl<'a, 'py> OutputArrays<'a, 'py> {
    /// Makes new arrays, or borrows those of `out`. All shapes begin with `lead`.
    pub(crate) fn new(
        py: Python<'py>,
        columns: &'a [OutputColumn],
        lead: &[usize],
        out: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let mut memory = Vec::with_capacity(columns.len());
        let mut shape = Vec::with_capacity(8);
        for column in columns {
            shape.clear();
            shape.extend_from_slice(lead);
            shape.extend_from_slice(&column.shape);
            memory.push(match out {
                None => OutputMemory::new(py, column.dtype, &shape)?,
                Some(out) => OutputMemory::from_out(&array_for(out, column)?, column.dtype, &shape)?,
            });
        }
        Ok(Self { columns, memory })
    }

    /// Returns the elements that the columns are written to.
    pub(crate) fn targets(&mut self) -> Vec<(Column, Target<'_>)> {
        self.columns.iter().zip(&mut self.memory).map(|(column, memory)| (column.column, memory.target())).collect()
    }

    /// Returns a dict of the arrays, or `out`.
    pub(crate) fn into_dict(self, py: Python<'py>, out: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyDict>> {
        if let Some(out) = out {
            return Ok(out.clone());
        }
        let dict = new_dict(py)?;
        for (column, memory) in self.columns.iter().zip(self.memory) {
            let Some(array) = memory.into_array() else { continue };
            let (name, key) = &column.name;
            let Some(key) = key else {
                dict.set_item(name, array)?;
                continue;
            };
            let inner = match dict.get_item(name)? {
                Some(inner) => inner.cast_into::<PyDict>()?,
                None => new_dict(py)?,
            };
            inner.set_item(key, array)?;
            dict.set_item(name, inner)?;
        }
        Ok(dict)
    }
}

/// Further array in the result of a sample, `(B,)`: the caller's array, a new array, or none.
pub(crate) struct ExtraOutput<'py, T: Kind> {
    name: &'static str,
    is_requested: bool,
    array: Option<Output<'py, T>>,
}

impl<'py, T: Kind> ExtraOutput<'py, T> {
    pub(crate) fn new(
        name: &'static str,
        is_requested: bool,
        out: Option<&Bound<'py, PyDict>>,
        count: usize,
    ) -> PyResult<Self> {
        let array = out.filter(|_| is_requested).map(|out| {
            let array = output("out", &item_of("out", out.as_any(), name, FIX)?)?;
            expect_shape_or("out", array.shape(), (count, &[]), FIX)?;
            Ok::<_, PyErr>(array)
        });
        Ok(Self { name, is_requested, array: array.transpose()? })
    }

    /// Writes the numbers of the sampled transitions.
    pub(crate) fn write_into<S: Copy>(
        self,
        py: Python<'py>,
        dict: &Bound<'py, PyDict>,
        numbers: &[S],
        number: impl Fn(S) -> T,
    ) -> PyResult<()> {
        match self.array {
            Some(mut array) => array.slice().iter_mut().zip(numbers).for_each(|(to, from)| *to = number(*from)),
            None if self.is_requested => {
                dict.set_item(self.name, try_map(numbers, number).map_err(to_py)?.into_pyarray(py))?;
            }
            None => {}
        }
        Ok(())
    }
}

const FIX: &str = "pass the result of an earlier sample of the same size";

/// Returns the caller's array for a key.
pub(crate) fn at_name<'py>(out: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    item_of("out", out.as_any(), name, FIX)
}

/// Returns the caller's array for a column.
fn array_for<'py>(out: &Bound<'py, PyDict>, column: &OutputColumn) -> PyResult<Bound<'py, PyAny>> {
    let (name, key) = &column.name;
    let text = |name: &Py<PyString>| name.bind(out.py()).to_string();
    let item = item_of("out", out.as_any(), &text(name), FIX)?;
    key.as_ref().map_or(Ok(item.clone()), |part| item_of("out", &item, &text(part), FIX))
}
