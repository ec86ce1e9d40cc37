//! `Acrobot-v1`, bit-equal to Gymnasium's.
//!
//! # Description
//! Two links hang from a fixed joint, with a motor between the links. The task is to swing the free
//! end above a horizontal line, one link length above the fixed joint (Sutton 1996, "Generalization
//! in Reinforcement Learning: Successful Examples Using Sparse Coarse Coding", NIPS 8; Sutton and
//! Barto 2018, "Reinforcement Learning: An Introduction").
//!
//! # Action Space
//! `Discrete(3)`: a torque of -1, 0 or 1 N m on the joint between the links.
//!
//! # Observation Space
//! `Box(6)` f32: cosine and sine of the first link's angle (0 is downwards), cosine and sine of the
//! second link's angle relative to the first, and the two angular velocities (rad/s), within
//! `[-4 pi, 4 pi]` and `[-9 pi, 9 pi]`.
//!
//! # Rewards
//! -1 per step, and 0 for the step that reaches the line.
//!
//! # Starting State
//! Both angles and both angular velocities uniform in `[-0.1, 0.1)`, rounded to f32.
//!
//! # Episode End
//! Terminated if `-cos(theta1) - cos(theta1 + theta2) > 1`. Truncated after 500 steps.
//!
//! # Arguments
//! `dt` (default 0.2 s), the step of the Runge-Kutta integration. `torque_noise_max` (default 0 N
//! m), the half-width of uniform noise on the torque. `nips` (default false) selects the equations
//! of motion of the paper instead of those of the book. In Gymnasium, these are the attributes
//! `dt`, `torque_noise_max` and `book_or_nips`. Reset options: `low` and `high`, the bounds of the
//! starting state.
//!
//! # Version History
//! v1: observes cosines and sines instead of angles. The limit is 500 steps.

#![expect(
    clippy::inline_always,
    reason = "functions that are not inlined are not compiled for the wider instruction set"
)]

use std::f64::consts::PI;
use std::sync::Arc;

use super::numpy_math::{cos_f32, sin_f32, square};
use super::soa::{LaneEnv, LaneOut, LaneScratch};
use super::{argument, bool_argument, bounds, check_bounds, check_flag, check_state};
use crate::simd::trig::{self, Rounded, each_lane, recompute_failed};
use crate::simd::{BLOCK, Block, LANES, multiversion, vectors, vectors_mut};
use crate::{Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step};

// Each link has length, mass and moment of inertia 1, with the centre of mass in the middle. The
// constants in the equations of motion follow from these values, in Gymnasium's order of
// operations.
const GRAVITY: f64 = 9.8;
const MAX_VELOCITY: [f64; 2] = [4.0 * PI, 9.0 * PI];
const START: (f64, f64) = (-0.1, 0.1);
/// Angle in rad above which `%` wraps an angle, instead of the subtraction of turn after turn.
const MAX_TURNING: f64 = 1e7;

/// The `Acrobot-v1` environment. See the module for spaces, rewards and episode ends.
#[derive(Clone, Debug)]
pub struct Acrobot {
    state: [f64; 4],
    at_start: bool, // after a reset: the state and the sines and cosines in observations are f32
    dt: f64,
    torque_noise_max: f64,
    nips: bool,
    spec: Arc<EnvSpec>, // shared by all copies
}

impl Default for Acrobot {
    fn default() -> Self {
        let high = [1.0, 1.0, 1.0, 1.0, MAX_VELOCITY[0] as f32, MAX_VELOCITY[1] as f32];
        let spec = Arc::new(EnvSpec {
            id: "Acrobot-v1".into(),
            observation: Space::symmetric_box(&high),
            action: Space::discrete(3),
            max_episode_steps: Some(500),
        });
        Self { state: [0.0; 4], at_start: true, dt: 0.2, torque_noise_max: 0.0, nips: false, spec }
    }
}

