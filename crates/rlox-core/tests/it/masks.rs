//! Tests of action masks in every autoreset mode.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    ActionsMut, AutoresetMode, Env, EnvSpec, Error, Pcg64, Policy, PolicyOut, RandomPolicy, ResetOptions, Result,
    RolloutBuffer, Space, Step, VecEnv, VectorEnv, collect,
    envs::CartPole,
    field::{DType, FieldData},
};

/// A corridor of five cells. The three actions, in ascending order, go left, stay and go right.
///
/// Staying is allowed only in the middle cell, and moves into a wall are never allowed. The episode
/// terminates in the rightmost cell, where no action is allowed.
#[derive(Clone)]
struct Corridor {
    at: usize,
    spec: EnvSpec,
}

const END: usize = 4;

impl Corridor {
    fn new() -> Self {
        let spec = EnvSpec {
            id: "Corridor".into(),
            observation: Space::uniform_box(0.0, 4.0, &[1]),
            action: Space::Discrete { n: 3, start: 1 },
            max_episode_steps: Some(9),
        };
        Self { at: 0, spec }
    }
}

fn allowed(at: usize) -> [bool; 3] {
    [(1..END).contains(&at), at == 2, at < END]
}

impl Env for Corridor {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.at = 0;
        obs[0] = 0.0;
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        let action = usize::try_from(*action - 1).unwrap();
        assert!(allowed(self.at)[action], "{action} at {}", self.at);
        self.at = self.at + action - 1;
        obs[0] = self.at as f32;
        Step { reward: 1.0, terminated: self.at == END, truncated: false }
    }

    fn has_action_mask(&self) -> bool {
        true
    }

    fn action_mask(&self, mask: &mut [bool]) {
        mask.copy_from_slice(&allowed(self.at));
    }
}

fn flags<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [u8] {
    let FieldData::Bool(data) = buffer.field(name).unwrap().data() else { panic!("{name} are flags") };
    data
}

fn f32s<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [f32] {
    let FieldData::F32(data) = buffer.field(name).unwrap().data() else { panic!("{name} are f32") };
    data
}

/// Checks masks and log-probabilities of every row, and that every allowed action was drawn in
/// every cell.
fn check(buffer: &RolloutBuffer, mode: AutoresetMode) {
    let FieldData::I64(actions) = buffer.field("actions").unwrap().data() else { panic!("actions are integers") };
    let mut counts_at = [[0; 3]; END];
    for (row, mask) in flags(buffer, "action_masks").chunks_exact(3).enumerate() {
        if flags(buffer, "valid")[row] == 0 {
            assert_eq!((mask, mode), (&[1; 3][..], AutoresetMode::NextStep));
            continue;
        }
        let (at, action) = (f32s(buffer, "obs")[row] as usize, usize::try_from(actions[row]).unwrap());
        assert_eq!(mask, allowed(at).map(u8::from), "{mode:?}, row {row}");
        assert_eq!(f32s(buffer, "log_probs")[row], -f32::from(mask.iter().sum::<u8>()).ln());
        counts_at[at][action] += 1;
    }
    for (at, counts) in counts_at.iter().enumerate() {
        assert_eq!(counts.map(|count| count > 0), allowed(at), "at {at}");
    }
}

#[test]
fn only_allowed_actions_are_drawn_and_masks_are_stored() {
    for mode in [AutoresetMode::SameStep, AutoresetMode::NextStep, AutoresetMode::Disabled] {
        let mut env = VecEnv::new(5, Some(0), mode, Corridor::new).unwrap();
        let mut buffer = RolloutBuffer::for_env(100, &env).unwrap();
        let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
        let mut rngs = [0, 1, 2, 3, 4].map(Pcg64::seed_from);
        for _ in 0..3 {
            collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.9, 0.9).unwrap();
            check(&buffer, mode);
        }
        assert_eq!(buffer.transitions() == 500, mode != AutoresetMode::NextStep);
    }
}

/// A policy that rejects masks.
struct Unmasked;

impl Policy for Unmasked {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        assert!(masks.is_none());
        RandomPolicy::new(&Space::discrete(2))?.act(obs, None, rngs, out)
    }

    fn value(&mut self, _: &[f32], values: &mut [f32]) -> Result<()> {
        values.fill(0.0);
        Ok(())
    }
}

#[test]
fn without_masks_there_is_no_field_and_the_policy_receives_none() {
    let mut env = VecEnv::new(2, Some(0), AutoresetMode::SameStep, CartPole::default).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    assert!(!env.has_action_masks() && buffer.field("action_masks").is_none());
    let mut rngs = [0, 1].map(Pcg64::seed_from);
    collect(&mut env, &mut Unmasked, &mut rngs, &mut buffer, None, 0.9, 0.9).unwrap();
    let mut masks = [false; 4];
    env.action_masks(&mut masks).unwrap();
    assert_eq!(masks, [true; 4]);
}

#[test]
fn invalid_masks_are_rejected() {
    let mut env = VecEnv::new(2, Some(0), AutoresetMode::SameStep, Corridor::new).unwrap();
    assert!(matches!(env.action_masks(&mut [false; 5]), Err(Error::Shape(_))));
    let mut buffer = RolloutBuffer::new(3, 2, (&[1], DType::F32), (&[], DType::I64)).unwrap();
    let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
    let mut rngs = [0, 1].map(Pcg64::seed_from);
    let result = collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.9, 0.9);
    let rejected = assert_rejects(result, Error::Space, "buffer");
    assert_eq!(rejected.expected, "a Bool field action_masks for 3 actions");

    let (mut actions, mut log_probs, mut values) = ([9; 2], [0.0; 2], [0.0; 2]);
    let out = PolicyOut { actions: ActionsMut::Discrete(&mut actions), log_probs: &mut log_probs, values: &mut values };
    let masks = [true, false, true, false, false, false];
    let rejected = assert_rejects(policy.act(&[0.0; 2], Some(&masks), &mut rngs, out), Error::Action, "masks");
    assert_eq!((&rejected.got[..], rejected.at.env), ("none", Some(1)));
    assert_eq!(actions, [9; 2]);

    let vectors = || {
        let mut env = Corridor::new();
        env.spec.action = Space::MultiDiscrete { nvec: vec![3] };
        env
    };
    assert_rejects(VecEnv::new(1, Some(0), AutoresetMode::SameStep, vectors), Error::Space, "action_mask");
}
