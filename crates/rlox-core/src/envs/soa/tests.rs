//! Tests that [`SoaVecEnv`] returns the same bits as [`VecEnv`] on every instruction set.

use proptest::prelude::*;

use super::*;
use crate::envs::{Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum};
use crate::interrupt::tests::run_with_checks;
use crate::simd::tests::on_each_isa;
use crate::{Space, VecEnv};

/// A vectorised environment and its output slices.
struct Batched<V> {
    env: V,
    obs: Vec<f32>,
    reward: Vec<f64>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    final_obs: Vec<f32>,
}

impl<V: VectorEnv> Batched<V> {
    fn new(env: V) -> Self {
        let (n, d) = (env.num_envs(), env.spec().observation.dim());
        let (obs, final_obs) = (vec![0.0; n * d], vec![0.0; n * d]);
        Self { env, obs, reward: vec![0.0; n], terminated: vec![false; n], truncated: vec![false; n], final_obs }
    }

    fn reset(&mut self, seeds: Seeds<'_>, mask: Option<&[bool]>, options: &ResetOptions) -> Result<()> {
        self.env.reset(seeds, mask, options, &mut self.obs)
    }

    fn step(&mut self, actions: Actions<'_>) -> Result<()> {
        let out = StepOut {
            obs: &mut self.obs,
            reward: &mut self.reward,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            final_obs: &mut self.final_obs,
        };
        self.env.step(actions, out)
    }

    fn wait_for_reset(&self) -> Vec<bool> {
        self.terminated.iter().zip(&self.truncated).map(|(a, b)| a | b).collect()
    }

    /// Returns all outputs as bits, with one bit pattern for all NaNs.
    fn output_bits(&mut self) -> Vec<u64> {
        let bits = |x: f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
        let mut output: Vec<u64> = self.obs.iter().chain(&self.final_obs).map(|x| bits(f64::from(*x))).collect();
        output.extend(self.reward.iter().map(|x| bits(*x)));
        output.extend(self.terminated.iter().chain(&self.truncated).map(|x| u64::from(*x)));
        let (mut returns, mut lengths) = (Vec::new(), Vec::new());
        self.env.episodes().drain(&mut returns, &mut lengths);
        output.extend(returns.iter().map(|x| bits(*x)));
        output.extend(lengths.iter().map(|x| u64::from(*x)));
        output
    }

    /// Returns the bits of states and observations, and the random generators. Calls take longer
    /// than those of `output_bits`.
    fn inside(&self) -> (Vec<u64>, Vec<Pcg64>) {
        let mut obs = vec![0.0; self.obs.len()];
        self.env.observe(&mut obs).unwrap();
        let states = (0..self.env.num_envs()).flat_map(|i| self.env.state(i).unwrap());
        let numbers = states.chain(obs.into_iter().map(f64::from));
        (numbers.map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect(), self.env.rngs().unwrap())
    }
}

fn random_actions(space: &Space, n: usize, rng: &mut Pcg64) -> (Vec<i64>, Vec<f32>) {
    match space {
        Space::Discrete { n: k, start } => ((0..n).map(|_| start + rng.integers(0, *k)).collect(), Vec::new()),
        // Some actions are outside the bounds of the space.
        _ => (Vec::new(), (0..n).map(|_| (rng.uniform(-3.0, 3.0) as f32).clamp(-2.5, 2.5)).collect()),
    }
}

#[derive(Clone, Debug)]
struct Case {
    num_envs: usize,
    seed: u64,
    mode: AutoresetMode,
    limit: Option<u32>,
    steps: usize,
    shares: usize,
}

fn pair<E: LaneEnv<K, D>, const K: usize, const D: usize>(
    env: &E,
    case: &Case,
) -> (Batched<VecEnv<E>>, Batched<SoaVecEnv<E, K, D>>) {
    let Case { num_envs, seed, mode, limit, shares, .. } = *case;
    let scalar = VecEnv::new(num_envs, Some(seed), mode, || env.clone()).unwrap().with_max_episode_steps(limit);
    let lanes = SoaVecEnv::with_shards(shares, num_envs, Some(seed), mode, env.clone()).unwrap();
    let lanes = lanes.with_max_episode_steps(limit);
    (Batched::new(scalar), Batched::new(lanes))
}

