//! Parameters that no network computes with: standard deviations, a temperature.

use rlox_core::{Result, check_len};

use crate::adam::{MEANS, Moments, STEP, check_state, step_of};
use crate::network::check_stepped;
use crate::simd::elementwise::sum_of_squares;
use crate::simd::{Line, lines, numbers, numbers_mut};
use crate::{Learnable, NamedTensors, Optimizer};

/// One small array of parameters under the same optimisers, and the same joint norm, as networks.
#[derive(Clone, Debug)]
pub struct Parameters {
    name: &'static str,
    shape: Vec<usize>,
    values: Vec<Line>,
    gradients: Vec<Line>,
    moments: Moments,
    len: usize,
}

impl Parameters {
    /// Parameters of a name, shape and first values.
    ///
    /// # Errors
    /// [`rlox_core::Error::Shape`] if there are not as many values as the shape has.
    ///
    /// ```
    /// let log_alpha = rlox_nn::Parameters::new("log_alpha", &[1], &[0.0])?;
    /// assert_eq!(log_alpha.values(), [0.0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn new(name: &'static str, shape: &[usize], values: &[f32]) -> Result<Self> {
        check_len("values", values.len(), shape.iter().fold(1, |all: usize, extent| all.saturating_mul(*extent)))?;
        Ok(Self::of(name, shape, values))
    }

    /// Parameters of which each begins with the same value.
    ///
    /// ```
    /// let log_std = rlox_nn::Parameters::filled("log_std", &[3, 2], -1.0);
    /// assert_eq!(log_std.values(), [-1.0; 6]);
    /// ```
    pub fn filled(name: &'static str, shape: &[usize], value: f32) -> Self {
        Self::of(name, shape, &vec![value; shape.iter().product()])
    }

    fn of(name: &'static str, shape: &[usize], values: &[f32]) -> Self {
        let len = values.len();
        let mut padded = vec![Line::ZERO; lines(len)];
        numbers_mut(&mut padded)[..len].copy_from_slice(values);
        let gradients = vec![Line::ZERO; padded.len()];
        Self { name, shape: shape.to_vec(), moments: Moments::new(padded.len()), values: padded, gradients, len }
    }

    /// The values, row-major.
    pub fn values(&self) -> &[f32] {
        &numbers(&self.values)[..self.len]
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Adds to the gradients, element by element.
    pub fn add_gradients(&mut self, gradients: impl Iterator<Item = f32>) {
        let there = numbers_mut(&mut self.gradients)[..self.len].iter_mut();
        there.zip(gradients).for_each(|(sum, gradient)| *sum += gradient);
    }

    fn named(&self, arena: &[Line], suffix: &str) -> NamedTensors {
        let mut tensors = NamedTensors::default();
        // The only one, of its own shape: it is not refused.
        let _ = tensors.push(format!("{}{suffix}", self.name), &self.shape, numbers(arena)[..self.len].to_vec());
        tensors
    }

    /// The values by name.
    pub fn tensors(&self) -> NamedTensors {
        self.named(&self.values, "")
    }

    /// Takes values by name.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    pub fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        put(tensors, self.name, &mut self.values);
        Ok(())
    }

    /// What the optimiser keeps, as [`crate::Network::optimizer_state`].
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

    /// Takes what [`Parameters::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    pub fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        check_state(state, &self.optimizer_state())?;
        self.moments.step = step_of(state, &format!("{}.{STEP}", self.name));
        for (means, name) in [&mut self.moments.mean, &mut self.moments.square].into_iter().zip(MEANS) {
            put(state, &format!("{}.{name}", self.name), means);
        }
        Ok(())
    }
}

fn put(tensors: &NamedTensors, name: &str, arena: &mut [Line]) {
    if let Some(tensor) = tensors.find(name) {
        numbers_mut(arena)[..tensor.data.len()].copy_from_slice(&tensor.data);
    }
}

impl Learnable for Parameters {
    fn sum_of_squares(&mut self) -> Result<f64> {
        Ok(sum_of_squares(&self.gradients))
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        optimizer.check()?;
        let finite = self.moments.apply(optimizer, scale, &self.gradients, &mut self.values);
        self.gradients.fill(Line::ZERO);
        check_stepped(finite, || self.tensors())
    }

    fn named_gradients(&self) -> NamedTensors {
        self.named(&self.gradients, "")
    }

    fn forget(&mut self) {
        self.gradients.fill(Line::ZERO);
    }
}
