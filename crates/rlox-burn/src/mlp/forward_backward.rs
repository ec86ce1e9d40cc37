//! Forward pass, vector-Jacobian product and optimiser formulas on Burn's tensors.
//!
//! A pre-activation is the input of an activation, `x w^T + b`. The flat tensor holds all
//! parameters in one dimension: the weight matrix and the bias of each layer, first layer first.
//! This order is called flat order.

use burn::tensor::{Tensor, activation};
use rlox_nn::{Activation, LayerLayout, MlpLayout, Update};

use crate::tensor::in_place;

/// Parameters of a layer, as views of the flat tensor.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// `[outputs, inputs]`.
    weight: Tensor<2>,
    /// `[1, outputs]`.
    bias: Tensor<2>,
}

/// Returns the layers as views of the flat tensor.
pub(crate) fn views(layout: &MlpLayout, flat: &Tensor<1>) -> Vec<Layer> {
    let view = |LayerLayout { weight, bias, outputs, inputs }| {
        let weight = flat.clone().slice(weight).reshape([outputs, inputs]);
        Layer { weight, bias: flat.clone().slice(bias).reshape([1, outputs]) }
    };
    layout.layers().map(view).collect()
}

/// Data of a forward pass that the vector-Jacobian product needs.
#[derive(Clone, Debug)]
pub(crate) struct ForwardCache {
    pub(crate) rows: usize,
    /// Input of each layer, `[rows, inputs]`. The input of the last layer is the last hidden layer,
    /// if there is one.
    pub(crate) inputs: Vec<Tensor<2>>,
    /// Pre-activations of the hidden layers; empty if the derivative is a function of the output.
    sums: Vec<Tensor<2>>,
}

/// Activation of the hidden layers, and the choice of its implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hidden {
    pub(crate) activation: Activation,
    /// True to compute activations with [`rlox_nn`] on the CPU, where Burn's own operations compute
    /// one number at a time.
    pub(crate) cpu: bool,
}

impl Hidden {
    /// Returns the outputs and the data for [`Hidden::backward`].
    ///
    /// If `keep` is false, the data has only the input of the last layer, and other tensors are
    /// freed early.
    pub(crate) fn forward(self, layers: &[Layer], x: Tensor<2>, keep: bool) -> (Tensor<2>, ForwardCache) {
        let mut cache = ForwardCache { rows: x.dims()[0], inputs: Vec::with_capacity(layers.len()), sums: Vec::new() };
        let (mut h, last) = (x, layers.len() - 1);
        for (i, Layer { weight, bias }) in layers.iter().enumerate() {
            let sum = h.clone().matmul(weight.clone().transpose()) + bias.clone();
            if keep || i == last {
                cache.inputs.push(h);
            }
            if i == last {
                return (sum, cache);
            }
            if keep && self.activation.needs_inputs() {
                cache.sums.push(sum.clone());
            }
            h = self.activate(sum);
        }
        (h, cache)
    }

    /// Propagates the gradient `dy` of the outputs backwards through the layers.
    ///
    /// `dh` is an additional gradient of the last hidden layer. Returns the gradients of all
    /// parameters in flat order if `params` is true, and the gradient of the input if `input` is
    /// true.
    pub(crate) fn backward(
        self,
        layers: &[Layer],
        cache: &mut ForwardCache,
        (dy, mut dh): (Tensor<2>, Option<Tensor<2>>),
        params: bool,
        input: bool,
    ) -> (Option<Tensor<1>>, Option<Tensor<2>>) {
        let (mut delta, mut gradients) = (dy, Vec::with_capacity(2 * layers.len()));
        for (i, Layer { weight, .. }) in layers.iter().enumerate().rev() {
            if params {
                let [outputs, inputs] = weight.dims();
                gradients.push(delta.clone().sum_dim(0).reshape([outputs]));
                let product = delta.clone().transpose().matmul(cache.inputs[i].clone());
                gradients.push(product.reshape([outputs * inputs]));
            }
            if i > 0 {
                let operand = cache.sums.get_mut(i - 1).unwrap_or(&mut cache.inputs[i]);
                let back = delta.matmul(weight.clone());
                let back = match dh.take() {
                    Some(dh) => back + dh,
                    None => back,
                };
                delta = self.differentiate(back, operand);
            } else if input {
                delta = delta.matmul(weight.clone());
            }
        }
        // The loop computed the gradients from the last layer's bias to the first layer's weight.
        gradients.reverse();
        (params.then(|| Tensor::cat(gradients, 0)), input.then_some(delta))
    }

