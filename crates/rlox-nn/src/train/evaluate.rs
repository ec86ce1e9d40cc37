//! Greedy actions of all kinds of policies, evaluation, and actions for batches of observations.
//!
//! Shapes use `N` for the number of environments or observations, `d` for the number of values in
//! an observation, and `n` for the number of flags in an action mask.

use rlox_core::{
    ActionsMut, Error, Normalizer, Pcg64, PolicyOut, ResetOptions, Result, Seeds, Space, StepOut, VectorEnv,
    error::check_len, field::FieldData, interrupt::InterruptCheck, vector::masked_actions,
};

use super::algorithm::Algorithm;
use super::{Encoding, IterationStreams, OffPolicyAgent};
use crate::alloc::resize;
pub use crate::distribution::mask_width;
use crate::{ActionScaling, ActorCritic, DeterministicPolicy, QFunction, StochasticPolicy, validate};

/// Number of network inputs that are computed at a time. The limit bounds the memory use.
const CHUNK: usize = 1 << 14;

/// Greedy action selection, for every policy and Q-function of this crate on any backend.
///
/// The parameter `Kind` names the trait of the policy, such as `dyn QFunction`. Rust infers `Kind`
/// for types that implement only one of these traits.
///
/// ```
/// use rlox_core::{ActionsMut, AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, QNetworks, train::Greedy};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut q = QNetworks::mlp(env.spec(), &[8], Activation::Relu, &mut Pcg64::seed_from(0))?;
/// let mut actions = [9, 9];
/// q.act_greedy(&[0.1; 8], None, ActionsMut::Discrete(&mut actions))?;
/// assert!(actions[0] < 2 && actions[0] == actions[1]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub trait Greedy<Kind: ?Sized> {
    /// `true` if actions are in [-1, 1] and need [`crate::ActionScaling`] to reach the bounds of a Box.
    const SCALED: bool;

    /// Writes the greedy actions for observations, `[N, d]`, to `actions`.
    ///
    /// If there are masks, `[N, n]`, only actions whose flag is `true` are chosen.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices of wrong lengths. [`Error::Space`] for integer actions instead
    /// of continuous ones, or the reverse. Errors of the policy.
    fn act_greedy(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;
}

impl<P: ActorCritic + ?Sized> Greedy<dyn ActorCritic> for P {
    const SCALED: bool = false;

    fn act_greedy(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.act_deterministic(obs, masks, actions)
    }
}

impl<Q: QFunction + ?Sized> Greedy<dyn QFunction> for Q {
    const SCALED: bool = false;

    fn act_greedy(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        let ActionsMut::Discrete(actions) = actions else {
            return Err(Error::space("actions", "integers", "f32 numbers", "use SAC, TD3, PPO or A2C"));
        };
        // Epsilon is 0, so no random number is drawn.
        let mut rngs = Vec::new();
        resize("obs", &mut rngs, actions.len(), Pcg64::seed_from(0))?;
        self.act(obs, masks, 0.0, &mut rngs, actions)
    }
}

impl<P: StochasticPolicy + ?Sized> Greedy<dyn StochasticPolicy> for P {
    const SCALED: bool = true;

    fn act_greedy(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.act_deterministic(obs, as_continuous_mut(actions)?)
    }
}

impl<P: DeterministicPolicy + ?Sized> Greedy<dyn DeterministicPolicy> for P {
    const SCALED: bool = true;

    fn act_greedy(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.act(obs, as_continuous_mut(actions)?)
    }
}

/// Returns the returns of `episodes` episodes of the greedy policy, in the order in which they end.
///
/// Each environment plays `episodes / N` episodes, rounded up or down. If environments played as
/// many episodes as they can, short episodes would be overrepresented. The environments are reset
/// with `seed`. The statistics of `normalizer` are used, but not changed.
///
/// # Errors
/// [`Error::Config`] for 0 episodes or environments that are not in `SAME_STEP` mode. Errors of
/// [`ActionScaling::new`] if the policy's actions are scaled. Errors of the policy and the
/// environments. [`Error::Interrupted`] if the check of
/// [`rlox_core::interrupt::set_interrupt_check`] stops the evaluation between two steps.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, PolicyNetworks, train::evaluate_policy};
///
/// let mut env = VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// let returns = evaluate_policy(&mut policy, &mut env, 10, 0, None)?;
/// assert_eq!(returns.len(), 10);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn evaluate_policy<Kind: ?Sized, P: Greedy<Kind> + ?Sized>(
    policy: &mut P,
    env: &mut dyn VectorEnv,
    episodes: usize,
    seed: u64,
    normalizer: Option<&Normalizer>,
) -> Result<Vec<f64>> {
    let scaling = P::SCALED.then(|| ActionScaling::new(&env.spec().action)).transpose()?;
    let mut act = |obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>| match (&scaling, actions) {
        (Some(scaling), ActionsMut::Continuous(actions)) => {
            policy.act_greedy(obs, masks, ActionsMut::Continuous(actions))?;
            scaling.scale(actions)
        }
        (_, actions) => policy.act_greedy(obs, masks, actions),
    };
    play(&mut act, env, episodes, seed, normalizer)
}

