//! The floating-point environment of threads: workers use the settings of their caller.
//!
//! Each thread has settings for rounding and for treating subnormal numbers as 0.
//! `torch.set_flush_denormal` and `-ffast-math` change these settings. If workers had other
//! settings than the caller, the result of a call would depend on the threads that computed its
//! parts.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// Rounding mode and flush-to-zero flags of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FloatMode(u64);

impl FloatMode {
    /// Bits of the register MXCSR: denormals are zeros, rounding mode, flush to zero.
    ///
    /// All other bits (exception masks and flags) are not copied to workers.
    #[cfg(target_arch = "x86_64")]
    const BITS: u64 = 1 << 6 | 3 << 13 | 1 << 15;

    /// Bits of the register FPCR: rounding mode and flush to zero.
    #[cfg(target_arch = "aarch64")]
    const BITS: u64 = 7 << 22;

    /// Returns the settings of this thread.
    pub(super) fn current() -> Self {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        return Self(read_register() & Self::BITS);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Self(0)
    }

    /// Calls `f` with these settings, and then restores the previous settings.
    pub(super) fn scoped<R>(self, f: impl FnOnce() -> R) -> R {
        let before = Self::current();
        if before == self {
            return f();
        }
        let _restored = RestoreOnDrop(before);
        self.set();
        f()
    }

    fn set(self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        write_register(read_register() & !Self::BITS | self.0);
    }
}

/// Restores the settings when dropped, also after a panic.
struct RestoreOnDrop(FloatMode);

impl Drop for RestoreOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[cfg(target_arch = "x86_64")]
fn read_register() -> u64 {
    let mut control = 0_u32;
    // SAFETY: every x86-64 CPU has SSE. The instruction writes four bytes to `control`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control.into()
}

/// Sets MXCSR to a value that differs from its current one only in [`FloatMode::BITS`].
#[cfg(target_arch = "x86_64")]
fn write_register(control: u64) {
    let control = control as u32;
    // SAFETY: every x86-64 CPU has SSE, and no reserved bit changes. The compiler assumes the
    // default mode, so results of floating-point operations may differ from what it assumes. This
    // is the case on the calling thread already.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, readonly, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn read_register() -> u64 {
    let control: u64;
    // SAFETY: reads a register that programs may read.
    unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
    control
}

/// Sets FPCR to a value that differs from its current one only in [`FloatMode::BITS`].
#[cfg(target_arch = "aarch64")]
fn write_register(control: u64) {
    // SAFETY: programs may write this register. The compiler assumes the default mode, so results
    // of floating-point operations may differ from what it assumes. This is the case on the calling
    // thread already.
    unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) mod tests {
    use std::hint::black_box;

    use super::*;

    pub(in super::super) const FLUSHING: FloatMode = FloatMode(1 << 6 | 1 << 15);

    #[test]
    fn settings_apply_during_a_call_and_are_restored_after_it() {
        let halved = || black_box(1e-40_f32) / black_box(2.0);
        let usual = FloatMode::current();
        assert!(FLUSHING.scoped(|| halved() == 0.0 && FloatMode::current() == FLUSHING));
        assert!(halved() > 0.0 && FloatMode::current() == usual);
        assert!(std::panic::catch_unwind(|| FLUSHING.scoped(|| panic!("inside"))).is_err());
        assert_eq!(FloatMode::current(), usual);
    }
}
