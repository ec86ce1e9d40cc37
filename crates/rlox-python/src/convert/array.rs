//! NumPy arrays: conversion of elements, new result arrays, views of buffers, and plugin capsules.
#![expect(unsafe_code, reason = "memory shared with NumPy or other modules")]

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use num_traits::AsPrimitive;
use numpy::ndarray::{ArrayView, IxDyn};
use numpy::npyffi::{PY_ARRAY_API, npy_intp};
use numpy::{Element, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use rlox_core::{
    RolloutBuffer,
    field::{DType, FieldMut},
    plugin::EnvPlugin,
};

use crate::alloc;
use crate::error::{memory_error, value_error};
use crate::sync::borrow::{Guard, Kind, base_view, find_element, map_elements, typed};

/// Returns an empty dict, or an error if the allocation fails; PyO3's own constructor panics.
pub(crate) fn new_dict(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: a new reference to a dict, or null with an exception set.
    unsafe { Ok(Bound::from_owned_ptr_or_err(py, ffi::PyDict_New())?.cast_into_unchecked()) }
}

/// Returns `sequence[range]`, or an error if the allocation fails; PyO3's own slices panic.
pub(crate) fn slice<'py>(sequence: &Bound<'py, PyAny>, range: &Range<usize>) -> PyResult<Bound<'py, PyAny>> {
    let (start, end) = (range.start as isize, range.end as isize);
    // SAFETY: a live object; a new reference, or null with an exception set.
    unsafe {
        let slice = ffi::PySequence_GetSlice(sequence.as_ptr(), start, end);
        Bound::from_owned_ptr_or_err(sequence.py(), slice)
    }
}

/// Number type that arrays of other dtypes are converted to, by the rules of Rust's `as`.
pub(crate) trait FromArray: Kind {
    /// Smallest and largest value of `Self`; `None` if no supported dtype has numbers beyond them.
    const RANGE: Option<(i128, i128)>;

