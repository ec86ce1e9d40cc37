//! Agents that are lent environments: step by step they do what they do in one call, and what a trainer does; they go on
//! from where they stood, sample by error, and learn as often as a ratio says.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{
    Actions, ActionsMut, AutoresetMode, Pcg64, ResetOptions, Seeds, StepOut, VecEnv, VectorEnv, envs::CartPole,
};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, DqnLearner, NoiseProcess, OffPolicyAgent, OffPolicyAlgorithm as _, OffPolicyMethod,
    Outcome, Priorities, Surroundings,
};
use rlox_nn::{Activation, Mlp, NamedTensors, QNetworks};

type Agent = OffPolicyAgent<DqnLearner<QNetworks<Mlp>>>;

const N: usize = 2;

fn config() -> DqnConfig {
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
    let how = DqnLearner::<QNetworks<Mlp>>::gathering(config, spec).unwrap();
    let learner = Box::new(DqnLearner::new(config.clone(), q, spec, N).unwrap());
    OffPolicyAgent::new(learner, how, &Surroundings::of(env), [1, 2]).unwrap()
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
fn step_by_step_it_does_what_it_does_in_one_call() {
    let mut lent = env(7);
    let mut whole = agent(&config(), &lent);
    whole.start(&lent, None).unwrap();
    iterate(&mut whole, &mut lent, 40);

    let mut stepped = env(7);
    let mut other = agent(&config(), &stepped);
    let (mut obs, mut next_obs) = ([0.0; 4 * N], [0.0; 4 * N]);
    let (mut reward, mut terminated, mut truncated) = ([0.0; N], [false; N], [false; N]);
    stepped.observe(&mut obs).unwrap();
    other.start_at(&obs, None, None).unwrap();
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
            let (next_obs, obs, valid, masks, final_masks) = (&next_obs, &obs, None, None, None);
            let outcome = Outcome { next_obs, obs, rewards, terminated, truncated, valid, masks, final_masks };
            other.observe(&outcome, None).unwrap();
        }
        assert!(other.learn(None, &mut || Ok(false)).unwrap());
    }
    assert_eq!(weights(&other), weights(&whole));
    assert_eq!((other.timesteps(), other.updates()), (240, whole.updates()));
}

#[test]
fn it_goes_on_from_where_it_stood() {
    // Transitions are the same, as the smallest buffer holds one step.
    let config = DqnConfig { buffer_size: N, ..config() };
    let mut lent = env(7);
    let mut first = agent(&config, &lent);
    first.start(&lent, None).unwrap();
    iterate(&mut first, &mut lent, 20);
    let mut second = agent(&config, &lent);
    let streams: Vec<_> = first.streams().cloned().collect();
    second.learner_mut().load(&weights(&first)).unwrap();
    second.learner_mut().load_optimizer_state(&first.learner().optimizer_state()).unwrap();
    second.set_standing(&streams, first.timesteps(), first.updates(), first.left_over(), first.progress()).unwrap();
    assert!(!second.started());
    let said = second.iterate(&mut lent, None, 0.0, &mut || Ok(false)).unwrap_err().to_string();
    assert!(said.starts_with("env: expected environments that have been started"), "{said}");
    let mut copy = env(7);
    rlox_core::Standing::of(&lent).unwrap().unwrap().put(&mut copy).unwrap();
    second.go_on(&copy).unwrap();
    iterate(&mut first, &mut lent, 20);
    iterate(&mut second, &mut copy, 20);
    assert_eq!(weights(&first), weights(&second));
    let said = second.set_standing(&streams[1..], 0, 0, 0.0, 0.0).unwrap_err().to_string();
    assert!(said.starts_with("streams: expected 4"), "{said}");
    assert_eq!(second.timesteps(), first.timesteps());
}

#[test]
fn a_ratio_decides_how_often_it_learns() {
    let mut lent = env(7);
    let config = DqnConfig { learning_starts: 0, train_freq: 1, utd_ratio: Some(0.4), ..config() };
    let mut agent = agent(&config, &lent);
    agent.start(&lent, None).unwrap();
    let mut updates = Vec::new();
    for _ in 0..6 {
        iterate(&mut agent, &mut lent, 1);
        updates.push(agent.updates());
    }
    // 0.8 for each step of both environments.
    assert_eq!(updates, [0, 1, 2, 3, 4, 4]);
    // A tenth of one for each step, ten times, is one.
    let tenth = DqnConfig { utd_ratio: Some(0.05), ..config };
    let mut agent = self::agent(&tenth, &lent);
    agent.start(&lent, None).unwrap();
    iterate(&mut agent, &mut lent, 9);
    assert_eq!(agent.updates(), 0);
    iterate(&mut agent, &mut lent, 1);
    assert_eq!(agent.updates(), 1);
    iterate(&mut agent, &mut lent, 20);
    assert_eq!(agent.updates(), 3);
    let wrong = DqnConfig { utd_ratio: Some(-1.0), ..config };
    let said = DqnLearner::<QNetworks<Mlp>>::gathering(&wrong, lent.spec()).unwrap_err().to_string();
    assert!(said.starts_with("utd_ratio: "), "{said}");
}

#[test]
fn a_pause_ends_an_iteration_and_the_steps_count() {
    let mut lent = env(7);
    let mut agent = agent(&config(), &lent);
    agent.start(&lent, None).unwrap();
    let mut asked = 0;
    let done = agent.iterate(&mut lent, None, 0.0, &mut || {
        asked += 1;
        Ok(asked > 2)
    });
    assert!(!done.unwrap());
    assert_eq!((agent.timesteps(), agent.updates()), (4, 0));
}

#[test]
fn errors_decide_what_is_sampled() {
    let priorities = Some(Priorities { alpha: 1.0, beta: 0.0 });
    let run = |prioritized| {
        let config = DqnConfig { prioritized, learning_starts: 0, ..config() };
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
        let config = DqnConfig { prioritized: Some(priorities), ..config() };
        let said = config.check().unwrap_err().to_string();
        assert!(said.starts_with(&format!("{name}: ")), "{said}");
    }
}

#[test]
fn a_walk_that_would_grow_without_end_is_refused() {
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
fn greedy_actions_are_those_of_the_q_function() {
    let lent = env(7);
    let mut agent = agent(&config(), &lent);
    let mut actions = [9; N];
    agent.learner_mut().act_greedily(&[0.1; 4 * N], None, ActionsMut::Discrete(&mut actions)).unwrap();
    assert!(actions[0] < 2 && actions[0] == actions[1]);
}
