//! Layout of fully connected layers on every backend: widths, names, order of parameters, and
//! checks.

use std::ops::Range;

use rlox_core::{Error, Pcg64, Result, error::check_len};

use super::{Activation, Init};
use crate::NamedTensors;
use crate::alloc::{check_available, try_reserve};
use crate::optimizer::{MEANS, check_state, read_step};

/// Widths, activation and parameter order of a network of fully connected layers, for any backend.
///
/// An array in flat order holds the weight matrix and then the bias of each layer, first layer
/// first, with torch's shapes. A backend that stores its parameters in this order can use the
/// names, initial weights, optimizer states and errors of the built-in network.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::{Activation, Init, Mlp, MlpLayout, Network};
///
/// let layout = MlpLayout::new(&[4, 8, 2], Activation::Tanh)?;
/// let flat = layout.draw(Init::orthogonal(0.01), &mut Pcg64::seed_from(3))?;
/// let built_in = Mlp::new(&[4, 8, 2], Activation::Tanh, Init::orthogonal(0.01), &mut Pcg64::seed_from(3))?;
/// assert_eq!(layout.named(&flat), built_in.tensors());
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpLayout {
    sizes: Vec<usize>,
    activation: Activation,
}

/// Widths of a layer and the ranges of its parameters in an array in flat order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerLayout {
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// Range of the weights, `[outputs, inputs]`.
    pub weight: Range<usize>,
    /// Range of the biases, `[outputs]`.
    pub bias: Range<usize>,
}

impl MlpLayout {
    /// Creates a layout; `sizes` are the widths of the layers, starting with the input:
    /// `[4, 64, 64, 2]`.
    ///
    /// # Errors
    /// - [`Error::Config`]: there are fewer than two widths, or a width is 0.
    /// - [`Error::Memory`]: the parameters do not fit into memory.
    pub fn new(sizes: &[usize], activation: Activation) -> Result<Self> {
        const FIX: &str = "pass positive widths, from input to output";
        // Parameters, gradients, two running means and transposed weights: five f32 per parameter.
        const BYTES_EACH: u128 = 20;
        if sizes.len() < 2 || sizes.contains(&0) {
            return Err(Error::config("sizes", "at least two positive widths", format!("{sizes:?}"), FIX));
        }
        let products = sizes.windows(2).map(|pair| (pair[0] as u128 + 1).saturating_mul(pair[1] as u128));
        let count = products.fold(0_u128, u128::saturating_add);
        check_available("sizes", count.saturating_mul(BYTES_EACH), || format!("{sizes:?}"))?;
        Ok(Self { sizes: sizes.to_vec(), activation })
    }

    /// Returns the widths of the layers, starting with the input.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the activation of the hidden layers.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Returns the number of elements of an input row.
    pub fn in_dim(&self) -> usize {
        self.sizes[0]
    }

