//! Actions for any number of observations.

use rlox_core::{ActionsMut, Error, FieldData, Normalizer, PolicyOut, Result, Space, Watch, check_len};

use super::{Encoding, IterationStreams};
use crate::ActorCritic;
pub use crate::distribution::mask_width;
use crate::room::resize;
use crate::rows;

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
    let (mut log_probs, mut values, mut watch) = (Vec::new(), Vec::new(), Watch::default());
    let chunk = (CHUNK / encoding.inputs().max(1)).max(1);
    for from in (0..n).step_by(chunk) {
        watch.check()?;
        let to = n.min(from + chunk);
        encoding.encode(data, from..to, inputs)?;
        rows::check_finite("obs", inputs, encoding.inputs()).map_err(|error| rows::counted_from(error, from))?;
        normalizer.map_or(Ok(()), |normalizer| normalizer.normalize_obs(inputs))?;
        let masks = masks.map(|masks| &masks[from * width..to * width]);
        let actions = actions.part(from * dim..to * dim);
        let Some(rngs) = &mut rngs else {
            policy.act_deterministic(inputs, masks, actions)?;
            continue;
        };
        for said in [&mut log_probs, &mut values] {
            resize("actions", said, to - from, 0.0)?;
        }
        let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
        policy.act_once(inputs, masks, &mut rngs[from..to], out)?;
    }
    if let ActionsMut::Continuous(actions) = &actions
        && let Some(wrong) = actions.iter().find(|x| !x.is_finite())
    {
        let fix = "go back to a checkpoint, and lower learning_rate";
        return Err(Error::config("actions", "finite numbers", wrong.to_string(), fix));
    }
    actions.sent(space);
    Ok(())
}
