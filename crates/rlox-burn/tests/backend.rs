//! Backend tests of Burn's network, and a comparison of its gradients with Burn's autodiff.

use burn::tensor::{Device, Tensor, TensorData, activation};
use rlox_burn::BurnMlp;
use rlox_nn::{Activation, NamedTensors};
use rlox_testkit::{
    agreement::{self, Derivatives},
    backend_tests,
};

backend_tests!(BurnMlp::new);

/// Computes outputs and gradients with Burn's autodiff.
fn differentiate(tensors: &NamedTensors, activation: Activation, x: &[f32], dy: &[f32], rows: usize) -> Derivatives {
    let device = Device::flex().autodiff();
    let matrix = |numbers: &[f32], rows: usize| {
        Tensor::<2>::from_data(TensorData::new(numbers.to_vec(), [rows, numbers.len() / rows]), &device)
    };
    let x = matrix(x, rows).require_grad();
    // Biases are matrices of one row.
    let outputs = |shape: &[usize]| if shape.len() == 2 { shape[0] } else { 1 };
    let parameters: Vec<_> =
        tensors.iter().map(|tensor| matrix(&tensor.data, outputs(&tensor.shape)).require_grad()).collect();
    let mut y = x.clone();
    for (i, layer) in parameters.chunks_exact(2).enumerate() {
        if i > 0 {
            y = match activation {
                Activation::Tanh => activation::tanh(y),
                Activation::Relu => activation::relu(y),
                Activation::Silu => activation::silu(y),
                Activation::Gelu => activation::gelu(y),
            };
        }
        y = y.matmul(layer[0].clone().transpose()) + layer[1].clone();
    }
    let gradients = (y.clone() * matrix(dy, rows)).sum().backward();
    let numbers = |tensor: Tensor<2>| tensor.into_data().try_into_vec::<f32>().unwrap();
    let gradient = |leaf: &Tensor<2>| numbers(leaf.grad(&gradients).unwrap());
    Derivatives { dx: gradient(&x), parameters: parameters.iter().map(gradient).collect(), y: numbers(y) }
}

#[test]
fn gradients_equal_burn_autodiff() {
    agreement::gradients_equal_library(BurnMlp::new, differentiate);
}
