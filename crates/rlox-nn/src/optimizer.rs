//! Optimizers with torch's conventions, for parameters in one array.
//!
//! A line is 16 f32 in memory ([`AlignedF32x16`]).

use rlox_core::{Error, Result};

use crate::alloc::try_vec;
use crate::kernels::elementwise::{AdamStep, RmsPropStep, adam, rmsprop};
use crate::parallel::{STEP_WORK, join_if_worth};
use crate::simd::{AlignedF32x16, LANES, lines, numbers, numbers_mut};
use crate::validate::check_not_negative;
use crate::{NamedTensor, NamedTensors};

/// Decays of Adam's running means: torch's defaults.
pub(crate) const BETAS: [f32; 2] = [0.9, 0.999];
/// Decay of `RMSprop`'s running mean: torch's default.
pub(crate) const ALPHA: f32 = 0.99;
/// Epsilon of on-policy methods, as in Stable-Baselines3.
pub(crate) const ON_POLICY_EPS: f32 = 1e-5;
/// Epsilon of other methods: torch's default.
pub(crate) const EPS: f32 = 1e-8;
/// Largest learning rate. Steps with larger rates can leave the range of f32.
const MAX_LR: f32 = 1e30;

/// An optimizer and its hyperparameters.
///
/// ```
/// use rlox_nn::Optimizer;
///
/// let optimizer = Optimizer::adam(3e-4);
/// assert_eq!(optimizer, Optimizer::Adam { lr: 3e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8 });
/// assert!(Optimizer::adam(-1.0).check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization".
    Adam {
        /// Learning rate.
        lr: f32,
        /// Decay of the running mean of the gradients.
        beta1: f32,
        /// Decay of the running mean of the squared gradients.
        beta2: f32,
        /// Constant that is added to the square root of the running mean of squares.
        eps: f32,
    },
    /// Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
    AdamW {
        /// Learning rate.
        lr: f32,
        /// Decay of the running mean of the gradients.
        beta1: f32,
        /// Decay of the running mean of the squared gradients.
        beta2: f32,
        /// Constant that is added to the square root of the running mean of squares.
        eps: f32,
        /// Decoupled weight decay: each step multiplies the parameters by `1 - lr * weight_decay`.
        weight_decay: f32,
    },
    /// `RMSprop` without momentum (Tieleman and Hinton 2012), which A2C uses.
    RmsProp {
        /// Learning rate.
        lr: f32,
        /// Decay of the running mean of the squared gradients.
        alpha: f32,
        /// Constant that is added to the square root of the running mean of squares.
        eps: f32,
    },
}

impl Optimizer {
    /// Returns Adam with torch's defaults.
    pub fn adam(lr: f32) -> Self {
        let [beta1, beta2] = BETAS;
        Self::Adam { lr, beta1, beta2, eps: EPS }
    }

    /// Returns `AdamW` with torch's defaults.
    pub fn adam_w(lr: f32) -> Self {
        let [beta1, beta2] = BETAS;
        Self::AdamW { lr, beta1, beta2, eps: EPS, weight_decay: 0.01 }
    }

    /// Returns `RMSprop` with torch's defaults.
    pub fn rms_prop(lr: f32) -> Self {
        Self::RmsProp { lr, alpha: ALPHA, eps: EPS }
    }

    /// Returns the learning rate.
    pub fn lr(&self) -> f32 {
        match *self {
            Self::Adam { lr, .. } | Self::AdamW { lr, .. } | Self::RmsProp { lr, .. } => lr,
        }
    }

    /// Returns the same optimizer with another learning rate, for schedules.
    #[must_use]
    pub fn with_lr(mut self, rate: f32) -> Self {
        match &mut self {
            Self::Adam { lr, .. } | Self::AdamW { lr, .. } | Self::RmsProp { lr, .. } => *lr = rate,
        }
        self
    }

    /// Returns the same optimizer with another `eps`.
    #[must_use]
    pub fn with_eps(mut self, value: f32) -> Self {
        match &mut self {
            Self::Adam { eps, .. } | Self::AdamW { eps, .. } | Self::RmsProp { eps, .. } => *eps = value,
        }
        self
    }

