//! C interface of plugins: slices, and 64-bit words that encode all values other than slices.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::codec;
use crate::{Error, Result};

/// Shared slice with the layout of C. It is always constructed from a Rust slice, so that the
/// conversion back is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Input<'a, T> {
    start: *const T,
    len: usize,
    lifetime: PhantomData<&'a [T]>,
}

impl<'a, T> Input<'a, T> {
    pub(super) fn slice(self) -> &'a [T] {
        // SAFETY: pointer and length are those of a slice borrowed for 'a.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<'a, T> From<&'a [T]> for Input<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Self { start: slice.as_ptr(), len: slice.len(), lifetime: PhantomData }
    }
}

impl<T> Default for Input<'_, T> {
    fn default() -> Self {
        Self::from(&[][..])
    }
}

/// Mutable slice with the layout of C.
#[repr(C)]
pub(super) struct Output<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<'a, T> Output<'a, T> {
    /// Returns the slice and leaves an empty slice in its place.
    pub(super) fn take(&mut self) -> &'a mut [T] {
        let Self { start, len, .. } = std::mem::take(self);
        // SAFETY: pointer and length are those of a slice borrowed mutably for 'a, and are returned only once.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl<'a, T> From<&'a mut [T]> for Output<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }
}

impl<T> Default for Output<'_, T> {
    fn default() -> Self {
        Self::from(&mut [][..])
    }
}

/// Numbers of the methods of an environment.
///
/// The numbers are constants, not an enum, because a host of a later version may send unknown
/// numbers. Unknown numbers are rejected.
pub(super) mod method {
    pub(in crate::plugin) const DESCRIBE: u32 = 0;
    pub(in crate::plugin) const RESET: u32 = 1;
    pub(in crate::plugin) const STEP_DISCRETE: u32 = 2;
    pub(in crate::plugin) const STEP_CONTINUOUS: u32 = 3;
    pub(in crate::plugin) const ACTION_MASKS: u32 = 4;
    pub(in crate::plugin) const OBSERVE: u32 = 5;
    pub(in crate::plugin) const EPISODES: u32 = 6;
    pub(in crate::plugin) const STATE: u32 = 7;
    pub(in crate::plugin) const CHECK_STATE: u32 = 8;
    pub(in crate::plugin) const SET_STATE: u32 = 9;
    pub(in crate::plugin) const PROGRESS: u32 = 10;
    pub(in crate::plugin) const SET_PROGRESS: u32 = 11;
    pub(in crate::plugin) const RNGS: u32 = 12;
    pub(in crate::plugin) const SET_RNGS: u32 = 13;
    pub(in crate::plugin) const FINAL_ACTION_MASKS: u32 = 14;
}

/// Arguments of a call, for all methods. Each method reads the fields that it needs.
#[repr(C)]
#[derive(Default)]
pub(super) struct Call<'a> {
    pub(super) method: u32,
    pub(super) words: Input<'a, u64>,
    pub(super) discrete: Input<'a, i64>,
    pub(super) continuous: Input<'a, f32>,
    pub(super) mask: Input<'a, bool>,
    pub(super) obs: Output<'a, f32>,
    pub(super) reward: Output<'a, f64>,
    pub(super) terminated: Output<'a, bool>,
    pub(super) truncated: Output<'a, bool>,
    pub(super) final_obs: Output<'a, f32>,
    pub(super) action_masks: Output<'a, bool>,
}

/// Output for the words of a result.
///
/// The caller allocates the memory of the words, because the libraries share no allocator.
#[repr(C)]
pub(super) struct Reply {
    into: *mut c_void,
    push: unsafe extern "C" fn(*mut c_void, Input<'_, u64>),
}

impl Reply {
    pub(super) fn push(&mut self, words: &[u64]) {
        // SAFETY: the vector outlives the call, and only the library that created it accesses it.
        unsafe { (self.push)(self.into, words.into()) }
    }
}

unsafe extern "C" fn push(into: *mut c_void, words: Input<'_, u64>) {
    // SAFETY: `into` is the vector of `request` in this library, which does not access it during the call.
    unsafe { &mut *into.cast::<Vec<u64>>() }.extend_from_slice(words.slice());
}

/// Status of a call: 0 for success, 1 for an error that the reply encodes.
pub(super) type Status = u32;
pub(super) type CallFn = unsafe extern "C" fn(*mut c_void, *mut Call<'_>, *mut Reply) -> Status;
pub(super) type FreeFn = unsafe extern "C" fn(*mut c_void);
pub(super) type MakeFn = unsafe extern "C" fn(*mut c_void, *mut Call<'_>, *mut Reply, *mut EnvHandle) -> Status;

/// Environments, and the functions to call and free them.
#[repr(C)]
pub(super) struct EnvHandle {
    pub(super) env: *mut c_void,
    pub(super) call: CallFn,
    pub(super) free: FreeFn,
}

/// Makes a call and returns the words of the reply, or the error that the words encode.
pub(super) fn request(call: impl FnOnce(*mut Reply) -> Status) -> Result<Vec<u64>> {
    let mut words = Vec::new();
    let mut reply = Reply { into: (&raw mut words).cast(), push };
    if call(&raw mut reply) == 0 { Ok(words) } else { Err(codec::decode_error(&words).unwrap_or_else(unreadable)) }
}

/// Returns the error for a reply that cannot be decoded.
pub(super) fn unreadable() -> Error {
    Error::Backend(
        "the environment's library sent an invalid reply; recompile it with this version of rlox-core".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::EnvPlugin;

    #[test]
    fn sizes_of_the_abi_belong_to_its_version() {
        // Libraries compiled before a change of these sizes are only rejected if the name changes
        // as well.
        assert_eq!(EnvPlugin::NAME, c"rlox.EnvPlugin.2");
        let word = size_of::<usize>();
        assert_eq!((size_of::<Input<'_, u8>>(), size_of::<Output<'_, u8>>()), (2 * word, 2 * word));
        assert_eq!(
            (size_of::<EnvHandle>(), size_of::<Reply>(), size_of::<EnvPlugin>()),
            (3 * word, 2 * word, 3 * word)
        );
        assert_eq!(size_of::<Call<'_>>(), 21 * word);
        assert_eq!(std::mem::offset_of!(Call<'_>, action_masks), 19 * word);
    }

    #[test]
    fn an_output_is_borrowed_once() {
        let mut numbers = [1, 2, 3];
        let mut output = Output::from(&mut numbers[..]);
        output.take()[1] = 7;
        assert!(output.take().is_empty());
        assert_eq!(numbers, [1, 7, 3]);
    }
}
