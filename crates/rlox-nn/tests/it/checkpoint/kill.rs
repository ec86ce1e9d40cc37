//! A trainer that is killed during a save, or runs out of disk space, leaves a complete checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rlox_core::{AutoresetMode, Error, Pcg64, VecEnv, envs, normalize::NormalizerOptions};
use rlox_nn::train::{Ppo, PpoConfig};
use rlox_nn::{ActorCritic, Mlp, PolicyBuilder, PolicyNetworks};

fn trainer(seed: u64) -> Ppo<PolicyNetworks<Mlp>> {
    let env = VecEnv::new(3, None, AutoresetMode::SameStep, envs::Pendulum::default).unwrap();
    let config = PpoConfig {
        n_steps: 16,
        batch_size: 24,
        n_epochs: 2,
        normalize: Some(NormalizerOptions::default()),
        ..PpoConfig::default()
    };
    let make =
        |spec: &_, rng: &mut _| PolicyBuilder::new(spec).net_arch(&[8]).use_sde(true).log_std_init(-1.0).build(rng);
    Ppo::new(Box::new(env), make, config, seed).unwrap()
}

/// Child process that alternates learning and saving until it is killed.
#[test]
#[ignore = "the child of the tests below"]
fn saves_until_killed() {
    let Some(path) = std::env::var_os("RLOX_SAVE_TO") else { return };
    let path = PathBuf::from(path);
    let mut learner = trainer(1);
    learner.load(&path).unwrap();
    loop {
        learner.iterate(0.0).unwrap();
        match learner.save(&path) {
            Err(error) => return assert!(matches!(error, Error::Io { .. }), "{error}"),
            Ok(()) => assert!(std::env::var_os("RLOX_DISK_FULL").is_none(), "the disk was not full"),
        }
    }
}

fn child(program: &mut Command, path: &Path) -> Child {
    let arguments = ["--exact", "checkpoint::kill::saves_until_killed", "--ignored"];
    program.args(arguments).env("RLOX_SAVE_TO", path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn assert_kills_leave_checkpoints(times: u32) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut rng = Pcg64::seed_from(times.into());
    trainer(1).save(&path).unwrap();
    let mut learner = trainer(1);
    let (mut steps, mut during_save) = (0, 0);
    for _ in 0..times {
        let mut running = child(&mut Command::new(std::env::current_exe().unwrap()), &path);
        std::thread::sleep(Duration::from_micros(rng.integers(1_000, 120_000) as u64));
        running.kill().unwrap();
        running.wait().unwrap();
        during_save += u32::from(!path.exists() || scratch.path().join(".saved.partial").exists());
        learner.load(&path).unwrap();
        assert!(learner.timesteps() >= steps, "{} steps after {steps}", learner.timesteps());
        steps = learner.timesteps();
        learner.iterate(0.0).unwrap();
    }
    assert!(steps > 0, "no child saved before the kill");
    eprintln!("{times} kills, {during_save} of them during a save, after {steps} steps in total");
    learner.save(&path).unwrap();
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "a partial checkpoint remains");
}

#[test]
fn kills_leave_complete_checkpoints() {
    assert_kills_leave_checkpoints(20);
}

#[test]
#[ignore = "slow: 15 s"]
fn two_hundred_kills_leave_complete_checkpoints() {
    assert_kills_leave_checkpoints(200);
}

#[cfg(target_os = "linux")]
#[test]
fn full_disks_leave_the_previous_checkpoint() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let learner = trainer(1);
    learner.save(&path).unwrap();
    // A limit of one block per file makes writes fail as on a full disk.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let done = child(shell.env("RLOX_DISK_FULL", "1"), &path).wait().unwrap();
    assert!(done.success(), "{done}");
    let mut read = trainer(2);
    read.load(&path).unwrap();
    assert_eq!((read.timesteps(), read.policy().tensors()), (0, learner.policy().tensors()));
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "a partial checkpoint remains");
}
