//! Tests of snapshots, and of the rules of vectorised environments, with an environment of known
//! results.

use std::borrow::Cow;

use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::envs::{self, CartPole, MakeOptions};
use rlox_core::{
    Actions, AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Seeds, Space, Step, StepOut, VecEnv,
    VectorEnv,
    vector::{EnvSnapshot, EpisodeProgress},
};

/// Environment that adds the actions to a count, and terminates at a count of at least 3.
///
/// The observation is the count and the number of the episode.
#[derive(Clone)]
struct Counter {
    count: f32,
    episode: f32,
    spec: EnvSpec,
}

impl Counter {
    fn new() -> Self {
        let spec = EnvSpec {
            id: "Counter".into(),
            observation: Space::uniform_box(0.0, 100.0, &[2]),
            action: Space::discrete(4),
            max_episode_steps: Some(5),
        };
        Self { count: 0.0, episode: 0.0, spec }
    }
}

impl Env for Counter {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: &mut Pcg64, options: &ResetOptions, obs: &mut [f32]) {
        self.count = options.get("count").unwrap_or(0.0) as f32;
        self.episode += 1.0;
        obs.copy_from_slice(&[self.count, self.episode]);
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.count += *action as f32;
        obs.copy_from_slice(&[self.count, self.episode]);
        Step { reward: *action as f64, terminated: self.count >= 3.0, truncated: false }
    }

    fn check_options(&self, options: &ResetOptions) -> Result<()> {
        options.check_known(&["count"])
    }
}

struct Batch<V> {
    env: V,
    obs: Vec<f32>,
    reward: Vec<f64>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    final_obs: Vec<f32>,
}

impl<V: VectorEnv> Batch<V> {
    fn new(env: V) -> Self {
        let (n, d) = (env.num_envs(), env.spec().observation.dim());
        Self {
            env,
            obs: vec![0.0; n * d],
            reward: vec![0.0; n],
            terminated: vec![false; n],
            truncated: vec![false; n],
            final_obs: vec![-1.0; n * d],
        }
    }

    fn reset(&mut self, mask: Option<&[bool]>, options: &ResetOptions) -> Result<()> {
        self.env.reset(Seeds::Keep, mask, options, &mut self.obs)
    }

    fn step(&mut self, actions: &[i64]) -> Result<()> {
        let out = StepOut {
            obs: &mut self.obs,
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            final_obs: &mut self.final_obs,
        };
        self.env.step(Actions::Discrete(actions), out)
    }
}

fn counters(n: usize, mode: AutoresetMode) -> Batch<VecEnv<Counter>> {
    let mut batch = Batch::new(VecEnv::new(n, Some(0), mode, Counter::new).unwrap());
    batch.reset(None, &ResetOptions::default()).unwrap();
    batch
}

#[test]
fn same_step_returns_the_next_episode_and_the_final_observation() {
    let mut batch = counters(2, AutoresetMode::SameStep);
    batch.step(&[3, 1]).unwrap();
    assert_eq!(batch.obs, [0.0, 2.0, 1.0, 1.0]);
    assert_eq!(batch.final_obs, [3.0, 1.0, -1.0, -1.0], "only rows that ended are written");
    assert_eq!((&batch.reward[..], &batch.terminated[..]), (&[3.0, 1.0][..], &[true, false][..]));
}

#[test]
fn next_step_resets_in_a_separate_step() {
    let mut batch = counters(2, AutoresetMode::NextStep);
    batch.step(&[3, 1]).unwrap();
    assert_eq!((batch.obs[0], batch.terminated[0]), (3.0, true));
    batch.step(&[2, 1]).unwrap();
    assert_eq!(batch.obs, [0.0, 2.0, 2.0, 1.0]);
    assert_eq!((batch.reward[0], batch.terminated[0]), (0.0, false), "the action of a reset row is ignored");
}

#[test]
fn disabled_autoreset_needs_a_reset_by_mask() {
    let mut batch = counters(2, AutoresetMode::Disabled);
    batch.step(&[3, 1]).unwrap();
    let before = batch.obs.clone();
    assert_eq!(assert_rejects(batch.step(&[1, 1]), Error::Action, "step").at.env, Some(0));
    assert_eq!(batch.obs, before);
    batch.reset(Some(&[true, false]), &ResetOptions::new([("count", 1.0)])).unwrap();
    assert_eq!(batch.obs, [1.0, 2.0, 1.0, 1.0], "the other environment keeps its observation");
    batch.step(&[1, 1]).unwrap();
    assert_eq!(batch.obs[..1], [2.0]);
}

#[test]
fn the_time_limit_truncates_and_may_coincide_with_termination() {
    let mut batch = counters(2, AutoresetMode::SameStep);
    for _ in 0..4 {
        batch.step(&[0, 0]).unwrap();
        assert_eq!(batch.truncated, [false, false]);
    }
    batch.step(&[0, 3]).unwrap();
    assert_eq!((&batch.terminated[..], &batch.truncated[..]), (&[false, true][..], &[true, true][..]));
    assert_eq!(batch.final_obs, [0.0, 1.0, 3.0, 1.0]);
}

