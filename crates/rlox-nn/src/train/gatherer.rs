//! Environments that off-policy methods act in, step by step, and the replay buffer that takes what happens.

use rlox_core::replay::Uniform;
use rlox_core::{
    Actions, ActionsMut, Normalizer, NormalizerOptions, Pcg64, Policy, PolicyOut, RandomPolicy, ResetOptions, Result,
    Seeds, Space, StepOut, VectorEnv, masked_actions,
};

use super::IterationStreams;
use super::collector::Run;
use super::episodes::Episodes;
use super::experience::{Experience, Gathering, Stepped};
use super::off_policy::Algorithm;
use super::streams::Streams;
use crate::ActionScaling;
use crate::room::resize;

/// The actions of a step.
#[derive(Debug)]
struct Chosen {
    /// Counted from 0, `[N]`; empty for a Box.
    discrete: Vec<i64>,
    /// Between -1 and 1, `[N, a]`; empty for integers.
    continuous: Vec<f32>,
    /// The same as environments take them.
    sent: (Vec<i64>, Vec<f32>),
    /// Of a Box.
    scaling: Option<ActionScaling>,
    space: Space,
}

impl Chosen {
    fn new(space: &Space, num_envs: usize) -> Result<Self> {
        let scaling = matches!(space, Space::Box { .. }).then(|| ActionScaling::new(space)).transpose()?;
        let (mut discrete, mut continuous) = (Vec::new(), Vec::new());
        let numbers = num_envs.saturating_mul(space.dim());
        if scaling.is_some() {
            resize("num_envs", &mut continuous, numbers, 0.0)?;
        } else {
            resize("num_envs", &mut discrete, numbers, 0)?;
        }
        let sent = (discrete.clone(), continuous.clone());
        Ok(Self { discrete, continuous, sent, scaling, space: space.clone() })
    }

    fn all_mut(&mut self) -> ActionsMut<'_> {
        if self.scaling.is_some() {
            ActionsMut::Continuous(&mut self.continuous)
        } else {
            ActionsMut::Discrete(&mut self.discrete)
        }
    }

    fn all(&self) -> Actions<'_> {
        if self.scaling.is_some() { Actions::Continuous(&self.continuous) } else { Actions::Discrete(&self.discrete) }
    }

    /// As environments take them.
    fn send(&mut self) -> Result<Actions<'_>> {
        let (discrete, continuous) = &mut self.sent;
        let actions = if let Some(scaling) = &self.scaling {
            continuous.copy_from_slice(&self.continuous);
            scaling.scale(continuous)?;
            ActionsMut::Continuous(continuous)
        } else {
            discrete.copy_from_slice(&self.discrete);
            ActionsMut::Discrete(discrete)
        };
        Ok(actions.sent(&self.space))
    }
}

/// Environments, what they have come to, and what is counted.
pub(super) struct Gatherer {
    pub(super) env: Box<dyn VectorEnv>,
    pub(super) experience: Experience<Uniform>,
    pub(super) normalizer: Option<Normalizer>,
    streams: Streams,
    /// One for each environment's actions.
    pub(super) actions: Vec<Pcg64>,
    /// For the choice of minibatches.
    pub(super) order: Pcg64,
    /// For what is drawn while learning.
    pub(super) learning: Pcg64,
    how: Gathering,
    random: RandomPolicy,
    started: bool,
    chosen: Chosen,
    /// What is acted on next, `[N, d]`.
    obs: Vec<f32>,
    /// The same, normalised.
    seen: Vec<f32>,
    /// What the step led to, before any reset, `[N, d]`.
    next_obs: Vec<f32>,
    /// After a reset where an episode ended, `[N, d]`.
    after: Vec<f32>,
    rewards: Vec<f64>,
    stored_rewards: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    /// What is allowed, `[N, n]`; empty where nothing is ever forbidden.
    masks: Vec<bool>,
    next_masks: Vec<bool>,
    /// Log-probabilities and values that nobody asks for.
    unused: [Vec<f32>; 2],
    pub(super) episodes: Episodes,
    pub(super) timesteps: u64,
    pub(super) run: Run,
}

impl Gatherer {
    pub(super) fn new(env: Box<dyn VectorEnv>, how: Gathering, mut streams: Streams) -> Result<Self> {
        let (n, spec) = (env.num_envs(), env.spec());
        let numbers = n.saturating_mul(spec.observation.dim());
        let masked = env.has_action_masks();
        let flags = if masked { n.saturating_mul(masked_actions(&spec.action)) } else { 0 };
        let chosen = Chosen::new(&spec.action, n)?;
        // Random actions of a Box are drawn between -1 and 1, as policies give them.
        let random = match spec.action {
            Space::Box { .. } => RandomPolicy::new(&Space::uniform_box(-1.0, 1.0, &[spec.action.dim()]))?,
            _ => RandomPolicy::new(&spec.action)?,
        };
        let options = how.normalize.map(|options| NormalizerOptions { gamma: how.gamma, ..options });
        let normalizer = options.map(|options| Normalizer::new(n, spec.observation.dim(), options)).transpose()?;
        let experience = Experience::new(&how, spec, n, masked)?;
        let IterationStreams { actions, order, .. } = IterationStreams::new(streams.iteration(), n)?;
        let learning = IterationStreams::new(streams.iteration(), 0)?.order;
        Ok(Self {
            experience,
            normalizer,
            streams,
            actions,
            order,
            learning,
            how,
            random,
            started: false,
            chosen,
            obs: vec![0.0; numbers],
            seen: vec![0.0; numbers],
            next_obs: vec![0.0; numbers],
            after: vec![0.0; numbers],
            rewards: vec![0.0; n],
            stored_rewards: vec![0.0; n],
            terminated: vec![false; n],
            truncated: vec![false; n],
            masks: vec![true; flags],
            next_masks: vec![true; flags],
            unused: [vec![0.0; n], vec![0.0; n]],
            episodes: Episodes::new(),
            timesteps: 0,
            run: Run::default(),
            env,
        })
    }

