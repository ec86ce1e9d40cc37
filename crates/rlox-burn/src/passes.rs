//! Forward, vector-Jacobian product and the optimisers' formulas, in operations on Burn's tensors.

use burn::tensor::{Device, Tensor, TensorData, activation};
use rlox_nn::{Activation, LayerLayout, MlpLayout, Update};

/// One layer's parameters.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// `[outputs, inputs]`.
    weight: Tensor<2>,
    /// `[outputs]`.
    bias: Tensor<1>,
}

impl Layer {
    /// The same parameters as leaves of a graph.
    fn leaf(&self) -> Self {
        let Self { weight, bias } = self.clone();
        Self { weight: weight.autodiff().require_grad(), bias: bias.autodiff().require_grad() }
    }
}

/// Layers as parts of all parameters.
pub(crate) fn parts(layout: &MlpLayout, flat: &Tensor<1>) -> Vec<Layer> {
    let part = |layer: LayerLayout| {
        let weight = flat.clone().slice(layer.weight).reshape([layer.outputs, layer.inputs]);
        Layer { weight, bias: flat.clone().slice(layer.bias) }
    };
    layout.layers().map(part).collect()
}

/// Outputs and the last hidden layer; where there is none, the input.
pub(crate) fn forward(layers: &[Layer], activation: Activation, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let mut h = x;
    for (i, layer) in layers.iter().enumerate() {
        let sum = h.clone().matmul(layer.weight.clone().transpose()) + layer.bias.clone().unsqueeze::<2>();
        if i + 1 == layers.len() {
            return (sum, h);
        }
        h = activate(activation, sum);
    }
    (h.clone(), h)
}

fn activate(activation: Activation, sum: Tensor<2>) -> Tensor<2> {
    match activation {
        Activation::Tanh => activation::tanh(sum),
        Activation::Relu => activation::relu(sum),
        Activation::Silu => activation::silu(sum),
        // Burn's own has on some devices the derivative of the approximation by tanh.
        Activation::Gelu => {
            let cumulative = (sum.clone() * std::f32::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
            sum * cumulative
        }
    }
}

/// A forward pass whose gradients may be asked for.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) rows: usize,
    x: Tensor<2>,
    layers: Vec<Layer>,
    pub(crate) hidden: Tensor<2>,
    /// Outputs with the graph behind them. Burn's backward uses it up.
    outputs: Option<Tensor<2>>,
}

impl Clone for Kept {
    /// Without the graph, which clones would share and the first to go backward would use up.
    fn clone(&self) -> Self {
        let Self { rows, x, layers, hidden, .. } = self;
        Self { rows: *rows, x: x.clone(), layers: layers.clone(), hidden: hidden.clone(), outputs: None }
    }
}

/// Gradients of all parameters in the flat order, if wanted, and of the input.
pub(crate) type Gradients = (Option<Tensor<1>>, Tensor<2>);

impl Kept {
    /// The pass, and its outputs without a graph.
    pub(crate) fn forward(layers: &[Layer], activation: Activation, x: Tensor<2>, rows: usize) -> (Self, Tensor<2>) {
        let x = x.autodiff().require_grad();
        let layers: Vec<_> = layers.iter().map(Layer::leaf).collect();
        let (y, hidden) = forward(&layers, activation, x.clone());
        let hidden = hidden.inner();
        (Self { rows, x, layers, hidden, outputs: Some(y.clone()) }, y.inner())
    }

    /// The outputs with a graph: the forward pass is made again where it has been used up.
    pub(crate) fn take_outputs(&mut self, activation: Activation) -> Tensor<2> {
        self.outputs.take().unwrap_or_else(|| forward(&self.layers, activation, self.x.clone()).0)
    }

    /// The vector-Jacobian product.
    pub(crate) fn backward(&self, outputs: Tensor<2>, dy: Tensor<2>, params: bool) -> Option<Gradients> {
        let mut gradients = (outputs * dy.autodiff()).sum().backward();
        let input = self.x.grad_remove(&mut gradients)?;
        if !params {
            return Some((None, input));
        }
        let mut flat = Vec::with_capacity(2 * self.layers.len());
        for Layer { weight, bias } in &self.layers {
            let weight = weight.grad_remove(&mut gradients)?;
            let count = weight.dims().iter().product::<usize>();
            flat.extend([weight.reshape([count]), bias.grad_remove(&mut gradients)?]);
        }
        Some((Some(Tensor::cat(flat, 0)), input))
    }
}

/// Parameters and means after a step, all in the flat order.
pub(crate) fn updated(
    update: Update,
    gradients: Tensor<1>,
    flat: Tensor<1>,
    [mean, square]: [Tensor<1>; 2],
) -> (Tensor<1>, [Tensor<1>; 2]) {
    // `decay a + (1 - decay) b`, the rest taken in f64 as the built-in network does.
    let blend = |decay: f32, a: Tensor<1>, b: Tensor<1>| a * decay + b * (1.0 - f64::from(decay)) as f32;
    match update {
        Update::Adam { beta1, beta2, eps, step_size, root_scale, decay } => {
            let square = blend(beta2, square, gradients.clone().square());
            let mean = blend(beta1, mean, gradients);
            let step = mean.clone() / (square.clone().sqrt() * root_scale + eps) * step_size;
            let kept = if decay == 1.0 { flat } else { flat * decay };
            (kept - step, [mean, square])
        }
        Update::RmsProp { lr, alpha, eps } => {
            let square = blend(alpha, square, gradients.clone().square());
            let step = gradients / (square.clone().sqrt() + eps) * lr;
            (flat - step, [mean, square])
        }
    }
}

/// A slice as rows on a device.
pub(crate) fn rows(numbers: &[f32], rows: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), [rows, numbers.len() / rows]), device)
}

/// Numbers in one row on a device.
pub(crate) fn line(numbers: Vec<f32>, device: &Device) -> Tensor<1> {
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), device)
}

/// The numbers of a tensor, row-major; none if they are of another type.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap_or_default()
}
