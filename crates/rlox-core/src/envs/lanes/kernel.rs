//! What an environment adds to step as lanes: its state as columns, and one step of a block of environments.

use crate::simd::{BLOCK, Block};
use crate::{Actions, Env};

/// An environment that steps a block of its kind at once. `K` numbers are its state, `D` its observation.
pub trait Lanes<const K: usize, const D: usize>: Env + Clone {
    /// `i64` for Discrete, `f32` for Box action spaces of one number.
    type Number: Number;

    /// What a step works with, made once so that steps need not clear it.
    type Scratch: Default + Send;

    /// From how many environments on lanes are at least as fast as copies, on every instruction set.
    const FROM: usize;

    /// How many environments a thread of its own pays off for: some 20 us of work a step.
    const SHARE: usize;

    /// Whether environments with these arguments can be stepped as lanes.
    fn has_lanes(&self) -> bool {
        true
    }

    /// The state, one number a column.
    fn columns(&self) -> [f64; K];

    /// Puts back what [`Lanes::columns`] gave.
    fn set_columns(&mut self, columns: [f64; K]);

    /// Steps the first `out.count` environments: [`Env::step`], bit for bit, of an environment with `self`'s arguments
    /// and that column's state. It may write whatever it
    /// likes behind them, to places of the same vector of [`crate::simd::LANES`]. The environment truncates nothing itself
    /// and draws no random numbers.
    fn step_block(
        &self,
        state: &mut [Block; K],
        actions: &[Self::Number; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, D>,
    );
}

/// So many columns to work with.
#[derive(Debug)]
pub struct Columns<const N: usize>(pub [Block; N]);

impl<const N: usize> Default for Columns<N> {
    fn default() -> Self {
        Self([[0.0; BLOCK]; N])
    }
}

/// Where the step of a block writes to.
#[derive(Debug)]
pub struct LanesOut<'a, const D: usize> {
    /// How many environments of the block there are.
    pub count: usize,
    /// The observations.
    pub obs: &'a mut [[f32; D]; BLOCK],
    /// The rewards.
    pub reward: &'a mut Block,
    /// The task itself ended.
    pub terminated: &'a mut [bool; BLOCK],
}

/// The numbers that actions are made of.
pub trait Number: Copy + Default + Send + Sync {
    /// The actions, if they are of this kind; none otherwise.
    fn of(actions: Actions<'_>) -> &[Self];
}

impl Number for i64 {
    fn of(actions: Actions<'_>) -> &[Self] {
        if let Actions::Discrete(actions) = actions { actions } else { &[] }
    }
}

impl Number for f32 {
    fn of(actions: Actions<'_>) -> &[Self] {
        if let Actions::Continuous(actions) = actions { actions } else { &[] }
    }
}
