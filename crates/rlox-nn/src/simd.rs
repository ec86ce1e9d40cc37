//! SIMD vectors of [`LANES`] = 16 f32, with operations for each instruction set of the CPU.
//!
//! A line is 16 f32 in memory ([`AlignedF32x16`]), which is one cache line of 64 bytes. A vector is
//! a line that was loaded into registers.
//!
//! A value of a type that implements [`F32s`] proves that the CPU has the instructions of this
//! type. Only `on_f32s!` creates such values, after it has checked the CPU. [`F32s::mul_add`] and
//! [`F32s::sub_mul`] round once on CPUs with fused multiply-add instructions. Therefore results
//! differ in their last digits between instruction sets. Results never depend on the number of rows
//! or threads.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// Number of f32 in a line and in a vector.
pub(crate) const LANES: usize = 16;

/// Bits of `sqrt(1/2)`, the smallest mantissa that [`F32s::parts`] returns.
const ROOT_OF_HALF: i32 = 0x3f35_04f3;

/// A line: 16 f32 in memory, aligned to a cache line of 64 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct AlignedF32x16(pub(crate) [f32; LANES]);

impl AlignedF32x16 {
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// Returns the number of lines that hold `len` numbers.
pub(crate) fn lines(len: usize) -> usize {
    len.div_ceil(LANES)
}

/// Returns the numbers in `lines`, including padding, as a slice.
pub(crate) fn numbers(lines: &[AlignedF32x16]) -> &[f32] {
    // The standard library can flatten arrays of arrays, but not aligned structs.
    #[expect(unsafe_code, reason = "flattens")]
    // SAFETY: an `AlignedF32x16` is an array of LANES f32 without padding; the assertion checks its
    // size.
    unsafe {
        const { assert!(size_of::<AlignedF32x16>() == LANES * size_of::<f32>()) };
        std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES)
    }
}

/// Returns the numbers in `lines`, including padding, as a mutable slice.
pub(crate) fn numbers_mut(lines: &mut [AlignedF32x16]) -> &mut [f32] {
    #[expect(unsafe_code, reason = "flattens")]
    // SAFETY: as in `numbers`; the result takes over the mutable borrow.
    unsafe {
        std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES)
    }
}

/// Vector operations of one instruction set.
pub(crate) trait F32s: Copy {
    type Vector: Copy;

    /// Returns the number of rows of the largest tile of `columns` (1, 2 or 4) vectors per row.
    ///
    /// A tile is a block of a matrix product whose sums fit into the registers. Returns 0 if tiles
    /// of this width are not used.
    fn tile_rows(columns: usize) -> usize;
    /// Returns the number of vectors (4, or 8 to 16) in the next strip of a row with `columns`
    /// remaining vectors.
    ///
    /// A strip is a part of one row of a matrix product whose sums fit into the registers. Returns
    /// 0 if tiles are always faster for the remaining vectors.
    fn strip(columns: usize) -> usize;

    fn load(self, from: &AlignedF32x16) -> Self::Vector;
    fn store(self, vector: Self::Vector, to: &mut AlignedF32x16);
    /// Returns a vector whose elements are all `number`.
    fn splat(self, number: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sqrt(self, a: Self::Vector) -> Self::Vector;
    /// Returns the smaller number of each pair, or `b` if either number is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns the larger number of each pair, or `b` if either number is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a * b + c`, rounded once if the CPU has fused multiply-add.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns `c - a * b`, rounded once if the CPU has fused multiply-add.
    fn sub_mul(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns `x` where `sign > 0`, else 0.
    fn where_positive(self, sign: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// Returns `x` where `|x| >= least` or `x` is NaN, else 0.
    fn zero_if_tiny(self, x: Self::Vector, least: Self::Vector) -> Self::Vector;
    /// Returns one bit per number, set if the number is not 0. The lowest bit belongs to the first
    /// number.
    fn not_zero(self, x: Self::Vector) -> u32;
    /// Returns the nearest integer of each number.
    fn round(self, a: Self::Vector) -> Self::Vector;
    /// Returns `2^n` for each number `n`, which must be an integer from -126 to 127.
    fn power_of_two(self, n: Self::Vector) -> Self::Vector;
    /// Returns `(m, e)` with `x = m 2^e` and `sqrt(1/2) <= m < sqrt(2)` for each number `x`, which
    /// must be positive and normal.
    fn parts(self, x: Self::Vector) -> (Self::Vector, Self::Vector);
    fn sum(self, a: Self::Vector) -> f32;
    /// Returns the transpose of the 16x16 matrix `rows`.
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES];
}

/// Defines a function whose body is generic over [`F32s`] and compiled for each instruction set.
///
/// A call runs the version for the best instruction set of this CPU. Functions that the body calls
/// must be `#[inline(always)]`, because other functions are not compiled for that instruction set.
macro_rules! on_f32s {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<const $k:ident: $kind:ty>)? ($simd:ident: F32s, $($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<const $k: $kind>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<S: $crate::simd::F32s $(, const $k: $kind)?>($simd: S, $($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<const $k: $kind>)? ($simd: $crate::simd::Avx2, $($arg: $ty),*) $(-> $ret)? { body::<_ $(, $k)?>($simd, $($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<const $k: $kind>)? ($simd: $crate::simd::Avx512, $($arg: $ty),*) $(-> $ret)? { body::<_ $(, $k)?>($simd, $($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "functions with more target features than the build are unsafe to call")]
            match $crate::simd::isa() {
                // SAFETY: isa() is Avx512 only if the CPU has every feature that `avx512` enables.
                rlox_core::__private::simd::Isa::Avx512 => unsafe { avx512 $(::<$k>)? ($crate::simd::Avx512::new(), $($arg),*) },
                // SAFETY: isa() is Avx2 or better only if the CPU has every feature that `avx2`
                // enables.
                rlox_core::__private::simd::Isa::Avx2 => unsafe { avx2 $(::<$k>)? ($crate::simd::Avx2::new(), $($arg),*) },
                rlox_core::__private::simd::Isa::Portable => body::<_ $(, $k)?>($crate::simd::Portable, $($arg),*),
            }
            #[cfg(not(target_arch = "x86_64"))]
            body::<_ $(, $k)?>($crate::simd::Portable, $($arg),*)
        }
    };
}
pub(crate) use on_f32s;

#[cfg(not(test))]
pub(crate) use rlox_core::__private::simd::isa;

#[cfg(test)]
pub(crate) use tests::isa;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use rlox_core::__private::simd::Isa;

    thread_local! {
        static FORCED: Cell<Isa> = const { Cell::new(Isa::Avx512) };
    }

    /// Returns the best instruction set of the CPU, or the lesser one that `on_each_isa` has set.
    pub(crate) fn isa() -> Isa {
        FORCED.get().min(rlox_core::__private::simd::isa())
    }

    /// Calls `f` once for each instruction set of this CPU, which `isa` returns during the call.
    pub(crate) fn on_each_isa(mut f: impl FnMut(Isa)) {
        for isa in
            [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| *isa <= rlox_core::__private::simd::isa())
        {
            FORCED.set(isa);
            f(isa);
        }
        FORCED.set(Isa::Avx512);
    }
}
