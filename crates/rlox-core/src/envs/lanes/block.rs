//! A block of environments: their states and counters, the rows a step writes, and the counting after each step.

use crate::simd::{BLOCK, Bits, Block, LANES, lane_bits, multiversion, vectors, vectors_mut};

/// What [`BLOCK`] environments remember. Places without an environment hold zeros.
#[derive(Clone, Debug)]
pub(super) struct LanesBlock<const K: usize, const D: usize> {
    pub(super) state: [Block; K],
    /// The rewards of the episode so far.
    pub(super) returns: Block,
    /// The time of the reset.
    pub(super) start: [u32; BLOCK],
    pub(super) last_obs: [[f32; D]; BLOCK],
}

impl<const K: usize, const D: usize> Default for LanesBlock<K, D> {
    fn default() -> Self {
        Self { state: [[0.0; BLOCK]; K], returns: [0.0; BLOCK], start: [0; BLOCK], last_obs: [[0.0; D]; BLOCK] }
    }
}

impl<const K: usize, const D: usize> LanesBlock<K, D> {
    /// Starts an episode with `state` at the time `now`.
    pub(super) fn put(&mut self, lane: usize, state: [f64; K], now: u32) {
        for (column, value) in self.state.iter_mut().zip(state) {
            column[lane] = value;
        }
        (self.returns[lane], self.start[lane]) = (0.0, now);
    }

    /// The state of one environment.
    pub(super) fn columns(&self, lane: usize) -> [f64; K] {
        std::array::from_fn(|column| self.state[column][lane])
    }

    /// Zeroes what a step of the first `count` environments has written behind them, lest it wander off to where steps
    /// are slow.
    pub(super) fn clear_behind(&mut self, count: usize) {
        for column in &mut self.state {
            column[count..count.next_multiple_of(LANES)].fill(0.0);
        }
    }
}

/// What a step writes about a block.
#[derive(Debug)]
pub(super) struct Rows<'a, const D: usize> {
    pub(super) obs: &'a mut [[f32; D]; BLOCK],
    pub(super) reward: &'a mut Block,
    pub(super) terminated: &'a mut [bool; BLOCK],
    pub(super) truncated: &'a mut [bool; BLOCK],
}

/// Where the last block reads from and writes to if it is not full.
#[derive(Debug)]
pub(super) struct Edge<N, const D: usize> {
    pub(super) actions: [N; BLOCK],
    pub(super) obs: [[f32; D]; BLOCK],
    pub(super) reward: Block,
    pub(super) terminated: [bool; BLOCK],
    pub(super) truncated: [bool; BLOCK],
}

impl<N: Copy + Default, const D: usize> Default for Edge<N, D> {
    fn default() -> Self {
        Self {
            actions: [N::default(); BLOCK],
            obs: [[0.0; D]; BLOCK],
            reward: [0.0; BLOCK],
            terminated: [false; BLOCK],
            truncated: [false; BLOCK],
        }
    }
}

/// Adds the rewards to the returns, truncates episodes of `limit` steps, if there is one, and gives the environments
/// whose episode ended.
pub(super) fn tally<const K: usize, const D: usize>(
    block: &mut LanesBlock<K, D>,
    count: usize,
    (now, limit): (u32, Option<u32>),
    rows: &mut Rows<'_, D>,
) -> Bits {
    let mut ended = [false; BLOCK];
    count_block(
        &mut block.returns,
        rows.reward,
        &block.start,
        now,
        limit,
        count,
        rows.terminated,
        rows.truncated,
        &mut ended,
    );
    lane_bits(&ended, count)
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "columns of one table")]
    fn count_block(
        returns: &mut Block,
        reward: &Block,
        start: &[u32; BLOCK],
        now: u32,
        limit: Option<u32>,
        count: usize,
        terminated: &[bool; BLOCK],
        truncated: &mut [bool; BLOCK],
        ended: &mut [bool; BLOCK],
    ) {
        let (limited, limit) = (limit.is_some(), limit.unwrap_or(0));
        let counted = vectors_mut(returns).zip(vectors(reward)).zip(vectors(start));
        let flags = vectors(terminated).zip(vectors_mut(truncated)).zip(vectors_mut(ended));
        let all = counted.zip(flags).take(count.div_ceil(LANES));
        for (((returns, reward), start), ((terminated, truncated), ended)) in all {
            for i in 0..LANES {
                returns[i] += reward[i];
                truncated[i] = limited & (now.wrapping_sub(start[i]) >= limit);
                ended[i] = terminated[i] | truncated[i];
            }
        }
    }
}
