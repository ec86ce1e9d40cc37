//! `Acrobot-v1` as lanes.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use std::f64::consts::PI;

use super::{Columns, Lanes, LanesOut};
use crate::envs::acrobot::{Acrobot, Parts, accelerations, bounded, coupling, directions, is_up, weighted, wrap};
use crate::simd::rounding::{Rounded, each_lane, mend};
use crate::simd::{BLOCK, Block, LANES, multiversion, power, trig, vectors, vectors_mut};

/// The two angles, the two angular velocities, and 0 at the start of an episode, 1 after a step.
impl Lanes<5, 6> for Acrobot {
    type Scratch = Scratch;

    const FROM: usize = 4;
    const SHARE: usize = 512;

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

    fn step_block(
        &self,
        state: &mut [Block; 5],
        actions: &[i64; BLOCK],
        scratch: &mut Self::Scratch,
        out: LanesOut<'_, 6>,
    ) {
        let [theta1, theta2, velocity1, velocity2, stepped] = state;
        let Scratch { torque, slopes: Columns(slopes), ahead: Columns(ahead), parts } = scratch;
        let count = out.count;
        for (torque, action) in torque.iter_mut().zip(actions) {
            *torque = (action - 1) as f64;
        }
        for (k, dt) in [0.0, self.dt / 2.0, self.dt / 2.0, self.dt].into_iter().enumerate() {
            let (done, slope) = slopes.split_at_mut(4 * k);
            let now = [&*theta1, theta2, velocity1, velocity2];
            if let Some(last) = done.last_chunk::<4>() {
                for ((now, slope), ahead) in now.into_iter().zip(last).zip(&mut *ahead) {
                    go_ahead(count, now, slope, dt, ahead);
                }
            }
            let at = if k == 0 { now } else { ahead.each_ref() };
            if let Some(slope) = slope.first_chunk_mut() {
                self.derivative(count, at, torque, parts, slope);
            }
        }
        for (column, now) in [&*theta1, theta2, velocity1, velocity2].into_iter().enumerate() {
            let slopes = [0, 4, 8, 12].map(|k| &slopes[k + column]);
            weigh(count, now, slopes, self.dt, &mut ahead[column]);
        }
        wrap_all(&ahead[0], count, theta1);
        wrap_all(&ahead[1], count, theta2);
        bound(count, &ahead[2], &ahead[3], velocity1, velocity2);
        stepped[..count].fill(1.0);
        observe([theta1, theta2, velocity1, velocity2], parts, out);
    }
}

/// What a step works with.
#[derive(Debug)]
pub struct Scratch {
    torque: Block,
    /// The four slopes of Runge and Kutta, four columns each.
    slopes: Columns<16>,
    /// The state at which a slope is taken.
    ahead: Columns<4>,
    /// What the equations of motion and the observations take from libm.
    parts: Columns<10>,
}

impl Default for Scratch {
    fn default() -> Self {
        let torque = [0.0; BLOCK];
        Self { torque, slopes: Columns::default(), ahead: Columns::default(), parts: Columns::default() }
    }
}

