//! Trainers compute the same results as the native learners of the Python package, and each reads
//! the other's checkpoints.
//!
//! `tests/fixtures/make_checkpoint.py` writes the Python fixtures. In Python, `tests/test_checkpoint_rust.py` reads the
//! fixtures written here, and `tests/learners/test_rust_trainers.py` compares bit for bit.

use std::path::{Path, PathBuf};

use rlox_core::{AutoresetMode, Error, VectorEnv, checkpoint::Checkpoint, envs, normalize::NormalizerOptions};
use rlox_nn::train::{A2c, A2cConfig, OffPolicy, OffPolicyMethod, Ppo, PpoConfig};
use rlox_nn::{Activation, ActorCritic, Mlp, NamedTensors, PolicyBuilder, PolicyNetworks};

use crate::support::checkpoints::{assert_checkpoint_rejects, corrupt, setting};
use crate::support::trainers::{dqn, rainbow, sac, td3};

fn make(id: &str, num_envs: usize) -> Box<dyn VectorEnv> {
    let autoreset_mode = AutoresetMode::SameStep;
    let options = envs::MakeOptions { num_envs, autoreset_mode, ..Default::default() };
    envs::make(id, &options).unwrap()
}

/// Creates the trainer of `tests/fixtures/make_checkpoint.py`, with this architecture of the
/// policy.
fn trainer_with(widths: &[usize], activation: Activation, seed: u64) -> Ppo<PolicyNetworks<Mlp>> {
    let config = PpoConfig {
        n_steps: 16,
        batch_size: 24,
        n_epochs: 2,
        normalize: Some(NormalizerOptions::default()),
        sde_sample_freq: 4,
        ..PpoConfig::default()
    };
    let policy = |spec: &_, rng: &mut _| {
        PolicyBuilder::new(spec).net_arch(widths).activation(activation).use_sde(true).log_std_init(-1.0).build(rng)
    };
    Ppo::new(make("Pendulum-v1", 3), policy, config, seed).unwrap()
}

fn trainer(seed: u64) -> Ppo<PolicyNetworks<Mlp>> {
    trainer_with(&[4], Activation::Tanh, seed)
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint").join(name)
}

/// Asserts that weights agree up to rounding, which depends on the SIMD width.
fn assert_agrees(trainer: &Ppo<PolicyNetworks<Mlp>>, name: &str) {
    let saved = Checkpoint::read(fixture(name)).unwrap();
    let stored_tensors = NamedTensors::from_safetensors(saved.safetensors("networks").unwrap()).unwrap();
    for ours in &trainer.policy().tensors() {
        let theirs = &stored_tensors.find(&ours.name).unwrap().data;
        let max_error = ours.data.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_error < 1e-3, "{name}: {max_error} in {}", ours.name);
    }
    assert_eq!(Some(trainer.timesteps()), saved.manifest["counters"]["timesteps"].as_u64());
}

#[test]
fn trainers_equal_pythons_with_the_same_seed() {
    let mut ours = trainer(1);
    ours.train(28 * 48, |metrics| metrics.timesteps < 14 * 48).unwrap();
    assert_agrees(&ours, "python-half");
    ours.resume(|_| true).unwrap();
    assert_agrees(&ours, "python-whole");
}

#[test]
fn python_checkpoints_resume_exactly() {
    let mut ours = trainer(2);
    ours.load(fixture("python-half")).unwrap();
    assert_agrees(&ours, "python-half");
    let metrics = ours.resume(|_| true).unwrap();
    assert_agrees(&ours, "python-whole");
    let saved = Checkpoint::read(fixture("python-whole")).unwrap();
    let counters = &saved.manifest["counters"];
    assert_eq!(Some(metrics.updates), counters["updates"].as_u64());
    assert_eq!(Some(metrics.episodes), counters["episodes"]["count"].as_u64());
}

