//! Which episodes are stored from their first step to their last.

use std::collections::VecDeque;
use std::ops::Range;

use crate::{Error, Pcg64, Result, memory};

/// The first time steps of episodes that have ended and of which every step was pushed, by environment: found as steps
/// are pushed, so that nobody has to search the ring for them.
#[derive(Clone, Debug)]
pub(crate) struct Episodes {
    /// The time step with which each environment's last episode began; 0 if that is not known, when 0 is not stored.
    began: Vec<usize>,
    /// In rising order. Those that are not stored any more leave as new ones come.
    whole: Vec<VecDeque<usize>>,
}

impl Episodes {
    pub(super) fn new(num_envs: usize) -> Result<Self> {
        let began = memory::zeroed("num_envs", num_envs)?;
        let mut whole = memory::reserved("num_envs", num_envs)?;
        whole.resize_with(num_envs, VecDeque::new);
        Ok(Self { began, whole })
    }

    /// Makes room for so many more of an environment.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none; nothing has changed then.
    pub(super) fn reserve(&mut self, env: usize, more: usize) -> Result<()> {
        let starts = &mut self.whole[env];
        starts.try_reserve(more).map_err(|_| memory::refused("capacity", starts.len() + more, size_of::<usize>()))
    }

    /// Takes notice of an environment's time step, where `oldest` is the first that is stored: whether it is the first of
    /// an episode, and the last.
    pub(super) fn stepped(&mut self, env: usize, step: usize, oldest: usize, (first, last): (bool, bool)) {
        if first {
            self.began[env] = step;
        }
        if !last {
            return;
        }
        let starts = &mut self.whole[env];
        while starts.front().is_some_and(|start| *start < oldest) {
            starts.pop_front();
        }
        if self.began[env] >= oldest {
            starts.push_back(self.began[env]);
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.began.fill(0);
        self.whole.iter_mut().for_each(VecDeque::clear);
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.whole.iter().map(|starts| starts.capacity() * size_of::<usize>()).sum()
    }

    /// Draws first transitions of whole episodes, each as likely as another, of those that `held` transitions are.
    /// `counts` is memory.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none, [`Error::Memory`] if there is no room. Nothing is drawn then.
    pub(super) fn draw(
        &self,
        held: &Range<usize>,
        rng: &mut Pcg64,
        counts: &mut Vec<usize>,
        drawn: &mut [usize],
    ) -> Result<()> {
        let n = self.whole.len();
        let oldest = held.start / n;
        counts.clear();
        memory::grow("num_envs", counts, n)?;
        let mut total = 0;
        for starts in &self.whole {
            total += starts.len() - starts.partition_point(|start| *start < oldest);
            counts.push(total);
        }
        if total == 0 {
            let fix = "push more, or sample parts of episodes";
            return Err(Error::config("whole", "an episode that is stored from start to end", "none", fix));
        }
        super::buffer::draw(&(0..total), rng, drawn);
        for drawn in drawn {
            let env = counts.partition_point(|count| *count <= *drawn);
            // Counted from the newest one back: the first ones may not be stored any more.
            let starts = &self.whole[env];
            *drawn = starts[starts.len() - (counts[env] - *drawn)] * n + env;
        }
        Ok(())
    }
}
