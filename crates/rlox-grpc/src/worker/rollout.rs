//! Rollouts that a worker collects with a learner's policy.

use rlox_core::{EnvSpec, Error, Pcg64, Result, RolloutBuffer, Seeds, Space, VectorEnv, pipeline::Rollout};
use rlox_nn::train::{CollectConfig, IterationStreams, collect_transitions};
use rlox_nn::{ActorCritic, NamedTensors, PolicyBuilder};

use tokio::sync::OwnedSemaphorePermit;

use super::budget::MemoryBudget;
use super::options::Limits;
use crate::codec::{self, Slab};
use crate::proto;

/// Maximum number of hidden layers of a policy.
const MOST_LAYERS: usize = 64;

/// Policy of a session, and the rollout that is collected with it.
pub(super) struct RolloutWorker {
    policy: Box<dyn ActorCritic>,
    config: CollectConfig,
    rollout: Rollout,
    streams: IterationStreams,
    version: Option<u64>,
    last_episode_count: u64,
    _memory_permit: OwnedSemaphorePermit,
}

impl RolloutWorker {
    pub(super) fn new(
        request: &proto::Policy,
        env: &dyn VectorEnv,
        limits: &Limits,
        memory_budget: &MemoryBudget,
    ) -> Result<Self> {
        let n_steps = request.n_steps as usize;
        let dim = env.spec().observation.dim() + env.spec().action.dim();
        // The size is checked before the memory is allocated.
        let rollout_bytes = n_steps.saturating_mul(env.num_envs()).saturating_mul(dim * 4 + 29);
        limits.check_message("n_steps", rollout_bytes)?;
        let hidden = parse_hidden(request)?;
        // Rejects networks whose weights do not fit into a message.
        limits.check_message("hidden", weight_bytes(env.spec(), &hidden, request.shared_trunk))?;
        for (name, factor) in [("gamma", request.gamma), ("gae_lambda", request.gae_lambda)] {
            if !(0.0..=1.0).contains(&factor) {
                return Err(Error::config(name, "a number in [0, 1]", factor.to_string(), "correct it"));
            }
        }
        let network_size = network_bytes(env.spec(), &hidden, request, env.num_envs());
        let memory_permit =
            memory_budget.acquire("n_steps, hidden", rollout_bytes.saturating_mul(2).saturating_add(network_size))?;
        let buffer = RolloutBuffer::for_env(n_steps, env)?;
        limits.check_message("n_steps", buffer.encoded_len(0))?;
        let config = CollectConfig {
            gamma: request.gamma,
            gae_lambda: request.gae_lambda,
            sde_sample_freq: request.sde_sample_freq as usize,
        };
        let streams = IterationStreams::new(0, env.num_envs())?;
        let policy = make_policy(env.spec(), &hidden, request)?;
        Ok(Self {
            policy,
            config,
            rollout: Rollout::from_buffer(buffer),
            streams,
            version: None,
            last_episode_count: 0,
            _memory_permit: memory_permit,
        })
    }

    /// Returns the number of bytes of an encoded rollout without final observations.
    pub(super) fn bytes(&self) -> usize {
        self.rollout.steps.encoded_len(0)
    }

    /// Returns the number of transitions of the last rollout.
    pub(super) fn steps(&self) -> u64 {
        self.rollout.steps.transitions() as u64
    }

