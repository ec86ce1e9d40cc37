//! Rollouts: stored fields, bootstrap values, actions sent to environments, and fields of every dtype.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    Actions, ActionsMut, AutoresetMode, Env, EnvSpec, Error, Normalizer, Pcg64, Policy, PolicyOut, RandomPolicy,
    ResetOptions, Result, RolloutBuffer, Seeds, Space, Step, VecEnv, VectorEnv, collect,
    envs::CartPole,
    field::{DType, FieldData, FieldMut},
    normalize::NormalizerOptions,
    rollout::{PolicyStep, Transition},
};

/// Environment whose reward is the action and whose observation is the number of steps. Episodes
/// are truncated after 2 steps.
#[derive(Clone)]
struct Echo {
    steps: f32,
    spec: EnvSpec,
}

impl Echo {
    fn new() -> Self {
        let spec = EnvSpec {
            id: "Echo".into(),
            observation: Space::uniform_box(0.0, 10.0, &[1]),
            action: Space::uniform_box(-1.0, 1.0, &[1]),
            max_episode_steps: Some(2),
        };
        Self { steps: 0.0, spec }
    }
}

impl Env for Echo {
    type Action = [f32];

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.steps = 0.0;
        obs[0] = 0.0;
    }

    fn step(&mut self, action: &[f32], _: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.steps += 1.0;
        obs[0] = self.steps;
        Step { reward: f64::from(action[0]), terminated: false, truncated: false }
    }
}

/// Policy with the action 5, which is outside the bounds, and the value 10 x for the observation x.
struct Five;

impl Policy for Five {
    fn act(&mut self, obs: &[f32], _: Option<&[bool]>, _: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        if let ActionsMut::Continuous(actions) = out.actions {
            actions.fill(5.0);
        }
        out.log_probs.fill(-0.5);
        self.value(obs, out.values)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        for (value, x) in values.iter_mut().zip(obs) {
            *value = 10.0 * x;
        }
        Ok(())
    }
}

fn f32s<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [f32] {
    let FieldData::F32(data) = buffer.field(name).unwrap().data() else { panic!("{name} is f32") };
    data
}

fn finals(buffer: &RolloutBuffer) -> &[f32] {
    let FieldData::F32(data) = buffer.final_obs() else { panic!("final observations are f32") };
    data
}

fn bools(buffer: &RolloutBuffer, name: &str) -> Vec<bool> {
    let FieldData::Bool(data) = buffer.field(name).unwrap().data() else { panic!("{name} is bool") };
    data.iter().map(|byte| *byte != 0).collect()
}

#[test]
fn collect_clips_actions_and_bootstraps_truncations() {
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Echo::new).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    collect(&mut env, &mut Five, &mut [Pcg64::seed_from(0)], &mut buffer, None, 0.5, 1.0).unwrap();
    assert_eq!(f32s(&buffer, "obs"), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(f32s(&buffer, "actions"), [5.0; 3], "actions are stored unclipped");
    assert_eq!(f32s(&buffer, "rewards"), [1.0; 3], "and sent clipped");
    assert_eq!((buffer.final_index(), buffer.final_obs()), (&[1][..], FieldData::F32(&[2.0])));
    assert_eq!(f32s(&buffer, "final_values"), [0.0, 20.0, 0.0]);
    // Return of step 1, truncated: 1 + 0.5 * V(2) = 11. Of step 0: 1 + 0.5 * 11. Of step 2: 1 +
    // 0.5 * V(1).
    assert_eq!(f32s(&buffer, "returns"), [6.5, 11.0, 6.0]);
    assert_eq!(f32s(&buffer, "advantages"), [6.5, 1.0, 6.0]);
}

#[test]
fn the_next_rollout_continues_the_last() {
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Echo::new).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    let mut rngs = [Pcg64::seed_from(0)];
    for first in [0.0, 1.0, 0.0] {
        collect(&mut env, &mut Five, &mut rngs, &mut buffer, None, 0.5, 1.0).unwrap();
        assert_eq!(f32s(&buffer, "obs")[0], first);
    }
}