    fn activate(self, mut sum: Tensor<2>) -> Tensor<2> {
        match self.activation {
            activation if self.cpu => {
                in_place([&mut sum], |[sum]| activation.apply(sum));
                sum
            }
            Activation::Tanh => activation::tanh(sum),
            Activation::Relu => activation::relu(sum),
            Activation::Silu => activation::silu(sum),
            // On some devices, Burn's own GELU has the derivative of the tanh approximation.
            Activation::Gelu => sum.clone() * distribution(sum),
        }
    }

    /// Multiplies the gradient `back` by the derivative of the activation.
    ///
    /// `operand` is the pre-activation or the output, whichever the derivative is a function of.
    fn differentiate(self, mut back: Tensor<2>, operand: &mut Tensor<2>) -> Tensor<2> {
        if self.cpu {
            in_place([&mut back, operand], |[back, of]| self.activation.multiply_by_derivative(of, back));
            return back;
        }
        let operand = operand.clone();
        match self.activation {
            Activation::Tanh => back * (-operand.square() + 1.0),
            Activation::Relu => back.mask_fill(operand.lower_equal_elem(0.0), 0.0),
            Activation::Silu => {
                // The derivative is s (1 + z (1 - s)) with the logistic function s(z).
                let s = activation::sigmoid(operand.clone());
                back * (s.clone() * (operand * (-s + 1.0) + 1.0))
            }
            Activation::Gelu => {
                // The derivative is Phi(z) + z phi(z). The density phi has the factor 1 / sqrt(2
                // pi).
                let density = (operand.clone().square() * -0.5).exp() * 0.398_942_3;
                back * (distribution(operand.clone()) + operand * density)
            }
        }
    }
}

/// Returns the cumulative distribution function of the standard normal distribution.
fn distribution(z: Tensor<2>) -> Tensor<2> {
    (z * std::f32::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5
}

/// Returns the parameters and the running means after an optimiser step, in flat order.
pub(crate) fn apply_update(
    update: Update,
    gradients: Tensor<1>,
    flat: Tensor<1>,
    [mean, square]: [Tensor<1>; 2],
) -> (Tensor<1>, [Tensor<1>; 2]) {
    // `1 - decay` is computed in f64, as in the built-in network.
    let blend = |decay: f32, a: Tensor<1>, b: Tensor<1>| a * decay + b * (1.0 - f64::from(decay)) as f32;
    match update {
        Update::Adam { beta1, beta2, eps, step_size, root_scale, decay } => {
            let square = blend(beta2, square, gradients.clone().square());
            let mean = blend(beta1, mean, gradients);
            let step = mean.clone() / (square.clone().sqrt() * root_scale + eps) * step_size;
            let decayed = if decay == 1.0 { flat } else { flat * decay };
            (decayed - step, [mean, square])
        }
        Update::RmsProp { lr, alpha, eps } => {
            let square = blend(alpha, square, gradients.clone().square());
            let step = gradients / (square.clone().sqrt() + eps) * lr;
            (flat - step, [mean, square])
        }
    }
}

#[cfg(test)]
mod tests {
    use rlox_core::{Pcg64, Result};
    use rlox_nn::Init;
    use rlox_testkit::agreement;

    use super::Activation;
    use crate::BurnMlp;

    fn make_generic(sizes: &[usize], activation: Activation, init: Init, rng: &mut Pcg64) -> Result<BurnMlp> {
        let mut net = BurnMlp::new(sizes, activation, init, rng)?;
        net.force_generic_path();
        Ok(net)
    }

    #[test]
    fn generic_path_equals_built_in_network() {
        agreement::passes_equal_built_in_network(make_generic);
        agreement::optimizers_equal_built_in_network(make_generic);
        agreement::soft_updates_interpolate_parameters(make_generic);
        agreement::clones_are_independent(make_generic);
    }
}