    /// Returns the first integer of the array that is outside of `RANGE`.
    fn outside(array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<i128>>;

    /// Converts the elements of an array with any strides to a vector in C order.
    ///
    /// Returns `None` if the dtype is not supported or the array is misaligned. The GIL is released
    /// only if `long` is true.
    fn from_array(array: &Bound<'_, PyUntypedArray>, long: bool) -> Option<PyResult<Vec<Self>>>;
}

/// Registers a read of the array with [`Guard`], so that no call writes to it without the GIL.
fn acquire_read_guard<T: Element>(array: &Bound<'_, PyArrayDyn<T>>) -> PyResult<Guard> {
    let busy = |user: String| value_error("array", "an array that no other call writes to", &user, "pass a copy");
    Guard::acquire("an argument to be converted", array, false).map_err(busy)
}

fn convert_elements<S, T>(
    array: &Bound<'_, PyArrayDyn<S>>,
    long: bool,
    number: impl Fn(S) -> T + Sync,
) -> PyResult<Vec<T>>
where
    S: Element + Copy + Sync,
    T: Send,
{
    let array = &base_view(array)?;
    let _guard = acquire_read_guard(array)?;
    // SAFETY: the reference keeps the memory alive, and the guard excludes writes by this module.
    // Writes by Python code race, as they do in NumPy's own functions.
    map_elements(array.py(), unsafe { array.as_array() }, long, number)
}

macro_rules! from_array {
    ($target:ty, $range:expr, [$($wider:ty)*]: $($source:ty)*) => {
        impl FromArray for $target {
            const RANGE: Option<(i128, i128)> = $range;

            fn outside(array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<i128>> {
                $(
                    if let Some(array) = typed::<$wider>(array.as_any()) {
                        let found = find_invalid(array, |x: $wider| <$target>::try_from(x).is_err())?;
                        return Ok(found.map(i128::from));
                    }
                )*
                let _ = array;
                Ok(None)
            }

            fn from_array(array: &Bound<'_, PyUntypedArray>, long: bool) -> Option<PyResult<Vec<Self>>> {
                if !array.is_aligned() {
                    return None;
                }
                $(
                    if let Some(array) = typed::<$source>(array.as_any()) {
                        return Some(convert_elements(array, long, |x: $source| x.as_()));
                    }
                )*
                Some(from_booleans(array.cast::<PyArrayDyn<bool>>().ok()?, long, |x| u8::from(x).as_()))
            }
        }
    };
}
from_array!(f32, None, []: f64 f32 i64 i32 u8 i16 i8 u64 u32 u16);
from_array!(f64, None, []: f32 f64 i64 i32 u8 i16 i8 u64 u32 u16);
from_array!(u8, Some((0, 255)), [i64 i32 i16 i8 u64 u32 u16]: u8 i64 i32 i16 i8 u64 u32 u16);
from_array!(i64, Some((i64::MIN as i128, i64::MAX as i128)), [u64]: i32 i64 u8 i16 i8 u64 u32 u16);
// No other source dtypes, because token ids are packed in their own dtype.
from_array!(i32, None, []: i32);
from_array!(u32, None, []: u32);

/// Returns the first element for which `is_invalid` is true. May release the GIL.
///
/// Returns `None` if there is none, and for a misaligned array, which Rust must not read.
fn find_invalid<S>(array: &Bound<'_, PyArrayDyn<S>>, is_invalid: impl Fn(S) -> bool + Sync) -> PyResult<Option<S>>
where
    S: Element + Copy + Sync + Send,
{
    if !array.is_aligned() {
        return Ok(None);
    }
    let array = &base_view(array)?;
    let _guard = acquire_read_guard(array)?;
    // SAFETY: as in `convert_elements`.
    find_element(array.py(), unsafe { array.as_array() }, is_invalid)
}

/// Returns the first finite number of a float64 array that is too large for float32.
pub(crate) fn beyond_f32(array: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    let Some(array) = typed::<f64>(array) else { return Ok(None) };
    find_invalid(array, |x| x.is_finite() && (x as f32).is_infinite())
}

impl FromArray for bool {
    const RANGE: Option<(i128, i128)> = None;

    fn outside(_array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<i128>> {
        Ok(None)
    }

    fn from_array(array: &Bound<'_, PyUntypedArray>, long: bool) -> Option<PyResult<Vec<Self>>> {
        Some(from_booleans(array.cast::<PyArrayDyn<Self>>().ok()?, long, |x| x))
    }
}

/// Converts a boolean array of any strides. Every byte other than 0 counts as true.
fn from_booleans<T: Send>(
    array: &Bound<'_, PyArrayDyn<bool>>,
    long: bool,
    number: impl Fn(bool) -> T + Sync,
) -> PyResult<Vec<T>> {
    let array = &base_view(array)?;
    let _guard = acquire_read_guard(array)?;
    // SAFETY: bytes of any value are valid u8. Memory and writes are as in `convert_elements`;
    // other Python code may write only if `long` is true.
    let view = unsafe { array.as_raw_array().cast::<u8>().deref_into_view() };
    map_elements(array.py(), view, long, |byte| number(byte != 0))
}

/// Returns an error for arrays of more than 32 axes, the numpy crate's limit; NumPy allows 64.
pub(crate) fn expect_axes(argument: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    if array.ndim() <= 32 {
        return Ok(());
    }
    Err(value_error(argument, "an array of at most 32 axes", &format!("{} axes", array.ndim()), "reshape it"))
}

/// Returns an error that names the argument if `error` is a `MemoryError`, otherwise `error`.
pub(crate) fn no_copy(argument: &str, array: &Bound<'_, PyUntypedArray>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyMemoryError>(array.py()) {
        return error;
    }
    let (expected, got) = ("an array small enough to copy", format!("shape {:?}", array.shape()));
    memory_error(argument, expected, &got, "pass a smaller array")
}

/// New result array; no other reference to it exists before [`New::into_array`].
pub(crate) struct New<'py, T: Element>(Bound<'py, PyArrayDyn<T>>);

impl<'py, T: Element> New<'py, T> {
    pub(crate) fn slice(&mut self) -> &mut [T] {
        // SAFETY: the array is new, C-contiguous, initialised, and without other references.
        unsafe { self.0.as_slice_mut() }.unwrap_or(&mut [])
    }

    pub(crate) fn into_array(self) -> Bound<'py, PyArrayDyn<T>> {
        self.0
    }
}

/// Returns a new array of zeros.
pub(crate) fn zeros<'py, T: Element + Zeroable>(py: Python<'py>, shape: &[usize]) -> PyResult<New<'py, T>> {
    let (rank, dtype) = (shape.len() as i32, T::get_dtype(py).into_dtype_ptr());
    // `npy_intp` is as wide as `usize`, and NumPy only reads the lengths.
    let dims = shape.as_ptr().cast_mut().cast::<npy_intp>();
    // `PyArray_Zeros` is not used because it may release the GIL. The numpy crate's own functions
    // panic if the allocation fails.
    // SAFETY: `dims` has `rank` lengths, and NumPy takes the reference to `dtype`. The result is
    // null with an exception set, or a new C-contiguous array whose elements may be zero bytes.
    unsafe {
        let array = PY_ARRAY_API.PyArray_Empty(py, rank, dims, dtype, 0);
        let array: Bound<'py, PyArrayDyn<T>> = Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked();
        array.data().write_bytes(0, array.len());
        Ok(New(array))
    }
}

