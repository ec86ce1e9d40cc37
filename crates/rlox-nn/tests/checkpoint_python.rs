//! Learners of the Python package on its native backend and the trainers here are the same, and read each other's
//! checkpoints. The fixtures are from `tests/fixtures/make_checkpoint.py`; Python reads what is written here in
//! `tests/test_checkpoint_rust.py`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::PathBuf;

use rlox_core::{AutoresetMode, Checkpoint, EnvSpec, NormalizerOptions, VectorEnv, envs};
use rlox_nn::train::{A2c, A2cConfig, Ppo, PpoConfig};
use rlox_nn::{Activation, ActorCritic, Distribution, Mlp, NamedTensors, PolicyNetworks};

fn make(id: &str, num_envs: usize) -> Box<dyn VectorEnv> {
    let autoreset_mode = AutoresetMode::SameStep;
    let options = envs::MakeOptions { num_envs, seed: None, autoreset_mode, max_episode_steps: None, arguments: &[] };
    envs::make(id, &options).unwrap()
}

/// The trainer that `tests/fixtures/make_checkpoint.py` makes, too, but for the shape of the policy.
fn shaped(widths: &[usize], activation: Activation, seed: u64) -> Ppo<PolicyNetworks<Mlp>> {
    let config = PpoConfig {
        n_steps: 16,
        batch_size: 24,
        n_epochs: 2,
        normalize: Some(NormalizerOptions::default()),
        sde_sample_freq: 4,
        ..PpoConfig::default()
    };
    let policy = |spec: &_, rng: &mut _| PolicyNetworks::mlp_with_sde(spec, widths, activation, -1.0, rng);
    Ppo::new(make("Pendulum-v1", 3), policy, config, seed).unwrap()
}

fn trainer(seed: u64) -> Ppo<PolicyNetworks<Mlp>> {
    shaped(&[4], Activation::Tanh, seed)
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

#[test]
fn policies_of_another_shape_are_refused_by_name() {
    for (mut other, said) in [
        (shaped(&[4], Activation::Relu, 1), "expected activation = \"relu\", got \"tanh\""),
        (shaped(&[4, 4], Activation::Tanh, 1), "expected net_arch = [4,4], got [4]"),
    ] {
        for name in ["python-half", "rust-half"] {
            let text = other.load(fixture(name)).unwrap_err().to_string();
            assert!(text.contains("section settings") && text.contains(said), "{text}");
        }
        assert_eq!(other.timesteps(), 0);
    }
}

#[test]
fn checkpoints_that_do_not_tell_the_shape_are_loaded_by_their_tensors() {
    let mut saved = Checkpoint::read(fixture("rust-half")).unwrap();
    let settings = saved.manifest["settings"].as_object_mut().unwrap();
    settings.retain(|name, _| !["activation", "net_arch", "shared_trunk", "use_sde"].contains(&name.as_str()));
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("unshaped");
    saved.write(&folder).unwrap();
    let mut ours = trainer(2);
    ours.load(&folder).unwrap();
    agrees(&ours, "rust-half");
    let text = shaped(&[5], Activation::Tanh, 2).load(&folder).unwrap_err().to_string();
    assert!(text.contains("section networks"), "{text}");
}

/// Writes the fixtures that Python reads.
#[test]
#[ignore = "writes into the tree"]
fn writes_the_fixtures_for_python() {
    let mut ours = trainer(1);
    ours.train(28 * 48, |metrics| metrics.timesteps < 14 * 48).unwrap();
    ours.save(fixture("rust-half")).unwrap();
    let shared = |spec: &EnvSpec, rng: &mut _| {
        let distribution = Distribution::new(&spec.action, 0.0)?;
        PolicyNetworks::shared_around(spec, &[4, 3], Activation::Relu, distribution, rng)
    };
    let mut ours = A2c::new(make("CartPole-v1", 2), shared, A2cConfig::default(), 1).unwrap();
    ours.train(80, |metrics| metrics.timesteps < 40).unwrap();
    ours.save(fixture("rust-a2c")).unwrap();
}
