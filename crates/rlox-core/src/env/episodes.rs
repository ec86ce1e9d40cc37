//! Log of the returns and lengths of finished episodes.

use crate::{Result, alloc};

/// Ring buffer of the 16,384 newest finished episodes, oldest first.
///
/// An episode is stored as its return, the sum of its rewards, and its length in steps.
///
/// ```
/// let mut log = rlox_core::EpisodeLog::default();
/// log.push(21.0, 21);
/// let (mut returns, mut lengths) = (Vec::new(), Vec::new());
/// log.drain(&mut returns, &mut lengths);
/// assert_eq!((returns, lengths), (vec![21.0], vec![21]));
/// ```
#[derive(Debug)]
pub struct EpisodeLog {
    episodes: Vec<(f64, u32)>,
    oldest: usize,
    total: u64,
}

impl Default for EpisodeLog {
    fn default() -> Self {
        Self { episodes: Vec::with_capacity(EpisodeLog::CAPACITY), oldest: 0, total: 0 }
    }
}

impl EpisodeLog {
    /// Maximum number of stored episodes. Older episodes are dropped, so that memory use is
    /// bounded.
    pub(crate) const CAPACITY: usize = 16_384;

    /// Creates an empty log. Returns [`crate::Error::Memory`] if the allocation fails.
    pub(crate) fn with_capacity() -> Result<Self> {
        Ok(Self { episodes: alloc::with_capacity("num_envs", EpisodeLog::CAPACITY)?, oldest: 0, total: 0 })
    }

    /// Appends one finished episode: the sum of its rewards and its number of steps.
    #[inline]
    pub fn push(&mut self, episode_return: f64, length: u32) {
        self.total += 1;
        if self.episodes.len() < EpisodeLog::CAPACITY {
            self.episodes.push((episode_return, length));
        } else {
            self.episodes[self.oldest] = (episode_return, length);
            self.oldest = (self.oldest + 1) % EpisodeLog::CAPACITY;
        }
    }

    /// Adds `episodes` to the total without storing these episodes.
    pub(crate) fn discard(&mut self, episodes: u64) {
        self.total += episodes;
    }

    /// Moves all stored episodes to the end of `other`, and adds the total of this log to that of
    /// `other`.
    pub(crate) fn append_to(&mut self, other: &mut Self) {
        let (newer, older) = self.episodes.split_at(self.oldest);
        other.total += self.total - self.episodes.len() as u64;
        for (episode_return, length) in older.iter().chain(newer) {
            other.push(*episode_return, *length);
        }
        self.episodes.clear();
        (self.oldest, self.total) = (0, 0);
    }

    /// Returns the number of stored episodes, all of which [`EpisodeLog::drain`] removes.
    ///
    /// ```
    /// let mut log = rlox_core::EpisodeLog::default();
    /// log.push(21.0, 21);
    /// assert_eq!(log.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.episodes.len()
    }

    /// Returns true if the log stores no episodes.
    pub fn is_empty(&self) -> bool {
        self.episodes.is_empty()
    }

    /// Returns the number of episodes since construction, including dropped and drained episodes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Appends the returns and lengths of the stored episodes, oldest first, and empties the log.
    ///
    /// The log stores at most 16,384 episodes.
    pub fn drain(&mut self, returns: &mut Vec<f64>, lengths: &mut Vec<u32>) {
        let (newer, older) = self.episodes.split_at(self.oldest);
        for (episode_return, length) in older.iter().chain(newer) {
            returns.push(*episode_return);
            lengths.push(*length);
        }
        self.episodes.clear();
        self.oldest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_the_newest_in_order() {
        let mut log = EpisodeLog::default();
        for i in 0..EpisodeLog::CAPACITY as u32 + 3 {
            log.push(f64::from(i), i);
        }
        let (mut returns, mut lengths) = (Vec::new(), Vec::new());
        log.drain(&mut returns, &mut lengths);
        assert_eq!(
            (returns.len(), lengths[0], lengths[EpisodeLog::CAPACITY - 1]),
            (EpisodeLog::CAPACITY, 3, EpisodeLog::CAPACITY as u32 + 2)
        );
        assert!(lengths.is_sorted());
        assert_eq!(log.total(), EpisodeLog::CAPACITY as u64 + 3);
        log.drain(&mut returns, &mut lengths);
        assert_eq!((returns.len(), log.total()), (EpisodeLog::CAPACITY, EpisodeLog::CAPACITY as u64 + 3));
    }
}
