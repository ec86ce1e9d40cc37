//! Forward pass of the built-in network, layout of its parameters, and data for the backward pass.
//!
//! A line is 16 f32 in memory ([`AlignedF32x16`]). An arena is an array of lines that holds a
//! number for each parameter. The pre-activations of a layer are `x w^T + b`, the numbers before
//! the activation. A narrow layer is a last layer with at most 8 outputs after a hidden layer. All
//! other layers are wide.

use std::ops::Range;

use rlox_core::Result;

use super::{Activation, Mlp, SIZES};
use crate::Workspace;
use crate::alloc::{resize, try_reserve, try_vec};
use crate::kernels::gemm::{Accumulate, Extent, Lines, Numbers, narrow_product, product};
use crate::kernels::sparse::sparse_product;
use crate::parallel::{MIGRATION_COST, join_infallible, worth_forking};
use crate::simd::{AlignedF32x16, LANES, lines, numbers, numbers_mut};

/// Divisor of the row index at which two threads split a batch or a weight matrix. Tiles of
/// [`product`] have 12, 6, 4, 2 or 1 rows, so that no tile is split.
pub(super) const TILE_MULTIPLE: usize = 12;

/// Largest number of outputs of a narrow layer, which is computed as dot products. In a product of
/// lines, at least half of the numbers would be padding.
const MAX_NARROW_OUTPUTS: usize = 8;

/// Number of rows and columns of the blocks in which weight matrices are transposed.
const SQUARE: usize = 16;

/// Widths of a layer, and the place of its parameters in an arena.
///
/// The weights of a wide layer are stored as `[inputs, outputs]`, so that the forward pass and the
/// gradients of weights read contiguous rows. The weights of a narrow layer are stored as
/// `[outputs, inputs]`, as in torch. Rows are padded to full lines with zeros. The padding stays
/// zero because its gradients are zero.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) is_narrow: bool,
    /// Range of the arena lines that hold the weights.
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Range<usize>,
}

impl Layer {
    /// Returns a layer whose parameters start at line `from` of an arena.
    ///
    /// `head` is true for a last layer that follows a hidden layer.
    pub(crate) fn new(inputs: usize, outputs: usize, head: bool, from: usize) -> Self {
        let is_narrow = head && outputs <= MAX_NARROW_OUTPUTS;
        let weight = if is_narrow { outputs * lines(inputs) } else { inputs * lines(outputs) };
        let bias = from + weight;
        Self { inputs, outputs, is_narrow, weight: from..bias, bias: bias..bias + lines(outputs) }
    }

    /// Returns the number of lines per row of the stored weight matrix.
    pub(crate) fn stride(&self) -> usize {
        lines(if self.is_narrow { self.inputs } else { self.outputs })
    }

    /// Returns the number of lines of a transposed copy of the weights, `[outputs, inputs]`.
    ///
    /// Returns 0 for a narrow layer, whose weights are stored in this order.
    pub(crate) fn transposed(&self) -> usize {
        if self.is_narrow { 0 } else { self.outputs * lines(self.inputs) }
    }

    /// Returns the position of the weight from input `k` to output `o` in the stored weights,
    /// counted in numbers.
    fn index(&self, o: usize, k: usize) -> usize {
        let (row, column) = if self.is_narrow { (o, k) } else { (k, o) };
        row * self.stride() * LANES + column
    }

    /// Writes weights, `[outputs, inputs]`, and biases into an arena, and sets the padding to 0.
    ///
    /// Without this, the padding would stay NaN after an optimizer step that made all parameters
    /// NaN.
    pub(crate) fn write(&self, arena: &mut [AlignedF32x16], weight: &[f32], bias: &[f32]) {
        arena[self.weight.start..self.bias.end].fill(AlignedF32x16::ZERO);
        let values = numbers_mut(&mut arena[self.weight.clone()]);
        self.for_each_weight(|o, k| values[self.index(o, k)] = weight[o * self.inputs + k]);
        numbers_mut(&mut arena[self.bias.clone()])[..bias.len()].copy_from_slice(bias);
    }

    /// Returns the weights, `[outputs, inputs]`, and the biases of this layer in an arena.
    pub(crate) fn read(&self, arena: &[AlignedF32x16]) -> (Vec<f32>, Vec<f32>) {
        let values = numbers(&arena[self.weight.clone()]);
        let mut weight = vec![0.0; self.outputs * self.inputs];
        self.for_each_weight(|o, k| weight[o * self.inputs + k] = values[self.index(o, k)]);
        (weight, numbers(&arena[self.bias.clone()])[..self.outputs].to_vec())
    }

