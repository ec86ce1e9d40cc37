//! A trainer with actors that was saved goes on as the one that was not, or as its documentation says.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod actors;

use std::fs;
use std::path::Path;

use actors::{IN_TURN, Policy, Trainer, cartpole, impala, iterate, networks, read, state, with};
use rlox_core::{Ahead, AutoresetMode, Checkpoint, Error, Pcg64};
use rlox_nn::ActorCritic;
use rlox_nn::train::{A2c, A2cConfig, AsyncOnPolicy, Impala, ImpalaConfig, OnPolicyAlgorithm, Ppo, PpoConfig};
use serde_json::json;

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
    for (actors, max_lag) in [(1, 1), (2, 3)] {
        let ahead = Ahead { max_lag, lockstep: true };
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
                lags.push(other.lag());
            }
            let last: Vec<_> = (0..lags.len() as u64).map(|k| k.min(max_lag as u64)).collect();
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
    let (scratch, ahead) = (tempfile::tempdir().unwrap(), Ahead { max_lag: 3, lockstep: false });
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
        assert!(after.episodes > before.episodes && trainer.stats().unwrap().largest_lag <= 3);
    }
}

/// A change, and what is said of it.
type Change = (fn(&mut Checkpoint), &'static str);

/// Asserts that a load is refused in these words, has changed nothing, and that training goes on as if it had not been.
fn refused<A: OnPolicyAlgorithm>(make: impl Fn() -> Trainer<A>, path: &Path, expected: &str) {
    let (mut trainer, mut other) = (make(), make());
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    let error = trainer.load(path).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}: expected {expected}");
    assert!(state(&mut trainer) == state(&mut other), "{expected}: something has changed");
    iterate(&mut trainer, 3);
    iterate(&mut other, 3);
    assert!(state(&mut trainer) == state(&mut other), "{expected}: it does not go on");
}

#[test]
fn checkpoints_of_other_trainers_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("saved");
    let mut saved = impala(2, IN_TURN, 1);
    saved.train(100, |_| true).unwrap();
    saved.save(&path).unwrap();
    refused(|| with(A2cConfig::default(), 2, IN_TURN, 1), &path, "section algorithm: expected a2c, got impala");
    let section = |said: &str| format!("manifest.json, section settings: expected {said}; make the trainer");
    let settings = |make: &dyn Fn() -> Impala<Policy>, said| refused(make, &path, &section(said));
    settings(&|| impala(3, IN_TURN, 1), "num_actors = 3, got 2");
    let ahead = |max_lag, lockstep| move || impala(2, Ahead { max_lag, lockstep }, 1);
    settings(&ahead(1, true), "max_lag = 1, got 0");
    settings(
        &|| {
            let envs = (0..2).map(|_| cartpole(3, AutoresetMode::SameStep)).collect();
            Impala::new(envs, networks, ImpalaConfig::default(), IN_TURN, 1).unwrap()
        },
        "num_envs = 6, got 4",
    );
    settings(
        &|| with(ImpalaConfig { rho_bar: 2.0, ..ImpalaConfig::default() }, 2, IN_TURN, 1),
        "rho_bar = 2.0, got 1.0",
    );
    let loops = Ppo::new(cartpole(4, AutoresetMode::SameStep), networks, PpoConfig::default(), 1).unwrap();
    loops.save(&path).unwrap();
    refused(|| with(PpoConfig::default(), 2, IN_TURN, 1), &path, &section("num_actors = 2, got 1"));
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
                let error = trainer.load(&path).unwrap_err();
                assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(member), "{error}");
            }
        }
        fs::write(&file, data).unwrap();
    }
    assert!(state(&mut trainer) == state(&mut make()));
    trainer.load(&path).unwrap();
    assert!(state(&mut trainer) == state(&mut saved));

    let changes: [Change; 4] = [
        (
            |c| c.manifest["counters"]["rollouts"] = json!(-1),
            "section counters: expected what rlox wrote, got no count",
        ),
        (|c| c.manifest["counters"]["rollouts"] = json!(u64::MAX), "no count \"rollouts\""),
        (|c| c.manifest["settings"]["num_actors"] = json!("2"), "expected num_actors = 2, got \"2\""),
        // Of the second actor.
        (
            |c| {
                let (n, words) = ([4], [4, Pcg64::WORDS]);
                let states = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, f64::NAN, 0.0, 0.0, 0.0];
                let stream: Vec<i64> = (0..4).flat_map(|i| Pcg64::seed_from(i).to_words()).collect();
                c.put(
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
            "section environment, state",
        ),
    ];
    for (change, expected) in changes {
        let forged = scratch.path().join("forged");
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        change(&mut checkpoint);
        checkpoint.write(&forged).unwrap();
        refused(make, &forged, expected);
    }
}