#[test]
fn discrete_actions_are_sent_with_the_start_added() {
    struct Shifted(EnvSpec);
    impl Env for Shifted {
        type Action = i64;
        fn spec(&self) -> &EnvSpec {
            &self.0
        }
        fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
            obs[0] = 0.0;
        }
        fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
            obs[0] = *action as f32;
            Step { reward: 0.0, terminated: false, truncated: false }
        }
    }
    let spec = EnvSpec {
        id: "Shifted".into(),
        observation: Space::uniform_box(0.0, 10.0, &[1]),
        action: Space::Discrete { n: 3, start: 5 },
        max_episode_steps: None,
    };
    let mut env = VecEnv::new(2, Some(0), AutoresetMode::SameStep, || Shifted(spec.clone())).unwrap();
    let mut buffer = RolloutBuffer::for_env(1, &env).unwrap();
    buffer.begin(&mut env, Seeds::Keep, None).unwrap();
    let policy_step = PolicyStep { actions: Actions::Discrete(&[0, 2]), log_probs: &[0.0; 2], values: &[0.0; 2] };
    buffer.step(0, &mut env, policy_step, None).unwrap();
    assert_eq!(f32s(&buffer, "obs"), [0.0, 0.0, 5.0, 7.0]);
}

#[test]
fn steps_out_of_order_and_unfinished_rollouts_are_rejected() {
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default).unwrap();
    let mut buffer = RolloutBuffer::for_env(2, &env).unwrap();
    let policy_step = PolicyStep { actions: Actions::Discrete(&[0]), log_probs: &[0.0], values: &[0.0] };
    let unstarted = assert_rejects(buffer.step(0, &mut env, policy_step, None), Error::Config, "t");
    buffer.begin(&mut env, Seeds::Base(1), None).unwrap();
    let early = assert_rejects(buffer.step(1, &mut env, policy_step, None), Error::Config, "t");
    assert_eq!(assert_rejects(buffer.finish(&[0.0], &[], 0.9, 0.9), Error::Config, "finish").got, "0 of 2 steps");
    let bad = PolicyStep { actions: Actions::Discrete(&[7]), ..policy_step };
    assert!(matches!(buffer.step(0, &mut env, bad, None), Err(Error::Action(_))));
    let wrong_kind = PolicyStep { actions: Actions::Continuous(&[0.0]), ..policy_step };
    assert!(matches!(buffer.step(0, &mut env, wrong_kind, None), Err(Error::Space(_))));
    buffer.step(0, &mut env, policy_step, None).unwrap();
    buffer.step(1, &mut env, policy_step, None).unwrap();
    let late = assert_rejects(buffer.step(2, &mut env, policy_step, None), Error::Config, "t");
    assert_eq!([unstarted.got, early.got, late.got], ["0", "1", "2"]);
    assert!(matches!(buffer.finish(&[0.0], &[], 1.5, 0.9), Err(Error::Config(_))));
    buffer.finish(&[0.0], &[], 0.9, 0.9).unwrap();
}

#[test]
fn recorded_transitions_equal_native_steps() {
    let mut env = VecEnv::new(2, Some(0), AutoresetMode::SameStep, Echo::new).unwrap();
    let mut native = RolloutBuffer::for_env(2, &env).unwrap();
    let mut foreign = RolloutBuffer::new(2, 2, (&[1], DType::F32), (&[1], DType::F32)).unwrap();
    native.begin(&mut env, Seeds::Keep, None).unwrap();
    foreign.begin_with(FieldData::F32(&[0.0, 0.0]), true, None, None).unwrap();
    let policy_step = PolicyStep { actions: Actions::Continuous(&[0.5, 0.5]), log_probs: &[0.1; 2], values: &[0.2; 2] };
    for t in 0..2 {
        native.step(t, &mut env, policy_step, None).unwrap();
        let last = t == 1;
        let answered = Transition {
            next_obs: FieldData::F32(if last { &[0.0, 0.0] } else { &[1.0, 1.0] }),
            rewards: &[0.5, 0.5],
            terminated: &[false; 2],
            truncated: &[last; 2],
            final_obs: FieldData::F32(if last { &[2.0, 2.0] } else { &[] }),
        };
        if last {
            let missing = Transition { final_obs: FieldData::F32(&[]), ..answered };
            assert!(matches!(foreign.record(t, policy_step, missing, None), Err(Error::Shape(_))));
        }
        foreign.record(t, policy_step, answered, None).unwrap();
    }
    native.finish(&[1.0; 2], &[3.0; 2], 0.9, 0.8).unwrap();
    foreign.finish(&[1.0; 2], &[3.0; 2], 0.9, 0.8).unwrap();
    for (a, b) in native.fields().zip(foreign.fields()) {
        assert_eq!(a, b);
    }
    assert_eq!(native.final_obs(), foreign.final_obs());
}

