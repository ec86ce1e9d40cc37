//! Borrows of NumPy's memory, and loops over arrays that Ctrl-C interrupts.
//!
//! A borrow is a Rust slice of an array's memory. A [`Guard`] registers the address range of a
//! borrow, so that no other call of this module writes to the range at the same time. Guards
//! compare addresses, because two arrays may share memory although neither is a view of the other,
//! for example after two calls of `np.frombuffer`. Guards do not detect memory that the system maps
//! at two addresses, or accesses by other modules.
#![expect(unsafe_code, reason = "memory shared with NumPy")]

use std::any::TypeId;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::ndarray::{ArrayView, Axis, IxDyn};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, PY_ARRAY_API};
use numpy::{Element, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use rlox_core::{Result as CoreResult, interrupt::InterruptCheck};

use crate::alloc::with_capacity;
use crate::error::to_py;
use crate::sync::gil::{detach, this_thread};

/// Number of NumPy's own dtypes; user-defined dtypes have larger numbers.
const NUM_BUILTIN_DTYPES: i32 = 24;

/// Rust number type with an equal NumPy dtype, whose `dtype.kind` is `KIND`.
pub(crate) trait Kind: Element + Copy + Send + 'static {
    const KIND: u8;
}

macro_rules! kinds {
    ($($number:ty: $kind:literal),*) => { $(impl Kind for $number { const KIND: u8 = $kind; })* };
}
kinds!(f32: b'f', f64: b'f', i64: b'i', i32: b'i', i16: b'i', i8: b'i', u64: b'u', u32: b'u', u16: b'u', u8: b'u', bool: b'b');

/// Casts an object to an array of the dtype `T`, or returns `None` for any other object.
pub(crate) fn typed<'a, 'py, T: Kind>(object: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyArrayDyn<T>>> {
    let dtype = object.cast::<PyUntypedArray>().ok()?.dtype();
    let same = dtype.kind() == T::KIND
        && dtype.itemsize() == size_of::<T>()
        && dtype.num() < NUM_BUILTIN_DTYPES
        && dtype.is_native_byteorder() != Some(false);
    // SAFETY: an array with elements of the kind, size and byte order of `T`. These are compared
    // here because NumPy's comparison of dtypes takes as long as the rest of a short call.
    same.then(|| unsafe { object.cast_unchecked() })
}

/// Returns a new array object that shares the array's memory.
///
/// No other code has a reference to this object, so its dtype, shape and strides cannot change.
pub(crate) fn base_view<'py, T: Element>(array: &Bound<'py, PyArrayDyn<T>>) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let py = array.py();
    // SAFETY: a live array and NumPy's own type; a new array of that type, or null with an
    // exception.
    unsafe {
        let kind = PyUntypedArray::type_object_raw(py);
        let view = PY_ARRAY_API.PyArray_View(py, array.as_array_ptr(), std::ptr::null_mut(), kind);
        Ok(Bound::from_owned_ptr_or_err(py, view)?.cast_into_unchecked())
    }
}

/// Replaces nonzero bytes by 1, so that the bytes are valid booleans of Rust.
fn make_bytes_valid(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = u8::from(*byte != 0);
    }
}

/// Registered borrows of all calls. A thread locks the list only briefly, with the GIL held.
static BORROWS: Mutex<Vec<ActiveBorrow>> = Mutex::new(Vec::new());
static NUM_BORROWS: AtomicUsize = AtomicUsize::new(0);

struct ActiveBorrow {
    id: usize,
    addresses: Range<usize>,
    writes: bool,
    argument: &'static str,
    thread: usize,
}

fn lock_borrows() -> MutexGuard<'static, Vec<ActiveBorrow>> {
    BORROWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if any guard exists.
pub(crate) fn has_borrows() -> bool {
    NUM_BORROWS.load(Ordering::Relaxed) > 0
}

/// Removes the borrows of the parent's other threads, in a forked child process.
pub(crate) fn release_other_threads() {
    let mut borrows = lock_borrows();
    borrows.retain(|borrow| borrow.thread == this_thread());
    NUM_BORROWS.store(borrows.len(), Ordering::Relaxed);
}

