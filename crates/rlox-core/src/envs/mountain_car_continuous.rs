//! `MountainCarContinuous-v0`, bit-equal to Gymnasium's.
//!
//! # Description
//! The car of `MountainCar-v0` with a continuous engine force. A multiple of the square of the
//! action is subtracted from the reward.
//!
//! # Action Space
//! `Box(-1, 1, (1,))` f32: the force. For the motion of the car, the action is clipped to the
//! bounds; for the reward, it is not.
//!
//! # Observation Space
//! `Box(2)` f32: position within `[-1.2, 0.6]` (m), velocity within `[-0.07, 0.07]` (m per step).
//!
//! # Rewards
//! `-0.1 * action^2`, plus 100 for the step that reaches the goal.
//!
//! # Starting State
//! Position uniform in `[-0.6, -0.4)`, velocity 0.
//!
//! # Episode End
//! Terminated at a position of at least 0.45, if the velocity is at least `goal_velocity`.
//! Truncated after 999 steps.
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

use super::mountain_car::{MAX_POSITION, MAX_SPEED, MIN_POSITION, START, observation_space};
use super::soa::{LaneEnv, LaneOut, LaneScratch};
use super::{argument, bounds, check_bounds, check_flag, check_state};
use crate::simd::{BLOCK, Block, LANES, lane_bits, multiversion, trig, vectors, vectors_mut};
use crate::{Env, EnvSpec, Pcg64, ResetOptions, Result, Space, Step};

const GOAL_POSITION: f64 = 0.45;
const POWER: f64 = 0.0015;
const GRAVITY: f64 = 0.0025;

/// The `MountainCarContinuous-v0` environment. See the module for spaces, rewards and episode ends.
#[derive(Clone, Debug)]
pub struct MountainCarContinuous {
    car: Car,
    goal_velocity: f64,
    spec: Arc<EnvSpec>, // shared by all copies
}

/// Position and velocity with Gymnasium's precision: f64 after a reset, f32 after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Car {
    Reset([f64; 2]),
    Stepped([f32; 2]),
}

impl Default for MountainCarContinuous {
    fn default() -> Self {
        Self::new(0.0)
    }
}

impl MountainCarContinuous {
    /// Creates a car at rest at position 0. To reach the goal, the car needs a velocity of at least
    /// `goal_velocity` (m per step).
    ///
    /// ```
    /// use rlox_core::{Env, envs::MountainCarContinuous};
    /// assert_eq!(MountainCarContinuous::default().spec().max_episode_steps, Some(999));
    /// ```
    pub fn new(goal_velocity: f64) -> Self {
        let spec = Arc::new(EnvSpec {
            id: "MountainCarContinuous-v0".into(),
            observation: observation_space(),
            action: Space::uniform_box(-1.0, 1.0, &[1]),
            max_episode_steps: Some(999),
        });
        Self { car: Car::Reset([0.0; 2]), goal_velocity, spec }
    }

    pub(super) fn from_arguments(arguments: &[(String, f64)]) -> Result<Self> {
        Ok(Self::new(argument(arguments, &["goal_velocity"], "goal_velocity", 0.0)?))
    }

    fn write(&self, obs: &mut [f32]) {
        let values = match self.car {
            Car::Reset(state) => state.map(|x| x as f32),
            Car::Stepped(state) => state,
        };
        obs[..2].copy_from_slice(&values);
    }
}

/// Returns position and velocity after the first step of an episode, and true if the goal is
/// reached.
///
/// The step is computed in f64. Only the acceleration by an action that was not clipped is computed
/// in f32, as in Gymnasium.
#[inline]
fn advance_reset([position, velocity]: [f64; 2], action: f32, goal_velocity: f64) -> ([f32; 2], bool) {
    let pull = GRAVITY * (3.0 * position).cos();
    let mut velocity = velocity
        + match clipped(action) {
            Some(force) => force * POWER - pull,
            None => f64::from(action * POWER as f32 - pull as f32),
        };
    velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED);
    let position = (position + velocity).clamp(MIN_POSITION, MAX_POSITION);
    if position == MIN_POSITION && velocity < 0.0 {
        velocity = 0.0;
    }
    ([position as f32, velocity as f32], position >= GOAL_POSITION && velocity >= goal_velocity)
}

