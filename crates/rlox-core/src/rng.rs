//! Random streams bit-equal to NumPy's: [`SeedSequence`] and [`Pcg64`].
//!
//! Gymnasium seeds environments through `numpy.random.SeedSequence` and `numpy.random.PCG64`, so the same seed gives
//! the same episode here. The generator is PCG XSL RR 128/64 of O'Neill 2014, "PCG: A Family of Simple Fast
//! Space-Efficient Statistically Good Algorithms for Random Number Generation" (HMC-CS-2014-0905); the seeding is her
//! `seed_seq` alternative (2015) as NumPy has it.

mod mixing;
mod words;

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use rand_core::{TryRng, utils};

use self::mixing::{Hash, POOL, generate_u64, mix_entropy, words};

/// Turns one seed into any number of independent streams, equal to `numpy.random.SeedSequence`.
///
/// ```
/// use rlox_core::{Pcg64, SeedSequence};
///
/// let mut root = SeedSequence::new(42);
/// let children = root.spawn(2); // np.random.SeedSequence(42).spawn(2)
/// assert_eq!(children[1].spawn_key(), [1]);
/// let mut rng = Pcg64::from_seed_sequence(&children[0]);
/// assert_eq!(rng.random(), 0.916_744_157_554_908_5);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedSequence {
    entropy: Vec<u32>,
    spawn_key: Vec<u32>,
    children: u64,
    pool: [u32; POOL],
}

impl SeedSequence {
    /// The sequence of an integer seed, `np.random.SeedSequence(seed)`.
    pub fn new(seed: u128) -> Self {
        Self::from_words(&words(seed).collect::<Vec<_>>())
    }

    /// Becomes the sequence of another integer seed with a given place in the tree of children, in the memory that it has:
    /// `np.random.SeedSequence(seed, spawn_key=...)`.
    ///
    /// ```
    /// use rlox_core::SeedSequence;
    ///
    /// let mut sequence = SeedSequence::new(7);
    /// sequence.restart(42, &[3]);
    /// assert_eq!(sequence, SeedSequence::from_parts(&[42], &[3], 0));
    /// ```
    pub fn restart(&mut self, seed: u128, spawn_key: &[u32]) {
        self.entropy.clear();
        self.entropy.extend(words(seed));
        self.spawn_key.clear();
        self.spawn_key.extend_from_slice(spawn_key);
        self.children = 0;
        self.pool = mix_entropy(&self.entropy, spawn_key.iter().copied());
    }

    /// The sequence of a list of 32-bit words, `np.random.SeedSequence([w0, w1, ...])`; an integer of more than 128
    /// bits is its words, lowest first.
    pub fn from_words(entropy: &[u32]) -> Self {
        Self::from_parts(entropy, &[], 0)
    }

    /// The sequence with a given place in the tree of children, for checkpoints:
    /// `np.random.SeedSequence(entropy, spawn_key=..., n_children_spawned=...)`.
    ///
    /// ```
    /// use rlox_core::SeedSequence;
    ///
    /// let mut root = SeedSequence::new(7);
    /// root.spawn(3);
    /// let mut copy = SeedSequence::from_parts(root.entropy(), root.spawn_key(), root.n_children_spawned());
    /// assert_eq!(copy.spawn(1), root.spawn(1));
    /// ```
    pub fn from_parts(entropy: &[u32], spawn_key: &[u32], n_children_spawned: u64) -> Self {
        let pool = mix_entropy(entropy, spawn_key.iter().copied());
        Self { entropy: entropy.to_vec(), spawn_key: spawn_key.to_vec(), children: n_children_spawned, pool }
    }

    /// A sequence nobody can repeat: 128 bits from the operating system, different in every call, thread and forked
    /// process. [`SeedSequence::entropy`] tells them.
    pub fn from_os() -> Self {
        // The standard library keys this hasher from the system's entropy. A forked child inherits the keys, so the
        // process and the time go in as well.
        let hasher = RandomState::new();
        let half = |index: u64| u128::from(hasher.hash_one((index, std::process::id(), SystemTime::now())));
        Self::new(half(0) << 64 | half(1))
    }

    /// The next `n` children. No child, nor a child's child, shares its stream with another.
    pub fn spawn(&mut self, n: usize) -> Vec<Self> {
        let first = self.children;
        self.children += n as u64;
        (first..self.children)
            .map(|child| {
                let mut key = self.spawn_key.clone();
                key.extend(words(child.into()));
                Self::from_parts(&self.entropy, &key, 0)
            })
            .collect()
    }

