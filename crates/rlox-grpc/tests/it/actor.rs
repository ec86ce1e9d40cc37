//! Trainers with remote rollouts learn exactly as trainers with local actors.

use crate::support::process::Process;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{AutoresetMode, Error, Pcg64, VectorEnv, pipeline::StalenessPolicy};
use rlox_grpc::{ClientOptions, EnvOptions, Limits, Worker, WorkerOptions, build_async_on_policy};
use rlox_nn::train::{A2cConfig, AsyncOnPolicy, ImpalaConfig, OnPolicyAlgorithm, PpoConfig};
use rlox_nn::{Activation, ActorCritic, Mlp, NamedTensors, PolicyNetworks};

const ENVS: usize = 4;

fn local(id: &str) -> Box<dyn VectorEnv> {
    let (autoreset_mode, max_episode_steps) = (AutoresetMode::SameStep, Some(Some(25)));
    let options =
        MakeOptions { num_envs: ENVS, seed: Some(0), autoreset_mode, max_episode_steps, ..Default::default() };
    envs::make(id, &options).unwrap()
}

fn remote(id: &str) -> EnvOptions {
    EnvOptions { max_episode_steps: Some(Some(25)), ..EnvOptions::new(id, ENVS, 0) }
}

fn make(spec: &rlox_core::EnvSpec, rng: &mut Pcg64) -> rlox_core::Result<PolicyNetworks<Mlp>> {
    PolicyNetworks::mlp(spec, &[16, 16], Activation::Tanh, rng)
}

/// Returns the weights and the metrics of 12 rollouts; `before_each` is called before each rollout.
fn train<A: OnPolicyAlgorithm, P: ActorCritic + 'static>(
    mut trainer: AsyncOnPolicy<A, P>,
    mut before_each: impl FnMut(usize),
) -> (NamedTensors, Vec<String>) {
    let mut metrics = Vec::new();
    for t in 0..12 {
        before_each(t);
        metrics.push(format!("{:?}", trainer.iterate(t as f64 / 12.0).unwrap()));
    }
    (trainer.stop().unwrap().tensors(), metrics)
}

fn compare<A: OnPolicyAlgorithm + Clone>(id: &str, config: &A, addresses: &[String], before_each: impl FnMut(usize)) {
    let staleness = StalenessPolicy { max_staleness: 2, deterministic: true };
    let local_trainer = AsyncOnPolicy::new(vec![local(id), local(id)], make, config.clone(), staleness, 3).unwrap();
    let options = ClientOptions::default();
    let remote_trainer =
        build_async_on_policy(addresses, &remote(id), 2, make, config.clone(), staleness, 3, &options).unwrap();
    let (local_trainer, remote_trainer) = (train(local_trainer, |_| {}), train(remote_trainer, before_each));
    assert_eq!(local_trainer.1, remote_trainer.1);
    assert_eq!(local_trainer.0, remote_trainer.0);
}

#[test]
fn remote_training_equals_local_training() {
    let workers = [(); 2].map(|()| Worker::start(WorkerOptions::default()).unwrap());
    let addresses = workers.each_ref().map(Worker::address);
    for id in ["CartPole-v1", "Pendulum-v1"] {
        compare(id, &ImpalaConfig { n_steps: 10, ..ImpalaConfig::default() }, &addresses, |_| {});
        compare(id, &PpoConfig { n_steps: 16, batch_size: 32, ..PpoConfig::default() }, &addresses, |_| {});
        compare(id, &A2cConfig::default(), &addresses, |_| {});
    }
}

#[test]
fn lost_rollouts_are_collected_again() {
    let (first, second) = (Process::start(&[]), Process::start(&[]));
    let addresses = [first.address.clone(), second.address.clone()];
    let mut first = Some(first);
    let kill = |t: usize| {
        if t == 5 {
            drop(first.take());
        }
    };
    compare("CartPole-v1", &ImpalaConfig { n_steps: 10, ..ImpalaConfig::default() }, &addresses, kill);
}

