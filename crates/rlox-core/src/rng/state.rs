//! Recorded states of a [`Pcg64`]: field by field as NumPy has them, or as the words of an array.

use super::Pcg64;
use crate::{Error, Result};

/// All of a [`Pcg64`], field by field as NumPy's `bit_generator.state` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcg64State {
    /// The 128-bit state, `["state"]["state"]`.
    pub state: u128,
    /// The 128-bit stream number, odd, `["state"]["inc"]`.
    pub inc: u128,
    /// Whether half of a 64-bit draw waits for the next 32-bit one.
    pub has_uint32: bool,
    /// That half, or the last one used.
    pub uinteger: u32,
}

impl Pcg64 {
    /// Everything the generator remembers, to be put into a checkpoint or into NumPy's `bit_generator.state`.
    ///
    /// ```
    /// use rlox_core::Pcg64;
    ///
    /// let mut rng = Pcg64::seed_from(3);
    /// rng.next_u32();
    /// let mut copy = Pcg64::from_state(rng.state())?;
    /// assert_eq!(copy.next_u32(), rng.next_u32());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn state(&self) -> Pcg64State {
        self.0
    }

    /// The generator at a recorded state.
    ///
    /// # Errors
    /// [`Error::Config`] for an even `inc`, with which the stream would not go through all its states.
    pub fn from_state(state: Pcg64State) -> Result<Self> {
        if state.inc % 2 == 1 {
            return Ok(Self(state));
        }
        Err(Error::config("streams", "an odd inc", state.inc.to_string(), "pass what Pcg64::state gave"))
    }

    /// 64-bit words of a recorded state.
    pub const STATE_LEN: usize = 6;

    /// Everything the generator remembers, as arrays of integers hold it: state and `inc`, high half first, and the
    /// buffered half draw.
    ///
    /// ```
    /// use rlox_core::Pcg64;
    ///
    /// let mut rng = Pcg64::seed_from(3);
    /// let mut copy = Pcg64::from_state_array(&rng.to_state_array())?;
    /// assert_eq!(copy.next_u64(), rng.next_u64());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn to_state_array(&self) -> [i64; Self::STATE_LEN] {
        let Pcg64State { state, inc, has_uint32, uinteger } = self.0;
        let [a, b, c, d] = [state >> 64, state, inc >> 64, inc].map(|half| half as i64);
        [a, b, c, d, has_uint32.into(), uinteger.into()]
    }

    /// The generator of which these are the words.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of words, [`Error::Config`] for words that are no state.
    pub fn from_state_array(array: &[i64]) -> Result<Self> {
        const HINT: &str = "pass what Pcg64::to_words gave";
        let &[a, b, c, d, half, uinteger] = array else {
            let (expected, got) = (format!("{} words", Self::STATE_LEN), array.len().to_string());
            return Err(Error::shape("streams", expected, got, HINT));
        };
        let (0 | 1, Ok(uinteger)) = (half, u32::try_from(uinteger)) else {
            let got = format!("{half} and {uinteger}");
            return Err(Error::config("streams", "0 or 1 and 32 bits as a stream's last two words", got, HINT));
        };
        let [state, inc] = [(a, b), (c, d)].map(|(high, low)| u128::from(high as u64) << 64 | u128::from(low as u64));
        Self::from_state(Pcg64State { state, inc, has_uint32: half == 1, uinteger })
    }
}