/// Registered borrow, until dropped. A borrow for writing excludes all other borrows of its memory.
pub(crate) struct Guard(Option<usize>);

impl Guard {
    /// Registers a borrow of an array.
    ///
    /// The borrow fails if it overlaps a registered borrow and at least one of the two writes. The
    /// error describes the registered borrow.
    pub(crate) fn acquire<T: Element>(
        argument: &'static str,
        array: &Bound<'_, PyArrayDyn<T>>,
        writes: bool,
    ) -> Result<Self, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let addresses = addresses(array);
        if addresses.is_empty() {
            return Ok(Self(None));
        }
        let (thread, mut borrows) = (this_thread(), lock_borrows());
        let overlaps = |borrow: &&ActiveBorrow| {
            (writes || borrow.writes)
                && addresses.start < borrow.addresses.end
                && borrow.addresses.start < addresses.end
        };
        if let Some(borrow) = borrows.iter().find(overlaps) {
            let name = borrow.argument;
            return Err(if borrow.thread == thread {
                format!("memory that {name} shares")
            } else {
                format!("memory that another call uses as {name}")
            });
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        borrows.push(ActiveBorrow { id, addresses, writes, argument, thread });
        NUM_BORROWS.store(borrows.len(), Ordering::Relaxed);
        Ok(Self(Some(id)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
        let mut borrows = lock_borrows();
        if let Some(index) = borrows.iter().position(|other| other.id == id) {
            borrows.swap_remove(index);
        }
        NUM_BORROWS.store(borrows.len(), Ordering::Relaxed);
    }
}

/// Returns the address range of an array, from its first to its last element in memory.
fn addresses<T: Element>(array: &Bound<'_, PyArrayDyn<T>>) -> Range<usize> {
    if array.is_empty() {
        return 0..0;
    }
    let (mut low, mut high) = (array.data().addr(), array.data().addr() + size_of::<T>());
    for (n, stride) in array.shape().iter().zip(array.strides()) {
        let offset = stride.saturating_mul(n.cast_signed() - 1);
        if offset < 0 { low = low.saturating_add_signed(offset) } else { high = high.saturating_add_signed(offset) }
    }
    low..high
}

/// Elements of a caller's array, borrowed for reading with a guard.
pub(crate) struct Reading<'py, T> {
    elements: Elements<'py, T>,
    _guard: Guard,
}

impl<'py, T: Element + 'static> Reading<'py, T> {
    /// Borrows an array.
    ///
    /// The value is `None` if [`Elements::try_new`] cannot borrow the array. The inner error
    /// describes a borrow for writing that overlaps the array.
    pub(crate) fn try_new(
        argument: &'static str,
        array: &Bound<'py, PyArrayDyn<T>>,
    ) -> PyResult<Result<Option<Self>, String>> {
        let array = base_view(array)?;
        let guard = Guard::acquire(argument, &array, false);
        Ok(guard.map(|guard| Some(Self { elements: Elements::try_new(&array)?, _guard: guard })))
    }

    pub(crate) fn elements(&self) -> &Elements<'py, T> {
        &self.elements
    }
}

/// Reasons why an array cannot be written to.
pub(crate) enum OutputDefect {
    ReadOnly,
    NotContiguous,
    /// Another borrow uses the memory; the text describes it.
    InUse(String),
}

/// Exclusive borrow of a caller's array for writing, C-contiguous and aligned.
pub(crate) struct Output<'py, T: Element> {
    array: Bound<'py, PyArrayDyn<T>>,
    _guard: Guard,
}

impl<'py, T: Kind> Output<'py, T> {
    pub(crate) fn try_new(
        argument: &'static str,
        array: &Bound<'py, PyArrayDyn<T>>,
    ) -> PyResult<Result<Self, OutputDefect>> {
        let array = base_view(array)?;
        // SAFETY: a live array.
        if unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE == 0 {
            return Ok(Err(OutputDefect::ReadOnly));
        }
        if !array.is_c_contiguous() || !array.is_aligned() {
            return Ok(Err(OutputDefect::NotContiguous));
        }
        Ok(Guard::acquire(argument, &array, true).map_err(OutputDefect::InUse).map(|guard| {
            let mut output = Self { array, _guard: guard };
            let (start, len) = output.raw_parts();
            if TypeId::of::<T>() == TypeId::of::<bool>() {
                // SAFETY: contiguous bytes of any value, and the guard makes this borrow exclusive.
                make_bytes_valid(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) });
            }
            output
        }))
    }
}