/// Returns position and velocity after a later step, and true if the goal is reached. `cos` is the
/// cosine of [`slope`].
///
/// The step is computed in f32, with two exceptions. The acceleration by a clipped action is
/// computed in f64, and a clipped velocity is compared with the goal velocity in f64. The reason is
/// that clipping in Gymnasium replaces a NumPy f32 by a Python float, which is an f64.
#[inline(always)]
fn advance([position, velocity]: [f32; 2], cos: f64, action: f32, goal_velocity: f64) -> ([f32; 2], bool) {
    const SPEED: f32 = MAX_SPEED as f32;
    let pull = GRAVITY * cos;
    let velocity = velocity
        + match clipped(action) {
            Some(force) => (force * POWER - pull) as f32,
            None => action * POWER as f32 - pull as f32,
        };
    let reaches_goal_velocity = if velocity > SPEED {
        MAX_SPEED >= goal_velocity
    } else if velocity < -SPEED {
        -MAX_SPEED >= goal_velocity
    } else {
        velocity >= goal_velocity as f32
    };
    let mut velocity = velocity.clamp(-SPEED, SPEED);
    let position = (position + velocity).clamp(MIN_POSITION as f32, MAX_POSITION as f32);
    if position == MIN_POSITION as f32 && velocity < 0.0 {
        velocity = 0.0;
    }
    ([position, velocity], position >= GOAL_POSITION as f32 && reaches_goal_velocity)
}

/// Returns three times the position, computed in f32. The cosine of this number is the slope of the
/// hill.
#[inline(always)]
fn slope(position: f32) -> f64 {
    f64::from(3.0 * position)
}

/// Returns the reward of a step. The square of an f32 is exact in f64, so the product equals the
/// `pow` of Gymnasium.
#[inline(always)]
fn reward(action: f32, terminated: bool) -> f64 {
    let effort = f64::from(action) * f64::from(action);
    if terminated { 100.0 - effort * 0.1 } else { 0.0 - effort * 0.1 }
}

/// Returns the bound that replaces an action outside [-1, 1]. In Gymnasium, the bound is a Python
/// float.
///
/// Returns `None` if the action is not replaced. In Gymnasium, it then stays a NumPy f32.
#[inline(always)]
fn clipped(action: f32) -> Option<f64> {
    if action > 1.0 {
        Some(1.0)
    } else if action < -1.0 {
        Some(-1.0)
    } else {
        None
    }
}

impl Env for MountainCarContinuous {
    type Action = [f32];

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        check_bounds(options, START)
    }

    fn reset(&mut self, rng: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        let (low, high) = bounds(options, START);
        self.car = Car::Reset([rng.uniform(low, high), 0.0]);
        self.write(obs);
    }

    #[inline]
    fn step(&mut self, action: &[f32], _: &mut Pcg64, obs: &mut [f32]) -> Step {
        let action = action[0];
        let (state, terminated) = match self.car {
            Car::Reset(state) => advance_reset(state, action, self.goal_velocity),
            Car::Stepped(state) => advance(state, slope(state[0]).cos(), action, self.goal_velocity),
        };
        self.car = Car::Stepped(state);
        self.write(obs);
        Step { reward: reward(action, terminated), terminated, truncated: false }
    }

    /// Returns position, velocity and a flag. The flag is 0 after a reset, when the numbers are
    /// f64, and 1 after a step, when they are f32.
    fn state(&self) -> Option<Vec<f64>> {
        let ([position, velocity], stepped) = match self.car {
            Car::Reset(state) => (state, 0.0),
            Car::Stepped(state) => (state.map(f64::from), 1.0),
        };
        Some(vec![position, velocity, stepped])
    }

    fn check_state(&self, state: &[f64]) -> Result<()> {
        check_state(state, 3)?;
        check_flag(state)
    }

    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        self.check_state(state)?;
        self.car = if state[2] == 0.0 {
            Car::Reset([state[0], state[1]])
        } else {
            Car::Stepped([state[0] as f32, state[1] as f32])
        };
        self.write(obs);
        Ok(())
    }
}

// Steps of a block of environments. Only the steps after the first step of an episode are computed
// in f32.

/// The columns of the state are the numbers of [`Env::state`].
impl LaneEnv<3, 2> for MountainCarContinuous {
    type Scratch = LaneScratch<2>;

