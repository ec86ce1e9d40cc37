//! Dueling networks: outputs, and gradients against finite differences.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Error, Pcg64};
use rlox_nn::{Activation, Dueling, Init, Mlp, Network, Workspace};

const ROWS: usize = 3;
const ACTIONS: usize = 4;

fn network() -> Mlp {
    Mlp::new(&[2, 8, ACTIONS + 1], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(1)).unwrap()
}

fn draw(len: usize, seed: u128) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed);
    (0..len).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

#[test]
fn q_values_are_value_plus_centred_advantages() {
    let (inner, x) = (network(), draw(2 * ROWS, 2));
    let (mut outputs, mut q_values, mut scratch) = ([0.0; 5 * ROWS], [0.0; 4 * ROWS], Workspace::default());
    inner.infer(&x, ROWS, &mut outputs, &mut scratch).unwrap();
    let mut dueling = Dueling::new(inner).unwrap();
    dueling.infer(&x, ROWS, &mut q_values, &mut scratch).unwrap();
    for (row, q_values) in q_values.chunks(ACTIONS).enumerate() {
        let [a, b, c, d, value] = outputs[5 * row..][..5] else { unreachable!() };
        let mean = (a + b + c + d) / 4.0;
        for (q_value, advantage) in q_values.iter().zip([a, b, c, d]) {
            assert!((q_value - (value + advantage - mean)).abs() < 1e-6);
        }
    }
    let (mut repeated, mut hidden) = ([0.0; 4 * ROWS], [0.0; 8 * ROWS]);
    dueling.forward(&x, ROWS, &mut repeated).unwrap();
    assert_eq!(repeated, q_values);
    dueling.infer_hidden(&x, ROWS, &mut repeated, &mut hidden, &mut scratch).unwrap();
    assert_eq!(repeated, q_values);
}

#[test]
fn gradients_equal_finite_differences() {
    let (mut dueling, x, dy) = (Dueling::new(network()).unwrap(), draw(2 * ROWS, 2), draw(ACTIONS * ROWS, 3));
    let mut y = [0.0; ACTIONS * ROWS];
    let mut dx = [0.0; 2 * ROWS];
    dueling.forward(&x, ROWS, &mut y).unwrap();
    dueling.backward(&dy, true, Some(&mut dx)).unwrap();
    let loss = |dueling: &Dueling<Mlp>, x: &[f32]| -> f64 {
        let mut y = [0.0; ACTIONS * ROWS];
        dueling.infer(x, ROWS, &mut y, &mut Workspace::default()).unwrap();
        y.iter().zip(&dy).map(|(y, dy)| f64::from(y * dy)).sum()
    };
    let step = 1e-2_f32;
    for (i, slope) in dx.iter().enumerate() {
        let (mut more, mut less) = (x.clone(), x.clone());
        more[i] += step;
        less[i] -= step;
        let expected = (loss(&dueling, &more) - loss(&dueling, &less)) / f64::from(2.0 * step);
        assert!((f64::from(*slope) - expected).abs() < 1e-3, "{slope} {expected}");
    }
    let named = "2.bias";
    let gradients = dueling.gradients();
    let (gradient, tensors) = (gradients.find(named).unwrap(), dueling.tensors());
    for i in 0..=ACTIONS {
        let moved = |by: f32| {
            let mut data = tensors.find(named).unwrap().data.clone();
            data[i] += by;
            let mut all = rlox_nn::NamedTensors::default();
            for tensor in &tensors {
                let data = if tensor.name == named { data.clone() } else { tensor.data.clone() };
                all.push(tensor.name.clone(), &tensor.shape, data).unwrap();
            }
            let mut copy = dueling.clone();
            copy.load(&all).unwrap();
            loss(&copy, &x)
        };
        let expected = (moved(step) - moved(-step)) / f64::from(2.0 * step);
        assert!((f64::from(gradient.data[i]) - expected).abs() < 1e-3, "{i}");
    }
}

#[test]
fn backward_hidden_equals_that_of_the_inner_network() {
    let (mut dueling, mut inner, x) = (Dueling::new(network()).unwrap(), network(), draw(2 * ROWS, 2));
    let (dy, dh) = (draw(ACTIONS * ROWS, 3), draw(8 * ROWS, 4));
    dueling.forward(&x, ROWS, &mut [0.0; ACTIONS * ROWS]).unwrap();
    dueling.backward_hidden(&dy, &dh).unwrap();
    // dQ/dA is 1 - 1/n for the same action and -1/n for the others; dQ/dV is 1.
    let mut d_inner = vec![];
    for dy in dy.chunks(ACTIONS) {
        let sum: f32 = dy.iter().sum();
        d_inner.extend(dy.iter().map(|dy| dy - sum / ACTIONS as f32).chain([sum]));
    }
    inner.forward(&x, ROWS, &mut [0.0; (ACTIONS + 1) * ROWS]).unwrap();
    inner.backward_hidden(&d_inner, &dh).unwrap();
    for (got, expected) in dueling.gradients().iter().zip(&inner.gradients()) {
        for (got, expected) in got.data.iter().zip(&expected.data) {
            assert!((got - expected).abs() < 1e-5, "{got} {expected}");
        }
    }
    let before = dueling.gradients();
    assert_eq!(assert_rejects(dueling.backward_hidden(&dy[1..], &dh), Error::Shape, "dy").got, "11");
    assert_eq!(assert_rejects(dueling.backward_hidden(&dy, &dh[1..]), Error::Shape, "dh").got, "23");
    assert_eq!(dueling.gradients(), before);
}

#[test]
fn mismatched_shapes_are_rejected() {
    let narrow = Mlp::new(&[2, 8, 1], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(1)).unwrap();
    assert_eq!(assert_rejects(Dueling::new(narrow), Error::Shape, "network").got, "1");
    let mut dueling = Dueling::new(network()).unwrap();
    let mut y = [0.0; ACTIONS];
    assert_rejects(dueling.backward(&y, true, None), Error::Shape, "dy");
    assert_eq!(assert_rejects(dueling.forward(&[0.0; 4], 2, &mut y), Error::Shape, "y").got, "4");
}

#[test]
fn rejected_forwards_keep_the_previous_one() {
    let (mut dueling, x, dy) = (Dueling::new(network()).unwrap(), draw(2 * ROWS, 2), draw(ACTIONS * ROWS, 3));
    dueling.forward(&x, ROWS, &mut [0.0; ACTIONS * ROWS]).unwrap();
    assert!(dueling.forward(&x, 1, &mut [0.0; ACTIONS]).is_err());
    dueling.backward(&dy, true, None).unwrap();
}
