//! Action noise for the exploration of deterministic policies.
//!
//! Shapes use `N` for the number of environments and `a` for the number of action components.

use rlox_core::{Error, Pcg64, Result, error::check_len};

use crate::alloc::resize;
use crate::distribution::draw_normal;
use crate::validate;

/// Noise for actions in [-1, 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ActionNoise {
    /// Independent normal noise at each step.
    Gaussian {
        /// Standard deviation; rl-zoo3 uses 0.1 for TD3.
        sigma: f32,
    },
    /// Ornstein-Uhlenbeck process: starts at 0 in every episode, and drifts towards 0.
    ///
    /// A step is `x += -theta x dt + sigma sqrt(dt) n` with a standard normal `n` (Uhlenbeck and Ornstein 1930;
    /// Lillicrap et al. 2016).
    OrnsteinUhlenbeck {
        /// Standard deviation per unit of time.
        sigma: f32,
        /// Rate of the drift towards 0. A common value is 0.15.
        theta: f32,
        /// Time between two steps; 0.01 in Stable-Baselines3.
        dt: f32,
    },
}

impl ActionNoise {
    /// Returns an Ornstein-Uhlenbeck process with Stable-Baselines3's defaults, `theta` 0.15 and `dt` 0.01.
    pub fn ornstein_uhlenbeck(sigma: f32) -> Self {
        Self::OrnsteinUhlenbeck { sigma, theta: 0.15, dt: 0.01 }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::Config`] for the first parameter that is not finite or below 0, and for `theta * dt` of at least 2.
    pub fn check(&self) -> Result<()> {
        let (sigma, theta, dt) = match *self {
            Self::Gaussian { sigma } => (sigma, 0.0, 0.0),
            Self::OrnsteinUhlenbeck { sigma, theta, dt } => (sigma, theta, dt),
        };
        validate::check_not_negative("action_noise.sigma", sigma)?;
        validate::check_not_negative("action_noise.theta", theta)?;
        validate::check_not_negative("action_noise.dt", dt)?;
        // The variance is unbounded if theta * dt is at least 2. The product may be infinite.
        if theta * dt < 2.0 {
            return Ok(());
        }
        let got = format!("{theta} * {dt}");
        Err(Error::config("action_noise.dt", "theta * dt below 2", got, "lower theta or dt"))
    }
}

/// Action noise of `N` environments.
///
/// ```
/// use rlox_core::Pcg64;
/// use rlox_nn::train::{ActionNoise, NoiseProcess};
///
/// let mut noise = NoiseProcess::new(ActionNoise::ornstein_uhlenbeck(0.5), 2, 1)?;
/// let mut rngs = [Pcg64::seed_from(1), Pcg64::seed_from(2)];
/// let mut actions = [0.0, 0.99];
/// noise.apply(&mut rngs, &mut actions)?;
/// assert!(actions[0] != 0.0 && actions[1] <= 1.0);
/// noise.end_episodes(|env| env == 0);
/// assert_eq!(noise.state()[0], 0.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NoiseProcess {
    noise: ActionNoise,
    dim: usize,
    /// State of each environment's process, `[N, a]`. For Gaussian noise, the last noise.
    state: Vec<f32>,
    drawn: Vec<f32>,
}

impl NoiseProcess {
    /// Creates the noise of `num_envs` environments with actions of `dim` components.
    ///
    /// # Errors
    /// Errors of [`ActionNoise::check`], [`Error::Config`] if `num_envs` or `dim` is 0, [`Error::Memory`] if memory is
    /// insufficient.
    pub fn new(noise: ActionNoise, num_envs: usize, dim: usize) -> Result<Self> {
        noise.check()?;
        super::check_counts(&[("num_envs", num_envs), ("dim", dim)])?;
        let [mut state, mut drawn] = [Vec::new(), Vec::new()];
        resize("num_envs", &mut state, num_envs.saturating_mul(dim), 0.0)?;
        resize("num_envs", &mut drawn, dim, 0.0)?;
        Ok(Self { noise, dim, state, drawn })
    }

    /// Advances the noise by one step, adds it to `actions`, `[N, a]`, and clips them to [-1, 1].
    ///
    /// The noise of environment i is drawn from `rngs[i]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices of wrong lengths.
    pub fn apply(&mut self, rngs: &mut [Pcg64], actions: &mut [f32]) -> Result<()> {
        let Self { noise, dim, state, drawn } = self;
        check_len("actions", actions.len(), state.len())?;
        check_len("rngs", rngs.len(), state.len() / *dim)?;
        for (state, rng) in state.chunks_exact_mut(*dim).zip(rngs) {
            draw_normal(drawn, rng);
            for (x, drawn) in state.iter_mut().zip(&*drawn) {
                *x = match *noise {
                    ActionNoise::Gaussian { sigma } => sigma * drawn,
                    ActionNoise::OrnsteinUhlenbeck { sigma, theta, dt } => {
                        *x - theta * *x * dt + sigma * dt.sqrt() * drawn
                    }
                };
            }
        }
        actions.iter_mut().zip(&*state).for_each(|(action, x)| *action = (*action + x).clamp(-1.0, 1.0));
        Ok(())
    }

    /// Resets the processes of environments whose episodes have ended.
    pub fn end_episodes(&mut self, ended: impl Fn(usize) -> bool) {
        for (env, state) in self.state.chunks_exact_mut(self.dim).enumerate() {
            if ended(env) {
                state.fill(0.0);
            }
        }
    }

    /// Returns the state of each environment's process, `[N, a]`.
    pub fn state(&self) -> &[f32] {
        &self.state
    }

    /// Restores a state that [`NoiseProcess::state`] returned.
    ///
    /// # Errors
    /// [`Error::Shape`] for a slice of the wrong length, [`Error::NotFinite`] for numbers that are
    /// not finite. Nothing changes then.
    pub fn set_state(&mut self, state: &[f32]) -> Result<()> {
        check_len("noise", state.len(), self.state.len())?;
        validate::check_finite("noise", state, self.dim)?;
        self.state.copy_from_slice(state);
        Ok(())
    }
}
