//! The best actions that a policy of any kind knows.

use rlox_core::{ActionsMut, Error, Pcg64, Result};

use crate::room::resize;
use crate::{ActorCritic, DeterministicPolicy, QFunction, StochasticPolicy};

/// Chooses the best actions it knows: every policy and Q-function of this crate, on any backend.
///
/// `Kind` is the trait by which it does, such as `dyn QFunction`; it goes without saying for types that have one of them.
///
/// ```
/// use rlox_core::{ActionsMut, AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, QNetworks, train::Greedy};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut q = QNetworks::mlp(env.spec(), &[8], Activation::Relu, &mut Pcg64::seed_from(0))?;
/// let mut actions = [9, 9];
/// q.act_greedily(&[0.1; 8], None, ActionsMut::Discrete(&mut actions))?;
/// assert!(actions[0] < 2 && actions[0] == actions[1]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub trait Greedy<Kind: ?Sized> {
    /// Whether its actions are between -1 and 1, and the bounds of a Box are reached by [`crate::ActionScaling`].
    const SCALED: bool;

    /// The best actions of `obs`, `[N, d]`, among those that masks, `[N, n]`, allow.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit, [`Error::Space`] for actions of the other kind, and those of the policy.
    fn act_greedily(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()>;
}

impl<P: ActorCritic + ?Sized> Greedy<dyn ActorCritic> for P {
    const SCALED: bool = false;

    fn act_greedily(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.act_deterministic(obs, masks, actions)
    }
}

impl<Q: QFunction + ?Sized> Greedy<dyn QFunction> for Q {
    const SCALED: bool = false;

    fn act_greedily(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        let ActionsMut::Discrete(actions) = actions else {
            return Err(Error::space("actions", "integers", "f32 numbers", "use SAC, TD3, PPO or A2C"));
        };
        // Nothing is drawn from them.
        let mut rngs = Vec::new();
        resize("obs", &mut rngs, actions.len(), Pcg64::seed_from(0))?;
        self.act(obs, masks, 0.0, &mut rngs, actions)
    }
}

impl<P: StochasticPolicy + ?Sized> Greedy<dyn StochasticPolicy> for P {
    const SCALED: bool = true;

    fn act_greedily(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.act_deterministic(obs, numbers(actions)?)
    }
}

impl<P: DeterministicPolicy + ?Sized> Greedy<dyn DeterministicPolicy> for P {
    const SCALED: bool = true;

    fn act_greedily(&mut self, obs: &[f32], _masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.act(obs, numbers(actions)?)
    }
}

/// The actions of a Box.
pub(super) fn numbers(actions: ActionsMut<'_>) -> Result<&mut [f32]> {
    match actions {
        ActionsMut::Continuous(actions) => Ok(actions),
        ActionsMut::Discrete(_) => Err(Error::space("actions", "f32 numbers", "integers", "use DQN, PPO or A2C")),
    }
}
