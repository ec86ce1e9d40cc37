//! Settings of soft actor-critic.

use rlox_core::{EnvSpec, Error, NormalizerOptions, Pcg64, Result};

use crate::train::experience::{Gathering, gathering};
use crate::train::{ActionNoise, Schedule, Setting, Settings, check_counts, check_share, settings};
use crate::{Activation, Mlp, Optimizer, SquashedPolicy, Temperature, TwinCritics};

/// What entropy is worth to SAC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EntCoef {
    /// Learned, from `initial` on, so that the entropy comes near a target.
    Auto {
        /// What it begins with, above 0.
        initial: f32,
        /// The target; `None` for minus the number of an action's numbers.
        target_entropy: Option<f32>,
    },
    /// Always this.
    Fixed(f32),
}

/// Settings of SAC. The names and defaults are Stable-Baselines3's.
#[derive(Clone, Debug, PartialEq)]
pub struct SacConfig {
    /// Transitions that are kept.
    pub buffer_size: usize,
    /// Environment steps with random actions; learning begins after them.
    pub learning_starts: u64,
    /// Transitions in a minibatch; fewer while fewer are stored.
    pub batch_size: usize,
    /// Steps of each environment between updates.
    pub train_freq: usize,
    /// Minibatches an update learns from; `None`, their -1, for as many as transitions were collected.
    pub gradient_steps: Option<usize>,
    /// Minibatches for each transition, in place of that; what is left of a minibatch counts the next time.
    pub utd_ratio: Option<f64>,
    /// Steps that a transition spans.
    pub n_steps: usize,
    /// Discount.
    pub gamma: f64,
    /// The share by which target networks follow.
    pub tau: f32,
    /// Minibatches between two moves of the target networks.
    pub target_update_interval: usize,
    /// The optimiser of actor, critics and temperature, and the learning rate to begin with.
    pub optimizer: Optimizer,
    /// How the learning rate moves.
    pub lr_schedule: Schedule,
    /// What entropy is worth.
    pub ent_coef: EntCoef,
    /// Noise beside the policy's own; `None` for none.
    pub action_noise: Option<ActionNoise>,
    /// Whether exploration depends on the state ([`SquashedPolicy::state_dependent`]).
    pub use_sde: bool,
    /// Steps until the noise of state-dependent exploration is drawn anew; 0, their -1, for once an iteration.
    pub sde_sample_freq: usize,
    /// Whether state-dependent exploration takes the place of random actions in the beginning.
    pub use_sde_at_warmup: bool,
    /// Where the logarithms of the standard deviations of state-dependent exploration begin.
    pub log_std_init: f32,
    /// Normalisation of observations and rewards; `None` for neither.
    pub normalize: Option<NormalizerOptions>,
}

impl Default for SacConfig {
    fn default() -> Self {
        Self {
            buffer_size: 1_000_000,
            learning_starts: 100,
            batch_size: 256,
            train_freq: 1,
            gradient_steps: Some(1),
            utd_ratio: None,
            n_steps: 1,
            gamma: 0.99,
            tau: 0.005,
            target_update_interval: 1,
            optimizer: Optimizer::adam(3e-4),
            lr_schedule: Schedule::Constant,
            ent_coef: EntCoef::Auto { initial: 1.0, target_entropy: None },
            action_noise: None,
            use_sde: false,
            sde_sample_freq: 0,
            use_sde_at_warmup: false,
            log_std_init: -3.0,
            normalize: None,
        }
    }
}

impl SacConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] naming the one that is out of range.
    pub fn check(&self) -> Result<()> {
        self.gathering().check()?;
        check_share("tau", f64::from(self.tau))?;
        check_counts(&[("target_update_interval", self.target_update_interval)])?;
        self.optimizer.check()?;
        self.temperature(1).map_err(|error| error.rename_argument("alpha", "ent_coef"))?;
        self.action_noise.map_or(Ok(()), |noise| noise.check())?;
        if self.use_sde_at_warmup && !self.use_sde {
            let fix = "set use_sde, or leave this";
            return Err(Error::config("use_sde_at_warmup", "false without use_sde", "true", fix));
        }
        if self.log_std_init.is_finite() {
            return Ok(());
        }
        Err(Error::config("log_std_init", "a finite number", self.log_std_init.to_string(), "begin with -3"))
    }

    /// Policy and two critics of the built-in network with these settings, with hidden layers of these widths: 256 and 256
    /// in Stable-Baselines3.
    ///
    /// # Errors
    /// Those of [`SquashedPolicy::mlp`], [`SquashedPolicy::mlp_with_sde`] and [`TwinCritics::mlp`].
    pub fn mlp(
        &self,
        spec: &EnvSpec,
        net_arch: &[usize],
        rng: &mut Pcg64,
    ) -> Result<(SquashedPolicy<Mlp>, TwinCritics<Mlp>)> {
        let policy = if self.use_sde {
            SquashedPolicy::mlp_with_sde(spec, net_arch, Activation::Relu, self.log_std_init, rng)?
        } else {
            SquashedPolicy::mlp(spec, net_arch, Activation::Relu, rng)?
        };
        Ok((policy, TwinCritics::mlp(spec, net_arch, Activation::Relu, 2, rng)?))
    }

    pub(super) fn gathering(&self) -> Gathering {
        gathering!(self, None)
    }

    /// The temperature for actions of so many numbers.
    pub(super) fn temperature(&self, dim: usize) -> Result<Temperature> {
        match self.ent_coef {
            EntCoef::Auto { initial, target_entropy } => {
                Temperature::learned(initial, target_entropy.unwrap_or(-(dim as f32)))
            }
            EntCoef::Fixed(alpha) => Temperature::fixed(alpha),
        }
    }

    /// The settings by the names that checkpoints have for them, but for those of gathering.
    pub(super) fn settings(&self) -> Settings {
        use Setting::{Auto, Count, Flag, Once, Single, Word};
        let (ent_coef, target_entropy) = match self.ent_coef {
            EntCoef::Auto { initial, target_entropy } => (Auto(initial), target_entropy),
            EntCoef::Fixed(alpha) => (Single(alpha), None),
        };
        let every = self.sde_sample_freq;
        let mut settings = vec![
            ("tau", Single(self.tau)),
            ("target_update_interval", Count(self.target_update_interval)),
            ("lr_schedule", self.lr_schedule.into()),
            ("action_noise", self.action_noise.into()),
            ("use_sde", Flag(self.use_sde)),
            ("sde_sample_freq", if every == 0 { Once } else { Count(every) }),
            ("use_sde_at_warmup", Flag(self.use_sde_at_warmup)),
        ];
        if matches!(ent_coef, Auto(_)) {
            settings.push(("target_entropy", target_entropy.map_or(Word("auto"), Single)));
        }
        settings.push(("ent_coef", ent_coef));
        settings.extend(settings::optimizer(self.optimizer));
        settings
    }
}