    /// Returns the coefficients of the step with number `step`, counted from 1; 0 counts as 1.
    ///
    /// ```
    /// use rlox_nn::{Optimizer, Update};
    ///
    /// // The first step of Adam is as long as the learning rate.
    /// let Update::Adam { beta1, step_size, .. } = Optimizer::adam(1e-3).update(1) else { unreachable!() };
    /// assert!(((1.0 - beta1) * step_size - 1e-3).abs() < 1e-8);
    /// ```
    pub fn update(&self, step: u32) -> Update {
        let (lr, beta1, beta2, eps, weight_decay) = match *self {
            Self::RmsProp { lr, alpha, eps } => return Update::RmsProp { lr, alpha, eps },
            Self::Adam { lr, beta1, beta2, eps } => (lr, beta1, beta2, eps, 0.0),
            Self::AdamW { lr, beta1, beta2, eps, weight_decay } => (lr, beta1, beta2, eps, weight_decay),
        };
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(f64::from(step.max(1)));
        Update::Adam {
            beta1,
            beta2,
            eps,
            step_size: (f64::from(lr) / correction(beta1)) as f32,
            root_scale: (1.0 / correction(beta2).sqrt()) as f32,
            decay: (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32,
        }
    }

    /// Checks the hyperparameters.
    ///
    /// # Errors
    /// [`Error::Config`] naming the hyperparameter that is out of range.
    pub fn check(&self) -> Result<()> {
        let (lr, decays, eps, weight_decay) = match *self {
            Self::Adam { lr, beta1, beta2, eps } => (lr, [("beta1", beta1), ("beta2", beta2)], eps, 0.0),
            Self::AdamW { lr, beta1, beta2, eps, weight_decay } => {
                (lr, [("beta1", beta1), ("beta2", beta2)], eps, weight_decay)
            }
            Self::RmsProp { lr, alpha, eps } => (lr, [("alpha", alpha); 2], eps, 0.0),
        };
        let out_of_range = |name, expected: &str, got: f32| {
            Err(Error::config(name, expected, got.to_string(), "pass a number in that range"))
        };
        if !(0.0..=MAX_LR).contains(&lr) {
            return out_of_range("lr", "a number from 0 to 1e30", lr);
        }
        if let Some((name, beta)) = decays.into_iter().find(|(_, beta)| !(0.0..1.0).contains(beta)) {
            return out_of_range(name, "a number of at least 0 and below 1", beta);
        }
        if !(eps.is_finite() && eps > 0.0) {
            return out_of_range("eps", "a positive number", eps);
        }
        if !(weight_decay.is_finite() && weight_decay >= 0.0) {
            return out_of_range("weight_decay", "a finite number of at least 0", weight_decay);
        }
        Ok(())
    }

    /// Checks that a step with gradients times `scale` is possible, before a backend changes
    /// anything.
    ///
    /// `grad_sq` is the sum of the squares of the gradients. `gradients` is called only if an error
    /// names a gradient.
    ///
    /// # Errors
    /// - The errors of [`Optimizer::check`].
    /// - [`Error::Config`]: `scale` is negative or not finite.
    /// - [`Error::NotFinite`]: the squares are not finite or leave the range of f32. The error
    ///   names the first gradient that is not finite, or else the largest gradient.
    ///
    /// An infinite running mean of squares would prevent all later changes of its parameter.
    ///
    /// ```
    /// use rlox_nn::{NamedTensors, Optimizer};
    ///
    /// let gradients = NamedTensors::default;
    /// assert!(Optimizer::adam(1e-3).check_step(1.0, 4.0, gradients).is_ok());
    /// assert!(Optimizer::adam(1e-3).check_step(f32::NAN, 4.0, gradients).is_err());
    /// assert!(Optimizer::adam(1e-3).check_step(1.0, 1e39, gradients).is_err());
    /// ```
    pub fn check_step(&self, scale: f32, grad_sq: f64, gradients: impl FnOnce() -> NamedTensors) -> Result<()> {
        self.check()?;
        check_not_negative("scale", scale)?;
        check_squares(scale, grad_sq, || gradients().into_iter().collect())
    }
}

/// Checks that the squares of gradients times `scale` fit into f32.
///
/// `squares` is the sum of the squares before scaling.
///
/// # Errors
/// [`Error::NotFinite`] naming the first gradient that is not finite, or else the largest gradient.
pub(crate) fn check_squares(scale: f32, squares: f64, gradients: impl FnOnce() -> Vec<NamedTensor>) -> Result<()> {
    // Half of the largest f32 leaves a margin for rounding errors.
    const MAX: f64 = f32::MAX as f64 / 2.0;
    let fits = (squares.sqrt() as f32).is_finite() && squares * f64::from(scale).powi(2) <= MAX;
    if fits { Ok(()) } else { Err(not_finite(&gradients())) }
}

/// Returns the error that names the first gradient that is not finite, or else the largest
/// gradient.
fn not_finite(gradients: &[NamedTensor]) -> Error {
    let first = gradients.iter().find_map(|tensor| Some((tensor, tensor.first_not_finite()?)));
    let largest = || {
        let numbers = gradients.iter().flat_map(|tensor| (0..tensor.data.len()).map(move |index| (tensor, index)));
        let size = |(tensor, index): (&NamedTensor, usize)| tensor.data[index].abs();
        numbers.reduce(|most, next| if size(next) > size(most) { next } else { most })
    };
    let hint = "lower the learning rate, or check rewards and observations for extreme values";
    let error = |got| Error::not_finite("gradients", "finite numbers", got, hint);
    match (first, largest()) {
        (Some((tensor, index)), _) => tensor.locate(error(tensor.data[index].to_string()), index),
        (None, Some((tensor, index))) => {
            tensor.locate(error(format!("{}, whose square overflows", tensor.data[index])), index)
        }
        (None, None) => error(String::new()),
    }
}

/// Coefficients of the optimizer step with number `t`.
///
/// `g` is the gradient of a parameter `p`, and `m` and `v` are the running means of `g` and `g^2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// Step of Adam or `AdamW`.
    ///
    /// `m = beta1 m + (1 - beta1) g`, `v = beta2 v + (1 - beta2) g^2`,
    /// `p = decay p - step_size m / (root_scale sqrt(v) + eps)`.
    Adam {
        /// Decay of `m`.
        beta1: f32,
        /// Decay of `v`.
        beta2: f32,
        /// Constant that is added to the square root.
        eps: f32,
        /// Learning rate divided by `1 - beta1^t`.
        step_size: f32,
        /// `1 / sqrt(1 - beta2^t)`.
        root_scale: f32,
        /// Factor that multiplies the parameters before the step; 1 without weight decay.
        decay: f32,
    },
    /// Step of `RMSprop`: `v = alpha v + (1 - alpha) g^2`, `p -= lr g / (sqrt(v) + eps)`.
    RmsProp {
        /// Learning rate.
        lr: f32,
        /// Decay of `v`.
        alpha: f32,
        /// Constant that is added to the square root.
        eps: f32,
    },
}

