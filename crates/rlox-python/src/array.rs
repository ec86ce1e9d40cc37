//! NumPy arrays in and out. The only file of this crate that holds `unsafe`.
#![expect(unsafe_code, reason = "views of Rust memory whose owner NumPy keeps alive")]

use bytemuck::{Pod, Zeroable};
use numpy::ndarray::{ArrayViewD, IxDyn};
use numpy::{
    Element, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Float, flags_from_numbers};

use crate::error::{to_py, type_error, value_error};
use crate::recycling::{self, Scratch};

/// A count: an integer that is not negative. What no machine could hold is a `MemoryError` here already.
pub(crate) fn count(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let Ok(index) = object.call_method0("__index__") else {
        return Err(type_error(argument, "an integer", &shown(object), "pass a whole number"));
    };
    if index.lt(0)? {
        return Err(value_error(argument, "zero or a positive integer", &shown(&index), "correct it"));
    }
    index.extract().map_err(|_| {
        PyMemoryError::new_err(format!("{argument}: expected less than 2**64, got {}; ask for less", shown(&index)))
    })
}

/// Checks an array's whole shape, so that nothing transposed passes for its length's sake.
pub(crate) fn expect_shape(argument: &str, got: &[usize], first: usize, rest: &[usize]) -> PyResult<()> {
    if got.split_first().is_some_and(|(n, tail)| *n == first && tail == rest) {
        return Ok(());
    }
    let expected: Vec<_> = std::iter::once(&first).chain(rest).collect();
    let got = format!("shape {got:?}");
    Err(value_error(argument, &format!("shape {expected:?}"), &got, "pass one row per environment"))
}

/// An object as its `repr`, cut short, for a message.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    let text = object.repr().map_or_else(|_| object.get_type().to_string(), |text| text.to_string());
    if text.chars().count() <= 200 { text } else { text.chars().take(200).chain("...".chars()).collect() }
}

/// A shape: a sequence of counts, or a single count.
pub(crate) fn shape(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    if object.hasattr("__index__")? {
        return Ok(vec![count(argument, object)?]);
    }
    let items =
        object.try_iter().map_err(|_| type_error(argument, "a shape", &shown(object), "pass a tuple of integers"))?;
    items.map(|item| count(argument, &item?)).collect()
}

/// Which kinds of numbers (NumPy's `dtype.kind`) an argument takes, and how to say so.
pub(crate) struct Kinds {
    accepted: &'static str,
    described: &'static str,
}

pub(crate) const REAL: Kinds = Kinds { accepted: "biuf", described: "real numbers" };
pub(crate) const INTEGER: Kinds = Kinds { accepted: "iu", described: "integers" };
pub(crate) const FLAG: Kinds = Kinds { accepted: "b", described: "booleans" };

/// An input array: C-contiguous, of dtype `T`, borrowed where it was that already and converted once where not.
pub(crate) enum Input<'py, T: Element> {
    /// Guarded against other calls of this module that would write to it.
    Guarded(PyReadonlyArrayDyn<'py, T>),
    /// For calls that write to no array of the caller's and keep the GIL: nobody else can write meanwhile.
    Held(Bound<'py, PyArrayDyn<T>>),
}

impl<T: Element> Input<'_, T> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Guarded(array) => array.shape(),
            Self::Held(array) => array.shape(),
        }
    }

    /// The elements. `None` never happens: the constructors made sure of the layout.
    pub(crate) fn slice(&self) -> &[T] {
        match self {
            Self::Guarded(array) => array.as_slice().unwrap_or(&[]),
            // SAFETY: as said at `held`.
            Self::Held(array) => unsafe { array.as_slice() }.unwrap_or(&[]),
        }
    }
}

/// What `np.asarray` makes of an object; arrays stay what they are.
pub(crate) fn asarray<'py>(argument: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let py = object.py();
    let array = py.import("numpy")?.call_method1("asarray", (object,)).map_err(|error| {
        if error.is_instance_of::<PyMemoryError>(py) {
            return error;
        }
        let got = format!("{} ({error})", object.get_type());
        value_error(argument, "an array", &got, "pass what np.asarray takes")
    })?;
    Ok(array.cast_into::<PyUntypedArray>()?)
}

