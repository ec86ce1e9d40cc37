//! Checkpoints of PPO and A2C: exact resume, and rejection of damaged files and of other trainers'
//! files.

use std::fs;
use std::path::Path;

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step, VecEnv, VectorEnv,
    checkpoint::Checkpoint, envs, normalize::NormalizerOptions,
};
use rlox_nn::train::{A2c, A2cConfig, Metrics, Ppo, PpoConfig, Schedule};
use rlox_nn::{Activation, ActorCritic, Mlp, NamedTensors, Optimizer, PolicyBuilder, PolicyNetworks};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::checkpoints::{Rejection, assert_checkpoint_rejects, corrupt, setting};

type Policy = PolicyNetworks<Mlp>;

/// Change of a trainer or a checkpoint, and the error that the change causes.
type Change<T> = (fn(&mut T), Rejection);

fn make(id: &str, num_envs: usize, autoreset_mode: AutoresetMode) -> Box<dyn VectorEnv> {
    let options = envs::MakeOptions { num_envs, autoreset_mode, ..Default::default() };
    envs::make(id, &options).unwrap()
}

fn tanh(spec: &EnvSpec, rng: &mut Pcg64) -> Result<Policy> {
    PolicyNetworks::mlp(spec, &[8], Activation::Tanh, rng)
}

fn sde(spec: &EnvSpec, rng: &mut Pcg64) -> Result<Policy> {
    PolicyBuilder::new(spec).net_arch(&[8]).use_sde(true).log_std_init(-1.0).build(rng)
}

fn shared(spec: &EnvSpec, rng: &mut Pcg64) -> Result<Policy> {
    PolicyBuilder::new(spec).net_arch(&[8]).shared_trunk(true).build(rng)
}

fn pendulum_config() -> PpoConfig {
    PpoConfig {
        n_steps: 16,
        batch_size: 24,
        n_epochs: 2,
        lr_schedule: Schedule::Linear,
        clip_schedule: Schedule::Linear,
        normalize: Some(NormalizerOptions::default()),
        sde_sample_freq: 4,
        ..PpoConfig::default()
    }
}

/// Creates a PPO trainer with normaliser, gSDE and schedules on Pendulum.
fn pendulum(num_envs: usize, mode: AutoresetMode, seed: u64) -> Ppo<Policy> {
    Ppo::new(make("Pendulum-v1", num_envs, mode), sde, pendulum_config(), seed).unwrap()
}

fn cartpole(mode: AutoresetMode, seed: u64) -> A2c<Policy> {
    A2c::new(make("CartPole-v1", 4, mode), tanh, A2cConfig::default(), seed).unwrap()
}

/// Common interface of both trainers for the tests.
trait Trainer {
    fn train(&mut self, steps: u64, until: u64) -> Metrics;
    fn resume(&mut self) -> Metrics;
    fn save(&self, path: &Path) -> Result<()>;
    fn load(&mut self, path: &Path) -> Result<()>;
    fn tensors(&self) -> (NamedTensors, NamedTensors);
}

macro_rules! trainer {
    ($name:ident) => {
        impl Trainer for $name<Policy> {
            fn train(&mut self, steps: u64, until: u64) -> Metrics {
                $name::train(self, steps, |metrics| metrics.timesteps < until).unwrap()
            }

            fn resume(&mut self) -> Metrics {
                $name::resume(self, |_| true).unwrap()
            }

            fn save(&self, path: &Path) -> Result<()> {
                $name::save(self, path)
            }

            fn load(&mut self, path: &Path) -> Result<()> {
                $name::load(self, path)
            }

            fn tensors(&self) -> (NamedTensors, NamedTensors) {
                (self.policy().tensors(), self.policy().optimizer_state())
            }
        }
    };
}
trainer!(Ppo);
trainer!(A2c);

/// Saves a trainer and returns the manifest and the bytes of the members.
fn state(trainer: &dyn Trainer, scratch: &TempDir) -> (Map<String, Value>, Vec<Option<Vec<u8>>>) {
    let path = scratch.path().join("state");
    trainer.save(&path).unwrap();
    let read = Checkpoint::read(&path).unwrap();
    let members = ["networks", "optimizer", "normalizer", "environment"];
    let bytes = members.map(|member| read.safetensors(member).map(<[u8]>::to_vec));
    (read.manifest, bytes.into())
}

/// Returns the metrics as text. The text differs if any bit differs.
fn bits(metrics: &Metrics) -> String {
    format!("{metrics:?}")
}

