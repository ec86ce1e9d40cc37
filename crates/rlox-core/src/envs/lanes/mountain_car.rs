//! `MountainCar-v0` as lanes.

use super::{Columns, Lanes, LanesOut};
use crate::envs::mountain_car::{MountainCar, advance};
use crate::simd::{BLOCK, Block, LANES, multiversion, trig, vectors, vectors_mut};

impl Lanes<2, 2> for MountainCar {
    type Scratch = Columns<2>;

    const FROM: usize = 8;
    const SHARE: usize = 2_048;

    type Number = i64;

    fn columns(&self) -> [f64; 2] {
        self.state
    }

    fn set_columns(&mut self, columns: [f64; 2]) {
        self.state = columns;
    }

    fn step_block(
        &self,
        state: &mut [Block; 2],
        actions: &[i64; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, 2>,
    ) {
        let ([position, velocity], count) = (state, out.count);
        let Columns([slope, cos]) = scratch;
        for (slope, position) in slope.iter_mut().zip(&*position) {
            *slope = 3.0 * position;
        }
        trig::cos(slope, count, cos);
        step(count, position, velocity, actions, cos, self.goal_velocity, out.obs, out.terminated);
        *out.reward = [-1.0; BLOCK];
    }
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "only as arguments are columns known not to overlap")]
    fn step(
        count: usize,
        position: &mut Block,
        velocity: &mut Block,
        actions: &[i64; BLOCK],
        cos: &Block,
        goal_velocity: f64,
        obs: &mut [[f32; 2]; BLOCK],
        terminated: &mut [bool; BLOCK],
    ) {
        let state = vectors_mut(position).zip(vectors_mut(velocity)).zip(vectors(actions).zip(vectors(cos)));
        let all = state.zip(vectors_mut(obs).zip(vectors_mut(terminated))).take(count.div_ceil(LANES));
        for (((position, velocity), (action, cos)), (obs, terminated)) in all {
            for i in 0..LANES {
                let (next, reached) = advance([position[i], velocity[i]], cos[i], action[i], goal_velocity);
                [position[i], velocity[i]] = next;
                obs[i] = next.map(|s| s as f32);
                terminated[i] = reached;
            }
        }
    }
}
