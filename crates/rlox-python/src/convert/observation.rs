//! Observation arguments, converted to the dtype of a buffer.

use numpy::{Element, IntoPyArray, PyArrayDescr, PyArrayDescrMethods, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};
use rlox_core::{
    Result,
    field::{DType, FieldData},
    interrupt::InterruptCheck,
};

use crate::alloc::with_capacity;
use crate::convert::args::{Argument, FLAG, INTEGER, Input, REAL, argument, short_repr, text};
use crate::convert::array::FieldMemory;
use crate::convert::scalar::text_of;
use crate::error::{replace_ordinary_error, type_error, value_error};
use crate::sync::gil::call;

/// Maximum length of a string that names a dtype.
const MAX_DTYPE_NAME_LEN: usize = 16;

/// Returns true if an object specifies a dtype: a name, a Python type or a `numpy.dtype`.
pub(crate) fn is_dtype(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyString>() || object.is_instance_of::<PyType>() || object.is_instance_of::<PyArrayDescr>()
}

/// Returns the dtype that `numpy.dtype` makes of an object. May run Python code.
pub(crate) fn dtype_of(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = object.py();
    if !is_dtype(object) {
        return Err(type_error(argument, "a dtype", &short_repr(object), "pass a name, a NumPy type or a numpy.dtype"));
    }
    let expected = "float32, float64, int64, uint8 or bool";
    let unsupported = |got: &str| value_error(argument, expected, got, "choose one of these dtypes");
    if object.is_instance_of::<PyString>() {
        let name = text(argument, object)?;
        // NumPy accepts strings with other characters as abbreviations of dtypes.
        if name.len() > MAX_DTYPE_NAME_LEN || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unsupported(&short_repr(object)));
        }
    }
    let descr = call(&py.import("numpy")?.getattr("dtype")?, &PyTuple::new(py, [object])?, None);
    let descr = descr.map_err(|error| replace_ordinary_error(py, error, || unsupported(&text_of(object, "str"))))?;
    let descr = descr.cast_into::<PyArrayDescr>()?;
    let dtypes = [
        (DType::F32, numpy::dtype::<f32>(py)),
        (DType::F64, numpy::dtype::<f64>(py)),
        (DType::I64, numpy::dtype::<i64>(py)),
        (DType::U8, numpy::dtype::<u8>(py)),
        (DType::Bool, numpy::dtype::<bool>(py)),
    ];
    let found = dtypes.iter().find(|(_, dtype)| dtype.is_equiv_to(&descr));
    found.map(|(dtype, _)| *dtype).ok_or_else(|| unsupported(&text_of(object, "str")))
}

