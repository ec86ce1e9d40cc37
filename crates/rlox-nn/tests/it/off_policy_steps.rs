//! Steps of off-policy trainers and agents: warm-up, updates, transitions and exploration noise.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::envs::CartPole;
use rlox_core::replay::{Column, ReplayStorage};
use rlox_core::{
    Actions, ActionsMut, AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Seeds, Space, Step, StepOut,
    VecEnv, VectorEnv,
    field::{FieldData, FieldMut},
    normalize::NormalizerOptions,
};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, DqnLearner, Encoding, EnvInfo, NoiseProcess, Observations, OffPolicyAgent,
    OffPolicyAlgorithm as _, OffPolicyMethod, OffPolicyMetrics, Priorities, Sac, SacConfig, SacLearner, Schedule,
    StepResult, predict_with,
};
use rlox_nn::{Activation, CriticEnsemble, Mlp, NamedTensors, Optimizer, QFunction, QNetworks, SquashedPolicy};

/// Environment with reward 1 and episodes of three steps, which terminate or are truncated.
///
/// With masks, the third action is never allowed, and the second action is not allowed in the
/// second step of an episode.
struct Clock {
    spec: EnvSpec,
    at: usize,
    terminates: bool,
    masks: bool,
    /// `true` if all observations are equal.
    blind: bool,
    nan_at: usize,
    steps: usize,
}

impl Clock {
    fn new(terminates: bool) -> Self {
        let (observation, action) = (Space::uniform_box(0.0, 3.0, &[1]), Space::discrete(3));
        let max_episode_steps = if terminates { None } else { Some(3) };
        let spec = EnvSpec { id: "Clock-v0".into(), observation, action, max_episode_steps };
        Self { spec, at: 0, terminates, masks: false, blind: false, nan_at: usize::MAX, steps: 0 }
    }
}

impl Clock {
    fn current_obs(&self) -> f32 {
        if self.blind { 1.0 } else { self.at as f32 }
    }
}

impl Env for Clock {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.at = 0;
        obs[0] = self.current_obs();
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        assert!(!self.masks || *action == 0 || (*action == 1 && self.at != 1), "{action} at {}", self.at);
        self.at += 1;
        self.steps += 1;
        obs[0] = self.current_obs();
        let reward = if self.steps == self.nan_at { f64::NAN } else { 1.0 };
        Step { reward, terminated: self.terminates && self.at == 3, truncated: false }
    }

    fn has_action_mask(&self) -> bool {
        self.masks
    }

    fn action_mask(&self, mask: &mut [bool]) {
        mask.copy_from_slice(&[true, !self.masks || self.at != 1, !self.masks]);
    }
}

fn clocks(num_envs: usize, clock: impl Fn() -> Clock + 'static) -> Box<VecEnv<Clock>> {
    Box::new(VecEnv::new(num_envs, None, AutoresetMode::SameStep, clock).unwrap())
}

fn q_networks(spec: &EnvSpec, rng: &mut Pcg64) -> Result<QNetworks<Mlp>> {
    QNetworks::mlp(spec, &[32], Activation::Relu, rng)
}

fn new_dqn(num_envs: usize, config: &DqnConfig, clock: impl Fn() -> Clock + 'static) -> Dqn<QNetworks<Mlp>> {
    Dqn::new(clocks(num_envs, clock), q_networks, config.clone(), 1).unwrap()
}

/// Returns settings that learn fast.
fn config() -> DqnConfig {
    DqnConfig {
        batch_size: 32,
        gamma: 0.5,
        train_freq: 1,
        target_update_interval: 20,
        optimizer: Optimizer::adam(1e-2),
        ..DqnConfig::default()
    }
}

fn column(replay: &ReplayStorage, column: Column) -> Vec<f32> {
    let indices: Vec<_> = replay.indices().collect();
    let mut out = vec![0.0; indices.len()];
    replay.gather(column, &indices, FieldMut::F32(&mut out)).unwrap();
    out
}

fn flags(replay: &ReplayStorage, column: Column) -> Vec<u8> {
    let indices: Vec<_> = replay.indices().collect();
    let mut out = vec![0; indices.len()];
    replay.gather(column, &indices, FieldMut::Bool(&mut out)).unwrap();
    out
}

