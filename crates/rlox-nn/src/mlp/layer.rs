//! Where a layer's parameters lie.

use std::ops::Range;

use crate::simd::{LANES, Line, lines, numbers, numbers_mut};

/// Up to so many outputs are computed as dot products: wider tiles would be mostly padding.
const FEW: usize = 8;

/// One layer of an arena of parameters.
///
/// Weights are kept as `[inputs, outputs]`, so that forward and the weights' gradients read whole rows of them; those of
/// a last layer with few outputs as `[outputs, inputs]`, as torch has them. Rows are padded with zeros to whole lines, and
/// the padding stays zero: its gradients are.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) few: bool,
    /// Lines of the arena.
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Range<usize>,
}

/// Weights on a side of those that are moved together.
const SQUARE: usize = 16;

impl Layer {
    /// A layer that begins at line `from`. `head` says that it is the last one and has a hidden layer before it.
    pub(crate) fn new(inputs: usize, outputs: usize, head: bool, from: usize) -> Self {
        let few = head && outputs <= FEW;
        let weight = if few { outputs * lines(inputs) } else { inputs * lines(outputs) };
        let bias = from + weight;
        Self { inputs, outputs, few, weight: from..bias, bias: bias..bias + lines(outputs) }
    }

    /// Lines of a row of weights.
    pub(crate) fn stride(&self) -> usize {
        lines(if self.few { self.inputs } else { self.outputs })
    }

    /// Lines of a copy of the weights as `[outputs, inputs]`; none where they lie so.
    pub(crate) fn transposed(&self) -> usize {
        if self.few { 0 } else { self.outputs * lines(self.inputs) }
    }

    /// Where the weight of input `k` and output `o` is among the numbers of all weights.
    fn at(&self, o: usize, k: usize) -> usize {
        let (row, column) = if self.few { (o, k) } else { (k, o) };
        row * self.stride() * LANES + column
    }

    /// Puts weights, `[outputs, inputs]`, and biases where they belong, and zeros beside them: a step that made all
    /// parameters NaN made the padding NaN, too.
    pub(crate) fn put(&self, arena: &mut [Line], weight: &[f32], bias: &[f32]) {
        arena[self.weight.start..self.bias.end].fill(Line::ZERO);
        let there = numbers_mut(&mut arena[self.weight.clone()]);
        self.each(|o, k| there[self.at(o, k)] = weight[o * self.inputs + k]);
        numbers_mut(&mut arena[self.bias.clone()])[..bias.len()].copy_from_slice(bias);
    }

    /// Weights, `[outputs, inputs]`, and biases.
    pub(crate) fn take(&self, arena: &[Line]) -> (Vec<f32>, Vec<f32>) {
        let there = numbers(&arena[self.weight.clone()]);
        let mut weight = vec![0.0; self.outputs * self.inputs];
        self.each(|o, k| weight[o * self.inputs + k] = there[self.at(o, k)]);
        (weight, numbers(&arena[self.bias.clone()])[..self.outputs].to_vec())
    }

    /// All outputs and inputs in squares, as one side's neighbours are far apart on the other.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for first in (0..self.outputs).step_by(SQUARE) {
            for start in (0..self.inputs).step_by(SQUARE) {
                for o in first..self.outputs.min(first + SQUARE) {
                    for k in start..self.inputs.min(start + SQUARE) {
                        visit(o, k);
                    }
                }
            }
        }
    }
}

/// Rows of whole lines as rows of `width` numbers.
pub(crate) fn unpad(padded: &[Line], width: usize, out: &mut [f32]) {
    let rows = numbers(padded).chunks_exact(lines(width) * LANES);
    for (row, padded) in out.chunks_exact_mut(width).zip(rows) {
        row.copy_from_slice(&padded[..width]);
    }
}

/// Rows of `width` numbers as rows of whole lines, padded with zeros.
pub(crate) fn pad(rows: &[f32], width: usize, out: &mut [Line]) {
    let padded = numbers_mut(out).chunks_exact_mut(lines(width) * LANES);
    for (row, padded) in rows.chunks_exact(width).zip(padded) {
        padded[..width].copy_from_slice(row);
        padded[width..].fill(0.0);
    }
}