    pub(super) fn collect(
        &mut self,
        env: &mut dyn VectorEnv,
        request: &proto::Collect,
        limits: &Limits,
        stop: &dyn Fn() -> bool,
    ) -> Result<proto::Rollout> {
        let Self { policy, config, rollout, streams, version, last_episode_count, .. } = self;
        if !request.weights.is_empty() {
            policy.load(&NamedTensors::from_safetensors(&request.weights)?)?;
            *version = Some(request.version);
        } else if *version != Some(request.version) {
            let got = version.map_or_else(|| "no weights".into(), |version| format!("version {version}"));
            let expected = format!("weights of version {}", request.version);
            return Err(Error::config("weights", expected, got, "send the weights with the request"));
        }
        if let Some(seed) = request.reset {
            rollout.drain(env, last_episode_count); // discards episodes of the earlier run
            rollout.steps.begin(env, Seeds::Base(seed), None)?;
        }
        streams.renew(request.seed, env.num_envs())?;
        let buffer = &mut rollout.steps;
        collect_transitions(env, policy.as_mut(), &mut streams.actions, buffer, None, *config, &mut || stop())?;
        rollout.drain(env, last_episode_count);
        // The size is checked before the memory is allocated.
        limits.check_message("max_message_bytes", rollout.steps.encoded_len(rollout.steps.final_index().len()))?;
        let mut slab = Vec::new();
        rollout.steps.to_bytes(&mut slab)?;
        let mut episodes = Vec::with_capacity(rollout.returns.len() * 12);
        codec::write_numbers(&mut episodes, &rollout.returns);
        codec::write_numbers(&mut episodes, &rollout.lengths);
        Ok(proto::Rollout {
            version: request.version,
            steps: slab.into(),
            episodes: episodes.into(),
            total_episodes: rollout.episodes,
            env_state: None,
        })
    }
}

/// Returns the number of bytes of the weights and biases of all hidden layers of policy and value
/// function.
fn weight_bytes(spec: &EnvSpec, hidden: &[usize], is_shared_trunk: bool) -> usize {
    let (mut num_inputs, mut weights) = (spec.observation.dim(), 0_usize);
    for width in hidden {
        weights = weights.saturating_add(width.saturating_mul(num_inputs + 1));
        num_inputs = *width;
    }
    weights.saturating_mul(if is_shared_trunk { 4 } else { 8 })
}

/// Returns the number of bytes of memory that the networks need for `num_envs` environments.
///
/// The sum includes the parameters, their gradients, the optimiser's two running means, transposed
/// weights, the outputs of layers, and the noise of gSDE.
fn network_bytes(spec: &EnvSpec, hidden: &[usize], request: &proto::Policy, num_envs: usize) -> usize {
    let padded = |width: usize| width.saturating_add(15) / 16 * 64;
    let outputs = match &spec.action {
        Space::Discrete { n, .. } => *n as usize,
        Space::MultiDiscrete { nvec } => nvec.iter().map(|n| *n as usize).sum(),
        Space::MultiBinary { .. } | Space::Box { .. } => spec.action.dim(),
    };
    let mut widths = vec![spec.observation.dim()];
    widths.extend(hidden);
    widths.push(outputs + 1);
    let pairs = widths.windows(2).map(|pair| {
        let (rows, columns) = (pair[0].saturating_mul(padded(pair[1])), pair[1].saturating_mul(padded(pair[0])));
        rows.max(columns).saturating_mul(5).saturating_add(num_envs.saturating_mul(2 * padded(pair[1])))
    });
    let single = pairs.fold(0, usize::saturating_add);
    let noise = if request.use_sde { hidden.last().copied().unwrap_or(0).saturating_mul(outputs) } else { 0 };
    let noise = noise.saturating_mul(4).saturating_mul(num_envs.saturating_add(4));
    single.saturating_mul(if request.shared_trunk { 1 } else { 2 }).saturating_add(noise)
}

/// Returns the widths of the hidden layers.
fn parse_hidden(request: &proto::Policy) -> Result<Vec<usize>> {
    let layers = request.hidden.len() / 4;
    if layers > MOST_LAYERS {
        let expected = format!("at most {MOST_LAYERS} layers");
        return Err(Error::config("hidden", expected, layers.to_string(), "use fewer layers"));
    }
    let mut slab = Slab::new("hidden", &request.hidden);
    let widths: Vec<u32> = slab.vec(layers)?;
    slab.finish()?;
    Ok(widths.into_iter().map(|width| width as usize).collect())
}

/// Returns built-in networks of the requested architecture. Their weights are replaced later.
fn make_policy(spec: &EnvSpec, hidden: &[usize], request: &proto::Policy) -> Result<Box<dyn ActorCritic>> {
    let policy = PolicyBuilder::new(spec)
        .net_arch(hidden)
        .activation(request.activation.parse()?)
        .shared_trunk(request.shared_trunk)
        .use_sde(request.use_sde)
        .build(&mut Pcg64::seed_from(0))?;
    Ok(Box::new(policy))
}