/// Takes whatever `np.asarray` takes as an array of `T`.
///
/// Raises `TypeError` for other kinds of elements, `ValueError` for ragged input or an array that is being written.
pub(crate) fn input<'py, T: Element>(
    argument: &str,
    object: &Bound<'py, PyAny>,
    kinds: &Kinds,
) -> PyResult<Input<'py, T>> {
    if let Ok(array) = object.cast::<PyArrayDyn<T>>()
        && let Ok(array) = array.try_readonly()
        && array.is_c_contiguous()
        && array.as_slice().is_ok()
    {
        return Ok(Input::Guarded(array));
    }
    let py = object.py();
    let untyped = asarray(argument, object)?;
    let dtype = untyped.dtype();
    let kind = char::from(dtype.kind());
    if !kinds.accepted.contains(kind) && untyped.len() > 0 {
        let got = format!("dtype {dtype}");
        return Err(type_error(argument, &format!("an array of {}", kinds.described), &got, "convert it first"));
    }
    let keywords = PyDict::new(py);
    keywords.set_item("order", "C")?;
    keywords.set_item("subok", false)?;
    let convert = || untyped.call_method("astype", (numpy::dtype::<T>(py),), Some(&keywords));
    let converted = if kind == 'f' && dtype.itemsize() > size_of::<T>() {
        // What overflows becomes infinite and is refused where it matters; NumPy shall not warn about it besides.
        let silent = PyDict::new(py);
        silent.set_item("all", "ignore")?;
        let errstate = py.import("numpy")?.call_method("errstate", (), Some(&silent))?;
        errstate.call_method0("__enter__")?;
        let converted = convert();
        errstate.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        converted
    } else {
        convert()
    }?;
    let converted = converted.cast_into::<PyArrayDyn<T>>()?;
    let readonly = converted
        .try_readonly()
        .map_err(|e| value_error(argument, "a readable array", &e.to_string(), "pass a copy"))?;
    Ok(Input::Guarded(readonly))
}

/// As [`input`], without the guard, whose book-keeping costs as much as a short call's work.
///
/// The caller must keep the GIL while the result lives, and write to no array but new ones.
pub(crate) fn held<'py, T: Element>(
    argument: &str,
    object: &Bound<'py, PyAny>,
    kinds: &Kinds,
) -> PyResult<Input<'py, T>> {
    match object.cast::<PyArrayDyn<T>>() {
        // SAFETY: only the layout is looked at.
        Ok(array) if array.is_c_contiguous() && unsafe { array.as_slice() }.is_ok() => Ok(Input::Held(array.clone())),
        _ => input(argument, object, kinds),
    }
}

/// How an argument is read: [`input`] or [`held`].
pub(crate) type Reader<'py, T> = fn(&str, &Bound<'py, PyAny>, &Kinds) -> PyResult<Input<'py, T>>;

/// Flags as booleans.
pub(crate) enum FlagInput<'py> {
    Borrowed(Input<'py, bool>),
    Converted(Scratch, Vec<usize>),
}

impl FlagInput<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Borrowed(array) => array.shape(),
            Self::Converted(_, shape) => shape,
        }
    }

    pub(crate) fn slice(&self) -> &[bool] {
        match self {
            Self::Borrowed(array) => array.slice(),
            Self::Converted(flags, _) => flags.slice(),
        }
    }
}

/// Takes boolean arrays as they are, and numbers if they are 0 or 1.
pub(crate) fn flags<'py>(argument: &'static str, object: &Bound<'py, PyAny>, hold: bool) -> PyResult<FlagInput<'py>> {
    if object.cast::<PyArrayDyn<bool>>().is_ok() {
        let read: Reader<'py, bool> = if hold { held } else { input };
        return Ok(FlagInput::Borrowed(read(argument, object, &FLAG)?));
    }
    // The conversion copies at once, with the GIL held and before anything is written.
    if object.cast::<PyArrayDyn<f32>>().is_ok() {
        return converted(argument, &held::<f32>(argument, object, &REAL)?);
    }
    converted(argument, &held::<f64>(argument, object, &REAL)?)
}

