//! Actors whose rollouts are collected by workers.

use std::sync::Arc;

use bytes::Bytes;
use rlox_core::{
    EnvSpec, Error, Result, RolloutBuffer,
    pipeline::{Collect, Rollout, RolloutJob, RolloutTicket, StalenessPolicy},
};
use rlox_nn::train::{AsyncOnPolicy, CollectConfig, OnPolicyAlgorithm};
use rlox_nn::{ActorCritic, NamedTensors, PolicyArch};

use super::context::{ClientContext, FaultCounts, Faults};
use super::failover::Shard;
use super::options::{ClientOptions, EnvOptions};
use crate::codec::{self, Slab};
use crate::proto::{self, reply, request};

/// Configuration of rollouts that a worker collects.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteRolloutConfig {
    /// Number of steps of each environment per rollout.
    pub n_steps: usize,
    /// Collection settings.
    pub config: CollectConfig,
    /// Base seed of the environments' first reset.
    pub reset_seed: u64,
    /// Architecture of the policy.
    pub arch: PolicyArch,
}

/// Actor whose environments and policy are on a worker, for [`rlox_core::AsyncCollector`].
///
/// The same seeds give the same rollouts as actors in threads. If the worker is lost, another
/// worker repeats the rollout.
pub struct RemoteActor {
    shard: Shard,
    context: Arc<ClientContext>,
    spec: EnvSpec,
    reset_seed: Option<u64>,
    /// Version and bytes of the newest weights, which a replacement of a lost worker needs.
    sent_weights: (Option<u64>, Bytes),
}

impl std::fmt::Debug for RemoteActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteActor").field("id", &self.spec.id).finish_non_exhaustive()
    }
}

impl RemoteActor {
    /// Opens a session on the worker at `addresses[worker_index % addresses.len()]`.
    ///
    /// # Errors
    /// The errors of [`crate::RemoteVecEnv::new`]. [`Error::Config`] unless the networks are
    /// built-in networks with the same hidden layers for policy and value function, because workers
    /// can create only these.
    pub fn new<S: AsRef<str>>(
        addresses: &[S],
        worker_index: usize,
        env: &EnvOptions,
        config: &RemoteRolloutConfig,
        options: &ClientOptions,
    ) -> Result<Self> {
        let context = Arc::new(ClientContext::new(addresses, options)?);
        let policy = Some(config.policy()?);
        let shard = Shard::new(&context, worker_index, proto::Open { policy, ..env.open(0, env.num_envs)? }, 0)?;
        let spec = codec::spec_from(shard.opened().clone())?;
        Ok(Self { shard, context, spec, reset_seed: Some(config.reset_seed), sent_weights: (None, Bytes::new()) })
    }

    /// Returns the numbers of lost and restarted sessions so far.
    pub fn faults(&self) -> Faults {
        self.fault_counts().now()
    }

    /// Returns a handle from which the current numbers can be read later.
    pub fn fault_counts(&self) -> FaultCounts {
        self.context.fault_counts()
    }

    /// Returns the spec of the environments.
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// Returns true if the environments provide action masks.
    pub fn has_action_masks(&self) -> bool {
        self.shard.opened().mask > 0
    }

    /// Checks that the environments have the learner's spec, and action masks only if `masks` is
    /// true.
    ///
    /// # Errors
    /// [`Error::Space`] if they differ; the error names the worker.
    pub fn check_spec(&self, spec: &EnvSpec, masks: bool) -> Result<()> {
        let describe = |spec: &EnvSpec, masks: bool| {
            let EnvSpec { id, observation, action, max_episode_steps } = spec;
            let limit = max_episode_steps.map_or("no limit".into(), |steps| format!("at most {steps} steps"));
            let masks = if masks { "with" } else { "without" };
            format!("{id} of {observation:?} and {action:?}, {limit}, {masks} action masks")
        };
        let has_masks = self.has_action_masks();
        if (&self.spec, has_masks) == (spec, masks) {
            return Ok(());
        }
        let (expected, got) = (format!("the learner's, {}", describe(spec, masks)), describe(&self.spec, has_masks));
        let fix = "start all workers with the learner's version and environments";
        Err(Error::space("spaces", expected, got, fix).on_worker(self.shard.address()))
    }
}

