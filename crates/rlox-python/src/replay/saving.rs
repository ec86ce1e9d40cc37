//! Conversion of replay buffers to arrays and back, and storage in folders.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::{AnySampler, Replay};
use rlox_core::{
    Error, Pcg64, Result,
    checkpoint::Checkpoint,
    field::{DType, Field, FieldData, FieldMut},
    interrupt::InterruptCheck,
};

use super::buffer::Buffer;
use super::source::ReplayBackend;
use crate::convert::args::{FLAG, INTEGER, Input, REAL, argument, short_repr};
use crate::convert::array::new_dict;
use crate::convert::observation::Owned;
use crate::error::{replace_ordinary_error, to_py, type_error, value_error};
use crate::sync::borrow::{Kind, typed};
use crate::sync::gil::detach;
use crate::sync::interrupt::copy;

/// Name of the array with the state of the buffer's random stream.
const STREAM: &str = "stream";
const FIX: &str = "pass the state() of a buffer with the same constructor arguments";

/// Returns the name of the Python class for buffers with this sampler.
fn class_of(sampler: &AnySampler) -> &'static str {
    match sampler {
        AnySampler::Uniform(_) => "ReplayBuffer",
        AnySampler::Prioritized(_) => "PrioritizedReplayBuffer",
        AnySampler::Hindsight(_) => "HindsightReplayBuffer",
    }
}

impl Buffer {
    /// Returns the content of the buffer as arrays by name.
    pub(super) fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = self.inner.read(py, true, |buffer| {
            let mut fields = buffer.state()?;
            fields.push(self.stream()?);
            Ok(fields)
        })?;
        arrays_of(py, fields)
    }

    /// Restores the content from a dict of arrays.
    pub(super) fn load_state(&self, py: Python<'_>, arrays: &Bound<'_, PyAny>) -> PyResult<()> {
        let (fields, rng) = parse_fields_and_rng(arrays)?;
        self.inner.write(py, true, |buffer| {
            buffer.load_state(&fields)?;
            self.set_stream(rng)
        })
    }

    /// Writes the buffer to a folder.
    pub(super) fn save(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let path = parse_path("path", path)?;
        let checkpoint = self.inner.read(py, true, |buffer| {
            let mut checkpoint = Checkpoint::default();
            buffer.write_to_checkpoint(&mut checkpoint, vec![self.stream()?])?;
            Ok(checkpoint)
        })?;
        detach(py, || checkpoint.write(path)).map_err(to_py)
    }

    /// Reads the buffer in a folder. A buffer of another class is an error.
    pub(super) fn load(py: Python<'_>, path: &Bound<'_, PyAny>, class: &'static str) -> PyResult<Self> {
        let path = parse_path("path", path)?;
        let read = || {
            let checkpoint = Checkpoint::read(path)?;
            let (buffer, mut fields) = Replay::<AnySampler>::from_checkpoint(&checkpoint, &[STREAM])?;
            let rng = rng_in(&mut fields).map_err(|error| checkpoint.damaged("replay", error))?;
            Ok((buffer, rng))
        };
        let (buffer, rng) = detach(py, read).map_err(to_py)?;
        let got = class_of(buffer.sampler());
        if got != class {
            return Err(value_error(
                "path",
                &format!("a {class}"),
                &format!("a {got}"),
                &format!("use rlox.{got}.load"),
            ));
        }
        Ok(Self::from_replay(py, buffer, rng, class))
    }
}

impl<B: ReplayBackend> Buffer<B> {
    /// Returns the state of the buffer's random stream as a field.
    pub(super) fn stream(&self) -> Result<Field> {
        self.rng.enter(|rng| stream_field(rng))
    }
}

/// Returns the path in a str or an os.PathLike.
pub(super) fn parse_path(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    object.extract().map_err(|error| {
        let got = || type_error(argument, "a str or an os.PathLike", &short_repr(object), "pass the path of the file");
        replace_ordinary_error(object.py(), error, got)
    })
}

