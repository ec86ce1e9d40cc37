//! What on-policy methods share: environments, a rollout, its random streams, and minibatches of it.

use std::collections::VecDeque;

use rlox_core::{
    Actions, EnvSpec, FieldData, Normalizer, NormalizerOptions, Pcg64, Policy, PolicyOut, Result, RolloutBuffer,
    SeedSequence, Seeds, VectorEnv, collect,
};

use super::Metrics;
use crate::{ActorCritic, Minibatch};

/// Episodes whose mean is reported.
const RECENT: usize = 100;

/// Environments, the rollout they fill, and the streams of the actions.
pub(super) struct Collector {
    pub(super) env: Box<dyn VectorEnv>,
    pub(super) buffer: RolloutBuffer,
    pub(super) normalizer: Option<Normalizer>,
    rngs: Vec<Pcg64>,
    /// Decides the order of steps.
    pub(super) order: Pcg64,
    /// The environments' first seed, until they have it.
    first_seed: Option<u64>,
    /// Steps until exploration noise is drawn anew; 0 for once a rollout.
    noise_every: usize,
    recent: VecDeque<(f64, u32)>,
    drained: (Vec<f64>, Vec<u32>),
    pub(super) timesteps: u64,
}

/// The random streams of a run, none of which shares anything with another.
pub(super) struct Streams {
    pub(super) policy: Pcg64,
    env: Pcg64,
    actions: SeedSequence,
    order: Pcg64,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        let mut root = SeedSequence::new(seed.into());
        let mut next = || root.spawn(1).remove(0);
        let [policy, env, actions, order] = [next(), next(), next(), next()];
        let stream = |sequence: &SeedSequence| Pcg64::from_seed_sequence(sequence);
        Self { policy: stream(&policy), env: stream(&env), actions, order: stream(&order) }
    }
}

impl Collector {
    pub(super) fn new(
        env: Box<dyn VectorEnv>,
        n_steps: usize,
        normalize: Option<NormalizerOptions>,
        noise_every: usize,
        mut streams: Streams,
    ) -> Result<Self> {
        let buffer = RolloutBuffer::for_env(n_steps, env.as_ref())?;
        let (num_envs, dim) = (env.num_envs(), env.spec().observation.dim());
        let normalizer = normalize.map(|options| Normalizer::new(num_envs, dim, options)).transpose()?;
        Ok(Self {
            env,
            buffer,
            normalizer,
            rngs: streams.actions.spawn(num_envs).iter().map(Pcg64::from_seed_sequence).collect(),
            order: streams.order,
            first_seed: Some(streams.env.integers(0, 1 << 31).cast_unsigned()),
            noise_every,
            recent: VecDeque::with_capacity(RECENT),
            drained: Default::default(),
            timesteps: 0,
        })
    }

    pub(super) fn spec(&self) -> &EnvSpec {
        self.env.spec()
    }

    /// Fills the rollout, with one transition at least, and estimates advantages.
    pub(super) fn collect(&mut self, policy: &mut dyn ActorCritic, gamma: f64, gae_lambda: f64) -> Result<()> {
        if let Some(seed) = self.first_seed {
            let mut obs = vec![0.0; self.env.num_envs() * self.spec().observation.dim()];
            self.env.reset(Seeds::Base(seed), None, &rlox_core::ResetOptions::default(), &mut obs)?;
            self.first_seed = None;
        }
        let mut exploring = Exploring { policy, every: self.noise_every, step: 0 };
        let (env, buffer) = (self.env.as_mut(), &mut self.buffer);
        loop {
            let normalizer = self.normalizer.as_mut();
            collect(env, &mut exploring, &mut self.rngs, buffer, normalizer, gamma, gae_lambda)?;
            // Again if all that happened was resets.
            if buffer.transitions() > 0 {
                break;
            }
        }
        self.timesteps += buffer.transitions() as u64;
        Ok(())
    }

