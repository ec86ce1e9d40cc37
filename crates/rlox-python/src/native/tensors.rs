//! Named tensors as dicts of arrays, and back.

use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_nn::NamedTensors;

use crate::argument::{REAL, shown};
use crate::array::new_dict;
use crate::error::{to_py, type_error};
use crate::recycling::mapped;
use crate::settings::from_items;

pub(super) fn dict(py: Python<'_>, tensors: NamedTensors) -> PyResult<Bound<'_, PyDict>> {
    let dict = new_dict(py)?;
    for tensor in tensors {
        let array = tensor.data.into_pyarray(py).reshape(tensor.shape)?;
        dict.set_item(tensor.name, array)?;
    }
    Ok(dict)
}

pub(super) fn named(argument: &'static str, given: &Bound<'_, PyAny>) -> PyResult<NamedTensors> {
    let Ok(dict) = given.cast::<PyDict>() else {
        return Err(type_error(
            argument,
            "a dict of names and arrays",
            &shown(given),
            "pass what a policy of this shape gave",
        ));
    };
    let mut tensors = NamedTensors::default();
    from_items(Some(dict), 2, |(name, array)| {
        let wrong = |_| type_error(argument, "names as keys", &shown(&name), "pass a dict of names and arrays");
        let name: String = name.extract().map_err(wrong)?;
        let array = crate::argument::argument::<f32>(argument, &array, &REAL)?.read(false)?;
        let data = mapped(array.slice(), |x| x).map_err(to_py)?;
        tensors.push(name, array.shape(), data).map_err(to_py)
    })?;
    Ok(tensors)
}
