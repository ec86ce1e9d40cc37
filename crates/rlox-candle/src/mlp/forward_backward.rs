//! Forward pass, vector-Jacobian product and optimiser formulas on Candle's tensors.
//!
//! The CPU uses the operations of [`crate::cpu`]. Other devices use Candle's own operations.
//!
//! A pre-activation is the input of an activation, `x w^T + b`. The flat tensor holds all
//! parameters in one dimension: the weight matrix and the bias of each layer, first layer first.
//! This order is called flat order.

use candle_core::{DType, Result, Tensor};
use rlox_nn::{Activation, LayerLayout, MlpLayout, Update};

use crate::cpu::{Apply, Derivative, Each, EachPair, Gradients, Linear, Product};

/// Parameters of a layer, as views of the flat tensor.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    layout: LayerLayout,
    /// `[outputs, inputs]`.
    weight: Tensor,
    /// `[outputs]`.
    bias: Tensor,
}

/// Data of a forward pass that the vector-Jacobian product needs.
#[derive(Clone, Debug)]
pub(crate) struct ForwardCache {
    pub(crate) rows: usize,
    /// Input of each layer, `[rows, inputs]`. The input of the last layer is the last hidden layer,
    /// if there is one.
    pub(crate) inputs: Vec<Tensor>,
    /// Pre-activations of the hidden layers; empty if the derivative is a function of the output.
    sums: Vec<Tensor>,
}

/// Returns true if the operations of [`crate::cpu`] support a tensor, which is true on the CPU.
pub(crate) fn is_fused(tensor: &Tensor) -> bool {
    #[cfg(test)]
    if tests::FORCE_UNFUSED.get() {
        return false;
    }
    tensor.device().is_cpu()
}

/// Returns the layers as views of the flat tensor.
pub(crate) fn views(layout: &MlpLayout, flat: &Tensor) -> Result<Vec<Layer>> {
    let view = |layout: LayerLayout| {
        let weight = flat.narrow(0, layout.weight.start, layout.weight.len())?;
        let bias = flat.narrow(0, layout.bias.start, layout.bias.len())?;
        Ok(Layer { weight: weight.reshape((layout.outputs, layout.inputs))?, bias, layout })
    };
    layout.layers().map(view).collect()
}

/// Returns the outputs and the data for [`backward`].
///
/// If `keep` is false, the data has only the input of the last layer, and other tensors are freed
/// early.
pub(crate) fn forward(
    layers: &[Layer],
    activation: Activation,
    x: Tensor,
    keep: bool,
) -> Result<(Tensor, ForwardCache)> {
    let mut cache = ForwardCache { rows: x.dim(0)?, inputs: Vec::with_capacity(layers.len()), sums: Vec::new() };
    let (mut h, last) = (x, layers.len() - 1);
    for (i, layer) in layers.iter().enumerate() {
        let sum = linear(&h, layer)?;
        if keep || i == last {
            cache.inputs.push(h);
        }
        if i == last {
            return Ok((sum, cache));
        }
        if keep && activation.needs_inputs() {
            cache.sums.push(sum.copy()?);
        }
        h = activate(activation, sum)?;
    }
    Ok((h, cache))
}

/// Propagates the gradient `dy` of the outputs backwards through the layers.
///
/// `dh` is an additional gradient of the last hidden layer. `all` has the tensor for the gradients
/// of the parameters, in flat order, and true if they are added to its content. Returns the
/// gradient of the network's input if `input` is true.
pub(crate) fn backward(
    layers: &[Layer],
    activation: Activation,
    cache: &ForwardCache,
    (dy, mut dh): (Tensor, Option<Tensor>),
    mut all: Option<(&Tensor, bool)>,
    input: bool,
) -> Result<Option<Tensor>> {
    let mut delta = dy;
    for (i, layer) in layers.iter().enumerate().rev() {
        if let Some((all, add)) = &mut all {
            gradients(layer, &delta, &cache.inputs[i], all, *add)?;
        }
        if i > 0 {
            let mut back = product(&delta, &layer.weight)?;
            if let Some(dh) = dh.take() {
                back = (back + dh)?;
            }
            delta = slopes(activation, back, &cache.inputs[i], cache.sums.get(i - 1))?;
        } else if input {
            delta = product(&delta, &layer.weight)?;
        }
    }
    Ok(input.then_some(delta))
}

