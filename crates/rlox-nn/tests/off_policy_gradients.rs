//! The losses of DQN, SAC and TD3 and their gradients against finite differences.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use proptest::prelude::*;
use rlox_core::Pcg64;
use rlox_nn::losses::{td_loss, temperature_loss};
use rlox_nn::{
    ActionValue, Activation, Critics, DeterministicActor, DeterministicPolicy, Init, Mlp, NamedTensors,
    SquashedGaussian, SquashedPolicy, StochasticPolicy, TdLoss, TwinCritics,
};

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

/// The slope of a function along one of its numbers.
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

/// The same tensors, with one number of one of them moved.
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
    fn td_losses(rows in 1_usize..9, huber: bool, seed: u64) {
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
    fn temperatures(rows in 1_usize..9, log_alpha in -2.0_f32..1.0, seed: u64) {
        let log_probs = draws(rows, seed, 4.0);
        let (_, gradient) = temperature_loss(log_alpha, &log_probs, -1.0).unwrap();
        let difference = slope(&mut [log_alpha], 0, |x| f64::from(temperature_loss(x[0], &log_probs, -1.0).unwrap().0));
        prop_assert!(near(difference, gradient));
    }

    #[test]
    fn squashed_gaussians(rows in 1_usize..5, dim in 1_usize..4, seed: u64) {
        let (mut outputs, noise) = (draws(rows * 2 * dim, seed, 0.9), draws(rows * dim, seed ^ 1, 1.5));
        let (d_actions, d_log_probs) = (draws(rows * dim, seed ^ 2, 1.0), draws(rows, seed ^ 3, 1.0));
        let mut policy = SquashedGaussian::new(dim).unwrap();
        let (mut actions, mut log_probs) = (vec![0.0; rows * dim], vec![0.0; rows]);
        policy.sample(&outputs, &noise, &mut actions, &mut log_probs).unwrap();
        // What was drawn has the log-probability that it was drawn with.
        let mut again = vec![0.0; rows];
        let mut other = SquashedGaussian::new(dim).unwrap();
        other.log_prob(&outputs, &actions, &mut again).unwrap();
        for (one, two) in log_probs.iter().zip(&again) {
            prop_assert!((one - two).abs() < 1e-2, "{} {}", one, two);
        }
        let [mut reparameterised, mut fixed] = [vec![0.0; outputs.len()], vec![0.0; outputs.len()]];
        policy.backward(&outputs, &d_actions, &d_log_probs, &mut reparameterised).unwrap();
        other.log_prob_backward(&outputs, &d_log_probs, &mut fixed).unwrap();
        let given = actions.clone();
        for i in 0..outputs.len() {
            let difference = slope(&mut outputs, i, |outputs| {
                policy.sample(outputs, &noise, &mut actions, &mut log_probs).unwrap();
                dot(&actions, &d_actions) + dot(&log_probs, &d_log_probs)
            });
            prop_assert!(near(difference, reparameterised[i]), "{}: {} {}", i, difference, reparameterised[i]);
            let difference = slope(&mut outputs, i, |outputs| {
                other.log_prob(outputs, &given, &mut again).unwrap();
                dot(&again, &d_log_probs)
            });
            // Third derivatives grow with the distance from the mean.
            let most = 2e-2 * (1.0 + difference.abs());
            prop_assert!((difference - f64::from(fixed[i])).abs() < most, "{}: {} {}", i, difference, fixed[i]);
        }
    }

    #[test]
    fn actions_through_critics(rows in 1_usize..5, count in 1_usize..4, smallest: bool, seed: u64) {
        let pairs = (0..count as u64).map(|i| [mlp(5, 1, seed ^ i), mlp(5, 1, seed ^ i)]).collect();
        let mut critics = TwinCritics::new(pairs, 3).unwrap();
        let which = if smallest { Critics::Smallest } else { Critics::First };
        let (obs, mut actions) = (draws(rows * 3, seed ^ 7, 1.0), draws(rows * 2, seed ^ 8, 1.0));
        let [mut values, mut each] = [vec![0.0; rows], vec![0.0; rows * count]];
        let [mut slopes, mut ignored] = [vec![0.0; rows * 2], vec![0.0; rows * 2]];
        critics.action_gradients(&obs, &actions, which, &mut values, &mut slopes).unwrap();
        critics.values(&obs, &actions, &mut each).unwrap();
        for (row, value) in values.iter().enumerate() {
            let said = (0..if smallest { count } else { 1 }).map(|critic| each[critic * rows + row]);
            prop_assert_eq!(*value, said.clone().fold(f32::INFINITY, f32::min));
            // Near a kink of the minimum, differences mean nothing.
            if said.clone().filter(|other| (other - value).abs() < 0.1).count() > 1 {
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
    fn parameters_of_stochastic_policies(rows in 1_usize..5, state_dependent: bool, seed: u64) {
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
            // Richardson's: where variances are small the loss bends too much for one difference.
            let difference = (4.0 * slope(0.5 * STEP) - slope(STEP)) / 3.0;
            prop_assert!(near(difference, gradient.data[i]), "{}: {} {}", tensor.name, difference, gradient.data[i]);
        }
    }

    #[test]
    fn parameters_of_deterministic_policies(rows in 1_usize..5, seed: u64) {
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
