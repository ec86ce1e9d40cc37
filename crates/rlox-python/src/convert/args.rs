//! Array arguments of calls: conversion of Python objects to slices.
//!
//! A call processes its array arguments in two phases. First, [`argument`] *converts* each Python
//! object to a NumPy array. The conversion may run Python code, such as the object's method
//! `__array__`. Second, [`Argument::read`] *reads* each array: it returns the elements as a slice.
//! Reading runs no Python code. All arguments are converted before the first one is read. Otherwise
//! the method `__array__` of one argument could change an array that was already read.

use std::ops::Range;

use numpy::{
    Element, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};
use rlox_core::interrupt::InterruptCheck;

use crate::alloc::try_map;
use crate::convert::array::{FieldMemory, FromArray, expect_axes, new_dict, no_copy, slice};
pub(crate) use crate::convert::scalar::{
    attribute, count, float, has, index, instance, integer, item, item_of, no_number, number, numbers, positive,
    sequence, shape, short_repr, size, sizes, switch, switches, text,
};
use crate::convert::scalar::{call_standard, text_of};
use crate::error::{is_ordinary, replace_ordinary_error, to_py, type_error, value_error};
use crate::sync::borrow::{Elements, Kind, Output, OutputDefect, Reading, typed};
use crate::sync::gil::{call, check_signals, times_others_ran};

/// Element count above which a conversion releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 8192;
/// Number of list items that are converted between two checks for Ctrl-C.
const LIST_CHUNK_LEN: usize = 1 << 18;

// Cached because looking up a function takes as long as a short call.
static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static MASKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static GETATTR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn dtype_of(array: &Bound<'_, PyUntypedArray>) -> String {
    format!("dtype {}", text_of(array.dtype().as_any(), "str"))
}

/// Checks that an array has the shape `[first, *row]`, with one row per environment.
pub(crate) fn expect_shape(argument: &str, got: &[usize], first: usize, row: &[usize]) -> PyResult<()> {
    expect_shape_or(argument, got, (first, row), "pass one row per environment")
}

/// Checks that an array has the shape `[first, *row]`; any other shape is an error with hint `fix`.
///
/// Comparing the numbers of elements alone would accept transposed arrays.
pub(crate) fn expect_shape_or(
    argument: &str,
    got: &[usize],
    (first, row): (usize, &[usize]),
    fix: &str,
) -> PyResult<()> {
    // Compared in place, because a function call takes longer than comparing a few numbers.
    if got.split_first().is_some_and(|(n, got_row)| *n == first && got_row.iter().eq(row)) {
        return Ok(());
    }
    let expected: Vec<_> = std::iter::once(&first).chain(row).collect();
    let got = format!("shape {got:?}");
    Err(value_error(argument, &format!("shape {expected:?}"), &got, fix))
}

/// Kinds of numbers (`dtype.kind` of NumPy) that an argument accepts, and their name in errors.
pub(crate) struct Kinds {
    accepted: &'static str,
    described: &'static str,
}

pub(crate) const REAL: Kinds = Kinds { accepted: "biuf", described: "real numbers" };
pub(crate) const INTEGER: Kinds = Kinds { accepted: "iu", described: "integers" };
pub(crate) const FLAG: Kinds = Kinds { accepted: "b", described: "booleans" };

/// Returns true for float32 and float16 arrays, whose results are float32.
pub(crate) fn is_single(numbers: &Bound<'_, PyAny>) -> bool {
    let half = |array: &Bound<'_, PyUntypedArray>| (array.dtype().kind(), array.dtype().itemsize()) == (b'f', 2);
    typed::<f32>(numbers).is_some() || numbers.cast::<PyUntypedArray>().is_ok_and(half)
}

/// Returns the `repr` of the first integer of a list that does not fit into int64.
fn too_large(object: &Bound<'_, PyAny>, array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<String>> {
    if object.cast::<PyUntypedArray>().is_ok() || !matches!(array.dtype().kind(), b'f' | b'O') {
        return Ok(None);
    }
    let py = object.py();
    let items = call(
        &py.import("numpy")?.getattr("array")?,
        &PyTuple::new(py, [object, "O".into_pyobject(py)?.as_any()])?,
        None,
    )?;
    let items = sequence(&call(&attribute(&items, "ravel")?, &PyTuple::empty(py), None)?)?;
    let large = |item: &Bound<'_, PyAny>| item.is_exact_instance_of::<PyInt>() && item.extract::<i64>().is_err();
    Ok(items.iter().find(large).map(|item| short_repr(&item)))
}

