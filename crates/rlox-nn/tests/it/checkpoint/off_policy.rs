//! Checkpoints of DQN, SAC and TD3: exact resume, and rejection of damaged files and of other
//! trainers' files.

use std::fs;
use std::path::Path;

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Error, Pcg64, checkpoint::Checkpoint, error::Mismatch};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, EntCoef, OffPolicy, OffPolicyAlgorithm, OffPolicyMethod, Priorities, Sac, SacConfig,
    Schedule, Td3, Td3Config,
};
use rlox_nn::{Activation, CriticEnsemble, NamedTensors, Optimizer, QNetworks, TdLoss};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::checkpoints::{Rejection, assert_checkpoint_rejects, corrupt, setting};
use crate::support::trainers;
use crate::support::trainers::{
    AnyDqn, cartpole, dqn, make, pendulum, rainbow, rainbow_config, sac, sac_config, td3, td3_config,
};

/// Change of a trainer or a checkpoint, and the error that the change causes.
type Change<T> = (fn(&mut T), Rejection);

const MEMBERS: [&str; 5] = ["networks", "optimizer", "normalizer", "environment", "replay"];

/// Saves a trainer and returns the manifest and the bytes of the members.
fn state<A: OffPolicyMethod>(trainer: &OffPolicy<A>, scratch: &TempDir) -> (Map<String, Value>, Vec<Option<Vec<u8>>>) {
    let path = scratch.path().join("state");
    trainer.save(&path).unwrap();
    let read = Checkpoint::read(&path).unwrap();
    (read.manifest.clone(), MEMBERS.map(|member| read.safetensors(member).map(<[u8]>::to_vec)).into())
}

fn assert_resumes_exactly<A: OffPolicyMethod>(name: &str, steps: u64, make: impl Fn(u64) -> OffPolicy<A>) {
    let scratch = tempfile::tempdir().unwrap();
    // Metrics of each iteration as text. The texts differ if any bit differs.
    let mut metrics_logs = [vec![], vec![], vec![]];
    let [by_full, by_first, by_second] = &mut metrics_logs;
    let mut full = make(1);
    full.train(steps, |metrics| (by_full.push(format!("{metrics:?}")), true).1).unwrap();
    let mut first = make(1);
    let half = |timesteps| timesteps < steps / 2;
    let at_half =
        first.train(steps, |metrics| (by_first.push(format!("{metrics:?}")), half(metrics.timesteps)).1).unwrap();
    assert!(at_half.updates > 0 && at_half.timesteps < steps, "{name}: {at_half:?}");
    let path = scratch.path().join("half");
    first.save(&path).unwrap();
    // Loading replaces the state of a run with another seed.
    let mut second = make(2);
    second.train(steps / 4, |_| true).unwrap();
    second.load(&path).unwrap();
    assert!(state(&first, &scratch) == state(&second, &scratch), "{name}: the loaded state differs");
    by_second.clone_from(by_first);
    first.resume(|metrics| (by_first.push(format!("{metrics:?}")), true).1).unwrap();
    second.resume(|metrics| (by_second.push(format!("{metrics:?}")), true).1).unwrap();
    assert_eq!(metrics_logs[0], metrics_logs[1], "{name}: saving changed the run");
    assert_eq!(metrics_logs[0], metrics_logs[2], "{name}");
    assert_eq!(full.learner().tensors(), second.learner().tensors(), "{name}");
    assert_eq!(full.learner().optimizer_state(), second.learner().optimizer_state(), "{name}");
    let (manifest, members) = state(&full, &scratch);
    let (other_manifest, others) = state(&second, &scratch);
    assert_eq!(manifest, other_manifest, "{name}");
    for (member, (one, other)) in MEMBERS.iter().zip(members.iter().zip(&others)) {
        assert!(one == other, "{name}: {member} differs");
    }
}

#[test]
fn dqn_resumes_exactly() {
    // Three environments are stepped one by one, 19 with SIMD instructions. The buffer is full and
    // episodes end before and after the save.
    for num_envs in [1, 3, 19] {
        let steps = 400 * num_envs as u64;
        assert_resumes_exactly(&format!("DQN, {num_envs}"), steps, |seed| dqn(num_envs, seed));
    }
    assert_resumes_exactly("prioritized, n-step, dueling", 1800, |seed| rainbow(3, seed));
}

#[test]
fn sac_resumes_exactly() {
    // An episode has 200 steps.
    for num_envs in [1, 3] {
        let steps = 500 * num_envs as u64;
        assert_resumes_exactly(&format!("SAC, {num_envs}"), steps, |seed| sac(num_envs, false, seed));
        assert_resumes_exactly(&format!("gSDE, {num_envs}"), steps, |seed| sac(num_envs, true, seed));
    }
}

