//! Trainer of on-policy algorithms with actors: threads that step environments while the learner
//! updates the policy.

use std::collections::VecDeque;

use rlox_core::{
    AsyncCollector, EnvSpec, Error, Pcg64, Result, RolloutBuffer, Seeds, VectorEnv,
    interrupt::InterruptCheck,
    pipeline::{ActorParts, Collect, Collected, PipelineStats, Rollout, RolloutJob, StalenessPolicy},
};

use super::Run;
use super::on_policy::{Algorithm, CollectConfig, collect_transitions};
use crate::alloc::check_available;
use crate::train::streams::{IterationStreams, Streams};
use crate::train::{Encoding, Episodes, Metrics, Minibatches, check_share, evaluate_policy};
use crate::{ActorCritic, NamedTensors};

/// Trainer of an on-policy algorithm `A` whose rollouts come from actors. An actor is a thread with
/// environments and a copy of the policy.
///
/// The algorithm is [IMPALA](crate::train::Impala), PPO or A2C. The policy of a rollout is at most
/// `max_staleness` updates older than the learner's policy. With one actor, `max_staleness` 0 and
/// `deterministic`, results equal those of [`OnPolicy`](crate::train::OnPolicy) exactly.
pub struct AsyncOnPolicy<A, P> {
    pub(in crate::train) policy: P,
    pub(in crate::train) config: A,
    pub(in crate::train) collector: AsyncCollector<NamedTensors, Rollout>,
    minibatches: Minibatches,
    /// Spec of the environments, their number per actor, and `true` if they have action masks.
    pub(in crate::train) envs: (EnvSpec, usize, bool),
    pub(in crate::train) num_actors: usize,
    pub(in crate::train) staleness_policy: StalenessPolicy,
    pub(in crate::train) seed: u64,
    /// The collector owns the stream `iterations`; its copy here is updated by `save`.
    pub(in crate::train) streams: Streams,
    /// Random streams of the current iteration.
    iteration: IterationStreams,
    pub(in crate::train) episodes: Episodes,
    pub(in crate::train) timesteps: u64,
    pub(in crate::train) updates: u64,
    pub(in crate::train) staleness: u64,
    pub(in crate::train) run: Run,
    interrupt: InterruptCheck,
}

/// Settings of one actor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActorPlan {
    /// Index of the actor.
    pub number: usize,
    /// Base seed for the first reset of the actor's environments.
    pub reset: u64,
    /// Steps of each environment per rollout.
    pub n_steps: usize,
    /// Settings of the collection.
    pub config: CollectConfig,
}

impl<A: Algorithm, P> std::fmt::Debug for AsyncOnPolicy<A, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("AsyncOnPolicy");
        debug.field("config", &self.config).field("timesteps", &self.timesteps).finish_non_exhaustive()
    }
}

