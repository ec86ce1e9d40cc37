//! `MountainCarContinuous-v0` as lanes: steps after the first of an episode, which are f32, all at once.

use super::{Columns, Lanes, LanesOut};
use crate::envs::mountain_car_continuous::{Car, MountainCarContinuous, advance, advance_reset, reward, slope};
use crate::simd::{BLOCK, Block, LANES, lane_bits, multiversion, trig, vectors, vectors_mut};

/// Position, velocity, and 1 where they are f32 since a step has been taken, else 0.
impl Lanes<3, 2> for MountainCarContinuous {
    type Scratch = Columns<2>;

    const FROM: usize = 8;
    const SHARE: usize = 2_048;

    type Number = f32;

    fn columns(&self) -> [f64; 3] {
        match self.car {
            Car::Reset([position, velocity]) => [position, velocity, 0.0],
            Car::Stepped([position, velocity]) => [f64::from(position), f64::from(velocity), 1.0],
        }
    }

    fn set_columns(&mut self, [position, velocity, stepped]: [f64; 3]) {
        self.car = if stepped == 0.0 {
            Car::Reset([position, velocity])
        } else {
            Car::Stepped([position as f32, velocity as f32])
        };
    }

    fn step_block(
        &self,
        state: &mut [Block; 3],
        actions: &[f32; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, 2>,
    ) {
        let ([position, velocity, stepped], LanesOut { count, obs, reward: rewards, terminated }) = (state, out);
        let Columns([angle, cos]) = scratch;
        for (angle, position) in angle.iter_mut().zip(&*position) {
            *angle = slope(*position as f32);
        }
        trig::cos(angle, count, cos);
        let fresh = lane_bits(&stepped.map(|stepped| stepped == 0.0), count);
        let goal_velocity = self.goal_velocity;
        step(count, position, velocity, stepped, actions, cos, goal_velocity, obs, rewards, terminated);
        for i in fresh {
            let (next, reached) = advance_reset([position[i], velocity[i]], actions[i], goal_velocity);
            [position[i], velocity[i]] = next.map(f64::from);
            (obs[i], rewards[i], terminated[i], stepped[i]) = (next, reward(actions[i], reached), reached, 1.0);
        }
    }
}

multiversion! {
    /// Steps the cars that have stepped before, and leaves the state of the others alone.
    #[expect(clippy::too_many_arguments, reason = "only as arguments are columns known not to overlap")]
    fn step(
        count: usize,
        position: &mut Block,
        velocity: &mut Block,
        stepped: &Block,
        actions: &[f32; BLOCK],
        cos: &Block,
        goal_velocity: f64,
        obs: &mut [[f32; 2]; BLOCK],
        rewards: &mut Block,
        terminated: &mut [bool; BLOCK],
    ) {
        let state = vectors_mut(position).zip(vectors_mut(velocity)).zip(vectors(stepped));
        let input = vectors(actions).zip(vectors(cos));
        let output = vectors_mut(obs).zip(vectors_mut(rewards).zip(vectors_mut(terminated)));
        let all = state.zip(input).zip(output).take(count.div_ceil(LANES));
        for ((((position, velocity), stepped), (action, cos)), (obs, (rewards, terminated))) in all {
            for i in 0..LANES {
                let now = [position[i] as f32, velocity[i] as f32];
                let (next, reached) = advance(now, cos[i], action[i], goal_velocity);
                position[i] = if stepped[i] == 0.0 { position[i] } else { f64::from(next[0]) };
                velocity[i] = if stepped[i] == 0.0 { velocity[i] } else { f64::from(next[1]) };
                obs[i] = next;
                terminated[i] = reached;
                rewards[i] = reward(action[i], reached);
            }
        }
    }
}
