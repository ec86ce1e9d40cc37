//! Forward through the layers. Rows are computed by two threads where that pays.

use rlox_core::Result;

use super::kept::{Input, Part};
use super::layer::{Layer, unpad};
use super::{Activation, Mlp, widest};
use crate::Scratch;
use crate::at_once::{MOVES, both_at_once, pays};
use crate::room::resize;
use crate::simd::gemm::{Extent, Lines, Onto, few_outputs, product};
use crate::simd::sparse::sparse_product;
use crate::simd::{Line, lines, numbers};

/// Rows, and columns, are divided between threads in such numbers, which all sizes of tiles divide.
pub(super) const TOGETHER: usize = 12;

impl Mlp {
    /// How much work half a pass over rows is, beside what it moves; forward and backward, with two products, are three.
    pub(super) fn half_a_pass(&self, rows: usize) -> usize {
        rows * self.layout.parameters() / 6 / MOVES
    }

    /// How many of the rows one thread computes while another one computes the rest, which is about as many. Few rows
    /// are one thread's, however large the network is.
    fn first_rows(&self, rows: usize) -> usize {
        if rows < 2 * TOGETHER || !pays(self.half_a_pass(rows)) {
            return rows;
        }
        (rows / 2 + TOGETHER / 2) / TOGETHER * TOGETHER
    }

    /// The sums of a wide layer.
    fn sums(&self, layer: &Layer, input: Input<'_>, rows: usize, out: &mut [Line]) {
        let weight = Lines { lines: &self.parameters[layer.weight.clone()], stride: layer.stride() };
        let extent = Extent { rows, inner: layer.inputs, columns: layer.stride() };
        let bias = Onto::Bias(&self.parameters[layer.bias.clone()]);
        match input {
            Input::Hidden(h) if self.sparse() => {
                sparse_product(extent, Lines { lines: h, stride: lines(layer.inputs) }, weight, bias, out);
            }
            _ => product(extent, input.numbers(layer), weight, bias, out),
        }
    }

    /// Whether many numbers of hidden layers, and of the gradients with respect to them, are 0. All of a network's products
    /// go by it, whatever its numbers are, so that they do not depend on the threads.
    pub(super) fn sparse(&self) -> bool {
        self.activation() == Activation::Relu
    }

    /// The outputs of the last layer.
    fn head(&self, input: Input<'_>, rows: usize, padded: &mut [Line], y: &mut [f32]) {
        let Some(layer) = self.layers.last() else { return };
        if layer.few {
            let hidden = &input.lines()[..rows * layer.stride()];
            let bias = &numbers(&self.parameters[layer.bias.clone()])[..layer.outputs];
            few_outputs(layer.stride(), hidden, &self.parameters[layer.weight.clone()], bias, y);
        } else {
            self.sums(layer, input, rows, padded);
            unpad(padded, layer.outputs, y);
        }
    }

    /// Gives the rows that the first thread computed; their hidden layers begin the halves of the scratch memory, and
    /// those of the others lie where as many of the widest rows would end.
    pub(super) fn run(&self, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Scratch) -> Result<usize> {
        let widest = widest(&self.layers);
        for half in &mut scratch.layers {
            if half.len() < rows * widest {
                resize("rows", half, rows * widest, Line::ZERO)?;
            }
        }
        let first = self.first_rows(rows);
        let [(from, from_rest), (to, to_rest)] =
            scratch.layers.each_mut().map(|half| half[..rows * widest].split_at_mut(first * widest));
        let (x, x_rest) = x.split_at(first * self.layout.in_dim());
        let (y, y_rest) = y.split_at_mut(first * self.layout.out_dim());
        if first == rows {
            self.pass(x, rows, y, [from, to]);
            return Ok(first);
        }
        both_at_once(
            self.half_a_pass(rows),
            || self.pass(x, first, y, [from, to]),
            || self.pass(x_rest, rows - first, y_rest, [from_rest, to_rest]),
        )?;
        Ok(first)
    }

    /// Some of the rows, keeping nothing.
    fn pass(&self, x: &[f32], rows: usize, y: &mut [f32], [mut from, mut to]: [&mut [Line]; 2]) {
        let (_, hidden) = self.layers.split_last().unwrap_or((&self.layers[0], &[]));
        for (i, layer) in hidden.iter().enumerate() {
            let input = if i == 0 { Input::First(x) } else { Input::Hidden(from) };
            let out = &mut to[..rows * layer.stride()];
            self.sums(layer, input, rows, out);
            self.activation().apply_to_lines(out);
            (from, to) = (to, from);
        }
        let input = if hidden.is_empty() { Input::First(x) } else { Input::Hidden(from) };
        self.head(input, rows, to, y);
    }

    /// The last hidden layer of what [`Mlp::run`] has computed.
    pub(super) fn hidden_of(&self, scratch: &Scratch, first: usize, h: &mut [f32]) {
        // Layers write to the two halves of the scratch memory in turns.
        let Some(turn) = self.layers.len().checked_sub(2) else { return };
        let (half, width) = (&scratch.layers[(turn + 1) % 2], self.layout.hidden_dim());
        let (h, h_rest) = h.split_at_mut(first * width);
        unpad(half, width, h);
        unpad(&half[first * widest(&self.layers)..], width, h_rest);
    }

    pub(super) fn run_keeping(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        let first = self.first_rows(rows);
        self.kept.begin(&self.layers, x, rows, first)?;
        let mut kept = std::mem::take(&mut self.kept);
        let [left, right] = &mut kept.parts;
        let (x, x_rest) = x.split_at(first * self.layout.in_dim());
        let (y, y_rest) = y.split_at_mut(first * self.layout.out_dim());
        let done = if first == rows {
            self.keep(left, x, y);
            Ok(())
        } else {
            let work = self.half_a_pass(rows);
            both_at_once(work, || self.keep(left, x, y), || self.keep(right, x_rest, y_rest))
        };
        self.kept = kept;
        if done.is_err() {
            self.kept.rows = 0;
        }
        done
    }

    /// Some of the rows, keeping what backward needs.
    fn keep(&self, part: &mut Part, x: &[f32], y: &mut [f32]) {
        let (rows, last) = (part.rows, self.layers.len() - 1);
        for (i, layer) in self.layers[..last].iter().enumerate() {
            let (before, from_here) = part.outputs.split_at_mut(i);
            let input = before.last().map_or(Input::First(x), |hidden| Input::Hidden(hidden));
            let out = &mut from_here[0][..rows * layer.stride()];
            self.sums(layer, input, rows, out);
            if let Some(sums) = part.sums.get_mut(i) {
                sums[..out.len()].copy_from_slice(out);
            }
            self.activation().apply_to_lines(out);
        }
        let (before, head) = part.outputs.split_at_mut(last);
        let input = before.last().map_or(Input::First(x), |hidden| Input::Hidden(hidden));
        self.head(input, rows, &mut head[0], y);
    }
}
