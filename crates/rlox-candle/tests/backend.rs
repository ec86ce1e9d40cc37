//! Backend tests of Candle's network, and a comparison of its gradients with Candle's autograd.

use candle_core::{Device, Result, Tensor, Var};
use rlox_candle::CandleMlp;
use rlox_nn::{Activation, NamedTensors};
use rlox_testkit::{
    agreement::{self, Derivatives},
    backend_tests,
};

backend_tests!(CandleMlp::new);

/// Computes outputs and gradients with Candle's `Tensor::backward`.
fn differentiate(tensors: &NamedTensors, activation: Activation, x: &[f32], dy: &[f32], rows: usize) -> Derivatives {
    let differentiate = || -> Result<_> {
        let x = Var::from_slice(x, (rows, x.len() / rows), &Device::Cpu)?;
        let parameters = tensors.iter().map(|tensor| Var::from_slice(&tensor.data, &*tensor.shape, &Device::Cpu));
        let parameters = parameters.collect::<Result<Vec<_>>>()?;
        let mut y = x.as_tensor().clone();
        for (i, layer) in parameters.chunks_exact(2).enumerate() {
            if i > 0 {
                y = match activation {
                    Activation::Tanh => y.tanh(),
                    Activation::Relu => y.relu(),
                    Activation::Silu => y.silu(),
                    Activation::Gelu => y.gelu_erf(),
                }?;
            }
            y = y.matmul(&layer[0].t()?)?.broadcast_add(&layer[1])?;
        }
        let dy = Tensor::from_slice(dy, y.shape(), &Device::Cpu)?;
        let gradients = (&y * dy)?.sum_all()?.backward()?;
        let numbers = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let gradient = |leaf: &Var| numbers(gradients.get(leaf).unwrap());
        let all = parameters.iter().map(gradient).collect::<Result<_>>()?;
        Ok(Derivatives { y: numbers(&y)?, dx: gradient(&x)?, parameters: all })
    };
    differentiate().unwrap()
}

#[test]
fn gradients_equal_candle_backward() {
    agreement::gradients_equal_library(CandleMlp::new, differentiate);
}
