//! Streams as words, the form in which arrays hold them; and seeds of any number of words.

use super::mixing::{absorb, stir};
use super::{Pcg64, Pcg64State, SeedSequence};
use crate::{Error, Result, Watch};

impl Pcg64 {
    /// The generator of an integer seed of any size, given as its 32-bit words, the lowest first: that of
    /// [`SeedSequence::from_words`] without a copy of the words.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where a seed is so long that there is time for it.
    ///
    /// ```
    /// use rlox_core::{Pcg64, Watch};
    ///
    /// let mut watch = Watch::default();
    /// assert_eq!(Pcg64::from_seed_words(&[7, 1], &mut watch)?, Pcg64::seed_from(1 << 32 | 7));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn from_seed_words(words: &[u32], watch: &mut Watch) -> Result<Self> {
        const STRETCH: usize = Watch::STRETCH / 64;
        let mut stretches = words.chunks(STRETCH);
        let mut first = stretches.next().unwrap_or_default().iter().copied();
        let (mut pool, mut hash) = stir(&mut first);
        absorb(&mut pool, &mut hash, first);
        for stretch in stretches {
            watch.check()?;
            absorb(&mut pool, &mut hash, stretch.iter().copied());
        }
        let sequence = SeedSequence { entropy: Vec::new(), spawn_key: Vec::new(), children: 0, pool };
        Ok(Self::from_seed_sequence(&sequence))
    }

    /// 64-bit words of a recorded state.
    pub const WORDS: usize = 6;

    /// Everything the generator remembers, as arrays of integers hold it: state and `inc`, high half first, and the
    /// buffered half draw.
    ///
    /// ```
    /// use rlox_core::Pcg64;
    ///
    /// let mut rng = Pcg64::seed_from(3);
    /// let mut copy = Pcg64::from_words(&rng.to_words())?;
    /// assert_eq!(copy.next_u64(), rng.next_u64());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn to_words(&self) -> [i64; Self::WORDS] {
        let Pcg64State { state, inc, has_uint32, uinteger } = self.0;
        let [a, b, c, d] = [state >> 64, state, inc >> 64, inc].map(|half| half as i64);
        [a, b, c, d, has_uint32.into(), uinteger.into()]
    }

    /// The generator of which these are the words.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for another number of words, [`crate::Error::Config`] for words that are no state.
    pub fn from_words(words: &[i64]) -> Result<Self> {
        const FIX: &str = "pass what Pcg64::to_words gave";
        let &[a, b, c, d, half, uinteger] = words else {
            let (expected, got) = (format!("{} words", Self::WORDS), words.len().to_string());
            return Err(Error::shape("streams", expected, got, FIX));
        };
        let (0 | 1, Ok(uinteger)) = (half, u32::try_from(uinteger)) else {
            let got = format!("{half} and {uinteger}");
            return Err(Error::config("streams", "0 or 1 and 32 bits as a stream's last two words", got, FIX));
        };
        let [state, inc] = [(a, b), (c, d)].map(|(high, low)| u128::from(high as u64) << 64 | u128::from(low as u64));
        Self::from_state(Pcg64State { state, inc, has_uint32: half == 1, uinteger })
    }
}
