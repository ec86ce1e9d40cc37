//! Random initial weights, with the distributions of torch.

use rand_distr::{Distribution, StandardNormal};
use rlox_core::{Error, Pcg64, Result, interrupt::InterruptCheck};

use crate::alloc::{try_reserve, try_vec};
use crate::simd::on_f32s;

/// Distribution of initial weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Orthogonal weight matrices times a gain, and biases of 0 (Saxe et al. 2014). Actor-critic
    /// methods usually use this distribution.
    Orthogonal {
        /// Gain of hidden layers, usually `sqrt(2)`.
        hidden: f32,
        /// Gain of the last layer, usually 0.01 for a policy and 1 for values.
        output: f32,
    },
    /// Weights and biases uniform in [-b, b] with `b = 1 / sqrt(inputs)`.
    ///
    /// This is torch's default (He et al. 2015 with `a = sqrt(5)`).
    Kaiming,
}

impl Init {
    /// Returns orthogonal initialization with the gain `sqrt(2)` for hidden layers and the gain
    /// `output` for the last layer.
    pub fn orthogonal(output: f32) -> Self {
        Self::Orthogonal { hidden: std::f32::consts::SQRT_2, output }
    }

    /// Draws the weights, `[outputs, inputs]`, and the biases of a layer; `last` is true for the
    /// last layer.
    ///
    /// # Errors
    /// The errors of [`orthogonal`], and [`Error::Memory`].
    pub(crate) fn draw(
        self,
        outputs: usize,
        inputs: usize,
        last: bool,
        rng: &mut Pcg64,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok(match self {
            Self::Orthogonal { hidden, output } => {
                let weight = orthogonal(outputs, inputs, if last { output } else { hidden }, rng)?;
                (weight, try_vec("sizes", outputs, 0.0)?)
            }
            Self::Kaiming => {
                let bound = 1.0 / (inputs as f64).sqrt();
                let mut draw = |count: usize| -> Result<_> {
                    let mut drawn = Vec::new();
                    try_reserve("sizes", &mut drawn, count)?;
                    drawn.extend((0..count).map(|_| rng.uniform(-bound, bound) as f32));
                    Ok(drawn)
                };
                (draw(outputs * inputs)?, draw(outputs)?)
            }
        })
    }
}

/// Number of vectors that are made orthogonal together.
///
/// Each earlier vector is read once per block, while the vectors of the block stay in the
/// second-level cache.
const BLOCK: usize = 32;
/// Smallest length of a vector after projections, relative to its expected length. A shorter vector
/// is mostly rounding errors, and is drawn anew.
const MIN_SHARE: f64 = 1e-6;

/// Draws a random matrix `[rows, columns]` with orthogonal rows or columns of length `gain`.
///
/// The rows are orthogonal if `rows <= columns`, and otherwise the columns are. The distribution is
/// uniform, as in torch's `orthogonal_`. The same state of `rng` gives the same bits on every CPU.
///
/// # Errors
/// - [`Error::Config`]: the gain is not finite.
/// - [`Error::Memory`]: the matrix does not fit into memory.
/// - [`Error::Interrupted`]: the check of [`rlox_core::interrupt::set_interrupt_check`] asks to
///   stop.
///
/// ```
/// use rlox_core::Pcg64;
///
/// let w = rlox_nn::orthogonal(2, 3, 1.0, &mut Pcg64::seed_from(0))?;
/// let dot: f32 = w[..3].iter().zip(&w[3..]).map(|(a, b)| a * b).sum();
/// assert!(dot.abs() < 1e-6);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn orthogonal(rows: usize, columns: usize, gain: f32, rng: &mut Pcg64) -> Result<Vec<f32>> {
    if !gain.is_finite() {
        return Err(Error::config(
            "gain",
            "a finite number",
            gain.to_string(),
            "pass a gain such as sqrt(2), 1 or 0.01",
        ));
    }
    let (count, length) = (rows.min(columns), rows.max(columns));
    let (mut vectors, mut interrupt) = (Vec::new(), InterruptCheck::default());
    try_reserve("rows", &mut vectors, count.saturating_mul(length))?;
    for from in (0..count).step_by(BLOCK) {
        let start = vectors.len();
        vectors.extend((0..(count - from).min(BLOCK) * length).map(|_| -> f64 { StandardNormal.sample(rng) }));
        let (earlier, block) = vectors.split_at_mut(start);
        for direction in earlier.chunks_exact(length) {
            interrupt.check()?;
            block.chunks_exact_mut(length).for_each(|vector| subtract_projection(direction, vector));
        }
        for i in 0..block.len() / length {
            let (before, vector) = block.split_at_mut(i * length);
            let vector = &mut vector[..length];
            before.chunks_exact(length).for_each(|direction| subtract_projection(direction, vector));
            while !normalize(vector) {
                vector.fill_with(|| StandardNormal.sample(rng));
                earlier
                    .chunks_exact(length)
                    .chain(before.chunks_exact(length))
                    .for_each(|direction| subtract_projection(direction, vector));
            }
        }
    }
    let (gain, by_rows) = (f64::from(gain), rows <= columns);
    let index = |row: usize, column: usize| if by_rows { row * length + column } else { column * length + row };
    let mut matrix = Vec::new();
    try_reserve("rows", &mut matrix, vectors.len())?;
    matrix.extend((0..vectors.len()).map(|i| (gain * vectors[index(i / columns, i % columns)]) as f32));
    Ok(matrix)
}

