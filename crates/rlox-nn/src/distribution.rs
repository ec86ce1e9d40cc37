//! Distributions of actions, given what a network says: samples, modes, log-probabilities, entropies and their gradients.

mod bernoulli;
mod categorical;
mod gaussian;
mod masks;
mod sde;
mod squashed;

use rlox_core::{Actions, ActionsMut, Error, Pcg64, Result, Space, check_len};

use crate::alloc::resize;
use crate::{Parameters, validate};
use bernoulli::Bernoulli;
use categorical::Categorical;
use gaussian::Gaussian;
pub(crate) use gaussian::draw_normal;
use masks::check_allowed;
pub use masks::mask_width;
use sde::StateDependent;
pub(crate) use sde::{Exploration, Explored};
pub(crate) use squashed::Squash;
pub use squashed::SquashedGaussian;

/// What a network says about a batch of N rows, and what goes with it.
#[derive(Clone, Copy, Debug)]
pub struct DistInputs<'a> {
    /// The network's outputs, `[N, outputs]`.
    pub outputs: &'a [f32],
    /// The last hidden layer, `[N, hidden]`; read with state-dependent exploration only.
    pub hidden: &'a [f32],
    /// Which actions are allowed, `[N, outputs]`, of zeros and ones `[N, 2 outputs]`: 0 and 1 of each component.
    pub masks: Option<&'a [bool]>,
}

/// How actions are spread around what a network says.
///
/// ```
/// use rlox_core::{Actions, Space};
/// use rlox_nn::{Distribution, DistInputs};
///
/// let mut policy = Distribution::new(&Space::discrete(2), 0.0)?;
/// let given = DistInputs { outputs: &[0.0, 0.0], hidden: &[], masks: None };
/// let (mut log_probs, mut entropies) = ([0.0], [0.0]);
/// policy.evaluate(given, Actions::Discrete(&[1]), &mut log_probs, &mut entropies)?;
/// assert!((log_probs[0] - 0.5_f32.ln()).abs() < 1e-6 && (entropies[0] - 2.0_f32.ln()).abs() < 1e-6);
/// // With more of action 1, its log-probability rises.
/// let mut d_outputs = [0.0; 2];
/// policy.backward(given, Actions::Discrete(&[1]), &[1.0], 0.0, &mut d_outputs)?;
/// assert_eq!(d_outputs, [-0.5, 0.5]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Distribution {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// One choice, or several independent ones.
    Categorical(Categorical),
    /// Independent zeros and ones.
    Bernoulli(Bernoulli),
    /// Independent normal numbers, whose standard deviations do not depend on the observation.
    Gaussian(Gaussian),
    /// Generalised state-dependent exploration.
    StateDependent(StateDependent),
}

impl Distribution {
    /// The distribution for an action space: categorical for Discrete and MultiDiscrete, Bernoulli for MultiBinary, a
    /// diagonal Gaussian for Box, whose log standard deviations, one an action, begin at `log_std_init`.
    ///
    /// # Errors
    /// [`Error::Space`] if the space makes no sense or has more values than can be counted, [`Error::Config`] for a
    /// `log_std_init` that is not between -20 and 20, [`Error::Memory`] for a Box that does not fit into memory.
    pub fn new(space: &Space, log_std_init: f32) -> Result<Self> {
        let masks = mask_width(space)?;
        check_log_std(log_std_init, "begin with 0, a standard deviation of 1")?;
        let kind = match space {
            Space::Discrete { n, .. } => Kind::Categorical(Categorical::new(&[*n], masks)),
            Space::MultiDiscrete { nvec } => Kind::Categorical(Categorical::new(nvec, masks)),
            Space::MultiBinary { n } => Kind::Bernoulli(Bernoulli::new(*n)),
            Space::Box { .. } => Kind::Gaussian(Gaussian::new(space.dim(), log_std_init)?),
        };
        Ok(Self { kind })
    }

