//! `Pendulum-v1`, bit-equal to Gymnasium's.
//!
//! # Description
//! A pendulum hangs from a motor that is too weak to lift it directly. The task is to swing it up and keep it upright.
//!
//! # Action Space
//! `Box(-2, 2, (1,))` f32: the torque (N m). Values outside the bounds are clipped.
//!
//! # Observation Space
//! `Box(3)` f32: cosine and sine of the angle (0 is upright), and the angular velocity (rad/s),
//! within `[-8, 8]`.
//!
//! # Rewards
//! `-(angle^2 + 0.1 * velocity^2 + 0.001 * torque^2)` with the angle in `[-pi, pi]`: about -16.27 to 0.
//!
//! # Starting State
//! Angle uniform in `[-pi, pi)`, angular velocity uniform in `[-1, 1)`.
//!
//! # Episode End
//! Never terminated. Truncated after 200 steps.
//!
//! # Arguments
//! `g` (default 10), gravity in m/s^2. Reset options: `x_init` and `y_init`, the half-widths of the starting ranges.
//!
//! # Version History
//! v1: as in Gymnasium, the angular velocity is clipped before the new angle is computed from it.

#![expect(
    clippy::inline_always,
    reason = "functions that are not inlined are not compiled for the wider instruction set"
)]

use std::f64::consts::PI;
use std::hint::black_box;
use std::sync::Arc;

use super::numpy_math::square;
use super::soa::{LaneEnv, LaneOut, LaneScratch};
use super::{argument, check_state};
use crate::simd::trig::{self, Rounded, each_lane, has_fast_lanes, recompute_failed};
use crate::simd::{BLOCK, Block, LANES, multiversion, vectors, vectors_mut};
use crate::{Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step};

const MAX_SPEED: f64 = 8.0;
const MAX_TORQUE: f32 = 2.0;
const DT: f64 = 0.05;

/// The `Pendulum-v1` environment. See the module for spaces, rewards and episode ends.
#[derive(Clone, Debug)]
pub struct Pendulum {
    theta: f64,
    theta_dot: f64,
    last_torque: f64,
    g: f64,
    spec: Arc<EnvSpec>, // shared by all copies
}

impl Default for Pendulum {
    fn default() -> Self {
        Self::new(10.0)
    }
}

impl Pendulum {
    /// Creates an upright pendulum at rest under gravity `g` (m/s^2).
    ///
    /// ```
    /// use rlox_core::{Env, envs::Pendulum};
    /// assert_eq!(Pendulum::default().spec().action.dim(), 1);
    /// ```
    pub fn new(g: f64) -> Self {
        let spec = Arc::new(EnvSpec {
            id: "Pendulum-v1".into(),
            observation: Space::symmetric_box(&[1.0, 1.0, MAX_SPEED as f32]),
            action: Space::uniform_box(-MAX_TORQUE, MAX_TORQUE, &[1]),
            max_episode_steps: Some(200),
        });
        Self { theta: 0.0, theta_dot: 0.0, last_torque: f64::NAN, g, spec }
    }

    pub(super) fn from_arguments(arguments: &[(String, f64)]) -> Result<Self> {
        Ok(Self::new(argument(arguments, &["g"], "g", 10.0)?))
    }

    fn write(&self, obs: &mut [f32]) {
        obs[0] = self.theta.cos() as f32;
        obs[1] = self.theta.sin() as f32;
        obs[2] = self.theta_dot as f32;
    }
}

fn half_widths(options: &ResetOptions) -> (f64, f64) {
    (options.get("x_init").unwrap_or(PI), options.get("y_init").unwrap_or(1.0))
}

/// Returns `x % y` as in Python: the result has the sign of `y`.
fn modulo(x: f64, y: f64) -> f64 {
    let remainder = x % y;
    if remainder != 0.0 && (remainder < 0.0) != (y < 0.0) { remainder + y } else { remainder }
}

// The order of the operations and the use of f32 or f64 are those of Gymnasium, so that results are
// bit-equal.