impl RemoteRolloutConfig {
    fn policy(&self) -> Result<proto::Policy> {
        let PolicyArch { policy, value, activation, shared_trunk, use_sde } = &self.arch;
        let (true, Some(activation)) = (policy == value, activation) else {
            let got = format!("layers {policy:?} for the policy and {value:?} for values");
            let fix = "use the built-in network with one net_arch";
            return Err(Error::config("policy", "the same known layers for policy and values", got, fix));
        };
        let count = |name: &'static str, count: usize| {
            let mismatch = |_| Error::config(name, "less than 2**32", count.to_string(), "pass a smaller number");
            u32::try_from(count).map_err(mismatch)
        };
        let widths: Vec<_> = policy.iter().map(|width| count("net_arch", *width)).collect::<Result<_>>()?;
        let mut hidden = Vec::with_capacity(widths.len() * 4);
        codec::write_numbers(&mut hidden, &widths);
        Ok(proto::Policy {
            hidden: hidden.into(),
            activation: activation.name().into(),
            shared_trunk: *shared_trunk,
            use_sde: *use_sde,
            n_steps: count("n_steps", self.n_steps)?,
            gamma: self.config.gamma,
            gae_lambda: self.config.gae_lambda,
            sde_sample_freq: count("sde_sample_freq", self.config.sde_sample_freq)?,
        })
    }
}

impl RemoteActor {
    /// Collects the rollout of `ticket` on the worker, and copies the rollout into `buffer`.
    ///
    /// The worker's policy uses `weights`. The wait for the rollout ends if `stop` returns true.
    ///
    /// Returns the number of episodes that ended. The returns and lengths of the most recent
    /// episodes replace the content of `returns` and `lengths`.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `stop` or the interrupt check ended the wait.
    /// - [`Error::Backend`]: no worker has collected the rollout in time.
    /// - [`Error::Shape`]: the shapes of the buffer differ from those of the rollout.
    /// - Any error of the worker's environments or policy.
    pub fn collect_into(
        &mut self,
        ticket: RolloutTicket,
        weights: &NamedTensors,
        buffer: &mut RolloutBuffer,
        returns: &mut Vec<f64>,
        lengths: &mut Vec<u32>,
        stop: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let (seed, version, reset_seed) = (ticket.seed, ticket.version, self.reset_seed);
        if self.sent_weights.0 != Some(version) {
            self.sent_weights = (Some(version), weights.to_safetensors_without_checksum().into());
        }
        let collect = proto::Collect { seed, version, weights: self.sent_weights.1.clone(), reset: reset_seed };
        self.shard.send_request(request::What::Collect(collect), true);
        let reply = self.shard.receive_reply(stop);
        self.shard.drop_pending(); // after an interrupted wait
        let reply::What::Rollout(rollout) = reply? else {
            let fix = "install the same version of rlox on both sides";
            return Err(Error::config("reply", "a rollout", "another reply", fix));
        };
        if rollout.version != version {
            let (expected, got) =
                (format!("a rollout of version {version}"), format!("a rollout of version {}", rollout.version));
            return Err(Error::corrupt("rollout", expected, got, "install the same version of rlox on both sides"));
        }
        self.reset_seed = None;
        buffer.load_bytes(&rollout.steps)?;
        let count = rollout.episodes.len() / 12;
        let mut slab = Slab::new("episodes", &rollout.episodes);
        *returns = slab.vec(count)?;
        *lengths = slab.vec(count)?;
        slab.finish()?;
        Ok(rollout.total_episodes)
    }
}

