//! Tests that every network backend of `rlox-nn` must pass.
//!
//! | module | tests |
//! |---|---|
//! | [`agreement`] | outputs, gradients and optimiser steps equal those of [`Mlp`] |
//! | [`bad_input`] | invalid arguments are rejected and change nothing |
//! | [`learning`], [`off_policy`] | algorithms learn on the network |
//! | [`torch`] | weights and optimiser states have torch's names |
//!
//! ```ignore
//! rlox_testkit::backend_tests!(MyNetwork::new);
//! ```
#![allow(clippy::missing_panics_doc, missing_docs, reason = "tests")]

pub mod agreement;
pub mod bad_input;
pub mod learning;
pub mod off_policy;
pub mod torch;

use rlox_core::{Pcg64, Result};
use rlox_nn::{Activation, Init, Mlp, NamedTensors, Network};

/// Constructor of a network.
pub type Make<N> = fn(&[usize], Activation, Init, &mut Pcg64) -> Result<N>;

/// All activation functions.
pub const ACTIVATIONS: [Activation; 4] = [Activation::Tanh, Activation::Relu, Activation::Silu, Activation::Gelu];

/// Returns uniform random numbers in `[-1, 1)`.
pub fn draws(count: usize, seed: u128) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed);
    (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

/// Returns a backend's network and a built-in network with equal weights, from torch's
/// initialisation.
pub fn pair<N: Network>(make: Make<N>, sizes: &[usize], activation: Activation) -> (N, Mlp) {
    let net = make(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
    let built_in = Mlp::new(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
    assert_eq!(net.tensors(), built_in.tensors());
    (net, built_in)
}

/// Asserts that numbers differ by at most `1e-4` times the largest expected magnitude, or `1e-7` if that is larger.
pub fn assert_near(got: &[f32], expected: &[f32], label: &str) {
    assert_eq!(got.len(), expected.len(), "{label}");
    let scale = expected.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= 1e-4 * scale, "{label}[{i}]: {got} instead of {expected}");
    }
}

/// Asserts that tensors have equal names and shapes, and numbers that [`assert_near`] accepts.
pub fn assert_all_near(got: &NamedTensors, expected: &NamedTensors, label: &str) {
    assert_eq!(got.len(), expected.len(), "{label}");
    for tensor in got {
        let expected = expected.find(&tensor.name).unwrap_or_else(|| panic!("{label}: no {}", tensor.name));
        assert_eq!(tensor.shape, expected.shape, "{label}.{}", tensor.name);
        assert_near(&tensor.data, &expected.data, &format!("{label}.{}", tensor.name));
    }
}

/// Defines a test for each listed function, or for all test functions of this crate.
#[macro_export]
macro_rules! backend_tests {
    ($make:expr; $($module:ident: $($name:ident),* $(,)?;)*) => {$($(
        #[test]
        fn $name() {
            $crate::$module::$name($make);
        }
    )*)*};
    ($make:expr) => {
        $crate::backend_tests! {
            $make;
            agreement: passes_equal_built_in_network, optimizers_equal_built_in_network,
                small_gradients_follow_torch_formulas,
                policy_gradients_equal_built_in_network, losses_equal_built_in_network_for_a_hundred_updates,
                weights_and_optimizer_states_round_trip, soft_updates_interpolate_parameters, clones_are_independent,
                rows_do_not_depend_on_each_other;
            torch: networks_and_gradients_equal_torch, optimizers_equal_torch, losses_and_gradients_equal_torch,
                vtrace_and_gradients_equal_torch, losses_equal_torch_for_a_hundred_updates;
            bad_input: invalid_arguments_give_errors_of_built_in_network,
                invalid_tensors_and_networks_give_errors_of_built_in_network,
                parameter_changes_invalidate_forward_pass, nan_gradients_change_nothing,
                gradients_whose_squares_overflow_change_nothing, nan_actions_change_nothing,
                steps_to_infinity_report_the_tensor;
            off_policy: dqn_updates_equal_built_in_network, sac_updates_equal_built_in_network,
                td3_updates_equal_built_in_network;
            learning: training_is_reproducible_from_seed, ppo_improves_on_cartpole;
        }
        #[test]
        #[ignore = "a minute"]
        fn ppo_solves_cartpole() {
            $crate::learning::ppo_solves_cartpole($make);
        }
    };
}