/// Returns the torque in N m that an action applies.
#[inline(always)]
fn clip(action: f32) -> f32 {
    action.clamp(-MAX_TORQUE, MAX_TORQUE)
}

/// Returns the angle wrapped to `[-pi, pi]`.
fn wrap(theta: f64) -> f64 {
    modulo(theta + PI, 2.0 * PI) - PI
}

/// Returns the reward from the squares of the wrapped angle, the angular velocity and the torque.
#[inline(always)]
fn reward(angle: f64, theta_dot: f64, torque: f32) -> f64 {
    -(angle + 0.1 * theta_dot + f64::from(0.001_f32 * torque))
}

/// Returns angle and angular velocity after a step. `sin` is the sine of the current angle.
#[inline(always)]
fn advance(theta: f64, theta_dot: f64, torque: f32, sin: f64, g: f64) -> (f64, f64) {
    let push = f64::from(3.0_f32 * torque);
    let theta_dot = theta_dot + (3.0 * g / 2.0 * sin + push) * DT;
    let theta_dot = theta_dot.clamp(-MAX_SPEED, MAX_SPEED);
    (theta + theta_dot * DT, theta_dot)
}

impl Env for Pendulum {
    type Action = [f32];

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        options.check_known(&["x_init", "y_init"])?;
        let (x, y) = half_widths(options);
        let limit = f64::from(f32::MAX);
        if (0.0..=limit).contains(&x) && (0.0..=limit).contains(&y) {
            return Ok(());
        }
        let expected = "x_init and y_init >= 0, both finite in f32";
        Err(Error::config(
            "options",
            expected,
            format!("x_init {x}, y_init {y}"),
            "pass the half-widths of the starting ranges",
        ))
    }

    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        let (x, y) = half_widths(options);
        self.theta = rng.uniform(-x, x);
        self.theta_dot = rng.uniform(-y, y);
        self.last_torque = f64::NAN;
        self.write(obs);
    }

    #[inline]
    fn step(&mut self, action: &[f32], _: &mut Pcg64, obs: &mut [f32]) -> Step {
        let torque = clip(action[0]);
        let reward = reward(square(wrap(self.theta)), square(self.theta_dot), torque.powf(black_box(2.0)));
        (self.theta, self.theta_dot) = advance(self.theta, self.theta_dot, torque, self.theta.sin(), self.g);
        self.last_torque = f64::from(torque);
        self.write(obs);
        Step { reward, terminated: false, truncated: false }
    }

    /// Returns angle, angular velocity and the last torque, which is NaN before the first step.
    fn state(&self) -> Option<Vec<f64>> {
        Some(vec![self.theta, self.theta_dot, self.last_torque])
    }

    fn check_state(&self, state: &[f64]) -> Result<()> {
        // The last torque is NaN before the first step.
        let known = if state.last().is_some_and(|torque| torque.is_nan()) { &state[..state.len() - 1] } else { state };
        check_state(known, 3 - (state.len() - known.len()))
    }

    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        self.check_state(state)?;
        (self.theta, self.theta_dot, self.last_torque) = (state[0], state[1], state[2]);
        self.write(obs);
        Ok(())
    }
}

// Steps of a block of environments.

/// The columns of the state are angle, angular velocity, last torque, and the sine of the angle.
///
/// The sine is stored because both the observation and the next step use it.
impl LaneEnv<4, 3> for Pendulum {
    type Scratch = LaneScratch<4>;

    const MIN_ENVS: usize = 4;
    const ENVS_PER_THREAD: usize = 1_024;

    type Number = f32;

    fn lane_state(&self) -> [f64; 4] {
        [self.theta, self.theta_dot, self.last_torque, self.theta.sin()]
    }

    fn set_lane_state(&mut self, state: [f64; 4]) {
        [self.theta, self.theta_dot, self.last_torque, _] = state;
    }