impl<A: Algorithm, P: ActorCritic + 'static> AsyncOnPolicy<A, P> {
    /// Creates a learner and one actor for each element of `envs`. `make` creates their policies.
    ///
    /// The seed determines all random numbers. Without `staleness_policy.deterministic`, results
    /// also depend on the order in which actors finish their rollouts.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting out of range, or for environments that differ between
    /// actors. [`Error::Memory`] if `max_staleness + 1` rollouts do not fit into memory. Errors of
    /// `make` and of [`AsyncCollector::new`].
    pub fn new(
        envs: Vec<Box<dyn VectorEnv>>,
        mut make: impl FnMut(&EnvSpec, &mut Pcg64) -> Result<P>,
        config: A,
        staleness_policy: StalenessPolicy,
        seed: u64,
    ) -> Result<Self> {
        staleness_policy.check(envs.len())?;
        let largest = envs.iter().map(|env| env.num_envs()).max().unwrap_or(0);
        let sizes_differ = envs.iter().any(|env| env.num_envs() != largest);
        if sizes_differ {
            let (expected, got) = ("equal numbers of environments per actor", "different numbers");
            return Err(Error::config("envs", expected, got, "divide them evenly"));
        }
        let (spec, masks) = (envs[0].spec().clone(), envs[0].has_action_masks());
        if let Some(other) = envs.iter().find(|env| *env.spec() != spec || env.has_action_masks() != masks) {
            let describe = |spec: &EnvSpec, masks: bool| {
                let (observation, action) = (spec.observation.to_json(), spec.action.to_json());
                let limit = spec.max_episode_steps.map_or("no limit".to_owned(), |limit| format!("a limit of {limit}"));
                let masks = if masks { "with" } else { "without" };
                format!("{} with {observation}, {action}, {limit}, {masks} action masks", spec.id)
            };
            let (expected, got) = (describe(&spec, masks), describe(other.spec(), other.has_action_masks()));
            return Err(Error::config("envs", expected, got, "use identical environments for all actors"));
        }
        let (count, mut envs) = (envs.len(), envs.into_iter());
        let policy = |rng: &mut Pcg64| make(&spec, rng);
        Self::with_actors((&spec, largest, masks), count, policy, config, staleness_policy, seed, |make, plan| {
            let Some(env) = envs.next() else { return Err(Error::Interrupted) };
            // The learner's weights replace the initial weights of this policy.
            let policy = make(&mut Pcg64::seed_from(0))?;
            Ok(Box::new(PolicyActor::new(env, policy, plan)?))
        })
    }

    /// Creates a learner and `num_actors` actors of any kind, which `actor` creates.
    ///
    /// `envs` describes the environments of each actor: the spec, the number of environments, and
    /// `true` if they have action masks.
    ///
    /// # Errors
    /// Errors of [`AsyncOnPolicy::new`] and of `actor`.
    pub fn with_actors<M: FnMut(&mut Pcg64) -> Result<P>>(
        envs: (&EnvSpec, usize, bool),
        num_actors: usize,
        mut make: M,
        config: A,
        staleness_policy: StalenessPolicy,
        seed: u64,
        mut actor: impl FnMut(&mut M, &ActorPlan) -> Result<Box<dyn Collect<NamedTensors, Rollout>>>,
    ) -> Result<Self> {
        let (spec, num_envs, masks) = envs;
        staleness_policy.check(num_actors)?;
        config.check_for(num_envs)?;
        let mut streams = Streams::new(seed);
        let policy = make(&mut streams.policy)?;
        let (n_steps, normalize, collect_config) = config.collect_config();
        if normalize.is_some_and(|options| options.obs || options.reward) {
            let fix = "remove `normalize`, or use OnPolicy";
            return Err(Error::config("normalize", "no normalisation with actors", "normalisation", fix));
        }
        let dim = spec.observation.dim();
        // Bytes per step: the observation, at most 8 bytes per action component, and fields of
        // fixed size.
        let row = dim.saturating_mul(4).saturating_add(spec.action.dim().saturating_mul(8)).saturating_add(30);
        let bytes = row as u128 * n_steps as u128 * num_envs as u128 * (staleness_policy.max_staleness as u128 + 1);
        check_available("max_staleness", bytes, || {
            format!("{}, with rollouts of {n_steps} steps", staleness_policy.max_staleness)
        })?;
        let mut buffers = Vec::new();
        for _ in 0..=staleness_policy.max_staleness {
            buffers.push(Rollout::from_buffer(RolloutBuffer::for_spec(n_steps, num_envs, spec, masks)?));
        }
        let (mut reset, mut actors) = (streams.reset(), Vec::new());
        for number in 0..num_actors {
            actors.push(actor(&mut make, &ActorPlan { number, reset, n_steps, config: collect_config })?);
            reset += num_envs as u64;
        }
        let buffer = || buffers.pop().ok_or(Error::Interrupted);
        let collector =
            AsyncCollector::new(actors, staleness_policy, policy.tensors(), streams.iterations.clone(), buffer)?;
        Ok(Self {
            policy,
            config,
            collector,
            minibatches: Minibatches::new(Encoding::Numbers(dim)),
            envs: (spec.clone(), num_envs, masks),
            num_actors,
            staleness_policy,
            seed,
            streams,
            iteration: IterationStreams::new(0, 0)?,
            episodes: Episodes::new(0, VecDeque::new()),
            timesteps: 0,
            updates: 0,
            staleness: 0,
            run: Run::default(),
            interrupt: InterruptCheck::default(),
        })
    }

    /// Returns the policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns the number of environment steps so far from which the policy has learned.
    pub fn timesteps(&self) -> u64 {
        self.timesteps
    }

    /// Returns the number of updates by which the last rollout's policy was older than the
    /// learner's.
    pub fn staleness(&self) -> u64 {
        self.staleness
    }

    /// Returns counters and wait times of actors and learner.
    ///
    /// # Errors
    /// Errors of [`AsyncCollector::stats`].
    pub fn stats(&self) -> Result<PipelineStats> {
        self.collector.stats()
    }

    /// Returns the episode returns of the greedy policy in `env`; see [`evaluate_policy`].
    ///
    /// # Errors
    /// Errors of [`evaluate_policy`].
    pub fn evaluate(&mut self, env: &mut dyn VectorEnv, episodes: usize, seed: u64) -> Result<Vec<f64>> {
        evaluate_policy(&mut self.policy, env, episodes, seed, None)
    }

    /// Trains for at least `total_timesteps` more environment steps, counted over all environments.
    ///
    /// `progress` is called after each iteration and ends the run early by returning `false`.
    ///
    /// # Errors
    /// Errors of [`AsyncOnPolicy::iterate`].
    pub fn train(&mut self, total_timesteps: u64, progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        self.run = Run::new(self.timesteps, total_timesteps);
        self.resume(progress)
    }

    /// Continues an interrupted or loaded run and its schedules, to the end that
    /// [`AsyncOnPolicy::train`] set.
    ///
    /// # Errors
    /// [`Error::Config`] without an unfinished run; errors of [`AsyncOnPolicy::iterate`].
    pub fn resume(&mut self, mut progress: impl FnMut(&Metrics) -> bool) -> Result<Metrics> {
        loop {
            let metrics = self.iterate(self.run.progress(self.timesteps)?)?;
            if !progress(&metrics) || self.timesteps >= self.run.target {
                return Ok(metrics);
            }
        }
    }

    /// Waits for the next rollout and learns from it. Schedules use `progress`, which is in [0, 1].
    ///
    /// # Errors
    /// Errors of [`OnPolicy::iterate`](crate::train::OnPolicy::iterate). The first error of an
    /// actor, which also ends all other actors.
    pub fn iterate(&mut self, progress: f64) -> Result<Metrics> {
        check_share("progress", progress)?;
        let Self { policy, config, collector, minibatches, iteration, episodes, interrupt, .. } = self;
        interrupt.check()?;
        let timesteps = self.timesteps;
        let rollout = collector.recv().map_err(|error| error.at_timestep(timesteps))?;
        let Collected { ticket, staleness, buffer: Rollout { steps, returns, lengths, episodes: ended } } = rollout;
        iteration.renew(ticket.seed, 0)?;
        episodes.record(*ended, returns, lengths);
        let mut stopped = Ok(());
        let mut stop = || {
            stopped = interrupt.check();
            stopped.is_err()
        };
        let last_update = config
            .update(policy, steps, minibatches, &mut iteration.order, progress, &mut stop)
            .map_err(|error| error.at_timestep(timesteps))?;
        let transitions = steps.transitions() as u64;
        if last_update.updates > 0 {
            self.updates += last_update.updates;
            self.timesteps += transitions;
            self.staleness = staleness;
            collector.publish(policy.tensors())?;
        }
        stopped?;
        let Episodes { mean_return, mean_length, total, .. } = self.episodes;
        let (timesteps, updates) = (self.timesteps, self.updates);
        Ok(Metrics { timesteps, mean_return, mean_length, episodes: total, last_update, updates })
    }

    /// Ends the actors and returns the policy; see [`AsyncCollector::stop`].
    ///
    /// # Errors
    /// Errors of [`AsyncCollector::stop`].
    pub fn stop(self) -> Result<P> {
        self.collector.stop()?;
        Ok(self.policy)
    }
}

