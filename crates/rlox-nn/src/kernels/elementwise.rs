//! Element-wise operations on the numbers of a layer or on all parameters.
//!
//! A line is 16 f32 in memory ([`AlignedF32x16`]), which is one SIMD vector.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use super::activations::{erf, exp, tanh};
use crate::simd::{AlignedF32x16, F32s, on_f32s};

/// Value and derivative, `(f(z), f'(z))`, of an activation.
///
/// GELU is `z Phi(z)` with the normal distribution function `Phi`, and `SiLU` is `z / (1 + e^-z)`.
type Smooth<V> = (V, V);

#[inline(always)]
fn gelu<S: F32s>(s: S, z: S::Vector) -> Smooth<S::Vector> {
    let (half, one) = (s.splat(0.5), s.splat(1.0));
    let cumulative = s.mul(half, s.add(one, erf(s, s.mul(z, s.splat(std::f32::consts::FRAC_1_SQRT_2)))));
    // The factor is 1 / sqrt(2 pi).
    let density = s.mul(s.splat(0.398_942_3), exp(s, s.mul(s.mul(z, z), s.splat(-0.5))));
    (s.mul(z, cumulative), s.mul_add(z, density, cumulative))
}

#[inline(always)]
fn silu<S: F32s>(s: S, z: S::Vector) -> Smooth<S::Vector> {
    let one = s.splat(1.0);
    let sigmoid = s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), z))));
    (s.mul(z, sigmoid), s.mul(sigmoid, s.mul_add(z, s.sub(one, sigmoid), one)))
}

macro_rules! in_place {
    ($($name:ident($s:ident, $x:ident) $body:expr;)*) => {$(
        on_f32s! {
            #[doc = concat!("Applies `", stringify!($name), "` to each number, in place.")]
            pub(crate) fn $name(s: F32s, lines: &mut [AlignedF32x16]) {
                for line in lines {
                    let ($s, $x) = (s, s.load(line));
                    s.store($body, line);
                }
            }
        }
    )*};
}
in_place! {
    tanh_lines(s, x) tanh(s, x);
    // `max` returns its second operand if either operand is NaN, so that NaN stays NaN.
    relu_lines(s, x) s.max(s.splat(0.0), x);
    gelu_lines(s, x) gelu(s, x).0;
    silu_lines(s, x) silu(s, x).0;
}

macro_rules! gradients {
    ($($name:ident($s:ident, $d:ident, $of:ident) $body:expr;)*) => {$(
        on_f32s! {
            /// Multiplies `gradients` by the derivative of the activation, in place.
            ///
            /// The derivative is computed from the outputs or from the inputs of the activation, as
            /// the name of the second argument says.
            pub(crate) fn $name(s: F32s, $of: &[AlignedF32x16], gradients: &mut [AlignedF32x16]) {
                for (gradient, of) in gradients.iter_mut().zip($of) {
                    let ($s, $d, $of) = (s, s.load(gradient), s.load(of));
                    s.store($body, gradient);
                }
            }
        }
    )*};
}
gradients! {
    tanh_gradients(s, d, outputs) s.mul(d, s.sub_mul(outputs, outputs, s.splat(1.0)));
    relu_gradients(s, d, outputs) s.where_positive(outputs, d);
    gelu_gradients(s, d, inputs) s.mul(d, gelu(s, inputs).1);
    silu_gradients(s, d, inputs) s.mul(d, silu(s, inputs).1);
}

on_f32s! {
    /// Returns the sum of the squares of all numbers.
    pub(crate) fn sum_of_squares(s: F32s, lines: &[AlignedF32x16]) -> f64 {
        let mut sums = [s.splat(0.0); 4];
        let (fours, rest) = lines.as_chunks::<4>();
        for four in fours {
            for (sum, line) in sums.iter_mut().zip(four) {
                let x = s.load(line);
                *sum = s.mul_add(x, x, *sum);
            }
        }
        for line in rest {
            let x = s.load(line);
            sums[0] = s.mul_add(x, x, sums[0]);
        }
        sums.iter().map(|sum| f64::from(s.sum(*sum))).sum()
    }
}

on_f32s! {
    /// Computes `target += tau (online - target)` for each number.
    pub(crate) fn move_towards(s: F32s, tau: f32, online: &[AlignedF32x16], target: &mut [AlignedF32x16]) {
        let tau = s.splat(tau);
        for (target, online) in target.iter_mut().zip(online) {
            let old = s.load(target);
            s.store(s.mul_add(tau, s.sub(s.load(online), old), old), target);
        }
    }
}

/// Magnitude below which running means are set to 0. Computing with such denormal numbers takes
/// twice as long.
const TINY: f32 = f32::MIN_POSITIVE;

