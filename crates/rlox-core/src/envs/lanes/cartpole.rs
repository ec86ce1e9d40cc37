//! `CartPole-v1` as lanes.

use super::{Columns, Lanes, LanesOut};
use crate::envs::cartpole::{CartPole, dynamics, force, has_fallen};
use crate::simd::{BLOCK, Block, LANES, multiversion, trig, vectors, vectors_mut};

impl Lanes<4, 4> for CartPole {
    type Scratch = Columns<2>;

    const FROM: usize = 8;
    const SHARE: usize = 2_048;

    type Number = i64;

    fn columns(&self) -> [f64; 4] {
        self.state
    }

    fn set_columns(&mut self, columns: [f64; 4]) {
        self.state = columns;
    }

    fn step_block(
        &self,
        state: &mut [Block; 4],
        actions: &[i64; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, 4>,
    ) {
        let Columns([sin, cos]) = scratch;
        trig::sin_cos_near_zero(&state[2], out.count, sin, cos);
        let [x, x_dot, theta, theta_dot] = state;
        let LanesOut { count, obs, reward, terminated } = out;
        let rewards = [self.reward(false), self.reward(true)];
        step(count, x, x_dot, theta, theta_dot, actions, sin, cos, rewards, obs, reward, terminated);
    }
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "only as arguments are columns known not to overlap")]
    fn step(
        count: usize,
        x: &mut Block,
        x_dot: &mut Block,
        theta: &mut Block,
        theta_dot: &mut Block,
        actions: &[i64; BLOCK],
        sin: &Block,
        cos: &Block,
        rewards: [f64; 2],
        obs: &mut [[f32; 4]; BLOCK],
        reward: &mut Block,
        terminated: &mut [bool; BLOCK],
    ) {
        let state = vectors_mut(x).zip(vectors_mut(x_dot)).zip(vectors_mut(theta).zip(vectors_mut(theta_dot)));
        let input = vectors(actions).zip(vectors(sin).zip(vectors(cos)));
        let output = vectors_mut(obs).zip(vectors_mut(reward).zip(vectors_mut(terminated)));
        let all = state.zip(input).zip(output).take(count.div_ceil(LANES));
        for ((((x, x_dot), (theta, theta_dot)), (action, (sin, cos))), (obs, (reward, terminated))) in all {
            for i in 0..LANES {
                let next = dynamics([x[i], x_dot[i], theta[i], theta_dot[i]], force(action[i]), sin[i], cos[i]);
                [x[i], x_dot[i], theta[i], theta_dot[i]] = next;
                obs[i] = next.map(|s| s as f32);
                terminated[i] = has_fallen(next);
                reward[i] = if terminated[i] { rewards[1] } else { rewards[0] };
            }
        }
    }
}
