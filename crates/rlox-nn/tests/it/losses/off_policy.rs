//! Losses of DQN, SAC and TD3: gradients against finite differences, and invalid arguments.

use proptest::prelude::*;
use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{Error, Pcg64, Result, Space};
use rlox_nn::losses::{sac_actor_loss, soft_values, td_loss, td_targets, td3_actor_loss, temperature_loss};
use rlox_nn::{
    ActionScaling, ActionValue, Activation, CriticBatch, CriticEnsemble, CriticReduction, DeterministicActor,
    DeterministicPolicy, Discount, Init, Mlp, NamedTensors, Optimizer, QBatch, QFunction, SquashedGaussian,
    SquashedPolicy, StochasticPolicy, TdLoss, Temperature,
};

use crate::support::learners::{ACT, DOUBLE, OBS, actor, batch, pair, q_networks, squashed, twin_critics};

const STEP: f32 = 1e-2;

fn draws(count: usize, seed: u64, size: f64) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed.into());
    (0..count).map(|_| rng.uniform(-size, size) as f32).collect()
}

fn mlp(inputs: usize, outputs: usize, seed: u64) -> Mlp {
    let init = Init::Orthogonal { hidden: 1.0, output: 1.0 };
    Mlp::new(&[inputs, 9, 8, outputs], Activation::Tanh, init, &mut Pcg64::seed_from(seed.into())).unwrap()
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// Returns the central difference quotient of `f` with respect to `x[i]`.
fn slope(x: &mut [f32], i: usize, mut f: impl FnMut(&[f32]) -> f64) -> f64 {
    let there = x[i];
    x[i] = there + STEP;
    let above = f(x);
    x[i] = there - STEP;
    let below = f(x);
    x[i] = there;
    (above - below) / f64::from(2.0 * STEP)
}

fn near(difference: f64, gradient: f32) -> bool {
    (difference - f64::from(gradient)).abs() < 4e-3 * (1.0 + difference.abs())
}

/// Returns the tensors with `by` added to one number of one tensor.
fn moved(tensors: &NamedTensors, name: &str, i: usize, by: f32) -> NamedTensors {
    let mut all = NamedTensors::default();
    for tensor in tensors {
        let mut data = tensor.data.clone();
        if tensor.name == name {
            data[i] += by;
        }
        all.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn td_loss_gradients_equal_finite_differences(rows in 1_usize..9, huber: bool, seed: u64) {
        let kind = if huber { TdLoss::Huber } else { TdLoss::SquaredError };
        let (mut values, targets) = (draws(rows, seed, 2.0), draws(rows, seed ^ 1, 2.0));
        let weights: Vec<f32> = draws(rows, seed ^ 2, 1.0).iter().map(|x| x.abs()).collect();
        let [mut errors, mut gradient, mut ignored] = [vec![0.0; rows], vec![0.0; rows], vec![0.0; rows]];
        let loss = td_loss(kind, &values, &targets, Some(&weights), 0.5, &mut errors, &mut gradient).unwrap();
        prop_assert!(loss >= 0.0);
        for i in 0..rows {
            prop_assert_eq!(errors[i], targets[i] - values[i]);
            let difference = slope(&mut values, i, |values| {
                f64::from(0.5 * td_loss(kind, values, &targets, Some(&weights), 0.5, &mut errors, &mut ignored).unwrap())
            });
            prop_assert!(near(difference, gradient[i]), "{} {}", difference, gradient[i]);
        }
    }

    #[test]
    fn temperature_gradients_equal_finite_differences(rows in 1_usize..9, log_alpha in -2.0_f32..1.0, seed: u64) {
        let log_probs = draws(rows, seed, 4.0);
        let (_, gradient) = temperature_loss(log_alpha, &log_probs, -1.0).unwrap();
        let difference = slope(&mut [log_alpha], 0, |x| f64::from(temperature_loss(x[0], &log_probs, -1.0).unwrap().0));
        prop_assert!(near(difference, gradient));
    }

    #[test]
    fn squashed_gaussian_gradients_equal_finite_differences(rows in 1_usize..5, dim in 1_usize..4, seed: u64) {
        let (mut outputs, noise) = (draws(rows * 2 * dim, seed, 0.9), draws(rows * dim, seed ^ 1, 1.5));
        let (d_actions, d_log_probs) = (draws(rows * dim, seed ^ 2, 1.0), draws(rows, seed ^ 3, 1.0));
        let mut policy = SquashedGaussian::new(dim).unwrap();
        let (mut actions, mut log_probs) = (vec![0.0; rows * dim], vec![0.0; rows]);
        policy.sample(&outputs, &noise, &mut actions, &mut log_probs).unwrap();
        // The log-probability of the samples equals the result of `sample`.
        let mut recomputed = vec![0.0; rows];
        let mut other = SquashedGaussian::new(dim).unwrap();
        other.log_prob(&outputs, &actions, &mut recomputed).unwrap();
        for (one, two) in log_probs.iter().zip(&recomputed) {
            prop_assert!((one - two).abs() < 1e-2, "{} {}", one, two);
        }
        let [mut reparameterised, mut fixed] = [vec![0.0; outputs.len()], vec![0.0; outputs.len()]];
        policy.backward(&outputs, &d_actions, &d_log_probs, &mut reparameterised).unwrap();
        other.log_prob_backward(&outputs, &d_log_probs, &mut fixed).unwrap();
        let fixed_actions = actions.clone();
        for i in 0..outputs.len() {
            let difference = slope(&mut outputs, i, |outputs| {
                policy.sample(outputs, &noise, &mut actions, &mut log_probs).unwrap();
                dot(&actions, &d_actions) + dot(&log_probs, &d_log_probs)
            });
            prop_assert!(near(difference, reparameterised[i]), "{}: {} {}", i, difference, reparameterised[i]);
            let difference = slope(&mut outputs, i, |outputs| {
                other.log_prob(outputs, &fixed_actions, &mut recomputed).unwrap();
                dot(&recomputed, &d_log_probs)
            });
            // The error of finite differences grows with the distance from the mean, as third
            // derivatives do.
            let most = 2e-2 * (1.0 + difference.abs());
            prop_assert!((difference - f64::from(fixed[i])).abs() < most, "{}: {} {}", i, difference, fixed[i]);
        }
    }

    #[test]
    fn action_gradients_equal_finite_differences(rows in 1_usize..5, count in 1_usize..4, smallest: bool, seed: u64) {
        let pairs = (0..count as u64).map(|i| [mlp(5, 1, seed ^ i), mlp(5, 1, seed ^ i)]).collect();
        let mut critics = CriticEnsemble::new(pairs, 3).unwrap();
        let which = if smallest { CriticReduction::Min } else { CriticReduction::First };
        let (obs, mut actions) = (draws(rows * 3, seed ^ 7, 1.0), draws(rows * 2, seed ^ 8, 1.0));
        let [mut values, mut each] = [vec![0.0; rows], vec![0.0; rows * count]];
        let [mut slopes, mut ignored] = [vec![0.0; rows * 2], vec![0.0; rows * 2]];
        critics.action_gradients(&obs, &actions, which, &mut values, &mut slopes).unwrap();
        critics.values(&obs, &actions, &mut each).unwrap();
        for (row, value) in values.iter().enumerate() {
            let critic_values = (0..if smallest { count } else { 1 }).map(|critic| each[critic * rows + row]);
            prop_assert_eq!(*value, critic_values.clone().fold(f32::INFINITY, f32::min));
            // The minimum of the critics has kinks where two values are equal. Finite differences
            // are wrong near them.
            if critic_values.clone().filter(|other| (other - value).abs() < 0.1).count() > 1 {
                continue;
            }
            for (i, gradient) in slopes.iter().enumerate().skip(row * 2).take(2) {
                let difference = slope(&mut actions, i, |actions| {
                    let mut values = vec![0.0; rows];
                    critics.action_gradients(&obs, actions, which, &mut values, &mut ignored).unwrap();
                    f64::from(values[row])
                });
                prop_assert!(near(difference, *gradient), "{}: {} {}", i, difference, gradient);
            }
        }
        prop_assert!(critics.gradients().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
    }

    #[test]
    fn stochastic_policy_gradients_equal_finite_differences(rows in 1_usize..5, state_dependent: bool, seed: u64) {
        let mut policy = if state_dependent {
            SquashedPolicy::state_dependent(mlp(3, 2, seed), 2, -1.0).unwrap()
        } else {
            SquashedPolicy::new(mlp(3, 4, seed), 2).unwrap()
        };
        let (obs, noise) = (draws(rows * 3, seed ^ 1, 1.0), draws(policy.noise_len(rows), seed ^ 2, 1.5));
        let (d_actions, d_log_probs) = (draws(rows * 2, seed ^ 3, 1.0), draws(rows, seed ^ 4, 1.0));
        let (mut actions, mut log_probs) = (vec![0.0; rows * 2], vec![0.0; rows]);
        policy.rsample_with(&obs, &noise, &mut actions, &mut log_probs).unwrap();
        policy.backward(&d_actions, &d_log_probs).unwrap();
        let (tensors, gradients) = (policy.tensors(), policy.gradients());
        for (tensor, gradient) in tensors.iter().zip(&gradients) {
            let i = seed as usize % tensor.data.len();
            let mut loss = |by: f32| {
                policy.load(&moved(&tensors, &tensor.name, i, by)).unwrap();
                policy.rsample_with(&obs, &noise, &mut actions, &mut log_probs).unwrap();
                dot(&actions, &d_actions) + dot(&log_probs, &d_log_probs)
            };
            let mut slope = |step: f32| (loss(step) - loss(-step)) / f64::from(2.0 * step);
            // Richardson extrapolation reduces the error of the differences, which is large for
            // small variances.
            let difference = (4.0 * slope(0.5 * STEP) - slope(STEP)) / 3.0;
            prop_assert!(near(difference, gradient.data[i]), "{}: {} {}", tensor.name, difference, gradient.data[i]);
        }
    }

    #[test]
    fn deterministic_policy_gradients_equal_finite_differences(rows in 1_usize..5, seed: u64) {
        let mut policy = DeterministicActor::new(mlp(3, 2, seed), mlp(3, 2, seed)).unwrap();
        let (obs, d_actions) = (draws(rows * 3, seed ^ 1, 1.0), draws(rows * 2, seed ^ 2, 1.0));
        let mut actions = vec![0.0; rows * 2];
        policy.forward(&obs, &mut actions).unwrap();
        policy.backward(&d_actions).unwrap();
        let (tensors, gradients) = (policy.tensors(), policy.gradients());
        for gradient in &gradients {
            let i = seed as usize % gradient.data.len();
            let mut loss = |by: f32| {
                policy.load(&moved(&tensors, &gradient.name, i, by)).unwrap();
                policy.act(&obs, &mut actions).unwrap();
                dot(&actions, &d_actions)
            };
            let difference = (loss(STEP) - loss(-STEP)) / f64::from(2.0 * STEP);
            prop_assert!(near(difference, gradient.data[i]), "{}", gradient.name);
        }
    }
}

/// Returns the numbers with NaN at index `at`.
fn with_nan(numbers: &[f32], at: usize) -> Vec<f32> {
    numbers.iter().enumerate().map(|(i, x)| if i == at { f32::NAN } else { *x }).collect()
}

#[test]
fn next_observations_of_terminated_states_are_ignored() {
    let good = batch(4, true, &mut Pcg64::seed_from(5));
    let (mut one, mut other) = (q_networks(8), q_networks(8));
    let expected = one.update(&good.transitions(), DOUBLE, &Optimizer::adam(1e-3), None).unwrap();
    let next = vec![f32::NAN; good.next_obs.len()];
    let anything = QBatch { next_masks: Some(&[false; 12]), next_obs: &next, ..good.transitions() };
    assert_eq!(other.update(&anything, DOUBLE, &Optimizer::adam(1e-3), None).unwrap(), expected);
    assert_eq!(one.tensors(), other.tensors());
    // The third row is not terminal.
    let terminated = [true, true, false, true];
    let masked = QBatch { terminated: &terminated, next_masks: Some(&[false; 12]), ..good.transitions() };
    let result = q_networks(8).update(&masked, DOUBLE, &Optimizer::adam(1e-3), None);
    assert_eq!(assert_rejects(result, Error::Action, "next_masks").at.row, Some(2));
}

#[test]
fn invalid_minibatches_are_rejected_without_changes() {
    let optimizer = Optimizer::adam(1e-3);
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let mut q = q_networks(8);
    let before = q.tensors();
    assert_rejects(q.backward(), Error::Shape, "backward");
    let all = good.transitions();
    let (obs, next_obs) = (with_nan(&good.obs, 4), with_nan(&good.next_obs, 3));
    let cases: [(_, Variant, _, _, _); 10] = [
        (QBatch { actions: &[0, 1, 3, 0], ..all }, Error::Action, "actions", "3", Some(2)),
        (QBatch { rewards: &[0.0; 3], ..all }, Error::Shape, "rewards", "3", None),
        (QBatch { obs: &[0.0; 11], ..all }, Error::Shape, "obs", "11 numbers", None),
        (QBatch { discount: Discount::Same(1.5), ..all }, Error::Config, "discount", "1.5", Some(0)),
        (QBatch { weights: Some(&[1.0; 5]), ..all }, Error::Shape, "weights", "5", None),
        (QBatch { next_masks: Some(&[false; 12]), ..all }, Error::Action, "next_masks", "none", Some(1)),
        (QBatch { rewards: &[0.0, f32::NAN, 0.0, 0.0], ..all }, Error::NotFinite, "rewards", "NaN", Some(1)),
        (QBatch { weights: Some(&[1.0, 1.0, f32::INFINITY, 1.0]), ..all }, Error::NotFinite, "weights", "inf", Some(2)),
        (QBatch { obs: &obs, ..all }, Error::NotFinite, "obs", "NaN", Some(1)),
        (QBatch { next_obs: &next_obs, ..all }, Error::NotFinite, "next_obs", "NaN or infinity", Some(1)),
    ];
    for (batch, variant, argument, got, row) in cases {
        let rejected = assert_rejects(q.update(&batch, DOUBLE, &optimizer, None), variant, argument);
        assert_eq!((&rejected.got[..], rejected.at.row), (got, row), "{argument}");
    }
    let mut rngs = [Pcg64::seed_from(0)];
    assert_rejects(q.act(&[0.0; 3], None, 1.5, &mut rngs, &mut [0]), Error::Config, "epsilon");
    let nan = q.act(&[f32::NAN; 3], None, 0.0, &mut rngs, &mut [0]);
    assert_eq!(nan_row(nan, "obs"), Some(0));
    assert_rejects(q.soft_update(2.0), Error::Config, "tau");
    assert_eq!(q.tensors(), before);
}

/// Asserts that an argument is rejected because of a NaN, and returns the row.
fn nan_row<T>(result: Result<T>, argument: &str) -> Option<usize> {
    let rejected = assert_rejects(result, Error::NotFinite, argument);
    assert_eq!(rejected.got, "NaN", "{argument}");
    rejected.at.row
}

#[test]
fn invalid_arguments_of_critics_and_actors_are_rejected() {
    let optimizer = Optimizer::adam(1e-3);
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let mut critics = twin_critics(8);
    let before = critics.tensors();
    let short = assert_rejects(critics.update(&good.valued(&[0.0; 3]), 0.5, &optimizer, None), Error::Shape, "targets");
    assert_eq!(short.got, "3");
    assert_rejects(critics.update(&good.valued(&[0.0; 4]), -1.0, &optimizer, None), Error::Config, "coef");
    let all = good.valued(&[0.0; 4]);
    for (batch, argument, row) in [
        (good.valued(&[0.0, 0.0, f32::NAN, 0.0]), "targets", 2),
        (CriticBatch { obs: &with_nan(&good.obs, 4), ..all }, "obs", 1),
        (CriticBatch { actions: &with_nan(&good.actions, 7), ..all }, "actions", 3),
        (CriticBatch { weights: Some(&[1.0, f32::NAN, 1.0, 1.0]), ..all }, "weights", 1),
    ] {
        assert_eq!(nan_row(critics.update(&batch, 0.5, &optimizer, None), argument), Some(row), "{argument}");
    }
    assert!(critics.gradients().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
    assert_eq!(critics.tensors(), before);
    assert!(CriticEnsemble::<Mlp>::new(vec![], 3).is_err() && CriticEnsemble::new(vec![pair(3, 8, 1, 0)], 3).is_err());

    let mut policy = squashed(8, false);
    let before = policy.tensors();
    assert_rejects(policy.backward(&[], &[]), Error::Shape, "rsample");
    let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
    policy.rsample(&good.obs, &mut Pcg64::seed_from(0), &mut actions, &mut log_probs).unwrap();
    let result = policy.update(&good.obs, &mut critics, f32::NAN, &optimizer, None);
    assert_rejects(result, Error::Config, "alpha");
    let short = policy.update(&good.obs[..OBS], &mut critics, 0.1, &optimizer, None);
    assert_eq!(assert_rejects(short, Error::Shape, "obs").got, "3");
    policy.backward(&[f32::NAN; 4 * ACT], &[0.0; 4]).unwrap();
    let rejected = assert_rejects(policy.step(&optimizer, None), Error::NotFinite, "gradients");
    assert_eq!(rejected.got, "NaN");
    assert!(rejected.at.section.unwrap().starts_with("actor."));
    assert_eq!(policy.tensors(), before);
}

#[test]
fn invalid_temperatures_and_spaces_are_rejected() {
    let optimizer = Optimizer::adam(1e-3);
    let mut temperature = Temperature::learned(1.0, -1.0).unwrap();
    let infinite = assert_rejects(temperature.update(&[0.0, f32::INFINITY], &optimizer), Error::NotFinite, "log_probs");
    assert_eq!((&infinite.got[..], infinite.at.row), ("inf", Some(1)));
    assert_eq!(temperature.alpha(), 1.0);
    assert!(Temperature::learned(0.0, -1.0).is_err() && Temperature::fixed(-1.0).is_err());
    assert_eq!(assert_rejects(ActionScaling::new(&Space::discrete(2)), Error::Space, "action space").expected, "a Box");
    let infinite = Space::uniform_box(f32::NEG_INFINITY, 1.0, &[1]);
    let rejected = assert_rejects(ActionScaling::new(&infinite), Error::Space, "action space");
    assert_eq!((&rejected.got[..], rejected.at.index), ("[-inf, 1]", Some(0)));
}

#[test]
fn non_finite_policy_outputs_are_rejected_before_sampling() {
    for (state_dependent, huge, expected) in [(false, 0, "mean"), (false, 1, "log_std"), (true, 0, "mean")] {
        let mut policy = squashed(8, state_dependent);
        // Either the means or the log_stds overflow.
        let mut tensors = rlox_nn::NamedTensors::default();
        for tensor in &policy.tensors() {
            let mut data = tensor.data.clone();
            if tensor.name == "actor.4.bias" {
                data[huge * ACT] = f32::MAX;
            }
            if tensor.name == "actor.4.weight" {
                data[huge * ACT * 8..][..8].fill(f32::MAX);
            }
            tensors.push(tensor.name.clone(), &tensor.shape, data).unwrap();
        }
        policy.load(&tensors).unwrap();
        let (obs, mut rng) = ([[0.1; OBS], [50.0; OBS]].concat(), Pcg64::seed_from(3));
        let (mut actions, mut log_probs) = ([9.0; 2 * ACT], [9.0; 2]);
        let before = rng.clone();
        for result in [
            policy.act(&obs, &mut [rng.clone(), rng.clone()], &mut actions, &mut log_probs),
            policy.act_deterministic(&obs, &mut actions),
            policy.sample(&obs, &mut rng, &mut actions, &mut log_probs),
            policy.rsample(&obs, &mut rng, &mut actions, &mut log_probs),
        ] {
            let rejected = assert_rejects(result, Error::NotFinite, expected);
            assert!(rejected.got == "inf" && rejected.at.row.is_some(), "{rejected}");
        }
        assert_eq!((actions, log_probs, &rng), ([9.0; 2 * ACT], [9.0; 2], &before));
        assert_rejects(policy.backward(&[0.0; 2 * ACT], &[0.0; 2]), Error::Shape, "rsample");
    }
}

#[test]
fn non_finite_deterministic_outputs_are_rejected() {
    let mut policy = actor(8);
    let (obs, mut actions) = ([[0.1; OBS], [f32::NAN; OBS]].concat(), [9.0; 2 * ACT]);
    assert_eq!(nan_row(policy.act(&obs, &mut actions), "obs"), Some(1));
    assert_eq!(nan_row(policy.forward(&obs, &mut actions), "obs"), Some(1));
    assert_eq!(actions, [9.0; 2 * ACT]);
    // A rejected forward pass discards the data of the earlier forward pass, so `backward` fails.
    policy.forward(&[0.1; 2 * OBS], &mut actions).unwrap();
    assert!(policy.forward(&obs, &mut [0.0; 2 * ACT]).is_err());
    assert_rejects(policy.backward(&[1.0; 2 * ACT]), Error::Shape, "backward");
    assert!(policy.gradients().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
    let result = q_networks(8).act(&obs, None, 0.0, &mut [0, 1].map(Pcg64::seed_from), &mut [0; 2]);
    assert_eq!(nan_row(result, "obs"), Some(1));
}

#[test]
fn clones_are_independent() {
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let (mut q, mut critics) = (q_networks(8), twin_critics(8));
    let (twin, other) = (q.clone(), critics.clone());
    let (before, values) = (q.tensors(), critics.tensors());
    q.update(&good.transitions(), DOUBLE, &Optimizer::adam(1e-3), None).unwrap();
    critics.update(&good.valued(&[0.5; 4]), 0.5, &Optimizer::adam(1e-3), None).unwrap();
    assert!(twin.tensors() == before && q.tensors() != before);
    assert!(other.tensors() == values && critics.tensors() != values);
    let (mut policy, mut deterministic) = (squashed(8, true), actor(8));
    let (twin, other) = (policy.clone(), deterministic.clone());
    let (before, weights) = (policy.tensors(), deterministic.tensors());
    policy.rsample(&good.obs, &mut Pcg64::seed_from(0), &mut [0.0; 4 * ACT], &mut [0.0; 4]).unwrap();
    policy.update(&good.obs, &mut critics, 0.1, &Optimizer::adam(1e-3), None).unwrap();
    deterministic.update(&good.obs, &mut critics, &Optimizer::adam(1e-3), None).unwrap();
    assert!(twin.tensors() == before && policy.tensors() != before);
    assert!(other.tensors() == weights && deterministic.tensors() != weights);
}

#[test]
fn squashed_gaussians_store_log_prob_and_sample_separately() {
    assert_rejects(SquashedGaussian::new(0), Error::Config, "dim");
    let (outputs, mut two) = ([0.1, 0.0, 0.2, 0.3], [0.0; 2]);
    let mut policy = SquashedGaussian::new(1).unwrap();
    policy.log_prob(&outputs, &[0.5, -0.5], &mut two).unwrap();
    let (mut before, mut after) = ([0.0; 4], [0.0; 4]);
    policy.log_prob_backward(&outputs, &[1.0; 2], &mut before).unwrap();
    policy.mode(&outputs[..2], &mut [0.0]).unwrap();
    policy.sample(&outputs, &[0.4, -0.9], &mut [0.0; 2], &mut two).unwrap();
    policy.log_prob_backward(&outputs, &[1.0; 2], &mut after).unwrap();
    assert_eq!(before, after);
    policy.backward(&outputs, &[1.0; 2], &[0.5; 2], &mut before).unwrap();
    policy.mode(&outputs[..2], &mut [0.0]).unwrap();
    policy.log_prob(&outputs[..2], &[0.5], &mut two[..1]).unwrap();
    policy.backward(&outputs, &[1.0; 2], &[0.5; 2], &mut after).unwrap();
    assert_eq!(before, after);
    for wrong in [1.5, -1.0001, f32::NAN] {
        let mut untouched = [7.0; 2];
        let result = policy.log_prob(&outputs, &[0.5, wrong], &mut untouched);
        let rejected = assert_rejects(result, Error::Action, "actions");
        assert_eq!((rejected.got, rejected.at.row), (wrong.to_string(), Some(1)));
        assert_eq!(untouched, [7.0; 2]);
    }
    // An action of 1 is treated as the largest f32 number below 1.
    policy.log_prob(&outputs, &[1.0, -1.0], &mut two).unwrap();
    let mut next = [0.0; 2];
    policy.log_prob(&outputs, &[1.0_f32.next_down(), (-1.0_f32).next_up()], &mut next).unwrap();
    assert_eq!(two, next);
}

#[test]
fn losses_reject_mismatched_lengths() {
    let (two, one) = (&[0.5, 3.0][..], &[1.0][..]);
    let (mut a, mut b) = ([7.0; 2], [7.0; 2]);
    let squared = TdLoss::SquaredError;
    let flags = [false; 2];
    let rejects = |result: Result<f32>, argument| assert_rejects(result, Error::Shape, argument);
    rejects(td_loss(squared, two, two, Some(one), 1.0, &mut a, &mut b), "weights");
    rejects(td_loss(squared, two, one, None, 1.0, &mut a, &mut b), "targets");
    rejects(td_loss(squared, two, two, None, 1.0, &mut a[..1], &mut b), "td_errors");
    rejects(td_loss(squared, two, two, None, 1.0, &mut a, &mut b[..1]), "d_values");
    rejects(td_loss(squared, &[], &[], None, 1.0, &mut [], &mut []), "values");
    rejects(sac_actor_loss(two, one, 0.1, &mut a, &mut b), "values");
    rejects(sac_actor_loss(two, two, 0.1, &mut a[..1], &mut b), "d_log_probs");
    rejects(sac_actor_loss(two, two, 0.1, &mut a, &mut b[..1]), "d_actions");
    rejects(sac_actor_loss(&[], &[], 0.1, &mut [], &mut []), "log_probs");
    rejects(td3_actor_loss(two, &mut a[..1]), "d_actions");
    rejects(td3_actor_loss(two, &mut []), "d_actions");
    rejects(td3_actor_loss(&[], &mut []), "values");
    assert_rejects(temperature_loss(0.5, &[], -1.0), Error::Shape, "log_probs");
    let rejects = |result: Result<()>, argument| assert_rejects(result, Error::Shape, argument);
    rejects(td_targets(two, &flags, Discount::Each(one), two, &mut a), "discount");
    rejects(td_targets(two, &flags[..1], Discount::Same(0.9), two, &mut a), "terminated");
    rejects(td_targets(two, &flags, Discount::Same(0.9), one, &mut a), "next_values");
    rejects(td_targets(two, &flags, Discount::Same(0.9), two, &mut a[..1]), "targets");
    rejects(soft_values(&mut a, one, 0.1), "log_probs");
    assert_eq!((a, b), ([7.0; 2], [7.0; 2]));
}

#[test]
fn backward_requires_a_forward_with_the_current_weights() {
    let (good, adam) = (batch(4, false, &mut Pcg64::seed_from(5)), Optimizer::adam(1e-3));
    let (mut q, mut td3, mut sac) = (q_networks(8), actor(8), squashed(8, true));
    let (of_q, of_td3, of_sac) = (q.tensors(), td3.tensors(), sac.tensors());
    for change in [0, 1] {
        let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
        q.evaluate(&good.transitions(), DOUBLE).unwrap();
        q.backward().unwrap();
        td3.forward(&good.obs, &mut actions).unwrap();
        td3.backward(&actions).unwrap();
        sac.rsample(&good.obs, &mut Pcg64::seed_from(0), &mut actions, &mut log_probs).unwrap();
        sac.backward(&actions, &log_probs).unwrap();
        if change == 0 {
            q.step(&adam, None).unwrap();
            td3.step(&adam, None).unwrap();
            sac.step(&adam, None).unwrap();
        } else {
            q.load(&of_q).unwrap();
            td3.load(&of_td3).unwrap();
            sac.load(&of_sac).unwrap();
        }
        assert_rejects(q.backward(), Error::Shape, "backward");
        assert_rejects(td3.backward(&actions), Error::Shape, "backward");
        assert_rejects(sac.backward(&actions, &log_probs), Error::Shape, "rsample");
    }
}

#[test]
fn scaling_round_trips_at_the_limits_of_f32() {
    for (low, high) in [(-f32::MAX, f32::MAX), (0.0, f32::MIN_POSITIVE / 8.0)] {
        let scaling = ActionScaling::new(&Space::uniform_box(low, high, &[1])).unwrap();
        let mut actions = [-1.0, 0.0, 1.0, 0.5];
        scaling.scale(&mut actions).unwrap();
        scaling.unscale(&mut actions).unwrap();
        for (got, expected) in actions.iter().zip([-1.0, 0.0, 1.0, 0.5]) {
            assert!((got - expected).abs() < 1e-5, "{low} to {high}: {actions:?}");
        }
    }
}

#[test]
fn actions_with_equal_bounds_are_constant() {
    let (low, high) = (vec![-1.0, 0.1, -3.0], vec![1.0, 0.1, 5.0]);
    let scaling = ActionScaling::new(&Space::Box { low, high, shape: vec![3] }).unwrap();
    for action in [-1.0, -0.7, 0.3, 1.0] {
        let mut actions = [action; 3];
        scaling.scale(&mut actions).unwrap();
        assert_eq!(actions[1], 0.1);
        assert!((actions[0] - action).abs() < 1e-6);
        scaling.unscale(&mut actions).unwrap();
        assert_eq!(actions[1], 0.0);
        assert!((actions[2] - action).abs() < 1e-6);
    }
}
