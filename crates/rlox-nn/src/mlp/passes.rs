//! Forward and backward through the layers.

use rlox_core::Result;

use super::layer::{Layer, pad, unpad};
use super::{Activation, Mlp, SIZES, widest};
use crate::Scratch;
use crate::room::{filled, make_room, resize};
use crate::simd::gemm::{
    Extent, Lines, Numbers, Onto, column_sums, few_outputs, product, transpose, transposed_product,
};
use crate::simd::{Line, lines, numbers, numbers_mut};

/// What backward needs of the last forward, and memory that both use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) rows: usize,
    /// As many rows as there is memory for.
    capacity: usize,
    x: Vec<f32>,
    /// What each layer gave; of the last one only if it is wide.
    pub(crate) outputs: Vec<Vec<Line>>,
    /// What activations were applied to, where their derivatives need it.
    sums: Vec<Vec<Line>>,
    deltas: [Vec<Line>; 2],
    /// The weights of wide layers, `[outputs, inputs]`.
    transposed: Vec<Vec<Line>>,
    /// Whether `transposed` is that of the parameters as they are.
    pub(crate) fresh: bool,
}

impl Kept {
    /// Memory for the weights of layers, and for no rows yet.
    ///
    /// # Errors
    /// [`rlox_core::Error::Memory`] if there is none.
    pub(crate) fn new(layers: &[Layer], activation: Activation) -> Result<Self> {
        let each = |used: bool| if used { layers.iter().map(|_| Vec::new()).collect() } else { Vec::new() };
        let transposed = layers.iter().map(|layer| filled(SIZES, layer.transposed(), Line::ZERO));
        Ok(Self {
            rows: 0,
            capacity: 0,
            x: Vec::new(),
            outputs: each(true),
            sums: each(activation.needs_inputs()),
            deltas: Default::default(),
            transposed: transposed.collect::<Result<_>>()?,
            fresh: false,
        })
    }

    fn make_room(&mut self, layers: &[Layer], rows: usize) -> Result<()> {
        if rows <= self.capacity {
            return Ok(());
        }
        for (i, layer) in layers.iter().enumerate() {
            let count = if layer.few { 0 } else { rows * lines(layer.outputs) };
            resize("rows", &mut self.outputs[i], count, Line::ZERO)?;
            if let Some(sums) = self.sums.get_mut(i) {
                resize("rows", sums, count, Line::ZERO)?;
            }
        }
        for delta in &mut self.deltas {
            resize("rows", delta, rows * widest(layers), Line::ZERO)?;
        }
        make_room("rows", &mut self.x, rows * layers.first().map_or(0, |layer| layer.inputs))?;
        self.capacity = rows;
        Ok(())
    }
}

/// What a layer takes.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// The network's own input, rows not padded.
    First(&'a [f32]),
    Hidden(&'a [Line]),
}

impl<'a> Input<'a> {
    fn numbers(self, layer: &Layer) -> Numbers<'a> {
        match self {
            Self::First(x) => Numbers { numbers: x, stride: layer.inputs },
            Self::Hidden(h) => Lines { lines: h, stride: lines(layer.inputs) }.into(),
        }
    }

    /// For layers with few outputs, which are never the first.
    fn lines(self) -> &'a [Line] {
        match self {
            Self::First(_) => &[],
            Self::Hidden(h) => h,
        }
    }
}

