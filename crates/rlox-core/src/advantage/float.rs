//! The two widths of number that kernels take.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use std::fmt::{Debug, Display};
use std::ops::{Add, Mul, Sub};

use crate::simd::exp::Exponential;

/// `f32` or `f64`: kernels compute in f64 and give back what they got.
///
/// ```
/// fn twice<T: rlox_core::Float>(x: T) -> T {
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
    + sealed::Wide
    + Exponential
    + 'static
{
}

impl Float for f32 {}
impl Float for f64 {}

pub(super) mod sealed {
    use crate::simd::LANES;
    use crate::simd::f64s::F64s;

    /// To f64, in which kernels compute, and back.
    pub trait Wide: Sized {
        /// The nearest number of this width.
        fn of(number: f64) -> Self;
        /// This number, exactly.
        fn wide(self) -> f64;
        /// Eight numbers, exactly.
        fn load<S: F64s>(simd: S, from: &[Self; LANES]) -> S::Vector;
        /// The nearest eight numbers of this width.
        fn store<S: F64s>(simd: S, vector: S::Vector, to: &mut [Self; LANES]);
        /// This number, or zero: branch-free, and on the bits so that nothing is multiplied by what is not wanted.
        fn only_if(self, keep: bool) -> Self;
    }

    macro_rules! wide {
        ($float:ident, $bits:ident, $load:ident, $store:ident) => {
            // Inlined always: part of kernels that are compiled for several instruction sets.
            impl Wide for $float {
                #[inline(always)]
                fn of(number: f64) -> Self {
                    number as Self
                }

                #[inline(always)]
                fn wide(self) -> f64 {
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
                fn only_if(self, keep: bool) -> Self {
                    Self::from_bits(self.to_bits() & $bits::from(keep).wrapping_neg())
                }
            }
        };
    }
    wide!(f32, u32, load_f32, store_f32);
    wide!(f64, u64, load, store);
}

/// The number, or zero, as [`sealed::Wide::only_if`].
#[inline(always)]
pub(super) fn only_if(keep: bool, number: f64) -> f64 {
    sealed::Wide::only_if(number, keep)
}

/// One number or the other, branch-free.
#[inline(always)]
pub(super) fn either(first: bool, number: f64, other: f64) -> f64 {
    let mask = u64::from(first).wrapping_neg();
    f64::from_bits((number.to_bits() & mask) | (other.to_bits() & !mask))
}
