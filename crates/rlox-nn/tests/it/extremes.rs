//! Distributions and optimiser steps near the limits of f32.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Actions, ActionsMut, Error, Pcg64, Result, Space};
use rlox_nn::{DistInputs, Distribution, Learnable, NamedTensors, Optimizer, Parameters, clip_and_step};

/// Returns the log-probability, the entropy, and the gradient of `log_prob - 1000 * entropy`.
fn evaluate_and_differentiate(
    space: &Space,
    outputs: &[f32],
    masks: Option<&[bool]>,
    actions: &[i64],
) -> (f32, f32, Vec<f32>) {
    let mut distribution = Distribution::new(space, 0.0).unwrap();
    let inputs = DistInputs { outputs, hidden: &[], masks };
    let (mut log_prob, mut entropy, mut gradient) = ([9.0], [9.0], vec![9.0; outputs.len()]);
    distribution.evaluate(inputs, Actions::Discrete(actions), &mut log_prob, &mut entropy).unwrap();
    distribution.backward(inputs, Actions::Discrete(actions), &[1.0], -1000.0, &mut gradient).unwrap();
    // Actions of probability 0 are never sampled.
    let mut sampled = vec![9; actions.len()];
    let mut likeliest = sampled.clone();
    for seed in 0..20 {
        let rngs = &mut [Pcg64::seed_from(seed)];
        distribution.sample(inputs, rngs, ActionsMut::Discrete(&mut sampled), &mut [0.0]).unwrap();
        distribution.mode(inputs, ActionsMut::Discrete(&mut likeliest)).unwrap();
        assert_eq!(sampled, likeliest);
    }
    (log_prob[0], entropy[0], gradient)
}

#[test]
fn extreme_logits_give_certain_choices() {
    let (far, mid) = ([3e38, -3e38], [100.0, -1e37]);
    for masks in [None, Some(&[true; 2][..])] {
        for logits in [far, mid] {
            assert_eq!(
                evaluate_and_differentiate(&Space::discrete(2), &logits, masks, &[0]),
                (0.0, 0.0, vec![0.0; 2]),
                "{logits:?}"
            );
            let (log_prob, entropy, gradient) = evaluate_and_differentiate(&Space::discrete(2), &logits, masks, &[1]);
            assert!(log_prob.is_finite() && log_prob <= -1e37, "{log_prob}");
            assert_eq!((entropy, gradient), (0.0, vec![-1.0, 1.0]), "{logits:?}");
        }
    }
    // The log-probability is the sum of two terms, each at the lower limit of f32.
    let two = Space::MultiDiscrete { nvec: vec![2, 2] };
    for masks in [None, Some(&[true; 4][..])] {
        let (log_prob, entropy, gradient) = evaluate_and_differentiate(&two, &[far, far].concat(), masks, &[1, 1]);
        assert_eq!((log_prob, entropy, gradient), (f32::MIN, 0.0, vec![-1.0, 1.0, -1.0, 1.0]));
    }
    let bits = Space::MultiBinary { n: 2 };
    for masks in [None, Some(&[true; 4][..])] {
        assert_eq!(evaluate_and_differentiate(&bits, &[3e38, -3e38], masks, &[1, 0]), (0.0, 0.0, vec![0.0; 2]));
        assert_eq!(evaluate_and_differentiate(&bits, &[3e38, -3e38], masks, &[0, 1]), (f32::MIN, 0.0, vec![-1.0, 1.0]));
        assert_eq!(evaluate_and_differentiate(&bits, &[-1e37, 1e37], masks, &[0, 1]), (0.0, 0.0, vec![0.0; 2]));
    }
}