impl Acrobot {
    /// The time derivatives of a block of states.
    fn derivative(
        &self,
        count: usize,
        [theta1, theta2, velocity1, velocity2]: [&Block; 4],
        torque: &Block,
        Columns(parts): &mut Columns<10>,
        slope: &mut [Block; 4],
    ) {
        let [sin, cos, direction1, direction2, across1, across2, d2, squared1, squared2, d2_squared] = parts;
        trig::sin_cos(theta2, count, sin, cos);
        directions_and_coupling(count, theta1, theta2, cos, direction1, direction2, d2);
        trig::cos(direction1, count, across1);
        trig::cos(direction2, count, across2);
        power::square(velocity1, count, squared1);
        power::square(velocity2, count, squared2);
        power::square(d2, count, d2_squared);
        let [slope1, slope2, acceleration1, acceleration2] = slope;
        slope1[..count].copy_from_slice(&velocity1[..count]);
        slope2[..count].copy_from_slice(&velocity2[..count]);
        let parts = [&*sin, cos, across1, across2, squared1, squared2, d2_squared];
        accelerate(count, self.nips, [velocity1, velocity2, torque], parts, acceleration1, acceleration2);
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

// Bodies as short as these are vectorised well as one loop; cut into vectors they would be unrolled and gathered.

/// Up to where the vectors of the first `count` environments reach.
#[inline(always)]
fn reach(count: usize) -> usize {
    count.next_multiple_of(LANES).min(BLOCK)
}

multiversion! {
    fn go_ahead(count: usize, now: &Block, slope: &Block, dt: f64, ahead: &mut Block) {
        let n = reach(count);
        for (ahead, (now, slope)) in ahead[..n].iter_mut().zip(now.iter().zip(slope)) {
            *ahead = now + dt * slope;
        }
    }
}

multiversion! {
    fn weigh(count: usize, now: &Block, slopes: [&Block; 4], dt: f64, next: &mut Block) {
        let n = reach(count);
        let [now, k1, k2, k3, k4] = [now, slopes[0], slopes[1], slopes[2], slopes[3]].map(|column| &column[..n]);
        let next = &mut next[..n];
        for i in 0..n {
            next[i] = weighted(now[i], [k1[i], k2[i], k3[i], k4[i]], dt);
        }
    }
}

multiversion! {
    fn bound(count: usize, free1: &Block, free2: &Block, velocity1: &mut Block, velocity2: &mut Block) {
        let n = reach(count);
        let ([free1, free2], velocity1, velocity2) =
            ([&free1[..n], &free2[..n]], &mut velocity1[..n], &mut velocity2[..n]);
        for i in 0..n {
            [velocity1[i], velocity2[i]] = bounded([free1[i], free2[i]]);
        }
    }
}

multiversion! {
    fn directions_and_coupling(
        count: usize,
        theta1: &Block,
        theta2: &Block,
        cos: &Block,
        direction1: &mut Block,
        direction2: &mut Block,
        d2: &mut Block,
    ) {
        let n = reach(count);
        let [theta1, theta2, cos] = [theta1, theta2, cos].map(|column| &column[..n]);
        let [direction1, direction2, d2] = [direction1, direction2, d2].map(|column| &mut column[..n]);
        for i in 0..n {
            [direction1[i], direction2[i]] = directions(theta1[i], theta2[i]);
            d2[i] = coupling(cos[i]);
        }
    }
}

multiversion! {
    fn accelerate(
        count: usize,
        nips: bool,
        motion: [&Block; 3],
        parts: [&Block; 7],
        acceleration1: &mut Block,
        acceleration2: &mut Block,
    ) {
        let n = reach(count);
        let [velocity1, velocity2, torque] = motion.map(|column| &column[..n]);
        let [sin, cos, across1, across2, squared1, squared2, d2_squared] = parts.map(|column| &column[..n]);
        let (acceleration1, acceleration2) = (&mut acceleration1[..n], &mut acceleration2[..n]);
        for i in 0..n {
            let squares = [squared1[i], squared2[i], d2_squared[i]];
            let parts = Parts { sin: sin[i], cos: cos[i], across: [across1[i], across2[i]], squares };
            let velocities = [velocity1[i], velocity2[i]];
            [acceleration1[i], acceleration2[i]] = accelerations(velocities, parts, torque[i], nips);
        }
    }
}

/// Observations, ends and rewards of the states after a step.
fn observe([theta1, theta2, velocity1, velocity2]: [&Block; 4], parts: &mut Columns<10>, out: LanesOut<'_, 6>) {
    let LanesOut { count, obs, reward, terminated } = out;
    let Columns([sin1, cos1, sin2, cos2, sum, cos_sum, ..]) = parts;
    for (sum, (theta1, theta2)) in sum.iter_mut().zip(theta1.iter().zip(theta2)) {
        *sum = theta2 + theta1;
    }
    trig::sin_cos(theta1, count, sin1, cos1);
    trig::sin_cos(theta2, count, sin2, cos2);
    trig::cos(sum, count, cos_sum);
    write(count, [cos1, sin1, cos2, sin2, velocity1, velocity2], obs);
    judge(count, cos1, cos_sum, reward, terminated);
}

/// Rows of six do not vectorise.
fn write(count: usize, columns: [&Block; 6], obs: &mut [[f32; 6]; BLOCK]) {
    for (i, row) in obs.iter_mut().enumerate().take(count) {
        *row = columns.map(|column| column[i] as f32);
    }
}

multiversion! {
    fn judge(count: usize, cos1: &Block, cos_sum: &Block, reward: &mut Block, terminated: &mut [bool; BLOCK]) {
        let output = vectors_mut(reward).zip(vectors_mut(terminated));
        let all = vectors(cos1).zip(vectors(cos_sum)).zip(output).take(count.div_ceil(LANES));
        for ((cos1, cos_sum), (reward, terminated)) in all {
            for i in 0..LANES {
                terminated[i] = is_up(cos1[i], cos_sum[i]);
                reward[i] = if terminated[i] { 0.0 } else { -1.0 };
            }
        }
    }
}
