//! Distributions and steps of optimisers near the ends of f32.

use rlox_core::testing::assert_rejects;
use rlox_core::{Actions, ActionsMut, Error, Pcg64, Result, Space};
use rlox_nn::{DistInputs, Distribution, Learnable, NamedTensors, Optimizer, Parameters, clip_and_step};

/// The log-probability and the entropy of an action, and the gradient of the one less that of a thousand of the other.
fn said(space: &Space, outputs: &[f32], masks: Option<&[bool]>, actions: &[i64]) -> (f32, f32, Vec<f32>) {
    let mut distribution = Distribution::new(space, 0.0).unwrap();
    let given = DistInputs { outputs, hidden: &[], masks };
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

#[test]
fn the_block_before_the_last_is_stepped_once() {
    // Blocks are of 256 numbers; what follows them leaves the place of one free.
    for (count, place) in [(257, 1), (273, 31)] {
        let (mut mean, mut square) = (vec![0.0; count], vec![0.0; count]);
        let (mut parameters, mut gradients) = (vec![0.0; count], vec![0.0; count]);
        // A step is 4e33, and a second one would be beyond the smallest number.
        (parameters[place], gradients[place]) = (f32::MIN + 5e33, 1.0);
        let update = Optimizer::RmsProp { lr: 1e30, alpha: 1.0 - f32::EPSILON / 2.0, eps: 1e-38 }.update(1);
        assert!(update.apply(1.0, &gradients, [&mut mean, &mut square], &mut parameters), "{count}");
        assert!(parameters.iter().all(|x| x.is_finite()) && parameters[place] < f32::MIN + 2e33);
    }
}

#[test]
fn a_scale_that_makes_no_sense_changes_nothing() {
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
    // None at all is no step up or down.
    parameters.step(&Optimizer::adam(1e-3), 0.0).unwrap();
    assert_eq!(parameters.values(), [1.0]);
}

/// A part of one number whose square is taken in f64, and that checks nothing itself.
struct Wide {
    gradient: [f32; 1],
    /// The mean, the mean of squares and the number.
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
fn no_part_is_stepped_where_a_square_of_another_overflows() {
    for optimizer in [Optimizer::adam(1e-3), Optimizer::rms_prop(1e-3)] {
        for (most, refused) in [(None, true), (Some(2e19), true), (Some(0.5), false)] {
            let mut small = Parameters::new("x", &[1], &[1.0]).unwrap();
            let before = (small.tensors(), small.optimizer_state(), small.named_gradients());
            small.add_gradients([1.0].into_iter());
            let mut large = Wide { gradient: [3e19], state: [[0.0], [0.0], [1.0]] };
            let parts = &mut [("small", &mut small as &mut dyn Learnable), ("large", &mut large)];
            let done = clip_and_step(parts, &optimizer, most);
            assert_eq!((&small.named_gradients(), large.gradient), (&before.2, [0.0]));
            if refused {
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