#[test]
fn partial_blocks_step_no_number_twice() {
    // Steps are computed in blocks of 256 numbers. The last block is shorter, but no number may be
    // stepped twice.
    for (count, place) in [(257, 1), (273, 31)] {
        let (mut mean, mut square) = (vec![0.0; count], vec![0.0; count]);
        let (mut parameters, mut gradients) = (vec![0.0; count], vec![0.0; count]);
        // One step of 4e33 keeps the number finite, a second step would overflow.
        (parameters[place], gradients[place]) = (f32::MIN + 5e33, 1.0);
        let update = Optimizer::RmsProp { lr: 1e30, alpha: 1.0 - f32::EPSILON / 2.0, eps: 1e-38 }.update(1);
        assert!(update.apply(1.0, &gradients, [&mut mean, &mut square], &mut parameters), "{count}");
        assert!(parameters.iter().all(|x| x.is_finite()) && parameters[place] < f32::MIN + 2e33);
    }
}

#[test]
fn invalid_scales_change_nothing() {
    let mut parameters = Parameters::new("x", &[1], &[1.0]).unwrap();
    parameters.add_gradients([1.0].into_iter());
    let before = (parameters.tensors(), parameters.optimizer_state(), parameters.named_gradients());
    for scale in [f32::NAN, f32::INFINITY, -1.0] {
        let rejected = assert_rejects(parameters.step(&Optimizer::adam(1e-3), scale), Error::Config, "scale");
        assert_eq!(rejected.got, scale.to_string());
    }
    let rejected = assert_rejects(parameters.step(&Optimizer::adam(1e-3), 3e19), Error::NotFinite, "gradients");
    assert_eq!(rejected.got, "1, whose square overflows");
    assert_eq!((rejected.at.section.as_deref(), rejected.at.row), (Some("x"), Some(0)));
    assert_eq!((parameters.tensors(), parameters.optimizer_state(), parameters.named_gradients()), before);
    // With scale 0 the parameters do not change.
    parameters.step(&Optimizer::adam(1e-3), 0.0).unwrap();
    assert_eq!(parameters.values(), [1.0]);
}

/// Parameter of one number whose squared gradient is computed in f64 and not checked.
struct Wide {
    gradient: [f32; 1],
    /// First moment, second moment and value.
    state: [[f32; 1]; 3],
}

impl Learnable for Wide {
    fn sum_of_squares(&mut self) -> Result<f64> {
        Ok(f64::from(self.gradient[0]).powi(2))
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        let [mean, square, number] = &mut self.state;
        assert!(optimizer.update(1).apply(scale, &self.gradient, [mean, square], number));
        self.zero_grad();
        Ok(())
    }

    fn named_gradients(&self) -> NamedTensors {
        let mut gradients = NamedTensors::default();
        gradients.push("x", &[1], self.gradient.to_vec()).unwrap();
        gradients
    }

    fn zero_grad(&mut self) {
        self.gradient = [0.0];
    }
}

#[test]
fn overflow_in_one_part_steps_no_part() {
    for optimizer in [Optimizer::adam(1e-3), Optimizer::rms_prop(1e-3)] {
        for (max_norm, overflows) in [(None, true), (Some(2e19), true), (Some(0.5), false)] {
            let mut small = Parameters::new("x", &[1], &[1.0]).unwrap();
            let before = (small.tensors(), small.optimizer_state(), small.named_gradients());
            small.add_gradients([1.0].into_iter());
            let mut large = Wide { gradient: [3e19], state: [[0.0], [0.0], [1.0]] };
            let parts = &mut [("small", &mut small as &mut dyn Learnable), ("large", &mut large)];
            let done = clip_and_step(parts, &optimizer, max_norm);
            assert_eq!((&small.named_gradients(), large.gradient), (&before.2, [0.0]));
            if overflows {
                let rejected = assert_rejects(done, Error::NotFinite, "gradients");
                assert_eq!(rejected.got, "30000000000000000000, whose square overflows");
                assert_eq!((rejected.at.section.as_deref(), rejected.at.row), (Some("large.x"), Some(0)));
                assert_eq!((small.tensors(), small.optimizer_state(), small.named_gradients()), before);
                assert_eq!(large.state, [[0.0], [0.0], [1.0]]);
            } else {
                assert_eq!(done.unwrap(), 3e19);
                assert!(large.state[1][0].is_finite() && large.state[2][0] < 1.0, "{:?}", large.state);
            }
        }
    }
}