fn linear(x: &Tensor, Layer { weight, bias, .. }: &Layer) -> Result<Tensor> {
    if is_fused(x) {
        return x.apply_op3_no_bwd(weight, bias, &Linear);
    }
    x.matmul(&weight.t()?)?.broadcast_add(bias)
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if is_fused(a) { a.apply_op2_no_bwd(b, &Product) } else { a.matmul(b) }
}

/// Writes the gradients of a layer's parameters to `all`, or adds them if `add` is true.
fn gradients(layer: &Layer, delta: &Tensor, x: &Tensor, all: &Tensor, add: bool) -> Result<()> {
    let LayerLayout { weight, bias, .. } = layer.layout.clone();
    if is_fused(all) {
        return all.inplace_op3(delta, x, &Gradients { weight, bias, add });
    }
    for (gradient, range) in [(delta.t()?.matmul(x)?.flatten_all()?, weight), (delta.sum(0)?, bias)] {
        let sum = if add { (all.narrow(0, range.start, range.len())? + gradient)? } else { gradient };
        all.slice_set(&sum, 0, range.start)?;
    }
    Ok(())
}

/// Applies an activation to pre-activations, which may be overwritten.
fn activate(activation: Activation, sum: Tensor) -> Result<Tensor> {
    match activation {
        _ if is_fused(&sum) => sum.inplace_op1(&Apply(activation)).map(|()| sum),
        Activation::Tanh => sum.tanh(),
        Activation::Relu => sum.relu(),
        Activation::Silu => sum.silu(),
        Activation::Gelu => sum.gelu_erf(),
    }
}

/// Multiplies the gradient `back` by the derivative of an activation.
///
/// `out` is the output of the activation, and `sum` the pre-activation if the derivative needs it.
fn slopes(activation: Activation, back: Tensor, out: &Tensor, sum: Option<&Tensor>) -> Result<Tensor> {
    let sum = sum.unwrap_or(out);
    let slope = match activation {
        _ if is_fused(out) => return back.inplace_op2(sum, &Derivative(activation)).map(|()| back),
        Activation::Tanh => out.sqr()?.affine(-1.0, 1.0),
        Activation::Relu => out.gt(0_f32)?.to_dtype(DType::F32),
        Activation::Silu => {
            // The derivative is s + h (1 - s) with the output h. The logistic function s is
            // computed by tanh.
            let s = sum.affine(0.5, 0.0)?.tanh()?.affine(0.5, 0.5)?;
            &s + (out * s.affine(-1.0, 1.0)?)?
        }
        Activation::Gelu => {
            // The derivative is Phi(z) + z phi(z) with the normal distribution Phi and its density
            // phi.
            let cumulative = sum.affine(std::f64::consts::FRAC_1_SQRT_2, 0.0)?.erf()?.affine(0.5, 0.5)?;
            let density = sum
                .sqr()?
                .affine(-0.5, 0.0)?
                .exp()?
                .affine(0.5 * std::f64::consts::FRAC_2_SQRT_PI / std::f64::consts::SQRT_2, 0.0)?;
            cumulative + (sum * density)?
        }
    };
    back * slope?
}

/// Magnitude below which running means are rounded to 0.
///
/// Smaller numbers are subnormal and would halve the speed of multiplications.
const SMALLEST: f32 = f32::MIN_POSITIVE;