fn assert_resumes_exactly<T: Trainer>(name: &str, steps: u64, make: impl Fn(u64) -> T) {
    let scratch = tempfile::tempdir().unwrap();
    let mut full = make(1);
    let metrics = full.train(steps, u64::MAX);
    let mut first = make(1);
    first.train(steps, steps / 2);
    let half = scratch.path().join("half");
    first.save(&half).unwrap();
    // Loading replaces the state of a run with another seed.
    let mut second = make(2);
    second.train(steps / 4, u64::MAX);
    second.load(&half).unwrap();
    assert_eq!(state(&first, &scratch), state(&second, &scratch), "{name}: the loaded state differs");
    let (one, other) = (first.resume(), second.resume());
    assert_eq!(bits(&metrics), bits(&one), "{name}: saving changed the run");
    assert_eq!(bits(&metrics), bits(&other), "{name}");
    assert_eq!(full.tensors(), second.tensors(), "{name}");
    assert_eq!(state(&full, &scratch), state(&second, &scratch), "{name}");
}

#[test]
fn ppo_with_normalizer_and_sde_resumes_exactly() {
    for mode in [AutoresetMode::SameStep, AutoresetMode::NextStep] {
        // Three environments are stepped one by one, 19 with SIMD instructions. Episodes of 200
        // steps end before and after the save.
        for num_envs in [3, 19] {
            let steps = 28 * 16 * num_envs as u64;
            assert_resumes_exactly(&format!("{mode:?}, {num_envs}"), steps, |seed| pendulum(num_envs, mode, seed));
        }
    }
}

#[test]
fn a2c_resumes_exactly() {
    for mode in [AutoresetMode::SameStep, AutoresetMode::NextStep] {
        // More than 100 episodes end, and some rollouts end at the end of an episode.
        assert_resumes_exactly(&format!("{mode:?}"), 6000, |seed| cartpole(mode, seed));
    }
    let adam = A2cConfig { optimizer: Optimizer::adam_w(1e-3), lr_schedule: Schedule::Linear, ..A2cConfig::default() };
    assert_resumes_exactly("shared, AdamW", 400, |seed| {
        A2c::new(make("CartPole-v1", 4, AutoresetMode::SameStep), shared, adam.clone(), seed).unwrap()
    });
}

/// Environment that observes the last action and does not support states.
struct Silent(EnvSpec);

impl Silent {
    fn new() -> Self {
        let observation = Space::uniform_box(-1.0, 1.0, &[1]);
        Self(EnvSpec { id: "Silent-v0".into(), observation, action: Space::discrete(2), max_episode_steps: Some(7) })
    }
}

impl Env for Silent {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs[0] = rng.uniform(-1.0, 1.0) as f32;
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs[0] = *action as f32;
        Step { reward: 1.0, terminated: false, truncated: false }
    }
}

#[test]
fn environments_without_states_start_new_episodes() {
    let scratch = tempfile::tempdir().unwrap();
    let make = |seed| {
        let env = VecEnv::new(2, None, AutoresetMode::SameStep, Silent::new).unwrap();
        A2c::new(Box::new(env), tanh, A2cConfig::default(), seed).unwrap()
    };
    let (mut first, mut second) = (make(1), make(2));
    let before = first.train(100, |_| true).unwrap();
    first.save(scratch.path().join("a")).unwrap();
    assert!(Checkpoint::read(scratch.path().join("a")).unwrap().safetensors("environment").is_none());
    second.load(scratch.path().join("a")).unwrap();
    let after = second.train(100, |_| true).unwrap();
    assert_eq!((before.timesteps, after.timesteps, before.updates, after.updates), (100, 200, 10, 20));
    assert!(after.episodes > before.episodes && after.mean_return == 7.0);
}

#[test]
fn checkpoints_before_the_first_step_can_be_trained() {
    let scratch = tempfile::tempdir().unwrap();
    cartpole(AutoresetMode::SameStep, 1).save(scratch.path()).unwrap();
    let (mut first, mut second) = (cartpole(AutoresetMode::SameStep, 1), cartpole(AutoresetMode::SameStep, 2));
    second.load(scratch.path()).unwrap();
    assert!(matches!(second.resume(|_| true), Err(Error::Config(_))), "no run to resume");
    Trainer::train(&mut first, 100, u64::MAX);
    Trainer::train(&mut second, 100, u64::MAX);
    assert_eq!(first.tensors(), second.tensors());
}