#[test]
fn other_architectures_are_rejected_by_name() {
    for (mut other, rejection) in [
        (trainer_with(&[4], Activation::Relu, 1), setting("activation = \"relu\"", "\"tanh\"")),
        (trainer_with(&[4, 4], Activation::Tanh, 1), setting("net_arch = [4,4]", "[4]")),
    ] {
        for name in ["python-half", "rust-half"] {
            assert_checkpoint_rejects(other.load(fixture(name)), &fixture(name), rejection);
        }
        assert_eq!(other.timesteps(), 0);
    }
}

#[test]
fn checkpoints_without_architecture_are_checked_by_tensors() {
    let mut saved = Checkpoint::read(fixture("rust-half")).unwrap();
    let settings = saved.manifest["settings"].as_object_mut().unwrap();
    settings.retain(|name, _| !["activation", "net_arch", "shared_trunk", "use_sde"].contains(&name.as_str()));
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("unshaped");
    saved.write(&folder).unwrap();
    let mut ours = trainer(2);
    ours.load(&folder).unwrap();
    assert_agrees(&ours, "rust-half");
    let result = trainer_with(&[5], Activation::Tanh, 2).load(&folder);
    assert_checkpoint_rejects(result, &folder, (Error::Shape, "networks, tensors", "", ""));
}

/// Returns true if the test writes the fixtures that Python reads. Their weights depend on the
/// machine.
fn regenerates() -> bool {
    std::env::var_os("RLOX_REGENERATE").is_some()
}

#[test]
#[ignore = "writes fixtures if RLOX_REGENERATE is set"]
fn writes_the_fixtures_for_python() {
    if !regenerates() {
        return;
    }
    let mut ours = trainer(1);
    ours.train(28 * 48, |metrics| metrics.timesteps < 14 * 48).unwrap();
    ours.save(fixture("rust-half")).unwrap();
    let shared = |spec: &_, rng: &mut _| {
        PolicyBuilder::new(spec).net_arch(&[4, 3]).activation(Activation::Relu).shared_trunk(true).build(rng)
    };
    let mut ours = A2c::new(make("CartPole-v1", 2), shared, A2cConfig::default(), 1).unwrap();
    ours.train(80, |metrics| metrics.timesteps < 40).unwrap();
    ours.save(fixture("rust-a2c")).unwrap();
}

const STEPS: u64 = 600;

fn train_halfway<A: OffPolicyMethod>(trainer: &mut OffPolicy<A>) {
    trainer.train(STEPS, |metrics| metrics.timesteps < STEPS / 2).unwrap();
}

/// Asserts that weights agree up to rounding, which depends on the SIMD width.
fn assert_off_policy_agrees<A: OffPolicyMethod>(trainer: &OffPolicy<A>, name: &str) {
    let saved = Checkpoint::read(fixture(name)).unwrap();
    let stored_tensors = NamedTensors::from_safetensors(saved.safetensors("networks").unwrap()).unwrap();
    for ours in &trainer.learner().tensors() {
        let theirs = &stored_tensors.find(&ours.name).unwrap().data;
        let max_error = ours.data.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_error < 1e-3, "{name}: {max_error} in {}", ours.name);
    }
    assert_eq!(Some(trainer.timesteps()), saved.manifest["counters"]["timesteps"].as_u64());
    assert_eq!(trainer.replay().len() as u64, saved.manifest["settings"]["buffer_size"].as_u64().unwrap());
}

fn assert_equals_python<A: OffPolicyMethod>(name: &str, make: impl Fn(u64) -> OffPolicy<A>) {
    let name = format!("python-{name}");
    let mut ours = make(1);
    train_halfway(&mut ours);
    assert_off_policy_agrees(&ours, &name);
    let mut other = make(2);
    other.load(fixture(&name)).unwrap();
    assert_off_policy_agrees(&other, &name);
    let (one, other) = (ours.resume(|_| true).unwrap(), other.resume(|_| true).unwrap());
    let counts = [one, other].map(|metrics| (metrics.timesteps, metrics.updates, metrics.episodes));
    assert_eq!(counts[0], counts[1], "{name}");
    assert_eq!(counts[0].0, STEPS);
}

#[test]
fn off_policy_trainers_equal_pythons_and_resume_their_checkpoints() {
    assert_equals_python("dqn", |seed| rainbow(2, seed));
    assert_equals_python("sac", |seed| sac(2, true, seed));
    assert_equals_python("td3", |seed| td3(2, seed));
}