#[test]
fn custom_fields_have_shape_and_dtype() {
    let buffer = RolloutBuffer::new(4, 2, (&[8, 8, 3], DType::U8), (&[], DType::I64)).unwrap();
    let buffer = buffer.with_field("hidden", &[16], DType::F64).unwrap();
    assert_eq!(buffer.field("hidden").unwrap().rows(), 8);
    assert_eq!(buffer.field("obs").unwrap().dtype(), DType::U8);
    assert!(matches!(buffer.with_field("values", &[], DType::F32), Err(Error::Config(_))));
    assert!(matches!(
        RolloutBuffer::new(1 << 40, 1 << 40, (&[4], DType::F32), (&[], DType::I64)),
        Err(Error::Memory(_))
    ));
}

#[test]
fn a_failing_policy_leaves_a_working_buffer() {
    /// Policy whose first computation of values fails if the field is true.
    struct Moody(bool);
    impl Policy for Moody {
        fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
            Five.act(obs, masks, rngs, out)
        }
        fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
            if std::mem::take(&mut self.0) { Err(Error::Backend("not now".into())) } else { Five.value(obs, values) }
        }
    }
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Echo::new).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    let (mut policy, mut rngs) = (Moody(true), [Pcg64::seed_from(0)]);
    assert!(matches!(collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.5, 1.0), Err(Error::Backend(_))));
    collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.5, 1.0).unwrap();
    assert_eq!(buffer.final_obs(), FieldData::F32(&[2.0, 2.0]));
}

#[test]
fn infinite_actions_are_rejected_before_clipping() {
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Echo::new).unwrap();
    let mut buffer = RolloutBuffer::for_env(1, &env).unwrap();
    buffer.begin(&mut env, Seeds::Keep, None).unwrap();
    let policy_step = PolicyStep { actions: Actions::Continuous(&[f32::INFINITY]), log_probs: &[0.0], values: &[0.0] };
    let infinite = assert_rejects(buffer.step(0, &mut env, policy_step, None), Error::NotFinite, "actions");
    assert_eq!((&infinite.got[..], infinite.at.env), ("inf", Some(0)));
}

#[test]
fn steps_that_only_reset_are_not_transitions() {
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::NextStep, Echo::new).unwrap();
    let mut buffer = RolloutBuffer::for_env(4, &env).unwrap();
    let mut rngs = [Pcg64::seed_from(0)];
    collect(&mut env, &mut Five, &mut rngs, &mut buffer, None, 0.5, 1.0).unwrap();
    assert_eq!(f32s(&buffer, "obs"), [0.0, 1.0, 2.0, 0.0, 1.0]);
    assert_eq!(bools(&buffer, "valid"), [true, true, false, true]);
    assert_eq!(f32s(&buffer, "rewards"), [1.0, 1.0, 0.0, 1.0]);
    assert_eq!((buffer.final_index(), buffer.final_obs()), (&[1][..], FieldData::F32(&[2.0])));
    // Without the reset, the returns are those of the test in SAME_STEP mode above. A reset has the
    // advantage 0.
    assert_eq!(f32s(&buffer, "returns"), [6.5, 11.0, 20.0, 6.0]);
    assert_eq!(f32s(&buffer, "advantages"), [6.5, 1.0, 0.0, 6.0]);
    assert_eq!(buffer.transitions(), 3);
    // The last step of the second rollout ends an episode, so the third rollout begins with a
    // reset.
    collect(&mut env, &mut Five, &mut rngs, &mut buffer, None, 0.5, 1.0).unwrap();
    assert_eq!(bools(&buffer, "valid"), [true, false, true, true]);
    assert_eq!(buffer.final_index(), [0, 3]);
    collect(&mut env, &mut Five, &mut rngs, &mut buffer, None, 0.5, 1.0).unwrap();
    assert_eq!(bools(&buffer, "valid"), [false, true, true, false]);
    assert_eq!(f32s(&buffer, "obs"), [2.0, 0.0, 1.0, 2.0, 0.0]);
    assert_eq!(buffer.transitions(), 2);
}

#[test]
fn collect_resets_environments_with_disabled_autoreset() {
    let fields = |mode| {
        let mut env = VecEnv::new(3, Some(0), mode, CartPole::default).unwrap().with_max_episode_steps(Some(5));
        let mut buffer = RolloutBuffer::for_env(20, &env).unwrap();
        let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
        let mut rngs = [1, 2, 3].map(Pcg64::seed_from);
        collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.5, 1.0).unwrap();
        let names = ["obs", "rewards", "advantages", "returns"];
        (names.map(|name| f32s(&buffer, name).to_vec()), finals(&buffer).to_vec(), bools(&buffer, "valid"))
    };
    assert_eq!(fields(AutoresetMode::Disabled), fields(AutoresetMode::SameStep));
    assert!(!fields(AutoresetMode::SameStep).1.is_empty());
}

