//! Checkpoints of trainers with actors: they go on as the trainer that was saved, wherever the environments are.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlox_core::testing::assert_rejects;
use rlox_core::{
    AutoresetMode, Checkpoint, Collect, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Rollout, RolloutJob, Seeds,
    Space, StalenessPolicy, Step, VecEnv, VectorEnv,
};
use rlox_nn::train::{
    A2c, A2cConfig, ActorPlan, AsyncOnPolicy, Impala, ImpalaConfig, IterationStreams, OnPolicyAlgorithm, Ppo,
    PpoConfig, collect_transitions,
};
use rlox_nn::{ActorCritic, NamedTensors};
use serde_json::json;

use crate::support::actors::{IN_TURN, Policy, Trainer, cartpole, impala, iterate, networks, read, state, with};
use crate::support::checkpoints::{Rejection, assert_checkpoint_rejects, corrupt, setting};

fn goes_on_exactly<A: OnPolicyAlgorithm>(name: &str, steps: u64, make: impl Fn(u64) -> Trainer<A>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut whole = make(1);
    let said = whole.train(steps, |_| true).unwrap();
    let mut first = make(1);
    first.train(steps, |metrics| metrics.timesteps < steps / 2).unwrap();
    first.save(scratch.path()).unwrap();
    // Of another seed, and in the middle of something else.
    let mut second = make(2);
    second.train(steps / 4, |_| true).unwrap();
    second.load(scratch.path()).unwrap();
    assert!(state(&mut first) == state(&mut second), "{name}: what was loaded is not what was saved");
    let (one, other) = (first.resume(|_| true).unwrap(), second.resume(|_| true).unwrap());
    assert_eq!(format!("{said:?}"), format!("{one:?}"), "{name}: saving has changed something");
    assert_eq!(format!("{said:?}"), format!("{other:?}"), "{name}");
    let whole = state(&mut whole);
    assert!(whole.1[2].is_some() && whole == state(&mut first), "{name}");
    assert!(whole == state(&mut second), "{name}");
}

#[test]
fn actors_in_turn_with_the_learner_go_on_as_if_nothing_had_happened() {
    // The half is no multiple of three actors' rollouts.
    for actors in [1, 3] {
        goes_on_exactly("impala", 20 * 10 * 2, |seed| impala(actors, IN_TURN, seed));
        goes_on_exactly("a2c", 20 * 10 * 2, |seed| with(A2cConfig::default(), actors, IN_TURN, seed));
        let ppo = PpoConfig { n_steps: 16, batch_size: 16, n_epochs: 2, ..PpoConfig::default() };
        goes_on_exactly("ppo", 20 * 32, |seed| with(ppo.clone(), actors, IN_TURN, seed));
    }
    goes_on_exactly("next step", 2000, |seed| {
        let envs = (0..2).map(|_| cartpole(3, AutoresetMode::NextStep)).collect();
        AsyncOnPolicy::new(envs, networks, ImpalaConfig::default(), IN_TURN, seed).unwrap()
    });
}

#[test]
fn what_was_saved_before_all_actors_had_their_turn_goes_on_exactly() {
    for before in 0..3 {
        let scratch = tempfile::tempdir().unwrap();
        let (mut whole, mut first, mut second) = (impala(3, IN_TURN, 1), impala(3, IN_TURN, 1), impala(3, IN_TURN, 2));
        iterate(&mut first, before);
        first.save(scratch.path()).unwrap();
        second.load(scratch.path()).unwrap();
        assert!(matches!(second.resume(|_| true), Err(Error::Config(_))), "there is no run to go on with");
        iterate(&mut whole, 10);
        iterate(&mut first, 10 - before);
        iterate(&mut second, 10 - before);
        assert_eq!(whole.policy().tensors(), first.policy().tensors());
        assert_eq!(whole.policy().tensors(), second.policy().tensors());
    }
}

#[test]
fn the_loop_and_one_actor_in_turn_with_the_learner_load_each_others() {
    let scratch = tempfile::tempdir().unwrap();
    let (loops, turns) = (scratch.path().join("loop"), scratch.path().join("turns"));
    let alone = |seed| A2c::new(cartpole(2, AutoresetMode::SameStep), networks, A2cConfig::default(), seed).unwrap();
    let threads = |seed| with(A2cConfig::default(), 1, IN_TURN, seed);
    let mut whole = alone(1);
    whole.train(400, |_| true).unwrap();
    let (mut first, mut second) = (alone(1), threads(1));
    first.train(400, |metrics| metrics.timesteps < 200).unwrap();
    second.train(400, |metrics| metrics.timesteps < 200).unwrap();
    first.save(&loops).unwrap();
    second.save(&turns).unwrap();
    assert_eq!(read(&loops).1, read(&turns).1);
    let (mut first, mut second) = (alone(2), threads(2));
    first.load(&turns).unwrap();
    second.load(&loops).unwrap();
    assert_eq!(first.resume(|_| true).unwrap(), second.resume(|_| true).unwrap());
    assert_eq!(whole.policy().tensors(), first.policy().tensors());
    assert_eq!(whole.policy().tensors(), second.policy().tensors());
}