    /// Calls `visit` for each pair of an output and an input, block by block, because this order is
    /// faster for a transpose.
    fn for_each_weight(&self, mut visit: impl FnMut(usize, usize)) {
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

impl Mlp {
    /// Returns the work of one of two threads that share the rows of a pass, for [`worth_forking`].
    ///
    /// The work is divided by [`MIGRATION_COST`]. A forward and a backward pass together count as
    /// three passes, with a work of `rows` times the number of parameters.
    pub(super) fn half_a_pass(&self, rows: usize) -> usize {
        rows * self.layout.parameters() / 6 / MIGRATION_COST
    }

    /// Returns the number of rows of the first thread: about half of the rows, or all rows of a
    /// small batch.
    ///
    /// One thread computes fewer than `2 * TILE_MULTIPLE` rows, even in a huge network.
    fn first_rows(&self, rows: usize) -> usize {
        if rows < 2 * TILE_MULTIPLE || !worth_forking(self.half_a_pass(rows)) {
            return rows;
        }
        (rows / 2 + TILE_MULTIPLE / 2) / TILE_MULTIPLE * TILE_MULTIPLE
    }

    /// Computes the pre-activations of a wide layer.
    fn sums(&self, layer: &Layer, input: Input<'_>, rows: usize, out: &mut [AlignedF32x16]) {
        let weight = Lines { lines: &self.parameters[layer.weight.clone()], stride: layer.stride() };
        let extent = Extent { rows, inner: layer.inputs, columns: layer.stride() };
        let bias = Accumulate::Bias(&self.parameters[layer.bias.clone()]);
        match input {
            Input::Hidden(h) if self.is_sparse() => {
                sparse_product(extent, Lines { lines: h, stride: lines(layer.inputs) }, weight, bias, out);
            }
            _ => product(extent, input.numbers(layer), weight, bias, out),
        }
    }

    /// Returns true if many numbers in the hidden layers, and many of their gradients, are 0.
    ///
    /// The activation alone decides if products skip zeros. If the numbers decided, results could
    /// depend on the rows that each thread computes.
    pub(super) fn is_sparse(&self) -> bool {
        self.activation() == Activation::Relu
    }

    /// Computes the outputs `y` of the last layer; `padded` is memory for a wide layer.
    fn head(&self, input: Input<'_>, rows: usize, padded: &mut [AlignedF32x16], y: &mut [f32]) {
        let Some(layer) = self.layers.last() else { return };
        if layer.is_narrow {
            let hidden = &input.lines()[..rows * layer.stride()];
            let bias = &numbers(&self.parameters[layer.bias.clone()])[..layer.outputs];
            narrow_product(layer.stride(), hidden, &self.parameters[layer.weight.clone()], bias, y);
        } else {
            self.sums(layer, input, rows, padded);
            unpad(padded, layer.outputs, y);
        }
    }

    /// Runs a forward pass without cache; returns the number of rows that the first thread
    /// computed.
    ///
    /// Each half of the workspace has memory for `rows` rows as wide as the widest layer. The
    /// hidden layers of the first thread start at the beginning of each half. The hidden layers of
    /// the second thread start after the memory for the rows of the first thread.
    pub(super) fn run(&self, x: &[f32], rows: usize, y: &mut [f32], workspace: &mut Workspace) -> Result<usize> {
        let widest = widest(&self.layers);
        for half in &mut workspace.layers {
            if half.len() < rows * widest {
                resize("rows", half, rows * widest, AlignedF32x16::ZERO)?;
            }
        }
        let first = self.first_rows(rows);
        let [(from, from_rest), (to, to_rest)] =
            workspace.layers.each_mut().map(|half| half[..rows * widest].split_at_mut(first * widest));
        let (x, x_rest) = x.split_at(first * self.layout.in_dim());
        let (y, y_rest) = y.split_at_mut(first * self.layout.out_dim());
        if first == rows {
            self.pass(x, rows, y, [from, to]);
            return Ok(first);
        }
        join_infallible(
            self.half_a_pass(rows),
            || self.pass(x, first, y, [from, to]),
            || self.pass(x_rest, rows - first, y_rest, [from_rest, to_rest]),
        )?;
        Ok(first)
    }

    /// Runs a forward pass without cache for some of the rows.
    ///
    /// Layers read from one half of the workspace and write to the other half.
    fn pass(&self, x: &[f32], rows: usize, y: &mut [f32], [mut from, mut to]: [&mut [AlignedF32x16]; 2]) {
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

    /// Copies the last hidden layer from the workspace, after [`Mlp::run`] has returned `first`.
    pub(super) fn copy_hidden(&self, workspace: &Workspace, first: usize, h: &mut [f32]) {
        // The layers write to the two halves of the workspace in turn.
        let Some(last_hidden) = self.layers.len().checked_sub(2) else { return };
        let (half, width) = (&workspace.layers[(last_hidden + 1) % 2], self.layout.hidden_dim());
        let (h, h_rest) = h.split_at_mut(first * width);
        unpad(half, width, h);
        unpad(&half[first * widest(&self.layers)..], width, h_rest);
    }

    pub(super) fn run_cached(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        let first = self.first_rows(rows);
        self.cache.begin(&self.layers, x, rows, first)?;
        let mut cache = std::mem::take(&mut self.cache);
        let [left, right] = &mut cache.parts;
        let (x, x_rest) = x.split_at(first * self.layout.in_dim());
        let (y, y_rest) = y.split_at_mut(first * self.layout.out_dim());
        let result = if first == rows {
            self.forward_cached(left, x, y);
            Ok(())
        } else {
            let work = self.half_a_pass(rows);
            join_infallible(work, || self.forward_cached(left, x, y), || self.forward_cached(right, x_rest, y_rest))
        };
        self.cache = cache;
        if result.is_err() {
            self.cache.rows = 0;
        }
        result
    }

    /// Runs a forward pass for the rows of `part` and stores the data that the backward pass needs.
    fn forward_cached(&self, part: &mut Part, x: &[f32], y: &mut [f32]) {
        let (rows, last) = (part.rows, self.layers.len() - 1);
        for (i, layer) in self.layers[..last].iter().enumerate() {
            let (before, from_layer) = part.outputs.split_at_mut(i);
            let input = before.last().map_or(Input::First(x), |hidden| Input::Hidden(hidden));
            let out = &mut from_layer[0][..rows * layer.stride()];
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

/// Returns the number of lines of the widest input or output row of all layers.
fn widest(layers: &[Layer]) -> usize {
    layers.iter().map(|layer| lines(layer.outputs).max(lines(layer.inputs))).max().unwrap_or(0)
}

/// Data of the last forward pass, and memory that the forward and the backward pass share.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardCache {
    pub(crate) rows: usize,
    pub(super) x: Vec<f32>,
    /// Data of the rows of each thread. The second part is empty if one thread computes all rows.
    pub(super) parts: [Part; 2],
    /// Transposed weights of the wide layers, `[outputs, inputs]`.
    pub(super) transposed: Vec<Vec<AlignedF32x16>>,
    /// True if `transposed` holds the current weights of all wide layers.
    pub(crate) transposed_is_valid: bool,
}

/// Data of the rows that one thread computes.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub(super) rows: usize,
    /// Number of rows that the buffers can hold.
    capacity: usize,
    /// Outputs of each layer, after the activation; empty for a narrow layer.
    pub(super) outputs: Vec<Vec<AlignedF32x16>>,
    /// Pre-activations of each layer, if the derivative of the activation needs them.
    pub(super) sums: Vec<Vec<AlignedF32x16>>,
    /// Gradients with respect to the pre-activations of each layer.
    pub(super) deltas: Vec<Vec<AlignedF32x16>>,
    pub(super) d_inputs: Vec<AlignedF32x16>,
    /// Indices of the rows of the output gradients that are not all 0; `dy` holds these rows.
    pub(super) wanted: Vec<usize>,
    pub(super) dy: Vec<f32>,
}

impl ForwardCache {
    /// Creates a cache without rows, with memory for the transposed weights.
    ///
    /// # Errors
    /// [`rlox_core::Error::Memory`] if the memory is not available.
    pub(crate) fn new(layers: &[Layer], activation: Activation) -> Result<Self> {
        let each = |used: bool| if used { layers.iter().map(|_| Vec::new()).collect() } else { Vec::new() };
        let part = || Part {
            outputs: each(true),
            sums: each(activation.needs_inputs()),
            deltas: each(true),
            ..Part::default()
        };
        let transposed = layers.iter().map(|layer| try_vec(SIZES, layer.transposed(), AlignedF32x16::ZERO));
        Ok(Self { parts: [part(), part()], transposed: transposed.collect::<Result<_>>()?, ..Self::default() })
    }

    /// Allocates memory for a forward pass and stores its inputs `x`.
    ///
    /// The first part gets `first` of the `rows` rows, and the second part gets the others.
    pub(super) fn begin(&mut self, layers: &[Layer], x: &[f32], rows: usize, first: usize) -> Result<()> {
        for (part, rows) in self.parts.iter_mut().zip([first, rows - first]) {
            part.resize_buffers(layers, rows)?;
        }
        try_reserve("rows", &mut self.x, x.len())?;
        self.rows = rows;
        (self.parts[0].rows, self.parts[1].rows) = (first, rows - first);
        self.x.clear();
        self.x.extend_from_slice(x);
        Ok(())
    }

    /// Copies the last hidden layer, `[rows, width]`, to `h`, if there is a hidden layer.
    pub(super) fn hidden(&self, width: usize, mut h: &mut [f32]) {
        for part in &self.parts {
            let (current, rest) = h.split_at_mut(part.rows * width);
            if let [.., hidden, _] = &part.outputs[..] {
                unpad(hidden, width, current);
            }
            h = rest;
        }
    }
}

impl Part {
    fn resize_buffers(&mut self, layers: &[Layer], rows: usize) -> Result<()> {
        if rows <= self.capacity {
            return Ok(());
        }
        for (i, layer) in layers.iter().enumerate() {
            let count = if layer.is_narrow { 0 } else { rows * layer.stride() };
            let all = [&mut self.outputs, &mut self.sums, &mut self.deltas];
            for vector in all.into_iter().filter_map(|vectors| vectors.get_mut(i)) {
                resize("rows", vector, count, AlignedF32x16::ZERO)?;
            }
        }
        let [inputs, outputs] =
            [layers.first().map_or(0, |first| first.inputs), layers.last().map_or(0, |l| l.outputs)];
        resize("rows", &mut self.d_inputs, rows * lines(inputs), AlignedF32x16::ZERO)?;
        try_reserve("rows", &mut self.wanted, rows)?;
        try_reserve("rows", &mut self.dy, rows * outputs)?;
        self.capacity = rows;
        Ok(())
    }

    /// Stores the indices and the contents of the rows of `dy` that are not all 0.
    pub(super) fn select_nonzero_rows(&mut self, dy: &[f32], width: usize) {
        self.wanted.clear();
        self.dy.clear();
        for (row, dy) in dy.chunks_exact(width).enumerate() {
            if dy.iter().any(|x| *x != 0.0) {
                self.wanted.push(row);
                self.dy.extend_from_slice(dy);
            }
        }
    }
}

/// Input of a layer.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// Input of the network, `[rows, inputs]`, which is not padded.
    First(&'a [f32]),
    Hidden(&'a [AlignedF32x16]),
}

impl<'a> Input<'a> {
    pub(super) fn numbers(self, layer: &Layer) -> Numbers<'a> {
        match self {
            Self::First(x) => Numbers { numbers: x, stride: layer.inputs },
            Self::Hidden(h) => Lines { lines: h, stride: lines(layer.inputs) }.into(),
        }
    }

    /// Returns the lines of a hidden layer, or no lines for the input of the network.
    ///
    /// Narrow layers use this method. They are never the first layer.
    pub(super) fn lines(self) -> &'a [AlignedF32x16] {
        match self {
            Self::First(_) => &[],
            Self::Hidden(h) => h,
        }
    }
}

/// Copies rows that are padded to full lines to rows of `width` numbers.
pub(crate) fn unpad(padded: &[AlignedF32x16], width: usize, out: &mut [f32]) {
    let rows = numbers(padded).chunks_exact(lines(width) * LANES);
    for (row, padded) in out.chunks_exact_mut(width).zip(rows) {
        row.copy_from_slice(&padded[..width]);
    }
}

/// Copies rows of `width` numbers to rows that are padded to full lines with zeros.
pub(crate) fn pad(rows: &[f32], width: usize, out: &mut [AlignedF32x16]) {
    let padded = numbers_mut(out).chunks_exact_mut(lines(width) * LANES);
    for (row, padded) in rows.chunks_exact(width).zip(padded) {
        padded[..width].copy_from_slice(row);
        padded[width..].fill(0.0);
    }
}