impl Acrobot {
    /// Creates two links hanging at rest.
    ///
    /// `dt` is the integration step (s). `torque_noise_max` is the half-width of uniform noise on the torque (N m).
    /// `nips` selects the equations of Sutton's paper, which lack a term of the book.
    ///
    /// ```
    /// use rlox_core::{Env, envs::Acrobot};
    /// assert_eq!(Acrobot::new(0.05, 0.0, false)?.spec().observation.dim(), 6);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if `dt` is not positive and finite, or `torque_noise_max` is negative or too large.
    pub fn new(dt: f64, torque_noise_max: f64, nips: bool) -> Result<Self> {
        if !(dt > 0.0 && dt.is_finite()) {
            return Err(Error::config(
                "dt",
                "a positive number of seconds",
                dt.to_string(),
                "pass 0.2, as in Gymnasium",
            ));
        }
        if !(torque_noise_max >= 0.0 && (2.0 * torque_noise_max).is_finite()) {
            let got = torque_noise_max.to_string();
            return Err(Error::config("torque_noise_max", "a finite number >= 0", got, "pass 0 for no noise"));
        }
        Ok(Self { dt, torque_noise_max, nips, ..Self::default() })
    }

    pub(super) fn from_arguments(arguments: &[(String, f64)]) -> Result<Self> {
        let known = ["dt", "torque_noise_max", "nips"];
        let read = |name, default| argument(arguments, &known, name, default);
        Self::new(read("dt", 0.2)?, read("torque_noise_max", 0.0)?, bool_argument(arguments, &known, "nips")?)
    }

    fn write(&self, obs: &mut [f32]) {
        for (pair, angle) in obs[..4].chunks_exact_mut(2).zip(self.state) {
            let (cos, sin) = if self.at_start {
                (cos_f32(angle as f32), sin_f32(angle as f32))
            } else {
                (angle.cos() as f32, angle.sin() as f32)
            };
            pair.copy_from_slice(&[cos, sin]);
        }
        obs[4] = self.state[2] as f32;
        obs[5] = self.state[3] as f32;
    }
}

/// Inputs of the equations of motion that are computed by functions of libm.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// Sine and cosine of the second angle.
    sin: f64,
    cos: f64,
    /// The cosines of [`directions`].
    across: [f64; 2],
    /// The squares of the two velocities and of [`coupling`].
    squares: [f64; 3],
}

/// Returns the angle of each link to the vertical, minus a quarter turn. The torques of gravity
/// depend on the cosines of the results.
#[inline(always)]
fn directions(theta1: f64, theta2: f64) -> [f64; 2] {
    [theta1 - PI / 2.0, theta1 + theta2 - PI / 2.0]
}

/// Returns `d2` of the equations of motion, which couples the accelerations of the two angles.
/// `cos` is the cosine of the second angle.
#[inline(always)]
fn coupling(cos: f64) -> f64 {
    0.25 + 0.5 * cos + 1.0
}

/// Returns the accelerations of the two angles under a torque (N m).
#[inline(always)]
fn accelerations([velocity1, velocity2]: [f64; 2], parts: Parts, torque: f64, nips: bool) -> [f64; 2] {
    const WEIGHT_1: f64 = 1.5 * GRAVITY;
    const WEIGHT_2: f64 = 0.5 * GRAVITY;
    let Parts { sin, cos, across, squares: [velocity1_squared, velocity2_squared, d2_squared] } = parts;
    let d1 = 0.25 + (1.25 + cos) + 1.0 + 1.0;
    let d2 = coupling(cos);
    let phi2 = WEIGHT_2 * across[1];
    let phi1 = -0.5 * velocity2_squared * sin - velocity2 * velocity1 * sin + WEIGHT_1 * across[0] + phi2;
    let drive = torque + d2 / d1 * phi1;
    let drive = if nips { drive } else { drive - 0.5 * velocity1_squared * sin };
    let acceleration2 = (drive - phi2) / (1.25 - d2_squared / d1);
    [-(d2 * acceleration2 + phi1) / d1, acceleration2]
}

/// Returns the time derivatives of the two angles and the two angular velocities under a torque (N m).
#[inline]
fn derivative([theta1, theta2, velocity1, velocity2]: [f64; 4], torque: f64, nips: bool) -> [f64; 4] {
    let (sin, cos) = (theta2.sin(), theta2.cos());
    let squares = [if nips { 0.0 } else { square(velocity1) }, square(velocity2), square(coupling(cos))];
    let parts = Parts { sin, cos, across: directions(theta1, theta2).map(f64::cos), squares };
    let [acceleration1, acceleration2] = accelerations([velocity1, velocity2], parts, torque, nips);
    [velocity1, velocity2, acceleration1, acceleration2]
}