fn actions(replay: &ReplayStorage) -> Vec<i64> {
    let indices: Vec<_> = replay.indices().collect();
    let mut out = vec![0; indices.len()];
    replay.gather(Column::Action, &indices, FieldMut::I64(&mut out)).unwrap();
    out
}

#[test]
fn replay_stores_raw_transitions_and_final_observations() {
    let normalize = Some(NormalizerOptions::default());
    let mut dqn = new_dqn(2, &DqnConfig { normalize, ..config() }, || Clock::new(false));
    dqn.train(14, |_| true).unwrap();
    let replay = dqn.replay();
    assert_eq!(column(replay, Column::Obs(0)), [0., 0., 1., 1., 2., 2., 0., 0., 1., 1., 2., 2., 0., 0.]);
    assert_eq!(column(replay, Column::NextObs(0)), [1., 1., 2., 2., 3., 3., 1., 1., 2., 2., 3., 3., 1., 1.]);
    assert_eq!(column(replay, Column::Reward), [1.0; 14]);
    assert_eq!(flags(replay, Column::Terminated), [0; 14]);
    assert_eq!(flags(replay, Column::Truncated), [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]);
    // The statistics contain the observations 0, 1 and 2, in which the policy acts, but no final
    // observations.
    let obs_stats = dqn.normalizer().unwrap().obs();
    assert!(
        (obs_stats.count() - 16.0).abs() < 1e-3 && (obs_stats.mean()[0] - 14.0 / 16.0).abs() < 1e-3,
        "{obs_stats:?}"
    );
}

/// Returns the learned values of the first action in `states`.
fn values(states: &[f32], n_steps: usize, clock: impl Fn() -> Clock + 'static) -> Vec<f32> {
    // With uniform actions and a learning rate that decreases to 0, the values converge to their
    // means.
    let exploring = DqnConfig { exploration_final_eps: 1.0, lr_schedule: Schedule::Linear, ..config() };
    let mut dqn = new_dqn(4, &DqnConfig { n_steps, batch_size: 128, ..exploring }, clock);
    dqn.train(6_000, |_| true).unwrap();
    let mut values = vec![0.0; 3 * states.len()];
    dqn.learner_mut().q_function_mut().values(states, &mut values).unwrap();
    values.chunks(3).map(|row| row[0]).collect()
}

#[test]
fn truncated_transitions_bootstrap() {
    let assert_near = |label: &str, got: Vec<f32>, expected: &[f32]| {
        assert!(got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 0.05), "{label}: {got:?}");
    };
    for n_steps in [1, 2] {
        // The values are, from the last step backwards, 1, 1 + 1/2 and 1 + 3/4.
        let results = values(&[0.0, 1.0, 2.0], n_steps, || Clock::new(true));
        assert_near("steps to the terminal state", results, &[1.75, 1.5, 1.0]);
        // In one state with truncated episodes, v = 1 + v/2, and with two-step returns v = 3/2 +
        // v/4.
        let blind = |terminates| Clock { blind: true, ..Clock::new(terminates) };
        assert_near("truncation", values(&[1.0], n_steps, move || blind(false)), &[2.0]);
        // In one state with every third step terminal, v = 1 + 2/3 v/2. With two-step returns, the
        // targets of the three steps are 3/2 + v/4, 3/2 and 1, so v = 4/3 + 1/3 v/4.
        let expected = [1.5, 16.0 / 11.0][n_steps - 1];
        assert_near("termination", values(&[1.0], n_steps, move || blind(true)), &[expected]);
    }
}