fn converted<'py, T: Element + Float>(argument: &'static str, numbers: &Input<'_, T>) -> PyResult<FlagInput<'py>> {
    let mut flags = Scratch::take(numbers.slice().len());
    flags_from_numbers(argument, numbers.slice(), flags.slice_mut()).map_err(to_py)?;
    Ok(FlagInput::Converted(flags, numbers.shape().to_vec()))
}

/// A caller's array to be written in place: exactly dtype `T`, C-contiguous, writeable.
pub(crate) fn output<'py, T: Element>(
    argument: &str,
    object: &Bound<'py, PyAny>,
) -> PyResult<PyReadwriteArrayDyn<'py, T>> {
    // Built only when something is wrong: naming a dtype costs more than a step.
    let wanted = || format!("a writeable C-contiguous array of {}", numpy::dtype::<T>(object.py()));
    let fix = "allocate it with np.empty of that dtype";
    let Ok(array) = object.cast::<PyArrayDyn<T>>() else {
        let dtype = object.getattr("dtype").map(|dtype| format!("dtype {dtype}"));
        return Err(type_error(argument, &wanted(), &dtype.unwrap_or_else(|_| object.get_type().to_string()), fix));
    };
    let mut array = array.try_readwrite().map_err(|error| value_error(argument, &wanted(), &error.to_string(), fix))?;
    if !array.is_c_contiguous() || array.as_slice_mut().is_err() {
        return Err(value_error(argument, &wanted(), "one that is strided, transposed or misaligned", fix));
    }
    Ok(array)
}

/// The elements of an [`output`] array.
pub(crate) fn out_slice<'a, T: Element>(array: &'a mut PyReadwriteArrayDyn<'_, T>) -> &'a mut [T] {
    array.as_slice_mut().unwrap_or(&mut [])
}

/// A new array for a result, which nobody else knows before [`New::into_array`].
pub(crate) struct New<'py, T: Element>(Bound<'py, PyArrayDyn<T>>);

impl<'py, T: Element> New<'py, T> {
    pub(crate) fn slice(&mut self) -> &mut [T] {
        // SAFETY: the array is new, C-contiguous and known to nobody else; its elements are initialised.
        unsafe { self.0.as_slice_mut() }.unwrap_or(&mut [])
    }

    pub(crate) fn into_array(self) -> Bound<'py, PyArrayDyn<T>> {
        self.0
    }
}

/// A new array of zeros.
pub(crate) fn fresh<'py, T: Element + Zeroable>(py: Python<'py>, shape: &[usize]) -> New<'py, T> {
    // NumPy's own zeros release the GIL for a moment, in which the end of the interpreter may catch this thread.
    // SAFETY: the array is new and C-contiguous, nobody else knows it, and zeros are valid for `T`.
    unsafe {
        let array = PyArrayDyn::<T>::new(py, IxDyn(shape), false);
        array.data().write_bytes(0, array.len());
        New(array)
    }
}

/// A new array for a result that overwrites every element: large ones in memory that an earlier result gave back, as
/// fetching fresh pages from the system costs several times what a kernel does to them.
pub(crate) fn result<'py, T: Element + Pod>(py: Python<'py>, shape: &[usize]) -> PyResult<New<'py, T>> {
    let len: usize = shape.iter().product();
    if len * size_of::<T>() < recycling::SMALLEST {
        return Ok(fresh(py, shape));
    }
    let owner = Bound::new(py, recycling::Block::take(len * size_of::<T>()))?;
    let data: &[T] = bytemuck::cast_slice(owner.get().words());
    Ok(New(view(&data[..len], shape, owner.clone().into_any())?))
}

/// A writeable NumPy view of `data`, without a copy.
///
/// `data` must be memory that `owner` owns and neither moves nor frees while it lives: the fields of a rollout buffer
/// and the blocks of results, which are allocated once. NumPy holds a reference to `owner` as long as the view lives.
pub(crate) fn view<'py, T: Element>(
    data: &[T],
    shape: &[usize],
    owner: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let array = ArrayViewD::from_shape(IxDyn(shape), data)
        .map_err(|e| value_error("shape", "as many elements as the field has", &e.to_string(), "report this"))?;
    // SAFETY: the caller's promise above keeps the memory valid; Rust writes to it only inside calls on `owner`, under
    // its lock, and holds no reference into it between calls.
    Ok(unsafe { PyArrayDyn::borrow_from_array(&array, owner) })
}
