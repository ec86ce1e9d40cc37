//! Distributions of actions: samples, modes, log-probabilities, entropies and their gradients.

mod bernoulli;
mod categorical;
mod gaussian;
mod sde;
mod squashed;

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Result, Space, error::check_len};

use crate::alloc::resize;
use crate::{Parameters, validate};
use bernoulli::Bernoulli;
use categorical::Categorical;
use gaussian::Gaussian;
pub(crate) use gaussian::draw_normal;
use sde::StateDependent;
pub(crate) use sde::{Exploration, Explored};
pub(crate) use squashed::Squash;
pub use squashed::SquashedGaussian;

/// Network outputs and action masks for a batch of N rows.
#[derive(Clone, Copy, Debug)]
pub struct DistInputs<'a> {
    /// Outputs of the network, `[N, outputs]`.
    pub outputs: &'a [f32],
    /// Last hidden layer, `[N, hidden]`, which only state-dependent exploration reads.
    pub hidden: &'a [f32],
    /// Flags that are true for allowed actions, `[N, outputs]`.
    ///
    /// Masks of MultiBinary spaces have the shape `[N, 2 outputs]`, with two flags for the values 0
    /// and 1 of each component.
    pub masks: Option<&'a [bool]>,
}

/// Distribution of actions, parameterized by the outputs of a network.
///
/// ```
/// use rlox_core::{Actions, Space};
/// use rlox_nn::{Distribution, DistInputs};
///
/// let mut policy = Distribution::new(&Space::discrete(2), 0.0)?;
/// let inputs = DistInputs { outputs: &[0.0, 0.0], hidden: &[], masks: None };
/// let (mut log_probs, mut entropies) = ([0.0], [0.0]);
/// policy.evaluate(inputs, Actions::Discrete(&[1]), &mut log_probs, &mut entropies)?;
/// assert!((log_probs[0] - 0.5_f32.ln()).abs() < 1e-6 && (entropies[0] - 2.0_f32.ln()).abs() < 1e-6);
/// // A larger logit of action 1 increases its log-probability.
/// let mut d_outputs = [0.0; 2];
/// policy.backward(inputs, Actions::Discrete(&[1]), &[1.0], 0.0, &mut d_outputs)?;
/// assert_eq!(d_outputs, [-0.5, 0.5]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Distribution {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// One or several independent choices of an integer.
    Categorical(Categorical),
    /// Independent components that are 0 or 1.
    Bernoulli(Bernoulli),
    /// Independent normal distributions with standard deviations that do not depend on the
    /// observation.
    Gaussian(Gaussian),
    /// Generalised state-dependent exploration (gSDE).
    StateDependent(StateDependent),
}

impl Distribution {
    /// Returns the distribution for an action space.
    ///
    /// The distribution is categorical for Discrete and MultiDiscrete, Bernoulli for MultiBinary,
    /// and a diagonal Gaussian for Box. The Gaussian has one log standard deviation per action
    /// element, with the initial value `log_std_init`.
    ///
    /// # Errors
    /// - [`Error::Space`]: the space is invalid or has too many values.
    /// - [`Error::Config`]: `log_std_init` is outside [-20, 20].
    /// - [`Error::Memory`]: the parameters for a Box do not fit into memory.
    pub fn new(space: &Space, log_std_init: f32) -> Result<Self> {
        let masks = mask_width(space)?;
        check_log_std(log_std_init, "start with 0, which is a standard deviation of 1")?;
        let kind = match space {
            Space::Discrete { n, .. } => Kind::Categorical(Categorical::new(&[*n], masks)),
            Space::MultiDiscrete { nvec } => Kind::Categorical(Categorical::new(nvec, masks)),
            Space::MultiBinary { n } => Kind::Bernoulli(Bernoulli::new(*n)),
            Space::Box { .. } => Kind::Gaussian(Gaussian::new(space.dim(), log_std_init)?),
        };
        Ok(Self { kind })
    }