#[test]
fn warm_up_actions_are_uniform() {
    let greedy = DqnConfig { exploration_initial_eps: 0.0, exploration_final_eps: 0.0, ..config() };
    let mut dqn = new_dqn(4, &DqnConfig { learning_starts: 3_000, ..greedy }, || Clock::new(true));
    let metrics = dqn.train(3_000, |_| true).unwrap();
    assert_eq!((metrics.updates, metrics.last_update, metrics.timesteps), (0, None, 3_000));
    let chosen = actions(dqn.replay());
    for action in 0..3 {
        let count = chosen.iter().filter(|chosen| **chosen == action).count();
        assert!((880..1120).contains(&count), "{count} of 3000");
    }
    // Learning starts during these 40 steps.
    let metrics = dqn.train(40, |_| true).unwrap();
    assert_eq!(metrics.updates, 10);
    // With learning_starts = 0 no action is random.
    let mut dqn = new_dqn(4, &DqnConfig { learning_starts: 0, ..greedy }, || Clock::new(true));
    dqn.train(4, |_| true).unwrap();
    assert!(actions(dqn.replay()).iter().all(|action| *action == actions(dqn.replay())[0]));
}

#[test]
fn warm_up_covers_the_bounds_of_a_box() {
    let env = VecEnv::new(4, None, AutoresetMode::SameStep, rlox_core::envs::Pendulum::default).unwrap();
    let config = SacConfig { learning_starts: 4_000, ..SacConfig::default() };
    let networks = |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, &[8], rng);
    let mut sac: Sac<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>> =
        Sac::new(Box::new(env), networks, config.clone(), 1).unwrap();
    sac.train(4_000, |_| true).unwrap();
    let chosen = column(sac.replay(), Column::Action);
    let mean = chosen.iter().sum::<f32>() / 4_000.0;
    let square = chosen.iter().map(|x| x * x).sum::<f32>() / 4_000.0;
    assert!(mean.abs() < 0.05 && (square - 1.0 / 3.0).abs() < 0.03, "{mean} {square}");
    assert!(chosen.iter().all(|x| (-1.0..=1.0).contains(x)));
}

#[test]
fn gradient_steps_set_the_number_of_updates() {
    let run = |train_freq, gradient_steps, num_envs| {
        let config = DqnConfig { train_freq, gradient_steps, learning_starts: 24, ..config() };
        let mut iterations = 0;
        let metrics = new_dqn(num_envs, &config, || Clock::new(true)).train(48, |_| {
            iterations += 1;
            true
        });
        (iterations, metrics.unwrap().updates)
    };
    // Each iteration makes train_freq steps in each environment. Iterations that end after step 24
    // learn.
    assert_eq!(run(4, Some(1), 1), (12, 6));
    assert_eq!(run(4, Some(3), 2), (6, 9));
    assert_eq!(run(4, None, 1), (12, 24));
    assert_eq!(run(4, None, 2), (6, 24));
    // A run makes at least the requested steps.
    assert_eq!(run(5, Some(2), 2), (5, 6));
}

#[test]
fn schedules_follow_the_progress_of_the_run() {
    let decreasing = DqnConfig { lr_schedule: Schedule::Linear, exploration_fraction: 0.5, train_freq: 2, ..config() };
    let mut dqn = new_dqn(2, &DqnConfig { learning_starts: 0, ..decreasing }, || Clock::new(true));
    let mut metrics_log = Vec::new();
    dqn.train(16, |metrics| {
        metrics_log.push((metrics.exploration_rate.unwrap(), metrics.last_update.unwrap().learning_rate));
        metrics_log.len() < 2
    })
    .unwrap();
    dqn.resume(|metrics| {
        metrics_log.push((metrics.exploration_rate.unwrap(), metrics.last_update.unwrap().learning_rate));
        true
    })
    .unwrap();
    // Schedules use the progress at the start of an iteration.
    let expected = [(1.0, 1e-2), (0.525, 7.5e-3), (0.05, 5e-3), (0.05, 2.5e-3)];
    for ((rate, lr), (expected_rate, expected_lr)) in metrics_log.iter().zip(expected) {
        assert!((rate - expected_rate).abs() < 1e-6 && (lr - expected_lr).abs() < 1e-9, "{metrics_log:?}");
    }
    assert_rejects(dqn.resume(|_| true), Error::Config, "resume");
}