#[test]
fn td3_resumes_exactly() {
    for num_envs in [1, 3] {
        // The number of minibatches before the save is odd, because the actor learns from every
        // second one.
        let steps = 502 * num_envs as u64;
        assert_resumes_exactly(&format!("TD3, {num_envs}"), steps, |seed| td3(num_envs, seed));
    }
}

#[test]
fn loaded_trainers_can_be_saved_before_they_resume() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, other) = (scratch.path().join("one"), scratch.path().join("other"));
    let mut first = td3(2, 1);
    first.train(400, |metrics| metrics.timesteps < 200).unwrap();
    first.save(&one).unwrap();
    let (mut second, mut third) = (td3(2, 2), td3(2, 3));
    second.load(&one).unwrap();
    second.save(&other).unwrap();
    third.load(&other).unwrap();
    first.resume(|_| true).unwrap();
    third.resume(|_| true).unwrap();
    assert!(state(&first, &scratch) == state(&third, &scratch));
}

#[test]
fn checkpoints_before_the_first_step_can_be_trained() {
    let scratch = tempfile::tempdir().unwrap();
    dqn(2, 1).save(scratch.path()).unwrap();
    let (mut first, mut second) = (dqn(2, 1), dqn(2, 2));
    second.load(scratch.path()).unwrap();
    assert!(matches!(second.resume(|_| true), Err(Error::Config(_))), "no run to resume");
    first.train(200, |_| true).unwrap();
    second.train(200, |_| true).unwrap();
    assert_eq!(first.learner().tensors(), second.learner().tensors());
}

#[test]
fn environments_without_states_start_new_episodes() {
    let scratch = tempfile::tempdir().unwrap();
    let make = |seed| {
        let network = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
        let config = DqnConfig { buffer_size: 64, learning_starts: 10, train_freq: 1, ..DqnConfig::default() };
        Dqn::new(trainers::silent(2), network, config, seed).unwrap()
    };
    let (mut first, mut second) = (make(1), make(2));
    let before = first.train(100, |_| true).unwrap();
    let path = scratch.path().join("saved");
    first.save(&path).unwrap();
    assert!(Checkpoint::read(&path).unwrap().safetensors("environment").is_none());
    second.load(&path).unwrap();
    let after = second.train(100, |_| true).unwrap();
    assert_eq!((before.timesteps, after.timesteps, before.updates, after.updates), (100, 200, 45, 95));
    assert!(after.episodes > before.episodes && after.mean_return == 7.0);
}

/// Asserts that a load is rejected and changes nothing.
fn rejects<A: OffPolicyMethod>(trainer: &mut OffPolicy<A>, path: &Path, rejection: Rejection) -> Mismatch {
    let scratch = tempfile::tempdir().unwrap();
    let before = state(trainer, &scratch);
    let rejected = assert_checkpoint_rejects(trainer.load(path), path, rejection);
    assert!(state(trainer, &scratch) == before, "{rejection:?}: the load changed the state");
    rejected
}