    /// Returns generalised state-dependent exploration (gSDE) for a Box space.
    ///
    /// The exploration noise is a random matrix times the last hidden layer, which has `hidden`
    /// units (Raffin et al. 2021, "Smooth Exploration for Robotic Reinforcement Learning").
    /// [`Distribution::draw_noise`] draws a matrix for each environment.
    ///
    /// # Errors
    /// - [`Error::Space`]: the space is invalid or not a Box.
    /// - [`Error::Config`]: `hidden` is 0, or `log_std_init` is outside [-20, 20].
    /// - [`Error::Memory`]: a matrix of `hidden` times action elements does not fit into memory.
    pub fn state_dependent(space: &Space, hidden: usize, log_std_init: f32) -> Result<Self> {
        space.validate("action space")?;
        check_log_std(log_std_init, "start with 0, which is a standard deviation of 1")?;
        if !matches!(space, Space::Box { .. }) {
            let fix = "disable use_sde for this action space";
            return Err(Error::space("use_sde", "a Box action space", format!("{space:?}"), fix));
        }
        if hidden == 0 {
            return Err(Error::config("use_sde", "a hidden layer", "none", "use a network with a hidden layer"));
        }
        let result = StateDependent::new(hidden, space.dim(), log_std_init);
        Ok(Self { kind: Kind::StateDependent(result.map_err(|error| error.rename_argument("shape", "hidden"))?) })
    }

    /// Returns the number of network outputs per row.
    pub fn outputs(&self) -> usize {
        match &self.kind {
            Kind::Categorical(it) => it.outputs(),
            Kind::Bernoulli(it) => it.dim,
            Kind::Gaussian(it) => it.dim,
            Kind::StateDependent(it) => it.dim,
        }
    }

    /// Returns the number of elements of an action.
    pub fn action_dim(&self) -> usize {
        match &self.kind {
            Kind::Categorical(it) => it.action_dim(),
            _ => self.outputs(),
        }
    }

    /// Returns the parameters outside the network, which are log standard deviations, or `None` if
    /// there are none.
    pub fn parameters(&self) -> Option<&Parameters> {
        match &self.kind {
            Kind::Categorical(_) | Kind::Bernoulli(_) => None,
            Kind::Gaussian(it) => Some(&it.log_std),
            Kind::StateDependent(it) => Some(&it.log_std),
        }
    }

    /// Returns a mutable reference to the parameters outside the network, or `None` if there are
    /// none.
    pub fn parameters_mut(&mut self) -> Option<&mut Parameters> {
        match &mut self.kind {
            Kind::Categorical(_) | Kind::Bernoulli(_) => None,
            Kind::Gaussian(it) => Some(&mut it.log_std),
            Kind::StateDependent(it) => Some(&mut it.log_std),
        }
    }

    /// Returns the number of units of the last hidden layer if the distribution reads this layer,
    /// else 0.
    pub fn hidden_dim(&self) -> usize {
        if let Kind::StateDependent(it) = &self.kind { it.hidden } else { 0 }
    }