impl Update {
    /// Applies the step to slices; returns true if all parameters stay finite.
    ///
    /// Backends on the CPU can use this method. [`Optimizer::check_step`] must have accepted the
    /// gradients and `scale`, by which they are multiplied. `mean` and `square` are the running
    /// means `m` and `v`. Elements beyond the end of the shortest slice do not change.
    ///
    /// ```
    /// use rlox_nn::Optimizer;
    ///
    /// let (mut mean, mut square, mut parameters) = ([0.0], [0.0], [1.0]);
    /// assert!(Optimizer::adam(0.25).update(1).apply(1.0, &[3.0], [&mut mean, &mut square], &mut parameters));
    /// assert!((parameters[0] - 0.75_f32).abs() < 1e-6);
    /// ```
    pub fn apply(self, scale: f32, gradients: &[f32], [mean, square]: [&mut [f32]; 2], parameters: &mut [f32]) -> bool {
        // Lines are aligned, but slices need not be. Numbers are copied to lines and back, this
        // many lines at a time.
        const BLOCK: usize = 16;
        let (mut block, mut finite) = ([[AlignedF32x16::ZERO; BLOCK]; 4], true);
        let chunks = mean.chunks_mut(BLOCK * LANES).zip(square.chunks_mut(BLOCK * LANES));
        let chunks = chunks.zip(parameters.chunks_mut(BLOCK * LANES)).zip(gradients.chunks(BLOCK * LANES));
        for (((mean, square), parameters), gradients) in chunks {
            let count = mean.len().min(square.len()).min(parameters.len()).min(gradients.len());
            let [g, m, v, p] = block.each_mut().map(|block| &mut block[..lines(count)]);
            for (to, from) in [(&mut *g, gradients), (&mut *m, &*mean), (&mut *v, &*square), (&mut *p, &*parameters)] {
                let (to, padding) = numbers_mut(to).split_at_mut(count);
                to.copy_from_slice(&from[..count]);
                // Removes the numbers of the previous block.
                padding.fill(0.0);
            }
            finite &= self.apply_to_lines(scale, g, m, v, p);
            for (to, from) in [(mean, &*m), (square, &*v), (parameters, &*p)] {
                to[..count].copy_from_slice(&numbers(from)[..count]);
            }
        }
        finite
    }

