//! `MountainCar-v0`, bit-equal to Gymnasium's.
//!
//! # Description
//! A car in a valley is too weak to climb the right hill directly. The car must swing to and fro to reach the flag
//! (Moore 1990, "Efficient Memory-Based Learning for Robot Control", University of Cambridge, UCAM-CL-TR-209).
//!
//! # Action Space
//! `Discrete(3)`: 0 pushes left, 1 does nothing, 2 pushes right.
//!
//! # Observation Space
//! `Box(2)` f32: position within `[-1.2, 0.6]` (m), velocity within `[-0.07, 0.07]` (m per step).
//!
//! # Rewards
//! -1 per step, including the last.
//!
//! # Starting State
//! Position uniform in `[-0.6, -0.4)`, velocity 0.
//!
//! # Episode End
//! Terminated at a position of at least 0.5, if the velocity is at least `goal_velocity`. Truncated
//! after 200 steps.
//!
//! # Arguments
//! `goal_velocity` (default 0). Reset options: `low` and `high`, the bounds of the starting position.
//!
//! # Version History
//! v0: first version.

#![expect(
    clippy::inline_always,
    reason = "functions that are not inlined are not compiled for the wider instruction set"
)]

use std::sync::Arc;

use super::soa::{LaneEnv, LaneOut, LaneScratch};
use super::{argument, bounds, check_bounds, check_state};
use crate::simd::{BLOCK, Block, LANES, multiversion, trig, vectors, vectors_mut};
use crate::{Env, EnvSpec, Pcg64, ResetOptions, Result, Space, Step};

pub(super) const MIN_POSITION: f64 = -1.2;
pub(super) const MAX_POSITION: f64 = 0.6;
pub(super) const MAX_SPEED: f64 = 0.07;
/// Default bounds of the starting position.
pub(super) const START: (f64, f64) = (-0.6, -0.4);
const GOAL_POSITION: f64 = 0.5;
const FORCE: f64 = 0.001;
const GRAVITY: f64 = 0.0025;

/// The `MountainCar-v0` environment. See the module for spaces, rewards and episode ends.
#[derive(Clone, Debug)]
pub struct MountainCar {
    state: [f64; 2],
    goal_velocity: f64,
    spec: Arc<EnvSpec>, // shared by all copies
}

impl Default for MountainCar {
    fn default() -> Self {
        Self::new(0.0)
    }
}

impl MountainCar {
    /// Creates a car at rest at position 0. To reach the goal, the car needs a velocity of at least
    /// `goal_velocity` (m per step).
    ///
    /// ```
    /// use rlox_core::{Env, envs::MountainCar};
    /// assert_eq!(MountainCar::new(0.05).spec().max_episode_steps, Some(200));
    /// ```
    pub fn new(goal_velocity: f64) -> Self {
        let spec = Arc::new(EnvSpec {
            id: "MountainCar-v0".into(),
            observation: observation_space(),
            action: Space::discrete(3),
            max_episode_steps: Some(200),
        });
        Self { state: [0.0; 2], goal_velocity, spec }
    }

    pub(super) fn from_arguments(arguments: &[(String, f64)]) -> Result<Self> {
        Ok(Self::new(argument(arguments, &["goal_velocity"], "goal_velocity", 0.0)?))
    }

    fn write(&self, obs: &mut [f32]) {
        for (o, s) in obs.iter_mut().zip(self.state) {
            *o = s as f32;
        }
    }
}

pub(super) fn observation_space() -> Space {
    let speed = MAX_SPEED as f32;
    Space::Box { shape: vec![2], low: vec![MIN_POSITION as f32, -speed], high: vec![MAX_POSITION as f32, speed] }
}

/// Returns position and velocity after a step, and true if the goal is reached.
///
/// `cos` is the cosine of three times the position, the slope of the hill. The operations are in
/// Gymnasium's order, so that results are bit-equal.
#[inline(always)]
fn advance([position, velocity]: [f64; 2], cos: f64, action: i64, goal_velocity: f64) -> ([f64; 2], bool) {
    let push = (action - 1) as f64 * FORCE + cos * -GRAVITY;
    let mut velocity = (velocity + push).clamp(-MAX_SPEED, MAX_SPEED);
    let position = (position + velocity).clamp(MIN_POSITION, MAX_POSITION);
    if position == MIN_POSITION && velocity < 0.0 {
        velocity = 0.0;
    }
    ([position, velocity], position >= GOAL_POSITION && velocity >= goal_velocity)
}

