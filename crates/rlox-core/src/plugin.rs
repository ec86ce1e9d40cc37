//! Plugins: environments of a separately compiled library, called directly from Rust code.
//!
//! Two separately compiled libraries share neither the layout of Rust types nor an allocator.
//! Therefore the interface between them is C: slices, numbers, and functions with the C calling
//! convention. Panics do not cross the interface. The host is the program that uses a plugin.
#![expect(unsafe_code, reason = "the interface between two libraries is C, which the compiler cannot check")]

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

/// Constructor of environments in a shared library, for a host program that is compiled separately.
///
/// A Python extension module passes the plugin to rlox as a capsule with the name [`EnvPlugin::NAME`]:
///
/// ```text
/// let plugin = EnvPlugin::new(|options| options.build_vec_env(MyEnv::new()));
/// let capsule = PyCapsule::new_with_value(py, plugin, EnvPlugin::NAME)?;
/// py.import("rlox")?.call_method1("register_env", (capsule,))?;
/// ```
///
/// ```
/// use rlox_core::{AutoresetMode, VectorEnv, envs::{CartPole, MakeOptions}, plugin::EnvPlugin};
///
/// let plugin = EnvPlugin::new(|options| options.build_vec_env(CartPole::default()));
/// let options = MakeOptions { num_envs: 4, seed: Some(0), ..Default::default() };
/// assert_eq!(plugin.make(&options)?.spec().id, "CartPole-v1");
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[repr(C)]
pub struct EnvPlugin {
    context: *mut c_void,
    make: MakeFn,
    free: FreeFn,
}

// SAFETY: the context is a `Send` and `Sync` closure, see `EnvPlugin::new`, and is only read until it is freed.
unsafe impl Send for EnvPlugin {}
// SAFETY: see the `Send` implementation.
unsafe impl Sync for EnvPlugin {}

impl std::fmt::Debug for EnvPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvPlugin").finish_non_exhaustive()
    }
}

impl EnvPlugin {
    /// Name of the capsule that holds a plugin.
    ///
    /// The name changes with the interface, so that libraries compiled for another interface are rejected.
    pub const NAME: &'static CStr = c"rlox.EnvPlugin.2";

    /// Creates a plugin from the function `make`, which creates the environments.
    ///
    /// `make` usually calls [`MakeOptions::build_vec_env`] with an [`crate::Env`]. It may return any [`VectorEnv`] that
    /// follows the options. The caller receives errors and panics of `make` and of the environments as errors.
    ///
    /// The library links its own copy of `rlox-core`, which has its own threads. A check that the
    /// host program sets with [`crate::interrupt::set_interrupt_check`] does not apply in this copy,
    /// so that Ctrl-C does not interrupt long calls in the library.
    pub fn new<F>(make: F) -> Self
    where
        F: Fn(&MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> + Send + Sync + 'static,
    {
        let context = Box::into_raw(Box::new(make)).cast();
        Self { context, make: exports::make::<F>, free: exports::free::<F> }
    }

    /// Creates environments. The environments may outlive the plugin, but not the library.
    ///
    /// # Errors
    /// The errors of the library's function. [`crate::Error::Backend`] if the function panics. [`crate::Error::Config`]
    /// if the number of environments or the autoreset mode differs from the options. [`crate::Error::Space`] if a space
    /// is invalid.
    pub fn make(&self, options: &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> {
        let (words, mut handle) = (codec::encode_options(options), MaybeUninit::<EnvHandle>::uninit());
        let mut call = Call { words: words.as_slice().into(), ..Call::default() };
        // SAFETY: the context belongs to the function, and the pointers are valid during the call.
        abi::request(|reply| unsafe { (self.make)(self.context, &raw mut call, reply, handle.as_mut_ptr()) })?;
        // SAFETY: the call has succeeded, so the handle is initialised.
        let handle = unsafe { handle.assume_init() };
        Ok(Box::new(Hosted::new(handle, options)?))
    }
}

impl Drop for EnvPlugin {
    fn drop(&mut self) {
        // SAFETY: the context is owned by `self` and not used afterwards.
        unsafe { (self.free)(self.context) }
    }
}
