//! The floating-point environment of a thread: the settings of a caller hold for the threads that help it, too.
//!
//! A processor keeps for each thread how results are rounded and whether numbers next to 0 count as 0, which
//! `torch.set_flush_denormal` and `-ffast-math` set. Parts of one call that were computed differently would make its
//! result depend on who computed which.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// Rounding, and flushing to 0, of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FloatMode(u64);

impl FloatMode {
    /// Denormals are zeros, rounding control, flush to zero. The rest of MXCSR, which exceptions trap and which came, is
    /// each thread's own.
    #[cfg(target_arch = "x86_64")]
    const BITS: u64 = 1 << 6 | 3 << 13 | 1 << 15;

    /// FPCR's rounding mode, and flush to zero.
    #[cfg(target_arch = "aarch64")]
    const BITS: u64 = 7 << 22;

    /// This thread's.
    pub(super) fn current() -> Self {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        return Self(read_register() & Self::BITS);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Self(0)
    }

    /// Calls `f` in this mode.
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

/// Sets the mode back when dropped, after a panic, too.
struct RestoreOnDrop(FloatMode);

impl Drop for RestoreOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[cfg(target_arch = "x86_64")]
fn read_register() -> u64 {
    let mut control = 0_u32;
    // SAFETY: every x86-64 has SSE; it writes the four bytes it is shown.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control.into()
}

/// Sets MXCSR, all but [`FloatMode::BITS`] of which is what it was.
#[cfg(target_arch = "x86_64")]
fn write_register(control: u64) {
    let control = control as u32;
    // SAFETY: every x86-64 has SSE; no reserved bit is set, as the rest was read from the register. Rust computes as if the
    // mode were the usual one and only fails to know better; the calling thread runs the same code in this mode already.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, readonly, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn read_register() -> u64 {
    let control: u64;
    // SAFETY: only reads a register that programs may read.
    unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
    control
}

/// Sets FPCR, all but [`FloatMode::BITS`] of which is what it was.
#[cfg(target_arch = "aarch64")]
fn write_register(control: u64) {
    // SAFETY: a register that programs may write. Rust computes as if the mode were the usual one and only fails to know
    // better; the calling thread runs the same code in this mode already.
    unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) mod tests {
    use std::hint::black_box;

    use super::*;

    pub(in super::super) const FLUSHING: FloatMode = FloatMode(1 << 6 | 1 << 15);

    #[test]
    fn a_mode_holds_during_a_call_and_is_restored_after_it() {
        let halved = || black_box(1e-40_f32) / black_box(2.0);
        let usual = FloatMode::current();
        assert!(FLUSHING.scoped(|| halved() == 0.0 && FloatMode::current() == FLUSHING));
        assert!(halved() > 0.0 && FloatMode::current() == usual);
        assert!(std::panic::catch_unwind(|| FLUSHING.scoped(|| panic!("inside"))).is_err());
        assert_eq!(FloatMode::current(), usual);
    }
}
