//! Tests that environments return the same results and errors through the plugin interface as
//! without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlox_core::__private::testing::assert_rejects;
use rlox_core::envs::{self, CartPole, MakeOptions};
use rlox_core::{
    Actions, AutoresetMode, Env, EnvSpec, Error, Pcg64, RandomPolicy, ResetOptions, Result, RolloutBuffer, Seeds,
    Space, Step, StepOut, VecEnv, VectorEnv, collect,
    field::{DType, FieldData},
    plugin::EnvPlugin,
    vector::EpisodeProgress,
};

const MODES: [AutoresetMode; 3] = [AutoresetMode::NextStep, AutoresetMode::SameStep, AutoresetMode::Disabled];
const N: usize = 5;

fn options(mode: AutoresetMode, arguments: &[(String, f64)]) -> MakeOptions<'_> {
    MakeOptions { num_envs: N, seed: Some(3), autoreset_mode: mode, arguments, ..Default::default() }
}

/// Creates a plugin that makes the native environment `id`.
fn natives(id: &'static str) -> EnvPlugin {
    EnvPlugin::new(move |options| envs::make(id, options))
}

fn text<T>(result: Result<T>) -> String {
    result.err().map_or_else(String::new, |error| format!("{error:?}: {error}"))
}

/// Results of a step, and the state of all environments after it.
type StepRecord = (
    Vec<f32>,
    Vec<f64>,
    Vec<bool>,
    Vec<bool>,
    Vec<f32>,
    Vec<Option<Vec<u64>>>,
    Vec<Option<EpisodeProgress>>,
    Vec<Pcg64>,
);

fn step(env: &mut dyn VectorEnv, actions: Actions<'_>) -> (String, StepRecord) {
    let dim = env.spec().observation.dim();
    let (mut obs, mut reward, mut final_obs) = (vec![0.0; N * dim], vec![0.0; N], vec![0.0; N * dim]);
    let (mut terminated, mut truncated) = (vec![false; N], vec![false; N]);
    let out = StepOut {
        obs: &mut obs,
        reward: &mut reward,
        terminated: &mut terminated,
        truncated: &mut truncated,
        final_obs: &mut final_obs,
    };
    let error = text(env.step(actions, out));
    // States are compared as bits, because the last torque of Pendulum is NaN before the first
    // action.
    let bits = |state: Vec<f64>| state.into_iter().map(f64::to_bits).collect();
    let states = (0..=N).map(|i| env.state(i).map(bits)).collect();
    let progress = (0..=N).map(|i| env.progress(i)).collect();
    (error, (obs, reward, terminated, truncated, final_obs, states, progress, env.rngs().unwrap_or_default()))
}

fn episodes(env: &mut dyn VectorEnv) -> (Vec<f64>, Vec<u32>, u64) {
    let (mut returns, mut lengths) = (Vec::new(), Vec::new());
    env.episodes().drain(&mut returns, &mut lengths);
    (returns, lengths, env.episodes().total())
}

#[test]
fn plugin_environments_equal_native_ones_in_every_mode() {
    for id in envs::ids() {
        for mode in MODES {
            let limit = Some(Some(40));
            let options = MakeOptions { max_episode_steps: limit, ..options(mode, &[]) };
            let mut ours = envs::make(id, &options).unwrap();
            let mut theirs = natives(id).make(&options).unwrap();
            assert_eq!((theirs.spec(), theirs.num_envs()), (ours.spec(), N));
            assert_eq!((theirs.autoreset_mode(), theirs.has_action_masks()), (mode, false));
            let dim = ours.spec().observation.dim();
            let (mut a, mut b) = (vec![0.0; N * dim], vec![0.0; N * dim]);
            let each = [Some(1), None, Some(9), None, Some(0)];
            for seeds in [Seeds::Base(7), Seeds::Each(&each), Seeds::Keep] {
                ours.reset(seeds, None, &ResetOptions::default(), &mut a).unwrap();
                theirs.reset(seeds, None, &ResetOptions::default(), &mut b).unwrap();
                assert_eq!(a, b);
            }
            for t in 0..130 {
                let discrete: Vec<i64> = (0..N as i64).map(|i| (i + t) % 2).collect();
                let continuous = vec![0.5; N];
                let actions = match ours.spec().action {
                    Space::Discrete { .. } => Actions::Discrete(&discrete),
                    _ => Actions::Continuous(&continuous),
                };
                let (expected, got) = (step(&mut *ours, actions), step(&mut *theirs, actions));
                assert_eq!(got, expected, "{id} {mode:?} at {t}");
                let over: Vec<bool> = expected.1.2.iter().zip(&expected.1.3).map(|(a, b)| *a || *b).collect();
                if mode == AutoresetMode::Disabled && over.contains(&true) {
                    ours.reset(Seeds::Keep, Some(&over), &ResetOptions::default(), &mut a).unwrap();
                    theirs.reset(Seeds::Keep, Some(&over), &ResetOptions::default(), &mut b).unwrap();
                    assert_eq!(a, b);
                }
                theirs.observe(&mut b).unwrap();
                ours.observe(&mut a).unwrap();
                assert_eq!(a, b);
                if t == 60 {
                    assert_eq!(episodes(&mut *theirs), episodes(&mut *ours));
                }
            }
            let log = episodes(&mut *theirs);
            assert!(log.2 > 5, "{log:?}");
            assert_eq!(log, episodes(&mut *ours));
        }
    }
}

