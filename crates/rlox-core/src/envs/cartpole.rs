//! `CartPole-v1`, bit-equal to Gymnasium's.
//!
//! # Description
//! A pole is hinged to a cart on a track. The task is to keep the pole upright by pushing the cart left or right
//! (Barto, Sutton and Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning control
//! problems").
//!
//! # Action Space
//! `Discrete(2)`: 0 pushes left, 1 pushes right, with 10 N.
//!
//! # Observation Space
//! `Box(4)` f32: cart position (m), cart velocity (m/s), pole angle (rad), pole angular velocity (rad/s).
//!
//! # Rewards
//! 1 per step, including the last. With `sutton_barto_reward`: 0 per step, and -1 for the step that terminates.
//!
//! # Starting State
//! All four numbers of the observation uniform in `[-0.05, 0.05)`.
//!
//! # Episode End
//! Terminated if the cart is more than 2.4 m from the centre or the pole more than 12 degrees from upright. Truncated
//! after 500 steps.
//!
//! # Arguments
//! `sutton_barto_reward` (default false). Reset options: `low` and `high`, the bounds of the starting state.
//!
//! # Version History
//! v1: the limit is 500 steps.

#![expect(
    clippy::inline_always,
    reason = "functions that are not inlined are not compiled for the wider instruction set"
)]

use std::sync::Arc;

use super::soa::{LaneEnv, LaneOut, LaneScratch};
use super::{bool_argument, bounds, check_bounds, check_state};
use crate::simd::{BLOCK, Block, LANES, multiversion, trig, vectors, vectors_mut};
use crate::{Env, EnvSpec, Pcg64, ResetOptions, Result, Space, Step};

const GRAVITY: f64 = 9.8;
const MASS_POLE: f64 = 0.1;
const TOTAL_MASS: f64 = MASS_POLE + 1.0;
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = MASS_POLE * LENGTH;
const FORCE: f64 = 10.0;
const TAU: f64 = 0.02;
const X_THRESHOLD: f64 = 2.4;
const THETA_THRESHOLD: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;
const START: (f64, f64) = (-0.05, 0.05);

/// The `CartPole-v1` environment. See the module for spaces, rewards and episode ends.
#[derive(Clone, Debug)]
pub struct CartPole {
    state: [f64; 4],
    sutton_barto_reward: bool,
    spec: Arc<EnvSpec>, // shared by all copies
}

impl Default for CartPole {
    fn default() -> Self {
        Self::new(false)
    }
}

impl CartPole {
    /// Creates a cart at rest in the centre of the track, with an upright pole.
    ///
    /// The reward is 1 per step. With `sutton_barto_reward`, it is -1 for the step that terminates
    /// the episode and 0 for all other steps.
    ///
    /// ```
    /// use rlox_core::{Env, envs::CartPole};
    /// assert_eq!(CartPole::new(false).spec().max_episode_steps, Some(500));
    /// ```
    pub fn new(sutton_barto_reward: bool) -> Self {
        let high = [(X_THRESHOLD * 2.0) as f32, f32::INFINITY, (THETA_THRESHOLD * 2.0) as f32, f32::INFINITY];
        let spec = Arc::new(EnvSpec {
            id: "CartPole-v1".into(),
            observation: Space::symmetric_box(&high),
            action: Space::discrete(2),
            max_episode_steps: Some(500),
        });
        Self { state: [0.0; 4], sutton_barto_reward, spec }
    }

    pub(super) fn from_arguments(arguments: &[(String, f64)]) -> Result<Self> {
        let name = "sutton_barto_reward";
        Ok(Self::new(bool_argument(arguments, &[name], name)?))
    }

    /// Returns the reward of a step.
    fn reward(&self, terminated: bool) -> f64 {
        match (self.sutton_barto_reward, terminated) {
            (false, _) => 1.0,
            (true, false) => 0.0,
            (true, true) => -1.0,
        }
    }

    fn write(&self, obs: &mut [f32]) {
        for (o, s) in obs.iter_mut().zip(self.state) {
            *o = s as f32;
        }
    }
}

/// Returns the force of an action in N.
#[inline(always)]
fn force(action: i64) -> f64 {
    if action == 1 { FORCE } else { -FORCE }
}

/// Returns the next state by Euler's method, in Gymnasium's order of operations for bit equality.
#[inline(always)]
fn dynamics([x, x_dot, theta, theta_dot]: [f64; 4], force: f64, sin: f64, cos: f64) -> [f64; 4] {
    let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
    let theta_acc = (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS));
    let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
    [x + TAU * x_dot, x_dot + TAU * x_acc, theta + TAU * theta_dot, theta_dot + TAU * theta_acc]
}