/// Function that writes greedy actions for observations and optional masks.
type GreedyAct<'a> = dyn FnMut(&[f32], Option<&[bool]>, ActionsMut<'_>) -> Result<()> + 'a;

/// Plays the episodes of [`evaluate_policy`] with the actions that `act` writes.
fn play(
    act: &mut GreedyAct<'_>,
    env: &mut dyn VectorEnv,
    episodes: usize,
    seed: u64,
    normalizer: Option<&Normalizer>,
) -> Result<Vec<f64>> {
    if episodes == 0 {
        return Err(Error::config("episodes", "at least 1", "0", "pass a positive number"));
    }
    if env.autoreset_mode() != rlox_core::AutoresetMode::SameStep {
        let got = format!("{:?}", env.autoreset_mode());
        return Err(Error::config("env", "AutoresetMode::SameStep", got, "create the environments with this mode"));
    }
    let (n, d, a) = (env.num_envs(), env.spec().observation.dim(), env.spec().action.dim());
    let space = env.spec().action.clone();
    let (mut obs, mut policy_obs) = (vec![0.0; n * d], vec![0.0; n * d]);
    let (mut discrete, mut continuous) = (vec![0; n * a], vec![0.0; n * a]);
    let (mut rewards, mut terminated, mut truncated) = (vec![0.0; n], vec![false; n], vec![false; n]);
    let mut masks = vec![true; if env.has_action_masks() { n * masked_actions(&space) } else { 0 }];
    // The first `episodes % n` environments play one episode more.
    let mut remaining: Vec<usize> = (0..n).map(|i| episodes / n + usize::from(i < episodes % n)).collect();
    let (mut sums, mut returns) = (vec![0.0; n], Vec::new());
    env.reset(Seeds::Base(seed), None, &ResetOptions::default(), &mut obs)?;
    let mut interrupt = InterruptCheck::default();
    while returns.len() < episodes {
        interrupt.check()?;
        policy_obs.copy_from_slice(&obs);
        if let Some(normalizer) = normalizer.filter(|normalizer| normalizer.options().obs) {
            normalizer.normalize_obs(&mut policy_obs)?;
        }
        let current_masks = if masks.is_empty() {
            None
        } else {
            env.action_masks(&mut masks)?;
            Some(&masks[..])
        };
        let out = StepOut {
            obs: &mut obs,
            reward: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut [],
        };
        let mut actions = if matches!(space, Space::Box { .. }) {
            ActionsMut::Continuous(&mut continuous)
        } else {
            ActionsMut::Discrete(&mut discrete)
        };
        act(&policy_obs, current_masks, actions.slice_mut(0..n * a))?;
        env.step(actions.into_env_actions(&space), out)?;
        for i in 0..n {
            sums[i] += rewards[i];
            if terminated[i] || truncated[i] {
                if remaining[i] > 0 {
                    returns.push(sums[i]);
                    remaining[i] -= 1;
                }
                sums[i] = 0.0;
            }
        }
    }
    Ok(returns)
}

/// Batch of observations to choose actions for.
#[derive(Clone, Copy, Debug)]
pub struct Observations<'a> {
    /// Observations before normalisation and conversion, one row after another.
    pub data: FieldData<'a>,
    /// Conversion to network inputs.
    pub encoding: &'a Encoding,
    /// Normaliser of the network inputs. Its statistics do not change.
    pub normalizer: Option<&'a Normalizer>,
    /// Action masks, `[N, n]`, where `n` is [`mask_width`] of the action space.
    pub masks: Option<&'a [bool]>,
}

/// Writes greedy actions, or sampled actions if there is a seed, for a batch of observations.
///
/// The number of rows in `actions` determines the number of observations. The actions can be passed
/// to environments ([`ActionsMut::into_env_actions`] has been applied). `inputs` is a reusable
/// buffer for network inputs.
///
/// # Errors
/// [`Error::Shape`] for masks or actions of wrong lengths. [`Error::NotFinite`] for observations or actions that are
/// not finite. [`Error::Interrupted`] between two chunks of observations. Errors of [`Encoding::encode`] and of the
/// policy.
///
/// ```
/// use rlox_core::{ActionsMut, AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole, field::FieldData};
/// use rlox_nn::train::{Encoding, Observations, predict_actions};
/// use rlox_nn::{Activation, PolicyNetworks};
///
/// let env = VecEnv::new(1, None, AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// let encoding = Encoding::Numbers(4);
/// let obs = Observations { data: FieldData::F32(&[0.1; 12]), encoding: &encoding, normalizer: None, masks: None };
/// let mut actions = [9; 3];
/// predict_actions(&mut policy, obs, None, &env.spec().action, &mut Vec::new(), ActionsMut::Discrete(&mut actions))?;
/// assert!(actions[0] < 2 && actions == [actions[0]; 3]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn predict_actions(
    policy: &mut dyn ActorCritic,
    obs: Observations<'_>,
    seed: Option<u64>,
    space: &Space,
    inputs: &mut Vec<f32>,
    actions: ActionsMut<'_>,
) -> Result<()> {
    let (mut log_probs, mut values) = (Vec::new(), Vec::new());
    let mut act = |inputs: &[f32], masks: Option<&[bool]>, rngs: Option<&mut [Pcg64]>, actions: ActionsMut<'_>| {
        let Some(rngs) = rngs else { return policy.act_deterministic(inputs, masks, actions) };
        for buffer in [&mut log_probs, &mut values] {
            resize("actions", buffer, rngs.len(), 0.0)?;
        }
        policy.act_stateless(inputs, masks, rngs, PolicyOut { actions, log_probs: &mut log_probs, values: &mut values })
    };
    choose_actions(&mut act, obs, seed, space, inputs, actions)
}

