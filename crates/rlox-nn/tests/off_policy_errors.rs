//! What is wrong is refused by DQN, SAC and TD3 before anything has changed.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod learners;

use learners::{ACT, DOUBLE, OBS, batch, pair, q_networks, squashed, twin_critics};
use rlox_core::{Pcg64, Space};
use rlox_nn::{
    ActionScaling, ActionValue, Discount, Mlp, Optimizer, QFunction, StochasticPolicy, Temperature, Transitions,
    TwinCritics,
};

#[test]
fn wrong_minibatches_are_named_and_change_nothing() {
    let said = |error: rlox_core::Error| error.to_string();
    let optimizer = Optimizer::adam(1e-3);
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let mut q = q_networks(8);
    let before = q.tensors();
    assert!(said(q.backward().unwrap_err()).contains("call forward first"));
    for (batch, expected) in [
        (
            Transitions { actions: &[0, 1, 3, 0], ..good.transitions() },
            "actions: expected numbers from 0 to 2, got 3 in row 2",
        ),
        (Transitions { rewards: &[0.0; 3], ..good.transitions() }, "rewards: expected 4 elements, got 3"),
        (Transitions { obs: &[0.0; 11], ..good.transitions() }, "obs: expected rows of 3 numbers, got 11 numbers"),
        (
            Transitions { discount: Discount::Same(1.5), ..good.transitions() },
            "discount: expected numbers between 0 and 1",
        ),
        (Transitions { weights: Some(&[1.0; 5]), ..good.transitions() }, "weights: expected 4 elements, got 5"),
        (Transitions { next_masks: Some(&[false; 12]), ..good.transitions() }, "next_masks: expected at least one"),
    ] {
        let error = said(q.update(&batch, DOUBLE, &optimizer, None).unwrap_err());
        assert!(error.starts_with(expected), "{error}");
    }
    let batch = Transitions { rewards: &[0.0, f32::NAN, 0.0, 0.0], ..good.transitions() };
    let error = said(q.update(&batch, DOUBLE, &optimizer, Some(10.0)).unwrap_err());
    assert!(error.contains("NaN in q_net."), "{error}");
    let mut rngs = [Pcg64::seed_from(0)];
    assert!(said(q.act(&[0.0; 3], None, 1.5, &mut rngs, &mut [0]).unwrap_err()).starts_with("epsilon"));
    assert!(said(q.act(&[f32::NAN; 3], None, 0.0, &mut rngs, &mut [0]).unwrap_err()).contains("NaN in row 0"));
    assert!(said(q.track(2.0).unwrap_err()).starts_with("tau"));
    assert_eq!(q.tensors(), before);
}

#[test]
fn wrong_arguments_of_critics_and_actors_are_named_and_change_nothing() {
    let said = |error: rlox_core::Error| error.to_string();
    let optimizer = Optimizer::adam(1e-3);
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let mut critics = twin_critics(8);
    let before = critics.tensors();
    let error = said(critics.update(&good.valued(&[0.0; 3]), 0.5, &optimizer, None).unwrap_err());
    assert!(error.starts_with("targets: expected 4 elements, got 3"), "{error}");
    let error = said(critics.update(&good.valued(&[0.0; 4]), -1.0, &optimizer, None).unwrap_err());
    assert!(error.starts_with("coef"), "{error}");
    let error = said(critics.update(&good.valued(&[f32::NAN; 4]), 0.5, &optimizer, None).unwrap_err());
    assert!(error.contains("NaN in critic.qf0."), "{error}");
    assert_eq!(critics.tensors(), before);
    assert!(TwinCritics::<Mlp>::new(vec![], 3).is_err() && TwinCritics::new(vec![pair(3, 8, 1, 0)], 3).is_err());

    let mut policy = squashed(8, false);
    let before = policy.tensors();
    let error = said(policy.backward(&[], &[]).unwrap_err());
    assert!(error.contains("call rsample first"), "{error}");
    let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
    policy.rsample(&good.obs, &mut Pcg64::seed_from(0), &mut actions, &mut log_probs).unwrap();
    let error = said(policy.update(&good.obs, &mut critics, f32::NAN, &optimizer, None).unwrap_err());
    assert!(error.starts_with("alpha"), "{error}");
    let short = &good.obs[..OBS];
    let error = said(policy.update(short, &mut critics, 0.1, &optimizer, None).unwrap_err());
    assert!(error.starts_with("obs: expected 12 elements, got 3"), "{error}");
    policy.backward(&[f32::NAN; 4 * ACT], &[0.0; 4]).unwrap();
    assert!(said(policy.step(&optimizer, None).unwrap_err()).contains("NaN in actor."));
    assert_eq!(policy.tensors(), before);
}

#[test]
fn wrong_temperatures_and_spaces_are_named() {
    let said = |error: rlox_core::Error| error.to_string();
    let optimizer = Optimizer::adam(1e-3);
    let mut temperature = Temperature::learned(1.0, -1.0).unwrap();
    assert!(said(temperature.update(&[0.0, f32::INFINITY], &optimizer).unwrap_err()).contains("inf in row 1"));
    assert_eq!(temperature.alpha(), 1.0);
    assert!(Temperature::learned(0.0, -1.0).is_err() && Temperature::fixed(-1.0).is_err());
    assert!(said(ActionScaling::new(&Space::discrete(2)).unwrap_err()).contains("a Box"));
    let infinite = Space::uniform_box(f32::NEG_INFINITY, 1.0, &[1]);
    assert!(said(ActionScaling::new(&infinite).unwrap_err()).contains("[-inf, 1] at element 0"));
}
