//! Checkpoints of trainers whose actors' environments are elsewhere, or do not do what they said.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod actors;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actors::{IN_TURN, Policy, cartpole, impala, iterate, networks, read, state};
use rlox_core::{
    AutoresetMode, Begun, Collect, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Rollout, Seeds, Space, Step,
    VecEnv, VectorEnv,
};
use rlox_nn::train::{ActorPlan, AsyncOnPolicy, Impala, ImpalaConfig, IterationStreams, collect_transitions};
use rlox_nn::{ActorCritic, NamedTensors};

/// Environments of which nobody here knows where they stand.
struct Elsewhere {
    env: Box<dyn VectorEnv>,
    policy: Policy,
    plan: ActorPlan,
    begun: bool,
}

impl Collect<NamedTensors, Rollout> for Elsewhere {
    fn collect(&mut self, begun: &mut Begun<NamedTensors, Rollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, policy, plan, .. } = self;
        policy.load(&begun.weights)?;
        if !std::mem::replace(&mut self.begun, true) {
            begun.buffer.steps.begin(env.as_mut(), Seeds::Base(plan.reset), None)?;
        }
        let mut streams = IterationStreams::new(begun.turn.seed, env.num_envs())?;
        let (steps, how) = (&mut begun.buffer.steps, plan.how);
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