    /// The generator of the next child, `np.random.PCG64(sequence.spawn(1)[0])`. Allocates nothing.
    ///
    /// ```
    /// use rlox_core::{Pcg64, SeedSequence};
    ///
    /// let (mut one, mut other) = (SeedSequence::new(42), SeedSequence::new(42));
    /// assert_eq!(one.spawn_rng(), Pcg64::from_seed_sequence(&other.spawn(1)[0]));
    /// ```
    pub fn spawn_rng(&mut self) -> Pcg64 {
        let key = self.spawn_key.iter().copied().chain(words(self.children.into()));
        self.children += 1;
        Pcg64::from_pool(mix_entropy(&self.entropy, key))
    }

    /// Fills `out` with seed words, `generate_state(len, np.uint32)`.
    pub fn generate_state_u32(&self, out: &mut [u32]) {
        let mut hash = Hash::output();
        for (word, &source) in out.iter_mut().zip(self.pool.iter().cycle()) {
            *word = hash.next(source);
        }
    }

    /// Fills `out` with seed words, `generate_state(len, np.uint64)`.
    pub fn generate_state_u64(&self, out: &mut [u64]) {
        generate_u64(self.pool, out);
    }

    /// The seed's 32-bit words, lowest first.
    pub fn entropy(&self) -> &[u32] {
        &self.entropy
    }

    /// The path from the root to this child, as 32-bit words; empty at the root.
    pub fn spawn_key(&self) -> &[u32] {
        &self.spawn_key
    }

    /// How many children were spawned so far.
    pub fn n_children_spawned(&self) -> u64 {
        self.children
    }
}

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

/// `numpy.random.Generator(PCG64)`, bit for bit, for the draws that environments make.
///
/// The traits of `rand_core` are implemented too, so every distribution of the `rand` family works on it.
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
    /// The generator of an integer seed, as Gymnasium's `np_random(seed)` and `np.random.default_rng(seed)`.
    pub fn seed_from(seed: u128) -> Self {
        Self::from_seed_sequence(&SeedSequence::new(seed))
    }

    /// The generator of a seed sequence, `np.random.PCG64(sequence)`.
    pub fn from_seed_sequence(sequence: &SeedSequence) -> Self {
        Self::from_pool(sequence.pool)
    }

    fn from_pool(pool: [u32; POOL]) -> Self {
        let mut seed = [0; 4];
        generate_u64(pool, &mut seed);
        let [state, stream] = [0, 2].map(|i| u128::from(seed[i]) << 64 | u128::from(seed[i + 1]));
        let inc = stream << 1 | 1;
        let mut rng = Self(Pcg64State { state: inc.wrapping_add(state), inc, has_uint32: false, uinteger: 0 });
        rng.advance();
        rng
    }

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
    /// [`crate::Error::Config`] for an even `inc`, with which the stream would not go through all its states.
    pub fn from_state(state: Pcg64State) -> crate::Result<Self> {
        if state.inc % 2 == 1 {
            return Ok(Self(state));
        }
        Err(crate::Error::config("streams", "an odd inc", state.inc.to_string(), "pass what Pcg64::state gave"))
    }

    #[inline]
    fn advance(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.0.state = self.0.state.wrapping_mul(MULTIPLIER).wrapping_add(self.0.inc);
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.advance();
        let state = self.0.state;
        ((state >> 64) as u64 ^ state as u64).rotate_right((state >> 122) as u32)
    }

    /// The next 32 bits: the low half of a 64-bit draw, then its high half, as NumPy buffers them.
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

    /// A number in [0, 1) on a grid of 2^-53, `Generator.random()`.
    #[inline]
    pub fn random(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A number in [low, high), `Generator.uniform(low, high)`. Where the difference overflows the result is not
    /// finite.
    #[inline]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random()
    }

    /// An integer in [low, high), `Generator.integers(low, high)`.
    ///
    /// # Panics
    /// If `low >= high`, since there is no such integer.
    #[inline]
    pub fn integers(&mut self, low: i64, high: i64) -> i64 {
        assert!(low < high, "integers: expected low < high, got low = {low} and high = {high}");
        self.integers_inclusive(low, high - 1)
    }

    /// An integer in [low, high], `Generator.integers(low, high, endpoint=True)`: all of i64 if asked.
    ///
    /// ```
    /// let mut rng = rlox_core::Pcg64::seed_from(1);
    /// assert_eq!(rng.integers_inclusive(5, 5), 5); // one choice draws nothing
    /// let _any = rng.integers_inclusive(i64::MIN, i64::MAX);
    /// ```
    ///
    /// # Panics
    /// If `low > high`.
    #[inline]
    pub fn integers_inclusive(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "integers_inclusive: expected low <= high, got low = {low} and high = {high}");
        let range = high.wrapping_sub(low) as u64;
        low.wrapping_add(self.at_most(range) as i64)
    }

    /// A number in [0, range] without bias: Lemire's method (2019, arXiv:1805.10941) on as few bits as NumPy takes.
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
