//! Guards of NumPy's memory against other arguments and other calls, whoever owns it.
//!
//! Two arrays may show one memory though neither is a view of the other - `np.frombuffer` twice, a tensor of an array, a
//! memoryview - so it is addresses that are compared. What is not seen: memory that the system shows at two addresses,
//! and what other modules do with it.

use std::any::TypeId;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::unguarded::Elements;
use super::{Kind, make_bytes_valid, private};
use crate::detach::this_thread;

/// What calls use now. Only locked for a moment, with the GIL held.
static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Taken {
    id: usize,
    addresses: Range<usize>,
    writes: bool,
    argument: &'static str,
    thread: usize,
}

fn taken() -> MutexGuard<'static, Vec<Taken>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any memory is guarded.
pub(crate) fn guards_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// In a forked child, lets go of what its parent's other threads used.
pub(crate) fn forget_other_threads() {
    let mut taken = taken();
    taken.retain(|other| other.thread == this_thread());
    COUNT.store(taken.len(), Ordering::Relaxed);
}

/// Memory that stays as it is, or is ours alone, while the guard lives.
pub(crate) struct Guard(Option<usize>);

impl Guard {
    /// An error, which says what uses it, where other memory in use overlaps and one of the two is written to.
    pub(super) fn take<T: Element>(
        argument: &'static str,
        array: &Bound<'_, PyArrayDyn<T>>,
        writes: bool,
    ) -> Result<Self, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let addresses = addresses(array);
        if addresses.is_empty() {
            return Ok(Self(None));
        }
        let (thread, mut taken) = (this_thread(), taken());
        let meets = |other: &&Taken| {
            (writes || other.writes) && addresses.start < other.addresses.end && other.addresses.start < addresses.end
        };
        if let Some(other) = taken.iter().find(meets) {
            let name = other.argument;
            return Err(if other.thread == thread {
                format!("memory that {name} shares")
            } else {
                format!("memory that another call uses as {name}")
            });
        }
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        taken.push(Taken { id, addresses, writes, argument, thread });
        COUNT.store(taken.len(), Ordering::Relaxed);
        Ok(Self(Some(id)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
        let mut taken = taken();
        if let Some(at) = taken.iter().position(|other| other.id == id) {
            taken.swap_remove(at);
        }
        COUNT.store(taken.len(), Ordering::Relaxed);
    }
}

/// All addresses between an array's first and last element, as its strides go.
fn addresses<T: Element>(array: &Bound<'_, PyArrayDyn<T>>) -> Range<usize> {
    if array.is_empty() {
        return 0..0;
    }
    let (mut low, mut high) = (array.data().addr(), array.data().addr() + size_of::<T>());
    for (n, stride) in array.shape().iter().zip(array.strides()) {
        let far = stride.saturating_mul(n.cast_signed() - 1);
        if far < 0 { low = low.saturating_add_signed(far) } else { high = high.saturating_add_signed(far) }
    }
    low..high
}

/// The elements of a caller's array that are read, guarded.
pub(crate) struct Reading<'py, T> {
    elements: Elements<'py, T>,
    _guard: Guard,
}

impl<'py, T: Element + 'static> Reading<'py, T> {
    /// Of an array for which there are [`Elements`]; none where they have changed since. An error says what writes them.
    pub(crate) fn of(
        argument: &'static str,
        array: &Bound<'py, PyArrayDyn<T>>,
    ) -> PyResult<Result<Option<Self>, String>> {
        let array = private(array)?;
        let guard = Guard::take(argument, &array, false);
        Ok(guard.map(|guard| Some(Self { elements: Elements::of(&array)?, _guard: guard })))
    }

    pub(crate) fn elements(&self) -> &Elements<'py, T> {
        &self.elements
    }
}

/// Why an array cannot be written to.
pub(crate) enum Unfit {
    ReadOnly,
    Scattered,
    /// Something else uses its memory, as told.
    Shared(String),
}

/// A caller's array that is written to, C-contiguous and aligned: its memory is ours alone meanwhile.
pub(crate) struct Output<'py, T: Element> {
    array: Bound<'py, PyArrayDyn<T>>,
    _guard: Guard,
}

impl<'py, T: Kind> Output<'py, T> {
    pub(crate) fn of(argument: &'static str, array: &Bound<'py, PyArrayDyn<T>>) -> PyResult<Result<Self, Unfit>> {
        let array = private(array)?;
        // SAFETY: a live array.
        if unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE == 0 {
            return Ok(Err(Unfit::ReadOnly));
        }
        if !array.is_c_contiguous() || !array.is_aligned() {
            return Ok(Err(Unfit::Scattered));
        }
        Ok(Guard::take(argument, &array, true).map_err(Unfit::Shared).map(|guard| {
            let mut output = Self { array, _guard: guard };
            let (start, len) = output.parts();
            if TypeId::of::<T>() == TypeId::of::<bool>() {
                // SAFETY: a byte each, of any value, contiguous, and ours alone.
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

    /// Where the elements lie, and how many there are.
    fn parts(&mut self) -> (*mut T, usize) {
        // An array without elements may point anywhere.
        let start = if self.array.is_empty() { std::ptr::dangling_mut() } else { self.array.data() };
        (start, self.array.len())
    }

    pub(crate) fn slice(&mut self) -> &mut [T] {
        let (start, len) = self.parts();
        // SAFETY: contiguous, aligned and writeable, as looked at when made of an array that nobody else has; booleans
        // were made valid. The guard keeps our other calls and arguments away; Python may race as it does with NumPy.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