/// Actor with environments and its own copy of the policy.
struct PolicyActor<P> {
    env: Box<dyn VectorEnv>,
    policy: P,
    config: CollectConfig,
    streams: IterationStreams,
    version: Option<u64>,
    /// Base seed of the first reset; `None` after the reset.
    reset: Option<u64>,
    /// Number of episodes that the environments had finished when their log was last read.
    known: u64,
}

impl<P> PolicyActor<P> {
    fn new(mut env: Box<dyn VectorEnv>, policy: P, plan: &ActorPlan) -> Result<Self> {
        let streams = IterationStreams::new(0, env.num_envs())?;
        // Episodes in the log are from an earlier run.
        env.episodes().drain(&mut Vec::new(), &mut Vec::new());
        let known = env.episodes().total();
        Ok(Self { env, policy, config: plan.config, streams, version: None, reset: Some(plan.reset), known })
    }
}

impl<P: ActorCritic> Collect<NamedTensors, Rollout> for PolicyActor<P> {
    fn state(&mut self) -> Option<ActorParts<'_>> {
        let Self { env, reset, .. } = self;
        Some(ActorParts { env: env.as_mut(), reset })
    }

    fn invalidate_cache(&mut self) {
        self.version = None;
    }

    fn collect(&mut self, job: &mut RolloutJob<NamedTensors, Rollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Self { env, policy, config, streams, version, reset, known } = self;
        if *version != Some(job.ticket.version) {
            policy.load(&job.weights)?;
            *version = Some(job.ticket.version);
        }
        let rollout = &mut job.buffer;
        if let Some(seed) = reset.take() {
            rollout.steps.begin(env.as_mut(), Seeds::Base(seed), None)?;
        }
        streams.renew(job.ticket.seed, env.num_envs())?;
        let actions = &mut streams.actions;
        let result =
            collect_transitions(env.as_mut(), policy, actions, &mut rollout.steps, None, *config, &mut || stop());
        rollout.drain(env.as_mut(), known);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rlox_core::__private::testing::assert_rejects;
    use rlox_core::{AutoresetMode, VecEnv, envs::CartPole, pipeline::RolloutTicket};

    use super::*;
    use crate::train::{A2cConfig, Impala, ImpalaConfig, PpoConfig};
    use crate::{Activation, Mlp, PolicyNetworks};

    const SYNCHRONOUS: StalenessPolicy = StalenessPolicy { max_staleness: 0, deterministic: true };

    fn env() -> Box<dyn VectorEnv> {
        Box::new(VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default).unwrap())
    }

    fn make(spec: &EnvSpec, rng: &mut Pcg64) -> Result<PolicyNetworks<Mlp>> {
        PolicyNetworks::mlp(spec, &[16], Activation::Tanh, rng)
    }

    fn allocations(f: impl FnOnce()) -> u64 {
        allocation_counter::measure(f).count_total
    }

    #[test]
    fn actors_do_not_allocate_per_step() {
        let actor_allocations = |n_steps| {
            let config = CollectConfig::default();
            let (env, policy) = (env(), make(env().spec(), &mut Pcg64::seed_from(0)).unwrap());
            let weights = Arc::new(policy.tensors());
            let buffer = Rollout::from_buffer(RolloutBuffer::for_env(n_steps, env.as_ref()).unwrap());
            let mut actor = PolicyActor::new(env, policy, &ActorPlan { number: 0, reset: 3, n_steps, config }).unwrap();
            let ticket = RolloutTicket { slot: 0, number: 0, actor: 0, version: 0, seed: 0 };
            let mut job = RolloutJob { ticket, weights, buffer };
            // Each rollout uses a new version of the weights.
            let mut collect = |rollouts: std::ops::Range<u64>| {
                for number in rollouts {
                    (job.ticket.number, job.ticket.version, job.ticket.seed) = (number, number, number);
                    actor.collect(&mut job, &|| false).unwrap();
                }
            };
            collect(0..100);
            allocations(|| collect(100..150))
        };
        assert_eq!(actor_allocations(16), actor_allocations(64));
    }

    fn learner_allocations<A: Algorithm + Clone>(config: impl Fn(usize) -> A) -> [u64; 2] {
        [8, 32].map(|n_steps| {
            let mut trainer = AsyncOnPolicy::new(vec![env()], make, config(n_steps), SYNCHRONOUS, 1).unwrap();
            let mut iterate = || {
                for _ in 0..50 {
                    trainer.iterate(0.0).unwrap();
                }
            };
            iterate();
            allocations(iterate)
        })
    }

    #[test]
    fn learners_do_not_allocate_per_transition() {
        for [short, long] in [
            learner_allocations(|n_steps| ImpalaConfig { n_steps, ..ImpalaConfig::default() }),
            learner_allocations(|n_steps| A2cConfig { n_steps, ..A2cConfig::default() }),
            // Rollouts of both lengths have equally many minibatches.
            learner_allocations(|n_steps| PpoConfig {
                n_steps,
                batch_size: 2 * n_steps,
                n_epochs: 2,
                ..PpoConfig::default()
            }),
        ] {
            assert_eq!(short, long);
        }
    }

    #[test]
    fn new_rejects_environments_that_differ() {
        let other = |limit| {
            let options =
                rlox_core::envs::MakeOptions { num_envs: 4, max_episode_steps: Some(limit), ..Default::default() };
            rlox_core::envs::make("CartPole-v1", &options).unwrap()
        };
        let envs = vec![other(Some(500)), other(Some(9))];
        let result = Impala::new(envs, make, ImpalaConfig::default(), SYNCHRONOUS, 1);
        let rejected = assert_rejects(result, Error::Config, "envs");
        for (text, limit) in
            [(&rejected.expected, "a limit of 500"), (&rejected.got, "a limit of 9, without action masks")]
        {
            assert!(text.starts_with("CartPole-v1 with ") && text.contains(limit), "{rejected}");
        }
    }

    #[test]
    fn new_rejects_max_staleness_beyond_memory() {
        for max_staleness in [usize::MAX, 1 << 50, 1 << 36] {
            let staleness_policy = StalenessPolicy { max_staleness, deterministic: true };
            let result = Impala::new(vec![env()], make, ImpalaConfig::default(), staleness_policy, 1);
            assert_rejects(result, Error::Memory, "max_staleness");
        }
    }
}
