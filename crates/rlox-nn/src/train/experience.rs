//! Replay as off-policy methods use it: raw transitions in, normalised minibatches out.

use rlox_core::replay::{Layout, NStep, Part, Replay, ReplayStorage, SampledBatch, Sampler, Steps, Uniform};
use rlox_core::{
    Actions, DType, EnvSpec, Error, FieldData, Normalizer, NormalizerOptions, Pcg64, Result, Space, masked_actions,
};

use super::{check_counts, check_share};
use crate::Discount;
use crate::room::resize;

/// The name of the field with the masks of the next states.
const NEXT_MASKS: &str = "next_masks";

/// How off-policy methods collect transitions and sample them: what their settings have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gathering {
    /// Transitions that are kept.
    pub buffer_size: usize,
    /// Environment steps with random actions, before anything is learned.
    pub learning_starts: u64,
    /// Transitions in a minibatch.
    pub batch_size: usize,
    /// Steps of each environment between updates.
    pub train_freq: usize,
    /// Minibatches an update learns from; `None` for as many as transitions were collected.
    pub gradient_steps: Option<usize>,
    /// Steps that a transition spans.
    pub n_steps: usize,
    /// Discount.
    pub gamma: f64,
    /// Normalisation of observations and rewards; `None` for neither.
    pub normalize: Option<NormalizerOptions>,
}

impl Gathering {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] naming the one that is out of range.
    pub fn check(&self) -> Result<()> {
        check_counts(&[
            ("buffer_size", self.buffer_size),
            ("batch_size", self.batch_size),
            ("train_freq", self.train_freq),
            ("gradient_steps", self.gradient_steps.unwrap_or(1)),
            ("n_steps", self.n_steps),
        ])?;
        check_share("gamma", self.gamma)?;
        // Which refuses options that are out of range.
        self.normalize.map_or(Ok(()), |options| Normalizer::new(1, 1, options).map(|_| ()))
    }
}

/// A minibatch of B transitions from replay, normalised. All but the observations, actions and masks are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct Replayed<'a> {
    /// `[B, d]`.
    pub obs: &'a [f32],
    /// Integers counted from 0, `[B]`, or numbers between -1 and 1, `[B, a]`.
    pub actions: Actions<'a>,
    /// What they were paid; over several steps the discounted sum.
    pub rewards: &'a [f32],
    /// `[B, d]`: where an episode ended its last.
    pub next_obs: &'a [f32],
    /// Where nothing comes after; never where the time was over.
    pub terminated: &'a [bool],
    /// What the next values count.
    pub discount: Discount<'a>,
    /// Importance weights; `None` where every transition was as likely as another.
    pub weights: Option<&'a [f32]>,
    /// Which actions are allowed in the next states, `[B, n]`.
    pub next_masks: Option<&'a [bool]>,
}

/// One step of all environments, as it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stepped<'a> {
    pub(super) obs: &'a [f32],
    pub(super) actions: Actions<'a>,
    pub(super) rewards: &'a [f32],
    pub(super) terminated: &'a [bool],
    pub(super) truncated: &'a [bool],
    pub(super) next_obs: &'a [f32],
    /// What is allowed in the next states; empty where nothing is ever forbidden.
    pub(super) next_masks: &'a [bool],
}

/// A replay buffer and the memory of a minibatch.
#[derive(Debug)]
pub(super) struct Experience<S> {
    replay: Replay<S>,
    batch: SampledBatch,
    batch_size: usize,
    gamma: f32,
    n_steps: usize,
    masked: bool,
    discrete: bool,
    /// Normalised.
    obs: Vec<f32>,
    next_obs: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
    next_masks: Vec<bool>,
}

impl Experience<Uniform> {
    /// Room for the transitions of `num_envs` environments, with masks or without.
    pub(super) fn new(how: &Gathering, spec: &EnvSpec, num_envs: usize, masked: bool) -> Result<Self> {
        let obs = Part::new("obs", &[spec.observation.dim()], DType::F32);
        let discrete = !matches!(spec.action, Space::Box { .. });
        let action = if discrete {
            Part::new("actions", &spec.action.shape(), DType::I64)
        } else {
            Part::new("actions", &[spec.action.dim()], DType::F32)
        };
        let mut layout = Layout::new(obs, action);
        if masked {
            layout.extra.push(Part::new(NEXT_MASKS, &[masked_actions(&spec.action)], DType::Bool));
        }
        let storage = ReplayStorage::new(how.buffer_size, num_envs, layout)
            .map_err(|error| error.renamed("capacity", "buffer_size"))?;
        let mut replay = Replay::with(storage, Uniform)?;
        if how.n_steps > 1 {
            replay = replay.with_n_step(NStep { n: how.n_steps, gamma: how.gamma })?;
        }
        Ok(Self {
            replay,
            batch: SampledBatch::default(),
            batch_size: how.batch_size,
            gamma: how.gamma as f32,
            n_steps: how.n_steps,
            masked,
            discrete,
            obs: Vec::new(),
            next_obs: Vec::new(),
            rewards: Vec::new(),
            terminated: Vec::new(),
            next_masks: Vec::new(),
        })
    }
}