#[test]
fn errors_equal_those_of_native_environments() {
    let options = options(AutoresetMode::SameStep, &[]);
    let mut pair = [envs::make("CartPole-v1", &options).unwrap(), natives("CartPole-v1").make(&options).unwrap()];
    let none = ResetOptions::default();
    let wrong = ResetOptions::new([("high", f64::NAN)]);
    let progress = EpisodeProgress { steps: 1, episode_return: f64::NAN, finished: true };
    let texts = pair.each_mut().map(|env| {
        let mut obs = [0.0; 4 * N];
        let mut texts = vec![step(&mut **env, Actions::Discrete(&[0; N])).0, text(env.observe(&mut obs))];
        texts.push(text(env.reset(Seeds::Keep, Some(&[true, true, false, true, true]), &none, &mut obs)));
        texts.push(text(env.reset(Seeds::Keep, None, &wrong, &mut obs)));
        texts.push(text(env.reset(Seeds::Each(&[None]), None, &none, &mut obs)));
        texts.push(text(env.reset(Seeds::Keep, None, &none, &mut obs[1..])));
        env.reset(Seeds::Keep, None, &none, &mut obs).unwrap();
        texts.push(step(&mut **env, Actions::Discrete(&[0, 1, 2, 0, 0])).0);
        texts.push(step(&mut **env, Actions::Discrete(&[0])).0);
        texts.push(step(&mut **env, Actions::Continuous(&[0.0; N])).0);
        texts.push(text(env.check_state(0, &[1.0], EpisodeProgress::default())));
        texts.push(text(env.check_state(1, &[0.0; 4], progress)));
        texts.push(text(env.check_state(N, &[0.0; 4], EpisodeProgress::default())));
        texts.push(text(env.set_state(N, &[0.0; 4])));
        texts.push(text(env.set_progress(N, progress)));
        texts.push(text(env.set_rngs(&[])));
        texts.push(text(env.action_masks(&mut [true])));
        texts
    });
    assert!(texts[0].iter().all(|text| !text.is_empty()), "{:?}", texts[0]);
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn states_and_streams_can_be_transferred() {
    let options = options(AutoresetMode::SameStep, &[]);
    let mut first = natives("Pendulum-v1").make(&options).unwrap();
    let mut second = natives("Pendulum-v1").make(&options).unwrap();
    let mut obs = [0.0; 3 * N];
    first.reset(Seeds::Base(1), None, &ResetOptions::default(), &mut obs).unwrap();
    for i in 0..N {
        let (state, progress) = (first.state(i).unwrap(), first.progress(i).unwrap());
        second.check_state(i, &state, progress).unwrap();
        second.set_state(i, &state).unwrap();
        second.set_progress(i, progress).unwrap();
    }
    second.set_rngs(&first.rngs().unwrap()).unwrap();
    for _ in 0..300 {
        let actions = Actions::Continuous(&[1.0; N]);
        assert_eq!(step(&mut *first, actions), step(&mut *second, actions));
    }
}

/// Environment that counts its actions, masks actions that would reach a limit, and panics at the
/// limit.
#[derive(Clone)]
struct Counter {
    at: i64,
    panics_at: i64,
    spec: EnvSpec,
    alive: Arc<AtomicUsize>,
}

impl Counter {
    fn new(action: Space, panics_at: i64, alive: &Arc<AtomicUsize>) -> Self {
        let spec = EnvSpec {
            id: "Counter-v0".into(),
            observation: Space::uniform_box(0.0, f32::INFINITY, &[1]),
            action,
            max_episode_steps: Some(7),
        };
        Self { at: 0, panics_at, spec, alive: alive.clone() }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.alive.fetch_add(1, Ordering::SeqCst);
    }
}

impl Env for Counter {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.at = 0;
        obs[0] = 0.0;
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.at += action;
        assert!(self.at < self.panics_at, "the count is {}", self.at);
        obs[0] = self.at as f32;
        Step { reward: 1.0, terminated: false, truncated: false }
    }

    fn has_action_mask(&self) -> bool {
        true
    }

    fn action_mask(&self, mask: &mut [bool]) {
        for (i, allowed) in mask.iter_mut().enumerate() {
            *allowed = self.at + (i as i64) < self.panics_at;
        }
    }
}