impl Mlp {
    /// The sums of a wide layer.
    fn sums(&self, layer: &Layer, input: Input<'_>, rows: usize, out: &mut [Line]) {
        let weight = Lines { lines: &self.parameters[layer.weight.clone()], stride: layer.stride() };
        let extent = Extent { rows, inner: layer.inputs, columns: layer.stride() };
        product(extent, input.numbers(layer), weight, Onto::Bias(&self.parameters[layer.bias.clone()]), out);
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

    pub(super) fn run(&self, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        let most = rows * widest(&self.layers);
        for half in &mut scratch.layers {
            if half.len() < most {
                resize("rows", half, most, Line::ZERO)?;
            }
        }
        let [mut from, mut to] = scratch.layers.each_mut().map(|half| &mut half[..]);
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
        Ok(())
    }

    pub(super) fn run_keeping(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        self.kept.make_room(&self.layers, rows)?;
        let mut kept = std::mem::take(&mut self.kept);
        kept.rows = rows;
        kept.x.clear();
        kept.x.extend_from_slice(x);
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers[..last].iter().enumerate() {
            let (before, from_here) = kept.outputs.split_at_mut(i);
            let input = before.last().map_or(Input::First(x), |hidden| Input::Hidden(hidden));
            let out = &mut from_here[0][..rows * layer.stride()];
            self.sums(layer, input, rows, out);
            if let Some(sums) = kept.sums.get_mut(i) {
                sums[..out.len()].copy_from_slice(out);
            }
            self.activation().apply_to_lines(out);
        }
        let (before, head) = kept.outputs.split_at_mut(last);
        let input = before.last().map_or(Input::First(x), |hidden| Input::Hidden(hidden));
        self.head(input, rows, &mut head[0], y);
        self.kept = kept;
        Ok(())
    }

    pub(super) fn run_back(&mut self, dy: &[f32], params: bool, mut dx: Option<&mut [f32]>) {
        let mut kept = std::mem::take(&mut self.kept);
        if !kept.fresh {
            self.transpose_weights(&mut kept, dx.is_some());
        }
        let [mut delta, mut next] = kept.deltas.each_mut().map(|delta| &mut delta[..]);
        let (rows, last) = (kept.rows, self.layers.len() - 1);
        for i in (0..=last).rev() {
            let layer = &self.layers[i];
            if i == last && !layer.few {
                pad(dy, layer.outputs, delta);
            }
            let given = if layer.few {
                Numbers { numbers: dy, stride: layer.outputs }
            } else {
                Lines { lines: delta, stride: layer.stride() }.into()
            };
            if params {
                let input = if i == 0 { Input::First(&kept.x) } else { Input::Hidden(&kept.outputs[i - 1]) };
                add_gradients(layer, input, given, delta, rows, self.live, &mut self.gradients);
            }
            if i == 0 && dx.is_none() {
                break;
            }
            // To the layer's input.
            let back = if layer.few { &self.parameters[layer.weight.clone()] } else { &kept.transposed[i] };
            let columns = lines(layer.inputs);
            let extent = Extent { rows, inner: layer.outputs, columns };
            let out = &mut next[..rows * columns];
            product(extent, given, Lines { lines: back, stride: columns }, Onto::Nothing, out);
            if i > 0 {
                let of = if self.activation().needs_inputs() { &kept.sums[i - 1] } else { &kept.outputs[i - 1] };
                self.activation().differentiate_lines(of, out);
            } else if let Some(dx) = &mut dx {
                unpad(out, layer.inputs, dx);
            }
            (delta, next) = (next, delta);
        }
        if params {
            (self.live, self.squares) = (true, None);
        }
        self.kept = kept;
    }

    /// The first layer's are needed for the gradient of the input only.
    fn transpose_weights(&self, kept: &mut Kept, first: bool) {
        for (i, layer) in self.layers.iter().enumerate() {
            if !layer.few && (i > 0 || first) {
                let weight = Lines { lines: &self.parameters[layer.weight.clone()], stride: layer.stride() };
                transpose(weight, layer.inputs, layer.outputs, &mut kept.transposed[i], lines(layer.inputs));
            }
        }
        kept.fresh = first;
    }
}

/// Adds a layer's gradients to those there are, or puts them in their place.
fn add_gradients(
    layer: &Layer,
    input: Input<'_>,
    given: Numbers<'_>,
    delta: &[Line],
    rows: usize,
    add: bool,
    gradients: &mut [Line],
) {
    let (weight, bias) = gradients[layer.weight.start..layer.bias.end].split_at_mut(layer.weight.len());
    let onto = if add { Onto::Itself } else { Onto::Nothing };
    if layer.few {
        let hidden = Lines { lines: input.lines(), stride: layer.stride() };
        let extent = Extent { rows: layer.outputs, inner: rows, columns: layer.stride() };
        transposed_product(extent, given, hidden, onto, weight);
        for (o, bias) in numbers_mut(bias)[..layer.outputs].iter_mut().enumerate() {
            let sum: f32 = given.numbers[o..].iter().step_by(layer.outputs).sum();
            *bias = if add { *bias + sum } else { sum };
        }
    } else {
        let delta = &delta[..rows * layer.stride()];
        let extent = Extent { rows: layer.inputs, inner: rows, columns: layer.stride() };
        let across = Lines { lines: delta, stride: layer.stride() };
        transposed_product(extent, input.numbers(layer), across, onto, weight);
        column_sums(delta, add, bias);
    }
}
