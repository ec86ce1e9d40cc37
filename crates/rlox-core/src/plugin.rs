//! Environments of other libraries: a crate of one's own, compiled by itself, steps them inside the extension module.
//!
//! Two libraries that were compiled apart share neither the layout of Rust's types nor an allocator. What crosses the
//! border between them is therefore C: slices, numbers, and functions with C's calling convention. No panic crosses it.
#![expect(unsafe_code, reason = "the border between two libraries is C, which holds nothing that the compiler checks")]

mod abi;
mod codec;
mod exports;
mod host;

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;

use crate::envs::MakeOptions;
use crate::{Result, VectorEnv};

use abi::{Call, EnvHandle, FreeFn, MakeFn};
use host::Hosted;

/// What makes the environments of a library, for a program that was compiled apart from it.
///
/// A Python extension module gives it to rlox as a capsule of the name [`EnvPlugin::NAME`]:
///
/// ```text
/// let plugin = EnvPlugin::new(|options| options.build_vec_env(MyEnv::new()));
/// let capsule = PyCapsule::new_with_value(py, plugin, EnvPlugin::NAME)?;
/// py.import("rlox")?.call_method1("register_env", (capsule,))?;
/// ```
///
/// ```
/// use rlox_core::{AutoresetMode, EnvPlugin, VectorEnv, envs::{CartPole, MakeOptions}};
///
/// let plugin = EnvPlugin::new(|options| options.build_vec_env(CartPole::default()));
/// let options = MakeOptions {
///     num_envs: 4,
///     seed: Some(0),
///     autoreset_mode: AutoresetMode::SameStep,
///     max_episode_steps: None,
///     arguments: &[],
/// };
/// assert_eq!(plugin.make(&options)?.spec().id, "CartPole-v1");
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[repr(C)]
pub struct EnvPlugin {
    context: *mut c_void,
    make: MakeFn,
    free: FreeFn,
}

// SAFETY: the context is a closure that is `Send` and `Sync`, see `EnvPlugin::new`, and is only read until it is freed.
unsafe impl Send for EnvPlugin {}
// SAFETY: as above.
unsafe impl Sync for EnvPlugin {}

impl std::fmt::Debug for EnvPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvPlugin").finish_non_exhaustive()
    }
}

impl EnvPlugin {
    /// The name of the capsule that holds one. It changes with what crosses the border, so that libraries which were
    /// compiled against another one are refused.
    pub const NAME: &'static CStr = c"rlox.EnvPlugin.2";

    /// Environments that `make` makes: usually [`MakeOptions::build_vec_env`] an [`crate::Env`], or any [`VectorEnv`] that
    /// keeps to the options. Errors and panics of `make` and of its environments become errors of the caller's.
    ///
    /// The library's own `rlox-core` has threads of its own, and nobody asks it to stop: its long calls do not hear of
    /// [`crate::set_interrupt_check`].
    pub fn new<F>(make: F) -> Self
    where
        F: Fn(&MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> + Send + Sync + 'static,
    {
        let context = Box::into_raw(Box::new(make)).cast();
        Self { context, make: exports::make::<F>, free: exports::free::<F> }
    }

    /// Makes environments. They may outlive `self`, but not the library that they are from.
    ///
    /// # Errors
    /// Those of the library's own function; [`crate::Error::Backend`] if it panics, [`crate::Error::Config`] if what it
    /// made is not what was asked for, [`crate::Error::Space`] if its spaces make no sense.
    pub fn make(&self, options: &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> {
        let (words, mut handle) = (codec::encode_options(options), MaybeUninit::<EnvHandle>::uninit());
        let mut call = Call { words: words.as_slice().into(), ..Call::default() };
        // SAFETY: context and function belong together, and the pointers are valid.
        abi::request(|reply| unsafe { (self.make)(self.context, &raw mut call, reply, handle.as_mut_ptr()) })?;
        // SAFETY: written, as the call has succeeded.
        let handle = unsafe { handle.assume_init() };
        Ok(Box::new(Hosted::new(handle, options)?))
    }
}

impl Drop for EnvPlugin {
    fn drop(&mut self) {
        // SAFETY: nobody can use the context any more.
        unsafe { (self.free)(self.context) }
    }
}