#[test]
fn invalid_results_are_rejected_by_environment_and_row() {
    /// Environment whose observation or reward is NaN in the third step, as the third field
    /// selects.
    struct Spoilt(EnvSpec, usize, &'static str);
    impl Env for Spoilt {
        type Action = [f32];
        fn spec(&self) -> &EnvSpec {
            &self.0
        }
        fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
            obs[0] = 0.0;
        }
        fn step(&mut self, _: &[f32], _: &mut Pcg64, obs: &mut [f32]) -> Step {
            self.1 += 1;
            let bad = |part| if self.1 == 3 && self.2 == part { f64::NAN } else { 1.0 };
            obs[0] = bad("obs") as f32;
            Step { reward: bad("reward"), terminated: false, truncated: self.1 == 3 }
        }
    }
    for (part, mode, name) in [
        ("obs", AutoresetMode::NextStep, "next_obs"),
        ("obs", AutoresetMode::SameStep, "final_obs"),
        ("obs", AutoresetMode::Disabled, "final_obs"),
        ("reward", AutoresetMode::SameStep, "rewards"),
    ] {
        let spec = Echo::new().spec;
        let mut first = true;
        let make = || Spoilt(spec.clone(), 0, if std::mem::take(&mut first) { "" } else { part });
        let mut env = VecEnv::new(2, Some(0), mode, make).unwrap().with_max_episode_steps(None);
        let mut buffer = RolloutBuffer::for_env(4, &env).unwrap();
        let mut rngs = [0, 1].map(Pcg64::seed_from);
        let result = collect(&mut env, &mut Five, &mut rngs, &mut buffer, None, 0.5, 1.0);
        let nan = assert_rejects(result, Error::NotFinite, name);
        assert_eq!((&nan.got[..], nan.at.env, nan.at.row), ("NaN", Some(1), Some(2)));
        assert_eq!(buffer.next_step(), 2);
    }
}

#[test]
fn values_that_are_not_finite_are_rejected() {
    /// Policy whose method `value` returns NaN.
    struct Lost;
    impl Policy for Lost {
        fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
            Five.act(obs, masks, rngs, out)
        }
        fn value(&mut self, _: &[f32], values: &mut [f32]) -> Result<()> {
            values.fill(f32::NAN);
            Ok(())
        }
    }
    let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Echo::new).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    let result = collect(&mut env, &mut Lost, &mut [Pcg64::seed_from(0)], &mut buffer, None, 0.5, 1.0);
    assert_eq!(assert_rejects(result, Error::NotFinite, "last_values").got, "NaN");
}

#[test]
fn flag_bytes_other_than_zero_are_true() {
    let mut env = VecEnv::new(2, Some(0), AutoresetMode::SameStep, CartPole::default).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    buffer.begin(&mut env, Seeds::Keep, None).unwrap();
    let policy_step = PolicyStep { actions: Actions::Discrete(&[0, 1]), log_probs: &[0.0; 2], values: &[0.5; 2] };
    for t in 0..3 {
        buffer.step(t, &mut env, policy_step, None).unwrap();
    }
    for byte in [1, 2, 255] {
        let Some(FieldMut::Bool(flags)) = buffer.field_mut("terminated") else { panic!("bytes") };
        flags[1] = byte;
        buffer.finish(&[1.0; 2], &[], 0.9, 0.9).unwrap();
        assert_eq!(f32s(&buffer, "advantages")[1], 0.5);
    }
}