/// Returns true if the cart has left the track or the pole has fallen.
#[inline(always)]
fn has_fallen([x, _, theta, _]: [f64; 4]) -> bool {
    x.abs() > X_THRESHOLD || theta.abs() > THETA_THRESHOLD
}

impl Env for CartPole {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        check_bounds(options, START)
    }

    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        let (low, high) = bounds(options, START);
        self.state = std::array::from_fn(|_| rng.uniform(low, high));
        self.write(obs);
    }

    #[inline]
    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        let theta = self.state[2];
        self.state = dynamics(self.state, force(*action), theta.sin(), theta.cos());
        self.write(obs);
        let terminated = has_fallen(self.state);
        Step { reward: self.reward(terminated), terminated, truncated: false }
    }

    fn state(&self) -> Option<Vec<f64>> {
        Some(self.state.to_vec())
    }

    fn check_state(&self, state: &[f64]) -> Result<()> {
        check_state(state, 4)
    }

    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        self.check_state(state)?;
        self.state.copy_from_slice(state);
        self.write(obs);
        Ok(())
    }
}

// Steps of a block of environments.

impl LaneEnv<4, 4> for CartPole {
    type Scratch = LaneScratch<2>;

    const MIN_ENVS: usize = 8;
    const ENVS_PER_THREAD: usize = 2_048;

    type Number = i64;

    fn lane_state(&self) -> [f64; 4] {
        self.state
    }

    fn set_lane_state(&mut self, state: [f64; 4]) {
        self.state = state;
    }

    fn step_block(
        &self,
        state: &mut [Block; 4],
        actions: &[i64; BLOCK],
        scratch: &mut Self::Scratch,
        out: LaneOut<'_, 4>,
    ) {
        let LaneScratch([sin, cos]) = scratch;
        trig::sin_cos_near_zero(&state[2], out.count, sin, cos);
        let [x, x_dot, theta, theta_dot] = state;
        let LaneOut { count, obs, reward, terminated } = out;
        let rewards = [self.reward(false), self.reward(true)];
        step(count, x, x_dot, theta, theta_dot, actions, sin, cos, rewards, obs, reward, terminated);
    }
}

multiversion! {
    #[expect(clippy::too_many_arguments, reason = "the compiler only assumes disjoint columns if they are arguments")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_by_hand() {
        // A push to the right at rest and upright: temp = 10/1.1, theta_acc = -temp / (0.5 (4/3 -
        // 0.1/1.1)).
        let mut env = CartPole::default();
        let mut obs = [0.0; 4];
        env.set_state(&[0.0; 4], &mut obs).unwrap();
        let step = env.step(&1, &mut Pcg64::seed_from(0), &mut obs);
        let temp: f64 = 10.0 / 1.1;
        let theta_acc = -temp / (0.5 * (4.0 / 3.0 - 0.1 / 1.1));
        let x_acc = temp - 0.05 * theta_acc / 1.1;
        assert_eq!(obs[0], 0.0);
        assert!((f64::from(obs[1]) - 0.02 * x_acc).abs() < 1e-7);
        assert!((f64::from(obs[3]) - 0.02 * theta_acc).abs() < 1e-7);
        assert_eq!(step, Step { reward: 1.0, terminated: false, truncated: false });
    }

    #[test]
    fn falling_terminates_with_either_reward() {
        for (sutton_barto, reward) in [(false, 1.0), (true, -1.0)] {
            let mut env = CartPole::new(sutton_barto);
            let mut obs = [0.0; 4];
            env.set_state(&[2.39, 10.0, 0.0, 0.0], &mut obs).unwrap();
            let step = env.step(&1, &mut Pcg64::seed_from(0), &mut obs);
            assert_eq!(step, Step { reward, terminated: true, truncated: false });
        }
    }

    #[test]
    fn invalid_bounds_are_rejected() {
        let env = CartPole::default();
        for bad in [vec![("low", 1.0)], vec![("high", f64::INFINITY)], vec![("width", 1.0)], vec![("low", f64::NAN)]] {
            assert!(env.check_options(&ResetOptions::new(bad.clone())).is_err(), "{bad:?}");
        }
        assert!(env.check_options(&ResetOptions::new([("low", 0.02), ("high", 0.03)])).is_ok());
    }
}