impl Env for MountainCar {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        check_bounds(options, START)
    }

    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        let (low, high) = bounds(options, START);
        self.state = [rng.uniform(low, high), 0.0];
        self.write(obs);
    }

    #[inline]
    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        let cos = (3.0 * self.state[0]).cos();
        let (state, terminated) = advance(self.state, cos, *action, self.goal_velocity);
        self.state = state;
        self.write(obs);
        Step { reward: -1.0, terminated, truncated: false }
    }

    /// Returns position and velocity.
    fn state(&self) -> Option<Vec<f64>> {
        Some(self.state.to_vec())
    }

    fn check_state(&self, state: &[f64]) -> Result<()> {
        check_state(state, 2)
    }

    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        self.check_state(state)?;
        self.state.copy_from_slice(state);
        self.write(obs);
        Ok(())
    }
}

// Steps of a block of environments.

impl LaneEnv<2, 2> for MountainCar {
    type Scratch = LaneScratch<2>;

    const MIN_ENVS: usize = 8;
    const ENVS_PER_THREAD: usize = 2_048;

    type Number = i64;

    fn lane_state(&self) -> [f64; 2] {
        self.state
    }

    fn set_lane_state(&mut self, state: [f64; 2]) {
        self.state = state;
    }

    fn step_block(
        &self,
        state: &mut [Block; 2],
        actions: &[i64; BLOCK],
        scratch: &mut Self::Scratch,
        out: LaneOut<'_, 2>,
    ) {
        let ([position, velocity], count) = (state, out.count);
        let LaneScratch([slope, cos]) = scratch;
        for (slope, position) in slope.iter_mut().zip(&*position) {
            *slope = 3.0 * position;
        }
        trig::cos(slope, count, cos);
        step(count, position, velocity, actions, cos, self.goal_velocity, out.obs, out.terminated);
        *out.reward = [-1.0; BLOCK];
    }
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "the compiler only assumes disjoint columns if they are arguments")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_by_hand() {
        // At position 0, cos(3 * 0) = 1, so the velocity after a push to the right is 0.001 -
        // 0.0025.
        let mut env = MountainCar::default();
        let mut obs = [0.0; 2];
        env.set_state(&[0.0, 0.0], &mut obs).unwrap();
        let step = env.step(&2, &mut Pcg64::seed_from(0), &mut obs);
        assert_eq!(obs, [-0.0015, -0.0015]);
        assert_eq!(step, Step { reward: -1.0, terminated: false, truncated: false });
        env.step(&1, &mut Pcg64::seed_from(0), &mut obs);
        assert!((f64::from(obs[1]) + 0.0015 + 0.0025 * 0.0045_f64.cos()).abs() < 1e-9);
    }

    #[test]
    fn the_left_wall_stops_the_car_and_speed_is_limited() {
        let (state, terminated) = advance([-1.18, -0.069], (3.0_f64 * -1.18).cos(), 0, 0.0);
        assert_eq!((state, terminated), ([MIN_POSITION, 0.0], false));
        assert_eq!(advance([-0.9, 0.0699], (3.0_f64 * -0.9).cos(), 2, 0.0).0[1], MAX_SPEED);
    }

    #[test]
    fn the_goal_needs_its_velocity() {
        for (goal_velocity, reached) in [(0.0, true), (0.03, true), (0.06, false)] {
            assert_eq!(advance([0.48, 0.04], 1.44_f64.cos(), 2, goal_velocity).1, reached, "{goal_velocity}");
        }
    }

    #[test]
    fn invalid_bounds_are_rejected() {
        let env = MountainCar::default();
        for bad in [vec![("low", 0.0)], vec![("high", f64::INFINITY)], vec![("width", 1.0)], vec![("low", f64::NAN)]] {
            assert!(env.check_options(&ResetOptions::new(bad.clone())).is_err(), "{bad:?}");
        }
        assert!(env.check_options(&ResetOptions::new([("low", -0.5), ("high", -0.5)])).is_ok());
    }
}