/// Steps both types of environments with the same random actions and compares all results.
/// Sometimes resets environments or sets an unusual state.
fn lockstep<E: LaneEnv<K, D>, const K: usize, const D: usize>(env: &E, case: &Case) {
    let (mut scalar, mut lanes) = pair(env, case);
    let mut rng = Pcg64::seed_from(u128::from(case.seed) + 1000);
    let (space, none) = (env.spec().action.clone(), ResetOptions::default());
    scalar.reset(Seeds::Keep, None, &none).unwrap();
    lanes.reset(Seeds::Keep, None, &none).unwrap();
    assert_eq!(scalar.output_bits(), lanes.output_bits(), "after reset, {case:?}");
    for step in 0..case.steps {
        let (integers, reals) = random_actions(&space, case.num_envs, &mut rng);
        let actions = if reals.is_empty() { Actions::Discrete(&integers) } else { Actions::Continuous(&reals) };
        scalar.step(actions).unwrap();
        lanes.step(actions).unwrap();
        assert_eq!(scalar.output_bits(), lanes.output_bits(), "step {step} of {case:?}");
        let ended = lanes.wait_for_reset();
        if case.mode == AutoresetMode::Disabled && ended.contains(&true) {
            scalar.reset(Seeds::Base(step as u64), Some(&ended), &none).unwrap();
            lanes.reset(Seeds::Base(step as u64), Some(&ended), &none).unwrap();
        }
        if step % 64 == 9 {
            let index = rng.integers(0, case.num_envs as i64) as usize;
            let mut state = env.state().unwrap();
            for number in &mut state {
                *number = STRANGE[rng.integers(0, STRANGE.len() as i64) as usize];
            }
            if env.check_state(&state).is_err() {
                // The last number of some states must be 0 or 1.
                *state.last_mut().unwrap() = f64::from(u8::from(step % 128 == 9));
            }
            scalar.env.set_state(index, &state).unwrap();
            lanes.env.set_state(index, &state).unwrap();
        }
        if step % 64 == 10 {
            assert_eq!(scalar.inside(), lanes.inside(), "step {step} of {case:?}");
        }
    }
    assert_eq!(scalar.inside(), lanes.inside(), "at the end of {case:?}");
}

const STRANGE: &[f64] = &[0.0, -0.0, 0.1, -0.2, 0.3, 1.0, -7.0, 1e3, 1e5, -1e19, 3e38, -3e38, 1e-310];

fn on_all(case: &Case) {
    for sutton_barto_reward in [false, true] {
        lockstep(&CartPole::new(sutton_barto_reward), case);
    }
    for g in [10.0, -3.7] {
        lockstep(&Pendulum::new(g), case);
    }
    for nips in [false, true] {
        lockstep(&Acrobot::new(0.2, 0.0, nips).unwrap(), case);
    }
    for goal_velocity in [0.0, 0.02] {
        lockstep(&MountainCar::new(goal_velocity), case);
        lockstep(&MountainCarContinuous::new(goal_velocity), case);
    }
}

#[test]
fn thousands_of_steps_are_the_scalar_environments() {
    let modes = [(AutoresetMode::SameStep, 2000), (AutoresetMode::NextStep, 400), (AutoresetMode::Disabled, 400)];
    for (mode, steps) in modes {
        let case = Case { num_envs: 71, seed: 5, mode, limit: Some(100), steps, shares: 1 };
        on_each_isa(|| on_all(&case));
    }
}

#[test]
fn the_shortest_limits_reset_in_every_other_step() {
    for (mode, limit) in [(AutoresetMode::NextStep, 0), (AutoresetMode::NextStep, 1), (AutoresetMode::SameStep, 0)] {
        let case = Case { num_envs: 9, seed: 1, mode, limit: Some(limit), steps: 20, shares: 1 };
        on_each_isa(|| on_all(&case));
    }
}

#[test]
fn threads_that_share_a_step_change_nothing() {
    let modes = [(AutoresetMode::SameStep, 300), (AutoresetMode::NextStep, 100), (AutoresetMode::Disabled, 100)];
    for ((mode, steps), shares) in modes.into_iter().zip([3, 2, 16]) {
        on_all(&Case { num_envs: 300, seed: 5, mode, limit: Some(30), steps, shares });
    }
    // More episodes end in one step than an episode log can hold.
    let case = Case { num_envs: 40_000, seed: 5, mode: AutoresetMode::SameStep, limit: Some(1), steps: 3, shares: 2 };
    lockstep(&CartPole::default(), &case);
    let (mut scalar, mut lanes) = pair(&CartPole::default(), &case);
    for env in [&mut scalar.env as &mut dyn VectorEnv, &mut lanes.env] {
        env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut vec![0.0; 160_000]).unwrap();
    }
    scalar.step(Actions::Discrete(&vec![0; 40_000])).unwrap();
    lanes.step(Actions::Discrete(&vec![0; 40_000])).unwrap();
    assert_eq!((scalar.env.episodes().total(), lanes.env.episodes().total()), (40_000, 40_000));
}

