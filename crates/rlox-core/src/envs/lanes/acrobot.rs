//! `Acrobot-v1` as lanes.

use std::f64::consts::PI;

use super::{Lanes, LanesOut};
use crate::envs::acrobot::{Acrobot, Parts, accelerations, bounded, coupling, directions, is_up, weighted, wrap};
use crate::simd::rounding::{Rounded, each_lane, mend};
use crate::simd::{BLOCK, Block, LANES, multiversion, power, trig, vectors, vectors_mut};

/// The two angles, the two angular velocities, and 0 at the start of an episode, 1 after a step.
impl Lanes<5, 6> for Acrobot {
    const FROM: usize = 4;

    type Number = i64;

    fn has_lanes(&self) -> bool {
        self.torque_noise_max == 0.0
    }

    fn columns(&self) -> [f64; 5] {
        let [theta1, theta2, velocity1, velocity2] = self.state;
        [theta1, theta2, velocity1, velocity2, f64::from(u8::from(!self.at_start))]
    }

    fn set_columns(&mut self, [theta1, theta2, velocity1, velocity2, stepped]: [f64; 5]) {
        self.state = [theta1, theta2, velocity1, velocity2];
        self.at_start = stepped == 0.0;
    }

    fn step_block(&self, state: &mut [Block; 5], actions: &[i64; BLOCK], out: LanesOut<'_, 6>) {
        let [theta1, theta2, velocity1, velocity2, stepped] = state;
        let LanesOut { count, obs, reward, terminated } = out;
        let torque = actions.map(|action| (action - 1) as f64);
        let now = [*theta1, *theta2, *velocity1, *velocity2];
        let mut slopes = [[[0.0; BLOCK]; 4]; 4];
        let mut ahead = now;
        for (k, dt) in [0.0, self.dt / 2.0, self.dt / 2.0, self.dt].into_iter().enumerate() {
            if k > 0 {
                for (ahead, (now, slope)) in ahead.iter_mut().zip(now.iter().zip(&slopes[k - 1])) {
                    go_ahead(now, slope, dt, ahead);
                }
            }
            self.derivative(count, &ahead, &torque, &mut slopes[k]);
        }
        let [k1, k2, k3, k4] = &slopes;
        for (column, next) in ahead.iter_mut().enumerate() {
            weigh(&now[column], &k1[column], &k2[column], &k3[column], &k4[column], self.dt, next);
        }
        wrap_all(&ahead[0], count, theta1);
        wrap_all(&ahead[1], count, theta2);
        bound(&ahead[2], &ahead[3], velocity1, velocity2);
        observe(count, theta1, theta2, velocity1, velocity2, obs, reward, terminated);
        stepped[..count].fill(1.0);
    }
}

impl Acrobot {
    /// The time derivatives of a block of states.
    fn derivative(&self, count: usize, state: &[Block; 4], torque: &Block, slope: &mut [Block; 4]) {
        let [theta1, theta2, velocity1, velocity2] = state;
        let [mut sin, mut cos, mut across1, mut across2, mut d2] = [[0.0; BLOCK]; 5];
        let [mut velocity1_squared, mut velocity2_squared, mut d2_squared] = [[0.0; BLOCK]; 3];
        trig::sin_cos(theta2, count, &mut sin, &mut cos);
        directions_and_coupling(theta1, theta2, &cos, &mut across1, &mut across2, &mut d2);
        let (direction1, direction2) = (across1, across2);
        trig::cos(&direction1, count, &mut across1);
        trig::cos(&direction2, count, &mut across2);
        power::square(velocity1, count, &mut velocity1_squared);
        power::square(velocity2, count, &mut velocity2_squared);
        power::square(&d2, count, &mut d2_squared);
        let [slope1, slope2, acceleration1, acceleration2] = slope;
        (*slope1, *slope2) = (*velocity1, *velocity2);
        accelerate(
            count,
            self.nips,
            velocity1,
            velocity2,
            torque,
            [&sin, &cos, &across1, &across2, &velocity1_squared, &velocity2_squared, &d2_squared],
            acceleration1,
            acceleration2,
        );
    }
}

/// Writes the angles of the first `count` environments in `[-pi, pi]`.
fn wrap_all(theta: &Block, count: usize, wrapped: &mut Block) {
    let mut fails = [false; BLOCK];
    wrap_block(theta, count, wrapped, &mut fails);
    mend(theta, count, wrapped, &fails, wrap);
}

multiversion! {
    /// Angles within two turns, as nearly all are after a step.
    fn wrap_block(theta: &Block, count: usize, wrapped: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(theta, count, wrapped, fails, |theta| {
            const TURN: f64 = 2.0 * PI;
            let back = |x: f64| if x > PI { x - TURN } else { x };
            let forth = |x: f64| if x < -PI { x + TURN } else { x };
            let value = forth(forth(back(back(theta))));
            Rounded { value, fails: !(-PI..=PI).contains(&value) }
        });
    }
}

