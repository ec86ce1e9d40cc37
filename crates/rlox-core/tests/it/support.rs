//! A simulated environment with stacked frames, and functions that push its steps.

use rlox_core::replay::{FieldSpec, TransitionBatch, TransitionSchema};
use rlox_core::{
    Pcg64, Result,
    field::{DType, FieldData},
};

/// Number of bytes of a frame.
pub(crate) const FRAME: usize = 3;

/// A transition that a test has pushed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pushed {
    pub(crate) obs: Vec<u8>,
    pub(crate) next_obs: Vec<u8>,
    pub(crate) action: i64,
    pub(crate) reward: f32,
    pub(crate) terminated: bool,
    pub(crate) truncated: bool,
}

/// An environment whose observations are stacks of the last frames.
#[derive(Clone)]
pub(crate) struct Stacking {
    rng: Pcg64,
    pub(crate) stack: Vec<u8>,
    frames: usize,
}

impl Stacking {
    pub(crate) fn new(seed: u128, frames: usize) -> Self {
        let mut new = Self { rng: Pcg64::seed_from(seed), stack: Vec::new(), frames };
        new.reset();
        new
    }

    fn draw(&mut self, count: i64) -> i64 {
        self.rng.integers(0, count)
    }

    /// Returns one of four different frames at random, so that some frames are equal.
    fn frame(&mut self) -> Vec<u8> {
        let shade = self.draw(4) as u8;
        vec![shade; FRAME]
    }

    /// Fills the stack with copies of one frame, or sometimes with independent frames.
    pub(crate) fn reset(&mut self) {
        let first = self.frame();
        self.stack = if self.draw(4) == 0 {
            (0..self.frames).flat_map(|_| self.frame()).collect()
        } else {
            first.repeat(self.frames)
        };
    }

    /// Makes a step. Sometimes the next observation is not the last one shifted by a frame.
    ///
    /// Sometimes the next transition starts with another observation than the returned `next_obs`.
    pub(crate) fn step(&mut self) -> Pushed {
        let obs = self.stack.clone();
        let frame = self.frame();
        let mut next_obs = [&obs[FRAME..], &frame].concat();
        if self.draw(10) == 0 {
            next_obs = (0..self.frames).flat_map(|_| self.frame()).collect();
        }
        let (terminated, truncated) = (self.draw(6) == 0, self.draw(8) == 0);
        self.stack.clone_from(&next_obs);
        if terminated || truncated || self.draw(12) == 0 {
            self.reset();
        }
        let (action, reward) = (self.draw(1000), self.draw(50) as f32);
        Pushed { obs, next_obs, action, reward, terminated, truncated }
    }
}

/// Passes rows to `push` as a batch. If `promised` is true, the batch has no next observations.
pub(crate) fn push_with(rows: &[Pushed], promised: bool, push: impl FnOnce(&TransitionBatch<'_>) -> Result<()>) {
    let all = |f: fn(&Pushed) -> &Vec<u8>| rows.iter().flat_map(|row| f(row).clone()).collect::<Vec<_>>();
    let (obs, next_obs) = (all(|row| &row.obs), all(|row| &row.next_obs));
    let actions: Vec<_> = rows.iter().map(|row| row.action).collect();
    let rewards: Vec<_> = rows.iter().map(|row| row.reward).collect();
    let terminated: Vec<_> = rows.iter().map(|row| row.terminated).collect();
    let truncated: Vec<_> = rows.iter().map(|row| row.truncated).collect();
    let (obs, next_obs) = ([FieldData::U8(&obs)], [FieldData::U8(&next_obs)]);
    push(&TransitionBatch {
        obs: &obs,
        actions: FieldData::I64(&actions),
        rewards: &rewards,
        terminated: &terminated,
        truncated: &truncated,
        next_obs: (!promised).then_some(&next_obs),
        extra: &[],
    })
    .unwrap();
}

pub(crate) fn layout(frames: usize) -> TransitionSchema {
    let obs = FieldSpec::new("obs", &[frames, FRAME], DType::U8);
    TransitionSchema { frame_stack: frames, ..TransitionSchema::new(obs, FieldSpec::new("actions", &[], DType::I64)) }
}
