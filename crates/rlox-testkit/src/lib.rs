//! Tests for all network backends: `backend_tests!(MyNetwork::new)` in a test module runs them.
#![allow(clippy::missing_panics_doc, missing_docs, reason = "tests")]

pub mod agreement;
pub mod bad_input;
pub mod learning;
pub mod off_policy;
pub mod torch;

use rlox_core::{EnvSpec, Pcg64, Result};
use rlox_nn::{Activation, Distribution, Init, Mlp, NamedTensors, Network, PolicyNetworks};

/// Constructor of a network.
pub type Make<N> = fn(&[usize], Activation, Init, &mut Pcg64) -> Result<N>;

pub const ACTIVATIONS: [Activation; 4] = [Activation::Tanh, Activation::Relu, Activation::Silu, Activation::Gelu];

pub fn draws(count: usize, seed: u128) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed);
    (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

/// Returns a backend's network and a built-in one with the same weights, initialised as in torch.
pub fn pair<N: Network>(make: Make<N>, sizes: &[usize], activation: Activation) -> (N, Mlp) {
    let net = make(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
    let built_in = Mlp::new(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
    assert_eq!(net.tensors(), built_in.tensors());
    (net, built_in)
}

/// Returns an actor and a critic with hidden layers of 20 and 17 units, initialised from a seed.
pub fn policy<N: Network>(make: Make<N>, spec: &EnvSpec, distribution: Distribution, seed: u128) -> PolicyNetworks<N> {
    let mut rng = Pcg64::seed_from(seed);
    let one = |sizes: &[usize], gain| make(sizes, Activation::Tanh, Init::orthogonal(gain), &mut rng);
    PolicyNetworks::with(spec, &[20, 17], distribution, one).unwrap()
}

/// Asserts that numbers differ by at most `1e-4` of the largest one.
pub fn assert_near(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= 1e-4 * scale, "{what}[{i}]: {got} instead of {expected}");
    }
}

pub fn assert_all_near(got: &NamedTensors, expected: &NamedTensors, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for tensor in got {
        let there = expected.find(&tensor.name).unwrap_or_else(|| panic!("{what}: no {}", tensor.name));
        assert_eq!(tensor.shape, there.shape, "{what}.{}", tensor.name);
        assert_near(&tensor.data, &there.data, &format!("{what}.{}", tensor.name));
    }
}

/// Defines one test per requirement.
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
            agreement: passes_equal_the_built_in_networks, optimizers_equal_the_built_in_networks,
                small_gradients_take_the_steps_of_torchs_formulas,
                policy_gradients_equal_the_built_in_networks, losses_of_a_hundred_updates_stay_together,
                weights_and_optimizer_states_go_there_and_back, targets_follow_slowly, clones_go_their_own_way,
                rows_do_not_depend_on_each_other;
            torch: networks_and_their_gradients_equal_torch, optimizers_equal_torch, losses_and_gradients_equal_torch,
                v_trace_and_its_gradients_equal_torch, losses_of_a_hundred_updates_equal_torch;
            bad_input: wrong_arguments_are_refused_in_the_built_in_networks_words,
                wrong_tensors_and_networks_are_refused_in_the_built_in_networks_words,
                a_forward_is_forgotten_once_the_parameters_change, gradients_that_are_no_numbers_change_nothing,
                gradients_whose_squares_overflow_change_nothing, actions_that_are_no_numbers_change_nothing,
                a_step_to_infinity_is_an_error_that_names_the_tensor;
            off_policy: updates_of_dqn_equal_the_built_in_networks, updates_of_sac_equal_the_built_in_networks,
                updates_of_td3_equal_the_built_in_networks;
            learning: a_seed_decides_everything, ppo_learns_to_balance;
        }
        #[test]
        #[ignore = "a minute"]
        fn ppo_solves_cartpole() {
            $crate::learning::ppo_solves_cartpole($make);
        }
    };
}