#[test]
fn checkpoints_of_other_trainers_are_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut saved = sac(2, true, 1);
    saved.train(100, |_| true).unwrap();
    saved.save(&path).unwrap();
    rejects(&mut td3(2, 1), &path, (Error::Config, "algorithm", "td3", "sac"));
    rejects(&mut dqn(2, 1), &path, (Error::Config, "algorithm", "dqn", "sac"));
    let config = sac_config(true);
    let other =
        Sac::new(make("MountainCarContinuous-v0", 2), |s: &_, r: &mut _| config.mlp(s, &[8], r), config.clone(), 1);
    rejects(&mut other.unwrap(), &path, (Error::Config, "env", "MountainCarContinuous-v0", "Pendulum-v1"));
    rejects(&mut sac(3, true, 1), &path, setting("num_envs = 3", "2"));
    rejects(&mut sac(2, false, 1), &path, setting("use_sde = false", "true"));
    let wide = Sac::new(pendulum(2), |s: &_, r: &mut _| config.mlp(s, &[9], r), config.clone(), 1);
    rejects(&mut wide.unwrap(), &path, setting("net_arch = [9]", "[8]"));
    let three = |spec: &_, rng: &mut _| {
        Ok((config.mlp(spec, &[8], rng)?.0, CriticEnsemble::mlp(spec, &[8], Activation::Relu, 3, rng)?))
    };
    rejects(&mut Sac::new(pendulum(2), three, config.clone(), 1).unwrap(), &path, setting("n_critics = 3", "2"));
    let changes: [Change<SacConfig>; 10] = [
        (|c| c.buffer_size = 128, setting("buffer_size = 128", "256")),
        (|c| c.gamma = 0.98, setting("gamma = 0.98", "0.99")),
        (|c| c.tau = 0.5, setting("tau = 0.5", "0.005")),
        (|c| c.optimizer = Optimizer::adam(3e-4), setting("learning_rate = 0.0003", "0.001")),
        (|c| c.optimizer = Optimizer::adam_w(1e-3), setting("optimizer = \"adamw\"", "\"adam\"")),
        (|c| c.ent_coef = EntCoef::Fixed(0.2), setting("ent_coef = 0.2", "\"auto_0.5\"")),
        (|c| c.gradient_steps = None, setting("gradient_steps = -1", "2")),
        (|c| c.utd_ratio = Some(0.5), setting("utd_ratio = 0.5", "null")),
        (|c| c.lr_schedule = Schedule::Constant, setting("lr_schedule = \"constant\"", "\"linear\"")),
        (|c| c.action_noise = None, setting("action_noise = null", "{")),
    ];
    for (change, rejection) in changes {
        let mut config = sac_config(true);
        change(&mut config);
        let trainer = Sac::new(pendulum(2), |s: &_, r: &mut _| config.mlp(s, &[8], r), config.clone(), 1);
        rejects(&mut trainer.unwrap(), &path, rejection);
    }
}

#[test]
fn settings_of_dqn_and_td3_must_match() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    rainbow(2, 1).save(&path).unwrap();
    rejects(&mut dqn(2, 1), &path, setting("tau = 1.0", "0.1"));
    let changes: [Change<DqnConfig>; 5] = [
        (|c| c.prioritized = None, setting("prioritized = false", "true")),
        (|c| c.prioritized = Some(Priorities { alpha: 0.7, beta: 0.4 }), setting("priority_alpha = 0.7", "0.6")),
        (|c| c.loss = TdLoss::SquaredError, setting("loss = \"squared_error\"", "\"huber\"")),
        (|c| c.n_steps = 2, setting("n_steps = 2", "3")),
        (|c| c.exploration_fraction = 0.2, setting("exploration_fraction = 0.2", "0.5")),
    ];
    for (change, rejection) in changes {
        let mut config = rainbow_config();
        change(&mut config);
        let network = |spec: &_, rng: &mut _| QNetworks::dueling(spec, &[8], Activation::Relu, rng);
        rejects(&mut Dqn::new(cartpole(2), network, config, 1).unwrap(), &path, rejection);
    }
    let plain = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    let mut plain: AnyDqn = Dqn::new(cartpole(2), plain, rainbow_config(), 1).unwrap();
    rejects(&mut plain, &path, setting("dueling = false", "true"));
    td3(2, 1).save(&path).unwrap();
    let changes: [Change<Td3Config>; 3] = [
        (|c| c.policy_delay = 3, setting("policy_delay = 3", "2")),
        (|c| c.target_noise_clip = 0.25, setting("target_noise_clip = 0.25", "0.5")),
        (
            |c| c.action_noise = Some(ActionNoise::Gaussian { sigma: 0.1 }),
            setting("action_noise = {\"kind\":\"gaussian\"", ""),
        ),
    ];
    for (change, rejection) in changes {
        let mut config = td3_config();
        change(&mut config);
        let trainer = Td3::new(pendulum(2), |s: &_, r: &mut _| config.mlp(s, &[8], r), config.clone(), 1);
        rejects(&mut trainer.unwrap(), &path, rejection);
    }
    forge(&path, |saved| saved.manifest["settings"]["train_freq"] = serde_json::json!([1, "episode"]));
    let episodes = rejects(&mut td3(2, 1), &path, setting("train_freq = ", "[1,\"episode\"]"));
    assert!(episodes.hint.contains("Python"), "{episodes}");
}