/// Copies an array to a new C-contiguous, aligned array of another dtype, by NumPy's casting rules.
///
/// Large arrays are copied in chunks, so that Ctrl-C interrupts the copy.
fn in_dtype<'py>(
    array: &Bound<'py, PyUntypedArray>,
    dtype: &Bound<'py, PyArrayDescr>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    let numpy = py.import("numpy")?;
    let shape = attribute(array, "shape")?;
    let converted_array = call(&numpy.getattr("empty")?, &PyTuple::new(py, [&shape, dtype.as_any()])?, None)?;
    let (copy, kwargs) = (numpy.getattr("copyto")?, new_dict(py)?);
    kwargs.set_item("casting", "unsafe")?;
    // A copy, because signal handlers that run during the copy may change the array's shape.
    let shape = array.shape().to_vec();
    copy_in_chunks(&copy, &kwargs, [&converted_array, array.as_any()], &shape)?;
    Ok(converted_array.cast_into()?)
}

/// Copies an array in chunks that take a few milliseconds each, and checks for Ctrl-C in between.
fn copy_in_chunks<'py>(
    copy: &Bound<'py, PyAny>,
    kwargs: &Bound<'py, PyDict>,
    [target, source]: [&Bound<'py, PyAny>; 2],
    shape: &[usize],
) -> PyResult<()> {
    let py = copy.py();
    let (rows, row) = shape.split_first().map_or((1, shape), |(rows, row)| (*rows, row));
    if shape.iter().product::<usize>() <= InterruptCheck::POLL_ELEMENTS / 4 {
        return call(copy, &PyTuple::new(py, [target, source])?, Some(kwargs)).map(drop);
    }
    if rows == 1 {
        let first = |array: &Bound<'py, PyAny>| call_standard("operator", "getitem", &(array, 0).into_pyobject(py)?);
        return copy_in_chunks(copy, kwargs, [&first(target)?, &first(source)?], row);
    }
    for range in [0..rows / 2, rows / 2..rows] {
        let shape = [&[range.len()], row].concat();
        copy_in_chunks(copy, kwargs, [&slice(target, &range)?, &slice(source, &range)?], &shape)?;
        check_signals(py)?;
    }
    Ok(())
}

/// Array argument that is converted but not yet read; see the module documentation.
pub(crate) struct Argument<'py, T> {
    name: &'static str,
    found: Found<'py, T>,
}

enum Found<'py, T> {
    /// An array of `T`, and the result of [`times_others_ran`] at its conversion.
    Typed(Bound<'py, PyArrayDyn<T>>, usize),
    /// An array of another dtype, whose elements [`Argument::read`] converts.
    Other(Bound<'py, PyUntypedArray>),
    /// Converted elements of a long array of another dtype, and their shape.
    Converted(Vec<T>, Vec<usize>),
}

/// Required shape of an argument: the shape of the array `name` without its first `skipped` axes.
///
/// That array is not yet read, so Python code may still change its shape.
#[derive(Clone, Copy)]
pub(crate) struct Like<'a, 'py> {
    pub(crate) name: &'a str,
    pub(crate) array: &'a Bound<'py, PyUntypedArray>,
    pub(crate) skipped: usize,
}

impl Like<'_, '_> {
    /// Returns an error for a large array of another shape, to avoid its slow conversion.
    fn check_large(&self, name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        if array.len() <= DETACH_ABOVE_ELEMENTS {
            return Ok(());
        }
        expect_like(name, array.shape(), self.name, self.array.shape().get(self.skipped..).unwrap_or_default())
    }
}

/// Checks that a shape equals the shape of another argument.
pub(crate) fn expect_like(name: &str, got: &[usize], reference: &str, shape: &[usize]) -> PyResult<()> {
    if got == shape {
        return Ok(());
    }
    let expected = format!("the shape of {reference}, {shape:?}");
    Err(value_error(name, &expected, &format!("{got:?}"), "pass arrays of the same shape"))
}

/// Converts an object to an array whose elements have one of these kinds. May run Python code.
///
/// Raises `TypeError` for elements of other kinds and `ValueError` for ragged input.
pub(crate) fn argument<'py, T: FromArray>(
    name: &'static str,
    object: &Bound<'py, PyAny>,
    kinds: &Kinds,
) -> PyResult<Argument<'py, T>> {
    argument_like(name, object, kinds, None)
}

