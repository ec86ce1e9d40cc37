//! Vectors of [`LANES`] f64 with the operations between neighbouring lanes that compilers do not find by themselves.
//!
//! A value of an [`F64s`] type is the proof that its instructions may run: only `on_f64s!` makes one, after it has
//! looked at the CPU. Every implementation rounds alike.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;

use super::LANES;

/// The least positive number.
const LEAST: f64 = f64::from_bits(1);

/// One implementation of vectors.
pub trait F64s: Copy {
    type Vector: Copy;

    fn load(self, from: &[f64; LANES]) -> Self::Vector;
    fn load_f32(self, from: &[f32; LANES]) -> Self::Vector;
    fn store(self, vector: Self::Vector, to: &mut [f64; LANES]);
    /// Rounds to the nearest.
    fn store_f32(self, vector: Self::Vector, to: &mut [f32; LANES]);
    /// `number` in every lane.
    fn splat(self, number: f64) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a` where it is the smaller one, else `b`: NaN if that is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a` where a flag is set, else `b`.
    fn either(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Zero where a flag is set, else `x`.
    fn unless(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector;
    /// `sum + factor * x`, rounded twice; where the factor is zero, `sum`, whatever `x` is.
    fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// `factor * x`, where neither is zero at least the least positive number; zero where one of them is. Both are NaN or
    /// not negative.
    fn composed(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// `factor * x`; where the factor is zero, zero, whatever `x` is.
    fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// Lanes `K` and up of `now`, then the first `K` of `next`. `K` is 1, 2 or 4.
    fn ahead<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector;
}

/// Arrays, for every CPU.
#[derive(Clone, Copy)]
pub(crate) struct Arrays;

impl F64s for Arrays {
    type Vector = [f64; LANES];

    #[inline(always)]
    fn load(self, from: &[f64; LANES]) -> Self::Vector {
        *from
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f64; LANES]) {
        *to = vector;
    }

    #[inline(always)]
    fn load_f32(self, from: &[f32; LANES]) -> Self::Vector {
        from.map(f64::from)
    }

    #[inline(always)]
    fn store_f32(self, vector: Self::Vector, to: &mut [f32; LANES]) {
        *to = vector.map(|x| x as f32);
    }

    #[inline(always)]
    fn splat(self, number: f64) -> Self::Vector {
        [number; LANES]
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn either(self, flags: [bool; LANES], a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let masks = flags.map(|flag| u64::from(flag).wrapping_neg());
        std::array::from_fn(|i| f64::from_bits((masks[i] & a[i].to_bits()) | (!masks[i] & b[i].to_bits())))
    }

    #[inline(always)]
    fn unless(self, flags: [bool; LANES], x: Self::Vector) -> Self::Vector {
        let masks = flags.map(|flag| u64::from(flag).wrapping_sub(1));
        std::array::from_fn(|i| f64::from_bits(masks[i] & x[i].to_bits()))
    }

    #[inline(always)]
    fn add_scaled(self, sum: Self::Vector, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        let scaled = self.scaled(factor, x);
        std::array::from_fn(|i| sum[i] + scaled[i])
    }

    #[inline(always)]
    fn composed(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| {
            let product = factor[i] * x[i];
            let [kept, too] = [factor[i], x[i]].map(|number| u64::from(number != 0.0).wrapping_neg());
            f64::from_bits(kept & too & (if product < LEAST { LEAST } else { product }).to_bits())
        })
    }

    #[inline(always)]
    fn scaled(self, factor: Self::Vector, x: Self::Vector) -> Self::Vector {
        let masks = factor.map(|factor| u64::from(factor != 0.0).wrapping_neg());
        std::array::from_fn(|i| f64::from_bits(masks[i] & (factor[i] * x[i]).to_bits()))
    }

    #[inline(always)]
    fn ahead<const K: usize>(self, now: Self::Vector, next: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| if i + K < LANES { now[i + K] } else { next[i + K - LANES] })
    }
}

/// As `multiversion!`, for bodies that are generic over [`F64s`] and [`super::sixteen::Sixteen`]: the first argument is
/// the best implementation.
macro_rules! on_f64s {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$t:ident: $bound:path $(, const $k:ident: usize)?>)? ($simd:ident: F64s, $($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$t: $bound $(, const $k: usize)?>)? ($($arg: $ty),*) {
            #[inline(always)]
            fn body $(<$t: $bound $(, const $k: usize)?>)? ($simd: impl $crate::simd::f64s::F64s + $crate::simd::sixteen::Sixteen, $($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$t: $bound $(, const $k: usize)?>)? ($simd: $crate::simd::f64s::Avx2, $($arg: $ty),*) { body($simd, $($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$t: $bound $(, const $k: usize)?>)? ($simd: $crate::simd::f64s::Avx512, $($arg: $ty),*) { body($simd, $($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "a function compiled for more instructions than the target has is unsafe to call")]
            match $crate::simd::isa() {
                // SAFETY: isa() is Avx512 only if the CPU has every feature that avx512 enables.
                $crate::simd::Isa::Avx512 => unsafe { avx512($crate::simd::f64s::Avx512::new(), $($arg),*) },
                // SAFETY: isa() is Avx2 or more only if the CPU has every feature that avx2 enables.
                $crate::simd::Isa::Avx2 => unsafe { avx2($crate::simd::f64s::Avx2::new(), $($arg),*) },
                $crate::simd::Isa::Portable => body($crate::simd::f64s::Arrays, $($arg),*),
            }
            #[cfg(not(target_arch = "x86_64"))]
            body($crate::simd::f64s::Arrays, $($arg),*)
        }
    };
}
pub(crate) use on_f64s;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::on_each_isa;

    /// What an operation writes.
    trait Operation {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]);
    }

    on_f64s! {
        fn run<O: Operation>(simd: F64s, operation: &O, out: &mut [f64; LANES]) {
            operation.write(simd, out);
        }
    }

    fn check<O: Operation>(operation: &O, expected: [f64; LANES]) {
        for result in on_each_isa(|| {
            let mut out = [f64::NAN; LANES];
            run(operation, &mut out);
            out
        }) {
            assert_eq!(result.map(f64::to_bits), expected.map(f64::to_bits), "{result:?}, not {expected:?}");
        }
    }

    const NOW: [f64; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    const NEXT: [f64; LANES] = [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    const FLAGS: [bool; LANES] = [true, false, false, true, true, false, true, false];

    const X: [f64; LANES] = [f64::NAN, 2.0, f64::INFINITY, -4.0, 0.1, f64::NAN, 1e300, 3.0];
    const FACTOR: [f64; LANES] = [0.0, 3.0, 0.0, -0.5, 0.1, 2.0, 1e300, -0.0];

    struct Ahead<const K: usize>;
    impl<const K: usize> Operation for Ahead<K> {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.ahead::<K>(simd.load(&NOW), simd.load(&NEXT)), out);
        }
    }

    struct Either;
    impl Operation for Either {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.either(FLAGS, simd.load(&NOW), simd.load(&NEXT)), out);
        }
    }

    struct Unless;
    impl Operation for Unless {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            let x = FLAGS.map(|flag| if flag { f64::NAN } else { 3.0 });
            simd.store(simd.unless(FLAGS, simd.load(&x)), out);
        }
    }

    struct Scaled;
    impl Operation for Scaled {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.scaled(simd.load(&FACTOR), simd.load(&X)), out);
        }
    }

    struct AddScaled;
    impl Operation for AddScaled {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.add_scaled(simd.splat(0.7), simd.load(&FACTOR), simd.load(&X)), out);
        }
    }

    struct Composed;
    impl Operation for Composed {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            let behind = [f64::NAN, 2.0, 1e-200, 0.0, 0.1, 3.0, 1e-300, 3.0];
            let factor = [0.0, 3.0, 1e-200, 0.5, 0.1, f64::NAN, 1e-300, 0.0];
            simd.store(simd.composed(simd.load(&factor), simd.load(&behind)), out);
        }
    }

    struct Min;
    impl Operation for Min {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            simd.store(simd.min(simd.load(&NOW), simd.load(&X)), out);
        }
    }

    struct Singles;
    impl Operation for Singles {
        fn write<S: F64s>(&self, simd: S, out: &mut [f64; LANES]) {
            let mut singles = [0.0; LANES];
            simd.store_f32(simd.mul(simd.load_f32(&[1.1; LANES]), simd.load(&NOW)), &mut singles);
            simd.store(simd.sub(simd.load_f32(&singles), simd.add(simd.splat(1.0), simd.splat(0.5))), out);
        }
    }

    #[test]
    fn neighbours_move_down_and_the_next_block_follows() {
        check(&Ahead::<1>, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        check(&Ahead::<2>, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        check(&Ahead::<4>, [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    }

    #[test]
    fn flags_choose_each_lane() {
        check(&Either, [0.0, 9.0, 10.0, 3.0, 4.0, 13.0, 6.0, 15.0]);

        check(&Unless, FLAGS.map(|flag| if flag { 0.0 } else { 3.0 }));
    }

    #[test]
    fn what_lies_behind_a_factor_of_zero_does_not_count() {
        check(&Scaled, [0.0, 6.0, 0.0, 2.0, 0.1 * 0.1, f64::NAN, f64::INFINITY, 0.0]);

        // Rounded twice: one rounding of 0.7 + 0.1 * 0.1 gives other bits.
        check(&AddScaled, [0.7, 6.7, 0.7, 2.7, 0.7 + 0.1 * 0.1, f64::NAN, f64::INFINITY, 0.7]);
    }

    #[test]
    fn the_smaller_one_or_nan_of_the_second() {
        check(&Min, [f64::NAN, 1.0, 2.0, -4.0, 0.1, f64::NAN, 6.0, 3.0]);
    }

    #[test]
    fn factors_are_only_zero_where_one_of_them_is() {
        check(&Composed, [0.0, 6.0, LEAST, 0.0, 0.1 * 0.1, f64::NAN, LEAST, 0.0]);
    }

    #[test]
    fn singles_are_widened_exactly_and_rounded_once() {
        check(&Singles, NOW.map(|x| f64::from((f64::from(1.1_f32) * x) as f32) - 1.5));
    }
}
