//! Policies, critics and Q-functions around networks of an environment's spaces: of any backend, or the built-in one,
//! initialised as Stable-Baselines3 does.

use rlox_core::{EnvSpec, Error, Pcg64, Result, Space};

use crate::{
    Activation, CriticEnsemble, DeterministicActor, Distribution, Dueling, Init, Mlp, NamedTensors, Network,
    PolicyNetworks, QNetworks, SquashedPolicy,
};

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
            let suffix = tensor.name.strip_prefix(&format!("{last}.")).filter(|_| rows);
            let head_data = |suffix: &str| {
                let found = heads.iter().filter_map(|head| head.find(&format!("0.{suffix}")));
                found.flat_map(|head| head.data.iter().copied()).collect()
            };
            tensors.push(tensor.name.clone(), &tensor.shape, suffix.map_or_else(|| tensor.data.clone(), head_data))?;
        }
        trunk.load(&tensors)?;
        Self::with_shared_trunk(trunk, distribution)
    }
}

impl PolicyNetworks<Mlp> {
    /// A policy and values of the built-in network for an environment's spaces, with hidden layers of these widths each,
    /// initialised as Stable-Baselines3 does: orthogonally with the gains root of 2, 0.01 for actions and 1 for values.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for spaces that make no sense.
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
    /// [`Error::Config`] for a width of 0.
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
    /// [`Error::Config`] for a width of 0.
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

impl<N: Network> QNetworks<N> {
    /// A Q-function of networks that `make` makes, given their sizes and a stream, for an environment's spaces, with hidden
    /// layers of these widths.
    ///
    /// # Errors
    /// [`Error::Space`] for actions that are not Discrete, and those of `make`.
    pub fn with(
        spec: &EnvSpec,
        net_arch: &[usize],
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<Self> {
        let [online, target] = make_pair(&sizes(spec.observation.dim(), net_arch, num_actions(spec)?), rng, &mut make)?;
        Self::new(online, target)
    }
}

impl<N: Network> QNetworks<Dueling<N>> {
    /// As [`QNetworks::with`], of advantages and the state's value ([`Dueling`]).
    ///
    /// # Errors
    /// Those of [`QNetworks::with`].
    pub fn dueling_with(
        spec: &EnvSpec,
        net_arch: &[usize],
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<Self> {
        let sizes = sizes(spec.observation.dim(), net_arch, num_actions(spec)?.saturating_add(1));
        let [online, target] = make_pair(&sizes, rng, &mut make)?;
        Self::new(Dueling::new(online)?, Dueling::new(target)?)
    }
}

impl<N: Network> CriticEnsemble<N> {
    /// CriticReduction of networks that `make` makes, given their sizes and a stream, for an environment's spaces: `n_critics` of
    /// them, each with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Shape`] for no critic, [`Error::Space`] for actions that are no Box, and those of `make`.
    pub fn with(
        spec: &EnvSpec,
        net_arch: &[usize],
        n_critics: usize,
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<Self> {
        let (obs_dim, action_dim) = (spec.observation.dim(), action_dim(spec)?);
        let sizes = sizes(obs_dim.saturating_add(action_dim), net_arch, 1);
        let networks = (0..n_critics).map(|_| make_pair(&sizes, rng, &mut make)).collect::<Result<_>>()?;
        Self::new(networks, obs_dim)
    }
}

impl<N: Network> SquashedPolicy<N> {
    /// A policy of a network that `make` makes, given its sizes and a stream, for an environment's spaces, with hidden layers
    /// of these widths; with state-dependent exploration if logarithms of standard deviations to begin with are given
    /// ([`SquashedPolicy::state_dependent`]).
    ///
    /// # Errors
    /// [`Error::Space`] for actions that are no Box, those of [`SquashedPolicy::state_dependent`] and of `make`.
    pub fn with(
        spec: &EnvSpec,
        net_arch: &[usize],
        log_std_init: Option<f32>,
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<Self> {
        let action_dim = action_dim(spec)?;
        let outputs_per_action = if log_std_init.is_some() { 1 } else { 2 };
        let actor = make(&sizes(spec.observation.dim(), net_arch, action_dim.saturating_mul(outputs_per_action)), rng)?;
        match log_std_init {
            Some(log_std_init) => Self::state_dependent(actor, action_dim, log_std_init),
            None => Self::new(actor, action_dim),
        }
    }
}

impl<N: Network> DeterministicActor<N> {
    /// A policy of networks that `make` makes, given their sizes and a stream, for an environment's spaces, with hidden
    /// layers of these widths.
    ///
    /// # Errors
    /// [`Error::Space`] for actions that are no Box, and those of `make`.
    pub fn with(
        spec: &EnvSpec,
        net_arch: &[usize],
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<Self> {
        let [online, target] = make_pair(&sizes(spec.observation.dim(), net_arch, action_dim(spec)?), rng, &mut make)?;
        Self::new(online, target)
    }
}

impl QNetworks<Mlp> {
    /// A Q-function of the built-in network for an environment's spaces, with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for actions that are not Discrete.
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::with(spec, net_arch, rng, mlp(activation))
    }
}

impl QNetworks<Dueling<Mlp>> {
    /// As [`QNetworks::mlp`], of advantages and the state's value ([`Dueling`]).
    ///
    /// # Errors
    /// Those of [`QNetworks::mlp`].
    pub fn dueling(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::dueling_with(spec, net_arch, rng, mlp(activation))
    }
}

impl CriticEnsemble<Mlp> {
    /// CriticReduction of the built-in network for an environment's spaces, `n_critics` of them, each with hidden layers of these
    /// widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Shape`] for no critic, [`Error::Space`] for actions that are no Box.
    pub fn mlp(
        spec: &EnvSpec,
        net_arch: &[usize],
        activation: Activation,
        n_critics: usize,
        rng: &mut Pcg64,
    ) -> Result<Self> {
        Self::with(spec, net_arch, n_critics, rng, mlp(activation))
    }
}

impl SquashedPolicy<Mlp> {
    /// A policy of the built-in network for an environment's spaces, with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for actions that are no Box.
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::with(spec, net_arch, None, rng, mlp(activation))
    }