    /// Generalised state-dependent exploration (Raffin et al. 2021, "Smooth Exploration for Robotic Reinforcement
    /// Learning"): the noise is a matrix, drawn now and then for each environment ([`Distribution::draw_noise`]), times
    /// the last hidden layer, of `hidden` numbers.
    ///
    /// # Errors
    /// [`Error::Space`] if the space is no Box, [`Error::Config`] without a hidden layer or for a `log_std_init` that is
    /// not between -20 and 20, [`Error::Memory`] for a hidden layer so wide that the matrix does not fit into memory.
    pub fn state_dependent(space: &Space, hidden: usize, log_std_init: f32) -> Result<Self> {
        space.validate("action space")?;
        check_log_std(log_std_init, "begin with 0, a standard deviation of 1")?;
        if !matches!(space, Space::Box { .. }) {
            let fix = "leave use_sde off for other spaces";
            return Err(Error::space("use_sde", "a Box action space", format!("{space:?}"), fix));
        }
        if hidden == 0 {
            return Err(Error::config("use_sde", "a hidden layer", "none", "give the network one"));
        }
        let result = StateDependent::new(hidden, space.dim(), log_std_init);
        Ok(Self { kind: Kind::StateDependent(result.map_err(|error| error.rename_argument("shape", "hidden"))?) })
    }

    /// How many numbers a row of the network has for it.
    pub fn outputs(&self) -> usize {
        match &self.kind {
            Kind::Categorical(it) => it.outputs(),
            Kind::Bernoulli(it) => it.dim,
            Kind::Gaussian(it) => it.dim,
            Kind::StateDependent(it) => it.dim,
        }
    }

    /// How many numbers an action has.
    pub fn action_dim(&self) -> usize {
        match &self.kind {
            Kind::Categorical(it) => it.action_dim(),
            _ => self.outputs(),
        }
    }

    /// What is learned beside the network, if anything is: the logarithms of standard deviations.
    pub fn parameters(&self) -> Option<&Parameters> {
        match &self.kind {
            Kind::Categorical(_) | Kind::Bernoulli(_) => None,
            Kind::Gaussian(it) => Some(&it.log_std),
            Kind::StateDependent(it) => Some(&it.log_std),
        }
    }

    /// The same, to be stepped and loaded.
    pub fn parameters_mut(&mut self) -> Option<&mut Parameters> {
        match &mut self.kind {
            Kind::Categorical(_) | Kind::Bernoulli(_) => None,
            Kind::Gaussian(it) => Some(&mut it.log_std),
            Kind::StateDependent(it) => Some(&mut it.log_std),
        }
    }

    /// How many numbers of the last hidden layer it reads; 0 for none.
    pub fn hidden_dim(&self) -> usize {
        if let Kind::StateDependent(it) = &self.kind { it.hidden } else { 0 }
    }

