//! Comparison of the SIMD functions with libm, bit by bit. The long versions, with ten million
//! angles per range, run in `make test-slow`.

use super::*;
use crate::Pcg64;
use crate::simd::tests::on_each_isa;

type Kernel = fn(&Block, usize, &mut Block, &mut Block);

/// Returns the number of mismatches with libm among `count` random angles below `limit`.
fn mismatches(kernel: Kernel, limit: f64, count: usize, seed: u128) -> usize {
    let mut rng = Pcg64::seed_from(seed);
    let mut x = [0.0; BLOCK];
    let mut wrong = 0;
    for _ in 0..count.div_ceil(BLOCK) {
        x.fill_with(|| rng.uniform(-limit, limit));
        wrong += differing(kernel, &x);
    }
    wrong
}

fn differing(kernel: Kernel, x: &Block) -> usize {
    let (mut sin, mut cos) = ([0.0; BLOCK], [0.0; BLOCK]);
    kernel(x, BLOCK, &mut sin, &mut cos);
    let equal = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    (0..BLOCK).filter(|&i| !(equal(sin[i], x[i].sin()) && equal(cos[i], x[i].cos()))).count()
}

const RANGES: [(Kernel, f64); 5] =
    [(sin_cos_near_zero, 0.25), (sin_cos, 0.25), (sin_cos, std::f64::consts::PI), (sin_cos, 100.0), (sin_cos, FAR)];

#[test]
fn random_angles_equal_libm() {
    for (kernel, limit) in RANGES {
        let wrong = on_each_isa(|| mismatches(kernel, limit, 100_000, 1));
        assert!(wrong.iter().all(|&n| n == 0), "{wrong:?} differ below {limit}");
    }
}

#[test]
#[ignore = "ten million angles per range and instruction set: a minute in release mode"]
fn ten_million_angles_equal_libm() {
    for (kernel, limit) in RANGES {
        let wrong = on_each_isa(|| mismatches(kernel, limit, 10_000_000, 2));
        assert!(wrong.iter().all(|&n| n == 0), "{wrong:?} differ below {limit}");
    }
}

#[test]
fn angles_near_zeros_and_extremes_equal_libm() {
    let mut x: Vec<f64> = (0..60_000)
        .map(|k| f64::from(k) * std::f64::consts::FRAC_PI_2)
        .flat_map(|x| [x.next_down(), x, x.next_up(), -x])
        .collect();
    x.extend((-1074..1024).map(|e| 2.0_f64.powi(e)).flat_map(|x| [x, -x, x * 1.5]));
    x.extend([0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, NEAR, NEAR.next_up(), FAR, -FAR]);
    x.resize(x.len().next_multiple_of(BLOCK), -0.0);
    for kernel in [sin_cos_near_zero, sin_cos] {
        let (blocks, _) = x.as_chunks();
        let wrong = on_each_isa(|| blocks.iter().map(|x| differing(kernel, x)).sum::<usize>());
        assert!(wrong.iter().all(|&n| n == 0), "{wrong:?} differ");
    }
}

#[test]
fn most_lanes_do_not_call_libm() {
    // More calls of libm would be correct but slow. The expected fraction of failed lanes is twice
    // the window.
    let mut rng = Pcg64::seed_from(3);
    let (mut fails, mut count) = ([0.0; 2], 0.0);
    for _ in 0..20_000 {
        for (total, rounded) in fails.iter_mut().zip(near_zero(rng.uniform(-0.25, 0.25))) {
            *total += f64::from(u8::from(rounded.fails));
        }
        count += 1.0;
    }
    for share in fails.map(|fails| fails / count) {
        assert!((share - 2.0 * WINDOW).abs() < 0.01, "{share} of the lanes call libm");
    }
}

fn mismatching_squares(count: usize) -> usize {
    let mut rng = Pcg64::seed_from(1);
    let (mut squares, mut squares_f32) = ([0.0; BLOCK], [0.0; BLOCK]);
    let mut wrong = 0;
    for round in 0..count.div_ceil(BLOCK) {
        let limit = [3.2, 28.3, 1e-3, 1e200][round % 4];
        let x: Block = std::array::from_fn(|_| rng.uniform(-limit, limit));
        let x_f32 = x.map(|x| x as f32);
        square(&x, BLOCK, &mut squares);
        square_f32(&x_f32, BLOCK, &mut squares_f32);
        wrong += (0..BLOCK).filter(|&i| squares[i] != numpy_math::square(x[i])).count();
        wrong += (0..BLOCK).filter(|&i| squares_f32[i] != x_f32[i].powf(black_box(2.0))).count();
    }
    wrong
}

#[test]
fn random_squares_equal_pow() {
    assert!(on_each_isa(|| mismatching_squares(200_000)).iter().all(|&n| n == 0));
}

#[test]
#[ignore = "ten million squares per instruction set: some seconds in release mode"]
fn ten_million_squares_equal_pow() {
    assert!(on_each_isa(|| mismatching_squares(40_000_000)).iter().all(|&n| n == 0));
}

#[test]
fn squares_of_extremes_equal_pow() {
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
        assert_eq!(squares.map(f64::to_bits), x.map(|x| numpy_math::square(x).to_bits()));
        assert_eq!(squares_f32.map(f32::to_bits), x_f32.map(|x| x.powf(black_box(2.0)).to_bits()));
    }
}
