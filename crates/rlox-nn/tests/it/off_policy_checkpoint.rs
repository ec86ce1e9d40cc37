//! DQN, SAC and TD3 that were saved go on as those that were not; damaged and foreign checkpoints change nothing.

use std::fs;
use std::path::Path;

use rlox_core::{Checkpoint, Error, Pcg64};
use rlox_nn::train::{
    ActionNoise, Dqn, DqnConfig, EntCoef, OffPolicy, OffPolicyAlgorithm, OffPolicyMethod, Priorities, Sac, SacConfig,
    Schedule, Td3, Td3Config,
};
use rlox_nn::{Activation, NamedTensors, Optimizer, QNetworks, TdLoss, TwinCritics};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::trainers;
use crate::support::trainers::{
    AnyDqn, cartpole, dqn, make, pendulum, rainbow, rainbow_config, sac, sac_config, td3, td3_config,
};

/// A change, and what is said of it.
type Change<T> = (fn(&mut T), &'static str);

const MEMBERS: [&str; 5] = ["networks", "optimizer", "normalizer", "environment", "replay"];

/// All that a trainer saves, as bytes.
fn state<A: OffPolicyMethod>(trainer: &OffPolicy<A>, scratch: &TempDir) -> (Map<String, Value>, Vec<Option<Vec<u8>>>) {
    let path = scratch.path().join("state");
    trainer.save(&path).unwrap();
    let read = Checkpoint::read(&path).unwrap();
    (read.manifest.clone(), MEMBERS.map(|member| read.safetensors(member).map(<[u8]>::to_vec)).into())
}

fn goes_on_as_if_nothing_had_happened<A: OffPolicyMethod>(name: &str, steps: u64, make: impl Fn(u64) -> OffPolicy<A>) {
    let scratch = tempfile::tempdir().unwrap();
    // As numbers that are equal only if they are bit for bit; an iteration each.
    let mut told = [vec![], vec![], vec![]];
    let [by_whole, by_first, by_second] = &mut told;
    let mut whole = make(1);
    whole.train(steps, |metrics| (by_whole.push(format!("{metrics:?}")), true).1).unwrap();
    let mut first = make(1);
    let half = |timesteps| timesteps < steps / 2;
    let at_half =
        first.train(steps, |metrics| (by_first.push(format!("{metrics:?}")), half(metrics.timesteps)).1).unwrap();
    assert!(at_half.updates > 0 && at_half.timesteps < steps, "{name}: {at_half:?}");
    let path = scratch.path().join("half");
    first.save(&path).unwrap();
    // Of another seed, and in the middle of something else.
    let mut second = make(2);
    second.train(steps / 4, |_| true).unwrap();
    second.load(&path).unwrap();
    assert!(state(&first, &scratch) == state(&second, &scratch), "{name}: what was loaded is not what was saved");
    by_second.clone_from(by_first);
    first.resume(|metrics| (by_first.push(format!("{metrics:?}")), true).1).unwrap();
    second.resume(|metrics| (by_second.push(format!("{metrics:?}")), true).1).unwrap();
    assert_eq!(told[0], told[1], "{name}: saving has changed something");
    assert_eq!(told[0], told[2], "{name}");
    assert_eq!(whole.learner().tensors(), second.learner().tensors(), "{name}");
    assert_eq!(whole.learner().optimizer_state(), second.learner().optimizer_state(), "{name}");
    let (manifest, members) = state(&whole, &scratch);
    let (again, others) = state(&second, &scratch);
    assert_eq!(manifest, again, "{name}");
    for (member, (one, other)) in MEMBERS.iter().zip(members.iter().zip(&others)) {
        assert!(one == other, "{name}: {member} differs");
    }
}

#[test]
fn dqn_goes_on_as_if_nothing_had_happened() {
    // Three are stepped one by one, 19 in lanes. The buffer is full before the save, and episodes end on both sides of it.
    for num_envs in [1, 3, 19] {
        let steps = 400 * num_envs as u64;
        goes_on_as_if_nothing_had_happened(&format!("DQN, {num_envs}"), steps, |seed| dqn(num_envs, seed));
    }
    goes_on_as_if_nothing_had_happened("prioritized, n-step, dueling", 1800, |seed| rainbow(3, seed));
}

#[test]
fn sac_goes_on_as_if_nothing_had_happened() {
    // An episode has 200 steps.
    for num_envs in [1, 3] {
        let steps = 500 * num_envs as u64;
        goes_on_as_if_nothing_had_happened(&format!("SAC, {num_envs}"), steps, |seed| sac(num_envs, false, seed));
        goes_on_as_if_nothing_had_happened(&format!("gSDE, {num_envs}"), steps, |seed| sac(num_envs, true, seed));
    }
}

#[test]
fn td3_goes_on_as_if_nothing_had_happened() {
    for num_envs in [1, 3] {
        // An odd number of minibatches before the save: the actor learns from every second one.
        let steps = 502 * num_envs as u64;
        goes_on_as_if_nothing_had_happened(&format!("TD3, {num_envs}"), steps, |seed| td3(num_envs, seed));
    }
}

#[test]
fn what_was_loaded_can_be_saved_again_before_it_goes_on() {
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
fn what_was_saved_before_the_first_step_is_a_beginning() {
    let scratch = tempfile::tempdir().unwrap();
    dqn(2, 1).save(scratch.path()).unwrap();
    let (mut first, mut second) = (dqn(2, 1), dqn(2, 2));
    second.load(scratch.path()).unwrap();
    assert!(matches!(second.resume(|_| true), Err(Error::Config(_))), "there is no run to go on with");
    first.train(200, |_| true).unwrap();
    second.train(200, |_| true).unwrap();
    assert_eq!(first.learner().tensors(), second.learner().tensors());
}

#[test]
fn environments_that_cannot_tell_start_new_episodes_and_all_else_goes_on() {
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

/// Asserts that a load is refused in these words, and has changed nothing.
fn refused<A: OffPolicyMethod>(trainer: &mut OffPolicy<A>, path: &Path, expected: &str) -> Error {
    let scratch = tempfile::tempdir().unwrap();
    let before = state(trainer, &scratch);
    let error = trainer.load(path).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}: expected {expected}");
    assert!(state(trainer, &scratch) == before, "{expected}: something has changed");
    error
}

#[test]
fn checkpoints_of_other_trainers_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut saved = sac(2, true, 1);
    saved.train(100, |_| true).unwrap();
    saved.save(&path).unwrap();
    refused(&mut td3(2, 1), &path, "manifest.json, section algorithm: expected td3, got sac");
    refused(&mut dqn(2, 1), &path, "section algorithm: expected dqn, got sac");
    let config = sac_config(true);
    let other =
        Sac::new(make("MountainCarContinuous-v0", 2), |s: &_, r: &mut _| config.mlp(s, &[8], r), config.clone(), 1);
    refused(&mut other.unwrap(), &path, "section env: expected MountainCarContinuous-v0, got Pendulum-v1");
    refused(&mut sac(3, true, 1), &path, "section settings: expected num_envs = 3, got 2");
    refused(&mut sac(2, false, 1), &path, "section settings: expected use_sde = false, got true");
    let wide = Sac::new(pendulum(2), |s: &_, r: &mut _| config.mlp(s, &[9], r), config.clone(), 1);
    refused(&mut wide.unwrap(), &path, "expected net_arch = [9], got [8]");
    let three = |spec: &_, rng: &mut _| {
        Ok((config.mlp(spec, &[8], rng)?.0, TwinCritics::mlp(spec, &[8], Activation::Relu, 3, rng)?))
    };
    refused(&mut Sac::new(pendulum(2), three, config.clone(), 1).unwrap(), &path, "expected n_critics = 3, got 2");
    let changes: [Change<SacConfig>; 10] = [
        (|c| c.buffer_size = 128, "expected buffer_size = 128, got 256"),
        (|c| c.gamma = 0.98, "expected gamma = 0.98, got 0.99"),
        (|c| c.tau = 0.5, "expected tau = 0.5, got 0.005"),
        (|c| c.optimizer = Optimizer::adam(3e-4), "expected learning_rate = 0.0003, got 0.001"),
        (|c| c.optimizer = Optimizer::adam_w(1e-3), "expected optimizer = \"adamw\", got \"adam\""),
        (|c| c.ent_coef = EntCoef::Fixed(0.2), "expected ent_coef = 0.2, got \"auto_0.5\""),
        (|c| c.gradient_steps = None, "expected gradient_steps = -1, got 2"),
        (|c| c.utd_ratio = Some(0.5), "expected utd_ratio = 0.5, got null"),
        (|c| c.lr_schedule = Schedule::Constant, "expected lr_schedule = \"constant\", got \"linear\""),
        (|c| c.action_noise = None, "expected action_noise = null, got {"),
    ];
    for (change, expected) in changes {
        let mut config = sac_config(true);
        change(&mut config);
        let made = Sac::new(pendulum(2), |s: &_, r: &mut _| config.mlp(s, &[8], r), config.clone(), 1);
        refused(&mut made.unwrap(), &path, expected);
    }
}

#[test]
fn settings_of_dqn_and_td3_are_compared_too() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    rainbow(2, 1).save(&path).unwrap();
    refused(&mut dqn(2, 1), &path, "expected tau = 1.0, got 0.1");
    let changes: [Change<DqnConfig>; 5] = [
        (|c| c.prioritized = None, "expected prioritized = false, got true"),
        (|c| c.prioritized = Some(Priorities { alpha: 0.7, beta: 0.4 }), "expected priority_alpha = 0.7, got 0.6"),
        (|c| c.loss = TdLoss::SquaredError, "expected loss = \"squared_error\", got \"huber\""),
        (|c| c.n_steps = 2, "expected n_steps = 2, got 3"),
        (|c| c.exploration_fraction = 0.2, "expected exploration_fraction = 0.2, got 0.5"),
    ];
    for (change, expected) in changes {
        let mut config = rainbow_config();
        change(&mut config);
        let network = |spec: &_, rng: &mut _| QNetworks::dueling(spec, &[8], Activation::Relu, rng);
        refused(&mut Dqn::new(cartpole(2), network, config, 1).unwrap(), &path, expected);
    }
    let plain = |spec: &_, rng: &mut _| QNetworks::mlp(spec, &[8], Activation::Relu, rng);
    let mut plain: AnyDqn = Dqn::new(cartpole(2), plain, rainbow_config(), 1).unwrap();
    refused(&mut plain, &path, "expected dueling = false, got true");
    td3(2, 1).save(&path).unwrap();
    let changes: [Change<Td3Config>; 3] = [
        (|c| c.policy_delay = 3, "expected policy_delay = 3, got 2"),
        (|c| c.target_noise_clip = 0.25, "expected target_noise_clip = 0.25, got 0.5"),
        (
            |c| c.action_noise = Some(ActionNoise::Gaussian { sigma: 0.1 }),
            "expected action_noise = {\"kind\":\"gaussian\"",
        ),
    ];
    for (change, expected) in changes {
        let mut config = td3_config();
        change(&mut config);
        let made = Td3::new(pendulum(2), |s: &_, r: &mut _| config.mlp(s, &[8], r), config.clone(), 1);
        refused(&mut made.unwrap(), &path, expected);
    }
    forge(&path, |saved| saved.manifest["settings"]["train_freq"] = serde_json::json!([1, "episode"]));
    refused(&mut td3(2, 1), &path, "got [1,\"episode\"]; load it with the Python package: in Rust steps");
}

