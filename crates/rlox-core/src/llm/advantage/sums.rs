//! What the rewards of a group sum to, and the deviation they have.

use super::How;
use crate::interrupt::Watch;
use crate::simd::LANES;
use crate::simd::f64s::{F64s, on_f64s};
use crate::{Float, Result};

/// What a group's rewards sum to, relative to its first one: equal rewards have no spread at all, and nothing is lost
/// to cancellation.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) count: f64,
    pub(super) origin: f64,
    /// Of the differences from `origin`; NaN if a reward is missing.
    pub(super) sum: f64,
    /// Of their squares.
    pub(super) square: f64,
}

impl Sums {
    #[inline(always)]
    pub(super) fn of<T: Float>(simd: impl F64s, rewards: &[T]) -> Self {
        Self::about(simd, rewards.first().map_or(f64::NAN, |x| x.wide()), rewards)
    }

    #[inline(always)]
    fn about<T: Float>(simd: impl F64s, origin: f64, rewards: &[T]) -> Self {
        let (blocks, rest) = rewards.as_chunks::<LANES>();
        let (mut sum, mut square) = (0.0, 0.0);
        if !blocks.is_empty() {
            let (mut sums, mut squares, origins) = (simd.splat(0.0), simd.splat(0.0), simd.splat(origin));
            for block in blocks {
                let x = simd.sub(T::load(simd, block), origins);
                sums = simd.add(sums, x);
                squares = simd.add(squares, simd.mul(x, x));
            }
            (sum, square) = (total(simd, sums), total(simd, squares));
        }
        for x in rest {
            let x = x.wide() - origin;
            sum += x;
            square += x * x;
        }
        Self { count: rewards.len() as f64, origin, sum, square }
    }

    /// The same of many rewards, of which some may be missing.
    pub(super) fn of_many<T: Float>(rewards: &[T], watch: &mut Watch) -> Result<Self> {
        let mut all = Self { count: 0.0, origin: rewards[0].wide(), sum: 0.0, square: 0.0 };
        for (i, rewards) in rewards.chunks(Watch::STRETCH).enumerate() {
            if i > 0 {
                watch.check()?;
            }
            add(rewards, &mut all);
        }
        if !all.sum.is_nan() {
            return Ok(all);
        }
        let origin = rewards.iter().map(|x| x.wide()).find(|x| !x.is_nan()).unwrap_or(0.0);
        all = Self { count: 0.0, origin, sum: 0.0, square: 0.0 };
        for (i, rewards) in rewards.chunks(Watch::STRETCH).enumerate() {
            if i > 0 {
                watch.check()?;
            }
            all.add(&Self::present_about(origin, rewards));
        }
        Ok(all)
    }

    /// Adds what others sum to, about the same origin.
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.square += other.square;
    }

    /// The same of the rewards that are there.
    #[cold]
    pub(super) fn of_present<T: Float>(rewards: &[T]) -> Self {
        let origin = rewards.iter().map(|x| x.wide()).find(|x| !x.is_nan());
        Self::present_about(origin.unwrap_or(0.0), rewards)
    }

    fn present_about<T: Float>(origin: f64, rewards: &[T]) -> Self {
        let present = rewards.iter().map(|x| x.wide()).filter(|x| !x.is_nan());
        let nothing = Self { count: 0.0, origin, sum: 0.0, square: 0.0 };
        present.fold(nothing, |sums, x| {
            let x = x - origin;
            Self { count: sums.count + 1.0, sum: sums.sum + x, square: sums.square + x * x, ..sums }
        })
    }

    #[inline(always)]
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count
    }

    /// The standard deviation; 0 where no reward is more than two roundings to T away from the first, or undefined.
    #[inline(always)]
    pub(super) fn std<T: Float>(&self, ddof: f64) -> f64 {
        let ulp = if size_of::<T>() == 4 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let mean = self.mean();
        let std = ((self.square - self.sum * mean) / (self.count - ddof)).sqrt();
        // The root of the sum is at least the largest difference. False for NaN too, which too few rewards give.
        if self.count > ddof && self.square.sqrt() > 2.0 * ulp * self.origin.abs() { std } else { 0.0 }
    }

    /// What the differences from the mean are multiplied by; 0 where there is nothing to tell apart.
    #[inline(always)]
    pub(super) fn factor<T: Float>(&self, how: &How) -> f64 {
        let std = self.std::<T>(how.ddof);
        let scale = 1.0 / (if how.by_group { std } else { how.scale } + how.eps);
        // r - (n * mean - r) / (n - 1) = (r - mean) * n / (n - 1)
        let others = if how.leave_one_out { self.count - 1.0 } else { self.count };
        let factor = scale * (self.count / others);
        if std > 0.0 && factor < f64::INFINITY { factor } else { 0.0 }
    }
}

#[inline(always)]
fn total<S: F64s>(simd: S, vector: S::Vector) -> f64 {
    let mut lanes = [0.0; LANES];
    simd.store(vector, &mut lanes);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

on_f64s! {
    fn add<T: Float>(simd: F64s, rewards: &[T], sums: &mut Sums) {
        sums.add(&Sums::about(simd, sums.origin, rewards));
    }
}
