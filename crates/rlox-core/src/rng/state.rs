//! Recorded states of a [`Pcg64`]: NumPy's fields, or an array of 64-bit words.

use super::Pcg64;
use crate::{Error, Result};

/// Complete state of a [`Pcg64`], with the fields of NumPy's `bit_generator.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcg64State {
    /// The 128-bit state: `["state"]["state"]`.
    pub state: u128,
    /// The 128-bit stream number, which is odd: `["state"]["inc"]`.
    pub inc: u128,
    /// True if the second half of a 64-bit draw is buffered for the next 32-bit draw.
    pub has_uint32: bool,
    /// The buffered half, or the last buffered half that was used.
    pub uinteger: u32,
}

impl Pcg64 {
    /// Returns the complete state, for a checkpoint or for NumPy's `bit_generator.state`.
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

    /// Creates a generator from a recorded state.
    ///
    /// # Errors
    /// [`Error::Config`] if `inc` is even, because the generator would have a shorter period.
    pub fn from_state(state: Pcg64State) -> Result<Self> {
        if state.inc % 2 == 1 {
            return Ok(Self(state));
        }
        Err(Error::config("streams", "an odd inc", state.inc.to_string(), "pass a state of Pcg64::state"))
    }

    /// Number of 64-bit words of a state array.
    pub const STATE_LEN: usize = 6;

    /// Returns the complete state as 64-bit words.
    ///
    /// The six words are the high and the low half of `state`, the high and the low half of `inc`,
    /// `has_uint32` and `uinteger`.
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

    /// Creates a generator from the words of [`Pcg64::to_state_array`].
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of words is wrong, [`Error::Config`] if the words are not a valid state.
    pub fn from_state_array(array: &[i64]) -> Result<Self> {
        const HINT: &str = "pass an array of Pcg64::to_state_array";
        let &[a, b, c, d, half, uinteger] = array else {
            let (expected, got) = (format!("{} words", Self::STATE_LEN), array.len().to_string());
            return Err(Error::shape("streams", expected, got, HINT));
        };
        let (0 | 1, Ok(uinteger)) = (half, u32::try_from(uinteger)) else {
            let got = format!("{half} and {uinteger}");
            return Err(Error::config("streams", "0 or 1, and a u32, as the last two words of a stream", got, HINT));
        };
        let [state, inc] = [(a, b), (c, d)].map(|(high, low)| u128::from(high as u64) << 64 | u128::from(low as u64));
        Self::from_state(Pcg64State { state, inc, has_uint32: half == 1, uinteger })
    }
}