/// Writes greedy actions of an off-policy agent, or exploratory actions without action noise if
/// there is a seed.
///
/// The arguments are those of [`predict_actions`].
///
/// # Errors
/// Errors of [`predict_actions`] and, for a Box, of [`ActionScaling::new`].
pub fn predict_with<A: Algorithm + ?Sized>(
    agent: &mut OffPolicyAgent<A>,
    obs: Observations<'_>,
    seed: Option<u64>,
    space: &Space,
    inputs: &mut Vec<f32>,
    actions: ActionsMut<'_>,
) -> Result<()> {
    let scaling = matches!(space, Space::Box { .. }).then(|| ActionScaling::new(space)).transpose()?;
    let progress = agent.progress();
    let learner = agent.learner_mut();
    let mut act = |inputs: &[f32], masks: Option<&[bool]>, rngs: Option<&mut [Pcg64]>, mut actions: ActionsMut<'_>| {
        let numbers = match &actions {
            ActionsMut::Discrete(actions) => actions.len(),
            ActionsMut::Continuous(actions) => actions.len(),
        };
        match rngs {
            None => learner.act_greedy(inputs, masks, actions.slice_mut(0..numbers))?,
            Some(rngs) => learner.explore_stateless(inputs, masks, rngs, progress, actions.slice_mut(0..numbers))?,
        }
        match (&scaling, actions) {
            (Some(scaling), ActionsMut::Continuous(actions)) => scaling.scale(actions),
            _ => Ok(()),
        }
    };
    choose_actions(&mut act, obs, seed, space, inputs, actions)
}

/// Function that writes actions for network inputs and optional masks. The actions are greedy, or
/// sampled if there are random streams.
type SampledAct<'a> = dyn FnMut(&[f32], Option<&[bool]>, Option<&mut [Pcg64]>, ActionsMut<'_>) -> Result<()> + 'a;

fn choose_actions(
    act: &mut SampledAct<'_>,
    obs: Observations<'_>,
    seed: Option<u64>,
    space: &Space,
    inputs: &mut Vec<f32>,
    mut actions: ActionsMut<'_>,
) -> Result<()> {
    let Observations { data, encoding, normalizer, masks } = obs;
    let (dim, width) = (space.dim(), mask_width(space)?);
    let len = match &actions {
        ActionsMut::Discrete(actions) => actions.len(),
        ActionsMut::Continuous(actions) => actions.len(),
    };
    let n = len / dim;
    check_len("actions", len, n * dim)?;
    masks.map_or(Ok(()), |masks| check_len("masks", masks.len(), n.saturating_mul(width)))?;
    let mut rngs = seed.map(|seed| IterationStreams::new(seed, n)).transpose()?.map(|streams| streams.actions);
    let mut interrupt = InterruptCheck::default();
    let chunk = (CHUNK / encoding.inputs().max(1)).max(1);
    for from in (0..n).step_by(chunk) {
        interrupt.check()?;
        let to = n.min(from + chunk);
        encoding.encode(data, from..to, inputs)?;
        validate::check_finite("obs", inputs, encoding.inputs()).map_err(|error| error.offset_row(from))?;
        normalizer.map_or(Ok(()), |normalizer| normalizer.normalize_obs(inputs))?;
        let masks = masks.map(|masks| &masks[from * width..to * width]);
        let rngs = rngs.as_mut().map(|rngs| &mut rngs[from..to]);
        act(inputs, masks, rngs, actions.slice_mut(from * dim..to * dim))?;
    }
    if let ActionsMut::Continuous(actions) = &actions
        && let Some(non_finite) = actions.iter().find(|x| !x.is_finite())
    {
        let fix = "load an earlier checkpoint, and lower learning_rate";
        return Err(Error::not_finite("actions", "finite numbers", non_finite.to_string(), fix));
    }
    actions.into_env_actions(space);
    Ok(())
}

/// Returns the mutable slice of continuous actions.
pub(super) fn as_continuous_mut(actions: ActionsMut<'_>) -> Result<&mut [f32]> {
    match actions {
        ActionsMut::Continuous(actions) => Ok(actions),
        ActionsMut::Discrete(_) => Err(Error::space("actions", "f32 numbers", "integers", "use DQN, PPO or A2C")),
    }
}