fn assert_damage_is_detected<A: OffPolicyMethod>(mut trainer: OffPolicy<A>) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    trainer.train(150, |_| true).unwrap();
    trainer.save(&path).unwrap();
    let steps = trainer.timesteps();
    trainer.train(50, |_| true).unwrap();
    let before = state(&trainer, &scratch);
    let mut rng = Pcg64::seed_from(0);
    for member in fs::read_dir(&path).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()) {
        let (file, data) = (path.join(&member), fs::read(path.join(&member)).unwrap());
        for _ in 0..12 {
            let mut damaged = data.clone();
            let at = rng.integers(0, data.len() as i64) as usize;
            damaged[at] ^= 1 << rng.integers(0, 8);
            for damaged in [&damaged[..], &data[..at]] {
                fs::write(&file, damaged).unwrap();
                assert_rejects(trainer.load(&path), Error::Corrupt, &file.display().to_string());
            }
        }
        fs::remove_file(&file).unwrap();
        let missing = assert_rejects(trainer.load(&path), Error::Corrupt, &file.display().to_string());
        assert!(missing.at.section.is_some());
        fs::write(&file, data).unwrap();
    }
    assert!(state(&trainer, &scratch) == before);
    trainer.load(&path).unwrap();
    assert_eq!(trainer.timesteps(), steps);
}

#[test]
fn damaged_checkpoints_are_rejected() {
    assert_damage_is_detected(rainbow(2, 1));
    assert_damage_is_detected(sac(2, true, 1));
    assert_damage_is_detected(td3(2, 1));
}

/// Changes the checkpoint at `path`.
fn forge(path: &Path, change: impl FnOnce(&mut Checkpoint)) {
    let mut checkpoint = Checkpoint::read(path).unwrap();
    change(&mut checkpoint);
    checkpoint.write(path).unwrap();
}

/// Sets all numbers of an array of the replay buffer to `x`.
fn fill_replay(checkpoint: &mut Checkpoint, name: &str, x: f64) {
    let mut fields = checkpoint.fields("replay").unwrap();
    let field = fields.iter_mut().find(|field| field.name() == name).unwrap();
    match field.data_mut() {
        rlox_core::field::FieldMut::F32(data) => data.fill(x as f32),
        rlox_core::field::FieldMut::F64(data) => data.fill(x),
        rlox_core::field::FieldMut::I64(data) => data.fill(x as i64),
        rlox_core::field::FieldMut::U8(data) | rlox_core::field::FieldMut::Bool(data) => data.fill(x as u8),
    }
    checkpoint.insert_fields("replay", &fields).unwrap();
}

