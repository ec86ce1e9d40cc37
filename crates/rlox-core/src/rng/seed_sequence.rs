//! Seed sequences equal to `numpy.random.SeedSequence`: a tree of seeds, and a hash function that
//! mixes the 32-bit words of seeds.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use super::Pcg64;

pub(super) const POOL: usize = 4;

/// Generator of independent random streams from one seed, equal to `numpy.random.SeedSequence`.
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
    pub(super) pool: [u32; POOL],
}

impl SeedSequence {
    /// Creates the sequence for an integer seed, equal to `np.random.SeedSequence(seed)`.
    pub fn new(seed: u128) -> Self {
        Self::from_entropy(&u32_words(seed).collect::<Vec<_>>())
    }

    /// Replaces the sequence by one that equals
    /// `np.random.SeedSequence(seed, spawn_key=spawn_key)`.
    ///
    /// The memory of the sequence is reused.
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
        self.entropy.extend(u32_words(seed));
        self.spawn_key.clear();
        self.spawn_key.extend_from_slice(spawn_key);
        self.children = 0;
        self.pool = mix_entropy(&self.entropy, spawn_key.iter().copied());
    }

    /// Creates the sequence for a seed of 32-bit words, equal to
    /// `np.random.SeedSequence([w0, w1, ...])`.
    ///
    /// Pass an integer of more than 128 bits as its words, the lowest word first.
    pub fn from_entropy(entropy: &[u32]) -> Self {
        Self::from_parts(entropy, &[], 0)
    }

    /// Creates a sequence with a given position in the tree of children, for example from a checkpoint.
    ///
    /// The result equals `np.random.SeedSequence(entropy, spawn_key=..., n_children_spawned=...)`.
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

    /// Creates a sequence from 128 bits of system entropy.
    ///
    /// The bits are different in every call, every thread and every forked process.
    /// [`SeedSequence::entropy`] returns them.
    pub fn from_os() -> Self {
        // `RandomState` keys this hasher from system entropy. A forked child inherits the keys, so the process id and
        // the time are hashed as well.
        let hasher = RandomState::new();
        let half = |index: u64| u128::from(hasher.hash_one((index, std::process::id(), SystemTime::now())));
        Self::new(half(0) << 64 | half(1))
    }

    /// Returns the next `n` child sequences. The random streams of all descendants are independent.
    pub fn spawn(&mut self, n: usize) -> Vec<Self> {
        let first = self.children;
        self.children += n as u64;
        (first..self.children)
            .map(|child| {
                let mut key = self.spawn_key.clone();
                key.extend(u32_words(child.into()));
                Self::from_parts(&self.entropy, &key, 0)
            })
            .collect()
    }

    /// Returns the generator for the next child sequence, equal to
    /// `np.random.PCG64(sequence.spawn(1)[0])`. Does not allocate memory.
    ///
    /// ```
    /// use rlox_core::{Pcg64, SeedSequence};
    ///
    /// let (mut one, mut other) = (SeedSequence::new(42), SeedSequence::new(42));
    /// assert_eq!(one.spawn_rng(), Pcg64::from_seed_sequence(&other.spawn(1)[0]));
    /// ```
    pub fn spawn_rng(&mut self) -> Pcg64 {
        let key = self.spawn_key.iter().copied().chain(u32_words(self.children.into()));
        self.children += 1;
        Pcg64::from_pool(mix_entropy(&self.entropy, key))
    }

    /// Fills `out` with seed words, as `generate_state(len, np.uint32)` returns them.
    pub fn generate_state_u32(&self, out: &mut [u32]) {
        let mut hash = Hash::output();
        for (word, &source) in out.iter_mut().zip(self.pool.iter().cycle()) {
            *word = hash.next(source);
        }
    }

    /// Fills `out` with seed words, as `generate_state(len, np.uint64)` returns them.
    pub fn generate_state_u64(&self, out: &mut [u64]) {
        generate_u64(self.pool, out);
    }

    /// Returns the 32-bit words of the seed, the lowest word first.
    pub fn entropy(&self) -> &[u32] {
        &self.entropy
    }

    /// Returns the path from the root to this sequence as 32-bit words, which is empty for the root.
    pub fn spawn_key(&self) -> &[u32] {
        &self.spawn_key
    }

    /// Returns the number of children spawned so far.
    pub fn n_children_spawned(&self) -> u64 {
        self.children
    }
}

/// Hash function of `SeedSequence`. It scrambles each word with a constant that changes with every
/// word.
pub(super) struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn mixing() -> Self {
        Self { constant: 0x43b0_d7e5, multiplier: 0x931e_8875 }
    }

    fn output() -> Self {
        Self { constant: 0x8b51_f9dd, multiplier: 0x58f3_8ded }
    }

    fn next(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        fold(word.wrapping_mul(self.constant))
    }
}

fn fold(word: u32) -> u32 {
    word ^ (word >> 16)
}

fn mix(x: u32, y: u32) -> u32 {
    fold(x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715)))
}

/// Returns the 32-bit words of an integer, the lowest word first. Returns at least one word.
fn u32_words(value: u128) -> impl Iterator<Item = u32> + Clone {
    let count = (u128::BITS - value.leading_zeros()).div_ceil(32).max(1);
    (0..count).map(move |i| (value >> (32 * i)) as u32)
}

pub(super) fn generate_u64([a, b, c, d]: [u32; POOL], out: &mut [u64]) {
    let mut hash = Hash::output();
    for (word, &[low, high]) in out.iter_mut().zip([[a, b], [c, d]].iter().cycle()) {
        let low = u64::from(hash.next(low));
        *word = low | u64::from(hash.next(high)) << 32;
    }
}

fn mix_entropy(entropy: &[u32], spawn_key: impl Iterator<Item = u32> + Clone) -> [u32; POOL] {
    // A short seed is padded with zeros before the spawn key, so that no child equals the sequence
    // for a longer seed.
    let padding = if spawn_key.clone().next().is_none() { 0 } else { POOL.saturating_sub(entropy.len()) };
    let mut source = entropy.iter().copied().chain(std::iter::repeat_n(0, padding)).chain(spawn_key);
    let (mut pool, mut hash) = stir(&mut source);
    absorb(&mut pool, &mut hash, source);
    pool
}

/// Mixes the first [`POOL`] words of a source into an empty entropy pool.
pub(super) fn stir(source: &mut impl Iterator<Item = u32>) -> ([u32; POOL], Hash) {
    let mut hash = Hash::mixing();
    let mut pool = [0; POOL].map(|_: u32| hash.next(source.next().unwrap_or(0)));
    for from in 0..POOL {
        for to in (0..POOL).filter(|&to| to != from) {
            pool[to] = mix(pool[to], hash.next(pool[from]));
        }
    }
    (pool, hash)
}

/// Mixes further words into the entropy pool.
pub(super) fn absorb(pool: &mut [u32; POOL], hash: &mut Hash, source: impl Iterator<Item = u32>) {
    for word in source {
        for slot in &mut *pool {
            *slot = mix(*slot, hash.next(word));
        }
    }
}