/// Returns `square`, a running mean of squared gradients, rounded to 0 as in the built-in network.
///
/// A mean below [`SMALLEST`] is rounded only if `moment`, the numerator of the step, is 0.
/// Otherwise the denominator of the step would become too small, and the step huge.
fn flush_underflow(square: f32, moment: f32) -> f32 {
    if moment == 0.0 && square < SMALLEST { 0.0 } else { square }
}

/// Makes an optimiser step on the CPU, with gradients times `scale`.
///
/// The parameters `flat` and the running means change in place.
pub(crate) fn step(
    update: Update,
    gradients: &Tensor,
    scale: f32,
    flat: &Tensor,
    [mean, square]: [&Tensor; 2],
) -> Result<()> {
    // `1 - decay` is computed in f64, as in the built-in network.
    let blend = |decay: f32| {
        let complement = (1.0 - f64::from(decay)) as f32;
        move |a: f32, b: f32| decay * a + complement * b
    };
    match update {
        Update::Adam { beta1, beta2, eps, step_size, root_scale, decay } => {
            let (first, second) = (blend(beta1), blend(beta2));
            mean.inplace_op2(
                gradients,
                &Each(|m: f32, g: f32| {
                    let mean = first(m, scale * g);
                    if mean.abs() < SMALLEST { 0.0 } else { mean }
                }),
            )?;
            let squared = |v: f32, g: f32, m: f32| flush_underflow(second(v, (scale * g) * (scale * g)), m);
            square.inplace_op3(gradients, mean, &EachPair(squared))?;
            let step = |p: f32, m: f32, v: f32| decay * p - step_size * (m / (root_scale * v.sqrt() + eps));
            flat.inplace_op3(mean, square, &EachPair(step))
        }
        Update::RmsProp { lr, alpha, eps } => {
            let blend = blend(alpha);
            let squared = |v: f32, g: f32| flush_underflow(blend(v, (scale * g) * (scale * g)), g);
            square.inplace_op2(gradients, &Each(squared))?;
            let step = |p: f32, g: f32, v: f32| p - lr * (scale * g / (v.sqrt() + eps));
            flat.inplace_op3(gradients, square, &EachPair(step))
        }
    }
}

/// Returns the parameters and the running means after an optimiser step, in flat order.
pub(crate) fn apply_update(
    update: Update,
    gradients: &Tensor,
    flat: &Tensor,
    [mean, square]: [&Tensor; 2],
) -> Result<(Tensor, [Tensor; 2])> {
    let blend =
        |decay: f32, a: &Tensor, b: &Tensor| a.affine(decay.into(), 0.0)? + b.affine(1.0 - f64::from(decay), 0.0)?;
    match update {
        Update::Adam { beta1, beta2, eps, step_size, root_scale, decay } => {
            let mean = blend(beta1, mean, gradients)?;
            let square = blend(beta2, square, &gradients.sqr()?)?;
            let root = square.sqrt()?.affine(root_scale.into(), eps.into())?;
            let step = (&mean / root)?.affine(step_size.into(), 0.0)?;
            let decayed = if decay == 1.0 { flat.clone() } else { flat.affine(decay.into(), 0.0)? };
            Ok(((decayed - step)?, [mean, square]))
        }
        Update::RmsProp { lr, alpha, eps } => {
            let square = blend(alpha, square, &gradients.sqr()?)?;
            let step = (gradients / square.sqrt()?.affine(1.0, eps.into())?)?.affine(lr.into(), 0.0)?;
            Ok(((flat - step)?, [mean.clone(), square]))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rlox_testkit::agreement;

    use crate::CandleMlp;

    thread_local! {
        /// True to use Candle's own operations on the CPU, as on other devices.
        pub(super) static FORCE_UNFUSED: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn candle_operations_equal_built_in_network() {
        FORCE_UNFUSED.set(true);
        agreement::passes_equal_built_in_network(CandleMlp::new);
        agreement::optimizers_equal_built_in_network(CandleMlp::new);
        agreement::soft_updates_interpolate_parameters(CandleMlp::new);
        agreement::clones_are_independent(CandleMlp::new);
    }
}