/// Returns the state after a step of the classical fourth-order Runge-Kutta method.
///
/// The angles are not wrapped, and the velocities are not clipped to their bounds.
#[inline]
fn runge_kutta(state: [f64; 4], torque: f64, dt: f64, nips: bool) -> [f64; 4] {
    let euler_step = |dt: f64, slope: [f64; 4]| -> [f64; 4] { std::array::from_fn(|i| state[i] + dt * slope[i]) };
    let k1 = derivative(state, torque, nips);
    let k2 = derivative(euler_step(dt / 2.0, k1), torque, nips);
    let k3 = derivative(euler_step(dt / 2.0, k2), torque, nips);
    let k4 = derivative(euler_step(dt, k3), torque, nips);
    std::array::from_fn(|i| weighted(state[i], [k1[i], k2[i], k3[i], k4[i]], dt))
}

/// Returns an element of the state after a Runge-Kutta step, from its value `now` and its four
/// slopes.
#[inline(always)]
fn weighted(now: f64, [k1, k2, k3, k4]: [f64; 4], dt: f64) -> f64 {
    now + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
}

/// Returns the angle wrapped to `[-pi, pi]`.
///
/// Full turns are subtracted one after the other as in Gymnasium, because every subtraction rounds.
fn wrap(mut angle: f64) -> f64 {
    const TWO_PI: f64 = 2.0 * PI;
    if angle.abs() > MAX_TURNING {
        // For such angles, the loop of Gymnasium takes minutes or never ends. The remainder of
        // infinity is NaN.
        angle %= TWO_PI;
    }
    while angle > PI {
        angle -= TWO_PI;
    }
    while angle < -PI {
        angle += TWO_PI;
    }
    angle
}

/// Returns the angular velocities clipped to their bounds.
#[inline(always)]
fn bounded([velocity1, velocity2]: [f64; 2]) -> [f64; 2] {
    let [max1, max2] = MAX_VELOCITY;
    [velocity1.clamp(-max1, max1), velocity2.clamp(-max2, max2)]
}

/// Returns the state after a step: two angles and two angular velocities.
#[inline]
fn advance(state: [f64; 4], torque: f64, dt: f64, nips: bool) -> [f64; 4] {
    let [theta1, theta2, velocity1, velocity2] = runge_kutta(state, torque, dt, nips);
    let [velocity1, velocity2] = bounded([velocity1, velocity2]);
    [wrap(theta1), wrap(theta2), velocity1, velocity2]
}

/// Returns true if the free end is above the line that ends the episode.
///
/// The arguments are the cosines of the first angle and of the sum of both angles.
#[inline(always)]
fn is_up(cos1: f64, cos_sum: f64) -> bool {
    -cos1 - cos_sum > 1.0
}

impl Env for Acrobot {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        check_bounds(options, START)
    }

    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        let (low, high) = bounds(options, START);
        self.state = std::array::from_fn(|_| f64::from(rng.uniform(low, high) as f32));
        self.at_start = true;
        self.write(obs);
    }

    fn step(&mut self, action: &i64, rng: &mut Pcg64, obs: &mut [f32]) -> Step {
        let mut torque = (action - 1) as f64;
        if self.torque_noise_max > 0.0 {
            torque += rng.uniform(-self.torque_noise_max, self.torque_noise_max);
        }
        self.state = advance(self.state, torque, self.dt, self.nips);
        self.at_start = false;
        self.write(obs);
        let [theta1, theta2, ..] = self.state;
        let terminated = is_up(theta1.cos(), (theta2 + theta1).cos());
        Step { reward: if terminated { 0.0 } else { -1.0 }, terminated, truncated: false }
    }

    /// Returns the two angles, the two angular velocities, and 1 after a step or 0 after a reset.
    fn state(&self) -> Option<Vec<f64>> {
        let [theta1, theta2, velocity1, velocity2] = self.state;
        Some(vec![theta1, theta2, velocity1, velocity2, f64::from(u8::from(!self.at_start))])
    }

    fn check_state(&self, state: &[f64]) -> Result<()> {
        check_state(state, 5)?;
        check_flag(state)
    }

    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        self.check_state(state)?;
        self.state.copy_from_slice(&state[..4]);
        self.at_start = state[4] == 0.0;
        self.write(obs);
        Ok(())
    }
}

// Steps of a block of environments.