/// Returns a dict with an array per field.
pub(crate) fn arrays_of(py: Python<'_>, fields: Vec<Field>) -> PyResult<Bound<'_, PyDict>> {
    let dict = new_dict(py)?;
    for field in fields {
        let shape = [&[field.rows()], field.shape()].concat();
        let owned = detach(py, || Owned::copy_from(field.data())).map_err(to_py)?;
        dict.set_item(field.name(), owned.into_array(py, &shape)?)?;
    }
    Ok(dict)
}

/// Converts a dict of arrays to fields and the random stream.
pub(super) fn parse_fields_and_rng(arrays: &Bound<'_, PyAny>) -> PyResult<(Vec<Field>, Pcg64)> {
    let mut fields = fields_of(arrays)?;
    let rng = rng_in(&mut fields).map_err(to_py)?;
    Ok((fields, rng))
}

/// Converts a dict of arrays to fields.
pub(crate) fn fields_of(arrays: &Bound<'_, PyAny>) -> PyResult<Vec<Field>> {
    let Ok(dict) = arrays.cast::<PyDict>() else {
        return Err(type_error("arrays", "a dict of arrays", &short_repr(arrays), FIX));
    };
    // A copy, because reading an array may run Python code that changes the dict.
    let items: Vec<_> = dict.iter().collect();
    let mut fields = Vec::with_capacity(items.len());
    for (name, array) in items {
        let name =
            name.extract::<String>().map_err(|_| type_error("arrays", "strings as keys", &short_repr(&name), FIX))?;
        fields.push(field_of(name, &array)?);
    }
    Ok(fields)
}

/// Returns the state of a random stream as a field.
fn stream_field(rng: &Pcg64) -> Result<Field> {
    let mut field = Field::new(STREAM, Pcg64::STATE_LEN, &[], DType::I64)?;
    if let FieldMut::I64(state) = field.data_mut() {
        state.copy_from_slice(&rng.to_state_array());
    }
    Ok(field)
}

/// Removes the field of the random stream, and returns the stream.
fn rng_in(fields: &mut Vec<Field>) -> Result<Pcg64> {
    let index = fields.iter().position(|field| field.name() == STREAM);
    let mismatch = |expected: &str, got: String| Error::config(format!("arrays[{STREAM:?}]"), expected, got, FIX);
    let Some(field) = index.map(|at| fields.remove(at)) else { return Err(mismatch("an array", "no array".into())) };
    match field.data() {
        FieldData::I64(state) if field.shape().is_empty() => {
            Pcg64::from_state_array(state).map_err(|error| mismatch("the state of a random stream", error.to_string()))
        }
        data => Err(mismatch("6 integers", format!("{} of {:?}", data.len(), data.dtype()))),
    }
}

/// Copies an array into a field.
fn field_of(name: String, array: &Bound<'_, PyAny>) -> PyResult<Field> {
    if typed::<f32>(array).is_some() {
        let read = argument::<f32>("arrays", array, &REAL)?.read(false)?;
        return copy_field(array.py(), name, DType::F32, &read);
    }
    if typed::<f64>(array).is_some() {
        let read = argument::<f64>("arrays", array, &REAL)?.read(false)?;
        return copy_field(array.py(), name, DType::F64, &read);
    }
    if typed::<i64>(array).is_some() {
        let read = argument::<i64>("arrays", array, &INTEGER)?.read(false)?;
        return copy_field(array.py(), name, DType::I64, &read);
    }
    if typed::<u8>(array).is_some() {
        let read = argument::<u8>("arrays", array, &INTEGER)?.read(false)?;
        return copy_field(array.py(), name, DType::U8, &read);
    }
    if typed::<bool>(array).is_some() {
        let read = argument::<bool>("arrays", array, &FLAG)?.read(false)?;
        return copy_field(array.py(), name, DType::Bool, &read);
    }
    let expected = "an array of float32, float64, int64, uint8 or bool";
    Err(value_error(&format!("arrays[{name:?}]"), expected, &short_repr(array), FIX))
}

fn copy_field<T: Kind + Sync>(py: Python<'_>, name: String, dtype: DType, read: &Input<'_, T>) -> PyResult<Field>
where
    for<'a> FieldData<'a>: From<&'a [T]>,
{
    let Some((rows, row)) = read.shape().split_first() else {
        return Err(value_error(
            &format!("arrays[{name:?}]"),
            "an array of at least one axis",
            "an array without axes",
            FIX,
        ));
    };
    let key = format!("arrays[{name:?}]");
    let mut field = Field::new(name, *rows, row, dtype).map_err(|error| match error {
        Error::Shape(mismatch) => value_error(&key, &mismatch.expected, &mismatch.got, FIX),
        other => to_py(other),
    })?;
    let from = read.slice();
    let result = detach(py, || {
        let mut interrupt = InterruptCheck::default();
        match (field.data_mut(), FieldData::from(from)) {
            (FieldMut::F32(to), FieldData::F32(from)) => copy(to, from, &mut interrupt),
            (FieldMut::F64(to), FieldData::F64(from)) => copy(to, from, &mut interrupt),
            (FieldMut::I64(to), FieldData::I64(from)) => copy(to, from, &mut interrupt),
            (FieldMut::U8(to), FieldData::U8(from)) | (FieldMut::Bool(to), FieldData::Bool(from)) => {
                copy(to, from, &mut interrupt)
            }
            _ => Ok(()),
        }
    });
    result.map_err(to_py)?;
    Ok(field)
}
