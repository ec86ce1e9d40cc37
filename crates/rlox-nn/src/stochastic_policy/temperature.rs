//! What entropy is worth to SAC.

use rlox_core::{Error, Result};

use crate::losses::temperature_loss;
use crate::{NamedTensors, Optimizer, Parameters, clipped_step};

/// The weight alpha of the entropy, fixed or learned so that the entropy stays near a target (Haarnoja et al. 2018,
/// section 5).
///
/// ```
/// use rlox_nn::{Optimizer, Temperature};
///
/// let mut temperature = Temperature::learned(1.0, -1.0)?;
/// // The entropy, about 3, is above the target: it is worth less from now on.
/// temperature.update(&[-3.0, -3.1], &Optimizer::adam(3e-4))?;
/// assert!(temperature.alpha() < 1.0);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Temperature(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fixed(f32),
    Learned {
        /// The logarithm of alpha, one number.
        log_alpha: Parameters,
        target_entropy: f32,
    },
}

impl Temperature {
    /// One that stays.
    ///
    /// # Errors
    /// [`Error::Config`] for a number that is not finite, or below 0.
    pub fn fixed(alpha: f32) -> Result<Self> {
        crate::rows::check_not_negative("alpha", alpha)?;
        Ok(Self(Kind::Fixed(alpha)))
    }

    /// One that is learned, from `alpha` on, so that the entropy comes near the target; minus the number of an action's
    /// numbers is usual.
    ///
    /// # Errors
    /// [`Error::Config`] for an alpha that is not above 0, or a target that is not finite.
    pub fn learned(alpha: f32, target_entropy: f32) -> Result<Self> {
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(Error::config("alpha", "a positive number", alpha.to_string(), "begin with 1"));
        }
        if !target_entropy.is_finite() {
            let fix = "pass minus the number of an action's numbers";
            return Err(Error::config("target_entropy", "a finite number", target_entropy.to_string(), fix));
        }
        let log_alpha = Parameters::new("log_alpha", &[1], &[alpha.ln()])?;
        Ok(Self(Kind::Learned { log_alpha, target_entropy }))
    }

    /// The weight of the entropy.
    pub fn alpha(&self) -> f32 {
        match &self.0 {
            Kind::Fixed(alpha) => *alpha,
            Kind::Learned { log_alpha, .. } => log_alpha.values()[0].exp(),
        }
    }

    /// One step on [`temperature_loss`] for the log-probabilities of sampled actions, if it is learned; returns the loss.
    ///
    /// # Errors
    /// [`Error::Shape`] for no log-probabilities, [`Error::Config`] for some that are not finite; nothing has changed then.
    pub fn update(&mut self, log_probs: &[f32], optimizer: &Optimizer) -> Result<f32> {
        let Kind::Learned { log_alpha, target_entropy } = &mut self.0 else { return Ok(0.0) };
        optimizer.check()?;
        if let Some(row) = log_probs.iter().position(|log_prob| !log_prob.is_finite()) {
            let (got, hint) = (log_probs[row].to_string(), "look for extreme observations or weights");
            return Err(Error::not_finite("log_probs", "finite numbers", got, hint).at_row(row));
        }
        let (loss, gradient) = temperature_loss(log_alpha.values()[0], log_probs, *target_entropy)?;
        log_alpha.add_gradients([gradient].into_iter());
        clipped_step(&mut [("temperature", log_alpha)], optimizer, None)?;
        Ok(loss)
    }

    /// `log_alpha`, if it is learned.
    pub fn tensors(&self) -> NamedTensors {
        self.learns(Parameters::tensors)
    }

    /// Takes what [`Temperature::tensors`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`]; nothing has changed then.
    pub fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        match &mut self.0 {
            Kind::Fixed(_) => tensors.check(&NamedTensors::default()),
            Kind::Learned { log_alpha, .. } => log_alpha.load(tensors),
        }
    }

    /// What the optimiser keeps.
    pub fn optimizer_state(&self) -> NamedTensors {
        self.learns(Parameters::optimizer_state)
    }

    /// Takes what [`Temperature::optimizer_state`] gave.
    ///
    /// # Errors
    /// Those of [`NamedTensors::check`].
    pub fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        match &mut self.0 {
            Kind::Fixed(_) => state.check(&NamedTensors::default()),
            Kind::Learned { log_alpha, .. } => log_alpha.load_optimizer_state(state),
        }
    }

    fn learns(&self, of: impl Fn(&Parameters) -> NamedTensors) -> NamedTensors {
        match &self.0 {
            Kind::Fixed(_) => NamedTensors::default(),
            Kind::Learned { log_alpha, .. } => of(log_alpha),
        }
    }
}
