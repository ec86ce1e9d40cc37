//! Ends of episodes that come as numbers.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::{PIECE, run_chunks_whole};
use crate::simd::multiversion;
use crate::{Error, Float, Result, check_len};

/// Turns zeros and ones into flags, as programs that keep `dones` in a float array have them.
///
/// ```
/// let mut flags = [true; 2];
/// rlox_core::flags_from_numbers("dones", &[0.0, 1.0], &mut flags)?;
/// assert_eq!(flags, [false, true]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Space`] naming `argument` and the first number that is neither 0 nor 1, [`Error::Shape`] if the lengths
/// differ.
pub fn flags_from_numbers<T: Float>(argument: &'static str, numbers: &[T], flags: &mut [bool]) -> Result<()> {
    check_len(argument, numbers.len(), flags.len())?;
    let strange = AtomicBool::new(false);
    run_chunks_whole([flags], PIECE, |i, [flags]| {
        if !convert(&numbers[i * PIECE..][..flags.len()], flags) {
            strange.store(true, Ordering::Relaxed);
        }
    })?;
    if !strange.into_inner() {
        return Ok(());
    }
    let strange = numbers.iter().position(|x| *x != T::of(0.0) && *x != T::of(1.0));
    let got = strange.map_or_else(String::new, |at| numbers[at].to_string());
    let error = Error::space(argument, "flags, each 0 or 1", got, "pass booleans");
    Err(if let Some(at) = strange { error.at_index(at) } else { error })
}

multiversion! {
    /// Whether every number was 0 or 1.
    fn convert<T: Float>(numbers: &[T], flags: &mut [bool]) -> bool {
        let (zero, one) = (T::of(0.0), T::of(1.0));
        let mut strange = 0_u8;
        for (flag, x) in flags.iter_mut().zip(numbers) {
            let set = *x == one;
            *flag = set;
            strange |= u8::from(!set) & u8::from(*x != zero);
        }
        strange == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_takes_zeros_and_ones_and_names_what_is_neither() {
        let mut numbers: Vec<f32> = (0..100_u8).map(|i| f32::from(i % 3 == 0)).collect();
        for result in crate::simd::tests::on_each_isa(|| {
            let mut flags = vec![false; 100];
            flags_from_numbers("dones", &numbers, &mut flags).map(|()| flags)
        }) {
            assert!(result.unwrap().iter().enumerate().all(|(i, flag)| *flag == (i % 3 == 0)));
        }
        for strange in [0.5, f32::NAN, -1.0] {
            numbers[77] = strange;
            for result in crate::simd::tests::on_each_isa(|| flags_from_numbers("dones", &numbers, &mut [false; 100])) {
                let error = result.unwrap_err();
                let wrong = error.mismatch().unwrap();
                assert_eq!((&wrong.got, wrong.at.index), (&strange.to_string(), Some(77)));
            }
        }
    }
}
