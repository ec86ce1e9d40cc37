//! `Pendulum-v1` as lanes.

use std::f64::consts::PI;

use super::{Columns, Lanes, LanesOut};
use crate::envs::pendulum::{Pendulum, advance, clip, reward, wrap};
use crate::simd::rounding::{Rounded, each_lane, lanes_pay, mend};
use crate::simd::{BLOCK, Block, LANES, multiversion, power, trig, vectors, vectors_mut};

/// Angle, angular velocity, last torque, and the sine of the angle, which an observation needs and the next step too.
impl Lanes<4, 3> for Pendulum {
    type Scratch = Columns<4>;

    const FROM: usize = 4;
    const SHARE: usize = 1_024;

    type Number = f32;

    fn columns(&self) -> [f64; 4] {
        [self.theta, self.theta_dot, self.last_torque, self.theta.sin()]
    }

    fn set_columns(&mut self, columns: [f64; 4]) {
        [self.theta, self.theta_dot, self.last_torque, _] = columns;
    }

    fn step_block(
        &self,
        state: &mut [Block; 4],
        actions: &[f32; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, 3>,
    ) {
        let ([theta, theta_dot, last_torque, sin], count) = (state, out.count);
        let Columns([angle, cos, angle_squared, speed_squared]) = scratch;
        let (mut torque, mut torque_squared) = ([0.0; BLOCK], [0.0; BLOCK]);
        wrap_all(theta, count, angle);
        clip_block(actions, &mut torque);
        power::square(angle, count, angle_squared);
        power::square(theta_dot, count, speed_squared);
        power::square_f32(&torque, count, &mut torque_squared);
        reward_block(count, angle_squared, speed_squared, &torque_squared, out.reward);
        advance_block(count, self.g, &torque, sin, theta, theta_dot, last_torque);
        trig::sin_cos(theta, count, sin, cos);
        observe_block(count, cos, sin, theta_dot, out.obs);
        *out.terminated = [false; BLOCK];
    }
}

/// Writes the angles of the first `count` pendulums in `[-pi, pi]`.
fn wrap_all(theta: &Block, count: usize, angle: &mut Block) {
    let mut fails = [true; BLOCK];
    if lanes_pay() {
        wrap_block(theta, count, angle, &mut fails);
    }
    mend(theta, count, angle, &fails, wrap);
}

multiversion! {
    fn wrap_block(theta: &Block, count: usize, angle: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(theta, count, angle, fails, |theta| {
            const TURN: f64 = 2.0 * PI;
            const MARGIN: f64 = 1e-6;
            let x = theta + PI;
            // Away from whole turns the rounded quotient has the right floor; then one rounding of the difference gives
            // what the exact remainder does, which for x < 0 gets its one rounding from the addition of a turn.
            let rest = (-(x / TURN).floor()).mul_add(TURN, x);
            let in_range = x.abs() < 1e5 && rest > MARGIN && rest < TURN - MARGIN;
            Rounded { value: rest - PI, fails: !in_range }
        });
    }
}

multiversion! {
    fn clip_block(actions: &[f32; BLOCK], torque: &mut [f32; BLOCK]) {
        for (torque, action) in torque.iter_mut().zip(actions) {
            *torque = clip(*action);
        }
    }
}

multiversion! {
    fn reward_block(
        count: usize,
        angle_squared: &Block,
        speed_squared: &Block,
        torque_squared: &[f32; BLOCK],
        rewards: &mut Block,
    ) {
        let squares = vectors(angle_squared).zip(vectors(speed_squared)).zip(vectors(torque_squared));
        for (((angle, speed), torque), rewards) in squares.zip(vectors_mut(rewards)).take(count.div_ceil(LANES)) {
            for i in 0..LANES {
                rewards[i] = reward(angle[i], speed[i], torque[i]);
            }
        }
    }
}

multiversion! {
    fn advance_block(
        count: usize,
        g: f64,
        torque: &[f32; BLOCK],
        sin: &Block,
        theta: &mut Block,
        theta_dot: &mut Block,
        last_torque: &mut Block,
    ) {
        let state = vectors_mut(theta).zip(vectors_mut(theta_dot)).zip(vectors_mut(last_torque));
        let all = state.zip(vectors(torque).zip(vectors(sin))).take(count.div_ceil(LANES));
        for (((theta, theta_dot), last_torque), (torque, sin)) in all {
            for i in 0..LANES {
                (theta[i], theta_dot[i]) = advance(theta[i], theta_dot[i], torque[i], sin[i], g);
                last_torque[i] = f64::from(torque[i]);
            }
        }
    }
}

multiversion! {
    fn observe_block(count: usize, cos: &Block, sin: &Block, theta_dot: &Block, obs: &mut [[f32; 3]; BLOCK]) {
        let state = vectors(cos).zip(vectors(sin)).zip(vectors(theta_dot));
        for (((cos, sin), theta_dot), obs) in state.zip(vectors_mut(obs)).take(count.div_ceil(LANES)) {
            for i in 0..LANES {
                obs[i] = [cos[i] as f32, sin[i] as f32, theta_dot[i] as f32];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pcg64;
    use crate::simd::tests::on_each_isa;

    #[test]
    fn angles_next_to_whole_turns_are_wrapped_alike() {
        let mut rng = Pcg64::seed_from(0);
        let turns = (-2000..2000).map(|k| f64::from(k) * PI).flat_map(|x| [x.next_down(), x, x.next_up(), x + 1e-7]);
        let strange = [f64::NAN, f64::INFINITY, -f64::MAX, 1e5, -1e19, 1e-310, -0.0];
        let mut theta: Vec<f64> = turns.chain(strange).collect();
        theta.extend((0..20_000).map(|_| rng.uniform(-100.0, 100.0)));
        theta.resize(theta.len().next_multiple_of(BLOCK), 0.0);
        let wrong = on_each_isa(|| {
            let mut angle = [0.0; BLOCK];
            let mut differ = |theta: &Block| {
                wrap_all(theta, BLOCK, &mut angle);
                (0..BLOCK).filter(|&i| angle[i].to_bits() != wrap(theta[i]).to_bits() && !angle[i].is_nan()).count()
            };
            theta.as_chunks().0.iter().map(&mut differ).sum::<usize>()
        });
        assert!(wrong.iter().all(|&n| n == 0), "{wrong:?} differ");
    }
}
