//! Interrupted updates leave the policy as it was after the last complete minibatch.

use rlox_core::{
    Actions, ActionsMut, AutoresetMode, Error, Pcg64, Policy, PolicyOut, Result, RolloutBuffer, Seeds, VecEnv,
    VectorEnv, envs,
};
use rlox_nn::train::{
    A2cConfig, CollectConfig, Encoding, IterationStreams, Minibatches, PpoConfig, collect_transitions,
};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, ActorCriticStats, Minibatch, Mlp, NamedTensors, Optimizer, PolicyLoss,
    PolicyNetworks,
};

const ENVS: usize = 8;
const STEPS: usize = 600;

fn env() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(ENVS, None, AutoresetMode::SameStep, envs::CartPole::default).unwrap())
}

fn policy() -> PolicyNetworks<Mlp> {
    PolicyNetworks::mlp(env().spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap()
}

/// Returns a finished rollout of 4800 transitions.
fn rollout(policy: &mut dyn ActorCritic) -> RolloutBuffer {
    let (mut env, mut streams) = (env(), IterationStreams::new(1, ENVS).unwrap());
    let mut buffer = RolloutBuffer::for_env(STEPS, env.as_ref()).unwrap();
    buffer.begin(env.as_mut(), Seeds::Base(3), None).unwrap();
    let config = CollectConfig::default();
    let actions = &mut streams.actions;
    collect_transitions(env.as_mut(), policy, actions, &mut buffer, None, config, &mut || false).unwrap();
    buffer
}

/// Returns a stop function that returns `false` in the first `polls` calls and `true` in later
/// calls.
fn after(polls: usize) -> impl FnMut() -> bool {
    let mut calls = 0;
    move || {
        calls += 1;
        calls > polls
    }
}

fn state(policy: &dyn ActorCritic) -> (NamedTensors, NamedTensors, f32) {
    let grad_sum = policy.gradients().iter().flat_map(|tensor| &tensor.data).map(|x| x.abs()).sum();
    (policy.tensors(), policy.optimizer_state(), grad_sum)
}

#[test]
fn interrupted_minibatches_change_nothing() {
    let rows = 4800;
    let (obs, ones) = (vec![0.1; 4 * rows], vec![1.0; rows]);
    let actions: Vec<_> = (0..rows as i64).map(|i| i % 2).collect();
    let batch = Minibatch {
        obs: &obs,
        actions: Actions::Discrete(&actions),
        masks: None,
        log_probs: &ones,
        values: &ones,
        advantages: &ones,
        returns: &vec![2.0; rows],
    };
    let loss = ActorCriticLoss {
        policy: PolicyLoss::Clipped { clip_coef: 0.2 },
        clip_coef_vf: None,
        vf_coef: 0.5,
        ent_coef: 0.0,
    };
    let (mut stopped, mut other, adam) = (policy(), policy(), Optimizer::adam(1e-3));
    let before = state(&stopped);
    // The update polls `stop` before each of five blocks of rows.
    for polls in 0..5 {
        let done = stopped.update_with_early_stopping(&batch, &loss, &adam, None, None, &mut after(polls));
        assert!(matches!(done, Err(Error::Interrupted)), "{polls}");
        assert_eq!(state(&stopped), before);
    }
    let stats = stopped.update_with_early_stopping(&batch, &loss, &adam, None, Some(0.1), &mut || false).unwrap();
    assert!(stats.approx_kl > 0.1, "{stats:?}");
    assert_eq!(state(&stopped), before, "the KL is above the limit");
    let stats = stopped.update_with_early_stopping(&batch, &loss, &adam, None, Some(1e9), &mut after(5)).unwrap();
    assert_eq!(stats, other.update(&batch, &loss, &adam, None).unwrap());
    assert_eq!(state(&stopped), state(&other));
    assert_ne!(state(&stopped), before);
}

#[test]
fn ppo_keeps_minibatches_before_the_interrupted_one() {
    let config = PpoConfig { batch_size: 2400, n_epochs: 2, ..PpoConfig::default() };
    let mut full = policy();
    let buffer = rollout(&mut full);
    let learn = |policy: &mut PolicyNetworks<Mlp>, config: &PpoConfig, polls| {
        let (mut order, mut minibatches) = (Pcg64::seed_from(5), Minibatches::new(Encoding::Numbers(4)));
        config.learn(policy, &buffer, &mut minibatches, &mut order, 0.0, &mut after(polls)).unwrap()
    };
    // A minibatch polls once while it is gathered, and before each of its three blocks of rows.
    let mut states = vec![];
    for (polls, updates) in [(0, 0), (3, 0), (4, 1), (7, 1), (8, 1), (9, 1), (12, 2), (15, 2), (16, 2), (99, 2)] {
        let mut stopped = policy();
        let learned = learn(&mut stopped, &config, polls);
        assert_eq!(learned.updates, updates, "{polls}");
        assert!(updates == 0 || learned.stats.approx_kl.is_finite(), "{polls}: {learned:?}");
        states.push((polls / 4, state(&stopped)));
    }
    for pair in states.windows(2) {
        let same = pair[0].0.min(4) == pair[1].0.min(4);
        assert_eq!(pair[0].1 == pair[1].1, same, "after {} and {} minibatches", pair[0].0, pair[1].0);
        assert_eq!(pair[1].1.2, 0.0, "gradients remain");
    }
    assert_eq!(states[0].1, state(&policy()));
    let half = PpoConfig { n_epochs: 1, ..config };
    learn(&mut full, &half, usize::MAX);
    assert_eq!(states[4].1, state(&full), "one epoch gives the same state");
}

#[test]
fn interrupted_a2c_updates_change_nothing() {
    let mut full = policy();
    let buffer = rollout(&mut full);
    let before = state(&full);
    let mut minibatches = Minibatches::new(Encoding::Numbers(4));
    for (polls, updates) in [(0, 0), (1, 0), (5, 0), (6, 1)] {
        let learned = A2cConfig::default().learn(&mut full, &buffer, &mut minibatches, 0.0, &mut after(polls)).unwrap();
        assert_eq!(learned.updates, updates, "{polls}");
        assert_eq!(state(&full) == before, updates == 0, "{polls}");
    }
}

/// Policy that uses the trait's default implementation of `update_with_early_stopping`.
struct Plain(PolicyNetworks<Mlp>);

/// Forwards methods to the wrapped policy.
macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        fn $name(&mut self, $($arg: $ty),*) $(-> $ret)? { self.0.$name($($arg),*) }
    )*};
    ($(&$name:ident() -> $ret:ty;)*) => {$(
        fn $name(&self) -> $ret { self.0.$name() }
    )*};
}

