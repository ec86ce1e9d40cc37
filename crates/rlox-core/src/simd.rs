//! Run-time selection of the instruction set. Functions are compiled for several instruction sets,
//! and the version for the best available set is called.
//!
//! The numbers of a SIMD vector are called lanes. A block is `BLOCK` (64) environments that are
//! stepped together.
//!
//! Rust never fuses a multiplication and an addition by itself, so a function returns the same bits
//! with every instruction set unless it calls `mul_add`. CPUs other than x86-64 run the portable
//! code.
//!
//! The environment variable `RLOX_SIMD=portable|avx2|avx512` limits the selection, for comparisons
//! and for tools such as valgrind that do not support all instructions. The variable is read at the
//! first use. An instruction set that the CPU does not have is never selected. With any other
//! value, `portable` is selected, and [`check_setting`] returns an error.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

pub(crate) mod exp;
pub(crate) mod f32x16;
pub(crate) mod f64x8;
pub(crate) mod trig;

use std::sync::atomic::{AtomicU8, Ordering};

use crate::{Error, Result};

/// Number of f64 in the widest SIMD vectors. The compiler turns inner loops of this length into
/// full vectors for every instruction set.
pub(crate) const LANES: usize = 8;

/// Number of environments per kernel call. Their data fit into the L1 cache, and one flag per
/// environment fits into a u64.
pub(crate) const BLOCK: usize = 64;

/// Column: one number per environment of a block.
pub(crate) type Block = [f64; BLOCK];

/// Returns the numbers of a block in arrays of [`LANES`] numbers, the length of a SIMD vector.
#[inline(always)]
pub(crate) fn vectors<T>(block: &[T; BLOCK]) -> impl Iterator<Item = &[T; LANES]> {
    block.as_chunks().0.iter()
}

/// Returns the mutable numbers of a block in arrays of [`LANES`] numbers.
#[inline(always)]
pub(crate) fn vectors_mut<T>(block: &mut [T; BLOCK]) -> impl Iterator<Item = &mut [T; LANES]> {
    block.as_chunks_mut().0.iter_mut()
}

/// Iterator over the positions of the set bits of a number, in ascending order.
#[derive(Debug)]
pub(crate) struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let lowest = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (lowest < BLOCK).then_some(lowest)
    }
}

/// Returns the positions of the true flags among the first `count` flags.
#[inline]
pub(crate) fn lane_bits(flags: &[bool; BLOCK], count: usize) -> Bits {
    // The product collects the lowest bits of eight bytes in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let bytes = flags.as_chunks::<8>().0.iter().map(|flags| u64::from_le_bytes(flags.map(u8::from)));
    let bits = bytes.enumerate().fold(0, |bits, (i, bytes)| bits | (bytes.wrapping_mul(GATHER) >> 56) << (8 * i));
    Bits(bits & u64::MAX.checked_shr((BLOCK - count.min(BLOCK)) as u32).unwrap_or(0))
}

const VARIABLE: &str = "RLOX_SIMD";

/// An instruction set that kernels are compiled for. Later variants have more instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Instructions of every CPU of the target (SSE2 on x86-64, NEON on aarch64).
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// Returns the value of `RLOX_SIMD` for this instruction set.
    ///
    /// ```
    /// assert_eq!(rlox_core::__private::simd::Isa::Avx512.name(), "avx512");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().find(|isa| isa.name() == name)
    }
}

/// Returns the instruction set that kernels use in this process: the best one of the CPU that
/// `RLOX_SIMD` allows.
///
/// ```
/// use rlox_core::__private::simd::{Isa, isa};
///
/// assert!(isa() >= Isa::Portable);
/// ```
#[inline]
pub fn isa() -> Isa {
    // Not a `OnceLock`, which a fork could leave locked. Concurrent threads compute the same value.
    static KNOWN: AtomicU8 = AtomicU8::new(0);

    #[cfg(test)]
    if let Some(forced) = tests::FORCED.get() {
        return forced;
    }
    match KNOWN.load(Ordering::Relaxed) {
        1 => Isa::Portable,
        2 => Isa::Avx2,
        3 => Isa::Avx512,
        _ => {
            let isa = detected().min(ceiling(setting().as_deref()));
            KNOWN.store(isa as u8 + 1, Ordering::Relaxed);
            isa
        }
    }
}

/// Checks that the environment variable `RLOX_SIMD` is unset, empty or one of its values.
///
/// # Errors
/// [`Error::Config`] that names the value.
///
/// ```
/// assert!(rlox_core::__private::simd::check_setting().is_ok());
/// ```
pub fn check_setting() -> Result<()> {
    check(setting().as_deref())
}

