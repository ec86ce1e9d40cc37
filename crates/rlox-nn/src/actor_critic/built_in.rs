//! Policies of the built-in network.

use rlox_core::{EnvSpec, Pcg64, Result};

use super::PolicyNetworks;
use crate::built_in::sizes;
use crate::{Activation, Distribution, Init, Mlp, Network};

/// The logarithm of standard deviations to begin with.
const LOG_STD_INIT: f32 = 0.0;

impl<N: Network> PolicyNetworks<N> {
    /// A policy and values of networks of any backend for an environment's spaces: `make` makes one of the given widths
    /// whose last layer has the given gain, first the actor, 0.01, then the critic, 1.
    ///
    /// # Errors
    /// Those of `make` and of [`PolicyNetworks::new`].
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
    /// use rlox_nn::{Activation, Distribution, Init, Mlp, PolicyNetworks};
    ///
    /// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
    /// let mut rng = Pcg64::seed_from(0);
    /// let distribution = Distribution::new(&env.spec().action, 0.0)?;
    /// let policy = PolicyNetworks::with(env.spec(), &[64], distribution, |sizes, gain| {
    ///     Mlp::new(sizes, Activation::Relu, Init::orthogonal(gain), &mut rng)
    /// })?;
    /// assert_eq!(policy.actor().sizes(), [4, 64, 2]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn with(
        spec: &EnvSpec,
        net_arch: &[usize],
        distribution: Distribution,
        mut make: impl FnMut(&[usize], f32) -> Result<N>,
    ) -> Result<Self> {
        let mut net = |outputs, gain| make(&sizes(spec.observation.dim(), net_arch, outputs), gain);
        let actor = net(distribution.outputs(), 0.01)?;
        let critic = net(1, 1.0)?;
        Self::new(actor, critic, distribution)
    }
}

impl PolicyNetworks<Mlp> {
    /// A policy and values of the built-in network for an environment's spaces, with hidden layers of these widths each,
    /// initialised as Stable-Baselines3 does: orthogonally with the gains root of 2, 0.01 for actions and 1 for values.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a width of 0, [`rlox_core::Error::Space`] for spaces that make no sense.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
    /// use rlox_nn::{Activation, ActorCritic, PolicyNetworks};
    ///
    /// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
    /// let policy = PolicyNetworks::mlp(env.spec(), &[64, 64], Activation::Tanh, &mut Pcg64::seed_from(0))?;
    /// assert_eq!(policy.tensors().iter().next().unwrap().name, "actor.0.weight");
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        let distribution = Distribution::new(&spec.action, LOG_STD_INIT)?;
        Self::around(spec, net_arch, activation, distribution, rng)
    }

    /// As [`PolicyNetworks::mlp`], with state-dependent exploration through the last hidden layer.
    ///
    /// # Errors
    /// Those of [`PolicyNetworks::mlp`] and of [`Distribution::state_dependent`].
    pub fn mlp_with_sde(
        spec: &EnvSpec,
        net_arch: &[usize],
        activation: Activation,
        log_std_init: f32,
        rng: &mut Pcg64,
    ) -> Result<Self> {
        let hidden = net_arch.last().copied().unwrap_or(0);
        let distribution = Distribution::state_dependent(&spec.action, hidden, log_std_init)?;
        Self::around(spec, net_arch, activation, distribution, rng)
    }

    /// As [`PolicyNetworks::mlp`], around a distribution.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a width of 0.
    pub fn around(
        spec: &EnvSpec,
        net_arch: &[usize],
        activation: Activation,
        distribution: Distribution,
        rng: &mut Pcg64,
    ) -> Result<Self> {
        Self::with(spec, net_arch, distribution, |sizes, gain| Mlp::new(sizes, activation, Init::orthogonal(gain), rng))
    }

    /// As [`PolicyNetworks::around`], with the hidden layers in common.
    ///
    /// # Errors
    /// [`rlox_core::Error::Config`] for a width of 0.
    pub fn shared_around(
        spec: &EnvSpec,
        net_arch: &[usize],
        activation: Activation,
        distribution: Distribution,
        rng: &mut Pcg64,
    ) -> Result<Self> {
        let outputs = distribution.outputs();
        let sizes = sizes(spec.observation.dim(), net_arch, outputs + 1);
        let mut trunk = Mlp::new(&sizes, activation, Init::orthogonal(1.0), rng)?;
        // Each head is orthogonal by itself, with its own gain.
        let inputs = sizes[sizes.len() - 2];
        let mut head = crate::orthogonal(outputs, inputs, 0.01, rng);
        head.extend(crate::orthogonal(1, inputs, 1.0, rng));
        let mut tensors = crate::NamedTensors::default();
        let last = format!("{}.weight", 2 * (sizes.len() - 2));
        for tensor in &trunk.tensors() {
            let data = if tensor.name == last { head.clone() } else { tensor.data.clone() };
            tensors.push(tensor.name.clone(), &tensor.shape, data)?;
        }
        trunk.load(&tensors)?;
        Self::shared(trunk, distribution)
    }
}
