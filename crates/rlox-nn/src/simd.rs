//! Vectors of [`LANES`] f32, for the instruction set the CPU has.
//!
//! A value of an [`F32s`] type is the proof that its instructions may run: only `on_f32s!` makes one, after it has
//! looked at the CPU ([`rlox_core::simd::isa`]). Multiplications and additions are fused where the CPU can, so results
//! differ in their last digits between instruction sets, but never with the number of rows or threads.

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

/// How many f32 a vector holds: one cache line.
pub(crate) const LANES: usize = 16;

/// The bits of the root of 1/2, from which mantissas are counted.
const ROOT_OF_HALF: i32 = 0x3f35_04f3;

/// One vector in memory, aligned to cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct AlignedF32x16(pub(crate) [f32; LANES]);

impl AlignedF32x16 {
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// How many lines hold `len` numbers.
pub(crate) fn lines(len: usize) -> usize {
    len.div_ceil(LANES)
}

/// The numbers of lines, padding included.
pub(crate) fn numbers(lines: &[AlignedF32x16]) -> &[f32] {
    // Arrays of arrays are flattened without unsafe code, lines with their alignment are not.
    #[expect(unsafe_code, reason = "flattens")]
    // SAFETY: a `AlignedF32x16` is LANES f32 and nothing else: its size is 64, which the assertion states.
    unsafe {
        const { assert!(size_of::<AlignedF32x16>() == LANES * size_of::<f32>()) };
        std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES)
    }
}

/// The numbers of lines, padding included, to be changed.
pub(crate) fn numbers_mut(lines: &mut [AlignedF32x16]) -> &mut [f32] {
    #[expect(unsafe_code, reason = "flattens")]
    // SAFETY: as in `numbers`; the borrow is handed on.
    unsafe {
        std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES)
    }
}

/// One implementation of vectors.
pub(crate) trait F32s: Copy {
    type Vector: Copy;

    /// Of a tile that fills the registers and is `columns` vectors wide (1, 2 or 4): its rows. 0 for none.
    fn tile_rows(columns: usize) -> usize;
    /// Of a part of a row of so many vectors whose sums fit into the registers: its vectors, 4 or 8 to 16. 0 where tiles
    /// are faster whatever they are multiplied by.
    fn strip(columns: usize) -> usize;

    fn load(self, from: &AlignedF32x16) -> Self::Vector;
    fn store(self, vector: Self::Vector, to: &mut AlignedF32x16);
    /// `number` in every lane.
    fn splat(self, number: f32) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sqrt(self, a: Self::Vector) -> Self::Vector;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once where the CPU can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `c - a * b`, rounded once where the CPU can.
    fn sub_mul(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `x` where `sign > 0`, else 0.
    fn where_positive(self, sign: Self::Vector, x: Self::Vector) -> Self::Vector;
    /// `x` where `|x| >= least`, or where it is NaN, else 0.
    fn zero_if_tiny(self, x: Self::Vector, least: Self::Vector) -> Self::Vector;
    /// A bit for each number that is not 0, the first one's the lowest.
    fn not_zero(self, x: Self::Vector) -> u32;
    /// The nearest integers.
    fn round(self, a: Self::Vector) -> Self::Vector;
    /// `2^n` of integers between -126 and 127.
    fn power_of_two(self, n: Self::Vector) -> Self::Vector;
    /// `(m, e)` with `x = m 2^e` and `m` between the roots of 1/2 and 2. For positive normal numbers.
    fn parts(self, x: Self::Vector) -> (Self::Vector, Self::Vector);
    fn sum(self, a: Self::Vector) -> f32;
    /// Columns for rows.
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES];
}

/// Compiles a body that is generic over [`F32s`] for every instruction set and calls the one that fits. What the body
/// calls must be `#[inline(always)]`.
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
            #[expect(unsafe_code, reason = "a function compiled for more instructions than the target has is unsafe to call")]
            match $crate::simd::isa() {
                // SAFETY: isa() is Avx512 only if the CPU has every feature that avx512 enables.
                rlox_core::simd::Isa::Avx512 => unsafe { avx512 $(::<$k>)? ($crate::simd::Avx512::new(), $($arg),*) },
                // SAFETY: isa() is Avx2 or more only if the CPU has every feature that avx2 enables.
                rlox_core::simd::Isa::Avx2 => unsafe { avx2 $(::<$k>)? ($crate::simd::Avx2::new(), $($arg),*) },
                rlox_core::simd::Isa::Portable => body::<_ $(, $k)?>($crate::simd::Portable, $($arg),*),
            }
            #[cfg(not(target_arch = "x86_64"))]
            body::<_ $(, $k)?>($crate::simd::Portable, $($arg),*)
        }
    };
}
pub(crate) use on_f32s;

#[cfg(not(test))]
pub(crate) use rlox_core::simd::isa;

#[cfg(test)]
pub(crate) use tests::isa;

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use rlox_core::simd::Isa;

    thread_local! {
        static FORCED: Cell<Isa> = const { Cell::new(Isa::Avx512) };
    }

    /// The best instruction set, or less while `on_each_isa` says so.
    pub(crate) fn isa() -> Isa {
        FORCED.get().min(rlox_core::simd::isa())
    }

    /// Calls `f` on each instruction set this CPU has.
    pub(crate) fn on_each_isa(mut f: impl FnMut(Isa)) {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| *isa <= rlox_core::simd::isa()) {
            FORCED.set(isa);
            f(isa);
        }
        FORCED.set(Isa::Avx512);
    }
}