impl Policy for Plain {
    forward! {
        act(obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()>;
        value(obs: &[f32], values: &mut [f32]) -> Result<()>;
    }
}

impl ActorCritic for Plain {
    forward! {
        act_deterministic(obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;
        evaluate_actions(obs: &[f32], masks: Option<&[bool]>, actions: Actions<'_>, log_probs: &mut [f32],
            values: &mut [f32]) -> Result<()>;
        evaluate(batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats>;
        backward() -> Result<()>;
        step(optimizer: &Optimizer, max_grad_norm: Option<f32>) -> Result<f32>;
        zero_gradients();
        draw_noise(rngs: &mut [Pcg64]) -> Result<()>;
        act_stateless(obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()>;
        load(tensors: &NamedTensors) -> Result<()>;
        load_optimizer_state(state: &NamedTensors) -> Result<()>;
    }
    forward! {
        &tensors() -> NamedTensors;
        &gradients() -> NamedTensors;
        &optimizer_state() -> NamedTensors;
    }
}

#[test]
fn updates_apply_or_drop_earlier_gradients() {
    // The rows suffice for `stop` to be polled.
    const ROWS: usize = 1200;
    let (obs, numbers, old, chosen) = (vec![0.1; 4 * ROWS], vec![0.5; ROWS], vec![-5.0; ROWS], vec![1; ROWS]);
    let rows = |rows: usize| {
        let ([values, advantages, returns], log_probs) = ([&numbers[..rows]; 3], &old[..rows]);
        let (obs, actions) = (&obs[..4 * rows], Actions::Discrete(&chosen[..rows]));
        Minibatch { obs, actions, masks: None, log_probs, values, advantages, returns }
    };
    let batch = rows(4);
    let policy_loss = PolicyLoss::Clipped { clip_coef: 0.2 };
    let loss = ActorCriticLoss { policy: policy_loss, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
    let (wrong, adam) = (Minibatch { actions: Actions::Discrete(&[1, 1, 1, 2]), ..batch }, Optimizer::adam(1e-3));
    let mut steps = vec![];
    for mut policy in [Box::new(policy()) as Box<dyn ActorCritic>, Box::new(Plain(policy()))] {
        let before = state(policy.as_ref());
        for case in 0..5 {
            policy.evaluate(&batch, &loss).unwrap();
            policy.backward().unwrap();
            assert!(state(policy.as_ref()).2 > 0.0);
            let done = match case {
                0 => policy.update_with_early_stopping(&batch, &loss, &adam, None, Some(0.0), &mut || false).map(
                    |stats| {
                        assert!(stats.approx_kl > 0.0 && stats.grad_norm == 0.0, "{stats:?}");
                    },
                ),
                1 => policy.update_with_early_stopping(&rows(ROWS), &loss, &adam, None, None, &mut || true).map(drop),
                2 => policy.update(&wrong, &loss, &adam, None).map(drop),
                3 => policy.update(&batch, &loss, &Optimizer::adam(-1.0), None).map(drop),
                _ => policy.update(&batch, &loss, &adam, Some(f32::NAN)).map(drop),
            };
            assert_eq!(done.is_ok(), case == 0);
            assert_eq!(state(policy.as_ref()), before, "{case}");
        }
        // The sum of two equal gradients has twice the norm of one gradient.
        let alone = policy.update(&batch, &loss, &Optimizer::adam(0.0), None).unwrap().grad_norm;
        policy.evaluate(&batch, &loss).unwrap();
        policy.backward().unwrap();
        let both = policy.update(&batch, &loss, &adam, None).unwrap().grad_norm;
        assert!((both / alone - 2.0).abs() < 1e-5, "{both} {alone}");
        assert_eq!(state(policy.as_ref()).2, 0.0);
        steps.push(state(policy.as_ref()));
    }
    assert_eq!(steps[0], steps[1]);
}
