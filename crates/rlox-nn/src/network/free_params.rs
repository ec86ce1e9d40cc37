//! Parameters outside networks, such as standard deviations and a temperature.

use rlox_core::{Result, error::check_len};

use crate::alloc::try_vec;
use crate::kernels::elementwise::sum_of_squares;
use crate::network::check_stepped;
use crate::optimizer::{MEANS, Moments, STEP, check_state, read_step};
use crate::simd::{AlignedF32x16, lines, numbers, numbers_mut};
use crate::weights::check_name;
use crate::{Learnable, NamedTensors, Optimizer, validate};

/// A small array of parameters outside networks.
///
/// It has the same optimizers as networks, and [`crate::clip_and_step`] can clip its gradients
/// together with those of networks.
#[derive(Clone, Debug)]
pub struct Parameters {
    name: &'static str,
    shape: Vec<usize>,
    values: Vec<AlignedF32x16>,
    gradients: Vec<AlignedF32x16>,
    moments: Moments,
    len: usize,
}

impl Parameters {
    /// Creates parameters with a name, a shape and initial values.
    ///
    /// # Errors
    /// - [`rlox_core::Error::Shape`]: the number of values does not fit the shape.
    /// - [`rlox_core::Error::NotFinite`]: a value is not finite.
    /// - The errors of [`Parameters::filled`].
    ///
    /// ```
    /// let log_alpha = rlox_nn::Parameters::new("log_alpha", &[1], &[0.0])?;
    /// assert_eq!(log_alpha.values(), [0.0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn new(name: &'static str, shape: &[usize], values: &[f32]) -> Result<Self> {
        check_len("values", values.len(), num_elements(shape))?;
        let mut parameters = Self::filled(name, shape, 0.0)?;
        validate::check_finite("values", values, shape.last().copied().unwrap_or(1).max(1))?;
        parameters.values_mut().copy_from_slice(values);
        Ok(parameters)
    }

    /// Creates parameters that all have the same initial value.
    ///
    /// # Errors
    /// - [`rlox_core::Error::Shape`]: no file can hold the name, because it is `__metadata__` or
    ///   has a line break.
    /// - [`rlox_core::Error::NotFinite`]: the value is not finite.
    /// - [`rlox_core::Error::Memory`]: the parameters do not fit into memory.
    ///
    /// ```
    /// let log_std = rlox_nn::Parameters::filled("log_std", &[3, 2], -1.0)?;
    /// assert_eq!(log_std.values(), [-1.0; 6]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn filled(name: &'static str, shape: &[usize], value: f32) -> Result<Self> {
        check_name("name", name)?;
        validate::check_finite("value", &[value], 1)?;
        let len = num_elements(shape);
        let arena = || try_vec("shape", lines(len), AlignedF32x16::ZERO);
        let (values, gradients, moments) = (arena()?, arena()?, Moments::new("shape", lines(len))?);
        let mut parameters = Self { name, shape: shape.to_vec(), values, gradients, moments, len };
        parameters.values_mut().fill(value);
        Ok(parameters)
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut numbers_mut(&mut self.values)[..self.len]
    }

    /// Returns the values in row-major order.
    pub fn values(&self) -> &[f32] {
        &numbers(&self.values)[..self.len]
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Adds `gradients` to the stored gradients, element by element.
    pub fn add_gradients(&mut self, gradients: impl Iterator<Item = f32>) {
        let sums = numbers_mut(&mut self.gradients)[..self.len].iter_mut();
        sums.zip(gradients).for_each(|(sum, gradient)| *sum += gradient);
    }

    fn named(&self, arena: &[AlignedF32x16], suffix: &str) -> NamedTensors {
        let mut tensors = NamedTensors::default();
        // A push cannot fail for the first tensor of a collection if its data fit its shape.
        let _ = tensors.push(format!("{}{suffix}", self.name), &self.shape, numbers(arena)[..self.len].to_vec());
        tensors
    }

    /// Returns the values by name.
    pub fn tensors(&self) -> NamedTensors {
        self.named(&self.values, "")
    }

    /// Loads values by name.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`].
    pub fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        write_tensor(tensors, self.name, &mut self.values);
        Ok(())
    }

    /// Returns the state of the optimizer, like [`crate::Network::optimizer_state`].
    pub fn optimizer_state(&self) -> NamedTensors {
        let mut state = NamedTensors::default();
        for (means, name) in [&self.moments.mean, &self.moments.square].into_iter().zip(MEANS) {
            for tensor in &self.named(means, &format!(".{name}")) {
                let _ = state.push(tensor.name.clone(), &tensor.shape, tensor.data.clone());
            }
        }
        let _ = state.push(format!("{}.{STEP}", self.name), &[], vec![self.moments.step as f32]);
        state
    }

    /// Loads a state that [`Parameters::optimizer_state`] returned.
    ///
    /// # Errors
    /// The errors of [`NamedTensors::check`]. [`rlox_core::Error::Config`] if the number of steps
    /// is not an integer of at least 0, or a mean of squares is negative.
    pub fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.moments.step = read_step(state, &format!("{}.{STEP}", self.name));
        for (means, name) in [&mut self.moments.mean, &mut self.moments.square].into_iter().zip(MEANS) {
            write_tensor(state, &format!("{}.{name}", self.name), means);
        }
        Ok(())
    }
}

/// Returns the number of elements of a shape; `usize::MAX` if the product overflows.
fn num_elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |all: usize, extent| all.saturating_mul(*extent))
}

fn write_tensor(tensors: &NamedTensors, name: &str, arena: &mut [AlignedF32x16]) {
    if let Some(tensor) = tensors.find(name) {
        // The padding is NaN if an optimizer step has made all parameters NaN.
        arena.fill(AlignedF32x16::ZERO);
        numbers_mut(arena)[..tensor.data.len()].copy_from_slice(&tensor.data);
    }
}

impl Learnable for Parameters {
    fn sum_of_squares(&mut self) -> Result<f64> {
        Ok(sum_of_squares(&self.gradients))
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        optimizer.check_step(scale, sum_of_squares(&self.gradients), || self.named_gradients())?;
        let all = self.gradients.len();
        let finite = self.moments.apply(optimizer, scale, &self.gradients, &mut self.values, all);
        self.gradients.fill(AlignedF32x16::ZERO);
        check_stepped(finite?, || self.tensors())
    }

    fn named_gradients(&self) -> NamedTensors {
        self.named(&self.gradients, "")
    }

    fn zero_grad(&mut self) {
        self.gradients.fill(AlignedF32x16::ZERO);
    }
}
