//! Policies of networks that are made for an environment, by the built-in network or by others.

use rlox_core::{EnvSpec, Pcg64, Result};

use super::PolicyNetworks;
use crate::built_in::sizes;
use crate::{Activation, Distribution, Init, Mlp, NamedTensors, Network};

/// The logarithm of standard deviations to begin with.
const LOG_STD_INIT: f32 = 0.0;
/// The gains of the last layers: a policy begins with nearly equal chances.
const GAINS: [f32; 2] = [0.01, 1.0];

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
        let actor = net(distribution.outputs(), GAINS[0])?;
        let critic = net(1, GAINS[1])?;
        Self::new(actor, critic, distribution)
    }

    /// As [`PolicyNetworks::with`], with the hidden layers in common: `make` makes the network, and then one of each head
    /// alone, whose weights it takes.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn shared_with(
        spec: &EnvSpec,
        net_arch: &[usize],
        distribution: Distribution,
        mut make: impl FnMut(&[usize], f32) -> Result<N>,
    ) -> Result<Self> {
        let widths = sizes(spec.observation.dim(), net_arch, distribution.outputs() + 1);
        let mut trunk = make(&widths, 1.0)?;
        let inputs = widths[widths.len() - 2];
        let heads = [make(&[inputs, distribution.outputs()], GAINS[0])?, make(&[inputs, 1], GAINS[1])?];
        let heads = heads.map(|head| head.tensors());
        let mut tensors = NamedTensors::default();
        let last = 2 * (widths.len() - 2);
        for tensor in &trunk.tensors() {
            let rows = tensor.shape.first() == Some(&(distribution.outputs() + 1));
            let part = tensor.name.strip_prefix(&format!("{last}.")).filter(|_| rows);
            let of_heads = |part: &str| {
                let found = heads.iter().filter_map(|head| head.find(&format!("0.{part}")));
                found.flat_map(|head| head.data.iter().copied()).collect()
            };
            tensors.push(tensor.name.clone(), &tensor.shape, part.map_or_else(|| tensor.data.clone(), of_heads))?;
        }
        trunk.load(&tensors)?;
        Self::shared(trunk, distribution)
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
        let distribution = Distribution::state_dependent(&spec.action, hidden, log_std_init)
            .map_err(|error| error.rename_argument("hidden", "net_arch"))?;
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
        let make = |sizes: &[usize], gain| Mlp::new(sizes, activation, Init::orthogonal(gain), rng);
        Self::shared_with(spec, net_arch, distribution, make)
    }
}
