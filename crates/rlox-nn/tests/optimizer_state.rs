//! What an optimiser keeps is taken over whole, or not at all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod learners;

use learners::twin_critics;
use rlox_core::{EnvSpec, Pcg64, Space};
use rlox_nn::{ActionValue, Activation, ActorCritic, NamedTensors, PolicyNetworks};

/// A state in which everything has changed, and one tensor's numbers are `x`.
fn with(state: &NamedTensors, name: &str, x: f32) -> NamedTensors {
    let mut changed = NamedTensors::default();
    for tensor in state {
        let here = if tensor.name == name { x } else { 1.0 };
        changed.push(tensor.name.clone(), &tensor.shape, vec![here; tensor.data.len()]).unwrap();
    }
    changed
}

#[test]
fn a_state_that_is_refused_in_a_later_part_leaves_the_earlier_ones() {
    let [observation, action] = [Space::uniform_box(-1.0, 1.0, &[3]), Space::uniform_box(-1.0, 1.0, &[2])];
    let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
    let mut policy = PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let mut critics = twin_critics(8);
    let before = (policy.optimizer_state(), critics.optimizer_state());
    for (name, x, expected) in [
        ("critic.step", 0.5, "state: expected a whole number, at least 0, in \"critic.step\", got 0.5"),
        ("log_std.step", -1.0, "state: expected a whole number, at least 0, in \"log_std.step\", got -1"),
        ("log_std.exp_avg_sq", -0.25, "state: expected numbers, at least 0, in \"log_std.exp_avg_sq\", got -0.25"),
        ("critic.0.bias.exp_avg", f32::NAN, "state: expected finite numbers, got NaN in \"critic.0.bias.exp_avg\""),
    ] {
        let error = policy.load_optimizer_state(&with(&before.0, name, x)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    for (name, x) in [("critic.qf1.step", 0.5), ("critic.qf1.0.weight.exp_avg_sq", -1e-9)] {
        let error = critics.load_optimizer_state(&with(&before.1, name, x)).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    assert_eq!((policy.optimizer_state(), critics.optimizer_state()), before);
    policy.load_optimizer_state(&with(&before.0, "", 0.0)).unwrap();
    assert_eq!(policy.optimizer_state().find("critic.step").unwrap().data, [1.0]);
}
