//! How `numpy.random.SeedSequence` mixes words.

pub(super) const POOL: usize = 4;

/// The hash of `SeedSequence`: each word is scrambled with a multiplier that itself moves on.
pub(super) struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn mixing() -> Self {
        Self { constant: 0x43b0_d7e5, multiplier: 0x931e_8875 }
    }

    pub(super) fn output() -> Self {
        Self { constant: 0x8b51_f9dd, multiplier: 0x58f3_8ded }
    }

    pub(super) fn next(&mut self, word: u32) -> u32 {
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

/// The 32-bit words of an integer, lowest first, at least one.
pub(super) fn words(value: u128) -> impl Iterator<Item = u32> + Clone {
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

pub(super) fn mix_entropy(entropy: &[u32], spawn_key: impl Iterator<Item = u32> + Clone) -> [u32; POOL] {
    // A short seed is padded before a spawn key, so that no child equals a longer seed.
    let padding = if spawn_key.clone().next().is_none() { 0 } else { POOL.saturating_sub(entropy.len()) };
    let mut source = entropy.iter().copied().chain(std::iter::repeat_n(0, padding)).chain(spawn_key);
    let (mut pool, mut hash) = stir(&mut source);
    absorb(&mut pool, &mut hash, source);
    pool
}

/// What the first words of a source make of an empty pool.
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

/// Takes in the words that follow.
pub(super) fn absorb(pool: &mut [u32; POOL], hash: &mut Hash, source: impl Iterator<Item = u32>) {
    for word in source {
        for slot in &mut *pool {
            *slot = mix(*slot, hash.next(word));
        }
    }
}
