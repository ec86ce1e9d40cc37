//! Squares of many numbers at once, equal to NumPy's `x ** 2` bit for bit.
//!
//! NumPy calls libm's `pow`, which is rounded correctly nearly always; the square itself is known exactly.

use std::hint::black_box;

use super::rounding::{Rounded, each_lane, lanes_pay, mend, round};
use super::{BLOCK, Block, multiversion};
use crate::envs::numpy;

/// In ulp of f32. Over all f32 whose square is normal, glibc's `powf(x, 2)` is at most 0.5017 ulp off.
const WINDOW_F32: f64 = 0.02;

/// Writes the squares of the first `count` numbers; what the other places hold afterwards does not matter.
#[inline]
pub(crate) fn square(x: &Block, count: usize, squares: &mut Block) {
    let mut fails = [true; BLOCK];
    if lanes_pay() {
        square_block(x, count, squares, &mut fails);
    }
    mend(x, count, squares, &fails, numpy::square);
}

/// Writes the squares of the first `count` numbers; what the other places hold afterwards does not matter.
#[inline]
pub(crate) fn square_f32(x: &[f32; BLOCK], count: usize, squares: &mut [f32; BLOCK]) {
    let mut fails = [true; BLOCK];
    if lanes_pay() {
        square_f32_block(x, count, squares, &mut fails);
    }
    mend(x, count, squares, &fails, |x| x.powf(black_box(2.0)));
}

multiversion! {
    fn square_block(x: &Block, count: usize, squares: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(x, count, squares, fails, |x| {
            let square = x * x;
            // Where neither the square nor its tail can leave the normal numbers.
            let in_range = (1e-50..=1e50).contains(&x.abs());
            round(square, x.mul_add(x, -square), in_range)
        });
    }
}

multiversion! {
    fn square_f32_block(x: &[f32; BLOCK], count: usize, squares: &mut [f32; BLOCK], fails: &mut [bool; BLOCK]) {
        each_lane(x, count, squares, fails, |x| {
            const WINDOW: f64 = WINDOW_F32 * f32::EPSILON as f64;
            let exact = f64::from(x) * f64::from(x);
            let (low, high) = ((exact - WINDOW * exact) as f32, (exact + WINDOW * exact) as f32);
            let in_range = (1e-18..=1e18).contains(&x.abs());
            Rounded { value: low, fails: low != high || !in_range }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::tests::on_each_isa;

    fn mismatches(count: usize) -> usize {
        let mut rng = Pcg64::seed_from(1);
        let (mut squares, mut squares_f32) = ([0.0; BLOCK], [0.0; BLOCK]);
        let mut wrong = 0;
        for round in 0..count.div_ceil(BLOCK) {
            let limit = [3.2, 28.3, 1e-3, 1e200][round % 4];
            let x: Block = std::array::from_fn(|_| rng.uniform(-limit, limit));
            let x_f32 = x.map(|x| x as f32);
            square(&x, BLOCK, &mut squares);
            square_f32(&x_f32, BLOCK, &mut squares_f32);
            wrong += (0..BLOCK).filter(|&i| squares[i] != numpy::square(x[i])).count();
            wrong += (0..BLOCK).filter(|&i| squares_f32[i] != x_f32[i].powf(black_box(2.0))).count();
        }
        wrong
    }

    #[test]
    fn random_squares_are_pows() {
        assert!(on_each_isa(|| mismatches(200_000)).iter().all(|&n| n == 0));
    }

    #[test]
    #[ignore = "ten million squares on each instruction set: some seconds in release mode"]
    fn ten_million_squares_are_pows() {
        assert!(on_each_isa(|| mismatches(40_000_000)).iter().all(|&n| n == 0));
    }

    #[test]
    fn extremes_are_pows() {
        let mut x = [0.0; BLOCK];
        let extremes = [-0.0, 1e-310, -1e-160, 1e160, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, 1e-50, -1e50, 5e-20];
        x[..extremes.len()].copy_from_slice(&extremes);
        let x_f32 = x.map(|x| x as f32);
        for (squares, squares_f32) in on_each_isa(|| {
            let (mut squares, mut squares_f32) = ([1.0; BLOCK], [1.0; BLOCK]);
            square(&x, BLOCK, &mut squares);
            square_f32(&x_f32, BLOCK, &mut squares_f32);
            (squares, squares_f32)
        }) {
            assert_eq!(squares.map(f64::to_bits), x.map(|x| numpy::square(x).to_bits()));
            assert_eq!(squares_f32.map(f32::to_bits), x_f32.map(|x| x.powf(black_box(2.0)).to_bits()));
        }
    }
}
