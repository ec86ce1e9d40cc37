//! The two widths of number that kernels take.

use std::fmt::{Debug, Display};
use std::ops::{Add, Mul, Sub};

/// `f32` or `f64`: kernels give back what they got.
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
    + sealed::Bits
    + 'static
{
}

impl Float for f32 {}
impl Float for f64 {}

pub(super) mod sealed {
    /// Branch-free selection, on the bits so that nothing is multiplied by what is not wanted.
    pub trait Bits: Sized {
        /// The nearest number of this width.
        fn of(number: f64) -> Self;
        /// This number, or zero.
        fn only_if(self, keep: bool) -> Self;
        /// This number, or the other one.
        fn or(self, take: bool, other: Self) -> Self;
    }

    macro_rules! bits {
        ($float:ty, $bits:ty) => {
            // Inlined always: part of kernels that are compiled for several instruction sets.
            impl Bits for $float {
                #[inline(always)]
                fn of(number: f64) -> Self {
                    number as Self
                }

                #[inline(always)]
                fn only_if(self, keep: bool) -> Self {
                    Self::from_bits(self.to_bits() & <$bits>::from(keep).wrapping_neg())
                }

                #[inline(always)]
                fn or(self, take: bool, other: Self) -> Self {
                    let mask = <$bits>::from(take).wrapping_neg();
                    Self::from_bits((self.to_bits() & !mask) | (other.to_bits() & mask))
                }
            }
        };
    }
    bits!(f32, u32);
    bits!(f64, u64);
}
