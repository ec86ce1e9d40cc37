//! What backward needs of the last forward.

use rlox_core::Result;

use super::layer::{Layer, unpad};
use super::{Activation, SIZES};
use crate::room::{filled, make_room, resize};
use crate::simd::gemm::{Lines, Numbers};
use crate::simd::{Line, lines};

/// What backward needs of the last forward, and memory that both use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) rows: usize,
    pub(super) x: Vec<f32>,
    /// The rows of one thread and of another; the second part is empty where one does all.
    pub(super) parts: [Part; 2],
    /// The weights of wide layers, `[outputs, inputs]`.
    pub(super) transposed: Vec<Vec<Line>>,
    /// Whether `transposed` is that of the parameters as they are.
    pub(crate) fresh: bool,
}

/// What is kept of some of the rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub(super) rows: usize,
    /// As many rows as there is memory for.
    capacity: usize,
    /// What each layer gave; of the last one only if it is wide.
    pub(super) outputs: Vec<Vec<Line>>,
    /// What activations were applied to, where their derivatives need it.
    pub(super) sums: Vec<Vec<Line>>,
    /// The gradients with respect to these.
    pub(super) deltas: Vec<Vec<Line>>,
    pub(super) d_inputs: Vec<Line>,
    /// The rows that a gradient is wanted of, and the gradients of their outputs.
    pub(super) wanted: Vec<usize>,
    pub(super) dy: Vec<f32>,
}

impl Kept {
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
        let transposed = layers.iter().map(|layer| filled(SIZES, layer.transposed(), Line::ZERO));
        Ok(Self { parts: [part(), part()], transposed: transposed.collect::<Result<_>>()?, ..Self::default() })
    }

    /// Room for rows of inputs, the `first` of them in the first part.
    pub(super) fn begin(&mut self, layers: &[Layer], x: &[f32], rows: usize, first: usize) -> Result<()> {
        for (part, rows) in self.parts.iter_mut().zip([first, rows - first]) {
            part.make_room(layers, rows)?;
        }
        make_room("rows", &mut self.x, x.len())?;
        self.rows = rows;
        (self.parts[0].rows, self.parts[1].rows) = (first, rows - first);
        self.x.clear();
        self.x.extend_from_slice(x);
        Ok(())
    }

    /// The last hidden layer, if there is one.
    pub(super) fn hidden(&self, width: usize, mut h: &mut [f32]) {
        for part in &self.parts {
            let (here, rest) = h.split_at_mut(part.rows * width);
            if let [.., hidden, _] = &part.outputs[..] {
                unpad(hidden, width, here);
            }
            h = rest;
        }
    }
}

impl Part {
    fn make_room(&mut self, layers: &[Layer], rows: usize) -> Result<()> {
        if rows <= self.capacity {
            return Ok(());
        }
        for (i, layer) in layers.iter().enumerate() {
            let count = if layer.few { 0 } else { rows * layer.stride() };
            let all = [&mut self.outputs, &mut self.sums, &mut self.deltas];
            for vector in all.into_iter().filter_map(|vectors| vectors.get_mut(i)) {
                resize("rows", vector, count, Line::ZERO)?;
            }
        }
        let [inputs, outputs] =
            [layers.first().map_or(0, |first| first.inputs), layers.last().map_or(0, |l| l.outputs)];
        resize("rows", &mut self.d_inputs, rows * lines(inputs), Line::ZERO)?;
        make_room("rows", &mut self.wanted, rows)?;
        make_room("rows", &mut self.dy, rows * outputs)?;
        self.capacity = rows;
        Ok(())
    }

    /// Puts the rows of `dy` that are not all 0 together.
    pub(super) fn want(&mut self, dy: &[f32], width: usize) {
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
    Hidden(&'a [Line]),
}

impl<'a> Input<'a> {
    pub(super) fn numbers(self, layer: &Layer) -> Numbers<'a> {
        match self {
            Self::First(x) => Numbers { numbers: x, stride: layer.inputs },
            Self::Hidden(h) => Lines { lines: h, stride: lines(layer.inputs) }.into(),
        }
    }

    /// For layers with few outputs, which are never the first.
    pub(super) fn lines(self) -> &'a [Line] {
        match self {
            Self::First(_) => &[],
            Self::Hidden(h) => h,
        }
    }
}