/// The columns of the state are the numbers of [`Env::state`].
impl LaneEnv<5, 6> for Acrobot {
    type Scratch = Scratch;

    const MIN_ENVS: usize = 4;
    const ENVS_PER_THREAD: usize = 512;

    type Number = i64;

    fn supports_lanes(&self) -> bool {
        self.torque_noise_max == 0.0
    }

    fn lane_state(&self) -> [f64; 5] {
        let [theta1, theta2, velocity1, velocity2] = self.state;
        [theta1, theta2, velocity1, velocity2, f64::from(u8::from(!self.at_start))]
    }

    fn set_lane_state(&mut self, [theta1, theta2, velocity1, velocity2, stepped]: [f64; 5]) {
        self.state = [theta1, theta2, velocity1, velocity2];
        self.at_start = stepped == 0.0;
    }

    fn step_block(
        &self,
        state: &mut [Block; 5],
        actions: &[i64; BLOCK],
        scratch: &mut Self::Scratch,
        out: LaneOut<'_, 6>,
    ) {
        let [theta1, theta2, velocity1, velocity2, stepped] = state;
        let Scratch { torque, slopes: LaneScratch(slopes), stage_state: LaneScratch(stage_state), parts } = scratch;
        let count = out.count;
        for (torque, action) in torque.iter_mut().zip(actions) {
            *torque = (action - 1) as f64;
        }
        for (k, dt) in [0.0, self.dt / 2.0, self.dt / 2.0, self.dt].into_iter().enumerate() {
            let (done, slope) = slopes.split_at_mut(4 * k);
            let now = [&*theta1, theta2, velocity1, velocity2];
            if let Some(last) = done.last_chunk::<4>() {
                for ((now, slope), stage) in now.into_iter().zip(last).zip(&mut *stage_state) {
                    euler_step_block(count, now, slope, dt, stage);
                }
            }
            let point = if k == 0 { now } else { stage_state.each_ref() };
            if let Some(slope) = slope.first_chunk_mut() {
                self.derivative(count, point, torque, parts, slope);
            }
        }
        for (column, now) in [&*theta1, theta2, velocity1, velocity2].into_iter().enumerate() {
            let slopes = [0, 4, 8, 12].map(|k| &slopes[k + column]);
            combine_slopes(count, now, slopes, self.dt, &mut stage_state[column]);
        }
        wrap_all(&stage_state[0], count, theta1);
        wrap_all(&stage_state[1], count, theta2);
        bound(count, &stage_state[2], &stage_state[3], velocity1, velocity2);
        stepped[..count].fill(1.0);
        observe([theta1, theta2, velocity1, velocity2], parts, out);
    }
}

/// Workspace of a step.
#[derive(Debug)]
pub struct Scratch {
    torque: Block,
    /// The four Runge-Kutta slopes, four columns each.
    slopes: LaneScratch<16>,
    /// The state at which the current slope is evaluated.
    stage_state: LaneScratch<4>,
    /// The inputs of the equations of motion and of the observations that are computed by functions
    /// of libm.
    parts: LaneScratch<10>,
}

impl Default for Scratch {
    fn default() -> Self {
        let torque = [0.0; BLOCK];
        Self {
            torque,
            slopes: LaneScratch::default(),
            stage_state: LaneScratch::default(),
            parts: LaneScratch::default(),
        }
    }
}

impl Acrobot {
    /// Writes the time derivatives of a block of states.
    fn derivative(
        &self,
        count: usize,
        [theta1, theta2, velocity1, velocity2]: [&Block; 4],
        torque: &Block,
        LaneScratch(parts): &mut LaneScratch<10>,
        slope: &mut [Block; 4],
    ) {
        let [sin, cos, direction1, direction2, across1, across2, d2, squared1, squared2, d2_squared] = parts;
        trig::sin_cos(theta2, count, sin, cos);
        directions_and_coupling(count, theta1, theta2, cos, direction1, direction2, d2);
        trig::cos(direction1, count, across1);
        trig::cos(direction2, count, across2);
        trig::square(velocity1, count, squared1);
        trig::square(velocity2, count, squared2);
        trig::square(d2, count, d2_squared);
        let [slope1, slope2, acceleration1, acceleration2] = slope;
        slope1[..count].copy_from_slice(&velocity1[..count]);
        slope2[..count].copy_from_slice(&velocity2[..count]);
        let parts = [&*sin, cos, across1, across2, squared1, squared2, d2_squared];
        accelerate(count, self.nips, [velocity1, velocity2, torque], parts, acceleration1, acceleration2);
    }
}

