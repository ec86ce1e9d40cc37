//! The built-in network against PyTorch and the promises of all backends, by their tests.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "tests")]

use rlox_nn::Mlp;

#[allow(dead_code, reason = "what backends have in common with the built-in network is tested on them")]
#[path = "backend/mod.rs"]
mod backend;

backend_tests! {
    Mlp::new;
    agreement: small_gradients_take_the_steps_of_torchs_formulas;
    bad_input: a_forward_is_forgotten_once_the_parameters_change, gradients_whose_squares_overflow_change_nothing,
        actions_that_are_no_numbers_change_nothing, wrong_arguments_are_refused_in_the_built_in_networks_words;
    torch: networks_and_their_gradients_equal_torch, optimizers_equal_torch, losses_and_gradients_equal_torch,
        v_trace_and_its_gradients_equal_torch, losses_of_a_hundred_updates_equal_torch;
}