/// Returns a new array with arbitrary content, for a result that overwrites every element.
///
/// Large arrays reuse the memory of earlier results. The first writes to new memory pages would
/// take several times as long as the computation of the result.
pub(crate) fn empty<'py, T: Element + Pod>(py: Python<'py>, shape: &[usize]) -> PyResult<New<'py, T>> {
    let bytes = shape.iter().fold(size_of::<T>(), |bytes, n| bytes.saturating_mul(*n));
    if bytes < alloc::MIN_BLOCK_BYTES {
        return zeros(py, shape);
    }
    let owner = Bound::new(py, alloc::Block::take(bytes)?)?;
    let start = owner.get().start().cast::<T>();
    // SAFETY: the block is large enough, aligned, initialised, and lives as long as `owner`.
    Ok(New(unsafe { view_at(start, shape, owner.into_any()) }))
}

/// Memory of a buffer's field, shared with NumPy.
///
/// The buffer allocates the field once and neither moves nor frees it during its lifetime. The
/// buffer accesses the field only inside calls and under its lock. Between calls, it has no
/// reference into the field.
pub(crate) struct FieldMemory {
    start: *mut u8,
    bytes: usize,
    dtype: DType,
    width: usize,
    shape: Vec<usize>,
}

// SAFETY: the fields are an address and sizes; `view_of` justifies all accesses by the address.
unsafe impl Send for FieldMemory {}
// SAFETY: as above.
unsafe impl Sync for FieldMemory {}

impl FieldMemory {
    /// Returns the memory of a field, or `None` if the buffer has no such field.
    ///
    /// The buffer must not be changed afterwards in a way that moves its fields.
    pub(crate) fn find(buffer: &mut RolloutBuffer, name: &str) -> Option<Self> {
        fn start<T>(data: &mut [T]) -> (*mut u8, usize) {
            (data.as_mut_ptr().cast(), size_of_val(data))
        }
        let field = buffer.field(name)?;
        let (dtype, width, shape) = (field.dtype(), field.width(), field.shape().to_vec());
        let (start, bytes) = match buffer.field_mut(name)? {
            FieldMut::F32(data) => start(data),
            FieldMut::F64(data) => start(data),
            FieldMut::I64(data) => start(data),
            FieldMut::U8(data) | FieldMut::Bool(data) => start(data),
        };
        Some(Self { start, bytes, dtype, width, shape })
    }

    /// Returns the address range of the field.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.bytes
    }

    /// Returns a writeable array that shares the memory of rows from `first` on.
    ///
    /// The shape is `[*leading, *row_shape]`. The array keeps `owner` alive, which must own the
    /// buffer. Python may write any byte to flags, because Rust reads them as bytes.
    pub(crate) fn view<'py>(&self, first: usize, leading: &[usize], owner: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        match self.dtype {
            DType::F32 => self.view_of::<f32>(first, leading, owner),
            DType::F64 => self.view_of::<f64>(first, leading, owner),
            DType::I64 => self.view_of::<i64>(first, leading, owner),
            DType::U8 => self.view_of::<u8>(first, leading, owner),
            DType::Bool => self.view_of::<bool>(first, leading, owner),
        }
    }

    fn view_of<'py, T: Element>(&self, first: usize, leading: &[usize], owner: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        let shape = [leading, &self.shape].concat();
        let (start, len) = (first * self.width, shape.iter().product::<usize>());
        assert!((start + len) * size_of::<T>() <= self.bytes, "a view stays within its field");
        // SAFETY: the assertion keeps the view within the field, which `owner` keeps alive and in
        // place. Python writes between calls of this module, or races with them as with NumPy's
        // functions.
        unsafe { view_at(self.start.cast::<T>().add(start), &shape, owner) }.into_any()
    }
}

/// # Safety
/// `start` must point to as many initialised elements as `shape` has, valid while `owner` lives.
unsafe fn view_at<'py, T: Element>(
    start: *mut T,
    shape: &[usize],
    owner: Bound<'py, PyAny>,
) -> Bound<'py, PyArrayDyn<T>> {
    // SAFETY: the caller guarantees valid memory. `ArrayView` only passes the pointer on to NumPy.
    unsafe { PyArrayDyn::borrow_from_array(&ArrayView::from_shape_ptr(IxDyn(shape), start), owner) }
}

/// Returns the plugin in a capsule of another extension module, or `None` for any other capsule.
pub(crate) fn plugin_from_capsule<'a>(capsule: &'a Bound<'_, PyCapsule>) -> Option<&'a EnvPlugin> {
    let plugin = capsule.pointer_checked(Some(EnvPlugin::NAME)).ok()?;
    // SAFETY: a capsule of this name contains an `EnvPlugin` in C layout while the capsule lives.
    Some(unsafe { plugin.cast::<EnvPlugin>().as_ref() })
}
