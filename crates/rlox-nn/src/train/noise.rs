//! Noise that deterministic policies explore with.

use rlox_core::{Error, Pcg64, Result, check_len};

use crate::alloc::resize;
use crate::distribution::draw_normal;
use crate::validate;

/// What is added to actions between -1 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ActionNoise {
    /// Normal numbers, each step's apart from the others.
    Gaussian {
        /// Standard deviation; rl-zoo3 has 0.1 for TD3.
        sigma: f32,
    },
    /// A walk that is drawn back to 0, `x += -theta x dt + sigma sqrt(dt) n` with a standard normal n (Uhlenbeck and Ornstein
    /// 1930; Lillicrap et al. 2016). It begins at 0 in every episode.
    OrnsteinUhlenbeck {
        /// Standard deviation of a unit of time.
        sigma: f32,
        /// How fast it is drawn back; 0.15 is usual.
        theta: f32,
        /// Time between two steps; Stable-Baselines3 has 0.01.
        dt: f32,
    },
}

impl ActionNoise {
    /// An Ornstein-Uhlenbeck process with Stable-Baselines3's defaults, `theta` 0.15 and `dt` 0.01.
    pub fn ornstein_uhlenbeck(sigma: f32) -> Self {
        Self::OrnsteinUhlenbeck { sigma, theta: 0.15, dt: 0.01 }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::Config`] naming the one that is not finite, or below 0.
    pub fn check(&self) -> Result<()> {
        let (sigma, theta, dt) = match *self {
            Self::Gaussian { sigma } => (sigma, 0.0, 0.0),
            Self::OrnsteinUhlenbeck { sigma, theta, dt } => (sigma, theta, dt),
        };
        validate::check_not_negative("action_noise.sigma", sigma)?;
        validate::check_not_negative("action_noise.theta", theta)?;
        validate::check_not_negative("action_noise.dt", dt)?;
        // At 2 its variance grows without end; theta * dt may be infinite.
        if theta * dt < 2.0 {
            return Ok(());
        }
        let got = format!("{theta} * {dt}");
        Err(Error::config("action_noise.dt", "theta * dt below 2, or the walk grows", got, "shorten dt"))
    }
}

/// The noise of some environments.
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
    /// Where each environment's process is, `[N, a]`; of Gaussian noise what was drawn last.
    state: Vec<f32>,
    drawn: Vec<f32>,
}

impl NoiseProcess {
    /// The noise of `num_envs` environments with actions of `dim` numbers.
    ///
    /// # Errors
    /// Those of [`ActionNoise::check`], [`Error::Config`] for actions without numbers, [`Error::Memory`] if there is no room.
    pub fn new(noise: ActionNoise, num_envs: usize, dim: usize) -> Result<Self> {
        noise.check()?;
        super::check_counts(&[("num_envs", num_envs), ("dim", dim)])?;
        let [mut state, mut drawn] = [Vec::new(), Vec::new()];
        resize("num_envs", &mut state, num_envs.saturating_mul(dim), 0.0)?;
        resize("num_envs", &mut drawn, dim, 0.0)?;
        Ok(Self { noise, dim, state, drawn })
    }

    /// Moves on by a step and adds the noise to actions, `[N, a]`, which stay within [-1, 1]: that of environment i is drawn
    /// from `rngs[i]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices of other lengths.
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

    /// Begins anew in the environments whose episodes have ended.
    pub fn end_episodes(&mut self, ended: impl Fn(usize) -> bool) {
        for (env, state) in self.state.chunks_exact_mut(self.dim).enumerate() {
            if ended(env) {
                state.fill(0.0);
            }
        }
    }

    /// Where each environment's process is, `[N, a]`.
    pub fn state(&self) -> &[f32] {
        &self.state
    }

    /// Goes on from where a process was.
    ///
    /// # Errors
    /// [`Error::Shape`] for a slice of another length, [`Error::Config`] for numbers that are not finite. Nothing has changed
    /// then.
    pub fn set_state(&mut self, state: &[f32]) -> Result<()> {
        check_len("noise", state.len(), self.state.len())?;
        validate::check_finite("noise", state, self.dim)?;
        self.state.copy_from_slice(state);
        Ok(())
    }
}