    fn apply_to_lines(
        self,
        scale: f32,
        g: &[AlignedF32x16],
        m: &mut [AlignedF32x16],
        v: &mut [AlignedF32x16],
        p: &mut [AlignedF32x16],
    ) -> bool {
        match self {
            Self::RmsProp { lr, alpha, eps } => rmsprop(RmsPropStep { lr, alpha, eps, scale }, g, v, p),
            Self::Adam { beta1, beta2, eps, step_size, root_scale, decay } => {
                adam(AdamStep { beta1, beta2, eps, step_size, root_scale, decay, scale }, g, m, v, p)
            }
        }
    }
}

/// State of an optimizer: the number of steps, and running means of gradients and their squares.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) step: u32,
    pub(crate) mean: Vec<AlignedF32x16>,
    pub(crate) square: Vec<AlignedF32x16>,
}

impl Moments {
    /// Returns running means of 0 for parameters in `lines` lines.
    ///
    /// # Errors
    /// [`Error::Memory`] naming `argument`, which determines the number of lines.
    pub(crate) fn new(argument: &'static str, lines: usize) -> Result<Self> {
        let means = || try_vec(argument, lines, AlignedF32x16::ZERO);
        Ok(Self { step: 0, mean: means()?, square: means()? })
    }

    /// Applies one optimizer step to all parameters; returns true if all parameters stay finite.
    ///
    /// Two threads share the parameters if that is faster. The second thread starts at line
    /// `middle`.
    ///
    /// # Errors
    /// [`Error::Closed`] in a process that was forked during the step.
    pub(crate) fn apply(
        &mut self,
        optimizer: &Optimizer,
        scale: f32,
        gradients: &[AlignedF32x16],
        parameters: &mut [AlignedF32x16],
        middle: usize,
    ) -> Result<bool> {
        self.step = self.step.saturating_add(1);
        let update = optimizer.update(self.step);
        let ((g, g_rest), (p, p_rest)) = (gradients.split_at(middle), parameters.split_at_mut(middle));
        let ((m, m_rest), (v, v_rest)) = (self.mean.split_at_mut(middle), self.square.split_at_mut(middle));
        let (first, second) = join_if_worth(
            STEP_WORK * LANES * middle.min(gradients.len() - middle),
            || Ok(update.apply_to_lines(scale, g, m, v, p)),
            || Ok(update.apply_to_lines(scale, g_rest, m_rest, v_rest, p_rest)),
        )?;
        Ok(first && second)
    }
}

/// Torch's names of the running means of gradients and of their squares.
pub(crate) const MEANS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Torch's name of the number of steps.
pub(crate) const STEP: &str = "step";

/// Checks the names and shapes of an optimizer state, and that its numbers are possible.
///
/// Callers that load a state into several parts check the complete state first, so that an error
/// changes nothing.
///
/// # Errors
/// - The errors of [`NamedTensors::check`].
/// - [`Error::Config`]: a number of steps is not an integer of at least 0, or a mean of squares is
///   negative. The error names the tensor.
pub(crate) fn check_state(state: &NamedTensors, expected: &NamedTensors) -> Result<()> {
    state.check(expected).map_err(|error| error.rename_argument("tensors", "state"))?;
    for NamedTensor { name, data, .. } in state {
        let kind = name.rsplit('.').next();
        let (wanted, is_integer) = match kind {
            Some(STEP) => ("a non-negative integer", true),
            Some(kind) if kind == MEANS[1] => ("non-negative numbers", false),
            _ => continue,
        };
        if let Some(invalid) = data.iter().find(|x| **x < 0.0 || (is_integer && x.fract() != 0.0)) {
            let hint = "pass a state that optimizer_state returned";
            return Err(Error::config("state", wanted, invalid.to_string(), hint).in_section(name.clone()));
        }
    }
    Ok(())
}

/// Returns the number of steps from the tensor `name` of a state that [`check_state`] has accepted.
pub(crate) fn read_step(state: &NamedTensors, name: &str) -> u32 {
    state.find(name).and_then(|step| step.data.first()).map_or(0, |step| *step as u32)
}