    /// Draws new random matrices of state-dependent exploration, for environment `i` from
    /// `rngs[i]`.
    ///
    /// Distributions without state-dependent exploration do nothing.
    ///
    /// # Errors
    /// [`Error::Memory`] if the matrices do not fit into memory.
    pub fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        if let Kind::StateDependent(it) = &mut self.kind { it.draw_noise(rngs) } else { Ok(()) }
    }

    /// Exchanges the random matrices of all environments with the matrices in `noise`, which may be
    /// empty.
    pub(crate) fn swap_noise(&mut self, noise: &mut Vec<f32>) {
        if let Kind::StateDependent(it) = &mut self.kind {
            std::mem::swap(&mut it.noise, noise);
        }
    }

    /// Draws actions and computes their log-probabilities, `[N]`.
    ///
    /// The action of row `i` uses only the random generator `rngs[i]`.
    ///
    /// # Errors
    /// - [`Error::Shape`]: a slice has the wrong length.
    /// - [`Error::Space`]: actions have the wrong type.
    /// - [`Error::Action`]: the mask of a row allows no action.
    /// - [`Error::NotFinite`]: a number in `logits`, `mean` or `hidden` is NaN or infinite.
    ///
    /// After these errors, nothing was written or drawn.
    pub fn sample(
        &mut self,
        inputs: DistInputs<'_>,
        rngs: &mut [Pcg64],
        actions: ActionsMut<'_>,
        log_probs: &mut [f32],
    ) -> Result<()> {
        self.check(inputs, actions_len(&actions), rngs.len())?;
        check_len("log_probs", log_probs.len(), rngs.len())?;
        match (&mut self.kind, actions) {
            (Kind::Categorical(it), ActionsMut::Discrete(actions)) => it.sample(inputs, rngs, actions, log_probs),
            (Kind::Bernoulli(it), ActionsMut::Discrete(actions)) => it.sample(inputs, rngs, actions, log_probs),
            (Kind::Gaussian(it), ActionsMut::Continuous(actions)) => {
                it.sample(inputs, rngs, actions, log_probs);
                Ok(())
            }
            (Kind::StateDependent(it), ActionsMut::Continuous(actions)) => it.sample(inputs, rngs, actions, log_probs),
            _ => Err(self.action_type_error()),
        }
    }

    /// Computes the most probable action of each row.
    ///
    /// # Errors
    /// The errors of [`Distribution::sample`].
    pub fn mode(&mut self, inputs: DistInputs<'_>, actions: ActionsMut<'_>) -> Result<()> {
        let len = actions_len(&actions);
        self.check(inputs, len, len / self.action_dim())?;
        match (&mut self.kind, actions) {
            (Kind::Categorical(it), ActionsMut::Discrete(actions)) => it.mode(inputs, actions),
            (Kind::Bernoulli(it), ActionsMut::Discrete(actions)) => it.mode(inputs, actions),
            (Kind::Gaussian(_) | Kind::StateDependent(_), ActionsMut::Continuous(actions)) => {
                actions.copy_from_slice(inputs.outputs);
                Ok(())
            }
            _ => Err(self.action_type_error()),
        }
    }

    /// Computes log-probabilities and entropies, both `[N]`, and stores the data for
    /// [`Distribution::backward`].
    ///
    /// The masks must be the masks under which the actions were chosen.
    ///
    /// # Errors
    /// - The errors of [`Distribution::sample`].
    /// - [`Error::NotFinite`]: an action is NaN or infinite.
    /// - [`Error::Action`]: an action is outside the space or forbidden by its mask.
    pub fn evaluate(
        &mut self,
        inputs: DistInputs<'_>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        entropies: &mut [f32],
    ) -> Result<()> {
        self.check_inputs_and_actions(inputs, actions, log_probs.len())?;
        check_len("entropies", entropies.len(), log_probs.len())?;
        match (&mut self.kind, actions) {
            (Kind::Categorical(it), Actions::Discrete(actions)) => it.evaluate(inputs, actions, log_probs, entropies),
            (Kind::Bernoulli(it), Actions::Discrete(actions)) => it.evaluate(inputs, actions, log_probs, entropies),
            (Kind::Gaussian(it), Actions::Continuous(actions)) => {
                it.evaluate(inputs, actions, log_probs, entropies);
                Ok(())
            }
            (Kind::StateDependent(it), Actions::Continuous(actions)) => {
                it.evaluate(inputs, actions, log_probs, entropies)
            }
            _ => Err(self.action_type_error()),
        }
    }

    /// Computes the gradient of a loss with respect to the outputs, and adds the gradients of the
    /// parameters to those of earlier calls.
    ///
    /// `d_log_probs`, `[N]`, are the gradients of the loss with respect to the log-probabilities.
    /// `d_entropy` is the gradient with respect to the entropy of each row. The inputs and actions
    /// must be those of the last [`Distribution::evaluate`].
    ///
    /// # Errors
    /// The errors of [`Distribution::evaluate`]. Also [`Error::Shape`] if the last call was not
    /// [`Distribution::evaluate`] with the same number of rows.
    pub fn backward(
        &mut self,
        inputs: DistInputs<'_>,
        actions: Actions<'_>,
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        self.differentiate(inputs, actions, d_log_probs, d_entropy, d_outputs)?;
        self.add_gradients();
        Ok(())
    }

    /// Works as [`Distribution::backward`], but does not add to the gradients of the parameters.
    pub(crate) fn differentiate(
        &mut self,
        inputs: DistInputs<'_>,
        actions: Actions<'_>,
        d_log_probs: &[f32],
        d_entropy: f32,
        d_outputs: &mut [f32],
    ) -> Result<()> {
        self.check_inputs_and_actions(inputs, actions, d_log_probs.len())?;
        check_len("d_outputs", d_outputs.len(), inputs.outputs.len())?;
        match (&mut self.kind, actions) {
            (Kind::Categorical(it), Actions::Discrete(actions)) => {
                it.backward(actions, d_log_probs, d_entropy, d_outputs)
            }
            (Kind::Bernoulli(it), Actions::Discrete(actions)) => {
                it.backward(actions, d_log_probs, d_entropy, d_outputs)
            }
            (Kind::Gaussian(it), Actions::Continuous(actions)) => {
                it.backward(inputs, actions, d_log_probs, d_entropy, d_outputs)
            }
            (Kind::StateDependent(it), Actions::Continuous(actions)) => {
                it.backward(inputs, actions, d_log_probs, d_entropy, d_outputs)
            }
            _ => Err(self.action_type_error()),
        }
    }

    /// Adds the parameter gradients of the last [`Distribution::differentiate`].
    pub(crate) fn add_gradients(&mut self) {
        match &mut self.kind {
            Kind::Categorical(_) | Kind::Bernoulli(_) => {}
            Kind::Gaussian(it) => it.log_std.add_gradients(it.sums.iter().map(|sum| *sum as f32)),
            Kind::StateDependent(it) => it.log_std.add_gradients(it.sums.iter().map(|sum| *sum as f32)),
        }
    }

    fn check(&self, inputs: DistInputs<'_>, actions: usize, rows: usize) -> Result<()> {
        check_len("outputs", inputs.outputs.len(), rows.saturating_mul(self.outputs()))?;
        check_len("hidden", inputs.hidden.len(), rows.saturating_mul(self.hidden_dim()))?;
        check_len("actions", actions, rows.saturating_mul(self.action_dim()))?;
        let name = if matches!(self.kind, Kind::Categorical(_) | Kind::Bernoulli(_)) { "logits" } else { "mean" };
        validate::check_finite_outputs(name, inputs.outputs, self.outputs())?;
        validate::check_finite_outputs("hidden", inputs.hidden, self.hidden_dim())?;
        inputs.masks.map_or(Ok(()), |masks| self.check_masks(masks, rows))
    }

    /// Checks the length of the masks of `rows` rows.
    pub(crate) fn check_masks(&self, masks: &[bool], rows: usize) -> Result<()> {
        let width = match self.kind {
            Kind::Categorical(_) => self.outputs(),
            Kind::Bernoulli(_) => 2 * self.outputs(),
            _ => {
                let fix = "pass no masks";
                return Err(Error::space("masks", "no masks for a Box action space", "masks", fix));
            }
        };
        check_len("masks", masks.len(), rows.saturating_mul(width))
    }

    /// Checks the inputs, and actions that were chosen before.
    fn check_inputs_and_actions(&self, inputs: DistInputs<'_>, actions: Actions<'_>, rows: usize) -> Result<()> {
        let len = match actions {
            Actions::Discrete(actions) => actions.len(),
            Actions::Continuous(actions) => actions.len(),
        };
        self.check(inputs, len, rows)?;
        check_actions(actions, self.action_dim())
    }

    fn action_type_error(&self) -> Error {
        let integers = matches!(self.kind, Kind::Categorical(_) | Kind::Bernoulli(_));
        let [expected, got] = if integers { ["integers", "f32"] } else { ["f32", "integers"] };
        Error::space("actions", expected, got, "use a policy for this action space")
    }
}