    /// Draws the exploration matrices of state-dependent exploration anew, that of environment i from `rngs[i]`. Other
    /// distributions have none.
    ///
    /// # Errors
    /// [`Error::Memory`] if they do not fit into memory.
    pub fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        if let Kind::StateDependent(it) = &mut self.kind { it.draw_noise(rngs) } else { Ok(()) }
    }

    /// Exchanges the exploration matrices, those of all environments in a row, for others or for none.
    pub(crate) fn swap_noise(&mut self, noise: &mut Vec<f32>) {
        if let Kind::StateDependent(it) = &mut self.kind {
            std::mem::swap(&mut it.noise, noise);
        }
    }

    /// Draws actions and gives their log-probabilities, `[N]`. Row i draws from `rngs[i]` alone.
    ///
    /// # Errors
    /// [`Error::Shape`] for slices that do not fit, [`Error::Space`] for actions of the other kind, [`Error::Action`] for
    /// a row whose mask allows nothing, [`Error::NotFinite`] naming an output, one of the `logits` or of the `mean`, or a
    /// number of the `hidden` layer that is NaN or infinite. Nothing is written or drawn then.
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

    /// The likeliest actions.
    ///
    /// # Errors
    /// Those of [`Distribution::sample`].
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

    /// The log-probabilities of actions and the entropies, `[N]` each; keeps what [`Distribution::backward`] needs.
    ///
    /// # Errors
    /// Those of [`Distribution::sample`], [`Error::NotFinite`] for `actions` that are NaN or infinite, and
    /// [`Error::Action`] for those outside of the space, or that a mask forbids: masks are those that were in force when
    /// the actions were chosen.
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

    /// The gradient of a loss with respect to the outputs, given those with respect to the log-probabilities, `[N]`, and
    /// to each row's entropy, as [`Distribution::evaluate`] computed them last, for the same rows and actions. What is
    /// learned beside the network adds to its gradients.
    ///
    /// # Errors
    /// Those of [`Distribution::evaluate`], and [`Error::Shape`] if that was not called last for as many rows.
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

    /// As [`Distribution::backward`], but what is learned beside the network waits for
    /// [`Distribution::add_gradients`].
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

    /// Adds what [`Distribution::differentiate`] found last to the gradients of what is learned beside the network.
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

    /// Checks the masks of so many rows.
    pub(crate) fn check_masks(&self, masks: &[bool], rows: usize) -> Result<()> {
        let width = match self.kind {
            Kind::Categorical(_) => self.outputs(),
            Kind::Bernoulli(_) => 2 * self.outputs(),
            _ => {
                let fix = "mask no actions of a Box";
                return Err(Error::space("masks", "none for this action space", "some", fix));
            }
        };
        check_len("masks", masks.len(), rows.saturating_mul(width))
    }

    /// The same, of actions that were chosen before.
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
        Error::space("actions", expected, got, "match the policy to the action space")
    }
}

/// How far logarithms of standard deviations may begin from 0: the squares of what follows from them stay far from the
/// ends of f32.
const MAX_LOG_STD: f32 = 20.0;

/// Checks what logarithms of standard deviations begin at.
///
/// # Errors
/// [`Error::Config`] for what is NaN or too far from 0.
pub(crate) fn check_log_std(init: f32, fix: &'static str) -> Result<()> {
    if init.abs() <= MAX_LOG_STD {
        return Ok(());
    }
    let expected = format!("a number from -{MAX_LOG_STD} to {MAX_LOG_STD}");
    Err(Error::config("log_std_init", expected, init.to_string(), fix))
}

/// Checks that actions that were chosen before, rows of `dim`, are finite.
///
/// # Errors
/// [`Error::NotFinite`] naming the first that is not, and its row.
pub(crate) fn check_actions(actions: Actions<'_>, dim: usize) -> Result<()> {
    if let Actions::Continuous(actions) = actions { validate::check_finite("actions", actions, dim) } else { Ok(()) }
}

/// Adds the log-probability of one more choice, down to the smallest number: the logits of several may reach it each.
fn add_log_prob(sum: &mut f32, log_prob: f32) {
    *sum = (*sum + log_prob).max(f32::MIN);
}

/// Checks that the last call was an evaluation of so many rows.
fn check_evaluated(evaluated: usize, rows: usize) -> Result<()> {
    if evaluated == rows {
        return Ok(());
    }
    let [expected, got] = [rows, evaluated].map(|rows| format!("an evaluate of {rows} rows before it"));
    Err(Error::shape("backward", expected, got, "call evaluate first, for the same rows"))
}

fn actions_len(actions: &ActionsMut<'_>) -> usize {
    match actions {
        ActionsMut::Discrete(actions) => actions.len(),
        ActionsMut::Continuous(actions) => actions.len(),
    }
}

/// Room for `len` numbers.
fn ensure_len(numbers: &mut Vec<f32>, len: usize) -> Result<&mut [f32]> {
    if numbers.len() < len {
        resize("outputs", numbers, len, 0.0)?;
    }
    Ok(&mut numbers[..len])
}
