//! Forward through the layers, where a layer's parameters lie, and what backward needs of the last forward. Rows are
//! computed by two threads where that pays.

use std::ops::Range;

use rlox_core::Result;

use super::{Activation, Mlp, SIZES};
use crate::Workspace;
use crate::alloc::{resize, try_reserve, try_vec};
use crate::kernels::gemm::{Accumulate, Extent, Lines, Numbers, narrow_product, product};
use crate::kernels::sparse::sparse_product;
use crate::parallel::{MIGRATION_COST, join_infallible, worth_forking};
use crate::simd::{AlignedF32x16, LANES, lines, numbers, numbers_mut};

/// Rows, and columns, are divided between threads in such numbers, which all sizes of tiles divide.
pub(super) const TILE_MULTIPLE: usize = 12;

/// Up to so many outputs are computed as dot products: wider tiles would be mostly padding.
const MAX_NARROW_OUTPUTS: usize = 8;

/// Weights on a side of those that are moved together.
const SQUARE: usize = 16;

/// One layer of an arena of parameters.
///
/// Weights are kept as `[inputs, outputs]`, so that forward and the weights' gradients read whole rows of them; those of
/// a last layer with few outputs as `[outputs, inputs]`, as torch has them. Rows are padded with zeros to whole lines, and
/// the padding stays zero: its gradients are.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) is_narrow: bool,
    /// Lines of the arena.
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Range<usize>,
}

impl Layer {
    /// A layer that begins at line `from`. `head` says that it is the last one and has a hidden layer before it.
    pub(crate) fn new(inputs: usize, outputs: usize, head: bool, from: usize) -> Self {
        let is_narrow = head && outputs <= MAX_NARROW_OUTPUTS;
        let weight = if is_narrow { outputs * lines(inputs) } else { inputs * lines(outputs) };
        let bias = from + weight;
        Self { inputs, outputs, is_narrow, weight: from..bias, bias: bias..bias + lines(outputs) }
    }

    /// Lines of a row of weights.
    pub(crate) fn stride(&self) -> usize {
        lines(if self.is_narrow { self.inputs } else { self.outputs })
    }

    /// Lines of a copy of the weights as `[outputs, inputs]`; none where they lie so.
    pub(crate) fn transposed(&self) -> usize {
        if self.is_narrow { 0 } else { self.outputs * lines(self.inputs) }
    }

    /// Where the weight of input `k` and output `o` is among the numbers of all weights.
    fn index(&self, o: usize, k: usize) -> usize {
        let (row, column) = if self.is_narrow { (o, k) } else { (k, o) };
        row * self.stride() * LANES + column
    }

    /// Puts weights, `[outputs, inputs]`, and biases where they belong, and zeros beside them: a step that made all
    /// parameters NaN made the padding NaN, too.
    pub(crate) fn write(&self, arena: &mut [AlignedF32x16], weight: &[f32], bias: &[f32]) {
        arena[self.weight.start..self.bias.end].fill(AlignedF32x16::ZERO);
        let values = numbers_mut(&mut arena[self.weight.clone()]);
        self.for_each_weight(|o, k| values[self.index(o, k)] = weight[o * self.inputs + k]);
        numbers_mut(&mut arena[self.bias.clone()])[..bias.len()].copy_from_slice(bias);
    }

    /// Weights, `[outputs, inputs]`, and biases.
    pub(crate) fn read(&self, arena: &[AlignedF32x16]) -> (Vec<f32>, Vec<f32>) {
        let values = numbers(&arena[self.weight.clone()]);
        let mut weight = vec![0.0; self.outputs * self.inputs];
        self.for_each_weight(|o, k| weight[o * self.inputs + k] = values[self.index(o, k)]);
        (weight, numbers(&arena[self.bias.clone()])[..self.outputs].to_vec())
    }

    /// All outputs and inputs in squares, as one side's neighbours are far apart on the other.
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
    /// How much work half a pass over rows is, beside what it moves; forward and backward, with two products, are three.
    pub(super) fn half_a_pass(&self, rows: usize) -> usize {
        rows * self.layout.parameters() / 6 / MIGRATION_COST
    }

