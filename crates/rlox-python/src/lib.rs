//! The extension module `rlox._rlox`: arrays in, arrays out, errors mapped. No logic of its own.
#![allow(
    clippy::doc_markdown,
    clippy::needless_pass_by_value,
    clippy::too_many_arguments,
    clippy::type_complexity,
    reason = "the documentation is Python's docstrings, and signatures follow Python's keywords and tuples"
)]

mod argument;
mod array;
mod asarray;
mod detach;
mod error;
mod flags;
mod gae;
mod interrupt;
mod llm;
mod machine;
mod make;
mod native;
mod normalize;
mod observation;
mod phases;
mod readable;
mod recycling;
#[cfg(feature = "grpc")]
mod remote;
mod replay;
mod returns;
mod rollout;
mod said;
mod scalar;
mod seeds;
mod settings;
mod shared;
mod state;
mod step_arrays;
mod trajectory;
mod vector;
mod vtrace;
mod whole;

use pyo3::prelude::*;

#[pymodule]
mod _rlox {
    #[pymodule_export]
    use crate::gae::{compute_gae, compute_gae_batched};
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
    use crate::machine::{isa, num_threads};
    #[pymodule_export]
    use crate::make::{available_memory, env_ids};
    #[pymodule_export]
    use crate::native::{NativeActors, NativeAgent, NativePolicy, network_backends};
    #[pymodule_export]
    use crate::normalize::{Normalizer, RunningMeanStd};
    #[pymodule_export]
    use crate::phases::{enter_phase, phase_seconds, start_phases, stop_phases};
    #[cfg(feature = "grpc")]
    #[pymodule_export]
    use crate::remote::{remote_actors, remote_env, run_worker};
    #[pymodule_export]
    use crate::replay::{GoalReplayBuffer, MmapReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer};
    #[pymodule_export]
    use crate::returns::{compute_lambda_returns, compute_returns};
    #[pymodule_export]
    use crate::rollout::RolloutBuffer;
    #[pymodule_export]
    use crate::said::{check_normalizer, check_step};
    #[pymodule_export]
    use crate::vector::NativeVectorEnv;
    #[pymodule_export]
    use crate::vtrace::compute_vtrace;
    #[pymodule_export]
    use crate::whole::{read_rollout, write_rollout};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.py().import("rlox._errors")?; // so that raising an error imports nothing
        if cfg!(debug_assertions) {
            let text = c"rlox was built without optimisation and is many times slower; build it with --release";
            PyErr::warn(module.py(), &module.py().get_type::<pyo3::exceptions::PyRuntimeWarning>(), text, 1)?;
        }
        for error in
            [rlox_core::simd::check_setting(), rlox_core::check_num_threads()].into_iter().filter_map(Result::err)
        {
            let text = std::ffi::CString::new(error.to_string())?;
            PyErr::warn(module.py(), &module.py().get_type::<pyo3::exceptions::PyRuntimeWarning>(), &text, 1)?;
        }
        rlox_core::set_interrupt_check(crate::interrupt::interrupted);
        crate::detach::find_main(module.py())?;
        if let Ok(register) = module.py().import("os")?.getattr("register_at_fork") {
            let keywords = PyDict::new(module.py());
            keywords.set_item("after_in_child", wrap_pyfunction!(crate::detach::after_fork, module)?)?;
            register.call((), Some(&keywords))?;
        }
        Ok(())
    }
}
