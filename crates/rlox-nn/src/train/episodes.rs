//! The episodes that a trainer's environments have finished.

use std::collections::VecDeque;

use rlox_core::VectorEnv;

/// Episodes whose mean is reported.
pub(super) const RECENT: usize = 100;

/// The newest of them, and how many there were.
#[derive(Debug)]
pub(super) struct Episodes {
    /// Returns and lengths, oldest first.
    pub(super) recent: VecDeque<(f64, u32)>,
    pub(super) total: u64,
    /// Their means; NaN before the first.
    pub(super) mean_return: f64,
    pub(super) mean_length: f64,
    /// How many the environments had counted when they were last asked.
    known: u64,
    drained: (Vec<f64>, Vec<u32>),
}

impl Episodes {
    /// So many, the newest of which are `recent`.
    pub(super) fn new(total: u64, mut recent: VecDeque<(f64, u32)>) -> Self {
        recent.reserve(RECENT.saturating_sub(recent.len()));
        let (known, drained) = (0, Default::default());
        let mut made = Self { recent, total, mean_return: f64::NAN, mean_length: f64::NAN, known, drained };
        made.average();
        made
    }

    /// Drops those that the environments tell of: they are not this trainer's.
    pub(super) fn forget(&mut self, env: &mut dyn VectorEnv) {
        self.drain(env);
    }

    /// Takes in those that were finished since the last time.
    pub(super) fn update(&mut self, env: &mut dyn VectorEnv) {
        let new = self.drain(env);
        let (returns, lengths) = std::mem::take(&mut self.drained);
        self.take(new, &returns, &lengths);
        self.drained = (returns, lengths);
    }

    /// Takes in so many, of which the newest are told, oldest first.
    pub(super) fn take(&mut self, new: u64, returns: &[f64], lengths: &[u32]) {
        if new == 0 {
            return;
        }
        self.total += new;
        for episode in returns.iter().copied().zip(lengths.iter().copied()) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(episode);
        }
        self.average();
    }

    fn average(&mut self) {
        let mean = |of: &dyn Fn(&(f64, u32)) -> f64| self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64;
        (self.mean_return, self.mean_length) = (mean(&|episode| episode.0), mean(&|episode| f64::from(episode.1)));
    }

    /// Puts them into `drained`, in the place of what is there; says how many there were.
    fn drain(&mut self, env: &mut dyn VectorEnv) -> u64 {
        let (returns, lengths) = &mut self.drained;
        returns.clear();
        lengths.clear();
        let log = env.episodes();
        let new = log.total() - self.known;
        self.known = log.total();
        log.drain(returns, lengths);
        new
    }
}
