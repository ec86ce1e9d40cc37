//! Constructors of policies, critics and Q-functions for the spaces of an environment.

use rlox_core::{EnvSpec, Error, Pcg64, Result, Space};

use crate::{
    Activation, ActorCritic, CriticEnsemble, DeterministicActor, Distribution, Dueling, Init, Mlp, NamedTensors,
    Network, PolicyNetworks, QNetworks, SquashedPolicy,
};

/// Gains of the initial weights in the last layers of actor and critic. The gain 0.01 makes the
/// initial action probabilities nearly equal.
const GAINS: [f32; 2] = [0.01, 1.0];

/// Builder of [`PolicyNetworks`] for the spaces of an environment.
///
/// The defaults are those of Stable-Baselines3.
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::Pendulum};
/// use rlox_nn::{Activation, PolicyBuilder};
///
/// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, Pendulum::default)?;
/// let policy = PolicyBuilder::new(env.spec())
///     .net_arch(&[32])
///     .activation(Activation::Relu)
///     .shared_trunk(true)
///     .build(&mut Pcg64::seed_from(0))?;
/// assert_eq!(policy.actor().sizes(), [3, 32, 2]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder creates networks only when `build` or `build_with` is called"]
pub struct PolicyBuilder<'a> {
    spec: &'a EnvSpec,
    net_arch: &'a [usize],
    activation: Activation,
    ortho_init: bool,
    shared_trunk: bool,
    use_sde: bool,
    log_std_init: f32,
}

impl<'a> PolicyBuilder<'a> {
    /// Creates a builder of separate networks for actor and critic, each with two hidden layers of
    /// 64 units.
    pub fn new(spec: &'a EnvSpec) -> Self {
        Self {
            spec,
            net_arch: &[64, 64],
            activation: Activation::Tanh,
            ortho_init: true,
            shared_trunk: false,
            use_sde: false,
            log_std_init: 0.0,
        }
    }

    /// Sets the widths of the hidden layers. The default is `[64, 64]`.
    pub fn net_arch(self, net_arch: &'a [usize]) -> Self {
        Self { net_arch, ..self }
    }

    /// Sets the activation of the hidden layers. The default is [`Activation::Tanh`].
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Sets whether initial weights are orthogonal instead of [`Init::Kaiming`]. The default is
    /// `true`.
    ///
    /// The gain of orthogonal weights is `sqrt(2)` in hidden layers, 0.01 in the last layer of the
    /// actor and 1 in the last layer of the critic.
    pub fn ortho_init(self, ortho_init: bool) -> Self {
        Self { ortho_init, ..self }
    }

    /// Sets whether policy and values share the hidden layers. The default is `false`.
    pub fn shared_trunk(self, shared_trunk: bool) -> Self {
        Self { shared_trunk, ..self }
    }

    /// Sets whether exploration is state-dependent ([`Distribution::state_dependent`]), as a
    /// function of the last hidden layer of the actor. The default is `false`.
    pub fn use_sde(self, use_sde: bool) -> Self {
        Self { use_sde, ..self }
    }

    /// Sets the initial log standard deviation of the actions of a Box space. The default is 0.
    pub fn log_std_init(self, log_std_init: f32) -> Self {
        Self { log_std_init, ..self }
    }

    /// Creates a policy with a value function from built-in networks.
    ///
    /// # Errors
    /// The errors of [`Mlp::new`] and [`PolicyBuilder::build_with`].
    pub fn build(&self, rng: &mut Pcg64) -> Result<PolicyNetworks<Mlp>> {
        self.build_with(rng, Mlp::new)
    }

    /// Creates a policy with a value function from networks of any backend.
    ///
    /// `make` returns a network from the widths of all layers, input first, the activation of its
    /// hidden layers and the distribution of its initial weights. The first call is for the actor
    /// and the second for the critic. For a shared trunk, the first call is for the whole network,
    /// and two calls follow for the heads, as networks with one layer. The weights of the heads
    /// replace the last layer of the network.
    ///
    /// # Errors
    /// - [`Error::Space`]: a space is invalid, or not a Box although exploration is
    ///   state-dependent.
    /// - [`Error::Config`]: `log_std_init` is outside [-20, 20], or exploration is state-dependent
    ///   and `net_arch` is empty.
    /// - [`Error::Shape`]: a network does not have the requested widths.
    /// - [`Error::Memory`], and the errors of `make`.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
    /// use rlox_nn::{Init, Mlp, PolicyBuilder};
    ///
    /// let env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
    /// let (builder, mut rng) = (PolicyBuilder::new(env.spec()), Pcg64::seed_from(0));
    /// let policy = builder.build_with(&mut rng, |sizes, activation, _, rng| {
    ///     Mlp::new(sizes, activation, Init::orthogonal(0.1), rng)
    /// })?;
    /// assert_eq!(policy.actor().sizes(), [4, 64, 64, 2]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn build_with<N: Network>(
        &self,
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], Activation, Init, &mut Pcg64) -> Result<N>,
    ) -> Result<PolicyNetworks<N>> {
        let hidden = self.net_arch.last().copied();
        let distribution = if self.use_sde {
            Distribution::state_dependent(&self.spec.action, hidden.unwrap_or(0), self.log_std_init)
                .map_err(|error| error.rename_argument("hidden", "net_arch"))?
        } else {
            Distribution::new(&self.spec.action, self.log_std_init)?
        };
        let (inputs, outputs) = (self.spec.observation.dim(), distribution.outputs());
        let mut make = |sizes: &[usize], gain| {
            let init = if self.ortho_init { Init::orthogonal(gain) } else { Init::Kaiming };
            make(sizes, self.activation, init, rng)
        };
        if !self.shared_trunk {
            let actor = make(&sizes(inputs, self.net_arch, outputs), GAINS[0])?;
            let critic = make(&sizes(inputs, self.net_arch, 1), GAINS[1])?;
            return PolicyNetworks::new(actor, critic, distribution);
        }
        let network = make(&sizes(inputs, self.net_arch, outputs + 1), GAINS[1])?;
        let mut policy = PolicyNetworks::with_shared_trunk(network, distribution)?;
        let (hidden, mut heads) = (hidden.unwrap_or(inputs), NamedTensors::default());
        heads.extend("actor", &make(&[hidden, outputs], GAINS[0])?.tensors())?;
        heads.extend("critic", &make(&[hidden, 1], GAINS[1])?.tensors())?;
        let mut tensors = NamedTensors::default();
        for tensor in &policy.tensors() {
            let tensor = heads.find(&tensor.name).unwrap_or(tensor);
            tensors.push(tensor.name.clone(), &tensor.shape, tensor.data.clone())?;
        }
        policy.load(&tensors)?;
        Ok(policy)
    }
}

impl PolicyNetworks<Mlp> {
    /// Creates a policy with a value function from built-in networks, with the defaults of
    /// [`PolicyBuilder`].
    ///
    /// `net_arch` are the widths of the hidden layers.
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
        PolicyBuilder::new(spec).net_arch(net_arch).activation(activation).build(rng)
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
