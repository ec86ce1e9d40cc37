//! Learners of the Python package on its native backend and the trainers here are the same, and read each other's
//! checkpoints. The fixtures are from `tests/fixtures/make_checkpoint.py`; Python reads the fixtures written here in
//! `tests/test_checkpoint_rust.py`, and compares bit for bit in `tests/learners/test_rust_trainers.py`.

use std::path::{Path, PathBuf};

use rlox_core::{AutoresetMode, Checkpoint, EnvSpec, Error, NormalizerOptions, VectorEnv, envs};
use rlox_nn::train::{A2c, A2cConfig, OffPolicy, OffPolicyMethod, Ppo, PpoConfig};
use rlox_nn::{Activation, ActorCritic, Distribution, Mlp, NamedTensors, PolicyNetworks};

use crate::support::checkpoints::{assert_checkpoint_rejects, corrupt, setting};
use crate::support::trainers::{dqn, rainbow, sac, td3};

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
    for (mut other, rejection) in [
        (shaped(&[4], Activation::Relu, 1), setting("activation = \"relu\"", "\"tanh\"")),
        (shaped(&[4, 4], Activation::Tanh, 1), setting("net_arch = [4,4]", "[4]")),
    ] {
        for name in ["python-half", "rust-half"] {
            assert_checkpoint_rejects(other.load(fixture(name)), &fixture(name), rejection);
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
    let result = shaped(&[5], Activation::Tanh, 2).load(&folder);
    assert_checkpoint_rejects(result, &folder, (Error::Shape, "networks, tensors", "", ""));
}

/// Returns whether to write the fixtures that Python reads. Their weights depend on the machine.
fn regenerates() -> bool {
    std::env::var_os("RLOX_REGENERATE").is_some()
}

#[test]
#[ignore = "writes into the tree, with RLOX_REGENERATE"]
fn writes_the_fixtures_for_python() {
    if !regenerates() {
        return;
    }
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

const STEPS: u64 = 600;

fn train_halfway<A: OffPolicyMethod>(trainer: &mut OffPolicy<A>) {
    trainer.train(STEPS, |metrics| metrics.timesteps < STEPS / 2).unwrap();
}

/// Sums are rounded otherwise on machines with other vectors, and learning makes a little of it more.
fn off_policy_agrees<A: OffPolicyMethod>(trainer: &OffPolicy<A>, name: &str) {
    let saved = Checkpoint::read(fixture(name)).unwrap();
    let there = NamedTensors::from_safetensors(saved.safetensors("networks").unwrap()).unwrap();
    for ours in &trainer.learner().tensors() {
        let theirs = &there.find(&ours.name).unwrap().data;
        let off = ours.data.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-3, "{name}: {off} in {}", ours.name);
    }
    assert_eq!(Some(trainer.timesteps()), saved.manifest["counters"]["timesteps"].as_u64());
    assert_eq!(trainer.replay().len() as u64, saved.manifest["settings"]["buffer_size"].as_u64().unwrap());
}

fn is_the_same_in_python<A: OffPolicyMethod>(name: &str, make: impl Fn(u64) -> OffPolicy<A>) {
    let name = format!("python-{name}");
    let mut ours = make(1);
    train_halfway(&mut ours);
    off_policy_agrees(&ours, &name);
    let mut other = make(2);
    other.load(fixture(&name)).unwrap();
    off_policy_agrees(&other, &name);
    let (one, other) = (ours.resume(|_| true).unwrap(), other.resume(|_| true).unwrap());
    let counts = [one, other].map(|said| (said.timesteps, said.updates, said.episodes));
    assert_eq!(counts[0], counts[1], "{name}");
    assert_eq!(counts[0].0, STEPS);
}

#[test]
fn a_seed_makes_the_same_trainers_as_in_python_and_their_checkpoints_are_gone_on_with() {
    is_the_same_in_python("dqn", |seed| rainbow(2, seed));
    is_the_same_in_python("sac", |seed| sac(2, true, seed));
    is_the_same_in_python("td3", |seed| td3(2, seed));
}

#[test]
#[ignore = "writes into the tree, with RLOX_REGENERATE"]
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

/// Trains where Python says, half a run and the whole of it, and the rest of the run of which Python saved half.
#[test]
#[ignore = "Python compares what it writes"]
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

/// The same checkpoint as `save(replay=False)` writes it.
fn without_replay(from: &Path, to: &Path, said: serde_json::Value) {
    let saved = Checkpoint::read(from).unwrap();
    let mut less = Checkpoint::default();
    less.manifest.clone_from(&saved.manifest);
    less.manifest.insert("replay".into(), said);
    for member in ["networks", "optimizer", "normalizer", "environment"] {
        if let Some(bytes) = saved.safetensors(member) {
            less.insert_safetensors(member, bytes.to_vec()).unwrap();
        }
    }
    less.write(to).unwrap();
}

fn begins_to_remember_anew<A: OffPolicyMethod>(make: impl Fn(u64) -> OffPolicy<A>) {
    let scratch = tempfile::tempdir().unwrap();
    let [whole, less] = ["whole", "less"].map(|name| scratch.path().join(name));
    let (mut first, mut second) = (make(1), make(2));
    train_halfway(&mut first);
    first.save(&whole).unwrap();
    without_replay(&whole, &less, false.into());
    // In the middle of something else, which is forgotten.
    train_halfway(&mut second);
    second.load(&less).unwrap();
    assert_eq!((second.replay().len(), second.timesteps()), (0, first.timesteps()));
    assert_eq!(second.learner().tensors(), first.learner().tensors());
    second.resume(|_| true).unwrap();
    assert!(second.timesteps() == STEPS && !second.replay().is_empty());
    assert_ne!(second.learner().tensors(), first.learner().tensors());
}

#[test]
fn checkpoints_without_what_was_remembered_begin_to_remember_anew() {
    begins_to_remember_anew(|seed| dqn(2, seed));
    begins_to_remember_anew(|seed| rainbow(2, seed));
    begins_to_remember_anew(|seed| sac(2, false, seed));
    let scratch = tempfile::tempdir().unwrap();
    let [whole, odd] = ["whole", "odd"].map(|name| scratch.path().join(name));
    let mut trainer = td3(2, 1);
    trainer.save(&whole).unwrap();
    without_replay(&whole, &odd, 1.into());
    assert_checkpoint_rejects(trainer.load(&odd), &odd, corrupt("replay", ""));
}