impl<T: Element> Output<'_, T> {
    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// Returns the address of the elements and their number.
    fn raw_parts(&mut self) -> (*mut T, usize) {
        // An array without elements may have any address.
        let start = if self.array.is_empty() { std::ptr::dangling_mut() } else { self.array.data() };
        (start, self.array.len())
    }

    pub(crate) fn slice(&mut self) -> &mut [T] {
        let (start, len) = self.raw_parts();
        // SAFETY: `try_new` checked this private array object and made booleans valid. The guard
        // excludes other borrows; accesses by Python code race as with NumPy's functions.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

/// Elements of a C-contiguous, aligned array, borrowed without a guard.
///
/// The user of the elements fulfils one of two conditions. Either the call keeps the GIL, runs no
/// Python code and writes to no array of a caller. Or the call holds a guard and the elements are
/// numbers, for which all bytes are valid. Writes by Python code then race, as with NumPy's
/// functions.
pub(crate) struct Elements<'py, T> {
    array: Bound<'py, PyArrayDyn<T>>,
    start: *const T,
}

impl<'py, T: Element + 'static> Elements<'py, T> {
    /// Borrows an array, or returns `None` if it is not C-contiguous and aligned.
    ///
    /// Also returns `None` for booleans with bytes other than 0 and 1. NumPy views of arrays of
    /// other dtypes may have such bytes.
    pub(crate) fn try_new(array: &Bound<'py, PyArrayDyn<T>>) -> Option<Self> {
        if !array.is_c_contiguous() || !array.is_aligned() {
            return None;
        }
        // An array without elements may have any address.
        let start = if array.is_empty() { std::ptr::dangling() } else { array.data().cast_const() };
        let elements = Self { array: array.clone(), start };
        elements.holds_valid().then_some(elements)
    }

    fn holds_valid(&self) -> bool {
        if TypeId::of::<T>() != TypeId::of::<bool>() {
            return true;
        }
        // SAFETY: one byte each, of any value; no code writes to them at the same time.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), self.array.len()) };
        bytes.iter().fold(0, |all, byte| all | byte) <= 1
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(crate) fn slice(&self) -> &[T] {
        // SAFETY: `try_new` checked the array. By the conditions of `Elements`, only numbers
        // change.
        unsafe { std::slice::from_raw_parts(self.start, self.array.len()) }
    }
}

/// Arrays that one short call borrows without guards.
///
/// Registering guards takes longer than an environment step. Instead, the call checks that the
/// arrays to write to overlap no other array. The call keeps the GIL, runs no Python code, and
/// starts while no other call runs without the GIL.
#[derive(Default)]
pub(crate) struct DisjointBorrows {
    ranges: [Range<usize>; 6],
    count: usize,
}

impl DisjointBorrows {
    /// Adds a memory range; returns true if the range is disjoint from all ranges added before.
    pub(crate) fn try_add<T>(&mut self, (start, len): (*const T, usize)) -> bool {
        let range = start.addr()..start.addr().saturating_add(len.saturating_mul(size_of::<T>()));
        let is_disjoint =
            self.ranges[..self.count].iter().all(|other| range.end <= other.start || other.end <= range.start);
        let Some(free) = self.ranges.get_mut(self.count) else { return false };
        (*free, self.count) = (range, self.count + 1);
        is_disjoint
    }

