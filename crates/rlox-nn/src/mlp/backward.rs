//! Backward pass of the built-in network.
//!
//! The first step computes, for each row of the batch, the gradients with respect to the
//! pre-activations `x w^T + b` of each layer. The second step computes the gradients of the
//! parameters. A line is 16 f32 in memory. An arena is an array of lines that holds a number for
//! each parameter. A narrow layer is a last layer with at most 8 outputs, and all other layers are
//! wide.

use std::ops::Range;

use rlox_core::Result;

use super::Mlp;
use super::forward::{ForwardCache, Input, Layer, Part, TILE_MULTIPLE, pad, unpad};
use crate::kernels::elementwise::sum_of_squares;
use crate::kernels::gemm::{Accumulate, Extent, Lines, Numbers, column_sums, product, transpose, transposed_product};
use crate::kernels::sparse::{sparse_product, transposed_sparse_product};
use crate::parallel::{join_if_worth, join_infallible, worth_forking};
use crate::simd::{AlignedF32x16, lines, numbers_mut};

impl Mlp {
    /// Runs the backward pass for the gradient `dy` with respect to the outputs.
    ///
    /// `dh` is an additional gradient with respect to the last hidden layer. If `params` is true,
    /// the gradients of the parameters are computed. `dx` receives the gradient with respect to the
    /// inputs.
    pub(super) fn run_backward(
        &mut self,
        dy: &[f32],
        dh: Option<&[f32]>,
        params: bool,
        dx: Option<&mut [f32]>,
    ) -> Result<()> {
        let mut cache = std::mem::take(&mut self.cache);
        let result = self.backward_through(&mut cache, (dy, dh), params, dx);
        self.cache = cache;
        result
    }

    fn backward_through(
        &mut self,
        cache: &mut ForwardCache,
        (dy, dh): (&[f32], Option<&[f32]>),
        params: bool,
        dx: Option<&mut [f32]>,
    ) -> Result<()> {
        if !cache.transposed_is_valid {
            self.transpose_weights(cache, dx.is_some());
        }
        let ForwardCache { rows, parts: [left, right], transposed, .. } = cache;
        let work = self.half_a_pass(*rows);
        let (d_left, d_right) = dy.split_at(left.rows * self.layout.out_dim());
        let (h_left, h_right) = dh.map(|dh| dh.split_at(left.rows * self.layout.hidden_dim())).unzip();
        let (d_left, d_right) = ((d_left, h_left), (d_right, h_right));
        let (x_left, x_right) = match dx {
            Some(dx) => {
                let (x_left, x_right) = dx.split_at_mut(left.rows * self.layout.in_dim());
                (Some(x_left), Some(x_right))
            }
            None => (None, None),
        };
        let (net, transposed) = (&*self, &transposed[..]);
        if right.rows == 0 {
            net.backward_rows(left, transposed, d_left, params, x_left);
        } else {
            join_infallible(
                work,
                || net.backward_rows(left, transposed, d_left, params, x_left),
                || net.backward_rows(right, transposed, d_right, params, x_right),
            )?;
        }
        if !params {
            return Ok(());
        }
        let mut gradients = std::mem::take(&mut self.gradients);
        let (net, cache, (first, second)) = (&*self, &*cache, gradients.split_at_mut(self.middle));
        let result = join_if_worth(
            work,
            || Ok(net.add_gradients(cache, dy, 0, first)),
            || Ok(net.add_gradients(cache, dy, net.middle, second)),
        );
        self.gradients = gradients;
        let (first, second) = result?;
        (self.live, self.squares, self.fork_step) = (true, first + second, worth_forking(work));
        Ok(())
    }