    /// The share of the run that is done, 1 beyond its end.
    pub(super) fn progress(&self) -> f64 {
        let Run { start, target } = self.run;
        (self.timesteps.saturating_sub(start) as f64 / target.saturating_sub(start).max(1) as f64).min(1.0)
    }

    /// Starts episodes everywhere, if that was not done.
    pub(super) fn start<A: Algorithm>(&mut self, algorithm: &mut A) -> Result<()> {
        if self.started {
            return Ok(());
        }
        self.episodes.forget(self.env.as_mut());
        let seed = Seeds::Base(self.streams.reset());
        self.env.reset(seed, None, &ResetOptions::default(), &mut self.obs)?;
        if !self.masks.is_empty() {
            self.env.action_masks(&mut self.masks)?;
        }
        if let Some(normalizer) = &mut self.normalizer {
            normalizer.forget_returns();
            normalizer.update_obs(&self.obs)?;
        }
        algorithm.end_episodes(&|_| true);
        self.started = true;
        Ok(())
    }

    /// One step of each environment. What fails in the middle of it ends all episodes.
    pub(super) fn step<A: Algorithm>(&mut self, algorithm: &mut A) -> Result<()> {
        self.choose(algorithm)?;
        self.started = false;
        self.advance()?;
        self.store()?;
        self.started = true;
        let Self { terminated, truncated, .. } = self;
        if terminated.iter().chain(&*truncated).any(|ended| *ended) {
            self.episodes.update(self.env.as_mut());
            algorithm.end_episodes(&|env| terminated[env] || truncated[env]);
        }
        self.timesteps += self.env.num_envs() as u64;
        algorithm.stepped()
    }

    /// Chooses actions: in the beginning any, then those of the policy.
    fn choose<A: Algorithm>(&mut self, algorithm: &mut A) -> Result<()> {
        let progress = self.progress();
        let masks = (!self.masks.is_empty()).then_some(&self.masks[..]);
        if self.timesteps < self.how.learning_starts && !algorithm.explores_at_warmup() {
            let [log_probs, values] = &mut self.unused;
            let out = PolicyOut { actions: self.chosen.all_mut(), log_probs, values };
            return self.random.act(&self.obs, masks, &mut self.actions, out);
        }
        let seen = if let Some(normalizer) = self.normalizer.as_ref().filter(|normalizer| normalizer.options().obs) {
            self.seen.copy_from_slice(&self.obs);
            normalizer.normalize_obs(&mut self.seen)?;
            &self.seen
        } else {
            &self.obs
        };
        algorithm.explore(seen, masks, &mut self.actions, progress, self.chosen.all_mut())
    }

    /// Steps the environments; finds out what the step led to.
    fn advance(&mut self) -> Result<()> {
        let out = StepOut {
            obs: &mut self.after,
            reward: &mut self.rewards,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            final_obs: &mut self.next_obs,
        };
        self.env.step(self.chosen.send()?, out)?;
        let dim = self.after.len() / self.rewards.len();
        for (env, after) in self.after.chunks_exact(dim).enumerate() {
            if !(self.terminated[env] || self.truncated[env]) {
                self.next_obs[env * dim..][..dim].copy_from_slice(after);
            }
        }
        self.stored_rewards.iter_mut().zip(&self.rewards).for_each(|(stored, reward)| *stored = *reward as f32);
        self.find_masks()
    }

    /// Finds out what is allowed now, and in the states that the step led to.
    fn find_masks(&mut self) -> Result<()> {
        let Self { env, masks, next_masks, terminated, truncated, .. } = self;
        if masks.is_empty() {
            return Ok(());
        }
        env.action_masks(masks)?;
        next_masks.copy_from_slice(masks);
        let width = masks.len() / terminated.len();
        for (env, next) in next_masks.chunks_exact_mut(width).enumerate() {
            // These masks are the new episode's. Those of the old one's last state are not known.
            if terminated[env] || truncated[env] {
                next.fill(true);
            }
        }
        Ok(())
    }

    /// Stores the step and goes on from where it led.
    fn store(&mut self) -> Result<()> {
        let stepped = Stepped {
            obs: &self.obs,
            actions: self.chosen.all(),
            rewards: &self.stored_rewards,
            terminated: &self.terminated,
            truncated: &self.truncated,
            next_obs: &self.next_obs,
            next_masks: &self.next_masks,
        };
        self.experience.push(&stepped)?;
        if let Some(normalizer) = &mut self.normalizer {
            normalizer.update_obs(&self.after)?;
            normalizer.step_rewards(&mut self.rewards, &self.terminated, &self.truncated)?;
        }
        std::mem::swap(&mut self.obs, &mut self.after);
        Ok(())
    }
}
