//! Checkpoints of trainers with actors: exact resume, stale rollouts, and rejection of invalid files.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Seeds, Space, Step, VecEnv, VectorEnv,
    checkpoint::Checkpoint,
    pipeline::{Collect, Rollout, RolloutJob, StalenessPolicy},
};
use rlox_nn::train::{
    A2c, A2cConfig, ActorPlan, AsyncOnPolicy, Impala, ImpalaConfig, IterationStreams, OnPolicyAlgorithm, Ppo,
    PpoConfig, collect_transitions,
};
use rlox_nn::{ActorCritic, NamedTensors};
use serde_json::json;

use crate::support::actors::{
    Policy, SYNCHRONOUS, Trainer, async_trainer, cartpole, impala, iterate, networks, read, state,
};
use crate::support::checkpoints::{Rejection, assert_checkpoint_rejects, corrupt, setting};

fn assert_resumes_exactly<A: OnPolicyAlgorithm>(name: &str, steps: u64, make: impl Fn(u64) -> Trainer<A>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut full = make(1);
    let metrics = full.train(steps, |_| true).unwrap();
    let mut first = make(1);
    first.train(steps, |metrics| metrics.timesteps < steps / 2).unwrap();
    first.save(scratch.path()).unwrap();
    // Loading replaces the state of a run with another seed.
    let mut second = make(2);
    second.train(steps / 4, |_| true).unwrap();
    second.load(scratch.path()).unwrap();
    assert!(state(&mut first) == state(&mut second), "{name}: the loaded state differs");
    let (one, other) = (first.resume(|_| true).unwrap(), second.resume(|_| true).unwrap());
    assert_eq!(format!("{metrics:?}"), format!("{one:?}"), "{name}: saving changed the run");
    assert_eq!(format!("{metrics:?}"), format!("{other:?}"), "{name}");
    let full = state(&mut full);
    assert!(full.1[2].is_some() && full == state(&mut first), "{name}");
    assert!(full == state(&mut second), "{name}");
}

#[test]
fn synchronous_actors_resume_exactly() {
    // The run stops when the three actors have made unequal numbers of rollouts.
    for actors in [1, 3] {
        assert_resumes_exactly("impala", 20 * 10 * 2, |seed| impala(actors, SYNCHRONOUS, seed));
        assert_resumes_exactly("a2c", 20 * 10 * 2, |seed| {
            async_trainer(A2cConfig::default(), actors, SYNCHRONOUS, seed)
        });
        let ppo = PpoConfig { n_steps: 16, batch_size: 16, n_epochs: 2, ..PpoConfig::default() };
        assert_resumes_exactly("ppo", 20 * 32, |seed| async_trainer(ppo.clone(), actors, SYNCHRONOUS, seed));
    }
    assert_resumes_exactly("next step", 2000, |seed| {
        let envs = (0..2).map(|_| cartpole(3, AutoresetMode::NextStep)).collect();
        AsyncOnPolicy::new(envs, networks, ImpalaConfig::default(), SYNCHRONOUS, seed).unwrap()
    });
}

#[test]
fn checkpoints_before_the_first_rollouts_resume_exactly() {
    for before in 0..3 {
        let scratch = tempfile::tempdir().unwrap();
        let (mut full, mut first, mut second) =
            (impala(3, SYNCHRONOUS, 1), impala(3, SYNCHRONOUS, 1), impala(3, SYNCHRONOUS, 2));
        iterate(&mut first, before);
        first.save(scratch.path()).unwrap();
        second.load(scratch.path()).unwrap();
        assert!(matches!(second.resume(|_| true), Err(Error::Config(_))), "no run to resume");
        iterate(&mut full, 10);
        iterate(&mut first, 10 - before);
        iterate(&mut second, 10 - before);
        assert_eq!(full.policy().tensors(), first.policy().tensors());
        assert_eq!(full.policy().tensors(), second.policy().tensors());
    }
}