/// Asserts that a load is rejected and changes nothing.
fn rejects(trainer: &mut dyn Trainer, path: &Path, rejection: Rejection) {
    let scratch = tempfile::tempdir().unwrap();
    let before = state(trainer, &scratch);
    assert_checkpoint_rejects(trainer.load(path), path, rejection);
    assert!(state(trainer, &scratch) == before, "{rejection:?}: the load changed the state");
}

#[test]
fn checkpoints_of_other_trainers_are_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut saved = pendulum(3, AutoresetMode::SameStep, 1);
    Trainer::train(&mut saved, 100, u64::MAX);
    saved.save(&path).unwrap();
    let env = || make("Pendulum-v1", 3, AutoresetMode::SameStep);
    let mut a2c = A2c::new(env(), sde, A2cConfig::default(), 1).unwrap();
    rejects(&mut a2c, &path, (Error::Config, "algorithm", "a2c", "ppo"));
    let other = make("MountainCarContinuous-v0", 3, AutoresetMode::SameStep);
    let mut other = Ppo::new(other, sde, pendulum_config(), 1).unwrap();
    rejects(&mut other, &path, (Error::Config, "env", "MountainCarContinuous-v0", "Pendulum-v1"));
    rejects(&mut pendulum(4, AutoresetMode::SameStep, 1), &path, setting("num_envs = 4", "3"));
    let mut plain = Ppo::new(env(), tanh, pendulum_config(), 1).unwrap();
    Trainer::train(&mut plain, 100, u64::MAX);
    rejects(&mut plain, &path, setting("use_sde = false", "true"));
    let without_use_sde = scratch.path().join("without_use_sde");
    saved.save(&without_use_sde).unwrap();
    forge(&without_use_sde, |c| drop(c.manifest["settings"].as_object_mut().unwrap().remove("use_sde")));
    rejects(&mut plain, &without_use_sde, (Error::Shape, "networks, tensors", "\"log_std\" of shape [1]", ""));
    let changes: [Change<PpoConfig>; 6] = [
        (|c| c.gamma = 0.98, setting("gamma = 0.98", "0.99")),
        (|c| c.optimizer = Optimizer::adam(3e-4), setting("optimizer_eps = 1e-8", "0.00001")),
        (|c| c.target_kl = Some(0.1), setting("target_kl = 0.1", "null")),
        (|c| c.lr_schedule = Schedule::Constant, setting("lr_schedule = \"constant\"", "\"linear\"")),
        (|c| c.normalize = None, setting("normalize_obs = false", "true")),
        (|c| c.sde_sample_freq = 0, setting("sde_sample_freq = -1", "4")),
    ];
    for (change, rejection) in changes {
        let mut config = pendulum_config();
        change(&mut config);
        rejects(&mut Ppo::new(env(), sde, config, 1).unwrap(), &path, rejection);
    }
}