    const MIN_ENVS: usize = 8;
    const ENVS_PER_THREAD: usize = 2_048;

    type Number = f32;

    fn lane_state(&self) -> [f64; 3] {
        match self.car {
            Car::Reset([position, velocity]) => [position, velocity, 0.0],
            Car::Stepped([position, velocity]) => [f64::from(position), f64::from(velocity), 1.0],
        }
    }

    fn set_lane_state(&mut self, [position, velocity, stepped]: [f64; 3]) {
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
        out: LaneOut<'_, 2>,
    ) {
        let ([position, velocity, stepped], LaneOut { count, obs, reward: rewards, terminated }) = (state, out);
        let LaneScratch([angle, cos]) = scratch;
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
    /// Steps the cars that have made a step since their reset. The state of all other cars is
    /// unchanged.
    #[expect(clippy::too_many_arguments, reason = "the compiler only assumes disjoint columns if they are arguments")]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn step(env: &mut MountainCarContinuous, action: f32) -> (Step, [f32; 2]) {
        let mut obs = [0.0; 2];
        (env.step(&[action], &mut Pcg64::seed_from(0), &mut obs), obs)
    }

    #[test]
    fn two_steps_by_hand() {
        // cos(3 * 0) = 1, so the velocity after full force is 0.0015 - 0.0025. The action costs
        // 0.1.
        let mut env = MountainCarContinuous::default();
        let (first, obs) = step(&mut env, 1.0);
        assert_eq!(first, Step { reward: -0.1, terminated: false, truncated: false });
        assert!(obs.iter().all(|x| (x + 0.001).abs() < 1e-9), "{obs:?}");
        let (_, obs) = step(&mut env, 0.0);
        assert!((f64::from(obs[1]) + 0.001 + 0.0025 * 0.003_f64.cos()).abs() < 1e-9);
    }

    #[test]
    fn the_engine_clips_the_action_and_the_cost_does_not() {
        let (mut env, mut twin) = (MountainCarContinuous::default(), MountainCarContinuous::default());
        let ((stronger, obs), (_, expected)) = (step(&mut env, 3.0), step(&mut twin, 1.0));
        assert!((obs[1] - expected[1]).abs() < 1e-9);
        assert!((stronger.reward + 0.9).abs() < 1e-12);
    }

    #[test]
    fn the_goal_gives_a_hundred_and_needs_its_velocity() {
        for (goal_velocity, reward) in [(0.0, 100.0), (0.05, 0.0)] {
            let mut env = MountainCarContinuous::new(goal_velocity);
            env.set_state(&[0.44, 0.03, 1.0], &mut [0.0; 2]).unwrap();
            let (step, _) = step(&mut env, 0.0);
            assert_eq!((step.reward, step.terminated), (reward, reward > 0.0));
        }
    }

    #[test]
    fn a_velocity_at_its_limit_is_compared_as_f64() {
        let (above, below) = (0.07 + 1e-10, 0.07);
        assert_eq!(above as f32, MAX_SPEED as f32);
        let fast = [0.44, 0.0699];
        let cos = slope(fast[0]).cos();
        assert!(!advance(fast, cos, 1.0, above).1);
        assert!(!advance_reset(fast.map(f64::from), 1.0, above).1);
        assert!(advance(fast, cos, 1.0, below).1);
    }

    #[test]
    fn the_left_wall_stops_the_car() {
        assert_eq!(advance([-1.18, -0.069], slope(-1.18).cos(), -1.0, 0.0), ([MIN_POSITION as f32, 0.0], false));
        assert_eq!(advance_reset([-1.18, -0.069], -1.0, 0.0), ([MIN_POSITION as f32, 0.0], false));
    }

    #[test]
    fn a_restored_state_continues_in_the_same_precision() {
        let mut env = MountainCarContinuous::default();
        env.reset(&mut Pcg64::seed_from(3), &ResetOptions::default(), &mut [0.0; 2]);
        for _ in 0..3 {
            let mut copy = MountainCarContinuous::default();
            copy.set_state(&env.state().unwrap(), &mut [0.0; 2]).unwrap();
            assert_eq!(copy.car, env.car);
            assert_eq!(step(&mut copy, 0.3), step(&mut env, 0.3));
        }
    }
}