    /// Returns the number of elements of an output row.
    pub fn out_dim(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Returns the number of units of the last hidden layer, or 0 if there is no hidden layer.
    pub fn hidden_dim(&self) -> usize {
        if self.sizes.len() > 2 { self.sizes[self.sizes.len() - 2] } else { 0 }
    }

    /// Returns an iterator over the layers, from input to output.
    pub fn layers(&self) -> impl Iterator<Item = LayerLayout> {
        let mut from = 0;
        self.sizes.windows(2).map(move |pair| {
            let (inputs, outputs) = (pair[0], pair[1]);
            let weight = from..from + inputs * outputs;
            let bias = weight.end..weight.end + outputs;
            from = bias.end;
            LayerLayout { inputs, outputs, weight, bias }
        })
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.sizes.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum()
    }

    /// Draws initial parameters in flat order.
    ///
    /// The numbers equal those of [`crate::Mlp::new`] with the same arguments.
    ///
    /// # Errors
    /// [`Error::Memory`], and the errors of [`crate::orthogonal`].
    pub fn draw(&self, init: Init, rng: &mut Pcg64) -> Result<Vec<f32>> {
        let mut flat = Vec::new();
        try_reserve("sizes", &mut flat, self.parameters())?;
        for (i, layer) in self.layers().enumerate() {
            let (weight, bias) = init.draw(layer.outputs, layer.inputs, i + 2 == self.sizes.len(), rng)?;
            flat.extend(weight);
            flat.extend(bias);
        }
        Ok(flat)
    }

    /// Returns an array in flat order as tensors with the names of the parameters.
    ///
    /// Tensors beyond the end of `flat` are absent.
    pub fn named(&self, flat: &[f32]) -> NamedTensors {
        self.names(|_, layer| split_flat(flat, layer))
    }

    /// Returns the tensors of all layers by parameter name.
    ///
    /// `get_tensors` returns the weights and biases of a layer from its index and its layout.
    pub(super) fn names(&self, get_tensors: impl Fn(usize, LayerLayout) -> Tensors) -> NamedTensors {
        let mut tensors = NamedTensors::default();
        self.export(get_tensors, "", &mut tensors);
        tensors
    }

    fn export(&self, get_tensors: impl Fn(usize, LayerLayout) -> Tensors, suffix: &str, out: &mut NamedTensors) {
        for (i, layer) in self.layers().enumerate() {
            let name = |kind: &str| format!("{}.{kind}{suffix}", 2 * i);
            let shape = [layer.outputs, layer.inputs];
            let (weight, bias) = get_tensors(i, layer);
            // Names are unique, so that a push fails only for tensors beyond the end of a flat
            // array.
            let _ = out.push(name("weight"), &shape, weight);
            let _ = out.push(name("bias"), &shape[..1], bias);
        }
    }

    /// Returns named parameters as an array in flat order.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`].
    pub fn flat(&self, tensors: &NamedTensors) -> Result<Vec<f32>> {
        tensors.check(&self.named(&vec![0.0; self.parameters()]))?;
        Ok(self.import(tensors, ""))
    }

    /// Returns tensors, whose names and shapes were checked, as an array in flat order.
    fn import(&self, tensors: &NamedTensors, suffix: &str) -> Vec<f32> {
        self.find_tensors(tensors, suffix).flatten().flatten().copied().collect()
    }

    /// Returns an iterator over the weights and biases of each layer.
    ///
    /// The names and shapes of `tensors` were checked before.
    pub(super) fn find_tensors<'a>(
        &self,
        tensors: &'a NamedTensors,
        suffix: &'a str,
    ) -> impl Iterator<Item = [&'a [f32]; 2]> + use<'a> {
        let data = move |i: usize, kind: &str| {
            let found = tensors.find(&format!("{}.{kind}{suffix}", 2 * i));
            found.map_or(&[][..], |tensor| &tensor.data)
        };
        (0..self.sizes.len() - 1).map(move |i| ["weight", "bias"].map(|kind| data(i, kind)))
    }

    /// Returns the state of an optimizer by name, like [`crate::Network::optimizer_state`].
    ///
    /// `means` are the running means of gradients and of their squares, in flat order. `step` is
    /// the number of steps.
    pub fn named_state(&self, means: [&[f32]; 2], step: u32) -> NamedTensors {
        self.names_state(step, means, |mean, _, layer| split_flat(mean, layer))
    }

    /// Returns the state of an optimizer by name.
    ///
    /// `get_tensors` reads the tensors of a layer from a running mean.
    pub(super) fn names_state<M: Copy>(
        &self,
        step: u32,
        means: [M; 2],
        get_tensors: impl Fn(M, usize, LayerLayout) -> Tensors,
    ) -> NamedTensors {
        let mut state = NamedTensors::default();
        for (mean, name) in means.into_iter().zip(MEANS) {
            self.export(|i, layer| get_tensors(mean, i, layer), &format!(".{name}"), &mut state);
        }
        let _ = state.push("step", &[], vec![step as f32]);
        state
    }

    /// Returns the running means, in flat order, and the number of steps of a named state.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`Error::Config`] if the number of steps is not an
    /// integer of at least 0, or a mean of squares is negative.
    pub fn flat_state(&self, state: &NamedTensors) -> Result<([Vec<f32>; 2], u32)> {
        let zeros = vec![0.0; self.parameters()];
        check_state(state, &self.named_state([&zeros; 2], 0))?;
        Ok((MEANS.map(|name| self.import(state, &format!(".{name}"))), read_step(state, "step")))
    }

    /// Checks the lengths of the slices of a forward pass.
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length, or `rows` is 0.
    pub fn check_forward(&self, rows: usize, x: &[f32], y: &[f32]) -> Result<()> {
        check_rows(rows, &[("x", x.len(), self.in_dim()), ("y", y.len(), self.out_dim())])
    }

    /// Checks the length of a slice for the last hidden layer.
    ///
    /// `rows` is the number of rows of the last forward pass, or 0 if there was none.
    ///
    /// # Errors
    /// [`Error::Shape`] if `h` has the wrong length, or there was no forward pass.
    pub fn check_hidden(&self, rows: usize, h: &[f32]) -> Result<()> {
        check_forward_before(rows)?;
        check_rows(rows, &[("h", h.len(), self.hidden_dim())])
    }

    /// Checks the lengths of the slices of a backward pass.
    ///
    /// `rows` is the number of rows of the last forward pass, or 0 if there was none.
    ///
    /// # Errors
    /// [`Error::Shape`] if a slice has the wrong length, or there was no forward pass.
    pub fn check_backward(&self, rows: usize, dy: &[f32], dx: Option<&[f32]>) -> Result<()> {
        check_forward_before(rows)?;
        let input = dx.map_or(rows * self.in_dim(), <[f32]>::len);
        check_rows(rows, &[("dy", dy.len(), self.out_dim()), ("dx", input, self.in_dim())])
    }

    /// Checks the lengths of the slices of [`crate::Network::backward_hidden`].
    ///
    /// # Errors
    /// The errors of [`MlpLayout::check_backward`].
    pub fn check_backward_hidden(&self, rows: usize, dy: &[f32], dh: &[f32]) -> Result<()> {
        self.check_backward(rows, dy, None)?;
        check_rows(rows, &[("dh", dh.len(), self.hidden_dim())])
    }

    /// Checks the arguments of [`crate::Network::soft_update`].
    ///
    /// # Errors
    /// - [`Error::Shape`]: `online` has another architecture.
    /// - [`Error::Config`]: `tau` is outside [0, 1].
    pub fn check_soft_update(&self, online: &Self, tau: f32) -> Result<()> {
        if self != online {
            let describe = |net: &Self| format!("{:?} with {:?}", net.sizes, net.activation);
            let fix = "use the same sizes and activation for both networks";
            return Err(Error::shape("online", format!("a network of {}", describe(self)), describe(online), fix));
        }
        if !(0.0..=1.0).contains(&tau) {
            return Err(Error::config("tau", "a number from 0 to 1", tau.to_string(), "pass 0.005, or 1 to copy"));
        }
        Ok(())
    }
}

/// Weights, `[outputs, inputs]`, and biases of a layer.
type Tensors = (Vec<f32>, Vec<f32>);

/// Returns the weights and biases of a layer from an array in flat order.
///
/// A tensor beyond the end of the array is empty.
fn split_flat(flat: &[f32], layer: LayerLayout) -> Tensors {
    let slice = |range: Range<usize>| flat.get(range).unwrap_or_default().to_vec();
    (slice(layer.weight), slice(layer.bias))
}

/// Checks that `rows`, the number of rows of the last forward pass, is not 0.
fn check_forward_before(rows: usize) -> Result<()> {
    if rows == 0 {
        return Err(Error::shape("rows", "the rows of a forward pass", "none", "call forward first"));
    }
    Ok(())
}

/// Checks that there are rows, and the lengths of slices.
///
/// `lengths` has the name, the length and the number of elements per row of each slice.
fn check_rows(rows: usize, lengths: &[(&'static str, usize, usize)]) -> Result<()> {
    if rows == 0 {
        return Err(Error::shape("rows", "at least 1", "0", "pass a batch that is not empty"));
    }
    lengths.iter().try_for_each(|(name, got, dim)| check_len(name, *got, rows.saturating_mul(*dim)))
}