/// Observation argument that is converted but not yet read; see [`crate::convert::args`].
pub(crate) enum ObsArgument<'py> {
    F32(Argument<'py, f32>),
    F64(Argument<'py, f64>),
    I64(Argument<'py, i64>),
    U8(Argument<'py, u8>),
    Bool(Argument<'py, bool>),
}

impl<'py> ObsArgument<'py> {
    /// Converts the argument `name` to numbers of the kind of `dtype`. May run Python code.
    ///
    /// For uint8, integers must be in [0, 255].
    pub(crate) fn new(name: &'static str, object: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32(argument(name, object, &REAL)?),
            DType::F64 => Self::F64(argument(name, object, &REAL)?),
            DType::I64 => Self::I64(argument(name, object, &INTEGER)?),
            DType::U8 => Self::U8(argument(name, object, &INTEGER)?),
            DType::Bool => Self::Bool(argument(name, object, &FLAG)?),
        })
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(obs) => obs.len(),
            Self::F64(obs) => obs.len(),
            Self::I64(obs) => obs.len(),
            Self::U8(obs) => obs.len(),
            Self::Bool(obs) => obs.len(),
        }
    }

    /// Reads the observations as [`Argument::read`] does.
    pub(crate) fn read(self, hold: bool) -> PyResult<ObsInput<'py>> {
        Ok(match self {
            Self::F32(obs) => ObsInput::F32(obs.read(hold)?),
            Self::F64(obs) => ObsInput::F64(obs.read(hold)?),
            Self::I64(obs) => ObsInput::I64(obs.read(hold)?),
            Self::U8(obs) => ObsInput::U8(obs.read(hold)?),
            Self::Bool(obs) => ObsInput::Bool(obs.read(hold)?),
        })
    }

    /// Reads the observations before they are stored in a buffer with these fields.
    ///
    /// Arrays that overlap the memory of a field are copied, because the call writes to it.
    pub(crate) fn read_for(self, fields: &[(String, FieldMemory)]) -> PyResult<ObsInput<'py>> {
        Ok(match self {
            Self::F32(obs) => ObsInput::F32(obs.read(false)?.copy_if_overlapping(fields)?),
            Self::F64(obs) => ObsInput::F64(obs.read(false)?.copy_if_overlapping(fields)?),
            Self::I64(obs) => ObsInput::I64(obs.read(false)?.copy_if_overlapping(fields)?),
            Self::U8(obs) => ObsInput::U8(obs.read(false)?.copy_if_overlapping(fields)?),
            Self::Bool(obs) => ObsInput::Bool(obs.read(false)?.copy_if_overlapping(fields)?),
        })
    }
}

/// Elements of an observation argument that was read.
pub(crate) enum ObsInput<'py> {
    F32(Input<'py, f32>),
    F64(Input<'py, f64>),
    I64(Input<'py, i64>),
    U8(Input<'py, u8>),
    Bool(Input<'py, bool>),
}

impl ObsInput<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::F32(obs) => obs.shape(),
            Self::F64(obs) => obs.shape(),
            Self::I64(obs) => obs.shape(),
            Self::U8(obs) => obs.shape(),
            Self::Bool(obs) => obs.shape(),
        }
    }

    pub(crate) fn get(&self) -> FieldData<'_> {
        match self {
            Self::F32(obs) => obs.slice().into(),
            Self::F64(obs) => obs.slice().into(),
            Self::I64(obs) => obs.slice().into(),
            Self::U8(obs) => obs.slice().into(),
            Self::Bool(obs) => obs.slice().into(),
        }
    }
}

/// Copy of a field's elements, for a new NumPy array.
pub(crate) enum Owned {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

impl Owned {
    pub(crate) fn copy_from(data: FieldData<'_>) -> Result<Self> {
        fn each<S: Copy, T>(data: &[S], make: impl Fn(S) -> T) -> Result<Vec<T>> {
            let (mut values, mut interrupt) = (with_capacity(data.len())?, InterruptCheck::default());
            for chunk in data.chunks(InterruptCheck::POLL_ELEMENTS) {
                values.extend(chunk.iter().map(|x| make(*x)));
                interrupt.check()?;
            }
            Ok(values)
        }
        Ok(match data {
            FieldData::F32(data) => Self::F32(each(data, |x| x)?),
            FieldData::F64(data) => Self::F64(each(data, |x| x)?),
            FieldData::I64(data) => Self::I64(each(data, |x| x)?),
            FieldData::U8(data) => Self::U8(each(data, |x| x)?),
            FieldData::Bool(data) => Self::Bool(each(data, |byte| byte != 0)?),
        })
    }

    pub(crate) fn into_array<'py>(self, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        fn array<'py, T: Element>(py: Python<'py>, data: Vec<T>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
            Ok(data.into_pyarray(py).reshape(shape)?.into_any())
        }
        match self {
            Self::F32(data) => array(py, data, shape),
            Self::F64(data) => array(py, data, shape),
            Self::I64(data) => array(py, data, shape),
            Self::U8(data) => array(py, data, shape),
            Self::Bool(data) => array(py, data, shape),
        }
    }
}
