//! Constructors of policies, critics and Q-functions for the spaces of an environment.

use rlox_core::{EnvSpec, Error, Pcg64, Result, Space};

use crate::{
    Activation, CriticEnsemble, DeterministicActor, Distribution, Dueling, Init, Mlp, NamedTensors, Network,
    PolicyNetworks, QNetworks, SquashedPolicy,
};

/// Initial log standard deviation of Gaussian policies.
const LOG_STD_INIT: f32 = 0.0;
/// Gains of the initial weights in the last layers of actor and critic. The gain 0.01 makes the
/// initial action probabilities nearly equal.
const GAINS: [f32; 2] = [0.01, 1.0];

impl<N: Network> PolicyNetworks<N> {
    /// Creates a policy with a value function from networks of any backend, for the spaces of
    /// `spec`.
    ///
    /// `net_arch` are the widths of the hidden layers. `make` returns a network from the widths of
    /// all layers, input first, and the gain of its last layer. The first call is for the actor,
    /// with gain 0.01, and the second for the critic, with gain 1.
    ///
    /// # Errors
    /// The errors of `make` and of [`PolicyNetworks::new`].
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

    /// Works as [`PolicyNetworks::with`], but policy and values share the hidden layers.
    ///
    /// `make` is called for the network, and then for each head as a network with one layer. The
    /// weights of the heads replace the last layer of the network.
    ///
    /// # Errors
    /// The errors of `make` and of [`PolicyNetworks::with_shared_trunk`].
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
    /// Creates a policy with a value function from built-in networks.
    ///
    /// `net_arch` are the widths of the hidden layers. The weights are orthogonal, as in
    /// Stable-Baselines3. The gain is `sqrt(2)` in hidden layers, 0.01 in the last layer of the
    /// actor and 1 in the last layer of the critic.
    ///
    /// # Errors
    /// [`Error::Space`] if a space is invalid, and the errors of [`Mlp::new`].
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

    /// Works as [`PolicyNetworks::mlp`], with state-dependent exploration.
    ///
    /// The exploration noise is a function of the last hidden layer of the actor.
    ///
    /// # Errors
    /// The errors of [`PolicyNetworks::mlp`] and of [`Distribution::state_dependent`].
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

    /// Works as [`PolicyNetworks::mlp`], with the given distribution.
    ///
    /// # Errors
    /// The errors of [`Mlp::new`] and of [`PolicyNetworks::new`].
    pub fn around(
        spec: &EnvSpec,
        net_arch: &[usize],
        activation: Activation,
        distribution: Distribution,
        rng: &mut Pcg64,
    ) -> Result<Self> {
        Self::with(spec, net_arch, distribution, |sizes, gain| Mlp::new(sizes, activation, Init::orthogonal(gain), rng))
    }

    /// Works as [`PolicyNetworks::around`], but policy and values share the hidden layers.
    ///
    /// # Errors
    /// The errors of [`Mlp::new`] and of [`PolicyNetworks::with_shared_trunk`].
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
    /// Creates a Q-function.
    ///
    /// `net_arch` are the widths of the hidden layers. `make` returns a network from the widths of
    /// all layers, input first.
    ///
    /// # Errors
    /// [`Error::Space`] if the action space is not Discrete, and the errors of `make`.
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
    /// Works as [`QNetworks::with`], with dueling networks of advantages and a state value
    /// ([`Dueling`]).
    ///
    /// # Errors
    /// The errors of [`QNetworks::with`].
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
    /// Creates `n_critics` critics and their target networks.
    ///
    /// `net_arch` are the widths of the hidden layers. `make` returns a network from the widths of
    /// all layers, input first.
    ///
    /// # Errors
    /// - [`Error::Shape`]: `n_critics` is 0.
    /// - [`Error::Space`]: the action space is not a Box.
    /// - The errors of `make`.
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
    /// Creates a policy.
    ///
    /// `net_arch` are the widths of the hidden layers. `make` returns a network from the widths of
    /// all layers, input first. If `log_std_init` is given, the policy has state-dependent
    /// exploration ([`SquashedPolicy::state_dependent`]).
    ///
    /// # Errors
    /// - [`Error::Space`]: the action space is not a Box.
    /// - The errors of `make` and of [`SquashedPolicy::state_dependent`].
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
    /// Creates a policy and its target network.
    ///
    /// `net_arch` are the widths of the hidden layers. `make` returns a network from the widths of
    /// all layers, input first.
    ///
    /// # Errors
    /// [`Error::Space`] if the action space is not a Box, and the errors of `make`.
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
    /// Creates a Q-function from built-in networks; `net_arch` are the widths of the hidden layers.
    ///
    /// # Errors
    /// [`Error::Space`] if the action space is not Discrete, and the errors of [`Mlp::new`].
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::with(spec, net_arch, rng, mlp(activation))
    }
}