fn fill(checkpoint: &mut Checkpoint, member: &str, name: &str, x: f32) {
    let tensors = NamedTensors::from_safetensors(checkpoint.safetensors(member).unwrap()).unwrap();
    assert!(tensors.find(name).is_some(), "{name} of {:?}", tensors.iter().map(|it| &it.name).collect::<Vec<_>>());
    let mut changed = NamedTensors::default();
    for tensor in &tensors {
        let data = if tensor.name == name { vec![x; tensor.data.len()] } else { tensor.data.clone() };
        changed.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    checkpoint.insert_safetensors(member, changed.to_safetensors()).unwrap();
}

/// Asserts that trained and new trainers reject the changed checkpoints.
fn assert_rejects_changes<A: OffPolicyMethod>(make: impl Fn(u64) -> OffPolicy<A>, changes: &[Change<Checkpoint>]) {
    let mut trainer = make(1);
    trainer.train(700, |_| true).unwrap();
    for (change, rejection) in changes {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("saved");
        trainer.save(&path).unwrap();
        forge(&path, change);
        rejects(&mut make(2), &path, *rejection);
        rejects(&mut trainer, &path, *rejection);
    }
    // Rejected loads do not affect further training.
    let (mut other, scratch) = (make(1), tempfile::tempdir().unwrap());
    other.train(700, |_| true).unwrap();
    trainer.train(100, |_| true).unwrap();
    other.train(100, |_| true).unwrap();
    assert!(state(&trainer, &scratch) == state(&other, &scratch));
}

#[test]
fn invalid_checkpoints_are_rejected() {
    assert_rejects_changes(
        |seed| td3(2, seed),
        &[
            (|c| c.manifest["backend"] = json!("torch"), (Error::Config, "backend", "the native backend", "torch")),
            (|c| drop(c.manifest.remove("counters")), corrupt("manifest", "no key \"counters\"")),
            (
                |c| c.manifest["counters"]["noise"] = json!([0.5]),
                corrupt("counters", "no list of 2 finite numbers as \"noise\""),
            ),
            (
                |c| c.manifest["counters"]["noise"] = json!([0.5, 1e300]),
                corrupt("counters", "no list of 2 finite numbers as \"noise\""),
            ),
            (
                |c| c.manifest["counters"]["pending_updates"] = json!(-0.5),
                corrupt("counters", "no number in 0 to 1 as \"pending_updates\""),
            ),
            (
                |c| c.manifest["counters"]["pending_updates"] = json!(f64::from(u32::MAX)),
                corrupt("counters", "no number in 0 to 1 as \"pending_updates\""),
            ),
            (
                |c| c.manifest["counters"]["progress"] = json!(null),
                corrupt("counters", "no number in 0 to 1 as \"progress\""),
            ),
            (
                |c| c.manifest["counters"]["last_update"]["critic_loss"] = json!([]),
                corrupt("counters", "no statistics as \"last_update\""),
            ),
            (
                |c| c.manifest["counters"]["timesteps"] = json!(u64::MAX - 3),
                corrupt("counters", "no count \"timesteps\""),
            ),
            (|c| c.manifest["streams"]["learning"] = json!({}), corrupt("streams", "no PCG64 state as \"learning\"")),
            (
                |c| drop(c.manifest["streams"].as_object_mut().unwrap().remove("actions.1")),
                corrupt("streams", "no PCG64 state as \"actions.1\""),
            ),
            (
                |c| drop(c.manifest["settings"].as_object_mut().unwrap().remove("policy_delay")),
                corrupt("settings", "no key \"policy_delay\""),
            ),
            (|c| c.insert_safetensors("replay", b"\x80\x04cos\nsystem\n.".to_vec()).unwrap(), corrupt("replay", "")),
            (|c| fill_replay(c, "pushed", 7.0), (Error::Shape, "replay, arrays[", "", "")),
            (
                |c| fill_replay(c, "step.rewards", f64::NAN),
                (Error::NotFinite, "replay, arrays[\"step.rewards\"]", "", ""),
            ),
            (|c| fill_replay(c, "tails", 9.0), (Error::Config, "replay, arrays[\"tails\"]", "", "")),
            (
                |c| c.insert_arrays("environment", &[("states", &[3, 1], [0.0_f64; 3][..].into())]).unwrap(),
                corrupt("environment", ""),
            ),
            (
                |c| c.insert_arrays("normalizer", &[("obs_mean", &[1], [f64::NAN][..].into())]).unwrap(),
                corrupt("normalizer", ""),
            ),
            (|c| fill(c, "optimizer", "actor.step", 0.5), (Error::Config, "optimizer, state", "", "")),
            (
                |c| fill(c, "networks", "critic_target.qf1.2.bias", f32::NAN),
                (Error::NotFinite, "networks, tensors, critic_target.qf1.2.bias", "", "NaN"),
            ),
        ],
    );
}

#[test]
fn invalid_priorities_are_rejected() {
    assert_rejects_changes(
        |seed| rainbow(2, seed),
        &[
            (|c| fill_replay(c, "n_step", 2.0), (Error::Config, "replay, arrays[\"n_step\"]", "3", "2")),
            (|c| fill_replay(c, "priorities", f64::NAN), (Error::Config, "replay, arrays[\"priorities\"]", "", "")),
            (|c| fill_replay(c, "priorities", -1.0), (Error::Config, "replay, arrays[\"priorities\"]", "", "")),
            (|c| c.insert_fields("replay", &[]).unwrap(), (Error::Config, "replay, arrays[", "", "")),
        ],
    );
}

#[test]
fn non_finite_weights_are_not_saved() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut optimizer = Optimizer::adam_w(1e30);
    if let Optimizer::AdamW { weight_decay, .. } = &mut optimizer {
        *weight_decay = 1e30;
    }
    let config = DqnConfig { optimizer, learning_starts: 8, buffer_size: 64, ..DqnConfig::default() };
    let network = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    let mut trainer = Dqn::new(cartpole(2), network, config, 1).unwrap();
    trainer.save(&path).unwrap();
    assert!(trainer.train(100, |_| true).is_err());
    assert_rejects(trainer.save(&path), Error::NotFinite, "networks");
    trainer.load(&path).unwrap();
    assert_eq!(trainer.timesteps(), 0);
}

#[test]
fn other_files_are_neither_read_nor_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let (notes, nowhere) = (scratch.path().join("notes"), scratch.path().join("nowhere"));
    fs::write(&notes, "mine").unwrap();
    let mut trainer = dqn(2, 1);
    for path in [&notes, scratch.path()] {
        assert!(matches!(trainer.save(path), Err(Error::Io { .. })), "{path:?}");
    }
    assert!(matches!(trainer.load(scratch.path()), Err(Error::Corrupt(_))));
    for path in [&notes, &nowhere] {
        assert!(matches!(trainer.load(path), Err(Error::Io { .. })), "{path:?}");
    }
    assert_eq!((fs::read(&notes).unwrap(), fs::read_dir(scratch.path()).unwrap().count()), (b"mine".to_vec(), 1));
}