/// Writes the angles of the first `count` environments, wrapped to `[-pi, pi]`.
fn wrap_all(theta: &Block, count: usize, wrapped: &mut Block) {
    let mut fails = [false; BLOCK];
    wrap_block(theta, count, wrapped, &mut fails);
    recompute_failed(theta, count, wrapped, &fails, wrap);
}

multiversion! {
    /// Wraps angles by at most two turns, which is sufficient for nearly all angles after a step.
    /// All other angles fail.
    fn wrap_block(theta: &Block, count: usize, wrapped: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(theta, count, wrapped, fails, |theta| {
            const TWO_PI: f64 = 2.0 * PI;
            let back = |x: f64| if x > PI { x - TWO_PI } else { x };
            let forth = |x: f64| if x < -PI { x + TWO_PI } else { x };
            let value = forth(forth(back(back(theta))));
            Rounded { value, fails: !(-PI..=PI).contains(&value) }
        });
    }
}

// These loops are not divided into SIMD vectors, because the compiler vectorises short loop bodies
// better in one loop.

/// Returns `count`, rounded up to a multiple of [`LANES`], so that loops of this length are full
/// SIMD vectors.
#[inline(always)]
fn reach(count: usize) -> usize {
    count.next_multiple_of(LANES).min(BLOCK)
}

multiversion! {
    fn euler_step_block(count: usize, now: &Block, slope: &Block, dt: f64, next: &mut Block) {
        let n = reach(count);
        for (next, (now, slope)) in next[..n].iter_mut().zip(now.iter().zip(slope)) {
            *next = now + dt * slope;
        }
    }
}