on_f32s! {
    /// Subtracts from `vector` its projection on `direction`, which has length 1 (modified
    /// Gram-Schmidt).
    ///
    /// Multiplications and additions are not fused, and sums have a fixed order, so that every
    /// instruction set gives the same bits.
    fn subtract_projection(_simd: F32s, direction: &[f64], vector: &mut [f64]) {
        const LANES: usize = 32;
        let mut sums = [0.0; LANES];
        let ((others, other_rest), (parts, rest)) = (direction.as_chunks::<LANES>(), vector.as_chunks::<LANES>());
        for (a, b) in others.iter().zip(parts) {
            for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
                *sum += a * b;
            }
        }
        let along = sums.iter().sum::<f64>() + other_rest.iter().zip(rest).map(|(a, b)| a * b).sum::<f64>();
        for (a, b) in direction.iter().zip(vector) {
            *b -= along * a;
        }
    }
}

/// Scales a vector to length 1; returns false if its length was less than [`MIN_SHARE`] of the
/// expected length.
fn normalize(vector: &mut [f64]) -> bool {
    let norm = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
    for a in &mut *vector {
        *a /= norm;
    }
    // The expected length of a vector of n standard normal numbers is about sqrt(n).
    norm > MIN_SHARE * (vector.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::on_each_isa;

    #[test]
    fn rows_or_columns_are_orthogonal_with_the_gain() {
        let mut rng = Pcg64::seed_from(3);
        for (rows, columns) in [(5, 5), (3, 40), (64, 4), (70, 70), (200, 130)] {
            let w = orthogonal(rows, columns, 1.5, &mut rng).unwrap();
            let (count, step) = if rows <= columns { (rows, (columns, 1)) } else { (columns, (1, columns)) };
            for i in 0..count {
                for j in 0..=i {
                    let length = rows.max(columns);
                    let dot: f32 = (0..length).map(|k| w[i * step.0 + k * step.1] * w[j * step.0 + k * step.1]).sum();
                    assert!((dot - if i == j { 2.25 } else { 0.0 }).abs() < 1e-5, "{rows}x{columns}: {i}, {j}: {dot}");
                }
            }
        }
    }

    #[test]
    fn weights_do_not_depend_on_the_instruction_set() {
        let mut drawn = Vec::new();
        on_each_isa(|_| drawn.push(orthogonal(75, 67, 1.0, &mut Pcg64::seed_from(3)).unwrap()));
        assert!(drawn.iter().all(|w| *w == drawn[0]));
    }

    #[test]
    fn gains_that_are_not_finite_are_rejected() {
        for gain in [f32::NAN, f32::INFINITY] {
            let result = Init::orthogonal(gain).draw(2, 2, true, &mut Pcg64::seed_from(0));
            rlox_core::__private::testing::assert_rejects(result, Error::Config, "gain");
        }
    }

    #[test]
    fn kaiming_weights_fill_their_range() {
        let (weight, bias) = Init::Kaiming.draw(64, 25, false, &mut Pcg64::seed_from(1)).unwrap();
        let largest = weight.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(largest <= 0.2 && largest > 0.199, "{largest}");
        assert!(bias.iter().all(|x| x.abs() <= 0.2) && bias.iter().any(|x| *x != 0.0));
    }
}