#[test]
fn on_policy_and_one_synchronous_actor_share_checkpoints() {
    let scratch = tempfile::tempdir().unwrap();
    let (loop_path, threads_path) = (scratch.path().join("loop"), scratch.path().join("threads_path"));
    let alone = |seed| A2c::new(cartpole(2, AutoresetMode::SameStep), networks, A2cConfig::default(), seed).unwrap();
    let threads = |seed| async_trainer(A2cConfig::default(), 1, SYNCHRONOUS, seed);
    let mut full = alone(1);
    full.train(400, |_| true).unwrap();
    let (mut first, mut second) = (alone(1), threads(1));
    first.train(400, |metrics| metrics.timesteps < 200).unwrap();
    second.train(400, |metrics| metrics.timesteps < 200).unwrap();
    first.save(&loop_path).unwrap();
    second.save(&threads_path).unwrap();
    assert_eq!(read(&loop_path).1, read(&threads_path).1);
    let (mut first, mut second) = (alone(2), threads(2));
    first.load(&threads_path).unwrap();
    second.load(&loop_path).unwrap();
    assert_eq!(first.resume(|_| true).unwrap(), second.resume(|_| true).unwrap());
    assert_eq!(full.policy().tensors(), first.policy().tensors());
    assert_eq!(full.policy().tensors(), second.policy().tensors());
}

#[test]
fn stale_deterministic_runs_resume_repeatably_with_new_episodes() {
    for (actors, max_staleness) in [(1, 1), (2, 3)] {
        let staleness_policy = StalenessPolicy { max_staleness, deterministic: true };
        let scratch = tempfile::tempdir().unwrap();
        let mut first = impala(actors, staleness_policy, 1);
        let before = first.train(2000, |metrics| metrics.timesteps < 1000).unwrap();
        first.save(scratch.path()).unwrap();
        let saved = read(scratch.path());
        assert!(saved.1[2].is_none(), "unfinished rollouts are not saved");
        assert!(saved == state(&mut first), "saving changed the state");
        let resumed = [2, 3].map(|seed| {
            let mut other = impala(actors, staleness_policy, seed);
            other.train(70 * seed, |_| true).unwrap();
            other.load(scratch.path()).unwrap();
            let mut loaded = state(&mut other);
            // Loading draws the seed of the new episodes from this stream, so its state differs.
            loaded.0["streams"]["resets"] = saved.0["streams"]["resets"].clone();
            assert!(loaded == saved);
            let mut lags = Vec::new();
            while other.timesteps() < 2000 {
                other.iterate(0.5).unwrap();
                lags.push(other.staleness());
            }
            let last: Vec<_> = (0..lags.len() as u64).map(|k| k.min(max_staleness as u64)).collect();
            assert_eq!(lags, last);
            state(&mut other)
        });
        assert!(resumed[0] == resumed[1]);
        let after = first.resume(|_| true).unwrap();
        assert!(after.episodes > before.episodes && after.timesteps == 2000);
        assert_ne!(first.policy().tensors(), impala(actors, staleness_policy, 1).policy().tensors());
    }
}

#[test]
fn free_actors_resume_within_max_staleness() {
    let (scratch, staleness_policy) =
        (tempfile::tempdir().unwrap(), StalenessPolicy { max_staleness: 3, deterministic: false });
    let mut first = impala(2, staleness_policy, 1);
    let before = first.train(2000, |metrics| metrics.timesteps < 1000).unwrap();
    first.save(scratch.path()).unwrap();
    let mut second = impala(2, staleness_policy, 2);
    second.train(500, |_| true).unwrap();
    second.load(scratch.path()).unwrap();
    assert_eq!(first.policy().tensors(), second.policy().tensors());
    for trainer in [&mut first, &mut second] {
        let after = trainer.resume(|_| true).unwrap();
        assert_eq!((after.timesteps, after.updates), (2000, 2 * before.updates));
        assert!(after.episodes > before.episodes && trainer.stats().unwrap().max_staleness <= 3);
    }
}

/// Change of a checkpoint, and the error that the change causes.
type Change = (fn(&mut Checkpoint), Rejection);

/// Asserts that a load is rejected, changes nothing, and does not affect further training.
fn rejects<A: OnPolicyAlgorithm>(make: impl Fn() -> Trainer<A>, path: &Path, rejection: Rejection) {
    let (mut trainer, mut other) = (make(), make());
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert_checkpoint_rejects(trainer.load(path), path, rejection);
    assert!(state(&mut trainer) == state(&mut other), "{rejection:?}: the load changed the state");
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert!(state(&mut trainer) == state(&mut other), "{rejection:?}: training differs");
}