multiversion! {
    fn combine_slopes(count: usize, now: &Block, slopes: [&Block; 4], dt: f64, next: &mut Block) {
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

/// Writes observations, termination flags and rewards of the states after a step.
fn observe([theta1, theta2, velocity1, velocity2]: [&Block; 4], parts: &mut LaneScratch<10>, out: LaneOut<'_, 6>) {
    let LaneOut { count, obs, reward, terminated } = out;
    let LaneScratch([sin1, cos1, sin2, cos2, sum, cos_sum, ..]) = parts;
    for (sum, (theta1, theta2)) in sum.iter_mut().zip(theta1.iter().zip(theta2)) {
        *sum = theta2 + theta1;
    }
    trig::sin_cos(theta1, count, sin1, cos1);
    trig::sin_cos(theta2, count, sin2, cos2);
    trig::cos(sum, count, cos_sum);
    write(count, [cos1, sin1, cos2, sin2, velocity1, velocity2], obs);
    write_outcomes(count, cos1, cos_sum, reward, terminated);
}

/// Writes the observations in a scalar loop, because the compiler does not vectorise rows of six
/// numbers.
fn write(count: usize, columns: [&Block; 6], obs: &mut [[f32; 6]; BLOCK]) {
    for (i, row) in obs.iter_mut().enumerate().take(count) {
        *row = columns.map(|column| column[i] as f32);
    }
}

multiversion! {
    fn write_outcomes(count: usize, cos1: &Block, cos_sum: &Block, reward: &mut Block, terminated: &mut [bool; BLOCK]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_derivative_by_hand() {
        // Both links hang at rest, with torque 1. cos = 1 gives d1 = 4.5 and d2 = 1.75, and gravity
        // has no effect.
        let acceleration2 = 1.0 / (1.25 - 1.75 * 1.75 / 4.5);
        let expected = [0.0, 0.0, -1.75 * acceleration2 / 4.5, acceleration2];
        for (got, expected) in derivative([0.0; 4], 1.0, false).into_iter().zip(expected) {
            assert!((got - expected).abs() < 1e-12, "{got} {expected}");
        }
        // Both links are horizontal and in line. The torques of gravity are 14.7 + 4.9 and 4.9 N m.
        let [.., acceleration1, acceleration2] = derivative([PI / 2.0, 0.0, 0.0, 0.0], 0.0, false);
        assert!((4.5 * acceleration1 + 1.75 * acceleration2 + 19.6).abs() < 1e-12);
        assert!((1.75 * acceleration1 + 1.25 * acceleration2 + 4.9).abs() < 1e-12);
    }

    #[test]
    fn the_paper_lacks_the_books_centrifugal_term() {
        let state = [0.0, PI / 2.0, 2.0, 0.0];
        let (book, paper) = (derivative(state, 0.0, false), derivative(state, 0.0, true));
        // The term is 0.5 * 2^2 * sin(pi/2) = 2, divided by 1.25 - 1.25^2 / 3.5.
        assert!((paper[3] - book[3] - 2.0 / (1.25 - 1.5625 / 3.5)).abs() < 1e-12);
    }

    #[test]
    fn the_integration_is_of_fourth_order() {
        let fine = (0..1000).fold([1.0, -0.5, 0.3, 0.2], |state, _| runge_kutta(state, 1.0, 2e-4, false));
        let error = |n: i32| {
            let dt = 0.2 / f64::from(n);
            let coarse = (0..n).fold([1.0, -0.5, 0.3, 0.2], |state, _| runge_kutta(state, 1.0, dt, false));
            (coarse[1] - fine[1]).abs()
        };
        let ratio = error(8) / error(16);
        assert!((12.0..24.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn energy_is_conserved_without_torque() {
        // Kinetic energy with the mass matrix [[d1, d2], [d2, 1.25]], plus potential energy of the
        // two centres of mass.
        let energy = |[a, b, u, v]: [f64; 4]| {
            let (d1, d2) = (3.5 + b.cos(), 1.25 + 0.5 * b.cos());
            0.5 * d1 * u * u + d2 * u * v + 0.625 * v * v - 14.7 * a.cos() - 4.9 * (a + b).cos()
        };
        let start = [1.0, 0.5, -0.3, 0.8];
        let end = (0..2000).fold(start, |state, _| runge_kutta(state, 0.0, 1e-3, false));
        assert!((energy(end) - energy(start)).abs() < 1e-9);
    }

    #[test]
    fn reaching_the_line_ends_the_episode_with_reward_0() {
        let mut env = Acrobot::default();
        let mut obs = [0.0; 6];
        env.set_state(&[3.0, 0.0, 0.0, 0.0, 1.0], &mut obs).unwrap();
        let step = env.step(&1, &mut Pcg64::seed_from(0), &mut obs);
        assert_eq!(step, Step { reward: 0.0, terminated: true, truncated: false });
        env.set_state(&[0.0; 5], &mut obs).unwrap();
        assert_eq!(obs, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        let step = env.step(&1, &mut Pcg64::seed_from(0), &mut obs);
        assert_eq!(step, Step { reward: -1.0, terminated: false, truncated: false });
    }

    #[test]
    fn angles_are_wrapped_and_velocities_bounded() {
        assert_eq!(wrap(4.0), 4.0 - 2.0 * PI);
        assert_eq!(wrap(-10.0), -10.0 + 2.0 * PI + 2.0 * PI);
        assert!(wrap(1e300).abs() <= PI && wrap(f64::INFINITY).is_nan() && wrap(f64::NAN).is_nan());
        let [.., velocity1, velocity2] = advance([0.0, 0.0, 100.0, -100.0], 0.0, 1e-3, false);
        assert_eq!([velocity1, velocity2], [4.0 * PI, -9.0 * PI]);
    }

    #[test]
    fn noise_draws_from_its_stream_argument() {
        let mut rng = Pcg64::seed_from(0);
        Acrobot::default().step(&1, &mut rng, &mut [0.0; 6]);
        assert_eq!(rng, Pcg64::seed_from(0));
        let mut env = Acrobot::new(0.2, 0.5, false).unwrap();
        env.step(&1, &mut rng, &mut [0.0; 6]);
        let torque = Pcg64::seed_from(0).uniform(-0.5, 0.5);
        assert_eq!(env.state, advance([0.0; 4], torque, 0.2, false));
        assert_ne!(rng, Pcg64::seed_from(0));
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (name, value) in [("dt", 0.0), ("dt", -0.2), ("torque_noise_max", -1.0), ("torque_noise_max", 1e308)] {
            let result = Acrobot::from_arguments(&[(name.to_string(), value)]);
            crate::testing::assert_rejects(result, Error::Config, name);
        }
        let env = Acrobot::default();
        assert!(env.check_options(&ResetOptions::new([("low", -1e39)])).is_err());
    }
}
