//! Asking for memory before it is needed.

/// Starts to bring the cache line of `place` near; where the processor has no such instruction, nothing happens.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the instruction takes any pointer, so it is unsafe to call")]
    // SAFETY: every x86-64 has the instruction; it neither faults nor changes anything but caches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
