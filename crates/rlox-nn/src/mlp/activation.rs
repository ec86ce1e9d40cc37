//! Activations of hidden layers and their derivatives.

use rlox_core::{Error, Result};

use crate::kernels::elementwise::{
    gelu_gradients, gelu_lines, relu_gradients, relu_lines, silu_gradients, silu_lines, tanh_gradients, tanh_lines,
};
use crate::simd::{AlignedF32x16, LANES, lines, numbers, numbers_mut};

/// Activation of hidden layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Hyperbolic tangent.
    Tanh,
    /// `max(0, x)`.
    Relu,
    /// `x / (1 + e^-x)` (Elfwing et al. 2018), also called swish.
    Silu,
    /// `x Phi(x)` with the exact normal distribution function (Hendrycks and Gimpel 2016).
    Gelu,
}

/// Number of lines per block; a line is 16 f32. Slices that are not aligned are copied to a block,
/// which stays in the first-level cache.
const BLOCK: usize = 32;

impl Activation {
    /// Returns the name, which [`str::parse`] accepts.
    ///
    /// ```
    /// use rlox_nn::Activation;
    ///
    /// assert_eq!(Activation::Silu.name().parse::<Activation>()?, Activation::Silu);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Tanh => "tanh",
            Self::Relu => "relu",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
        }
    }

    /// Applies the activation to each number, in place.
    ///
    /// Backends on the CPU can use this vectorized function.
    ///
    /// ```
    /// use rlox_nn::Activation;
    ///
    /// let mut x = [-1.0, 0.0, 2.0];
    /// Activation::Relu.apply(&mut x);
    /// assert_eq!(x, [0.0, 0.0, 2.0]);
    /// ```
    pub fn apply(self, x: &mut [f32]) {
        let mut block = [AlignedF32x16::ZERO; BLOCK];
        for x in x.chunks_mut(BLOCK * LANES) {
            let block = &mut block[..lines(x.len())];
            numbers_mut(block)[..x.len()].copy_from_slice(x);
            self.apply_to_lines(block);
            x.copy_from_slice(&numbers(block)[..x.len()]);
        }
    }

    /// Multiplies gradients by the derivative of the activation, in place.
    ///
    /// `of` holds the inputs of the activation if [`Activation::needs_inputs`] is true, and the
    /// outputs otherwise. If the slices have different lengths, the elements of `gradients` beyond
    /// the end of `of` do not change.
    ///
    /// ```
    /// use rlox_nn::Activation;
    ///
    /// let (outputs, mut gradients) = ([0.5, 0.0], [2.0, 3.0]);
    /// Activation::Tanh.multiply_by_derivative(&outputs, &mut gradients);
    /// assert_eq!(gradients, [1.5, 3.0]);
    /// ```
    pub fn multiply_by_derivative(self, of: &[f32], gradients: &mut [f32]) {
        let (mut from, mut to) = ([AlignedF32x16::ZERO; BLOCK], [AlignedF32x16::ZERO; BLOCK]);
        for (of, gradients) in of.chunks(BLOCK * LANES).zip(gradients.chunks_mut(BLOCK * LANES)) {
            let count = of.len().min(gradients.len());
            let (from, to) = (&mut from[..lines(count)], &mut to[..lines(count)]);
            numbers_mut(from)[..count].copy_from_slice(&of[..count]);
            numbers_mut(to)[..count].copy_from_slice(&gradients[..count]);
            self.differentiate_lines(from, to);
            gradients[..count].copy_from_slice(&numbers(to)[..count]);
        }
    }

    /// Returns true if the derivative is computed from the inputs of the activation, and false if
    /// it is computed from the outputs.
    pub fn needs_inputs(self) -> bool {
        matches!(self, Self::Silu | Self::Gelu)
    }

    pub(super) fn apply_to_lines(self, x: &mut [AlignedF32x16]) {
        match self {
            Self::Tanh => tanh_lines(x),
            Self::Relu => relu_lines(x),
            Self::Silu => silu_lines(x),
            Self::Gelu => gelu_lines(x),
        }
    }

    pub(super) fn differentiate_lines(self, of: &[AlignedF32x16], gradients: &mut [AlignedF32x16]) {
        match self {
            Self::Tanh => tanh_gradients(of, gradients),
            Self::Relu => relu_gradients(of, gradients),
            Self::Silu => silu_gradients(of, gradients),
            Self::Gelu => gelu_gradients(of, gradients),
        }
    }
}

impl std::str::FromStr for Activation {
    type Err = Error;

    /// Parses the name of an activation: `"tanh"`, `"relu"`, `"silu"` or `"gelu"`.
    ///
    /// # Errors
    /// [`Error::Config`] for any other name.
    fn from_str(name: &str) -> Result<Self> {
        let known = [Self::Tanh, Self::Relu, Self::Silu, Self::Gelu];
        known.into_iter().find(|activation| activation.name() == name).ok_or_else(|| {
            let expected = "\"tanh\", \"relu\", \"silu\" or \"gelu\"";
            Error::config("activation", expected, format!("{name:?}"), "choose one of these names")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_lines_give_equal_results() {
        for activation in [Activation::Tanh, Activation::Relu, Activation::Silu, Activation::Gelu] {
            for count in [0, 1, 15, 16, 17, BLOCK * LANES, 2 * BLOCK * LANES + 5] {
                let at = |i: usize| (i % 41) as f32 / 8.0 - 2.5;
                let x: Vec<f32> = (0..count).map(at).collect();
                let mut padded = vec![AlignedF32x16::ZERO; lines(count)];
                numbers_mut(&mut padded)[..count].copy_from_slice(&x);
                let mut gradients = vec![AlignedF32x16([0.5; LANES]); lines(count)];
                activation.differentiate_lines(&padded, &mut gradients);
                activation.apply_to_lines(&mut padded);
                let (mut out, mut slopes) = (x.clone(), vec![0.5; count]);
                activation.apply(&mut out);
                activation.multiply_by_derivative(&x, &mut slopes);
                assert_eq!(out, numbers(&padded)[..count], "{activation:?} {count}");
                assert_eq!(slopes, numbers(&gradients)[..count], "{activation:?} {count}");
            }
        }
    }
}