impl<S: Sampler> Experience<S> {
    /// What holds the transitions.
    pub(super) fn storage(&self) -> &ReplayStorage {
        self.replay.storage()
    }

    /// Stores a step of all environments.
    pub(super) fn push(&mut self, step: &Stepped<'_>) -> Result<()> {
        let masks = [FieldData::from(step.next_masks)];
        self.replay.push_batch(&Steps {
            obs: &[FieldData::F32(step.obs)],
            actions: match step.actions {
                Actions::Discrete(actions) => FieldData::I64(actions),
                Actions::Continuous(actions) => FieldData::F32(actions),
            },
            rewards: step.rewards,
            terminated: step.terminated,
            truncated: step.truncated,
            next_obs: Some(&[FieldData::F32(step.next_obs)]),
            extra: if self.masked { &masks } else { &[] },
        })
    }

    /// Samples a minibatch, or as many transitions as there are while those are fewer, normalised by the statistics of now.
    pub(super) fn sample(&mut self, normalizer: Option<&Normalizer>, rng: &mut Pcg64) -> Result<Replayed<'_>> {
        let held = self.replay.storage().indices().len();
        let Self { replay, batch, obs, next_obs, rewards, .. } = self;
        replay.sample_with(batch, self.batch_size.min(held), rng)?;
        flags(batch, "terminated", &mut self.terminated)?;
        if self.masked {
            flags(batch, NEXT_MASKS, &mut self.next_masks)?;
        }
        if let Some(normalizer) = normalizer {
            for (name, numbers) in [("obs", &mut *obs), ("next_obs", &mut *next_obs), ("rewards", &mut *rewards)] {
                let raw = batch.f32s(name);
                resize(numbers, raw.len(), 0.0)?;
                numbers.copy_from_slice(raw);
            }
            normalizer.normalize_obs(obs)?;
            normalizer.normalize_obs(next_obs)?;
            normalize_rewards(normalizer, rewards);
        }
        let this = &*self;
        let seen = |numbers, name| if normalizer.is_some() { numbers } else { this.batch.f32s(name) };
        Ok(Replayed {
            obs: seen(&this.obs[..], "obs"),
            actions: if this.discrete {
                Actions::Discrete(this.batch.i64s("actions"))
            } else {
                Actions::Continuous(this.batch.f32s("actions"))
            },
            rewards: seen(&this.rewards[..], "rewards"),
            next_obs: seen(&this.next_obs[..], "next_obs"),
            terminated: &this.terminated,
            discount: if this.n_steps > 1 {
                Discount::Each(this.batch.discounts())
            } else {
                Discount::Same(this.gamma)
            },
            weights: None,
            next_masks: this.masked.then_some(&this.next_masks[..]),
        })
    }
}

/// Rewards by the deviation of the running discounted return, clipped. Sums over several steps are clipped as one.
fn normalize_rewards(normalizer: &Normalizer, rewards: &mut [f32]) {
    let options = normalizer.options();
    if !options.reward {
        return;
    }
    let deviation = (normalizer.reward().var()[0] + options.epsilon).sqrt();
    let clip = options.clip_reward;
    rewards.iter_mut().for_each(|x| *x = (f64::from(*x) / deviation).clamp(-clip, clip) as f32);
}

/// The flags of a field.
fn flags(batch: &SampledBatch, name: &'static str, out: &mut Vec<bool>) -> Result<()> {
    let Some(FieldData::Bool(bytes)) = batch.field(name).map(rlox_core::Field::data) else {
        return Err(Error::space(name, "a Bool field", "none", "make the replay buffer with one"));
    };
    resize(out, bytes.len(), false)?;
    out.iter_mut().zip(bytes).for_each(|(flag, byte)| *flag = *byte != 0);
    Ok(())
}