#[test]
fn with_a_lag_new_episodes_begin_and_lockstep_stays_repeatable() {
    for (actors, max_staleness) in [(1, 1), (2, 3)] {
        let ahead = StalenessPolicy { max_staleness, deterministic: true };
        let scratch = tempfile::tempdir().unwrap();
        let mut first = impala(actors, ahead, 1);
        let before = first.train(2000, |metrics| metrics.timesteps < 1000).unwrap();
        first.save(scratch.path()).unwrap();
        let saved = read(scratch.path());
        assert!(saved.1[2].is_none(), "rollouts under way are not in it");
        assert!(saved == state(&mut first), "actors have gone on meanwhile");
        let resumed = [2, 3].map(|seed| {
            let mut other = impala(actors, ahead, seed);
            other.train(70 * seed, |_| true).unwrap();
            other.load(scratch.path()).unwrap();
            let mut loaded = state(&mut other);
            // From which the seed of the new episodes has been drawn.
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
        assert_ne!(first.policy().tensors(), impala(actors, ahead, 1).policy().tensors());
    }
}

#[test]
fn free_actors_go_on_within_the_bound() {
    let (scratch, ahead) = (tempfile::tempdir().unwrap(), StalenessPolicy { max_staleness: 3, deterministic: false });
    let mut first = impala(2, ahead, 1);
    let before = first.train(2000, |metrics| metrics.timesteps < 1000).unwrap();
    first.save(scratch.path()).unwrap();
    let mut second = impala(2, ahead, 2);
    second.train(500, |_| true).unwrap();
    second.load(scratch.path()).unwrap();
    assert_eq!(first.policy().tensors(), second.policy().tensors());
    for trainer in [&mut first, &mut second] {
        let after = trainer.resume(|_| true).unwrap();
        assert_eq!((after.timesteps, after.updates), (2000, 2 * before.updates));
        assert!(after.episodes > before.episodes && trainer.stats().unwrap().max_staleness <= 3);
    }
}

/// A change and the error that it causes.
type Change = (fn(&mut Checkpoint), Rejection);

/// Checks the error of a load, which must have changed nothing, and that training goes on as if it had not been.
fn rejects<A: OnPolicyAlgorithm>(make: impl Fn() -> Trainer<A>, path: &Path, rejection: Rejection) {
    let (mut trainer, mut other) = (make(), make());
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert_checkpoint_rejects(trainer.load(path), path, rejection);
    assert!(state(&mut trainer) == state(&mut other), "{rejection:?}: something has changed");
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert!(state(&mut trainer) == state(&mut other), "{rejection:?}: it does not go on");
}

#[test]
fn checkpoints_of_other_trainers_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut saved = impala(2, IN_TURN, 1);
    saved.train(100, |_| true).unwrap();
    saved.save(&path).unwrap();
    rejects(|| with(A2cConfig::default(), 2, IN_TURN, 1), &path, (Error::Config, "algorithm", "a2c", "impala"));
    rejects(|| impala(3, IN_TURN, 1), &path, setting("num_actors = 3", "2"));
    let ahead = StalenessPolicy { max_staleness: 1, deterministic: true };
    rejects(|| impala(2, ahead, 1), &path, setting("max_staleness = 1", "0"));
    let more_envs = || {
        let envs = (0..2).map(|_| cartpole(3, AutoresetMode::SameStep)).collect();
        Impala::new(envs, networks, ImpalaConfig::default(), IN_TURN, 1).unwrap()
    };
    rejects(more_envs, &path, setting("num_envs = 6", "4"));
    let config = ImpalaConfig { rho_bar: 2.0, ..ImpalaConfig::default() };
    rejects(|| with(config.clone(), 2, IN_TURN, 1), &path, setting("rho_bar = 2.0", "1.0"));
    let loops = Ppo::new(cartpole(4, AutoresetMode::SameStep), networks, PpoConfig::default(), 1).unwrap();
    loops.save(&path).unwrap();
    rejects(|| with(PpoConfig::default(), 2, IN_TURN, 1), &path, setting("num_actors = 2", "1"));
}

#[test]
fn damaged_checkpoints_and_those_that_make_no_sense_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, make) = (scratch.path().join("saved"), || impala(2, IN_TURN, 1));
    let mut saved = impala(2, IN_TURN, 2);
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
        // Of the second actor.
        (
            |c| {
                let (n, words) = ([4], [4, Pcg64::STATE_LEN]);
                let states = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, f64::NAN, 0.0, 0.0, 0.0];
                let stream: Vec<i64> = (0..4).flat_map(|i| Pcg64::seed_from(i).to_state_array()).collect();
                c.insert_arrays(
                    "environment",
                    &[
                        ("states", &[4, 4], states[..].into()),
                        ("episode_returns", &n, [0.0; 4][..].into()),
                        ("episode_steps", &n, [0_i64; 4][..].into()),
                        ("finished", &n, [false; 4][..].into()),
                        ("streams", &words, stream[..].into()),
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

/// Environments of which nobody here knows where they stand.
struct Elsewhere {
    env: Box<dyn VectorEnv>,
    policy: Policy,
    plan: ActorPlan,
    begun: bool,
}

impl Collect<NamedTensors, Rollout> for Elsewhere {
    fn collect(&mut self, begun: &mut RolloutJob<NamedTensors, Rollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, policy, plan, .. } = self;
        policy.load(&begun.weights)?;
        if !std::mem::replace(&mut self.begun, true) {
            begun.buffer.steps.begin(env.as_mut(), Seeds::Base(plan.reset), None)?;
        }
        let mut streams = IterationStreams::new(begun.ticket.seed, env.num_envs())?;
        let (steps, how) = (&mut begun.buffer.steps, plan.config);
        collect_transitions(env.as_mut(), policy, &mut streams.actions, steps, None, how, &mut || stop())
    }
}

#[test]
fn actors_elsewhere_go_on_where_they_are_and_all_else_is_loaded() {
    let make = |seed| {
        let env = || cartpole(2, AutoresetMode::SameStep);
        let (spec, config) = (env().spec().clone(), ImpalaConfig::default());
        let policy = |rng: &mut Pcg64| networks(&spec, rng);
        AsyncOnPolicy::with_actors((&spec, 2, false), 2, policy, config, IN_TURN, seed, |make, plan| {
            let policy = make(&mut Pcg64::seed_from(0))?;
            Ok(Box::new(Elsewhere { env: env(), policy, plan: *plan, begun: false }))
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
    // Where they stand, of actors here, is of no use to them.
    let mut here = impala(2, IN_TURN, 3);
    here.train(200, |_| true).unwrap();
    here.save(scratch.path()).unwrap();
    second.load(scratch.path()).unwrap();
    assert_eq!(second.iterate(0.0).unwrap().timesteps, 210);
}

/// Counts, and refuses to be put somewhere a few times, though it said that it would not.
struct Liar(EnvSpec, f64, Arc<AtomicUsize>);

impl Env for Liar {
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
            return Err(Error::Backend("not now".into()));
        }
        (self.1, obs[0]) = (state[0], state[0] as f32);
        Ok(())
    }
}

#[test]
fn environments_that_break_their_word_are_put_back_or_begin_new_episodes() {
    let make = |seed, lies: &Arc<AtomicUsize>| {
        let none = Arc::default();
        let envs = [&none, lies].map(|lies| -> Box<dyn VectorEnv> {
            let observation = Space::uniform_box(0.0, 1.0, &[1]);
            let id = "Liar-v0".to_owned();
            let spec = EnvSpec { id, observation, action: Space::discrete(2), max_episode_steps: Some(17) };
            let one = || Liar(spec.clone(), 0.0, Arc::clone(lies));
            Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, one).unwrap())
        });
        Impala::new(envs.into(), networks, ImpalaConfig::default(), IN_TURN, seed).unwrap()
    };
    let (scratch, lies) = (tempfile::tempdir().unwrap(), Arc::<AtomicUsize>::default());
    make(1, &lies).save(scratch.path()).unwrap();
    let (mut trainer, mut other) = (make(2, &lies), make(2, &lies));
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    lies.store(1, Ordering::SeqCst);
    let error = trainer.load(scratch.path()).unwrap_err().to_string();
    assert!(error.contains("not now") && lies.load(Ordering::SeqCst) == 0, "{error}");
    assert!(state(&mut trainer) == state(&mut other), "both actors' are where they were");
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert!(state(&mut trainer) == state(&mut other));
    lies.store(2, Ordering::SeqCst);
    trainer.load(scratch.path()).unwrap_err();
    iterate(&mut trainer, 3);
    assert_eq!((trainer.timesteps(), lies.load(Ordering::SeqCst)), (90, 0));
}