/// Converts an argument that must have the shape `like`. May run Python code.
///
/// The shape is checked here only for large arrays, before their slow conversion. The caller checks
/// the shapes of all arrays after reading them.
pub(crate) fn argument_like<'py, T: FromArray>(
    name: &'static str,
    object: &Bound<'py, PyAny>,
    kinds: &Kinds,
    like: Option<Like<'_, 'py>>,
) -> PyResult<Argument<'py, T>> {
    if let Some(array) = typed::<T>(object)
        && array.is_aligned()
        && !is_subclassed(object)
    {
        expect_axes(name, array.as_untyped())?;
        return Ok(Argument { name, found: Found::Typed(array.clone(), times_others_ran()) });
    }
    let mut array = asarray(name, object)?;
    like.map_or(Ok(()), |like| like.check_large(name, &array))?;
    let py = object.py();
    let dtype = array.dtype();
    let kind = char::from(dtype.kind());
    let is_mismatch = !kinds.accepted.contains(kind);
    // NumPy makes a float array of an empty list, whatever the argument's kind.
    if is_mismatch && (array.len() > 0 || !matches!(kind, 'b' | 'i' | 'u' | 'f')) {
        if let (Some((least, most)), Some(number)) = (T::RANGE, too_large(object, &array)?) {
            return Err(value_error(name, &format!("integers in [{least}, {most}]"), &number, "correct it"));
        }
        let expected = format!("an array of {}", kinds.described);
        return Err(type_error(name, &expected, &dtype_of(&array), "convert it first"));
    }
    let half_or_long = kind == 'f' && !matches!(dtype.itemsize(), 4 | 8);
    // uint64 and float64 keep their width, so that `T::outside` checks the original numbers. In a
    // narrower cast, NumPy wraps unsigned integers silently and warns about floats that overflow.
    let unsigned = kind == 'u' && dtype.itemsize() == 8;
    let double = kind == 'f' && dtype.itemsize() >= 8 && !is_mismatch;
    if is_mismatch || half_or_long || dtype.is_native_byteorder() == Some(false) || !array.is_aligned() {
        let wanted = match (unsigned, double) {
            (true, _) => numpy::dtype::<u64>(py),
            (_, true) => numpy::dtype::<f64>(py),
            _ => numpy::dtype::<T>(py),
        };
        array = in_dtype(&array, &wanted).map_err(|error| no_copy(name, &array, error))?;
    }
    let outside = T::outside(&array).map_err(|error| no_copy(name, &array, error))?;
    if let Some(number) = outside {
        let (least, most) = T::RANGE.unwrap_or_default();
        let expected = format!("integers in [{least}, {most}]");
        return Err(value_error(name, &expected, &number.to_string(), "correct it"));
    }
    let found = if let Some(array) = typed::<T>(array.as_any()) {
        Found::Typed(array.clone(), times_others_ran())
    } else if array.len() > DETACH_ABOVE_ELEMENTS
        && let Some(numbers) = T::from_array(&array, true).transpose().map_err(|error| no_copy(name, &array, error))?
    {
        Found::Converted(numbers, array.shape().to_vec())
    } else {
        Found::Other(array)
    };
    Ok(Argument { name, found })
}

