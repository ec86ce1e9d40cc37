//! Actions for any number of observations.

use rlox_core::{ActionsMut, Error, FieldData, Normalizer, Pcg64, PolicyOut, Result, Space, Watch, check_len};

use super::algorithm::Algorithm;
use super::{Encoding, IterationStreams, OffPolicyAgent};
pub use crate::distribution::mask_width;
use crate::room::resize;
use crate::rows;
use crate::{ActionScaling, ActorCritic};

/// Numbers of observations whose actions are chosen at once: few enough that memory stays small.
const CHUNK: usize = 1 << 14;

/// Observations to act on.
#[derive(Clone, Copy, Debug)]
pub struct Observations<'a> {
    /// As rollouts store them, one after another, not normalised.
    pub data: FieldData<'a>,
    /// How they become inputs.
    pub encoding: &'a Encoding,
    /// What normalises them, with the statistics as they are.
    pub normalizer: Option<&'a Normalizer>,
    /// What is allowed, `[N, mask_width]`.
    pub masks: Option<&'a [bool]>,
}

/// Greedy actions, or with a seed samples, of as many observations as `actions` has rows: as environments take them
/// ([`ActionsMut::sent`]). `inputs` is memory for the network's inputs.
///
/// # Errors
/// [`Error::Shape`] for masks or actions of a wrong length, [`Error::Config`] for observations or actions that are not
/// finite; those of [`Encoding::encode`] and of the policy;
/// [`Error::Interrupted`] if that is asked for.
///
/// ```
/// use rlox_core::{ActionsMut, AutoresetMode, FieldData, Pcg64, VecEnv, VectorEnv, envs::CartPole};
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
        for said in [&mut log_probs, &mut values] {
            resize("actions", said, rngs.len(), 0.0)?;
        }
        policy.act_once(inputs, masks, rngs, PolicyOut { actions, log_probs: &mut log_probs, values: &mut values })
    };
    choose_actions(&mut act, obs, seed, space, inputs, actions)
}

/// As [`predict_actions`], of an off-policy method: its greedy actions, or with a seed those that it explores with, but for
/// action noise.
///
/// # Errors
/// Those of [`predict_actions`].
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
            None => learner.act_greedily(inputs, masks, actions.part(0..numbers))?,
            Some(rngs) => learner.explore_once(inputs, masks, rngs, progress, actions.part(0..numbers))?,
        }
        match (&scaling, actions) {
            (Some(scaling), ActionsMut::Continuous(actions)) => scaling.scale(actions),
            _ => Ok(()),
        }
    };
    choose_actions(&mut act, obs, seed, space, inputs, actions)
}

/// Chooses actions of inputs, with masks or without, greedily or with streams.
type Act<'a> = dyn FnMut(&[f32], Option<&[bool]>, Option<&mut [Pcg64]>, ActionsMut<'_>) -> Result<()> + 'a;

fn choose_actions(
    act: &mut Act<'_>,
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
    let mut watch = Watch::default();
    let chunk = (CHUNK / encoding.inputs().max(1)).max(1);
    for from in (0..n).step_by(chunk) {
        watch.check()?;
        let to = n.min(from + chunk);
        encoding.encode(data, from..to, inputs)?;
        rows::check_finite("obs", inputs, encoding.inputs()).map_err(|error| error.offset_row(from))?;
        normalizer.map_or(Ok(()), |normalizer| normalizer.normalize_obs(inputs))?;
        let masks = masks.map(|masks| &masks[from * width..to * width]);
        let rngs = rngs.as_mut().map(|rngs| &mut rngs[from..to]);
        act(inputs, masks, rngs, actions.part(from * dim..to * dim))?;
    }
    if let ActionsMut::Continuous(actions) = &actions
        && let Some(wrong) = actions.iter().find(|x| !x.is_finite())
    {
        let fix = "go back to a checkpoint, and lower learning_rate";
        return Err(Error::not_finite("actions", "finite numbers", wrong.to_string(), fix));
    }
    actions.sent(space);
    Ok(())
}
