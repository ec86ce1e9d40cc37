//! DQN, SAC and TD3 of the Python package on its native backend and the trainers here are the same, and read each other's
//! checkpoints. The fixtures are from `tests/fixtures/make_checkpoint.py`; Python reads what is written here in
//! `tests/test_checkpoint_rust.py`, and compares bit for bit in `tests/algorithms/test_rust_trainers.py`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod trainers;

use std::path::{Path, PathBuf};

use rlox_core::Checkpoint;
use rlox_nn::NamedTensors;
use rlox_nn::train::{OffPolicy, OffPolicyMethod};
use trainers::{rainbow, sac, td3};

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