#[test]
fn noise_is_not_for_lanes() {
    let noisy = Acrobot::new(0.2, 0.1, false).unwrap();
    let result = SoaVecEnv::new(8, None, AutoresetMode::SameStep, noisy);
    assert_eq!(crate::testing::assert_rejects(result, crate::Error::Config, "env").got, "\"Acrobot-v1\"");
    let arguments = [("torque_noise_max".to_string(), 0.1)];
    let options = crate::envs::MakeOptions { num_envs: 16, seed: Some(0), arguments: &arguments, ..Default::default() };
    assert_eq!(crate::envs::make("Acrobot-v1", &options).unwrap().num_envs(), 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_number_of_environments_and_any_limit(
        num_envs in 1_usize..200,
        seed in any::<u64>(),
        mode in prop::sample::select(vec![AutoresetMode::SameStep, AutoresetMode::NextStep, AutoresetMode::Disabled]),
        limit in prop::option::of(0_u32..40),
        shares in 1_usize..4,
    ) {
        let case = Case { num_envs, seed, mode, limit, steps: 50, shares };
        on_each_isa(|| on_all(&case));
    }
}

/// Returns the error texts of a fixed sequence of calls, most of which are invalid.
fn refusals(env: &mut dyn VectorEnv) -> Vec<String> {
    let (n, d) = (env.num_envs(), env.spec().observation.dim());
    let discrete = matches!(env.spec().action, Space::Discrete { .. });
    let (integers, reals) = (vec![0; 2 * n], vec![0.0; 2 * n]);
    let actions = |n| if discrete { Actions::Discrete(&integers[..n]) } else { Actions::Continuous(&reals[..n]) };
    let mut words = Vec::new();
    let mut note = |result: Result<()>| words.push(result.err().map_or("accepted".into(), |error| error.to_string()));
    let step = |env: &mut dyn VectorEnv, actions: Actions<'_>, short: usize| {
        let mut sizes = [n * d, n, n, n, n * d];
        if short < 5 {
            sizes[short] -= 1;
        }
        let (mut obs, mut reward, mut final_obs) = (vec![0.0; sizes[0]], vec![0.0; sizes[1]], vec![0.0; sizes[4]]);
        let (mut terminated, mut truncated) = (vec![false; sizes[2]], vec![false; sizes[3]]);
        let out = StepOut {
            obs: &mut obs,
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut final_obs,
        };
        env.step(actions, out)
    };
    let (none, unknown) = (ResetOptions::default(), ResetOptions::new([("colour", 1.0)]));
    let (mut obs, mut mask) = (vec![0.0; n * d], vec![true; n]);
    mask[n - 1] = false;
    note(step(env, actions(n), 9));
    note(step(env, actions(n + 1), 2));
    note(env.observe(&mut obs));
    note(env.reset(Seeds::Keep, Some(&mask), &unknown, &mut obs));
    note(env.reset(Seeds::Each(&[None]), Some(&mask[1..]), &unknown, &mut obs[1..]));
    note(env.reset(Seeds::Each(&[None]), Some(&mask[1..]), &unknown, &mut obs));
    note(env.reset(Seeds::Keep, Some(&mask[1..]), &unknown, &mut obs));
    note(env.reset(Seeds::Keep, None, &unknown, &mut obs));
    note(env.reset(Seeds::Keep, None, &none, &mut obs));
    for short in 0..5 {
        note(step(env, actions(n - 1), short));
    }
    note(step(env, actions(n + 1), 9));
    note(step(env, Actions::Discrete(&vec![i64::MIN; n]), 9));
    note(step(env, Actions::Continuous(&vec![f32::NAN; n]), 9));
    note(env.set_state(n, &[]));
    note(env.set_state(n - 1, &[0.0; 17]));
    note(env.check_state(n, &[], EpisodeProgress::default()));
    note(env.check_state(n - 1, &[f64::NAN; 4], EpisodeProgress::default()));
    for progress in [
        EpisodeProgress { episode_return: f64::NAN, ..EpisodeProgress::default() },
        EpisodeProgress { finished: true, ..EpisodeProgress::default() },
    ] {
        note(env.check_state(n - 1, &[0.0; 4], progress));
        note(env.set_progress(n - 1, progress));
    }
    note(env.observe(&mut obs[1..]));
    note(env.set_rngs(&[]));
    note(env.state(n).map_or(Ok(()), |_| check_len("state", 0, 1)));
    for _ in 0..2 {
        note(step(env, actions(n), 9)); // a limit of one step: the second step finds finished episodes
    }
    note(env.reset(Seeds::Keep, Some(&mask), &none, &mut obs));
    note(step(env, actions(n), 9));
    words
}