/// Returns the running mean of squares `square`, or 0 if `square` is denormal and `over` is 0.
///
/// The optimizer step divides `over` by the square root of the result. If `over` is not 0, a root
/// of 0 would turn a small step into a huge step.
#[inline(always)]
fn flush_underflow<S: F32s>(s: S, square: S::Vector, over: S::Vector) -> S::Vector {
    // The threshold is `TINY - |over|`. If it is not positive, nothing is set to 0.
    let size = s.max(over, s.sub(s.splat(0.0), over));
    s.zero_if_tiny(square, s.sub(s.splat(TINY), size))
}

/// Coefficients of one step of Adam, including the bias corrections of step number `t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamStep {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) eps: f32,
    /// `lr / (1 - beta1^t)`.
    pub(crate) step_size: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    pub(crate) root_scale: f32,
    /// Factor that multiplies the parameters before the step: `1 - lr weight_decay`.
    pub(crate) decay: f32,
    /// Factor that multiplies the gradients.
    pub(crate) scale: f32,
}

on_f32s! {
    /// Applies a step of Adam or `AdamW`, as in torch; returns true if all parameters stay finite.
    ///
    /// `g` are the gradients, `m` and `v` the running means of gradients and of their squares, and
    /// `p` the parameters: `p = decay p - step_size m / (root_scale sqrt(v) + eps)`.
    pub(crate) fn adam(s: F32s, step: AdamStep, g: &[AlignedF32x16], m: &mut [AlignedF32x16], v: &mut [AlignedF32x16], p: &mut [AlignedF32x16]) -> bool {
        let [beta1, beta2] = [step.beta1, step.beta2].map(|beta| s.splat(beta));
        let [one_minus_beta1, one_minus_beta2] = [step.beta1, step.beta2].map(|beta| s.splat((1.0 - f64::from(beta)) as f32));
        let [eps, size] = [step.eps, step.step_size].map(|x| s.splat(x));
        let [root_scale, decay, scale] = [step.root_scale, step.decay, step.scale].map(|x| s.splat(x));
        let (tiny, zero) = (s.splat(TINY), s.splat(0.0));
        // 0 times infinity or NaN is NaN, which stays in this sum.
        let mut products = zero;
        for ((p, g), (m, v)) in p.iter_mut().zip(g).zip(m.iter_mut().zip(v)) {
            let gradient = s.mul(s.load(g), scale);
            let mean = s.zero_if_tiny(s.mul_add(beta1, s.load(m), s.mul(one_minus_beta1, gradient)), tiny);
            let square = s.mul_add(beta2, s.load(v), s.mul(one_minus_beta2, s.mul(gradient, gradient)));
            let square = flush_underflow(s, square, mean);
            let root = s.mul_add(s.sqrt(square), root_scale, eps);
            s.store(mean, m);
            s.store(square, v);
            let new = s.sub_mul(size, s.div(mean, root), s.mul(s.load(p), decay));
            products = s.mul_add(new, zero, products);
            s.store(new, p);
        }
        s.sum(products) == 0.0
    }
}

/// Coefficients of one step of `RMSprop`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmsPropStep {
    pub(crate) lr: f32,
    pub(crate) alpha: f32,
    pub(crate) eps: f32,
    /// Factor that multiplies the gradients.
    pub(crate) scale: f32,
}

on_f32s! {
    /// Applies a step of `RMSprop`, as in torch; returns true if all parameters stay finite.
    ///
    /// `g` are the gradients, `v` the running means of their squares, and `p` the parameters:
    /// `v = alpha v + (1 - alpha) g^2`, `p -= lr g / (sqrt(v) + eps)`.
    pub(crate) fn rmsprop(s: F32s, step: RmsPropStep, g: &[AlignedF32x16], v: &mut [AlignedF32x16], p: &mut [AlignedF32x16]) -> bool {
        let one_minus_alpha = s.splat((1.0 - f64::from(step.alpha)) as f32);
        let [lr, alpha, eps, scale] = [step.lr, step.alpha, step.eps, step.scale].map(|x| s.splat(x));
        let zero = s.splat(0.0);
        let mut products = zero;
        for ((p, g), v) in p.iter_mut().zip(g).zip(v) {
            let gradient = s.mul(s.load(g), scale);
            let square = s.mul_add(alpha, s.load(v), s.mul(one_minus_alpha, s.mul(gradient, gradient)));
            let square = flush_underflow(s, square, gradient);
            s.store(square, v);
            let new = s.sub_mul(lr, s.div(gradient, s.add(s.sqrt(square), eps)), s.load(p));
            products = s.mul_add(new, zero, products);
            s.store(new, p);
        }
        s.sum(products) == 0.0
    }
}