/// Returns the indices of the iterations in which the target network copies the online network.
///
/// Each iteration makes one step in each environment.
fn moves(num_envs: usize, target_update_interval: u64) -> Vec<usize> {
    let target = DqnConfig { target_update_interval, learning_starts: 0, ..config() };
    let mut dqn = new_dqn(num_envs, &target, || Clock::new(true));
    dqn.begin(1_000);
    let is_moved = |_: &usize| {
        // The target network is updated before the online network learns in the same iteration.
        let before = dqn.learner().q_function().online().clone();
        dqn.iterate().unwrap();
        rlox_nn::Network::tensors(dqn.learner().q_function().target()) == rlox_nn::Network::tensors(&before)
    };
    (0..10).filter(is_moved).collect()
}

#[test]
fn target_updates_count_steps_of_all_environments() {
    // The networks are equal at the start. With 2 environments, the fourth iteration makes step 8.
    assert_eq!(moves(2, 8), [0, 3, 7]);
    // With 6 environments, the copies follow steps 12 (the first above 10), 24, 30, 42, 54 and 60.
    assert_eq!(moves(6, 10), [0, 1, 3, 4, 6, 8, 9]);
    assert_eq!(moves(4, 2), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn exploration_schedules_advance_within_an_iteration() {
    let config = DqnConfig {
        learning_starts: 0,
        train_freq: 400,
        exploration_fraction: 0.5,
        exploration_final_eps: 0.0,
        ..config()
    };
    let mut dqn = new_dqn(2, &config, || Clock::new(true));
    let mut values = [0.0; 9];
    dqn.learner_mut().q_function_mut().values(&[0.0, 1.0, 2.0], &mut values).unwrap();
    let best = |at: f32| {
        let row = &values[3 * at as usize..][..3];
        (0..3).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i64
    };
    dqn.train(800, |_| true).unwrap();
    let (states, chosen) = (column(dqn.replay(), Column::Obs(0)), actions(dqn.replay()));
    let greedy: Vec<_> = states.iter().zip(&chosen).map(|(state, action)| best(*state) == *action).collect();
    let share = |some: &[bool]| some.iter().filter(|greedy| **greedy).count() as f64 / some.len() as f64;
    // Actions are uniform at the start, so that a third are greedy. At the end all are greedy.
    assert!(share(&greedy[..100]) < 0.55 && share(&greedy[300..400]) > 0.8, "{greedy:?}");
    assert!(greedy[400..].iter().all(|greedy| *greedy));
}

#[test]
fn masked_actions_are_never_chosen() {
    for n_steps in [1, 2] {
        let masked = || Clock { masks: true, ..Clock::new(true) };
        let config = DqnConfig { n_steps, learning_starts: 60, exploration_fraction: 1.0, double: true, ..config() };
        let mut dqn = new_dqn(2, &config, masked);
        // The environment panics if an action is not allowed.
        dqn.train(600, |_| true).unwrap();
        let chosen = actions(dqn.replay());
        assert!(chosen.contains(&0) && chosen.contains(&1));
        let replay = dqn.replay();
        let (next, indices) = (column(replay, Column::NextObs(0)), replay.indices().collect::<Vec<_>>());
        let mut masks = vec![0; 3 * next.len()];
        replay.gather(Column::Extra(0), &indices, FieldMut::Bool(&mut masks)).unwrap();
        for (next, mask) in next.iter().zip(masks.chunks(3)) {
            let expected = if *next == 1.0 {
                [1, 0, 0]
            } else if *next == 2.0 {
                [1, 1, 0]
            } else {
                [0, 0, 0] // the terminal state
            };
            assert_eq!(mask, expected, "{next}");
        }
        dqn.evaluate(clocks(2, masked).as_mut(), 4, 1).unwrap();
    }
}

#[test]
fn metrics_report_episodes_and_updates() {
    let mut dqn = new_dqn(2, &config(), || Clock::new(true));
    let mut all: Vec<OffPolicyMetrics> = Vec::new();
    dqn.train(120, |metrics| {
        all.push(*metrics);
        true
    })
    .unwrap();
    assert!(all[1].mean_return.is_nan() && all[1].last_update.is_none());
    let last = all.last().unwrap();
    assert_eq!((last.timesteps, last.episodes, last.mean_return, last.mean_length), (120, 40, 3.0, 3.0));
    let learned = last.last_update.unwrap();
    assert!(learned.critic_loss.is_finite() && learned.grad_norm > 0.0 && learned.actor_loss.is_none());
}

#[test]
fn non_finite_rewards_are_rejected_and_training_can_restart() {
    let mut dqn = new_dqn(2, &config(), || Clock { nan_at: 20, ..Clock::new(true) });
    let rejected = assert_rejects(dqn.train(120, |_| true), Error::NotFinite, "rewards");
    assert_eq!((&rejected.got[..], rejected.at.row, rejected.at.timesteps), ("NaN", Some(0), Some(38)));
    assert_eq!((dqn.timesteps(), dqn.replay().len()), (38, 38));
    let metrics = dqn.train(60, |_| true).unwrap();
    assert_eq!(metrics.timesteps, 98);
    assert_eq!(column(dqn.replay(), Column::Obs(0))[38], 0.0);
}

#[test]
fn ornstein_uhlenbeck_noise_follows_its_formula_and_restarts() {
    let (theta, dt, sigma) = (0.5, 0.25, 2.0);
    let walk = ActionNoise::OrnsteinUhlenbeck { sigma, theta, dt };
    let mut noise = NoiseProcess::new(walk, 2, 1).unwrap();
    let mut rngs = [Pcg64::seed_from(1), Pcg64::seed_from(2)];
    let mut drawn = NoiseProcess::new(ActionNoise::Gaussian { sigma: 1.0 }, 2, 1).unwrap();
    let mut same = rngs.clone();
    let mut expected = [0.0_f32; 2];
    for step in 0..20 {
        let mut actions = [0.0, 0.9];
        noise.apply(&mut rngs, &mut actions).unwrap();
        drawn.apply(&mut same, &mut [0.0; 2]).unwrap();
        for (x, n) in expected.iter_mut().zip(drawn.state()) {
            *x = *x - theta * dt * *x + sigma * dt.sqrt() * n;
        }
        assert_eq!(noise.state(), expected);
        assert_eq!(actions, [expected[0].clamp(-1.0, 1.0), (0.9 + expected[1]).clamp(-1.0, 1.0)]);
        if step == 9 {
            noise.end_episodes(|env| env == 1);
            expected[1] = 0.0;
        }
    }
    assert_eq!(assert_rejects(noise.apply(&mut rngs, &mut [0.0; 3]), Error::Shape, "actions").got, "3");
}

#[test]
fn iterations_do_not_allocate() {
    let allocations = |work: &mut dyn FnMut()| allocation_counter::measure(work).count_total;
    // The storage of final observations may grow until the buffer is full.
    let options = DqnConfig { n_steps: 2, double: true, buffer_size: 200, ..config() };
    let mut dqn = new_dqn(2, &options, || Clock { masks: true, ..Clock::new(true) });
    dqn.train(400, |_| true).unwrap();
    dqn.begin(1_000);
    assert_eq!(allocations(&mut || (0..30).for_each(|_| dqn.iterate().map(|_| ()).unwrap())), 0);

    let env = VecEnv::new(2, None, AutoresetMode::SameStep, rlox_core::envs::Pendulum::default).unwrap();
    let normalize = Some(NormalizerOptions::default());
    let config = SacConfig { batch_size: 32, learning_starts: 10, buffer_size: 200, normalize, ..SacConfig::default() };
    let networks = |spec: &EnvSpec, rng: &mut Pcg64| config.mlp(spec, &[8], rng);
    let mut sac = Sac::new(Box::new(env), networks, config.clone(), 1).unwrap();
    sac.train(500, |_| true).unwrap();
    sac.begin(1_000);
    assert_eq!(allocations(&mut || (0..30).for_each(|_| sac.iterate().map(|_| ()).unwrap())), 0);
}

type Agent = OffPolicyAgent<DqnLearner<QNetworks<Mlp>>>;

const N: usize = 2;

fn agent_config() -> DqnConfig {
    DqnConfig { learning_starts: 10, buffer_size: 1_000, train_freq: 3, ..DqnConfig::default() }
}

fn env(seed: u64) -> VecEnv<CartPole> {
    let mut env = VecEnv::new(N, None, AutoresetMode::SameStep, CartPole::default).unwrap();
    env.reset(Seeds::Base(seed), None, &ResetOptions::default(), &mut [0.0; 4 * N]).unwrap();
    env
}

fn agent(config: &DqnConfig, env: &dyn VectorEnv) -> Agent {
    let spec = env.spec();
    let q = QNetworks::mlp(spec, &[16], Activation::Relu, &mut Pcg64::seed_from(3)).unwrap();
    let replay_config = DqnLearner::<QNetworks<Mlp>>::replay_config(config, spec).unwrap();
    let learner = Box::new(DqnLearner::new(config.clone(), q, spec, N).unwrap());
    OffPolicyAgent::new(learner, replay_config, &EnvInfo::from_env(env), [1, 2]).unwrap()
}

fn iterate(agent: &mut Agent, env: &mut dyn VectorEnv, iterations: usize) {
    for i in 0..iterations {
        assert!(agent.iterate(env, None, i as f64 / 100.0, &mut || Ok(false)).unwrap());
    }
}

fn weights(agent: &Agent) -> NamedTensors {
    agent.learner().tensors()
}

#[test]
fn act_and_observe_equal_iterate() {
    let mut vec_env = env(7);
    let mut full = agent(&agent_config(), &vec_env);
    full.start(&vec_env, None).unwrap();
    iterate(&mut full, &mut vec_env, 40);

    let mut stepped = env(7);
    let mut other = agent(&agent_config(), &stepped);
    let (mut obs, mut next_obs) = ([0.0; 4 * N], [0.0; 4 * N]);
    let (mut reward, mut terminated, mut truncated) = ([0.0; N], [false; N], [false; N]);
    stepped.observe(&mut obs).unwrap();
    other.start_from_obs(&obs, None, None).unwrap();
    for i in 0..40 {
        other.begin(f64::from(i) / 100.0).unwrap();
        for _ in 0..3 {
            let Actions::Discrete(actions) = other.act(None).unwrap() else { unreachable!() };
            let actions = actions.to_vec();
            let out = StepOut {
                obs: &mut obs,
                reward: &mut reward,
                terminated: &mut terminated,
                truncated: &mut truncated,
                final_obs: &mut next_obs,
            };
            stepped.step(Actions::Discrete(&actions), out).unwrap();
            for env in (0..N).filter(|env| !(terminated[*env] || truncated[*env])) {
                next_obs[4 * env..][..4].copy_from_slice(&obs[4 * env..][..4]);
            }
            let (rewards, terminated, truncated) = (&reward[..], &terminated[..], &truncated[..]);
            let outcome = StepResult {
                next_obs: &next_obs,
                obs: &obs,
                rewards,
                terminated,
                truncated,
                valid: None,
                masks: None,
                final_masks: None,
            };
            other.observe(&outcome, None).unwrap();
        }
        assert!(other.learn(None, &mut || Ok(false)).unwrap());
    }
    assert_eq!(weights(&other), weights(&full));
    assert_eq!((other.timesteps(), other.updates()), (240, full.updates()));
}

#[test]
fn load_progress_state_resumes_exactly() {
    // The buffer holds one step, so both agents sample the same transitions.
    let config = DqnConfig { buffer_size: N, ..agent_config() };
    let mut vec_env = env(7);
    let mut first = agent(&config, &vec_env);
    first.start(&vec_env, None).unwrap();
    iterate(&mut first, &mut vec_env, 20);
    let mut second = agent(&config, &vec_env);
    let streams: Vec<_> = first.streams().cloned().collect();
    second.learner_mut().load(&weights(&first)).unwrap();
    second.learner_mut().load_optimizer_state(&first.learner().optimizer_state()).unwrap();
    second
        .load_progress_state(&streams, first.timesteps(), first.updates(), first.remainder(), first.progress())
        .unwrap();
    assert!(!second.env_initialized());
    assert_rejects(second.iterate(&mut vec_env, None, 0.0, &mut || Ok(false)), Error::Config, "env");
    let mut copy = env(7);
    rlox_core::vector::EnvSnapshot::capture(&vec_env).unwrap().unwrap().restore_into(&mut copy).unwrap();
    second.attach(&copy).unwrap();
    iterate(&mut first, &mut vec_env, 20);
    iterate(&mut second, &mut copy, 20);
    assert_eq!(weights(&first), weights(&second));
    let result = second.load_progress_state(&streams[1..], 0, 0, 0.0, 0.0);
    assert_eq!(assert_rejects(result, Error::Shape, "streams").expected, "4 elements");
    let limit = second.pending_limit(first.timesteps());
    for pending in [-1.0, f64::NAN, limit + 1.0, f64::from(u32::MAX)] {
        let error = second.load_progress_state(&streams, first.timesteps(), first.updates(), pending, 0.5).unwrap_err();
        let wrong = error.mismatch().unwrap();
        assert_eq!((&*wrong.argument, &wrong.got), ("pending_updates", &pending.to_string()));
    }
    assert_eq!((second.timesteps(), second.remainder()), (first.timesteps(), first.remainder()));
}

#[test]
fn utd_ratio_sets_the_number_of_updates() {
    let mut vec_env = env(7);
    let config = DqnConfig { learning_starts: 0, train_freq: 1, utd_ratio: Some(0.4), ..agent_config() };
    let mut agent = agent(&config, &vec_env);
    agent.start(&vec_env, None).unwrap();
    let mut updates = Vec::new();
    for _ in 0..6 {
        iterate(&mut agent, &mut vec_env, 1);
        updates.push(agent.updates());
    }
    // A ratio of 0.4 updates per transition with two environments gives 0.8 updates per step.
    assert_eq!(updates, [0, 1, 2, 3, 4, 4]);
    // This ratio gives 0.1 updates per step.
    let tenth = DqnConfig { utd_ratio: Some(0.05), ..config };
    let mut agent = self::agent(&tenth, &vec_env);
    agent.start(&vec_env, None).unwrap();
    iterate(&mut agent, &mut vec_env, 9);
    assert_eq!(agent.updates(), 0);
    iterate(&mut agent, &mut vec_env, 1);
    assert_eq!(agent.updates(), 1);
    iterate(&mut agent, &mut vec_env, 20);
    assert_eq!(agent.updates(), 3);
    let wrong = DqnConfig { utd_ratio: Some(-1.0), ..config };
    let result = DqnLearner::<QNetworks<Mlp>>::replay_config(&wrong, vec_env.spec());
    assert_rejects(result, Error::Config, "utd_ratio");
}

#[test]
fn interrupted_iterations_count_their_steps() {
    let mut vec_env = env(7);
    let mut agent = agent(&agent_config(), &vec_env);
    agent.start(&vec_env, None).unwrap();
    let mut polls = 0;
    let done = agent.iterate(&mut vec_env, None, 0.0, &mut || {
        polls += 1;
        Ok(polls > 2)
    });
    assert!(!done.unwrap());
    assert_eq!((agent.timesteps(), agent.updates()), (4, 0));
}

#[test]
fn priorities_change_the_samples() {
    let priorities = Some(Priorities { alpha: 1.0, beta: 0.0 });
    let run = |prioritized| {
        let config = DqnConfig { prioritized, learning_starts: 0, ..agent_config() };
        let make = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[16], Activation::Relu, rng);
        let mut dqn = Dqn::new(Box::new(env(1)), make, config, 5).unwrap();
        dqn.train(300, |_| true).unwrap();
        dqn.learner().tensors()
    };
    assert_eq!(run(priorities), run(priorities));
    assert_ne!(run(priorities), run(None));
    for (priorities, name) in [
        (Priorities { alpha: 1.5, beta: 0.4 }, "priority_alpha"),
        (Priorities { alpha: 0.6, beta: f32::NAN }, "priority_beta"),
    ] {
        let config = DqnConfig { prioritized: Some(priorities), ..agent_config() };
        assert_rejects(config.check(), Error::Config, name);
    }
}

#[test]
fn unstable_noise_is_rejected() {
    for (theta, dt, fits) in [(2.0, 1.0, false), (1e30, 1e30, false), (1.9, 1.0, true)] {
        let walk = ActionNoise::OrnsteinUhlenbeck { sigma: 1.0, theta, dt };
        assert_eq!(NoiseProcess::new(walk, 1, 1).is_ok(), fits, "{theta} {dt}");
    }
    let mut noise = NoiseProcess::new(ActionNoise::Gaussian { sigma: 1.0 }, 2, 1).unwrap();
    noise.set_state(&[0.5, 1.0]).unwrap();
    assert_eq!(noise.state(), [0.5, 1.0]);
    assert!(noise.set_state(&[f32::NAN, 0.0]).is_err() && noise.set_state(&[0.0]).is_err());
    assert_eq!(noise.state(), [0.5, 1.0]);
}

#[test]
fn act_greedy_maximises_the_q_function() {
    let vec_env = env(7);
    let mut agent = agent(&agent_config(), &vec_env);
    let mut actions = [9; N];
    agent.learner_mut().act_greedy(&[0.1; 4 * N], None, ActionsMut::Discrete(&mut actions)).unwrap();
    assert!(actions[0] < 2 && actions[0] == actions[1]);
}

type SdeLearner = SacLearner<SquashedPolicy<Mlp>, CriticEnsemble<Mlp>>;
type SdeAgent = OffPolicyAgent<SdeLearner>;

const OBS: [f32; 3] = [0.5, -0.2, 0.1];

fn action() -> Space {
    Space::uniform_box(-2.0, 2.0, &[1])
}

/// Returns an agent that redraws the gSDE noise every three steps.
fn sde_agent() -> SdeAgent {
    let observation = Space::uniform_box(-1.0, 1.0, &[OBS.len()]);
    let spec = EnvSpec { id: "none".into(), observation, action: action(), max_episode_steps: None };
    let config = SacConfig {
        use_sde: true,
        use_sde_at_warmup: true,
        sde_sample_freq: 3,
        log_std_init: 0.0,
        buffer_size: 64,
        ..SacConfig::default()
    };
    let networks = config.mlp(&spec, &[8], &mut Pcg64::seed_from(0)).unwrap();
    let replay_config = SdeLearner::replay_config(&config, &spec).unwrap();
    let learner = Box::new(SdeLearner::new(config, networks, &spec, 1).unwrap());
    let envs = EnvInfo { spec: &spec, num_envs: 1, masked: false, idling: true };
    let mut agent = OffPolicyAgent::new(learner, replay_config, &envs, [1, 2]).unwrap();
    agent.start_from_obs(&OBS, None, None).unwrap();
    agent.begin(0.0).unwrap();
    agent
}

/// Makes a step and returns the action. If `valid_step` is `false`, the environment only resets.
fn step(agent: &mut SdeAgent, valid_step: bool) -> f32 {
    let Actions::Continuous(&[action]) = agent.act(None).unwrap() else { unreachable!() };
    let (rewards, ends, valid) = (&[0.0][..], &[false][..], Some(&[valid_step][..]));
    let outcome = StepResult {
        next_obs: &OBS,
        obs: &OBS,
        rewards,
        terminated: ends,
        truncated: ends,
        valid,
        masks: None,
        final_masks: None,
    };
    agent.observe(&outcome, None).unwrap();
    action
}

#[test]
fn resets_do_not_count_as_steps() {
    let mut agent = sde_agent();
    let actions = [true, true, false, true, true, true, true].map(|valid_step| step(&mut agent, valid_step));
    assert_eq!(actions[..4], [actions[0]; 4]);
    assert_eq!(actions[4..], [actions[4]; 3]);
    assert_ne!(actions[0], actions[4]);
}

#[test]
fn predictions_do_not_change_the_exploration_noise() {
    let (mut predicting, mut alone) = (sde_agent(), sde_agent());
    let mut predicted = vec![];
    for _ in 0..7 {
        let (encoding, mut action_out) = (Encoding::Numbers(OBS.len()), [0.0]);
        let obs = Observations { data: FieldData::F32(&OBS), encoding: &encoding, normalizer: None, masks: None };
        let (space, actions) = (action(), ActionsMut::Continuous(&mut action_out));
        predict_with(&mut predicting, obs, Some(9), &space, &mut Vec::new(), actions).unwrap();
        predicted.push(action_out[0]);
        assert_eq!(step(&mut predicting, true), step(&mut alone, true));
    }
    // Predictions depend only on their seed.
    assert_eq!(predicted, [predicted[0]; 7]);
}
