//! Random number generation with the same bits as in NumPy: [`SeedSequence`] and [`Pcg64`].
//!
//! Gymnasium seeds environments through `numpy.random.SeedSequence` and `numpy.random.PCG64`, so equal seeds produce
//! equal episodes. The generator is PCG XSL RR 128/64 of O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient
//! Statistically Good Algorithms for Random Number Generation" (HMC-CS-2014-0905). The seeding is NumPy's version of
//! O'Neill's `seed_seq` alternative (2015).

mod seed_sequence;
mod state;

pub use seed_sequence::SeedSequence;
pub use state::Pcg64State;

use std::convert::Infallible;

use rand_core::{TryRng, utils};

use crate::interrupt::InterruptCheck;
use seed_sequence::{POOL, absorb, generate_u64, stir};

/// Random number generator equal to `numpy.random.Generator(PCG64)`, bit for bit.
///
/// The methods are the random draws that environments use. The type also implements the traits of
/// `rand_core`, so that the distributions of the `rand` crates are available.
///
/// ```
/// use rlox_core::Pcg64;
///
/// let mut rng = Pcg64::seed_from(42); // np.random.default_rng(42), gymnasium's np_random(42)
/// assert_eq!(rng.random(), 0.773_956_048_555_963_3);
/// assert_eq!(rng.uniform(-0.05, 0.05), -0.006_112_156_024_794_771);
/// assert_eq!(rng.integers(0, 6), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pcg64(Pcg64State);

impl Pcg64 {
    /// Creates the generator for an integer seed, equal to `np.random.default_rng(seed)`.
    ///
    /// Gymnasium's `np_random(seed)` returns the same generator.
    pub fn seed_from(seed: u128) -> Self {
        Self::from_seed_sequence(&SeedSequence::new(seed))
    }

    /// Creates the generator for a seed sequence, equal to `np.random.PCG64(sequence)`.
    pub fn from_seed_sequence(sequence: &SeedSequence) -> Self {
        Self::from_pool(sequence.pool)
    }

    /// Creates the generator for an integer seed of any size. The seed is passed as 32-bit words,
    /// the lowest word first.
    ///
    /// The result equals the generator for [`SeedSequence::from_entropy`] of the same words. The
    /// words are not copied.
    ///
    /// # Errors
    /// [`crate::Error::Interrupted`] if the function of [`crate::interrupt::set_interrupt_check`]
    /// returns true during a long seed.
    ///
    /// ```
    /// use rlox_core::{Pcg64, interrupt::InterruptCheck};
    ///
    /// let mut watch = InterruptCheck::default();
    /// assert_eq!(Pcg64::from_entropy(&[7, 1], &mut watch)?, Pcg64::seed_from(1 << 32 | 7));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn from_entropy(entropy: &[u32], interrupt: &mut InterruptCheck) -> crate::Result<Self> {
        const POLL_EVERY_WORDS: usize = InterruptCheck::POLL_ELEMENTS / 64;
        let mut chunks = entropy.chunks(POLL_EVERY_WORDS);
        let mut first = chunks.next().unwrap_or_default().iter().copied();
        let (mut pool, mut hash) = stir(&mut first);
        absorb(&mut pool, &mut hash, first);
        for chunk in chunks {
            interrupt.check()?;
            absorb(&mut pool, &mut hash, chunk.iter().copied());
        }
        Ok(Self::from_pool(pool))
    }

    /// Creates the generator for the entropy pool of a seed sequence.
    fn from_pool(pool: [u32; POOL]) -> Self {
        let mut seed = [0; 4];
        generate_u64(pool, &mut seed);
        let [state, stream] = [0, 2].map(|i| u128::from(seed[i]) << 64 | u128::from(seed[i + 1]));
        let inc = stream << 1 | 1;
        let mut rng = Self(Pcg64State { state: inc.wrapping_add(state), inc, has_uint32: false, uinteger: 0 });
        rng.advance();
        rng
    }

    #[inline]
    fn advance(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.0.state = self.0.state.wrapping_mul(MULTIPLIER).wrapping_add(self.0.inc);
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.advance();
        let state = self.0.state;
        ((state >> 64) as u64 ^ state as u64).rotate_right((state >> 122) as u32)
    }

    /// Returns the next 32 random bits.
    ///
    /// The first call draws 64 bits and returns their low half. The second call returns the high
    /// half, which the first call stored.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.0.has_uint32 {
            self.0.has_uint32 = false;
            return self.0.uinteger;
        }
        let next = self.next_u64();
        self.0.has_uint32 = true;
        self.0.uinteger = (next >> 32) as u32;
        next as u32
    }

    /// Returns a random number in [0, 1), a multiple of 2^-53, as `Generator.random()` does.
    #[inline]
    pub fn random(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Returns a random number in [low, high), as `Generator.uniform(low, high)` does.
    ///
    /// The result is not finite if `high - low` overflows.
    #[inline]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random()
    }

    /// Returns a random integer in [low, high), as `Generator.integers(low, high)` does.
    ///
    /// # Panics
    /// Panics if `low >= high`.
    #[inline]
    pub fn integers(&mut self, low: i64, high: i64) -> i64 {
        assert!(low < high, "integers: expected low < high, got low = {low} and high = {high}");
        self.integers_inclusive(low, high - 1)
    }

    /// Returns a random integer in [low, high], as `Generator.integers(low, high, endpoint=True)`
    /// does.
    ///
    /// The range may include all i64 numbers.
    ///
    /// ```
    /// let mut rng = rlox_core::Pcg64::seed_from(1);
    /// assert_eq!(rng.integers_inclusive(5, 5), 5); // a single choice consumes no random bits
    /// let _any = rng.integers_inclusive(i64::MIN, i64::MAX);
    /// ```
    ///
    /// # Panics
    /// Panics if `low > high`.
    #[inline]
    pub fn integers_inclusive(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "integers_inclusive: expected low <= high, got low = {low} and high = {high}");
        let range = high.wrapping_sub(low) as u64;
        low.wrapping_add(self.at_most(range) as i64)
    }

    /// Returns an unbiased random integer in [0, range] by Lemire's method (2019,
    /// arXiv:1805.10941).
    ///
    /// As in NumPy, ranges below 2^32 consume 32 bits per draw.
    #[inline]
    fn at_most(&mut self, range: u64) -> u64 {
        const ALL_32: u64 = u32::MAX as u64;
        match range {
            0 => 0,
            ALL_32 => self.next_u32().into(),
            u64::MAX => self.next_u64(),
            1..ALL_32 => self.lemire_32(range as u32 + 1).into(),
            _ => self.lemire_64(range + 1),
        }
    }

    #[inline]
    fn lemire_32(&mut self, count: u32) -> u32 {
        let mut product = u64::from(self.next_u32()) * u64::from(count);
        if (product as u32) < count {
            let threshold = count.wrapping_neg() % count;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(count);
            }
        }
        (product >> 32) as u32
    }

    #[inline]
    fn lemire_64(&mut self, count: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(count);
        if (product as u64) < count {
            let threshold = count.wrapping_neg() % count;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(count);
            }
        }
        (product >> 64) as u64
    }
}

impl TryRng for Pcg64 {
    type Error = Infallible;

    #[inline]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_u32())
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next_u64())
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        utils::fill_bytes_via_next_word(dst, || self.try_next_u64())
    }
}
