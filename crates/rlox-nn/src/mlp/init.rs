//! First weights, as torch draws them.

use rand_distr::{Distribution, StandardNormal};
use rlox_core::Pcg64;

/// How weights are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Orthogonal matrices times a gain and biases of 0 (Saxe et al. 2014), as actor-critic methods use.
    Orthogonal {
        /// The gain of hidden layers; the root of 2 is usual.
        hidden: f32,
        /// The gain of the last layer: 0.01 for a policy, 1 for values.
        output: f32,
    },
    /// Weights and biases uniform between -b and b with b = 1 / sqrt(inputs): torch's default (He et al. 2015 with
    /// a = sqrt 5).
    Kaiming,
}

impl Init {
    /// Orthogonal with the usual gain of hidden layers, the root of 2.
    pub fn orthogonal(output: f32) -> Self {
        Self::Orthogonal { hidden: std::f32::consts::SQRT_2, output }
    }

    /// Weights, `[outputs, inputs]`, and biases of a layer.
    pub(crate) fn draw(self, outputs: usize, inputs: usize, last: bool, rng: &mut Pcg64) -> (Vec<f32>, Vec<f32>) {
        match self {
            Self::Orthogonal { hidden, output } => {
                (orthogonal(outputs, inputs, if last { output } else { hidden }, rng), vec![0.0; outputs])
            }
            Self::Kaiming => {
                let bound = 1.0 / (inputs as f64).sqrt();
                let mut draw = |count: usize| (0..count).map(|_| rng.uniform(-bound, bound) as f32).collect();
                (draw(outputs * inputs), draw(outputs))
            }
        }
    }
}

/// A matrix `[rows, columns]` whose rows, or columns where there are fewer of them, are orthogonal and of length `gain`:
/// uniformly drawn from all such, as torch's `orthogonal_`.
///
/// ```
/// use rlox_core::Pcg64;
///
/// let w = rlox_nn::orthogonal(2, 3, 1.0, &mut Pcg64::seed_from(0));
/// let dot: f32 = w[..3].iter().zip(&w[3..]).map(|(a, b)| a * b).sum();
/// assert!(dot.abs() < 1e-6);
/// ```
pub fn orthogonal(rows: usize, columns: usize, gain: f32, rng: &mut Pcg64) -> Vec<f32> {
    let (count, length) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut vector: Vec<f64> = (0..length).map(|_| StandardNormal.sample(rng)).collect();
        // Gram and Schmidt, twice: once leaves rounding errors that grow with the number of vectors.
        for _ in 0..2 {
            for other in &vectors {
                let along: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
            }
        }
        let norm = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
        if norm > 1e-9 {
            vectors.push(vector.into_iter().map(|a| a / norm).collect());
        }
    }
    let at = |row: usize, column: usize| if rows <= columns { vectors[row][column] } else { vectors[column][row] };
    (0..rows * columns).map(|i| (f64::from(gain) * at(i / columns, i % columns)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonal_either_way_and_gained() {
        let mut rng = Pcg64::seed_from(3);
        for (rows, columns) in [(5, 5), (3, 40), (64, 4)] {
            let w = orthogonal(rows, columns, 1.5, &mut rng);
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
    fn kaiming_fills_its_range() {
        let (weight, bias) = Init::Kaiming.draw(64, 25, false, &mut Pcg64::seed_from(1));
        let largest = weight.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(largest <= 0.2 && largest > 0.199, "{largest}");
        assert!(bias.iter().all(|x| x.abs() <= 0.2) && bias.iter().any(|x| *x != 0.0));
    }
}