#[test]
fn episodes_are_counted_with_return_and_length() {
    let mut batch = counters(2, AutoresetMode::SameStep);
    batch.step(&[2, 0]).unwrap();
    batch.step(&[2, 3]).unwrap();
    let (mut returns, mut lengths) = (Vec::new(), Vec::new());
    batch.env.episodes().drain(&mut returns, &mut lengths);
    assert_eq!((returns, lengths), (vec![4.0, 3.0], vec![2, 2]));
}

#[test]
fn a_rejected_call_changes_nothing() {
    let mut batch = counters(2, AutoresetMode::SameStep);
    let mut twin = counters(2, AutoresetMode::SameStep);
    assert!(matches!(batch.step(&[0, 4]), Err(Error::Action(_))));
    assert!(matches!(batch.step(&[0]), Err(Error::Shape(_))));
    assert!(matches!(batch.reset(None, &ResetOptions::new([("size", 1.0)])), Err(Error::Config(_))));
    assert!(matches!(batch.reset(Some(&[true]), &ResetOptions::default()), Err(Error::Shape(_))));
    batch.truncated.pop();
    assert!(matches!(batch.step(&[0, 0]), Err(Error::Shape(_))));
    batch.truncated.push(false);
    batch.step(&[1, 2]).unwrap();
    twin.step(&[1, 2]).unwrap();
    assert_eq!(batch.obs, twin.obs);
}

#[test]
fn stepping_before_reset_is_rejected() {
    let mut batch = Batch::new(VecEnv::new(2, None, AutoresetMode::SameStep, Counter::new).unwrap());
    assert_eq!(assert_rejects(batch.step(&[0, 0]), Error::Action, "step").got, "a call before reset");
    assert!(batch.reset(Some(&[true, false]), &ResetOptions::default()).is_err(), "the second env was never reset");
    assert!(batch.env.observe(&mut [0.0; 4]).is_err());
}

#[test]
fn environment_i_draws_from_seed_plus_i() {
    let make = |n, seed| Batch::new(VecEnv::new(n, Some(seed), AutoresetMode::SameStep, CartPole::default).unwrap());
    let (mut three, mut one) = (make(3, 10), make(1, 12));
    three.reset(None, &ResetOptions::default()).unwrap();
    one.reset(None, &ResetOptions::default()).unwrap();
    assert_eq!(three.obs[8..], one.obs[..]);
    three.env.reset(Seeds::Each(&[None, Some(12), None]), None, &ResetOptions::default(), &mut three.obs).unwrap();
    assert_eq!(three.obs[4..8], one.obs[..]);
    let mut again = make(3, 10);
    again.reset(None, &ResetOptions::default()).unwrap();
    again.reset(None, &ResetOptions::default()).unwrap();
    assert_eq!(three.obs[..4], again.obs[..4], "a stream without a new seed continues");
}

#[test]
fn streams_without_a_seed_differ() {
    let mut batch = Batch::new(VecEnv::new(2, None, AutoresetMode::SameStep, CartPole::default).unwrap());
    batch.reset(None, &ResetOptions::default()).unwrap();
    assert_ne!(batch.obs[..4], batch.obs[4..]);
}

#[test]
fn random_streams_can_be_saved_and_restored() {
    let mut batch = Batch::new(VecEnv::new(2, Some(3), AutoresetMode::SameStep, CartPole::default).unwrap());
    let rngs = batch.env.rngs().unwrap();
    batch.reset(None, &ResetOptions::default()).unwrap();
    let first = batch.obs.clone();
    batch.env.set_rngs(&rngs).unwrap();
    batch.reset(None, &ResetOptions::default()).unwrap();
    assert_eq!(batch.obs, first);
    assert!(batch.env.set_rngs(&rngs[..1]).is_err());
}

#[test]
fn a_restored_state_has_the_same_observation() {
    let make = || {
        let options = MakeOptions { num_envs: 1, seed: Some(1), ..Default::default() };
        envs::make("CartPole-v1", &options).unwrap()
    };
    let (mut a, mut b) = (make(), make());
    let mut obs = [0.0; 4];
    a.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).unwrap();
    b.set_state(0, &a.state(0).unwrap()).unwrap();
    let mut other = [0.0; 4];
    b.observe(&mut other).unwrap();
    assert_eq!(obs, other);
    assert!(b.set_state(1, &[0.0; 4]).is_err());
    assert!(b.set_state(0, &[0.0; 3]).is_err());
}

#[test]
fn too_many_environments_are_rejected_before_allocation() {
    let new = |n| VecEnv::new(n, Some(0), AutoresetMode::SameStep, CartPole::default);
    let rejected = assert_rejects(new(1 << 62), Error::Memory, "num_envs");
    assert!(rejected.got.contains("4611686018427387904"), "{rejected}");
    assert_rejects(new(0), Error::Config, "num_envs");
}

