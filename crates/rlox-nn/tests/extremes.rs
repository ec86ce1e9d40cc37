//! Distributions near the ends of f32.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{Actions, ActionsMut, Pcg64, Space};
use rlox_nn::{Distribution, Given};

/// The log-probability and the entropy of an action, and the gradient of the one less that of a thousand of the other.
fn said(space: &Space, outputs: &[f32], masks: Option<&[bool]>, actions: &[i64]) -> (f32, f32, Vec<f32>) {
    let mut distribution = Distribution::new(space, 0.0).unwrap();
    let given = Given { outputs, hidden: &[], masks };
    let (mut log_prob, mut entropy, mut gradient) = ([9.0], [9.0], vec![9.0; outputs.len()]);
    distribution.evaluate(given, Actions::Discrete(actions), &mut log_prob, &mut entropy).unwrap();
    distribution.backward(given, Actions::Discrete(actions), &[1.0], -1000.0, &mut gradient).unwrap();
    // What has no probability is not chosen.
    let mut sampled = vec![9; actions.len()];
    let mut likeliest = sampled.clone();
    for seed in 0..20 {
        let rngs = &mut [Pcg64::seed_from(seed)];
        distribution.sample(given, rngs, ActionsMut::Discrete(&mut sampled), &mut [0.0]).unwrap();
        distribution.mode(given, ActionsMut::Discrete(&mut likeliest)).unwrap();
        assert_eq!(sampled, likeliest);
    }
    (log_prob[0], entropy[0], gradient)
}

#[test]
fn logits_however_far_apart_are_a_sure_choice() {
    let (far, mid) = ([3e38, -3e38], [100.0, -1e37]);
    for masks in [None, Some(&[true; 2][..])] {
        for logits in [far, mid] {
            assert_eq!(said(&Space::discrete(2), &logits, masks, &[0]), (0.0, 0.0, vec![0.0; 2]), "{logits:?}");
            let (log_prob, entropy, gradient) = said(&Space::discrete(2), &logits, masks, &[1]);
            assert!(log_prob.is_finite() && log_prob <= -1e37, "{log_prob}");
            assert_eq!((entropy, gradient), (0.0, vec![-1.0, 1.0]), "{logits:?}");
        }
    }
    // The sum of two that are as far behind as numbers go.
    let two = Space::MultiDiscrete { nvec: vec![2, 2] };
    for masks in [None, Some(&[true; 4][..])] {
        let (log_prob, entropy, gradient) = said(&two, &[far, far].concat(), masks, &[1, 1]);
        assert_eq!((log_prob, entropy, gradient), (f32::MIN, 0.0, vec![-1.0, 1.0, -1.0, 1.0]));
    }
    let bits = Space::MultiBinary { n: 2 };
    for masks in [None, Some(&[true; 4][..])] {
        assert_eq!(said(&bits, &[3e38, -3e38], masks, &[1, 0]), (0.0, 0.0, vec![0.0; 2]));
        assert_eq!(said(&bits, &[3e38, -3e38], masks, &[0, 1]), (f32::MIN, 0.0, vec![-1.0, 1.0]));
        assert_eq!(said(&bits, &[-1e37, 1e37], masks, &[0, 1]), (0.0, 0.0, vec![0.0; 2]));
    }
}