impl Collect<NamedTensors, Rollout> for RemoteActor {
    fn invalidate_cache(&mut self) {
        self.sent_weights.0 = None;
        self.shard.invalidate_weights();
    }

    fn collect(&mut self, job: &mut RolloutJob<NamedTensors, Rollout>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Rollout { steps: buffer, returns, lengths, episodes } = &mut job.buffer;
        *episodes = self.collect_into(job.ticket, &job.weights, buffer, returns, lengths, stop)?;
        Ok(())
    }
}

/// Creates an asynchronous trainer whose actors are sessions on workers.
///
/// Actor i is a session on the worker at `addresses[i % addresses.len()]`, with `env.num_envs`
/// environments.
///
/// The other arguments are those of [`AsyncOnPolicy::new`]. With a deterministic
/// `staleness_policy`, the results equal those of that trainer.
///
/// # Errors
/// The errors of [`RemoteActor::new`] and of [`AsyncOnPolicy::with_actors`].
///
/// ```
/// use rlox_core::{Pcg64, pipeline::StalenessPolicy};
/// use rlox_grpc::{ClientOptions, EnvOptions, Worker, WorkerOptions, build_async_on_policy};
/// use rlox_nn::{Activation, PolicyNetworks, train::ImpalaConfig};
///
/// let worker = Worker::start(WorkerOptions::default())?;
/// let make = |spec: &_, rng: &mut Pcg64| PolicyNetworks::mlp(spec, &[16], Activation::Tanh, rng);
/// let (env, options) = (EnvOptions::new("CartPole-v1", 4, 0), ClientOptions::default());
/// let addresses = [worker.address()];
/// let (config, staleness) = (ImpalaConfig::default(), StalenessPolicy::default());
/// let mut impala = build_async_on_policy(&addresses, &env, 1, make, config, staleness, 1, &options)?;
/// impala.train(200, |_| true)?;
/// assert_eq!(impala.timesteps(), 200);
/// impala.stop()?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[expect(clippy::too_many_arguments, reason = "the arguments of AsyncOnPolicy::new, and the addresses")]
pub fn build_async_on_policy<S: AsRef<str>, A: OnPolicyAlgorithm, P: ActorCritic + 'static>(
    addresses: &[S],
    env: &EnvOptions,
    num_actors: usize,
    mut make: impl FnMut(&EnvSpec, &mut rlox_core::Pcg64) -> Result<P>,
    config: A,
    staleness_policy: StalenessPolicy,
    seed: u64,
    options: &ClientOptions,
) -> Result<AsyncOnPolicy<A, P>> {
    staleness_policy.check(num_actors)?;
    let context = Arc::new(ClientContext::new(addresses, options)?);
    let opened = Shard::new(&context, 0, env.open(0, env.num_envs)?, 0)?.opened().clone();
    let masks = opened.mask > 0;
    let spec = codec::spec_from(opened)?;
    let arch = make(&spec, &mut rlox_core::Pcg64::seed_from(0))?.arch().ok_or_else(|| {
        let (expected, got) = ("networks with a known architecture", "other networks");
        Error::config("policy", expected, got, "use the built-in network with one net_arch")
    })?;
    let policy = |rng: &mut rlox_core::Pcg64| make(&spec, rng);
    AsyncOnPolicy::with_actors(
        (&spec, env.num_envs, masks),
        num_actors,
        policy,
        config,
        staleness_policy,
        seed,
        |_, plan| {
            let (n_steps, collect_config, reset_seed) = (plan.n_steps, plan.config, plan.reset);
            let rollout_config =
                RemoteRolloutConfig { n_steps, config: collect_config, reset_seed, arch: arch.clone() };
            let actor = RemoteActor::new(addresses, plan.number, env, &rollout_config, options)?;
            actor.check_spec(&spec, masks)?;
            Ok(Box::new(actor))
        },
    )
}