fn damage_everywhere<A: OffPolicyMethod>(mut trainer: OffPolicy<A>) {
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
                let error = trainer.load(&path).unwrap_err();
                assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(&member), "{error}");
            }
        }
        fs::remove_file(&file).unwrap();
        assert!(trainer.load(&path).unwrap_err().to_string().contains(&format!("{member}, section ")));
        fs::write(&file, data).unwrap();
    }
    assert!(state(&trainer, &scratch) == before);
    trainer.load(&path).unwrap();
    assert_eq!(trainer.timesteps(), steps);
}

#[test]
fn a_damaged_checkpoint_is_refused_wherever_the_damage_is() {
    damage_everywhere(rainbow(2, 1));
    damage_everywhere(sac(2, true, 1));
    damage_everywhere(td3(2, 1));
}

/// The checkpoint at `path` with what somebody changed.
fn forge(path: &Path, change: impl FnOnce(&mut Checkpoint)) {
    let mut checkpoint = Checkpoint::read(path).unwrap();
    change(&mut checkpoint);
    checkpoint.write(path).unwrap();
}

/// Every number of an array of what is remembered is this.
fn remember(checkpoint: &mut Checkpoint, name: &str, x: f64) {
    let mut fields = checkpoint.fields("replay").unwrap();
    let field = fields.iter_mut().find(|field| field.name() == name).unwrap();
    match field.data_mut() {
        rlox_core::FieldMut::F32(data) => data.fill(x as f32),
        rlox_core::FieldMut::F64(data) => data.fill(x),
        rlox_core::FieldMut::I64(data) => data.fill(x as i64),
        rlox_core::FieldMut::U8(data) | rlox_core::FieldMut::Bool(data) => data.fill(x as u8),
    }
    checkpoint.put_fields("replay", &fields).unwrap();
}