fn counters(panics_at: i64, alive: &Arc<AtomicUsize>) -> EnvPlugin {
    let alive = alive.clone();
    EnvPlugin::new(move |options| options.build_vec_env(Counter::new(Space::discrete(3), panics_at, &alive)))
}

#[test]
fn rollouts_respect_masks() {
    let mut env = counters(6, &Arc::default()).make(&options(AutoresetMode::SameStep, &[])).unwrap();
    let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
    let mut buffer = RolloutBuffer::for_env(200, &*env).unwrap();
    let mut rngs: Vec<_> = (0..N as u128).map(Pcg64::seed_from).collect();
    collect(&mut *env, &mut policy, &mut rngs, &mut buffer, None, 0.99, 0.95).unwrap();
    let field = buffer.field("action_masks").unwrap();
    let FieldData::Bool(masks) = field.data() else { panic!("{:?}", DType::Bool) };
    assert!(masks.contains(&0) && masks.chunks(3).all(|mask| mask[0] == 1));
}

#[test]
fn a_panic_is_an_error_and_closes_the_environment() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let plugin = counters(3, &dropped);
    let mut env = plugin.make(&options(AutoresetMode::SameStep, &[])).unwrap();
    drop(plugin);
    let mut obs = [0.0; N];
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).unwrap();
    assert_eq!(step(&mut *env, Actions::Discrete(&[2; N])).0, "");
    let error = step(&mut *env, Actions::Discrete(&[0, 0, 1, 0, 0])).0;
    assert!(error.contains("the environment panicked: the count is 3"), "{error}");
    assert!(text(env.observe(&mut obs)).contains("panicked in an earlier call; create a new one"));
    assert_eq!((env.state(0), env.progress(0), env.rngs().is_err()), (None, None, true));
    assert_eq!(episodes(&mut *env), (vec![], vec![], 0));
    let before = dropped.load(Ordering::SeqCst);
    drop(env);
    assert_eq!(dropped.load(Ordering::SeqCst), before + N, "the library frees its environments");
}

#[test]
fn failed_constructions_are_rejected() {
    let wanted = options(AutoresetMode::SameStep, &[]);
    let panics = EnvPlugin::new(|_| panic!("no {}", "luck"));
    assert!(text(panics.make(&wanted)).contains("Backend"));
    assert!(text(panics.make(&wanted)).contains("panicked: no luck"));
    let fewer =
        EnvPlugin::new(|options| MakeOptions { num_envs: 1, ..options.clone() }.build_vec_env(CartPole::default()));
    let rejected = assert_rejects(fewer.make(&wanted), Error::Config, "make");
    assert_eq!(
        (&rejected.expected[..], &rejected.got[..]),
        ("5 environments in SameStep mode", "1 in SameStep mode from the library")
    );
    let zero = MakeOptions { max_episode_steps: Some(Some(0)), ..options(AutoresetMode::SameStep, &[]) };
    assert_rejects(natives("CartPole-v1").make(&zero), Error::Config, "max_episode_steps");
    let endless = MakeOptions { max_episode_steps: Some(None), ..options(AutoresetMode::SameStep, &[]) };
    assert_eq!(natives("CartPole-v1").make(&endless).unwrap().spec().max_episode_steps, None);
    let masked = EnvPlugin::new(|options| {
        let spec = Space::Discrete { n: 0, start: 0 };
        Ok(Box::new(VecEnv::new(options.num_envs, None, options.autoreset_mode, || {
            Counter::new(spec.clone(), 1, &Arc::default())
        })?))
    });
    assert_rejects(masked.make(&wanted), Error::Space, "action space");
}

#[test]
fn arguments_are_passed_to_and_checked_by_the_library() {
    let arguments = [("g".to_string(), 2.5), ("π".to_string(), 3.0)];
    let plugin = EnvPlugin::new(|options| {
        assert_eq!(options.argument(&["g", "π"], "π", 0.0)?, 3.0);
        envs::make("Pendulum-v1", &MakeOptions { arguments: &options.arguments[..1], ..options.clone() })
    });
    assert!(plugin.make(&options(AutoresetMode::SameStep, &arguments)).is_ok());
    let unknown = natives("Pendulum-v1").make(&options(AutoresetMode::SameStep, &arguments));
    assert_eq!(assert_rejects(unknown, Error::Config, "arguments").got, "\"π\"");
}

#[test]
fn dropped_episodes_are_counted() {
    let limit = MakeOptions { max_episode_steps: Some(Some(1)), ..options(AutoresetMode::SameStep, &[]) };
    let mut env = natives("CartPole-v1").make(&limit).unwrap();
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 4 * N]).unwrap();
    for _ in 0..4000 {
        step(&mut *env, Actions::Discrete(&[0; N]));
    }
    let (returns, lengths, total) = episodes(&mut *env);
    assert_eq!((returns.len(), lengths.len(), total), (16_384, 16_384, 20_000));
}