    /// Computes the gradients with respect to pre-activations and inputs, for the rows of `part`.
    ///
    /// If `params` is false, rows of `dy` that are all 0 are skipped.
    fn backward_rows(
        &self,
        part: &mut Part,
        transposed: &[Vec<AlignedF32x16>],
        (dy, dh): (&[f32], Option<&[f32]>),
        params: bool,
        mut dx: Option<&mut [f32]>,
    ) {
        let last = self.layers.len() - 1;
        let outputs = self.layout.out_dim();
        if !params {
            part.select_nonzero_rows(dy, outputs);
        }
        let Part { outputs: activations, sums, deltas, d_inputs, wanted, dy: nonzero_dy, .. } = part;
        let some_rows = !params && wanted.len() < part.rows;
        let (dy, rows) = if some_rows { (&nonzero_dy[..], wanted.len()) } else { (dy, part.rows) };
        for i in (0..=last).rev() {
            let layer = &self.layers[i];
            let (before, from_layer) = deltas.split_at_mut(i);
            let d_outputs = if layer.is_narrow {
                Numbers { numbers: dy, stride: layer.outputs }
            } else {
                if i == last {
                    pad(dy, layer.outputs, &mut from_layer[0]);
                }
                Lines { lines: &from_layer[0], stride: layer.stride() }.into()
            };
            if i == 0 && dx.is_none() {
                return;
            }
            // This product is the gradient with respect to the input of the layer.
            let back = if layer.is_narrow { &self.parameters[layer.weight.clone()] } else { &transposed[i] };
            let columns = lines(layer.inputs);
            let extent = Extent { rows, inner: layer.outputs, columns };
            let out = &mut before.last_mut().unwrap_or(&mut *d_inputs)[..rows * columns];
            let back = Lines { lines: back, stride: columns };
            if i < last && self.is_sparse() {
                let d_outputs = Lines { lines: &from_layer[0], stride: layer.stride() };
                sparse_product(extent, d_outputs, back, Accumulate::Zero, out);
            } else {
                product(extent, d_outputs, back, Accumulate::Zero, out);
            }
            if let Some(dh) = dh.filter(|dh| i == last && !dh.is_empty()) {
                for (out, dh) in out.chunks_exact_mut(columns).zip(dh.chunks_exact(layer.inputs)) {
                    numbers_mut(out).iter_mut().zip(dh).for_each(|(out, dh)| *out += dh);
                }
            }
            if i > 0 {
                let derivative_input =
                    if self.activation().needs_inputs() { &sums[i - 1] } else { &activations[i - 1] };
                if some_rows {
                    for (row, out) in wanted.iter().zip(out.chunks_exact_mut(columns)) {
                        self.activation().differentiate_lines(&derivative_input[row * columns..][..columns], out);
                    }
                } else {
                    self.activation().differentiate_lines(derivative_input, out);
                }
            }
        }
        let (Some(dx), width) = (&mut dx, self.layout.in_dim()) else { return };
        if some_rows {
            dx.fill(0.0);
            for (row, d_input) in wanted.iter().zip(d_inputs.chunks_exact(lines(width))) {
                unpad(d_input, width, &mut dx[row * width..][..width]);
            }
        } else {
            unpad(d_inputs, width, dx);
        }
    }

    /// Transposes the weight matrices of the wide layers into the cache.
    ///
    /// The matrix of the first layer is needed only for the gradient with respect to the inputs. It
    /// is transposed if `first` is true.
    fn transpose_weights(&self, cache: &mut ForwardCache, first: bool) {
        for (i, layer) in self.layers.iter().enumerate() {
            if !layer.is_narrow && (i > 0 || first) {
                let weight = Lines { lines: &self.parameters[layer.weight.clone()], stride: layer.stride() };
                transpose(weight, layer.inputs, layer.outputs, &mut cache.transposed[i], lines(layer.inputs));
            }
        }
        cache.transposed_is_valid = first;
    }

    /// Computes the gradients of a range of the parameters; returns the sum of their squares.
    ///
    /// `gradients` is the part of an arena that starts at line `from`. The results are added to
    /// `gradients` if there were backward passes since the last step.
    fn add_gradients(&self, cache: &ForwardCache, dy: &[f32], from: usize, gradients: &mut [AlignedF32x16]) -> f64 {
        let range = from..from + gradients.len();
        for (i, layer) in self.layers.iter().enumerate() {
            let weight = overlap(&layer.weight, &range);
            if !weight.is_empty() {
                let first = (weight.start - layer.weight.start) / layer.stride();
                let out = &mut gradients[weight.start - from..weight.end - from];
                self.add_weights(cache, dy, i, first, out);
            }
            let bias = overlap(&layer.bias, &range);
            if !bias.is_empty() {
                let out = &mut gradients[bias.start - from..bias.end - from];
                add_biases(cache, dy, i, layer, self.live, out);
            }
        }
        sum_of_squares(gradients)
    }