    /// Borrows the elements of an array for writing.
    ///
    /// Returns `None` if the array is not of this dtype and shape, C-contiguous, aligned, writeable
    /// and disjoint from the others. The caller then borrows the array with a guard, whose error
    /// names the reason.
    #[expect(clippy::mut_from_ref, reason = "NumPy's memory, not the object's, and given out once")]
    pub(crate) fn output<'a, T: Kind>(&mut self, object: &'a Bound<'_, PyAny>, shape: &[usize]) -> Option<&'a mut [T]> {
        let array = typed::<T>(object)?;
        // SAFETY: a live array.
        let writeable = unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE != 0;
        if !writeable || !array.is_c_contiguous() || !array.is_aligned() || array.shape() != shape || array.is_empty() {
            return None;
        }
        let (start, len) = (array.data(), array.len());
        if !self.try_add((start.cast_const(), len)) {
            return None;
        }
        if TypeId::of::<T>() == TypeId::of::<bool>() {
            // SAFETY: one byte each, of any value, of this array, which no other code uses.
            make_bytes_valid(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) });
        }
        // SAFETY: checked above. By the conditions of `DisjointBorrows`, no other code uses the
        // memory, and the array lives for 'a.
        Some(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}

/// Maps the elements in C order. If `long` is true, the GIL is released and Ctrl-C interrupts.
pub(crate) fn map_elements<S, T>(
    py: Python<'_>,
    view: ArrayView<'_, S, IxDyn>,
    long: bool,
    number: impl Fn(S) -> T + Sync,
) -> PyResult<Vec<T>>
where
    S: Copy + Sync,
    T: Send,
{
    let mut numbers = with_capacity(view.len()).map_err(to_py)?;
    // Row by row, because an iterator over single elements takes many times as long.
    let mut extend = |view: ArrayView<'_, S, IxDyn>| match (view.as_slice(), view.ndim()) {
        (Some(slice), _) => numbers.extend(slice.iter().map(|x| number(*x))),
        (None, 0) => numbers.extend(view.iter().map(|x| number(*x))),
        (None, axes) => view.lanes(Axis(axes - 1)).into_iter().for_each(|row| match row.as_slice() {
            Some(slice) => numbers.extend(slice.iter().map(|x| number(*x))),
            None => numbers.extend(row.iter().map(|x| number(*x))),
        }),
    };
    if long {
        detach(py, || interruptible_scan(view, &mut InterruptCheck::default(), &mut extend)).map_err(to_py)?;
    } else {
        extend(view);
    }
    Ok(numbers)
}

/// Returns the first element in C order that fulfils the predicate. Ctrl-C interrupts the search.
pub(crate) fn find_element<S: Copy + Sync + Send>(
    py: Python<'_>,
    view: ArrayView<'_, S, IxDyn>,
    predicate: impl Fn(S) -> bool + Sync,
) -> PyResult<Option<S>> {
    if view.len() <= InterruptCheck::POLL_ELEMENTS / 64 {
        return Ok(view.iter().find(|x| predicate(**x)).copied());
    }
    // The caller converts the elements next, so fail early if a copy does not fit into memory.
    drop(with_capacity::<f32>(view.len()).map_err(to_py)?);
    let mut first = None;
    let mut search =
        |view: ArrayView<'_, S, IxDyn>| first = first.or_else(|| view.iter().find(|x| predicate(**x)).copied());
    detach(py, || interruptible_scan(view, &mut InterruptCheck::default(), &mut search)).map_err(to_py)?;
    Ok(first)
}

/// Calls `visit` with parts of an array in C order, and checks for Ctrl-C after each part.
fn interruptible_scan<S>(
    view: ArrayView<'_, S, IxDyn>,
    interrupt: &mut InterruptCheck,
    visit: &mut impl FnMut(ArrayView<'_, S, IxDyn>),
) -> CoreResult<()> {
    if view.len() <= InterruptCheck::POLL_ELEMENTS {
        visit(view);
        return interrupt.check();
    }
    // Halves of the first axis with more than one element preserve the order.
    let axis = view.shape().iter().position(|n| *n > 1).unwrap_or(0);
    let half = view.len_of(Axis(axis)) / 2;
    let (first, second) = view.split_at(Axis(axis), half);
    interruptible_scan(first, interrupt, visit)?;
    interruptible_scan(second, interrupt, visit)
}