    /// What is known of the episodes, and the number of steps.
    pub(super) fn metrics(&mut self) -> Metrics {
        let (returns, lengths) = &mut self.drained;
        let log = self.env.episodes();
        log.drain(returns, lengths);
        for episode in returns.drain(..).zip(lengths.drain(..)) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(episode);
        }
        let mean = |of: &dyn Fn(&(f64, u32)) -> f64| self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64;
        Metrics {
            timesteps: self.timesteps,
            mean_return: mean(&|episode| episode.0),
            mean_length: mean(&|episode| f64::from(episode.1)),
            episodes: self.env.episodes().total(),
            ..Metrics::default()
        }
    }
}

/// A policy whose exploration noise is drawn anew every few steps.
struct Exploring<'a> {
    policy: &'a mut dyn ActorCritic,
    every: usize,
    step: usize,
}

impl Policy for Exploring<'_> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        if self.step == 0 || (self.every > 0 && self.step.is_multiple_of(self.every)) {
            self.policy.draw_noise(rngs);
        }
        self.step += 1;
        self.policy.act(obs, masks, rngs, out)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        self.policy.value(obs, values)
    }
}

/// The rows of a rollout that are transitions, and those of a minibatch, side by side.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The numbers of the rows, in the order of this epoch.
    pub(super) index: Vec<usize>,
    obs: Vec<f32>,
    discrete: Vec<i64>,
    continuous: Vec<f32>,
    masks: Vec<bool>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    pub(super) advantages: Vec<f32>,
    returns: Vec<f32>,
}

/// A field of f32.
pub(super) fn numbers<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [f32] {
    match buffer.field(name).map(rlox_core::Field::data) {
        Some(FieldData::F32(numbers)) => numbers,
        _ => &[],
    }
}

impl Rows {
    /// All transitions in their own order.
    pub(super) fn all(&mut self, buffer: &RolloutBuffer) {
        self.index.clear();
        if let Some(FieldData::Bool(valid)) = buffer.field("valid").map(rlox_core::Field::data) {
            self.index.extend(valid.iter().enumerate().filter(|(_, valid)| **valid != 0).map(|(row, _)| row));
        }
    }

    /// A new random order (Fisher and Yates).
    pub(super) fn shuffle(&mut self, rng: &mut Pcg64) {
        for i in (1..self.index.len()).rev() {
            let j = rng.integers(0, i as i64 + 1) as usize;
            self.index.swap(i, j);
        }
    }

    /// Copies the rows `from..to` of this epoch.
    pub(super) fn gather(&mut self, buffer: &RolloutBuffer, from: usize, to: usize) {
        let index = &self.index[from..to];
        let width = buffer.field("obs").map_or(0, rlox_core::Field::width);
        take(index, numbers(buffer, "obs"), width, &mut self.obs);
        for (name, out) in [
            ("log_probs", &mut self.log_probs),
            ("values", &mut self.values),
            ("advantages", &mut self.advantages),
            ("returns", &mut self.returns),
        ] {
            take(index, numbers(buffer, name), 1, out);
        }
        if let Some(field) = buffer.field("actions") {
            match field.data() {
                FieldData::F32(actions) => take(index, actions, field.width(), &mut self.continuous),
                FieldData::I64(actions) => take(index, actions, field.width(), &mut self.discrete),
                _ => {}
            }
        }
        self.masks.clear();
        if let Some(field) = buffer.field("action_masks")
            && let FieldData::Bool(masks) = field.data()
        {
            let rows = index.iter().flat_map(|row| &masks[row * field.width()..][..field.width()]);
            self.masks.extend(rows.map(|flag| *flag != 0));
        }
    }

    /// What was gathered.
    pub(super) fn minibatch(&self) -> Minibatch<'_> {
        let discrete = self.continuous.is_empty();
        Minibatch {
            obs: &self.obs,
            actions: if discrete { Actions::Discrete(&self.discrete) } else { Actions::Continuous(&self.continuous) },
            masks: (!self.masks.is_empty()).then_some(&self.masks[..]),
            log_probs: &self.log_probs,
            values: &self.values,
            advantages: &self.advantages,
            returns: &self.returns,
        }
    }
}

fn take<T: Copy>(index: &[usize], from: &[T], width: usize, out: &mut Vec<T>) {
    out.clear();
    for row in index {
        out.extend_from_slice(&from[row * width..][..width]);
    }
}