#[test]
fn invalid_states_are_rejected_by_environment_and_index() {
    for id in envs::ids() {
        for num_envs in [2, 70] {
            let options = envs::MakeOptions {
                num_envs,
                seed: Some(1),
                autoreset_mode: AutoresetMode::NextStep,
                ..Default::default()
            };
            let mut env = envs::make(id, &options).unwrap();
            let mut obs = vec![0.0; num_envs * env.spec().observation.dim()];
            env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).unwrap();
            let good = env.state(1).unwrap();
            let progress = EpisodeProgress { steps: 3, episode_return: -1.0, finished: true };
            env.check_state(1, &good, progress).unwrap();
            for at in 0..good.len() {
                let unknown_torque = id == "Pendulum-v1" && at == 2;
                for bad in [f64::NAN, f64::INFINITY, 1e39].into_iter().filter(|x| !(unknown_torque && x.is_nan())) {
                    let mut state = good.clone();
                    state[at] = bad;
                    let variant: Variant = if bad.is_finite() { Error::Config } else { Error::NotFinite };
                    let rejected = assert_rejects(env.check_state(1, &state, progress), variant, "states");
                    assert_eq!(
                        (rejected.got, rejected.at.env, rejected.at.index),
                        (bad.to_string(), Some(1), Some(at))
                    );
                    assert!(env.set_state(1, &state).is_err());
                }
            }
            let bits = |state: Vec<f64>| state.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(env.state(1).unwrap()), bits(good));
        }
    }
}

fn cartpole(n: usize) -> Box<dyn VectorEnv> {
    let autoreset_mode = AutoresetMode::NextStep;
    let options = envs::MakeOptions { num_envs: n, seed: Some(0), autoreset_mode, ..Default::default() };
    envs::make("CartPole-v1", &options).unwrap()
}

/// Steps `count` times and returns all observations and rewards.
fn run(env: &mut dyn VectorEnv, count: usize) -> (Vec<f32>, Vec<f64>) {
    let n = env.num_envs();
    let (mut obs, mut reward) = (vec![0.0; 4 * n], vec![0.0; n]);
    let (mut terminated, mut truncated, mut all) = (vec![false; n], vec![false; n], (vec![], vec![]));
    for _ in 0..count {
        let out = StepOut {
            obs: &mut obs,
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut [],
        };
        env.step(Actions::Discrete(&vec![1; n]), out).unwrap();
        all.0.extend_from_slice(&obs);
        all.1.extend_from_slice(&reward);
    }
    all
}

/// Creates `n` environments, of which some have a finished episode if `n` is large.
fn partly_finished(n: usize) -> Box<dyn VectorEnv> {
    let mut env = cartpole(n);
    env.reset(Seeds::Base(7), None, &ResetOptions::default(), &mut vec![0.0; 4 * n]).unwrap();
    run(env.as_mut(), 9);
    env
}

#[test]
fn a_restored_snapshot_continues_exactly() {
    for n in [2, 70] {
        let mut env = partly_finished(n);
        let snapshot = EnvSnapshot::capture(env.as_ref()).unwrap().unwrap();
        assert!(n == 2 || snapshot.finished.contains(&true));
        assert!(snapshot.episode_steps.iter().any(|steps| *steps > 0));
        let mut copy = cartpole(n);
        snapshot.restore_into(copy.as_mut()).unwrap();
        assert_eq!(EnvSnapshot::capture(copy.as_ref()).unwrap().as_ref(), Some(&snapshot));
        assert_eq!(run(copy.as_mut(), 60), run(env.as_mut(), 60));
    }
}

#[test]
fn invalid_snapshots_change_nothing() {
    type Change = fn(&mut EnvSnapshot<'_>);
    let changes: [(Change, Variant, &str, &str); 8] = [
        (|s| s.states.to_mut().truncate(3), Error::Shape, "states", "1 numbers"),
        (|s| s.states.to_mut()[7] = f64::NAN, Error::NotFinite, "states", "NaN"),
        (|s| s.episode_returns = Cow::Borrowed(&[0.0]), Error::Shape, "episode_returns", "1"),
        (|s| s.episode_steps.to_mut()[1] = -1, Error::Config, "episode_steps", "-1"),
        (|s| s.episode_steps = Cow::Borrowed(&[]), Error::Shape, "episode_steps", "0"),
        (|s| s.finished = Cow::Borrowed(&[true; 3]), Error::Shape, "finished", "3"),
        (|s| s.streams.to_mut()[6 + 3] = 2, Error::Config, "streams", "2"),
        (|s| s.streams.to_mut().truncate(11), Error::Shape, "streams", "11"),
    ];
    let good = EnvSnapshot::capture(partly_finished(2).as_ref()).unwrap().unwrap();
    for (change, variant, argument, got) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        let mut env = partly_finished(2);
        run(env.as_mut(), 1);
        let before = EnvSnapshot::capture(env.as_ref()).unwrap();
        for result in [bad.check(env.as_ref()), bad.restore_into(env.as_mut())] {
            let rejected = assert_rejects(result, variant, argument);
            assert!(rejected.got.ends_with(got), "{rejected}");
            let is_nan = got == "NaN";
            assert_eq!((rejected.at.env, rejected.at.index), (is_nan.then_some(1), is_nan.then_some(3)));
        }
        assert_eq!(EnvSnapshot::capture(env.as_ref()).unwrap(), before, "{argument}");
    }
}