    fn step_block(
        &self,
        state: &mut [Block; 4],
        actions: &[f32; BLOCK],
        scratch: &mut Self::Scratch,
        out: LaneOut<'_, 3>,
    ) {
        let ([theta, theta_dot, last_torque, sin], count) = (state, out.count);
        let LaneScratch([angle, cos, angle_squared, speed_squared]) = scratch;
        let (mut torque, mut torque_squared) = ([0.0; BLOCK], [0.0; BLOCK]);
        wrap_all(theta, count, angle);
        clip_block(actions, &mut torque);
        trig::square(angle, count, angle_squared);
        trig::square(theta_dot, count, speed_squared);
        trig::square_f32(&torque, count, &mut torque_squared);
        reward_block(count, angle_squared, speed_squared, &torque_squared, out.reward);
        advance_block(count, self.g, &torque, sin, theta, theta_dot, last_torque);
        trig::sin_cos(theta, count, sin, cos);
        observe_block(count, cos, sin, theta_dot, out.obs);
        *out.terminated = [false; BLOCK];
    }
}

/// Writes the angles of the first `count` pendulums, wrapped to `[-pi, pi]`.
fn wrap_all(theta: &Block, count: usize, angle: &mut Block) {
    let mut fails = [true; BLOCK];
    if has_fast_lanes() {
        wrap_block(theta, count, angle, &mut fails);
    }
    recompute_failed(theta, count, angle, &fails, wrap);
}

multiversion! {
    fn wrap_block(theta: &Block, count: usize, angle: &mut Block, fails: &mut [bool; BLOCK]) {
        each_lane(theta, count, angle, fails, |theta| {
            const TWO_PI: f64 = 2.0 * PI;
            const MARGIN: f64 = 1e-6;
            let x = theta + PI;
            // Unless x is close to a multiple of 2 pi, the floor of the rounded quotient is exact.
            // The remainder is then rounded once, as in `modulo`, which for x < 0 rounds when it
            // adds 2 pi.
            let remainder = (-(x / TWO_PI).floor()).mul_add(TWO_PI, x);
            let in_range = x.abs() < 1e5 && remainder > MARGIN && remainder < TWO_PI - MARGIN;
            Rounded { value: remainder - PI, fails: !in_range }
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
    use crate::simd::tests::on_each_isa;

    #[test]
    fn one_step_by_hand() {
        // A horizontal pendulum at rest with torque 1: the cost is (pi/2)^2 + 0.001, the new
        // velocity (15 + 3) * 0.05.
        let mut env = Pendulum::default();
        let mut obs = [0.0; 3];
        env.set_state(&[PI / 2.0, 0.0, f64::NAN], &mut obs).unwrap();
        let step = env.step(&[1.0], &mut Pcg64::seed_from(0), &mut obs);
        assert!((step.reward + (PI / 2.0).powi(2) + 0.001).abs() < 1e-9);
        assert_eq!(obs[2], 0.9);
        assert!((f64::from(obs[0]) - (PI / 2.0 + 0.045).cos()).abs() < 1e-7);
        assert!(!step.terminated);
    }

    #[test]
    fn torque_and_speed_are_limited() {
        let mut env = Pendulum::default();
        let mut obs = [0.0; 3];
        env.set_state(&[PI / 2.0, 7.9, 0.0], &mut obs).unwrap();
        env.step(&[100.0], &mut Pcg64::seed_from(0), &mut obs);
        assert_eq!(obs[2], 8.0);
        assert_eq!(env.state().unwrap()[2], 2.0);
    }

    #[test]
    fn half_widths_beyond_f32_are_rejected() {
        let env = Pendulum::default();
        for (name, bad) in [("y_init", 1e39), ("x_init", f64::INFINITY), ("x_init", -0.1), ("y_init", 1e300)] {
            let result = env.check_options(&ResetOptions::new([(name, bad)]));
            let rejected = crate::testing::assert_rejects(result, Error::Config, "options");
            assert!(rejected.got.contains(&format!("{name} {bad}")), "{rejected}");
        }
        assert!(env.check_options(&ResetOptions::new([("y_init", 1e38)])).is_ok());
    }

    #[test]
    fn modulo_equals_python() {
        assert_eq!(modulo(-1.0, 4.0), 3.0);
        assert_eq!(modulo(5.0, 4.0), 1.0);
        assert_eq!(modulo(-4.0, 4.0), 0.0);
    }

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