impl<'py, T: FromArray> Argument<'py, T> {
    /// Returns the elements in C order. Runs no Python code.
    ///
    /// C-contiguous arrays of the dtype `T` are borrowed, and all other arrays are copied. Boolean
    /// arrays are borrowed only with `hold`.
    ///
    /// With `hold`, the borrow is not registered as a [`Guard`](crate::sync::borrow::Guard),
    /// because registering takes as long as a short call. A call may pass `hold` if it keeps the
    /// GIL, writes to no array of a caller, and started while no other call ran without the GIL.
    ///
    /// Raises `ValueError` for an array that another call writes to.
    pub(crate) fn read(self, hold: bool) -> PyResult<Input<'py, T>> {
        let read_copy = |array: &Bound<'py, PyUntypedArray>| {
            // If Python code has changed the array's dtype since the conversion, the array is not
            // converted again, because the conversion could run Python code.
            let got = "an array that changed while the arguments were read";
            let changed = || value_error(self.name, "an array of numbers", got, "pass a copy");
            expect_axes(self.name, array)?;
            let numbers = T::from_array(array, !hold && array.len() > DETACH_ABOVE_ELEMENTS).ok_or_else(changed)?;
            let numbers = numbers.map_err(|error| no_copy(self.name, array, error))?;
            Ok(Input::Owned(numbers, array.shape().to_vec()))
        };
        let array = match self.found {
            Found::Converted(numbers, shape) => return Ok(Input::Owned(numbers, shape)),
            Found::Other(array) => return read_copy(&array),
            Found::Typed(array, times) => {
                if times != times_others_ran() {
                    if typed::<T>(array.as_any()).is_none() {
                        return read_copy(array.as_untyped());
                    }
                    expect_axes(self.name, array.as_untyped())?;
                }
                array
            }
        };
        if hold {
            return Elements::try_new(&array)
                .map_or_else(|| read_copy(array.as_untyped()), |elements| Ok(Input::Borrowed(elements)));
        }
        // Python may write any byte to booleans while the GIL is released.
        if !array.is_c_contiguous() || T::KIND == b'b' {
            return read_copy(array.as_untyped());
        }
        let busy = |user: String| value_error(self.name, "an array that no other call uses", &user, "pass a copy");
        let guarded = Reading::try_new(self.name, &array)?.map_err(busy)?;
        guarded.map_or_else(|| read_copy(array.as_untyped()), |elements| Ok(Input::Guarded(elements)))
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the address and number of the elements that reading borrows.
    ///
    /// Elements that reading copies have the range (null, 0). An array that is not C-contiguous has
    /// the whole address space.
    pub(crate) fn memory(&self) -> (*const T, usize) {
        match &self.found {
            Found::Typed(array, _) if !array.is_c_contiguous() => (std::ptr::null(), usize::MAX),
            Found::Typed(array, _) => (array.data(), array.len()),
            Found::Other(_) | Found::Converted(..) => (std::ptr::null(), 0),
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        match &self.found {
            Found::Typed(array, _) => array.shape(),
            Found::Other(array) => array.shape(),
            Found::Converted(_, shape) => shape,
        }
    }

    /// Returns the length of the first axis; 0 for an array without axes.
    pub(crate) fn rows(&self) -> usize {
        self.shape().first().copied().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.shape().iter().product()
    }
}

/// Elements of an argument that was read.
pub(crate) enum Input<'py, T: Element> {
    /// Borrowed elements, with a guard that prevents writes by other calls of this module.
    Guarded(Reading<'py, T>),
    /// Borrowed elements without a guard, as `hold` requests in [`Argument::read`].
    Borrowed(Elements<'py, T>),
    /// Copied elements and their shape.
    Owned(Vec<T>, Vec<usize>),
}

impl<T: Element + 'static> Input<'_, T> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Guarded(reading) => reading.elements().shape(),
            Self::Borrowed(elements) => elements.shape(),
            Self::Owned(_, shape) => shape,
        }
    }

    pub(crate) fn slice(&self) -> &[T] {
        match self {
            Self::Guarded(reading) => reading.elements().slice(),
            Self::Borrowed(elements) => elements.slice(),
            Self::Owned(numbers, _) => numbers,
        }
    }
}

impl<T: Element + Copy + 'static> Input<'_, T> {
    /// Returns the input, or a copy of it if it overlaps a buffer field that the call writes to.
    pub(crate) fn copy_if_overlapping(self, fields: &[(String, FieldMemory)]) -> PyResult<Self> {
        let is_inside = fields.iter().any(|(_, memory)| self.overlaps(&memory.range()));
        if is_inside { self.into_copy() } else { Ok(self) }
    }

    /// Returns true if any element is within these addresses.
    fn overlaps(&self, addresses: &Range<usize>) -> bool {
        let addresses_here = self.slice().as_ptr_range();
        addresses_here.start.addr() < addresses.end && addresses.start < addresses_here.end.addr()
    }

    fn into_copy(self) -> PyResult<Self> {
        Ok(Self::Owned(try_map(self.slice(), |x| x).map_err(to_py)?, self.shape().to_vec()))
    }
}

/// Borrows a caller's array for writing in place.
///
/// The array must have exactly the dtype `T`, be C-contiguous and writeable, and share no memory
/// with another argument or call.
pub(crate) fn output<'py, T: Kind>(argument: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Output<'py, T>> {
    // Formatted only for an error, because formatting a dtype takes longer than a short call.
    let dtype = || text_of(numpy::dtype::<T>(object.py()).as_any(), "str");
    let wanted = || format!("a writeable C-contiguous array of {}", dtype());
    let fix = "allocate it with np.empty of that dtype";
    let Some(array) = typed::<T>(object) else {
        let got = object.cast::<PyUntypedArray>().map(dtype_of);
        return Err(type_error(
            argument,
            &wanted(),
            &got.unwrap_or_else(|_| short_repr(object.get_type().as_any())),
            fix,
        ));
    };
    Output::try_new(argument, array)?.map_err(|defect| match defect {
        OutputDefect::ReadOnly => value_error(argument, &wanted(), "a read-only array", fix),
        OutputDefect::NotContiguous => {
            value_error(argument, &wanted(), "a strided, transposed or misaligned array", fix)
        }
        OutputDefect::InUse(user) => {
            value_error(argument, "an array that nothing else uses", &user, "pass a separate array")
        }
    })
}

