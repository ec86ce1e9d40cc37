//! Off-policy methods on the built-in network, initialised as torch does by default and Stable-Baselines3 with it.

use rlox_core::{EnvSpec, Error, Pcg64, Result, Space};

use crate::{Activation, DeterministicActor, Init, Mlp, QNetworks, SquashedPolicy, TwinCritics};

/// The widths of a network, hidden layers between its inputs and outputs.
pub(crate) fn sizes(inputs: usize, net_arch: &[usize], outputs: usize) -> Vec<usize> {
    [inputs].into_iter().chain(net_arch.iter().copied()).chain([outputs]).collect()
}

fn mlp(inputs: usize, net_arch: &[usize], outputs: usize, activation: Activation, rng: &mut Pcg64) -> Result<Mlp> {
    Mlp::new(&sizes(inputs, net_arch, outputs), activation, Init::Kaiming, rng)
}

/// Numbers in an action of a Box space.
fn action_dim(spec: &EnvSpec) -> Result<usize> {
    spec.action.validate("action space")?;
    if matches!(spec.action, Space::Box { .. }) {
        return Ok(spec.action.dim());
    }
    Err(Error::space("action space", "a Box", format!("{:?}", spec.action), "use DQN, PPO or A2C"))
}

impl QNetworks<Mlp> {
    /// A Q-function of the built-in network for an environment's spaces, with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for actions that are not Discrete.
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        spec.action.validate("action space")?;
        let Space::Discrete { n, .. } = spec.action else {
            let got = format!("{:?}", spec.action);
            return Err(Error::space("action space", "a Discrete one", got, "use SAC, TD3, PPO or A2C"));
        };
        let online = mlp(spec.observation.dim(), net_arch, n as usize, activation, rng)?;
        Self::new(online.clone(), online)
    }
}

impl TwinCritics<Mlp> {
    /// Critics of the built-in network for an environment's spaces, `n_critics` of them, each with hidden layers of these
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
        let (obs_dim, action_dim) = (spec.observation.dim(), action_dim(spec)?);
        let mut networks = Vec::new();
        for _ in 0..n_critics {
            let online = mlp(obs_dim + action_dim, net_arch, 1, activation, rng)?;
            networks.push([online.clone(), online]);
        }
        Self::new(networks, obs_dim)
    }
}

impl SquashedPolicy<Mlp> {
    /// A policy of the built-in network for an environment's spaces, with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for actions that are no Box.
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        let action_dim = action_dim(spec)?;
        Self::new(mlp(spec.observation.dim(), net_arch, 2 * action_dim, activation, rng)?, action_dim)
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
        let action_dim = action_dim(spec)?;
        let actor = mlp(spec.observation.dim(), net_arch, action_dim, activation, rng)?;
        Self::state_dependent(actor, action_dim, log_std_init)
    }
}

impl DeterministicActor<Mlp> {
    /// A policy of the built-in network for an environment's spaces, with hidden layers of these widths.
    ///
    /// # Errors
    /// [`Error::Config`] for a width of 0, [`Error::Space`] for actions that are no Box.
    pub fn mlp(spec: &EnvSpec, net_arch: &[usize], activation: Activation, rng: &mut Pcg64) -> Result<Self> {
        let online = mlp(spec.observation.dim(), net_arch, action_dim(spec)?, activation, rng)?;
        Self::new(online.clone(), online)
    }
}
