//! Building blocks of the advantage kernels: operations on `f32` and `f64`, on flags and on arrays
//! of constant length, and a backward recursion over a trajectory.
//!
//! The recursion is `x_t = offset_t + factor_t * x_{t+1}`, computed from the last step to the
//! first. It proceeds in blocks of [`LANES`] (8) steps, one per element (lane) of a SIMD vector of
//! f64.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use std::fmt::{Debug, Display};
use std::ops::{Add, Mul, Sub};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::{CHUNK_ELEMENTS, run_chunks_uninterrupted};
use crate::simd::exp::Exponential;
use crate::simd::f64x8::F64s;
use crate::simd::{LANES, multiversion};
use crate::{Error, Result, error::check_len};

/// Type of the inputs and outputs of a kernel: `f32` or `f64`. Sums are computed in f64 for both
/// types.
///
/// ```
/// fn twice<T: rlox_core::advantage::Float>(x: T) -> T {
///     x + x
/// }
/// assert_eq!((twice(1.5_f32), twice(1.5_f64)), (3.0, 3.0));
/// ```
pub trait Float:
    Copy
    + Debug
    + Display
    + PartialOrd
    + Add<Output = Self>
    + Mul<Output = Self>
    + Sub<Output = Self>
    + Send
    + Sync
    + sealed::SimdFloat
    + Exponential
    + 'static
{
}

impl Float for f32 {}
impl Float for f64 {}

/// Converts numbers that are 0 or 1 to flags, for callers that store `dones` in a float array.
///
/// ```
/// let mut flags = [true; 2];
/// rlox_core::advantage::flags_from_numbers("dones", &[0.0, 1.0], &mut flags)?;
/// assert_eq!(flags, [false, true]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Space`] about `argument` if a number is neither 0 nor 1, with the first such number.
/// [`Error::Shape`] if the lengths differ.
pub fn flags_from_numbers<T: Float>(argument: &'static str, numbers: &[T], flags: &mut [bool]) -> Result<()> {
    check_len(argument, numbers.len(), flags.len())?;
    let strange = AtomicBool::new(false);
    run_chunks_uninterrupted([flags], CHUNK_ELEMENTS, |i, [flags]| {
        if !convert(&numbers[i * CHUNK_ELEMENTS..][..flags.len()], flags) {
            strange.store(true, Ordering::Relaxed);
        }
    })?;
    if !strange.into_inner() {
        return Ok(());
    }
    let strange = numbers.iter().position(|x| *x != T::from_f64(0.0) && *x != T::from_f64(1.0));
    let got = strange.map_or_else(String::new, |index| numbers[index].to_string());
    let error = Error::space(argument, "flags, each 0 or 1", got, "pass booleans");
    Err(if let Some(index) = strange { error.at_index(index) } else { error })
}

multiversion! {
    /// Converts numbers to flags. Returns true if every number was 0 or 1.
    fn convert<T: Float>(numbers: &[T], flags: &mut [bool]) -> bool {
        let (zero, one) = (T::from_f64(0.0), T::from_f64(1.0));
        let mut strange = 0_u8;
        for (flag, x) in flags.iter_mut().zip(numbers) {
            let set = *x == one;
            *flag = set;
            strange |= u8::from(!set) & u8::from(*x != zero);
        }
        strange == 0
    }
}

pub(super) mod sealed {
    use crate::simd::LANES;
    use crate::simd::f64x8::F64s;

    /// Conversions of a float type to f64, in which the kernels compute, and back.
    pub trait SimdFloat: Sized {
        /// Returns the number of this type that is nearest to an f64.
        fn from_f64(number: f64) -> Self;
        /// Returns the number as f64, without rounding.
        fn to_f64(self) -> f64;
        /// Loads eight numbers and converts them to f64, without rounding.
        fn load<S: F64s>(simd: S, from: &[Self; LANES]) -> S::Vector;
        /// Stores eight numbers, rounded to this type.
        fn store<S: F64s>(simd: S, vector: S::Vector, to: &mut [Self; LANES]);
        /// Returns the number, or zero if `keep` is false, even if the number is NaN.
        fn mask(self, keep: bool) -> Self;
    }

    macro_rules! simd_float {
        ($float:ident, $bits:ident, $load:ident, $store:ident) => {
            // Always inlined, because the kernels that call these functions are compiled for
            // several instruction sets.
            impl SimdFloat for $float {
                #[inline(always)]
                fn from_f64(number: f64) -> Self {
                    number as Self
                }

                #[inline(always)]
                fn to_f64(self) -> f64 {
                    self.into()
                }

                #[inline(always)]
                fn load<S: F64s>(simd: S, from: &[Self; LANES]) -> S::Vector {
                    simd.$load(from)
                }

                #[inline(always)]
                fn store<S: F64s>(simd: S, vector: S::Vector, to: &mut [Self; LANES]) {
                    simd.$store(vector, to);
                }

                #[inline(always)]
                fn mask(self, keep: bool) -> Self {
                    Self::from_bits(self.to_bits() & $bits::from(keep).wrapping_neg())
                }
            }
        };
    }
    simd_float!(f32, u32, load_f32, store_f32);
    simd_float!(f64, u64, load, store);
}

