//! The built-in network against PyTorch, by the tests of all backends.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "tests")]

use rlox_nn::Mlp;

#[allow(dead_code, reason = "what backends have in common with the built-in network is tested on them")]
#[path = "backend/mod.rs"]
mod backend;

backend_tests! {
    Mlp::new;
    torch: networks_and_their_gradients_equal_torch, optimizers_equal_torch, losses_and_gradients_equal_torch,
        v_trace_and_its_gradients_equal_torch, losses_of_a_hundred_updates_equal_torch;
}