fn setting() -> Option<String> {
    let value = std::env::var_os(VARIABLE)?.to_string_lossy().into_owned();
    (!value.trim().is_empty()).then_some(value)
}

fn check(setting: Option<&str>) -> Result<()> {
    match setting {
        Some(value) if Isa::from_name(value).is_none() => Err(Error::config(
            VARIABLE,
            "portable, avx2 or avx512",
            format!("{value:?}"),
            "correct or unset the environment variable; the portable code runs until then",
        )),
        _ => Ok(()),
    }
}

fn ceiling(setting: Option<&str>) -> Isa {
    setting.map_or(Isa::Avx512, |value| Isa::from_name(value).unwrap_or(Isa::Portable))
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Isa {
    // Exactly the features that `multiversion!` enables: the soundness of that macro depends on this function.
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Isa {
    Isa::Portable
}

/// Defines a function that is compiled for every [`Isa`] and calls the version for [`isa`].
///
/// The body must be plain loops. Functions that it calls are compiled for the wider instruction sets only if they are
/// inlined, so helpers must be `#[inline(always)]`.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$t:ident: $bound:path $(, const $k:ident: usize)?>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$t: $bound $(, const $k: usize)?>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn portable $(<$t: $bound $(, const $k: usize)?>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$t: $bound $(, const $k: usize)?>)? ($($arg: $ty),*) $(-> $ret)? { portable($($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$t: $bound $(, const $k: usize)?>)? ($($arg: $ty),*) $(-> $ret)? { portable($($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "a function compiled for more instructions than the target has is unsafe to call")]
            match $crate::simd::isa() {
                // SAFETY: isa() is Avx512 only if the CPU has every feature that avx512 enables.
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: isa() is Avx2 or more only if the CPU has every feature that avx2 enables.
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                $crate::simd::Isa::Portable => portable($($arg),*),
            }
            #[cfg(not(target_arch = "x86_64"))]
            portable($($arg),*)
        }
    };
}
pub(crate) use multiversion;

/// Prefetches the cache line of `place`, if the CPU has such an instruction.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the instruction takes any pointer, so it is unsafe to call")]
    // SAFETY: every x86-64 CPU has the instruction, which neither faults nor changes anything except caches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
    }

    /// Returns the results of `f` on every instruction set of this CPU, starting with the portable one.
    pub(crate) fn on_each_isa<R>(f: impl Fn() -> R) -> Vec<R> {
        let isas = [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= detected());
        let results = isas
            .map(|isa| {
                FORCED.set(Some(isa));
                f()
            })
            .collect();
        FORCED.set(None);
        results
    }

    #[test]
    fn flags_become_bits_in_order() {
        let mut flags = [false; BLOCK];
        for i in [0, 1, 9, 40, 63] {
            flags[i] = true;
        }
        let set = |count| lane_bits(&flags, count).collect::<Vec<_>>();
        assert_eq!(set(BLOCK), [0, 1, 9, 40, 63]);
        assert_eq!(set(9), [0, 1]);
        assert!(set(0).is_empty());
    }

    multiversion! {
        /// Evaluates a polynomial, with operations that a fused multiply-add would round
        /// differently.
        fn horner<T: Into<f64>>(coefficients: &[f64], x: T) -> f64 {
            let x = x.into();
            coefficients.iter().fold(0.0, |sum, c| sum * x + c)
        }
    }

    #[test]
    fn every_path_computes_the_same_bits() {
        let coefficients: Vec<f64> = (0..100).map(|i| f64::from(i).sin()).collect();
        let results = on_each_isa(|| horner(&coefficients, 0.987_654_3_f32).to_bits());
        assert!(results.iter().all(|&bits| bits == results[0]));
    }

    #[test]
    fn the_setting_limits_the_selection() {
        assert_eq!(ceiling(None), Isa::Avx512);
        assert_eq!(ceiling(Some("avx512")), Isa::Avx512);
        assert_eq!(ceiling(Some(" AVX2 ")), Isa::Avx2);
        assert_eq!(ceiling(Some("portable")), Isa::Portable);
        assert!(isa() <= detected());
    }

    #[test]
    fn an_unknown_setting_selects_portable_and_is_reported() {
        assert_eq!(ceiling(Some("avx1024")), Isa::Portable);
        let rejected = crate::testing::assert_rejects(check(Some("avx1024")), crate::Error::Config, "RLOX_SIMD");
        assert_eq!((&rejected.expected[..], &rejected.got[..]), ("portable, avx2 or avx512", "\"avx1024\""));
        assert!(check(None).is_ok());
    }
}