/// Largest magnitude of an initial log standard deviation. Squares of standard deviations then stay
/// far from the limits of f32.
const MAX_LOG_STD: f32 = 20.0;

/// Checks an initial log standard deviation.
///
/// # Errors
/// [`Error::Config`] for a number that is NaN or outside [-20, 20].
pub(crate) fn check_log_std(init: f32, fix: &'static str) -> Result<()> {
    if init.abs() <= MAX_LOG_STD {
        return Ok(());
    }
    let expected = format!("a number from -{MAX_LOG_STD} to {MAX_LOG_STD}");
    Err(Error::config("log_std_init", expected, init.to_string(), fix))
}

/// Checks that continuous actions are finite; a row has `dim` elements.
///
/// # Errors
/// [`Error::NotFinite`] naming the first number that is not finite, and its row.
pub(crate) fn check_actions(actions: Actions<'_>, dim: usize) -> Result<()> {
    if let Actions::Continuous(actions) = actions { validate::check_finite("actions", actions, dim) } else { Ok(()) }
}

/// Adds a log-probability to `sum`, which stays at least `f32::MIN`.
///
/// Each log-probability can be `f32::MIN`, so that a sum could become infinite.
fn add_log_prob(sum: &mut f32, log_prob: f32) {
    *sum = (*sum + log_prob).max(f32::MIN);
}

