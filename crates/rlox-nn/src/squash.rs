//! The hyperbolic tangent that keeps actions between -1 and 1, and what it does to densities.

use std::f32::consts::LN_2;

use crate::simd::elementary::{exp_in_place, ln_in_place, tanh_in_place};

/// The slopes of the last numbers that were squashed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Squash {
    /// `1 - tanh^2 u`.
    pub(crate) slopes: Vec<f32>,
    /// Their logarithms.
    pub(crate) log_slopes: Vec<f32>,
}

impl Squash {
    /// `tanh u`. With `t = e^-2|u|`, `1 - tanh^2 u = 4 t / (1 + t)^2`, whose logarithm is `2 (ln 2 - |u| - ln(1 + t))`:
    /// neither loses digits where the tangent is 1.
    pub(crate) fn run(&mut self, u: &[f32], squashed: &mut [f32]) {
        squashed.copy_from_slice(u);
        tanh_in_place(squashed);
        self.slopes_of(u);
    }

    /// The slopes alone.
    pub(crate) fn slopes_of(&mut self, u: &[f32]) {
        let Self { slopes, log_slopes } = self;
        slopes.clear();
        slopes.extend(u.iter().map(|u| -2.0 * u.abs()));
        exp_in_place(slopes);
        log_slopes.clear();
        log_slopes.extend(slopes.iter().map(|t| 1.0 + t));
        ln_in_place(log_slopes);
        for ((slope, log), u) in slopes.iter_mut().zip(log_slopes).zip(u) {
            let sum = 1.0 + *slope;
            *slope = 4.0 * *slope / (sum * sum);
            *log = 2.0 * (LN_2 - u.abs() - *log);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_and_their_logarithms_keep_their_digits() {
        let u = [0.0, 1e-3, -0.5, 2.0, -8.0, 30.0, f32::NAN];
        let (mut squash, mut squashed) = (Squash::default(), [0.0; 7]);
        squash.run(&u, &mut squashed);
        for (i, u) in u.iter().take(6).map(|u| f64::from(*u)).enumerate() {
            let slope = 1.0 / u.cosh().powi(2);
            assert!((f64::from(squashed[i]) - u.tanh()).abs() < 1e-6, "tanh {u}");
            assert!((f64::from(squash.slopes[i]) / slope - 1.0).abs() < 2e-6, "slope at {u}: {}", squash.slopes[i]);
            assert!((f64::from(squash.log_slopes[i]) - slope.ln()).abs() < 1e-6 * (1.0 + u.abs()), "log at {u}");
        }
        assert!(squashed[6].is_nan() && squash.slopes[6].is_nan() && squash.log_slopes[6].is_nan());
    }
}