impl QNetworks<Dueling<Mlp>> {
    /// Works as [`QNetworks::mlp`], with dueling networks of advantages and a state value
    /// ([`Dueling`]).
    ///
    /// # Errors
    /// The errors of [`QNetworks::mlp`].
    pub fn dueling(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::dueling_with(spec, net_arch, rng, mlp(activation))
    }
}

impl CriticEnsemble<Mlp> {
    /// Creates `n_critics` critics from built-in networks; `net_arch` are the widths of the hidden
    /// layers.
    ///
    /// # Errors
    /// - [`Error::Shape`]: `n_critics` is 0.
    /// - [`Error::Space`]: the action space is not a Box.
    /// - The errors of [`Mlp::new`].
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
    /// Creates a policy from a built-in network; `net_arch` are the widths of the hidden layers.
    ///
    /// # Errors
    /// [`Error::Space`] if the action space is not a Box, and the errors of [`Mlp::new`].
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::with(spec, net_arch, None, rng, mlp(activation))
    }

    /// Works as [`SquashedPolicy::mlp`], with state-dependent exploration.
    ///
    /// # Errors
    /// The errors of [`SquashedPolicy::mlp`] and of [`SquashedPolicy::state_dependent`].
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
    /// Creates a policy from built-in networks; `net_arch` are the widths of the hidden layers.
    ///
    /// # Errors
    /// [`Error::Space`] if the action space is not a Box, and the errors of [`Mlp::new`].
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        Self::with(spec, net_arch, rng, mlp(activation))
    }
}

/// Returns the widths of all layers of a network, input first.
pub(crate) fn sizes(inputs: usize, net_arch: &[usize], outputs: usize) -> Vec<usize> {
    [inputs].into_iter().chain(net_arch.iter().copied()).chain([outputs]).collect()
}

/// Returns a function that creates built-in networks with `activation` from the widths of all
/// layers.
fn mlp(activation: Activation) -> impl FnMut(&[usize], &mut Pcg64) -> Result<Mlp> {
    move |sizes, rng| Mlp::new(sizes, activation, Init::Kaiming, rng)
}

/// Returns an online network and its target network.
///
/// The target draws nothing from `rng`, because it becomes a copy of the online network later.
fn make_pair<N>(
    sizes: &[usize],
    rng: &mut Pcg64,
    make: &mut impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
) -> Result<[N; 2]> {
    Ok([make(sizes, rng)?, make(sizes, &mut Pcg64::seed_from(0))?])
}

/// Returns the algorithms that support an action space, as the hint of an error.
pub(crate) fn suggest_algorithms(space: &Space) -> &'static str {
    match space {
        Space::Discrete { .. } => "use DQN, PPO or A2C",
        Space::Box { low, high, .. } if low.iter().chain(high).all(|bound| bound.is_finite()) => {
            "use SAC, TD3, PPO or A2C"
        }
        _ => "use PPO or A2C",
    }
}

/// Returns the number of elements of an action of a Box space.
fn action_dim(spec: &EnvSpec) -> Result<usize> {
    spec.action.validate("action space")?;
    if matches!(spec.action, Space::Box { .. }) {
        return Ok(spec.action.dim());
    }
    Err(Error::space("action space", "a Box", spec.action.to_json().to_string(), suggest_algorithms(&spec.action)))
}

/// Returns the number of actions of a Discrete space.
pub(crate) fn num_actions(spec: &EnvSpec) -> Result<usize> {
    spec.action.validate("action space")?;
    if let Space::Discrete { n, .. } = spec.action {
        return Ok(n as usize);
    }
    Err(Error::space(
        "action space",
        "a Discrete space",
        spec.action.to_json().to_string(),
        suggest_algorithms(&spec.action),
    ))
}