#[test]
#[ignore = "writes fixtures if RLOX_REGENERATE is set"]
fn writes_the_off_policy_fixtures_for_python() {
    fn write<A: OffPolicyMethod>(mut trainer: OffPolicy<A>, name: &str) {
        train_halfway(&mut trainer);
        trainer.save(fixture(name)).unwrap();
    }
    if !regenerates() {
        return;
    }
    write(rainbow(2, 1), "rust-dqn");
    write(sac(2, true, 1), "rust-sac");
    write(td3(2, 1), "rust-td3");
}

/// Trains half a run, the full run, and the second half of a run that Python saved.
#[test]
#[ignore = "called by the Python tests"]
fn trains_for_python() {
    fn write<A: OffPolicyMethod>(folder: &Path, name: &str, make: impl Fn(u64) -> OffPolicy<A>) {
        let mut trainer = make(1);
        train_halfway(&mut trainer);
        trainer.save(folder.join(format!("rust-{name}-half"))).unwrap();
        trainer.resume(|_| true).unwrap();
        trainer.save(folder.join(format!("rust-{name}-whole"))).unwrap();
        let mut other = make(2);
        other.load(folder.join(format!("python-{name}-half"))).unwrap();
        other.resume(|_| true).unwrap();
        other.save(folder.join(format!("rust-{name}-resumed"))).unwrap();
    }
    let Some(folder) = std::env::var_os("RLOX_COMPARE").map(PathBuf::from) else { return };
    write(&folder, "dqn", |seed| rainbow(2, seed));
    write(&folder, "sac", |seed| sac(2, true, seed));
    write(&folder, "td3", |seed| td3(2, seed));
}

/// Writes a copy of a checkpoint as `save(replay=False)` of Python does.
fn without_replay(from: &Path, to: &Path, replay_entry: serde_json::Value) {
    let saved = Checkpoint::read(from).unwrap();
    let mut reduced = Checkpoint::default();
    reduced.manifest.clone_from(&saved.manifest);
    reduced.manifest.insert("replay".into(), replay_entry);
    for member in ["networks", "optimizer", "normalizer", "environment"] {
        if let Some(bytes) = saved.safetensors(member) {
            reduced.insert_safetensors(member, bytes.to_vec()).unwrap();
        }
    }
    reduced.write(to).unwrap();
}

fn assert_starts_with_empty_replay<A: OffPolicyMethod>(make: impl Fn(u64) -> OffPolicy<A>) {
    let scratch = tempfile::tempdir().unwrap();
    let [complete, reduced] = ["whole", "reduced"].map(|name| scratch.path().join(name));
    let (mut first, mut second) = (make(1), make(2));
    train_halfway(&mut first);
    first.save(&complete).unwrap();
    without_replay(&complete, &reduced, false.into());
    // Loading replaces the state of another run and its replay buffer.
    train_halfway(&mut second);
    second.load(&reduced).unwrap();
    assert_eq!((second.replay().len(), second.timesteps()), (0, first.timesteps()));
    assert_eq!(second.learner().tensors(), first.learner().tensors());
    second.resume(|_| true).unwrap();
    assert!(second.timesteps() == STEPS && !second.replay().is_empty());
    assert_ne!(second.learner().tensors(), first.learner().tensors());
}

#[test]
fn checkpoints_without_replay_start_with_an_empty_buffer() {
    assert_starts_with_empty_replay(|seed| dqn(2, seed));
    assert_starts_with_empty_replay(|seed| rainbow(2, seed));
    assert_starts_with_empty_replay(|seed| sac(2, false, seed));
    let scratch = tempfile::tempdir().unwrap();
    let [complete, odd] = ["whole", "odd"].map(|name| scratch.path().join(name));
    let mut trainer = td3(2, 1);
    trainer.save(&complete).unwrap();
    without_replay(&complete, &odd, 1.into());
    assert_checkpoint_rejects(trainer.load(&odd), &odd, corrupt("replay", ""));
}
