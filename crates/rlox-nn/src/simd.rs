//! Vectors of [`LANES`] f32 for the instruction set of the CPU.
//!
//! A value of an [`F32s`] type proves that its instructions may run: only `on_f32s!` creates one, after checking the
//! CPU. Multiplications and additions are fused where the CPU can. Results differ in their last digits between
//! instruction sets, but never with the number of rows or threads.

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

/// Number of f32 in a vector: one cache line.
pub(crate) const LANES: usize = 16;

/// Bits of `sqrt(1/2)`, the lower bound of the mantissas of [`F32s::parts`].
const ROOT_OF_HALF: i32 = 0x3f35_04f3;

/// One vector in memory, aligned to a cache line.
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

/// Returns the numbers of lines, padding included.
pub(crate) fn numbers(lines: &[AlignedF32x16]) -> &[f32] {
    // The standard library flattens arrays of arrays, but not aligned structs.
    #[expect(unsafe_code, reason = "flattens")]
    // SAFETY: an `AlignedF32x16` is LANES f32 and nothing else; the assertion checks its size of 64 bytes.
    unsafe {
        const { assert!(size_of::<AlignedF32x16>() == LANES * size_of::<f32>()) };
        std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES)
    }
}

/// Returns the numbers of lines mutably, padding included.
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

    /// Returns the rows of the tile of `columns` (1, 2 or 4) vectors that fills the registers; 0 for none.
    fn tile_rows(columns: usize) -> usize;
    /// Returns the vectors (4, or 8 to 16) of a strip, a part of a row whose sums fit into the registers.
    ///
    /// Returns 0 for rows of `columns` vectors where tiles are always faster.
    fn strip(columns: usize) -> usize;

    fn load(self, from: &AlignedF32x16) -> Self::Vector;
    fn store(self, vector: Self::Vector, to: &mut AlignedF32x16);
    /// Returns `number` in every lane.
    fn splat(self, number: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sqrt(self, a: Self::Vector) -> Self::Vector;
    /// Returns the smaller number; `b` where either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns the larger number; `b` where either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a * b + c`, rounded once where the CPU can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns `c - a * b`, rounded once where the CPU can.
    fn sub_mul(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns `x` where `sign > 0`, else 0.
    fn where_positive(self, sign: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// Returns `x` where `|x| >= least` or `x` is NaN, else 0.
    fn zero_if_tiny(self, x: Self::Vector, least: Self::Vector) -> Self::Vector;
    /// Returns a bit for each number that is not 0; the first number has the lowest bit.
    fn not_zero(self, x: Self::Vector) -> u32;
    /// Returns the nearest integers.
    fn round(self, a: Self::Vector) -> Self::Vector;
    /// Returns `2^n` for integers from -126 to 127.
    fn power_of_two(self, n: Self::Vector) -> Self::Vector;
    /// Returns `(m, e)` with `x = m 2^e` and `sqrt(1/2) <= m < sqrt(2)`, for positive normal numbers.
    fn parts(self, x: Self::Vector) -> (Self::Vector, Self::Vector);
    fn sum(self, a: Self::Vector) -> f32;
    /// Returns the transpose.
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES];
}

/// Compiles a body generic over [`F32s`] for each instruction set and calls the one for this CPU.
///
/// Functions that the body calls must be `#[inline(always)]`.
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
                // SAFETY: isa() is Avx2 or better only if the CPU has every feature that `avx2` enables.
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

    /// Returns the best instruction set of the CPU, or a lesser one set by `on_each_isa`.
    pub(crate) fn isa() -> Isa {
        FORCED.get().min(rlox_core::__private::simd::isa())
    }

    /// Calls `f` once for each instruction set of this CPU.
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