#[test]
fn weights_of_another_architecture_are_rejected() {
    use rlox_core::{
        RolloutBuffer,
        pipeline::{Collect, Rollout, RolloutJob, RolloutTicket},
    };
    use rlox_grpc::{RemoteActor, RemoteRolloutConfig};
    use rlox_nn::train::CollectConfig;

    let worker = Worker::start(WorkerOptions::default()).unwrap();
    let env = local("CartPole-v1");
    let policy = make(env.spec(), &mut Pcg64::seed_from(0)).unwrap();
    let collect_config = CollectConfig::default();
    let settings =
        RemoteRolloutConfig { n_steps: 5, config: collect_config, reset_seed: 0, arch: policy.arch().unwrap() };
    let (addresses, options) = ([worker.address()], ClientOptions::default());
    let mut actor = RemoteActor::new(&addresses, 0, &remote("CartPole-v1"), &settings, &options).unwrap();
    let other = PolicyNetworks::mlp(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let mut collect = |weights: NamedTensors, version| {
        let buffer = Rollout::from_buffer(RolloutBuffer::for_env(5, env.as_ref()).unwrap());
        let ticket = RolloutTicket { slot: 0, number: 0, actor: 0, version, seed: 4 };
        let mut job = RolloutJob { ticket, weights: weights.into(), buffer };
        actor.collect(&mut job, &|| false).map(|()| job.buffer.steps.transitions())
    };
    let rejected = assert_rejects(collect(other.tensors(), 0), Error::Shape, "tensors");
    assert_eq!(rejected.expected, "\"actor.0.weight\" of shape [16, 4]");
    assert_eq!((rejected.got, rejected.at.worker), ("[8, 4]".to_string(), Some(worker.address())));
    assert_eq!(collect(policy.tensors(), 1).unwrap(), 20);
    assert_cache_is_invalidated(&addresses, &settings, &policy);
    let shape = rlox_nn::PolicyArch { value: vec![4], ..policy.arch().unwrap() };
    let settings = RemoteRolloutConfig { arch: shape, ..settings };
    let result = RemoteActor::new(&addresses, 0, &remote("CartPole-v1"), &settings, &options);
    assert_rejects(result, Error::Config, "policy");
}

/// Asserts that weights of a known version are sent again only after `invalidate_cache`.
fn assert_cache_is_invalidated(
    addresses: &[String],
    settings: &rlox_grpc::RemoteRolloutConfig,
    policy: &PolicyNetworks<Mlp>,
) {
    use rlox_core::{
        RolloutBuffer,
        field::FieldData,
        pipeline::{Collect, Rollout, RolloutJob, RolloutTicket},
    };

    let (env, options) = (remote("CartPole-v1"), ClientOptions::default());
    let mut actor = rlox_grpc::RemoteActor::new(addresses, 0, &env, settings, &options).unwrap();
    let mut all_zero = |zero: bool, invalidate: bool| {
        let mut weights = NamedTensors::default();
        for tensor in &policy.tensors() {
            let data = tensor.data.iter().map(|x| if zero { 0.0 } else { *x }).collect();
            weights.push(tensor.name.clone(), &tensor.shape, data).unwrap();
        }
        if invalidate {
            actor.invalidate_cache();
        }
        let buffer = Rollout::from_buffer(RolloutBuffer::for_env(5, local("CartPole-v1").as_ref()).unwrap());
        let ticket = RolloutTicket { slot: 0, number: 0, actor: 0, version: 7, seed: 4 };
        let mut job = RolloutJob { ticket, weights: weights.into(), buffer };
        actor.collect(&mut job, &|| false).unwrap();
        let FieldData::F32(values) = job.buffer.steps.field("values").unwrap().data() else { panic!("not f32") };
        values.iter().all(|value| *value == 0.0)
    };
    assert!(!all_zero(false, false));
    assert!(!all_zero(true, false), "the worker has this version already");
    assert!(all_zero(true, true));
}

#[test]
fn rollouts_larger_than_a_message_are_rejected_at_construction() {
    let limits = Limits { max_message_bytes: 4096, ..Limits::default() };
    let worker = Worker::start(WorkerOptions { limits, ..WorkerOptions::default() }).unwrap();
    let config = ImpalaConfig { n_steps: 100, ..ImpalaConfig::default() };
    let (staleness, options) = (StalenessPolicy::default(), ClientOptions::default());
    let addresses = [worker.address()];
    let result = build_async_on_policy(&addresses, &remote("CartPole-v1"), 1, make, config, staleness, 0, &options);
    let rejected = assert_rejects(result, Error::Config, "n_steps");
    assert!(rejected.hint.contains("--max-message-bytes"), "{rejected}");
}