/// Returns the debug text of the concatenation of `parts`.
fn joined(parts: &[FieldData<'_>]) -> String {
    let inner = |part| {
        let text = format!("{part:?}");
        text.split_once("([").unwrap().1.trim_end_matches("])").to_owned()
    };
    let all: Vec<_> = parts.iter().map(inner).collect();
    format!("{:?}([{}])", parts[0].dtype(), all.join(", "))
}

#[test]
fn observations_of_any_dtype_are_stored_unchanged() {
    let (u8s, f64s, i64s, flags) = (
        [[3_u8, 255], [7, 0]],
        [[0.1_f64, 1e300], [2.0, -1.0]],
        [[1_i64, i64::MAX], [0, 4]],
        [[true, false], [false, true]],
    );
    let kinds: [[FieldData<'_>; 2]; 4] = [
        [(&u8s[0][..]).into(), (&u8s[1][..]).into()],
        [(&f64s[0][..]).into(), (&f64s[1][..]).into()],
        [(&i64s[0][..]).into(), (&i64s[1][..]).into()],
        [(&flags[0][..]).into(), (&flags[1][..]).into()],
    ];
    for [first, second] in kinds {
        let dtype = first.dtype();
        let mut buffer = RolloutBuffer::new(2, 1, (&[2], dtype), (&[], DType::I64)).unwrap();
        let wrong = FieldData::F32(&[0.0; 2]);
        let rejected = assert_rejects(buffer.begin_with(wrong, true, None, None), Error::Shape, "obs");
        assert_eq!((rejected.expected, &rejected.got[..]), (format!("{dtype:?} elements"), "F32"));
        buffer.begin_with(first, true, None, None).unwrap();
        let policy_step = PolicyStep { actions: Actions::Discrete(&[0]), log_probs: &[0.0], values: &[0.5] };
        let answered = Transition {
            next_obs: second,
            rewards: &[1.0],
            terminated: &[false],
            truncated: &[true],
            final_obs: first,
        };
        let result = buffer.record(0, policy_step, Transition { next_obs: wrong, ..answered }, None);
        assert_rejects(result, Error::Shape, "next_obs");
        buffer.record(0, policy_step, answered, None).unwrap();
        let never = Transition { truncated: &[false], final_obs: FieldData::F32(&[]), ..answered };
        buffer.record(1, policy_step, never, None).unwrap();
        assert_eq!(buffer.final_obs(), first);
        assert_eq!(format!("{:?}", buffer.field("obs").unwrap().data()), joined(&[first, second, second]));
        buffer.finish(&[1.0], &[2.0], 0.5, 1.0).unwrap();
        // The advantages are 1 + 0.5 * 2 - 0.5 and 1 + 0.5 * 1 - 0.5.
        assert_eq!(f32s(&buffer, "advantages"), [1.5, 1.0]);

        let mut normalizer = Normalizer::new(1, 2, NormalizerOptions::default()).unwrap();
        let result = buffer.begin_with(first, true, None, Some(&mut normalizer));
        assert_eq!(
            assert_rejects(result, Error::Config, "normalizer").got,
            format!("a buffer of {dtype:?} observations")
        );
        let rewards_only = NormalizerOptions { obs: false, ..NormalizerOptions::default() };
        let mut normalizer = Normalizer::new(1, 2, rewards_only).unwrap();
        buffer.begin_with(first, true, None, Some(&mut normalizer)).unwrap();
        buffer.record(0, policy_step, answered, Some(&mut normalizer)).unwrap();
        assert_eq!(buffer.final_obs(), first);
    }
}

#[test]
fn rows_with_too_many_axes_are_rejected() {
    let new = |axes| RolloutBuffer::new(1, 1, (&vec![1; axes], DType::F32), (&[], DType::I64));
    assert_eq!(new(32).unwrap().field("obs").unwrap().shape().len(), 32);
    assert_eq!(assert_rejects(new(33), Error::Shape, "obs_shape").got, "33");
    assert!(new(32).unwrap().with_field("costs", &[1; 33], DType::F32).is_err());
}

#[test]
fn many_custom_fields_are_found() {
    let mut buffer = RolloutBuffer::new(2, 3, (&[4], DType::F32), (&[], DType::I64)).unwrap();
    for i in 0..1000 {
        buffer = buffer.with_field(&format!("field {i}"), &[1 + i % 3], DType::U8).unwrap();
    }
    for i in 0..1000 {
        let name = format!("field {i}");
        let Some(FieldMut::U8(data)) = buffer.field_mut(&name) else { panic!("{name}") };
        assert_eq!(data.len(), 6 * (1 + i % 3));
        data[0] = i as u8;
        assert_eq!(buffer.field(&name).unwrap().name(), name);
    }
    assert_eq!(buffer.fields().count(), 11 + 1000);
    for name in ["field 999", "obs", "returns"] {
        assert!(buffer.fields().any(|field| field.name() == name));
    }
    let duplicate = assert_rejects(buffer.with_field("field 7", &[], DType::F32), Error::Config, "name");
    assert_eq!(duplicate.got, "\"field 7\"");
}
