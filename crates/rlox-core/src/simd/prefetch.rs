//! Prefetching of memory.

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
