//! A backend's hand-written vector-Jacobian product equals its library's automatic differentiation.

use rlox_nn::{Activation, NamedTensors, Network};

use crate::{ACTIVATIONS, Make, assert_near, draws, pair};

/// Output of `y = f(x)` and gradients of `sum(dy y)`, from a library.
#[derive(Debug)]
pub struct Derivatives {
    pub y: Vec<f32>,
    pub dx: Vec<f32>,
    /// Gradients of the parameters, in their order.
    pub parameters: Vec<Vec<f32>>,
}

/// Differentiates a network of a library's own operations: parameters, activation, `x`, `dy`, rows.
pub type Differentiate = fn(&NamedTensors, Activation, &[f32], &[f32], usize) -> Derivatives;

pub fn gradients_equal_the_librarys_own<N: Network>(make: Make<N>, differentiate: Differentiate) {
    for activation in ACTIVATIONS {
        for (sizes, rows) in [(&[3, 2][..], 1), (&[1, 1, 1], 3), (&[5, 20, 17, 3], 13), (&[4, 64, 64, 2], 64)] {
            let what = format!("{activation:?}, {sizes:?}, {rows} rows");
            let (mut net, _) = pair(make, sizes, activation);
            let (x, dy) = (draws(rows * net.in_dim(), 1), draws(rows * net.out_dim(), 2));
            let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
            net.forward(&x, rows, &mut y).unwrap();
            net.backward(&dy, true, Some(&mut dx)).unwrap();
            let expected = differentiate(&net.tensors(), activation, &x, &dy, rows);
            assert_near(&y, &expected.y, &format!("{what}: y"));
            assert_near(&dx, &expected.dx, &format!("{what}: dx"));
            let gradients = net.gradients();
            assert_eq!(gradients.len(), expected.parameters.len());
            for (gradient, expected) in gradients.iter().zip(&expected.parameters) {
                assert!(expected.iter().any(|x| *x != 0.0), "{what}: {}", gradient.name);
                assert_near(&gradient.data, expected, &format!("{what}: {}", gradient.name));
            }
        }
    }
}