    /// How many of the rows one thread computes while another one computes the rest, which is about as many. Few rows
    /// are one thread's, however large the network is.
    fn first_rows(&self, rows: usize) -> usize {
        if rows < 2 * TILE_MULTIPLE || !worth_forking(self.half_a_pass(rows)) {
            return rows;
        }
        (rows / 2 + TILE_MULTIPLE / 2) / TILE_MULTIPLE * TILE_MULTIPLE
    }

    /// The sums of a wide layer.
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

    /// Whether many numbers of hidden layers, and of the gradients with respect to them, are 0. All of a network's products
    /// go by it, whatever its numbers are, so that they do not depend on the threads.
    pub(super) fn is_sparse(&self) -> bool {
        self.activation() == Activation::Relu
    }

    /// The outputs of the last layer.
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

    /// Gives the rows that the first thread computed; their hidden layers begin the halves of the scratch memory, and
    /// those of the others lie where as many of the widest rows would end.
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

    /// Some of the rows, keeping nothing.
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

    /// The last hidden layer of what [`Mlp::run`] has computed.
    pub(super) fn copy_hidden(&self, workspace: &Workspace, first: usize, h: &mut [f32]) {
        // Layers write to the two halves of the scratch memory in turns.
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

    /// Some of the rows, keeping what backward needs.
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

/// The widest row of any layer, in lines.
fn widest(layers: &[Layer]) -> usize {
    layers.iter().map(|layer| lines(layer.outputs).max(lines(layer.inputs))).max().unwrap_or(0)
}

/// What backward needs of the last forward, and memory that both use.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardCache {
    pub(crate) rows: usize,
    pub(super) x: Vec<f32>,
    /// The rows of one thread and of another; the second part is empty where one does all.
    pub(super) parts: [Part; 2],
    /// The weights of wide layers, `[outputs, inputs]`.
    pub(super) transposed: Vec<Vec<AlignedF32x16>>,
    /// Whether `transposed` is that of the parameters as they are.
    pub(crate) transposed_is_valid: bool,
}

/// What is kept of some of the rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub(super) rows: usize,
    /// As many rows as there is memory for.
    capacity: usize,
    /// What each layer gave; of the last one only if it is wide.
    pub(super) outputs: Vec<Vec<AlignedF32x16>>,
    /// What activations were applied to, where their derivatives need it.
    pub(super) sums: Vec<Vec<AlignedF32x16>>,
    /// The gradients with respect to these.
    pub(super) deltas: Vec<Vec<AlignedF32x16>>,
    pub(super) d_inputs: Vec<AlignedF32x16>,
    /// The rows that a gradient is wanted of, and the gradients of their outputs.
    pub(super) wanted: Vec<usize>,
    pub(super) dy: Vec<f32>,
}

impl ForwardCache {
    /// Memory for the weights of layers, and for no rows yet.
    ///
    /// # Errors
    /// [`rlox_core::Error::Memory`] if there is none.
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

    /// Room for rows of inputs, the `first` of them in the first part.
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

    /// The last hidden layer, if there is one.
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

    /// Puts the rows of `dy` that are not all 0 together.
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

/// What a layer takes.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// The network's own input, rows not padded.
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

    /// For layers with few outputs, which are never the first.
    pub(super) fn lines(self) -> &'a [AlignedF32x16] {
        match self {
            Self::First(_) => &[],
            Self::Hidden(h) => h,
        }
    }
}

/// Rows of whole lines as rows of `width` numbers.
pub(crate) fn unpad(padded: &[AlignedF32x16], width: usize, out: &mut [f32]) {
    let rows = numbers(padded).chunks_exact(lines(width) * LANES);
    for (row, padded) in out.chunks_exact_mut(width).zip(rows) {
        row.copy_from_slice(&padded[..width]);
    }
}

/// Rows of `width` numbers as rows of whole lines, padded with zeros.
pub(crate) fn pad(rows: &[f32], width: usize, out: &mut [AlignedF32x16]) {
    let padded = numbers_mut(out).chunks_exact_mut(lines(width) * LANES);
    for (row, padded) in rows.chunks_exact(width).zip(padded) {
        padded[..width].copy_from_slice(row);
        padded[width..].fill(0.0);
    }
}