/// Checks that the last call was an evaluation of `rows` rows.
///
/// `evaluated` is the number of rows of the last evaluation, or 0 if another method was called
/// after it.
fn check_evaluated(evaluated: usize, rows: usize) -> Result<()> {
    if evaluated == rows {
        return Ok(());
    }
    let [expected, got] = [rows, evaluated].map(|rows| format!("a previous evaluate call with {rows} rows"));
    Err(Error::shape("backward", expected, got, "call evaluate first, with the same rows"))
}

fn actions_len(actions: &ActionsMut<'_>) -> usize {
    match actions {
        ActionsMut::Discrete(actions) => actions.len(),
        ActionsMut::Continuous(actions) => actions.len(),
    }
}

/// Returns the first `len` numbers of a vector, which grows if necessary.
fn ensure_len(numbers: &mut Vec<f32>, len: usize) -> Result<&mut [f32]> {
    if numbers.len() < len {
        resize("outputs", numbers, len, 0.0)?;
    }
    Ok(&mut numbers[..len])
}

/// Returns the number of flags in the mask of an action.
///
/// Discrete, MultiDiscrete and MultiBinary spaces have a flag for each value of each component. A
/// Box space has no flags.
///
/// # Errors
/// [`Error::Space`] if the space is invalid or has too many values.
///
/// ```
/// use rlox_core::Space;
///
/// assert_eq!(rlox_nn::train::mask_width(&Space::MultiDiscrete { nvec: vec![2, 3] })?, 5);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn mask_width(space: &Space) -> Result<usize> {
    const ACTION_SPACE: &str = "action space";
    space.validate(ACTION_SPACE)?;
    let num_values = match space {
        Space::Discrete { n, .. } => Some(*n),
        Space::MultiDiscrete { nvec } => nvec.iter().try_fold(0, |sum: i64, n| sum.checked_add(*n)),
        Space::MultiBinary { n } => i64::try_from(*n).ok().and_then(|n| n.checked_mul(2)),
        Space::Box { .. } => Some(0),
    };
    // The limit is one less than the maximum, because a network with a shared trunk also outputs a
    // value.
    let width = num_values.and_then(|count| usize::try_from(count).ok()).filter(|width| *width < isize::MAX as usize);
    width.ok_or_else(|| {
        let expected = format!("fewer than {} values in total", isize::MAX);
        Error::space(ACTION_SPACE, expected, format!("{space:?}"), "correct the definition of the space")
    })
}

/// Returns an error if a mask forbids an action; `forbidden` is the index of the first such action.
///
/// # Errors
/// [`Error::Action`] naming the action and its row; a row has `choices` elements.
fn check_allowed(actions: &[i64], choices: usize, forbidden: Option<usize>) -> Result<()> {
    let Some(index) = forbidden else { return Ok(()) };
    let (got, hint) = (actions[index].to_string(), "pass the masks under which the actions were chosen");
    Err(Error::action("actions", "actions that the masks allow", got, hint).at_row(index / choices))
}
