//! NumPy's memory without guards: for short calls that keep the GIL.

use std::any::TypeId;
use std::ops::Range;

use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::{Kind, make_bytes_valid, typed};

/// The elements of a C-contiguous, aligned array, borrowed without a guard.
///
/// Whoever reads them keeps the GIL meanwhile, runs no Python code and writes to no array of others. Or it reads numbers,
/// of which any bytes are valid, under a guard: where Python writes to them meanwhile, that races as it does with NumPy.
pub(crate) struct Elements<'py, T> {
    array: Bound<'py, PyArrayDyn<T>>,
    start: *const T,
}

impl<'py, T: Element + 'static> Elements<'py, T> {
    /// None if the array is not C-contiguous and aligned, or holds booleans of other bytes than 0 and 1, which NumPy
    /// lets views of other numbers have.
    pub(crate) fn of(array: &Bound<'py, PyArrayDyn<T>>) -> Option<Self> {
        if !array.is_c_contiguous() || !array.is_aligned() {
            return None;
        }
        // An array without elements may point anywhere.
        let start = if array.is_empty() { std::ptr::dangling() } else { array.data().cast_const() };
        let elements = Self { array: array.clone(), start };
        elements.holds_valid().then_some(elements)
    }

    fn holds_valid(&self) -> bool {
        if TypeId::of::<T>() != TypeId::of::<bool>() {
            return true;
        }
        // SAFETY: a byte each, of any value; nobody writes them meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), self.array.len()) };
        bytes.iter().fold(0, |all, byte| all | byte) <= 1
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(crate) fn slice(&self) -> &[T] {
        // SAFETY: looked at when made; by the promise above the array has not changed since, or only its numbers.
        unsafe { std::slice::from_raw_parts(self.start, self.array.len()) }
    }
}

/// The arrays of one short call, none of whose written ones lies in another: borrowed without guards, whose book-keeping
/// takes longer than a step.
///
/// Whoever uses them keeps the GIL meanwhile, runs no Python code and found no other call running.
#[derive(Default)]
pub(crate) struct Apart {
    taken: [Range<usize>; 6],
    count: usize,
}

impl Apart {
    /// Whether the memory is apart from all that was taken before. Takes it.
    pub(crate) fn take<T>(&mut self, (start, len): (*const T, usize)) -> bool {
        let range = start.addr()..start.addr().saturating_add(len.saturating_mul(size_of::<T>()));
        let apart = self.taken[..self.count].iter().all(|other| range.end <= other.start || other.end <= range.start);
        let Some(free) = self.taken.get_mut(self.count) else { return false };
        (*free, self.count) = (range, self.count + 1);
        apart
    }

    /// The elements of an array to be written. None if it is not of this dtype and shape, C-contiguous, aligned,
    /// writeable and apart from the others: then guards tell what is wrong.
    #[expect(clippy::mut_from_ref, reason = "NumPy's memory, not the object's, and given out once")]
    pub(crate) fn output<'a, T: Kind>(&mut self, object: &'a Bound<'_, PyAny>, shape: &[usize]) -> Option<&'a mut [T]> {
        let array = typed::<T>(object)?;
        // SAFETY: a live array.
        let writeable = unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE != 0;
        if !writeable || !array.is_c_contiguous() || !array.is_aligned() || array.shape() != shape || array.is_empty() {
            return None;
        }
        let (start, len) = (array.data(), array.len());
        if !self.take((start.cast_const(), len)) {
            return None;
        }
        if TypeId::of::<T>() == TypeId::of::<bool>() {
            // SAFETY: a byte each, of any value, of this array, which nobody else uses.
            make_bytes_valid(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) });
        }
        // SAFETY: checked above; by the promise nobody else uses the memory, and the array lives for 'a.
        Some(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}