/// Returns the number, or zero if `keep` is false, even if the number is NaN.
#[inline(always)]
pub(super) fn mask(keep: bool, number: f64) -> f64 {
    sealed::SimdFloat::mask(number, keep)
}

/// Returns `number` if `first` is true, else `other`, without a branch.
#[inline(always)]
pub(super) fn select(first: bool, number: f64, other: f64) -> f64 {
    let mask = u64::from(first).wrapping_neg();
    f64::from_bits((number.to_bits() & mask) | (other.to_bits() & !mask))
}

/// Returns the N elements from index `start` on. The compiler vectorises loops over them, because N
/// is a constant.
#[inline(always)]
pub(super) fn array_at<T, const N: usize>(slice: &[T], start: usize) -> &[T; N] {
    slice[start..].first_chunk().expect("the caller counted the rows")
}

/// Returns the N elements from index `start` on, mutable. See [`array_at`].
#[inline(always)]
pub(super) fn array_at_mut<T, const N: usize>(slice: &mut [T], start: usize) -> &mut [T; N] {
    slice[start..].first_chunk_mut().expect("the caller counted the rows")
}

// Step by step, each `x_t` would wait for `x_{t+1}`. Therefore each step is first composed with the
// seven steps after it, so that a block waits for the next block only once.

/// Recursion over a trajectory, in blocks of [`LANES`] steps, from the last block to the first.
///
/// The steps of a block are composed over 2, 4 and 8 steps in turn. For this, the fields hold `x`
/// of the last computed block, and its offsets and factors composed over 1, 2 and 4 steps. The
/// initial offsets are 0 and the initial factors 1.
///
/// `TINY` must be true if products of factors may underflow to zero. A factor of zero means the end
/// of an episode, so such products must not become zero.
pub(super) struct Window<S: F64s, const TINY: bool> {
    pub(super) simd: S,
    offsets: [S::Vector; 3],
    factors: [S::Vector; 3],
    /// `x` of the last computed block.
    pub(super) x: S::Vector,
}

impl<S: F64s, const TINY: bool> Window<S, TINY> {
    #[inline(always)]
    pub(super) fn new(simd: S, x: f64) -> Self {
        Self { simd, offsets: [simd.splat(0.0); 3], factors: [simd.splat(1.0); 3], x: simd.splat(x) }
    }

    /// Returns `x` of the next block towards the start, from the offsets and factors of its steps.
    #[inline(always)]
    pub(super) fn step(&mut self, offset: S::Vector, factor: S::Vector) -> S::Vector {
        let (offset, factor) = self.double::<1>(0, offset, factor);
        let (offset, factor) = self.double::<2>(1, offset, factor);
        let (offset, factor) = self.double::<4>(2, offset, factor);
        self.x = self.simd.add_scaled(offset, factor, self.x);
        self.x
    }

    /// Returns `x` of the earliest step computed so far.
    #[inline(always)]
    pub(super) fn first(&self) -> f64 {
        let mut lanes = [0.0; LANES];
        self.simd.store(self.x, &mut lanes);
        lanes[0]
    }

    #[inline(always)]
    fn double<const K: usize>(&mut self, level: usize, offset: S::Vector, factor: S::Vector) -> (S::Vector, S::Vector) {
        let simd = self.simd;
        let offset_behind = simd.shift_lanes::<K>(offset, std::mem::replace(&mut self.offsets[level], offset));
        let factor_behind = simd.shift_lanes::<K>(factor, std::mem::replace(&mut self.factors[level], factor));
        let product = if TINY { simd.blend(factor, factor_behind) } else { simd.scaled(factor, factor_behind) };
        (simd.add_scaled(offset, factor, offset_behind), product)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_from_numbers_accepts_zeros_and_ones_and_names_other_numbers() {
        let mut numbers: Vec<f32> = (0..100_u8).map(|i| f32::from(i % 3 == 0)).collect();
        for result in crate::simd::tests::on_each_isa(|| {
            let mut flags = vec![false; 100];
            flags_from_numbers("dones", &numbers, &mut flags).map(|()| flags)
        }) {
            assert!(result.unwrap().iter().enumerate().all(|(i, flag)| *flag == (i % 3 == 0)));
        }
        for strange in [0.5, f32::NAN, -1.0] {
            numbers[77] = strange;
            for result in crate::simd::tests::on_each_isa(|| flags_from_numbers("dones", &numbers, &mut [false; 100])) {
                let error = result.unwrap_err();
                let wrong = error.mismatch().unwrap();
                assert_eq!((&wrong.got, wrong.at.index), (&strange.to_string(), Some(77)));
            }
        }
    }
}
