//! DQN, SAC and TD3 of the Python package on its native backend and the trainers here are the same, and read each other's
//! checkpoints. The fixtures are from `tests/fixtures/make_checkpoint.py`; Python reads what is written here in
//! `tests/test_checkpoint_rust.py`, and compares bit for bit in `tests/algorithms/test_rust_trainers.py`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod trainers;

use std::path::{Path, PathBuf};

use rlox_core::{Checkpoint, Error};
use rlox_nn::NamedTensors;
use rlox_nn::train::{OffPolicy, OffPolicyMethod};
use trainers::{dqn, rainbow, sac, td3};

const STEPS: u64 = 600;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint").join(name)
}

fn train_halfway<A: OffPolicyMethod>(trainer: &mut OffPolicy<A>) {
    trainer.train(STEPS, |metrics| metrics.timesteps < STEPS / 2).unwrap();
}

/// Sums are rounded otherwise on machines with other vectors, and learning makes a little of it more.
fn agrees<A: OffPolicyMethod>(trainer: &OffPolicy<A>, name: &str) {
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
    agrees(&ours, &name);
    let mut other = make(2);
    other.load(fixture(&name)).unwrap();
    agrees(&other, &name);
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

/// Writes the fixtures that Python reads.
#[test]
#[ignore = "writes into the tree"]
fn writes_the_fixtures_for_python() {
    fn write<A: OffPolicyMethod>(mut trainer: OffPolicy<A>, name: &str) {
        train_halfway(&mut trainer);
        trainer.save(fixture(name)).unwrap();
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
            less.put_safetensors(member, bytes.to_vec()).unwrap();
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
    let error = trainer.load(&odd).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("section replay"), "{error}");
}