    /// The same with state-dependent exploration; see [`SquashedPolicy::state_dependent`].
    ///
    /// # Errors
    /// Those of [`SquashedPolicy::mlp`], and [`Error::Shape`] without a hidden layer.
    pub fn mlp_with_sde(
        spec: &EnvSpec,
        net_arch: &[usize],
        activation: Activation,
        log_std_init: f32,
        rng: &mut Pcg64,
    ) -> Result<Self> {
        Self::with(spec, net_arch, Some(log_std_init), rng, mlp(activation))
    }
}

impl DeterministicActor<Mlp> {
    /// A policy of the built-in network for an environment's spaces, with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for actions that are no Box.
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::with(spec, net_arch, rng, mlp(activation))
    }
}

/// The widths of a network, hidden layers between its inputs and outputs.
pub(crate) fn sizes(inputs: usize, net_arch: &[usize], outputs: usize) -> Vec<usize> {
    [inputs].into_iter().chain(net_arch.iter().copied()).chain([outputs]).collect()
}

/// Makes built-in networks with an activation.
fn mlp(activation: Activation) -> impl FnMut(&[usize], &mut Pcg64) -> Result<Mlp> {
    move |sizes, rng| Mlp::new(sizes, activation, Init::Kaiming, rng)
}

/// A network, and another of the same sizes, which is to become its copy and takes nothing from the stream.
fn make_pair<N>(
    sizes: &[usize],
    rng: &mut Pcg64,
    make: &mut impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
) -> Result<[N; 2]> {
    Ok([make(sizes, rng)?, make(sizes, &mut Pcg64::seed_from(0))?])
}

/// What to do in a space of actions that another algorithm is for.
pub(crate) fn suggest_algorithms(space: &Space) -> &'static str {
    match space {
        Space::Discrete { .. } => "use DQN, PPO or A2C",
        Space::Box { low, high, .. } if low.iter().chain(high).all(|bound| bound.is_finite()) => {
            "use SAC, TD3, PPO or A2C"
        }
        _ => "use PPO or A2C",
    }
}

/// Numbers in an action of a Box space.
fn action_dim(spec: &EnvSpec) -> Result<usize> {
    spec.action.validate("action space")?;
    if matches!(spec.action, Space::Box { .. }) {
        return Ok(spec.action.dim());
    }
    Err(Error::space("action space", "a Box", spec.action.to_json().to_string(), suggest_algorithms(&spec.action)))
}

/// How many actions a Discrete space has.
pub(crate) fn num_actions(spec: &EnvSpec) -> Result<usize> {
    spec.action.validate("action space")?;
    if let Space::Discrete { n, .. } = spec.action {
        return Ok(n as usize);
    }
    Err(Error::space(
        "action space",
        "a Discrete one",
        spec.action.to_json().to_string(),
        suggest_algorithms(&spec.action),
    ))
}