#[test]
fn damaged_checkpoints_are_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut trainer = pendulum(3, AutoresetMode::SameStep, 1);
    Trainer::train(&mut trainer, 100, u64::MAX);
    trainer.save(&path).unwrap();
    Trainer::train(&mut trainer, 100, u64::MAX);
    let before = state(&trainer, &scratch);
    let mut rng = Pcg64::seed_from(0);
    for member in ["manifest.json", "networks.safetensors", "optimizer.safetensors", "normalizer.safetensors"] {
        let (file, data) = (path.join(member), fs::read(path.join(member)).unwrap());
        for _ in 0..60 {
            let mut damaged = data.clone();
            let at = rng.integers(0, data.len() as i64) as usize;
            damaged[at] ^= 1 << rng.integers(0, 8);
            let short = &data[..at];
            for damaged in [&damaged[..], short] {
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
}

/// Changes the checkpoint at `path`.
fn forge(path: &Path, change: impl FnOnce(&mut Checkpoint)) {
    let mut checkpoint = Checkpoint::read(path).unwrap();
    change(&mut checkpoint);
    checkpoint.write(path).unwrap();
}

#[test]
fn invalid_checkpoints_are_rejected() {
    let changes: [Change<Checkpoint>; 15] = [
        (|c| drop(c.manifest.remove("counters")), corrupt("manifest", "no key \"counters\"")),
        (|c| c.manifest["counters"]["updates"] = json!(-1), corrupt("counters", "no count")),
        (|c| c.manifest["counters"]["timesteps"] = json!(u64::MAX - 3), corrupt("counters", "no count \"timesteps\"")),
        (|c| c.manifest["counters"]["episodes"]["count"] = json!(7), corrupt("counters", "")),
        (|c| c.manifest["counters"]["episodes"]["returns"] = json!(["x"]), corrupt("counters", "")),
        (|c| c.manifest["run"] = json!({"start": 9, "target": 8}), corrupt("run", "a run from 9 to 8")),
        (|c| c.manifest["streams"]["resets"]["state"]["inc"] = json!("2"), corrupt("streams", "")),
        (
            |c| drop(c.manifest["streams"].as_object_mut().unwrap().remove("iterations")),
            corrupt("streams", "no PCG64 state as \"iterations\""),
        ),
        (
            |c| drop(c.manifest["settings"].as_object_mut().unwrap().remove("gamma")),
            corrupt("settings", "no key \"gamma\""),
        ),
        (|c| c.manifest["algorithm"] = json!(1), corrupt("algorithm", "")),
        (|c| c.insert_safetensors("networks", b"\x80\x04cos\nsystem\n.".to_vec()).unwrap(), corrupt("networks", "")),
        (
            |c| c.insert_arrays("normalizer", &[("obs_mean", &[1], [f64::NAN][..].into())]).unwrap(),
            corrupt("normalizer", ""),
        ),
        (
            |c| c.insert_arrays("environment", &[("states", &[4, 1], [0.0_f64; 4][..].into())]).unwrap(),
            corrupt("environment", ""),
        ),
        (|c| fill(c, "optimizer", "log_std.step", 0.5), (Error::Config, "optimizer, state", "", "")),
        (
            |c| fill(c, "networks", "critic.2.bias", f32::NAN),
            (Error::NotFinite, "networks, tensors, critic.2.bias", "", "NaN"),
        ),
    ];
    let mut trainer = pendulum(3, AutoresetMode::SameStep, 1);
    Trainer::train(&mut trainer, 700, u64::MAX);
    for (change, rejection) in changes {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("saved");
        trainer.save(&path).unwrap();
        forge(&path, change);
        rejects(&mut pendulum(3, AutoresetMode::SameStep, 2), &path, rejection);
        rejects(&mut trainer, &path, rejection);
    }
}

fn fill(checkpoint: &mut Checkpoint, member: &str, name: &str, x: f32) {
    let tensors = NamedTensors::from_safetensors(checkpoint.safetensors(member).unwrap()).unwrap();
    let mut changed = NamedTensors::default();
    for tensor in &tensors {
        let data = if tensor.name == name { vec![x; tensor.data.len()] } else { tensor.data.clone() };
        changed.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    checkpoint.insert_safetensors(member, changed.to_safetensors()).unwrap();
}

#[test]
fn non_finite_weights_are_not_saved() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut optimizer = Optimizer::adam_w(1e30);
    if let Optimizer::AdamW { weight_decay, .. } = &mut optimizer {
        *weight_decay = 1e30;
    }
    let config = A2cConfig { optimizer, ..A2cConfig::default() };
    let mut trainer = A2c::new(make("CartPole-v1", 4, AutoresetMode::SameStep), tanh, config, 1).unwrap();
    trainer.save(&path).unwrap();
    let rejected = assert_rejects(trainer.iterate(0.0), Error::NotFinite, "parameters of actor");
    let at = &rejected.at;
    assert_eq!((at.section.as_deref(), at.row, at.timesteps), (Some("0.weight"), Some(0), Some(0)));
    assert_rejects(trainer.save(&path), Error::NotFinite, "networks");
    trainer.load(&path).unwrap();
    assert_eq!(trainer.timesteps(), 0);
}

#[test]
fn other_files_are_neither_read_nor_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let (notes, nowhere) = (scratch.path().join("notes"), scratch.path().join("nowhere"));
    fs::write(&notes, "mine").unwrap();
    let mut trainer = cartpole(AutoresetMode::SameStep, 1);
    for path in [&notes, scratch.path()] {
        assert!(matches!(trainer.save(path), Err(Error::Io { .. })), "{path:?}");
    }
    assert!(matches!(trainer.load(scratch.path()), Err(Error::Corrupt(_))));
    for path in [&notes, &nowhere] {
        assert!(matches!(trainer.load(path), Err(Error::Io { .. })), "{path:?}");
    }
    assert_eq!((fs::read(&notes).unwrap(), fs::read_dir(scratch.path()).unwrap().count()), (b"mine".to_vec(), 1));
}