fn fill(checkpoint: &mut Checkpoint, member: &str, name: &str, x: f32) {
    let tensors = NamedTensors::from_safetensors(checkpoint.safetensors(member).unwrap()).unwrap();
    assert!(tensors.find(name).is_some(), "{name} of {:?}", tensors.iter().map(|it| &it.name).collect::<Vec<_>>());
    let mut changed = NamedTensors::default();
    for tensor in &tensors {
        let data = if tensor.name == name { vec![x; tensor.data.len()] } else { tensor.data.clone() };
        changed.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    checkpoint.put_safetensors(member, changed.to_safetensors()).unwrap();
}

/// Changes that are refused in a trainer that is going and in one that is new.
fn refuses<A: OffPolicyMethod>(make: impl Fn(u64) -> OffPolicy<A>, changes: &[Change<Checkpoint>]) {
    let mut trainer = make(1);
    trainer.train(700, |_| true).unwrap();
    for (change, expected) in changes {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("saved");
        trainer.save(&path).unwrap();
        forge(&path, change);
        refused(&mut make(2), &path, expected);
        refused(&mut trainer, &path, expected);
    }
    // It has not lost its way by all that.
    let (mut other, scratch) = (make(1), tempfile::tempdir().unwrap());
    other.train(700, |_| true).unwrap();
    trainer.train(100, |_| true).unwrap();
    other.train(100, |_| true).unwrap();
    assert!(state(&trainer, &scratch) == state(&other, &scratch));
}

#[test]
fn whole_checkpoints_that_make_no_sense_are_refused() {
    refuses(
        |seed| td3(2, seed),
        &[
            (|c| c.manifest["backend"] = json!("torch"), "section backend: expected one in Rust"),
            (|c| drop(c.manifest.remove("counters")), "no key \"counters\""),
            (|c| c.manifest["counters"]["noise"] = json!([0.5]), "other than 2 finite numbers as \"noise\""),
            (|c| c.manifest["counters"]["noise"] = json!([0.5, 1e300]), "other than 2 finite numbers as \"noise\""),
            (|c| c.manifest["counters"]["due"] = json!(-0.5), "no number in 0 to 1 as \"due\""),
            (|c| c.manifest["counters"]["due"] = json!(f64::from(u32::MAX)), "no number in 0 to 1 as \"due\""),
            (|c| c.manifest["counters"]["progress"] = json!(null), "no number in 0 to 1 as \"progress\""),
            (|c| c.manifest["counters"]["learned"]["critic_loss"] = json!([]), "no means as \"learned\""),
            (|c| c.manifest["counters"]["timesteps"] = json!(u64::MAX - 3), "got no count \"timesteps\""),
            (|c| c.manifest["streams"]["learning"] = json!({}), "no PCG64's state as \"learning\""),
            (
                |c| drop(c.manifest["streams"].as_object_mut().unwrap().remove("actions.1")),
                "no PCG64's state as \"actions.1\"",
            ),
            (
                |c| drop(c.manifest["settings"].as_object_mut().unwrap().remove("policy_delay")),
                "no key \"policy_delay\"",
            ),
            (|c| c.put_safetensors("replay", b"\x80\x04cos\nsystem\n.".to_vec()).unwrap(), "section replay"),
            (|c| remember(c, "pushed", 7.0), "section replay, arrays["),
            (|c| remember(c, "step.rewards", f64::NAN), "section replay, arrays[\"step.rewards\"]"),
            (|c| remember(c, "tails", 9.0), "section replay, arrays[\"tails\"]"),
            (|c| c.put("environment", &[("states", &[3, 1], [0.0_f64; 3][..].into())]).unwrap(), "section environment"),
            (|c| c.put("normalizer", &[("obs_mean", &[1], [f64::NAN][..].into())]).unwrap(), "section normalizer"),
            (|c| fill(c, "optimizer", "actor.step", 0.5), "section optimizer, state"),
            (
                |c| fill(c, "networks", "critic_target.qf1.2.bias", f32::NAN),
                ", critic_target.qf1.2.bias: expected finite numbers, got NaN",
            ),
        ],
    );
}

#[test]
fn priorities_that_make_no_sense_are_refused() {
    refuses(
        |seed| rainbow(2, seed),
        &[
            (|c| remember(c, "n_step", 2.0), "section replay, arrays[\"n_step\"]: expected 3, got 2"),
            (|c| remember(c, "priorities", f64::NAN), "section replay, arrays[\"priorities\"]"),
            (|c| remember(c, "priorities", -1.0), "section replay, arrays[\"priorities\"]"),
            (|c| c.put_fields("replay", &[]).unwrap(), "section replay, arrays["),
        ],
    );
}

#[test]
fn weights_that_are_not_finite_do_not_replace_those_that_are() {
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
    let error = trainer.save(&path).unwrap_err();
    let wrong = error.mismatch().unwrap();
    assert_eq!((&*wrong.argument, &*wrong.expected), ("networks", "finite numbers"));
    trainer.load(&path).unwrap();
    assert_eq!(trainer.timesteps(), 0);
}

#[test]
fn what_is_not_a_checkpoint_is_neither_read_nor_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let (notes, nowhere) = (scratch.path().join("notes"), scratch.path().join("nowhere"));
    fs::write(&notes, "mine").unwrap();
    let mut trainer = dqn(2, 1);
    for path in [&notes, scratch.path()] {
        assert!(matches!(trainer.save(path), Err(Error::Io { .. })), "{path:?}");
        assert!(matches!(trainer.load(path), Err(Error::Corrupt(_))), "{path:?}");
    }
    assert!(matches!(trainer.load(&nowhere), Err(Error::Io { .. })));
    assert_eq!((fs::read(&notes).unwrap(), fs::read_dir(scratch.path()).unwrap().count()), (b"mine".to_vec(), 1));
}
