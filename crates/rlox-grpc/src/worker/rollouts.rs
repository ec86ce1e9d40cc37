//! Rollouts that a worker collects with a policy it was given.

use rlox_core::{EnvSpec, Error, Pcg64, Result, Rollout, RolloutBuffer, Seeds, VectorEnv};
use rlox_nn::train::{Collection, IterationStreams, collect_transitions};
use rlox_nn::{Activation, ActorCritic, Distribution, NamedTensors, PolicyNetworks};

use super::Limits;
use crate::v1;
use crate::wire::{self, Slab};

/// Hidden layers of a policy.
const MOST_LAYERS: usize = 64;

/// A policy, and the rollout that is filled.
pub(super) struct Rollouts {
    policy: Box<dyn ActorCritic>,
    how: Collection,
    rollout: Rollout,
    streams: IterationStreams,
    version: Option<u64>,
    known: u64,
}

impl Rollouts {
    pub(super) fn new(asked: &v1::Policy, env: &dyn VectorEnv, limits: &Limits) -> Result<Self> {
        let n_steps = asked.n_steps as usize;
        let dim = env.spec().observation.dim() + env.spec().action.dim();
        // Before there is memory for it.
        limits.check_message("n_steps", n_steps.saturating_mul(env.num_envs()).saturating_mul(dim * 4 + 29))?;
        let hidden = hidden(asked)?;
        // Networks whose weights no message could bring.
        limits.check_message("hidden", weight_bytes(env.spec(), &hidden, asked.shared_trunk))?;
        for (name, factor) in [("gamma", asked.gamma), ("gae_lambda", asked.gae_lambda)] {
            if !(0.0..=1.0).contains(&factor) {
                return Err(Error::config(name, "a number in [0, 1]", factor.to_string(), "correct it"));
            }
        }
        let steps = RolloutBuffer::for_env(n_steps, env)?;
        limits.check_message("n_steps", steps.whole_bytes(0))?;
        let how = Collection {
            gamma: asked.gamma,
            gae_lambda: asked.gae_lambda,
            sde_sample_freq: asked.sde_sample_freq as usize,
        };
        let streams = IterationStreams::new(0, env.num_envs())?;
        let policy = policy(env.spec(), &hidden, asked)?;
        Ok(Self { policy, how, rollout: Rollout::around(steps), streams, version: None, known: 0 })
    }

    /// Transitions of the last rollout.
    pub(super) fn steps(&self) -> u64 {
        self.rollout.steps.transitions() as u64
    }

    pub(super) fn collect(
        &mut self,
        env: &mut dyn VectorEnv,
        asked: &v1::Collect,
        stop: &dyn Fn() -> bool,
    ) -> Result<v1::Rollout> {
        let Self { policy, how, rollout, streams, version, known } = self;
        if !asked.weights.is_empty() {
            policy.load(&NamedTensors::from_safetensors(&asked.weights)?)?;
            *version = Some(asked.version);
        } else if *version != Some(asked.version) {
            let got = version.map_or_else(|| "none".into(), |version| format!("version {version}"));
            let expected = format!("weights of version {}", asked.version);
            return Err(Error::config("weights", expected, got, "send them with the request"));
        }
        if let Some(seed) = asked.reset {
            rollout.drain(env, known); // those are nobody's
            rollout.steps.begin(env, Seeds::Base(seed), None)?;
        }
        streams.renew(asked.seed, env.num_envs())?;
        let steps = &mut rollout.steps;
        collect_transitions(env, policy.as_mut(), &mut streams.actions, steps, None, *how, &mut || stop())?;
        rollout.drain(env, known);
        let mut slab = Vec::new();
        rollout.steps.write_whole(&mut slab)?;
        let mut episodes = Vec::with_capacity(rollout.returns.len() * 12);
        wire::put(&mut episodes, &rollout.returns);
        wire::put(&mut episodes, &rollout.lengths);
        Ok(v1::Rollout {
            version: asked.version,
            steps: slab.into(),
            episodes: episodes.into(),
            total_episodes: rollout.episodes,
            standing: None,
        })
    }
}

/// Bytes of the weights between a policy's observations and its last hidden layer, and of those of its values.
fn weight_bytes(spec: &EnvSpec, hidden: &[usize], shared: bool) -> usize {
    let (mut from, mut weights) = (spec.observation.dim(), 0_usize);
    for width in hidden {
        weights = weights.saturating_add(width.saturating_mul(from + 1));
        from = *width;
    }
    weights.saturating_mul(if shared { 4 } else { 8 })
}

/// The widths of the hidden layers.
fn hidden(asked: &v1::Policy) -> Result<Vec<usize>> {
    let layers = asked.hidden.len() / 4;
    if layers > MOST_LAYERS {
        let expected = format!("at most {MOST_LAYERS} layers");
        return Err(Error::config("hidden", expected, layers.to_string(), "use fewer layers"));
    }
    let mut slab = Slab::new("hidden", &asked.hidden);
    let widths: Vec<u32> = slab.vec(layers)?;
    slab.end()?;
    Ok(widths.into_iter().map(|width| width as usize).collect())
}

/// The built-in networks of a shape, whose weights are to be replaced.
fn policy(spec: &EnvSpec, hidden: &[usize], asked: &v1::Policy) -> Result<Box<dyn ActorCritic>> {
    let activation: Activation = asked.activation.parse()?;
    let distribution = if asked.use_sde {
        Distribution::state_dependent(&spec.action, hidden.last().copied().unwrap_or(0), 0.0)?
    } else {
        Distribution::new(&spec.action, 0.0)?
    };
    let rng = &mut Pcg64::seed_from(0);
    Ok(Box::new(if asked.shared_trunk {
        PolicyNetworks::shared_around(spec, hidden, activation, distribution, rng)?
    } else {
        PolicyNetworks::around(spec, hidden, activation, distribution, rng)?
    }))
}