#[test]
fn checkpoints_of_other_trainers_are_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut saved = impala(2, SYNCHRONOUS, 1);
    saved.train(100, |_| true).unwrap();
    saved.save(&path).unwrap();
    rejects(
        || async_trainer(A2cConfig::default(), 2, SYNCHRONOUS, 1),
        &path,
        (Error::Config, "algorithm", "a2c", "impala"),
    );
    rejects(|| impala(3, SYNCHRONOUS, 1), &path, setting("num_actors = 3", "2"));
    let staleness_policy = StalenessPolicy { max_staleness: 1, deterministic: true };
    rejects(|| impala(2, staleness_policy, 1), &path, setting("max_staleness = 1", "0"));
    let more_envs = || {
        let envs = (0..2).map(|_| cartpole(3, AutoresetMode::SameStep)).collect();
        Impala::new(envs, networks, ImpalaConfig::default(), SYNCHRONOUS, 1).unwrap()
    };
    rejects(more_envs, &path, setting("num_envs = 6", "4"));
    let config = ImpalaConfig { rho_bar: 2.0, ..ImpalaConfig::default() };
    rejects(|| async_trainer(config.clone(), 2, SYNCHRONOUS, 1), &path, setting("rho_bar = 2.0", "1.0"));
    let ppo = Ppo::new(cartpole(4, AutoresetMode::SameStep), networks, PpoConfig::default(), 1).unwrap();
    ppo.save(&path).unwrap();
    rejects(|| async_trainer(PpoConfig::default(), 2, SYNCHRONOUS, 1), &path, setting("num_actors = 2", "1"));
}

#[test]
fn damaged_and_invalid_checkpoints_are_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, make) = (scratch.path().join("saved"), || impala(2, SYNCHRONOUS, 1));
    let mut saved = impala(2, SYNCHRONOUS, 2);
    saved.train(100, |_| true).unwrap();
    saved.save(&path).unwrap();
    let mut rng = Pcg64::seed_from(0);
    let mut trainer = make();
    for member in ["manifest.json", "networks.safetensors", "optimizer.safetensors", "environment.safetensors"] {
        let (file, data) = (path.join(member), fs::read(path.join(member)).unwrap());
        for _ in 0..30 {
            let mut damaged = data.clone();
            let at = rng.integers(0, data.len() as i64) as usize;
            damaged[at] ^= 1 << rng.integers(0, 8);
            for damaged in [&damaged[..], &data[..at]] {
                fs::write(&file, damaged).unwrap();
                assert_rejects(trainer.load(&path), Error::Corrupt, &file.display().to_string());
            }
        }
        fs::write(&file, data).unwrap();
    }
    assert!(state(&mut trainer) == state(&mut make()));
    trainer.load(&path).unwrap();
    assert!(state(&mut trainer) == state(&mut saved));

    let changes: [Change; 4] = [
        (|c| c.manifest["counters"]["rollouts"] = json!(-1), corrupt("counters", "no count")),
        (|c| c.manifest["counters"]["rollouts"] = json!(u64::MAX), corrupt("counters", "no count \"rollouts\"")),
        (|c| c.manifest["settings"]["num_actors"] = json!("2"), setting("num_actors = 2", "\"2\"")),
        // This change makes the state of an environment of the second actor invalid.
        (
            |c| {
                let (n, stream_shape) = ([4], [4, Pcg64::STATE_LEN]);
                let states = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, f64::NAN, 0.0, 0.0, 0.0];
                let stream: Vec<i64> = (0..4).flat_map(|i| Pcg64::seed_from(i).to_state_array()).collect();
                c.insert_arrays(
                    "environment",
                    &[
                        ("states", &[4, 4], states[..].into()),
                        ("episode_returns", &n, [0.0; 4][..].into()),
                        ("episode_steps", &n, [0_i64; 4][..].into()),
                        ("finished", &n, [false; 4][..].into()),
                        ("streams", &stream_shape, stream[..].into()),
                    ],
                )
                .unwrap();
            },
            (Error::NotFinite, "environment, state", "", "NaN"),
        ),
    ];
    for (change, rejection) in changes {
        let forged = scratch.path().join("forged");
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        change(&mut checkpoint);
        checkpoint.write(&forged).unwrap();
        rejects(make, &forged, rejection);
    }
}

/// Actor whose environments do not give access to their states.
struct RemoteActor {
    env: Box<dyn VectorEnv>,
    policy: Policy,
    plan: ActorPlan,
    started: bool,
}

