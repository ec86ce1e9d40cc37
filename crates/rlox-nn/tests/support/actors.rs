//! Small trainers with actors, and the bytes of their checkpoints.

use std::path::Path;

use rlox_core::{
    AutoresetMode, EnvSpec, Pcg64, Result, VectorEnv, checkpoint::Checkpoint, envs, pipeline::StalenessPolicy,
};
use rlox_nn::train::{AsyncOnPolicy, Impala, ImpalaConfig, OnPolicyAlgorithm};
use rlox_nn::{Activation, Mlp, PolicyNetworks};
use serde_json::{Map, Value};

pub(crate) type Policy = PolicyNetworks<Mlp>;
pub(crate) type Trainer<A> = AsyncOnPolicy<A, Policy>;

pub(crate) const SYNCHRONOUS: StalenessPolicy = StalenessPolicy { max_staleness: 0, deterministic: true };

pub(crate) fn cartpole(num_envs: usize, autoreset_mode: AutoresetMode) -> Box<dyn VectorEnv> {
    let options =
        envs::MakeOptions { num_envs, autoreset_mode, max_episode_steps: Some(Some(30)), ..Default::default() };
    envs::make("CartPole-v1", &options).unwrap()
}

pub(crate) fn networks(spec: &EnvSpec, rng: &mut Pcg64) -> Result<Policy> {
    PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng)
}

pub(crate) fn async_trainer<A: OnPolicyAlgorithm>(
    config: A,
    actors: usize,
    staleness_policy: StalenessPolicy,
    seed: u64,
) -> Trainer<A> {
    let envs = (0..actors).map(|_| cartpole(2, AutoresetMode::SameStep)).collect();
    AsyncOnPolicy::new(envs, networks, config, staleness_policy, seed).unwrap()
}

pub(crate) fn impala(actors: usize, staleness_policy: StalenessPolicy, seed: u64) -> Impala<Policy> {
    async_trainer(ImpalaConfig::default(), actors, staleness_policy, seed)
}

pub(crate) fn iterate<A: OnPolicyAlgorithm>(trainer: &mut Trainer<A>, times: usize) {
    for _ in 0..times {
        trainer.iterate(0.0).unwrap();
    }
}

/// Checkpoint of a trainer as manifest and members.
pub(crate) type State = (Map<String, Value>, Vec<Option<Vec<u8>>>);

pub(crate) fn read(path: &Path) -> State {
    let read = Checkpoint::read(path).unwrap();
    let bytes = ["networks", "optimizer", "environment"].map(|member| read.safetensors(member).map(<[u8]>::to_vec));
    (read.manifest, bytes.into())
}

pub(crate) fn state<A: OnPolicyAlgorithm>(trainer: &mut Trainer<A>) -> State {
    let scratch = tempfile::tempdir().unwrap();
    trainer.save(scratch.path()).unwrap();
    read(scratch.path())
}
