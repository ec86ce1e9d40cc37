//! Learners of the Python package on its native backend and the trainers here are the same, and read each other's
//! checkpoints. The fixtures are from `tests/fixtures/make_checkpoint.py`; Python reads what is written here in
//! `tests/test_checkpoint_rust.py`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::PathBuf;

use rlox_core::{AutoresetMode, Checkpoint, NormalizerOptions, envs};
use rlox_nn::train::{Ppo, PpoConfig};
use rlox_nn::{Activation, ActorCritic, Mlp, NamedTensors, PolicyNetworks};

/// The trainer that `tests/fixtures/make_checkpoint.py` makes, too.
fn trainer(seed: u64) -> Ppo<PolicyNetworks<Mlp>> {
    let options = envs::MakeOptions {
        num_envs: 3,
        seed: None,
        autoreset_mode: AutoresetMode::SameStep,
        max_episode_steps: None,
        arguments: &[],
    };
    let config = PpoConfig {
        n_steps: 16,
        batch_size: 24,
        n_epochs: 2,
        normalize: Some(NormalizerOptions::default()),
        sde_sample_freq: 4,
        ..PpoConfig::default()
    };
    let make = |spec: &_, rng: &mut _| PolicyNetworks::mlp_with_sde(spec, &[4], Activation::Tanh, -1.0, rng);
    Ppo::new(envs::make("Pendulum-v1", &options).unwrap(), make, config, seed).unwrap()
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint").join(name)
}

/// Sums are rounded otherwise on machines with other vectors, and learning makes a little of it more.
fn agrees(trainer: &Ppo<PolicyNetworks<Mlp>>, name: &str) {
    let saved = Checkpoint::read(fixture(name)).unwrap();
    let there = NamedTensors::from_safetensors(saved.safetensors("networks").unwrap()).unwrap();
    for ours in &trainer.policy().tensors() {
        let theirs = &there.find(&ours.name).unwrap().data;
        let off = ours.data.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-3, "{name}: {off} in {}", ours.name);
    }
    assert_eq!(Some(trainer.timesteps()), saved.manifest["counters"]["timesteps"].as_u64());
}

#[test]
fn a_seed_makes_the_same_trainer_as_in_python() {
    let mut ours = trainer(1);
    ours.train(28 * 48, |metrics| metrics.timesteps < 14 * 48).unwrap();
    agrees(&ours, "python-half");
    ours.resume(|_| true).unwrap();
    agrees(&ours, "python-whole");
}

#[test]
fn a_checkpoint_of_python_s_is_gone_on_with() {
    let mut ours = trainer(2);
    ours.load(fixture("python-half")).unwrap();
    agrees(&ours, "python-half");
    let metrics = ours.resume(|_| true).unwrap();
    agrees(&ours, "python-whole");
    let saved = Checkpoint::read(fixture("python-whole")).unwrap();
    let counters = &saved.manifest["counters"];
    assert_eq!(Some(metrics.updates), counters["updates"].as_u64());
    assert_eq!(Some(metrics.episodes), counters["episodes"]["count"].as_u64());
}

/// Writes the fixture that Python reads.
#[test]
#[ignore = "writes into the tree"]
fn writes_the_fixture_for_python() {
    let mut ours = trainer(1);
    ours.train(28 * 48, |metrics| metrics.timesteps < 14 * 48).unwrap();
    ours.save(fixture("rust-half")).unwrap();
}