impl Collect<NamedTensors, Rollout> for RemoteActor {
    fn collect(&mut self, job: &mut RolloutJob<NamedTensors, Rollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, policy, plan, .. } = self;
        policy.load(&job.weights)?;
        if !std::mem::replace(&mut self.started, true) {
            job.buffer.steps.begin(env.as_mut(), Seeds::Base(plan.reset), None)?;
        }
        let mut streams = IterationStreams::new(job.ticket.seed, env.num_envs())?;
        let (steps, collect_config) = (&mut job.buffer.steps, plan.config);
        collect_transitions(env.as_mut(), policy, &mut streams.actions, steps, None, collect_config, &mut || stop())
    }
}

#[test]
fn remote_actors_continue_their_episodes_after_a_load() {
    let make = |seed| {
        let env = || cartpole(2, AutoresetMode::SameStep);
        let (spec, config) = (env().spec().clone(), ImpalaConfig::default());
        let policy = |rng: &mut Pcg64| networks(&spec, rng);
        AsyncOnPolicy::with_actors((&spec, 2, false), 2, policy, config, SYNCHRONOUS, seed, |make, plan| {
            let policy = make(&mut Pcg64::seed_from(0))?;
            Ok(Box::new(RemoteActor { env: env(), policy, plan: *plan, started: false }))
        })
        .unwrap()
    };
    let scratch = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (make(1), make(2));
    first.train(400, |metrics| metrics.timesteps < 200).unwrap();
    first.save(scratch.path()).unwrap();
    assert!(read(scratch.path()).1[2].is_none());
    second.train(100, |_| true).unwrap();
    second.load(scratch.path()).unwrap();
    assert!(state(&mut first).1 == state(&mut second).1);
    assert_eq!(second.resume(|_| true).unwrap().timesteps, 400);
    // Remote actors do not use the snapshot that local actors saved.
    let mut here = impala(2, SYNCHRONOUS, 3);
    here.train(200, |_| true).unwrap();
    here.save(scratch.path()).unwrap();
    second.load(scratch.path()).unwrap();
    assert_eq!(second.iterate(0.0).unwrap().timesteps, 210);
}

/// Environment that fails to restore a valid state as many times as its counter says.
struct FailingRestore(EnvSpec, f64, Arc<AtomicUsize>);

impl Env for FailingRestore {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, rng: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        self.1 = rng.uniform(0.0, 1.0);
        obs[0] = self.1 as f32;
    }

    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        self.1 = (self.1 + *action as f64 * 0.37) % 1.0;
        obs[0] = self.1 as f32;
        Step { reward: self.1, terminated: false, truncated: false }
    }

    fn state(&self) -> Option<Vec<f64>> {
        Some(vec![self.1])
    }

    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> Result<()> {
        let times = self.2.load(Ordering::SeqCst);
        if times > 0 {
            self.2.store(times - 1, Ordering::SeqCst);
            return Err(Error::Backend("cannot restore".into()));
        }
        (self.1, obs[0]) = (state[0], state[0] as f32);
        Ok(())
    }
}

#[test]
fn failed_restores_roll_back_or_start_new_episodes() {
    let make = |seed, failures: &Arc<AtomicUsize>| {
        let none = Arc::default();
        let envs = [&none, failures].map(|failures| -> Box<dyn VectorEnv> {
            let observation = Space::uniform_box(0.0, 1.0, &[1]);
            let id = "FailingRestore-v0".to_owned();
            let spec = EnvSpec { id, observation, action: Space::discrete(2), max_episode_steps: Some(17) };
            let one = || FailingRestore(spec.clone(), 0.0, Arc::clone(failures));
            Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, one).unwrap())
        });
        Impala::new(envs.into(), networks, ImpalaConfig::default(), SYNCHRONOUS, seed).unwrap()
    };
    let (scratch, failures) = (tempfile::tempdir().unwrap(), Arc::<AtomicUsize>::default());
    make(1, &failures).save(scratch.path()).unwrap();
    let (mut trainer, mut other) = (make(2, &failures), make(2, &failures));
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    failures.store(1, Ordering::SeqCst);
    let error = trainer.load(scratch.path()).unwrap_err().to_string();
    assert!(error.contains("cannot restore") && failures.load(Ordering::SeqCst) == 0, "{error}");
    assert!(state(&mut trainer) == state(&mut other), "environments of both actors are rolled back");
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert!(state(&mut trainer) == state(&mut other));
    failures.store(2, Ordering::SeqCst);
    trainer.load(scratch.path()).unwrap_err();
    iterate(&mut trainer, 3);
    assert_eq!((trainer.timesteps(), failures.load(Ordering::SeqCst)), (90, 0));
}
