//! Forward, vector-Jacobian product and the optimisers' formulas, in operations on Candle's tensors.

use candle_core::{DType, Device, Result, Tensor};
use rlox_nn::{Activation, MlpLayout, Update};

use crate::product::product;

/// One layer's parameters: views of the flat array.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// `[outputs, inputs]`.
    weight: Tensor,
    /// `[outputs]`.
    bias: Tensor,
}

/// What a vector-Jacobian product needs of a forward pass.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) rows: usize,
    /// What each layer took, `[rows, inputs]`; the last is the last hidden layer where there is one.
    pub(crate) inputs: Vec<Tensor>,
    /// What activations were applied to, where their derivatives need it.
    sums: Vec<Tensor>,
}

/// Layers as views of all parameters.
pub(crate) fn views(layout: &MlpLayout, flat: &Tensor) -> Result<Vec<Layer>> {
    let view = |layer: rlox_nn::LayerLayout| {
        let weight = flat.narrow(0, layer.weight.start, layer.weight.len())?;
        let bias = flat.narrow(0, layer.bias.start, layer.bias.len())?;
        Ok(Layer { weight: weight.reshape((layer.outputs, layer.inputs))?, bias })
    };
    layout.layers().map(view).collect()
}

/// Outputs, and what backward needs. The tensors of hidden layers are let go of as soon as they can be if not `keep`.
pub(crate) fn forward(layers: &[Layer], activation: Activation, x: Tensor, keep: bool) -> Result<(Tensor, Kept)> {
    let mut kept = Kept { rows: x.dim(0)?, inputs: Vec::with_capacity(layers.len()), sums: Vec::new() };
    let (mut h, last) = (x, layers.len() - 1);
    for (i, layer) in layers.iter().enumerate() {
        let sum = product(&h, &layer.weight.t()?)?.broadcast_add(&layer.bias)?;
        if keep || i == last {
            kept.inputs.push(h);
        }
        if i == last {
            return Ok((sum, kept));
        }
        h = activate(activation, &sum)?;
        if keep && matches!(activation, Activation::Silu | Activation::Gelu) {
            kept.sums.push(sum);
        }
    }
    Ok((h, kept))
}

/// Gradients of the parameters in the flat order, and of the input, each if wanted.
pub(crate) fn backward(
    layers: &[Layer],
    activation: Activation,
    kept: &Kept,
    dy: Tensor,
    params: bool,
    input: bool,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let ones = Tensor::ones((1, kept.rows), DType::F32, dy.device())?;
    let (mut delta, mut gradients) = (dy, Vec::with_capacity(2 * layers.len()));
    for (i, layer) in layers.iter().enumerate().rev() {
        if params {
            // Candle sums columns one number at a time: a product with ones is many times faster.
            gradients.push(product(&ones, &delta)?.flatten_all()?);
            gradients.push(product(&delta.t()?, &kept.inputs[i])?.flatten_all()?);
        }
        if i > 0 {
            let slope = slope(activation, &kept.inputs[i], kept.sums.get(i - 1))?;
            delta = (product(&delta, &layer.weight)? * slope)?;
        } else if input {
            delta = product(&delta, &layer.weight)?;
        }
    }
    // They were found from the last layer's bias on.
    gradients.reverse();
    let gradients = if params { Some(Tensor::cat(&gradients, 0)?) } else { None };
    Ok((gradients, input.then_some(delta)))
}

fn activate(activation: Activation, sum: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Tanh => sum.tanh(),
        Activation::Relu => sum.relu(),
        Activation::Silu => sum.silu(),
        Activation::Gelu => sum.gelu_erf(),
    }
}

/// The derivative of an activation, given what came out of it and, for some, what went in.
fn slope(activation: Activation, out: &Tensor, sum: Option<&Tensor>) -> Result<Tensor> {
    let sum = sum.unwrap_or(out);
    match activation {
        Activation::Tanh => out.sqr()?.affine(-1.0, 1.0),
        Activation::Relu => out.gt(0_f32)?.to_dtype(DType::F32),
        Activation::Silu => {
            // s + h (1 - s), with the logistic function s as a tanh.
            let s = sum.affine(0.5, 0.0)?.tanh()?.affine(0.5, 0.5)?;
            &s + (out * s.affine(-1.0, 1.0)?)?
        }
        Activation::Gelu => {
            // Phi(z) + z phi(z).
            let cumulative = sum.affine(std::f64::consts::FRAC_1_SQRT_2, 0.0)?.erf()?.affine(0.5, 0.5)?;
            let density = sum
                .sqr()?
                .affine(-0.5, 0.0)?
                .exp()?
                .affine(0.5 * std::f64::consts::FRAC_2_SQRT_PI / std::f64::consts::SQRT_2, 0.0)?;
            cumulative + (sum * density)?
        }
    }
}

/// Parameters and means after a step, all in the flat order.
pub(crate) fn updated(
    update: Update,
    gradients: &Tensor,
    flat: &Tensor,
    [mean, square]: [&Tensor; 2],
) -> Result<(Tensor, [Tensor; 2])> {
    // `decay a + (1 - decay) b`, the rest taken in f64 as the built-in network does.
    let blend =
        |decay: f32, a: &Tensor, b: &Tensor| a.affine(decay.into(), 0.0)? + b.affine(1.0 - f64::from(decay), 0.0)?;
    match update {
        Update::Adam { beta1, beta2, eps, step_size, root_scale, decay } => {
            let mean = blend(beta1, mean, gradients)?;
            let square = blend(beta2, square, &gradients.sqr()?)?;
            let root = square.sqrt()?.affine(root_scale.into(), eps.into())?;
            let step = (&mean / root)?.affine(step_size.into(), 0.0)?;
            let kept = if decay == 1.0 { flat.clone() } else { flat.affine(decay.into(), 0.0)? };
            Ok(((kept - step)?, [mean, square]))
        }
        Update::RmsProp { lr, alpha, eps } => {
            let square = blend(alpha, square, &gradients.sqr()?)?;
            let step = (gradients / square.sqrt()?.affine(1.0, eps.into())?)?.affine(lr.into(), 0.0)?;
            Ok(((flat - step)?, [mean.clone(), square]))
        }
    }
}

/// A slice as rows on a device.
pub(crate) fn rows(numbers: &[f32], rows: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_slice(numbers, (rows, numbers.len() / rows), device)
}

/// The numbers of a tensor, row-major.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}