/// Converts an object with `np.asarray`; arrays are returned unchanged. May run Python code.
///
/// A bfloat16 tensor becomes float32, because NumPy has no bfloat16. The result has at most as many
/// axes as [`expect_axes`] accepts.
pub(crate) fn asarray<'py>(argument: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        expect_axes(argument, array)?;
        expect_unmasked(argument, object)?;
        return Ok(array.clone());
    }
    if let Some(array) = from_tensor(object)? {
        expect_axes(argument, &array)?;
        return Ok(array);
    }
    let py = object.py();
    let convert = ASARRAY.import(py, "numpy", "asarray")?;
    let result = match object.cast_exact::<PyList>() {
        Ok(list) if list.len() > LIST_CHUNK_LEN => from_list(convert, list),
        _ => call(convert, &PyTuple::new(py, [object])?, None),
    };
    let result = result.or_else(|error| call(convert, &PyTuple::new(py, [in_float32(object, error)?])?, None));
    let array = result.map_err(|error| {
        let got = format!("{} ({})", short_repr(object.get_type().as_any()), short_repr(error.value(py).as_any()));
        // Tensors that require gradients or are on another device fail here.
        let fix = if has(object, "detach").unwrap_or(false) {
            "pass it as .detach().cpu()"
        } else {
            "pass an array, a list or another input of np.asarray"
        };
        replace_ordinary_error(py, error, || value_error(argument, "an array", &got, fix))
    })?;
    let array = array.cast_into::<PyUntypedArray>()?;
    expect_axes(argument, &array)?;
    Ok(array)
}

/// Returns true if an array is an instance of a subclass of `numpy.ndarray`, as masked arrays are.
pub(crate) fn is_subclassed(array: &Bound<'_, PyAny>) -> bool {
    !array.is_exact_instance_of::<PyUntypedArray>()
}

/// Returns an error for arrays with masked elements, because no code in this module handles masks.
fn expect_unmasked(argument: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = array.py();
    // The object's type is checked, because Python code can override `__class__`.
    if !is_subclassed(array) || !array.get_type().is_subclass(MASKED.import(py, "numpy.ma", "MaskedArray")?)? {
        return Ok(());
    }
    let is_masked = call(&py.import("numpy.ma")?.getattr("is_masked")?, &PyTuple::new(py, [array])?, None);
    if is_masked?.is_truthy()? {
        let fix = "fill the masked elements first, for example with .filled(0)";
        return Err(type_error(argument, "an array without a mask", "an array with masked elements", fix));
    }
    Ok(())
}

/// Returns the result of a tensor's `numpy()` method, which takes half the time of `np.asarray`.
///
/// Returns `None` if the object has no such method or the method raises.
fn from_tensor<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
    let py = object.py();
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyFloat>() {
        return Ok(None);
    }
    let arguments = (object, intern!(py, "numpy"), py.None()).into_pyobject(py)?;
    let method = call(GETATTR.import(py, "builtins", "getattr")?, &arguments, None)?;
    if method.is_none() {
        return Ok(None);
    }
    match call(&method, &PyTuple::empty(py), None) {
        Ok(array) => Ok(array.cast_into().ok()),
        Err(error) if is_ordinary(py, &error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Converts a long list with `np.asarray` in chunks, so that Ctrl-C interrupts the conversion.
fn from_list<'py>(convert: &Bound<'py, PyAny>, list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    let (py, parts) = (list.py(), PyList::empty(list.py()));
    for start in (0..list.len()).step_by(LIST_CHUNK_LEN) {
        parts.append(call(convert, &PyTuple::new(py, [list.get_slice(start, start + LIST_CHUNK_LEN)])?, None)?)?;
        check_signals(py)?;
    }
    call(&py.import("numpy")?.getattr("concatenate")?, &PyTuple::new(py, [parts])?, None)
}

/// Returns a bfloat16 tensor as float32, without loss; returns `error` for other objects.
fn in_float32<'py>(object: &Bound<'py, PyAny>, error: PyErr) -> PyResult<Bound<'py, PyAny>> {
    let is_type_error = error.is_instance_of::<PyTypeError>(object.py()) && has(object, "dtype")?;
    if is_type_error && text_of(&attribute(object, "dtype")?, "str") == "torch.bfloat16" {
        return call(&attribute(object, "float")?, &PyTuple::empty(object.py()), None);
    }
    Err(error)
}
