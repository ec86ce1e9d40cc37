use std::sync::Arc;

use rlox_core::testing::assert_rejects;
use rlox_core::{AutoresetMode, Turn, VecEnv, envs::CartPole};

use super::*;
use crate::train::{A2cConfig, Impala, ImpalaConfig, PpoConfig};
use crate::{Activation, Mlp, PolicyNetworks};

const IN_TURN: Ahead = Ahead { max_lag: 0, lockstep: true };

fn env() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default).unwrap())
}

fn make(spec: &EnvSpec, rng: &mut Pcg64) -> Result<PolicyNetworks<Mlp>> {
    PolicyNetworks::mlp(spec, &[16], Activation::Tanh, rng)
}

fn allocations(f: impl FnOnce()) -> u64 {
    allocation_counter::measure(f).count_total
}

#[test]
fn an_actor_allocates_nothing_for_a_step() {
    let counted = |n_steps| {
        let how = Collection { gamma: 0.99, gae_lambda: 0.95, sde_sample_freq: 0 };
        let (env, policy) = (env(), make(env().spec(), &mut Pcg64::seed_from(0)).unwrap());
        let weights = Arc::new(policy.tensors());
        let buffer = Rollout::around(RolloutBuffer::for_env(n_steps, env.as_ref()).unwrap());
        let mut actor = PolicyActor::new(env, policy, &ActorPlan { number: 0, reset: 3, n_steps, how }).unwrap();
        let turn = Turn { slot: 0, number: 0, actor: 0, version: 0, seed: 0 };
        let mut begun = Begun { turn, weights, buffer };
        // Every rollout with weights of its own.
        let mut collect = |rollouts: std::ops::Range<u64>| {
            for number in rollouts {
                (begun.turn.number, begun.turn.version, begun.turn.seed) = (number, number, number);
                actor.collect(&mut begun, &|| false).unwrap();
            }
        };
        collect(0..100);
        allocations(|| collect(100..150))
    };
    assert_eq!(counted(16), counted(64));
}

fn of_learner<A: Algorithm + Clone>(config: impl Fn(usize) -> A) -> [u64; 2] {
    [8, 32].map(|n_steps| {
        let mut trainer = AsyncOnPolicy::new(vec![env()], make, config(n_steps), IN_TURN, 1).unwrap();
        let mut iterate = || {
            for _ in 0..50 {
                trainer.iterate(0.0).unwrap();
            }
        };
        iterate();
        allocations(iterate)
    })
}

#[test]
fn a_learner_allocates_nothing_for_a_transition() {
    for [short, long] in [
        of_learner(|n_steps| ImpalaConfig { n_steps, ..ImpalaConfig::default() }),
        of_learner(|n_steps| A2cConfig { n_steps, ..A2cConfig::default() }),
        // As many minibatches of either.
        of_learner(|n_steps| PpoConfig { n_steps, batch_size: 2 * n_steps, n_epochs: 2, ..PpoConfig::default() }),
    ] {
        assert_eq!(short, long);
    }
}

#[test]
fn environments_that_differ_are_refused() {
    let other = |limit| {
        let options = rlox_core::envs::MakeOptions {
            num_envs: 4,
            seed: None,
            autoreset_mode: AutoresetMode::SameStep,
            max_episode_steps: Some(limit),
            arguments: &[],
        };
        rlox_core::envs::make("CartPole-v1", &options).unwrap()
    };
    let envs = vec![other(Some(500)), other(Some(9))];
    let result = Impala::new(envs, make, ImpalaConfig::default(), IN_TURN, 1);
    let rejected = assert_rejects(result, Error::Config, "envs");
    for (text, limit) in [(&rejected.expected, "a limit of 500"), (&rejected.got, "a limit of 9, without action masks")]
    {
        assert!(text.starts_with("CartPole-v1 with ") && text.contains(limit), "{rejected}");
    }
}

#[test]
fn a_bound_whose_rollouts_do_not_fit_into_memory_is_refused_by_its_name() {
    for max_lag in [usize::MAX, 1 << 50, 1 << 36] {
        let ahead = Ahead { max_lag, lockstep: true };
        let result = Impala::new(vec![env()], make, ImpalaConfig::default(), ahead, 1);
        assert_rejects(result, Error::Memory, "max_lag");
    }
}