#[test]
fn refusals_have_the_same_words_in_the_same_order() {
    let (disabled, same_step) = (AutoresetMode::Disabled, AutoresetMode::SameStep);
    for (num_envs, mode, shares) in [(2, disabled, 1), (70, disabled, 1), (64, same_step, 1), (130, disabled, 2)] {
        let case = Case { num_envs, seed: 0, mode, limit: Some(1), steps: 0, shares };
        let (mut scalar, mut lanes) = pair(&CartPole::default(), &case);
        let words = refusals(&mut lanes.env);
        assert_eq!(words, refusals(&mut scalar.env));
        assert!(words.iter().filter(|words| *words != "accepted").count() >= 20, "{words:?}");
    }
    let error = |num_envs| SoaVecEnv::new(num_envs, None, AutoresetMode::SameStep, CartPole::default()).err();
    assert!(matches!(error(0), Some(crate::Error::Config(_))));
    assert!(matches!(error(1 << 62), Some(crate::Error::Memory(_))));
}

#[test]
fn making_them_is_interrupted_however_many_shares_there_are() {
    let make =
        || SoaVecEnv::with_shards(8, 8 * 2 * BLOCK, Some(0), AutoresetMode::SameStep, CartPole::default()).map(drop);
    // The environments of one thread are too few to reach an interruption check.
    let interval = std::time::Duration::from_millis(20);
    assert!(run_with_checks(interval, usize::MAX, make).0.is_ok());
    assert!(matches!(run_with_checks(interval, 2, make), (Err(crate::Error::Interrupted), 2)));
}

/// Number of environments that are reset in two stages.
const STAGED: usize = super::STAGED_RESET_ABOVE + 5;

#[test]
fn staged_reset_equals_direct_reset() {
    let mode = AutoresetMode::SameStep;
    let mut lanes = SoaVecEnv::with_shards(3, STAGED, Some(0), mode, CartPole::default()).unwrap();
    let mut copies = VecEnv::new(STAGED, Some(0), mode, CartPole::default).unwrap();
    let (mut obs, mut expected) = (vec![0.0; STAGED * 4], vec![0.0; STAGED * 4]);
    let (each, mask): (Vec<_>, Vec<_>) = (0..STAGED).map(|i| ((i % 3 > 0).then_some(i as u64), i % 7 > 0)).unzip();
    let options = ResetOptions::new([("low", -0.2), ("high", 0.3)]);
    for (seeds, mask) in [(Seeds::Keep, None), (Seeds::Base(9), Some(&mask[..])), (Seeds::Each(&each), None)] {
        lanes.reset(seeds, mask, &options, &mut obs).unwrap();
        copies.reset(seeds, mask, &options, &mut expected).unwrap();
        assert_eq!(obs, expected);
        assert_eq!(lanes.rngs().unwrap(), copies.rngs().unwrap());
    }
}

#[test]
fn a_reset_that_is_interrupted_changes_nothing() {
    let mut env = SoaVecEnv::with_shards(2, STAGED, Some(0), AutoresetMode::SameStep, CartPole::default()).unwrap();
    let (mut obs, options) = (vec![0.0; STAGED * 4], ResetOptions::default());
    env.reset(Seeds::Keep, None, &options, &mut obs).unwrap();
    let (before, streams) = (obs.clone(), env.rngs().unwrap());
    let interval = std::time::Duration::from_millis(1);
    for stop_at in [1, 2, 20] {
        let (result, _) = run_with_checks(interval, stop_at, || env.reset(Seeds::Base(5), None, &options, &mut obs));
        assert!(matches!(result, Err(crate::Error::Interrupted)), "{result:?} at question {stop_at}");
        env.observe(&mut obs).unwrap();
        assert_eq!(obs, before);
        assert_eq!(env.rngs().unwrap(), streams);
    }
    assert!(run_with_checks(interval, usize::MAX, || env.reset(Seeds::Base(5), None, &options, &mut obs)).0.is_ok());
    assert_ne!(obs, before);
}