multiversion! {
    fn go_ahead(now: &Block, slope: &Block, dt: f64, ahead: &mut Block) {
        for (ahead, (now, slope)) in ahead.iter_mut().zip(now.iter().zip(slope)) {
            *ahead = now + dt * slope;
        }
    }
}

multiversion! {
    fn weigh(now: &Block, k1: &Block, k2: &Block, k3: &Block, k4: &Block, dt: f64, next: &mut Block) {
        for i in 0..BLOCK {
            next[i] = weighted(now[i], [k1[i], k2[i], k3[i], k4[i]], dt);
        }
    }
}

multiversion! {
    fn bound(free1: &Block, free2: &Block, velocity1: &mut Block, velocity2: &mut Block) {
        for i in 0..BLOCK {
            [velocity1[i], velocity2[i]] = bounded([free1[i], free2[i]]);
        }
    }
}

multiversion! {
    fn directions_and_coupling(
        theta1: &Block,
        theta2: &Block,
        cos: &Block,
        direction1: &mut Block,
        direction2: &mut Block,
        d2: &mut Block,
    ) {
        for i in 0..BLOCK {
            [direction1[i], direction2[i]] = directions(theta1[i], theta2[i]);
            d2[i] = coupling(cos[i]);
        }
    }
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "only as arguments are columns known not to overlap")]
    fn accelerate(
        count: usize,
        nips: bool,
        velocity1: &Block,
        velocity2: &Block,
        torque: &Block,
        parts: [&Block; 7],
        acceleration1: &mut Block,
        acceleration2: &mut Block,
    ) {
        let [sin, cos, across1, across2, velocity1_squared, velocity2_squared, d2_squared] = parts;
        for i in 0..count.next_multiple_of(LANES).min(BLOCK) {
            let squares = [velocity1_squared[i], velocity2_squared[i], d2_squared[i]];
            let parts = Parts { sin: sin[i], cos: cos[i], across: [across1[i], across2[i]], squares };
            [acceleration1[i], acceleration2[i]] =
                accelerations([velocity1[i], velocity2[i]], parts, torque[i], nips);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "columns of one table")]
fn observe(
    count: usize,
    theta1: &Block,
    theta2: &Block,
    velocity1: &Block,
    velocity2: &Block,
    obs: &mut [[f32; 6]; BLOCK],
    reward: &mut Block,
    terminated: &mut [bool; BLOCK],
) {
    let [mut sin1, mut cos1, mut sin2, mut cos2, mut sum, mut cos_sum] = [[0.0; BLOCK]; 6];
    for (sum, (theta1, theta2)) in sum.iter_mut().zip(theta1.iter().zip(theta2)) {
        *sum = theta2 + theta1;
    }
    trig::sin_cos(theta1, count, &mut sin1, &mut cos1);
    trig::sin_cos(theta2, count, &mut sin2, &mut cos2);
    trig::cos(&sum, count, &mut cos_sum);
    write(&cos1, &sin1, &cos2, &sin2, velocity1, velocity2, obs);
    judge(&cos1, &cos_sum, reward, terminated);
}

multiversion! {
    fn write(
        cos1: &Block,
        sin1: &Block,
        cos2: &Block,
        sin2: &Block,
        velocity1: &Block,
        velocity2: &Block,
        obs: &mut [[f32; 6]; BLOCK],
    ) {
        let angles = vectors(cos1).zip(vectors(sin1)).zip(vectors(cos2).zip(vectors(sin2)));
        let velocities = vectors(velocity1).zip(vectors(velocity2));
        for ((((cos1, sin1), (cos2, sin2)), (velocity1, velocity2)), obs) in
            angles.zip(velocities).zip(vectors_mut(obs))
        {
            for i in 0..LANES {
                obs[i] = [cos1[i], sin1[i], cos2[i], sin2[i], velocity1[i], velocity2[i]].map(|x| x as f32);
            }
        }
    }
}

multiversion! {
    fn judge(cos1: &Block, cos_sum: &Block, reward: &mut Block, terminated: &mut [bool; BLOCK]) {
        let output = vectors_mut(reward).zip(vectors_mut(terminated));
        for ((cos1, cos_sum), (reward, terminated)) in vectors(cos1).zip(vectors(cos_sum)).zip(output) {
            for i in 0..LANES {
                terminated[i] = is_up(cos1[i], cos_sum[i]);
                reward[i] = if terminated[i] { 0.0 } else { -1.0 };
            }
        }
    }
}
