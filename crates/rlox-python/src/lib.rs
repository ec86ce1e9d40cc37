//! The extension module `rlox._rlox`: Python classes and functions over the Rust crates of rlox.
//!
//! The module converts arguments, results and errors. The algorithms are in the other crates.
//!
//! | module | content |
//! |---|---|
//! | `convert`, `sync` | arguments as slices of NumPy's memory; the GIL, borrows and Ctrl-C |
//! | `env`, `rollout`, `normalize` | vector environments, rollout buffers and normalisers |
//! | `advantage`, `llm` | kernels |
//! | `replay` | replay buffers |
//! | `native` | networks, learners and actors without PyTorch |
//! | `remote` | environments and actors on other machines |
//!
//! ```python
//! from rlox import _rlox
//! env = _rlox.NativeVectorEnv("CartPole-v1", 8)
//! ```
#![allow(
    clippy::doc_markdown,
    clippy::needless_pass_by_value,
    clippy::too_many_arguments,
    clippy::type_complexity,
    reason = "the documentation is Python's docstrings, and signatures follow Python's keywords and tuples"
)]

mod advantage;
mod alloc;
mod convert;
mod env;
mod error;
mod llm;
mod native;
mod normalize;
mod profile;
#[cfg(feature = "grpc")]
mod remote;
mod replay;
mod rollout;
mod sync;

use pyo3::prelude::*;

#[pymodule]
mod _rlox {
    #[pymodule_export]
    use crate::advantage::gae::{compute_gae, compute_gae_batched};
    #[pymodule_export]
    use crate::advantage::returns::{compute_lambda_returns, compute_returns};
    #[pymodule_export]
    use crate::advantage::vtrace::compute_vtrace;
    #[pymodule_export]
    use crate::env::make::{available_memory, env_ids};
    #[pymodule_export]
    use crate::env::vec_env::NativeVectorEnv;
    #[pymodule_export]
    use crate::llm::advantage::{compute_batch_group_advantages, compute_group_advantages};
    #[pymodule_export]
    use crate::llm::kl::token_kl;
    #[pymodule_export]
    use crate::llm::packing::{pack_lengths, pack_sequences};
    #[pymodule_export]
    use crate::llm::ratio::{policy_ratio_stats, policy_ratios};
    #[pymodule_export]
    use crate::llm::sequence_kl::{
        compute_batch_token_kl, compute_batch_token_kl_f32, compute_batch_token_kl_schulman,
        compute_batch_token_kl_schulman_f32, compute_token_kl, compute_token_kl_f32, compute_token_kl_schulman,
        compute_token_kl_schulman_f32,
    };
    #[pymodule_export]
    use crate::native::{NativeActors, NativeAgent, NativePolicy, network_backends};
    #[pymodule_export]
    use crate::normalize::{Normalizer, RunningMeanStd};
    #[pymodule_export]
    use crate::profile::{enter_phase, phase_seconds, start_phases, stop_phases};
    #[cfg(feature = "grpc")]
    #[pymodule_export]
    use crate::remote::{remote_actors, remote_env, run_worker};
    #[pymodule_export]
    use crate::replay::hindsight::GoalReplayBuffer;
    #[pymodule_export]
    use crate::replay::prioritized::PrioritizedReplayBuffer;
    #[pymodule_export]
    use crate::replay::{MmapReplayBuffer, ReplayBuffer};
    #[pymodule_export]
    use crate::rollout::{RolloutBuffer, check_normalizer, check_step};
    #[pymodule_export]
    use crate::rollout::{read_rollout, write_rollout};
    #[pymodule_export]
    use crate::{isa, num_threads};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.py().import("rlox._errors")?; // imported here, so that raising an error needs no import
        if cfg!(debug_assertions) {
            let text = c"rlox was built without optimisation and is many times slower; build it with --release";
            PyErr::warn(module.py(), &module.py().get_type::<pyo3::exceptions::PyRuntimeWarning>(), text, 1)?;
        }
        for error in [rlox_core::__private::simd::check_setting(), rlox_core::__private::check_num_threads()]
            .into_iter()
            .filter_map(Result::err)
        {
            let text = std::ffi::CString::new(error.to_string())?;
            PyErr::warn(module.py(), &module.py().get_type::<pyo3::exceptions::PyRuntimeWarning>(), &text, 1)?;
        }
        rlox_core::interrupt::set_interrupt_check(crate::sync::interrupt::interrupted);
        crate::sync::gil::find_main(module.py())?;
        if let Ok(register) = module.py().import("os")?.getattr("register_at_fork") {
            let keywords = PyDict::new(module.py());
            keywords.set_item("after_in_child", wrap_pyfunction!(crate::sync::after_fork, module)?)?;
            register.call((), Some(&keywords))?;
        }
        Ok(())
    }
}

/// Return the SIMD instruction set of native code in this process: "avx512", "avx2" or "portable".
///
/// The default is the best set that the CPU supports. The environment variable RLOX_SIMD can select
/// a lower set.
///
/// >>> from rlox import _rlox
/// >>> _rlox.isa() in ("avx512", "avx2", "portable")
/// True
#[pyfunction]
pub(crate) fn isa() -> &'static str {
    rlox_core::__private::simd::isa().name()
}

/// Return the number of threads that native code uses, at least 1.
///
/// The default is the number of CPUs that are available to the process. The environment variable
/// RLOX_NUM_THREADS replaces the default. It is read once, when native code first needs the number.
///
/// >>> from rlox import _rlox
/// >>> _rlox.num_threads() >= 1
/// True
#[pyfunction]
pub(crate) fn num_threads() -> usize {
    rlox_core::__private::num_threads()
}