    /// Computes the gradients of the weights of layer `i`, from row `first` of the stored matrix
    /// on.
    fn add_weights(&self, cache: &ForwardCache, dy: &[f32], i: usize, first: usize, out: &mut [AlignedF32x16]) {
        let layer = &self.layers[i];
        let rows = out.len() / layer.stride();
        let (mut x, mut dy, mut accumulate) =
            (&cache.x[..], dy, if self.live { Accumulate::Output } else { Accumulate::Zero });
        for part in cache.parts.iter().filter(|part| part.rows > 0) {
            let input = if i == 0 { Input::First(x) } else { Input::Hidden(&part.outputs[i - 1]) };
            let extent = Extent { rows, inner: part.rows, columns: layer.stride() };
            let across = |left: Numbers<'_>, right: &[AlignedF32x16], out: &mut [AlignedF32x16]| {
                let left = Numbers { numbers: &left.numbers[first..], stride: left.stride };
                transposed_product(extent, left, Lines { lines: right, stride: layer.stride() }, accumulate, out);
            };
            match input {
                _ if layer.is_narrow => across(Numbers { numbers: dy, stride: layer.outputs }, input.lines(), out),
                Input::Hidden(h) if self.is_sparse() => {
                    let h = Lines { lines: h, stride: lines(layer.inputs) };
                    let deltas = Lines { lines: &part.deltas[i], stride: layer.stride() };
                    transposed_sparse_product(extent, h, first, deltas, accumulate, out);
                }
                _ => across(input.numbers(layer), &part.deltas[i], out),
            }
            accumulate = Accumulate::Output;
            (x, dy) = (&x[part.rows * self.layout.in_dim()..], &dy[part.rows * self.layout.out_dim()..]);
        }
    }
}

/// Computes the gradients of a layer's biases; if `add` is true, adds them to `out`.
fn add_biases(cache: &ForwardCache, dy: &[f32], i: usize, layer: &Layer, add: bool, out: &mut [AlignedF32x16]) {
    if !layer.is_narrow {
        let deltas = cache.parts.each_ref().map(|part| &part.deltas[i][..part.rows * layer.stride()]);
        column_sums(deltas, add, out);
        return;
    }
    for (o, bias) in numbers_mut(out)[..layer.outputs].iter_mut().enumerate() {
        let sum: f32 = dy[o..].iter().step_by(layer.outputs).sum();
        *bias = if add { *bias + sum } else { sum };
    }
}

/// Returns the arena line at which the share of the second thread starts, about in the middle.
///
/// The line is the start of a row of a weight matrix, or the start or end of biases.
pub(super) fn middle(layers: &[Layer]) -> usize {
    let total = layers.last().map_or(0, |layer| layer.bias.end);
    let Some(layer) = layers.iter().find(|layer| layer.bias.end > total / 2) else { return total };
    let rows = (total / 2).saturating_sub(layer.weight.start) / layer.stride();
    (layer.weight.start + rows.next_multiple_of(TILE_MULTIPLE) * layer.stride()).min(layer.bias.start)
}

fn overlap(first: &Range<usize>, second: &Range<usize>) -> Range<usize> {
    first.start.max(second.start)..first.end.min(second.end)
}

#[cfg(test)]
mod tests {
    use rlox_core::Pcg64;

    use super::*;
    use crate::{Activation, Init};

    fn net(sizes: &[usize]) -> Mlp {
        Mlp::new(sizes, Activation::Relu, Init::Kaiming, &mut Pcg64::seed_from(0)).unwrap()
    }

    #[test]
    fn two_threads_share_parameters_about_equally() {
        // Weight matrices with 4, 256 and 1 rows of 16 lines, and 16, 16 and 1 lines of biases:
        // 4209 lines.
        assert_eq!(net(&[4, 256, 256, 1]).middle, 80 + 132 * 16);
        // Weight matrices with 4 rows of 25 lines and with 400 and 1 rows of 19 lines, and 25, 19
        // and 1 lines of biases: 7764 lines.
        assert_eq!(net(&[4, 400, 300, 1]).middle, 125 + 204 * 19);
        for sizes in [&[1, 1][..], &[3, 2, 1], &[1000, 1], &[1, 1000], &[1000, 2, 1], &[4, 1, 1000], &[5, 8, 700, 3]] {
            let Mlp { layers, middle: at, .. } = net(sizes);
            let is_boundary = |layer: &Layer| {
                let inside = layer.weight.contains(&at) && (at - layer.weight.start).is_multiple_of(layer.stride());
                inside || at == layer.bias.start || at == layer.bias.end
            };
            assert!(layers.iter().any(is_boundary), "{sizes:?}: {at}");
        }
    }
}
