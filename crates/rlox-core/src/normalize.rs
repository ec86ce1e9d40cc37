//! Running statistics, and normalisation of observations and rewards.

use std::ops::Range;

use crate::alloc::{check_available, zeroed};
use crate::interrupt::InterruptCheck;
use crate::{Error, Result, error::check_len};

/// Initial number of rows, as in Gymnasium. It is so small that the first batch determines the
/// statistics.
const FIRST_COUNT: f64 = 1e-4;
/// Number of columns whose standard deviations are computed at a time.
const COLUMN_BLOCK: usize = 64;

/// Running mean and variance of each column of a stream of rows, in f64.
///
/// Batches are merged with the formulas of Chan, Golub and `LeVeque` (1979), "Updating formulae and
/// a pairwise algorithm for computing sample variances". Up to rounding, the result does not depend
/// on the division of the rows into batches. The variance is the population variance.
///
/// ```
/// let mut statistics = rlox_core::normalize::RunningMeanStd::new(1);
/// statistics.update(&[1.0_f32, 3.0])?;
/// assert!((statistics.mean()[0] - 2.0).abs() < 1e-3);
/// assert!((statistics.var()[0] - 1.0).abs() < 1e-3);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RunningMeanStd {
    mean: Vec<f64>,
    var: Vec<f64>,
    count: f64,
    batch_mean: Vec<f64>,
    batch_var: Vec<f64>,
}

impl RunningMeanStd {
    /// Creates statistics of rows with `dim` columns: mean 0, variance 1, count 1e-4.
    pub fn new(dim: usize) -> Self {
        Self {
            mean: vec![0.0; dim],
            var: vec![1.0; dim],
            count: FIRST_COUNT,
            batch_mean: vec![0.0; dim],
            batch_var: vec![0.0; dim],
        }
    }

    /// Creates the statistics of [`RunningMeanStd::new`], or returns an error if `dim` is invalid.
    ///
    /// # Errors
    /// [`Error::Config`] if `dim` is 0, [`Error::Memory`] if the columns do not fit into memory. In
    /// both errors, the name of the argument is `shape`.
    pub fn try_new(dim: usize) -> Result<Self> {
        Self::with_shape("shape", dim)
    }

    fn with_shape(argument: &'static str, dim: usize) -> Result<Self> {
        if dim == 0 {
            return Err(Error::config(argument, "at least one column", "none", "pass the shape of one row"));
        }
        check_available(argument, dim, 4 * size_of::<f64>())?;
        let column = || zeroed(argument, dim);
        let (mean, mut var, batch_mean, batch_var) = (column()?, column()?, column()?, column()?);
        var.fill(1.0);
        Ok(Self { mean, var, count: FIRST_COUNT, batch_mean, batch_var })
    }

    /// Creates statistics from a recorded mean, variance and count.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lengths differ. [`Error::NotFinite`] if a mean is NaN or infinite.
    /// [`Error::Config`] if a variance is negative or not finite, or the count is below 1e-4 or not
    /// finite. [`Error::Memory`] if two work arrays of the size of `mean` do not fit into memory.
    pub fn from_parts(mean: Vec<f64>, var: Vec<f64>, count: f64) -> Result<Self> {
        check_len("var", var.len(), mean.len())?;
        let invalid = |name, expected: &str, got: f64| {
            Err(Error::config(name, expected, got.to_string(), "pass the values of a RunningMeanStd"))
        };
        if let Some(got) = mean.iter().find(|mean| !mean.is_finite()) {
            let hint = "pass the values of a RunningMeanStd";
            return Err(Error::not_finite("mean", "finite numbers", got.to_string(), hint));
        }
        if let Some(got) = var.iter().find(|var| !var.is_finite() || **var < 0.0) {
            return invalid("var", "finite numbers >= 0", *got);
        }
        if !count.is_finite() || count < FIRST_COUNT {
            return invalid("count", "a finite number >= 1e-4", count);
        }
        let (batch_mean, batch_var) = (zeroed("mean", mean.len())?, zeroed("var", mean.len())?);
        Ok(Self { mean, var, count, batch_mean, batch_var })
    }

    /// Returns the mean of each column.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Returns the variance of each column.
    pub fn var(&self) -> &[f64] {
        &self.var
    }

    /// Returns the number of rows so far plus 1e-4, the initial count.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Updates the statistics with a batch of rows, `[K, dim]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length is not a multiple of the number of columns.
    /// [`Error::NotFinite`], with row and column, if a number is NaN or infinite. [`Error::Space`]
    /// if the square of a number overflows. [`Error::Interrupted`] if the function of
    /// [`crate::interrupt::set_interrupt_check`] returns true. The statistics are unchanged after
    /// an error.
    pub fn update<T: Copy + Into<f64>>(&mut self, rows: &[T]) -> Result<()> {
        let dim = self.mean.len();
        if dim == 0 || !rows.len().is_multiple_of(dim) {
            let expected = format!("rows of {dim} numbers");
            return Err(Error::shape("rows", expected, format!("{} numbers", rows.len()), "pass whole rows"));
        }
        let mut interrupt = InterruptCheck::default();
        for (i, chunk) in rows.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
            if i > 0 {
                interrupt.check()?;
            }
            if let Some(index) = chunk.iter().position(|x| !(*x).into().is_finite()) {
                let (x, index) = (chunk[index].into(), i * InterruptCheck::POLL_ELEMENTS + index);
                let error = Error::not_finite("rows", "finite numbers", x.to_string(), "check the source of the rows");
                return Err(error.at_row(index / dim).at_column(index % dim));
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let count = (rows.len() / dim) as f64;
        let (mean, var) = (&mut self.batch_mean[..], &mut self.batch_var[..]);
        change(mean, &mut interrupt, |_| 0.0)?;
        sweep(rows, dim, &mut interrupt, |columns, row| {
            for (sum, x) in mean[columns].iter_mut().zip(row) {
                *sum += (*x).into();
            }
        })?;
        change(mean, &mut interrupt, |sum| sum / count)?;
        change(var, &mut interrupt, |_| 0.0)?;
        sweep(rows, dim, &mut interrupt, |columns, row| {
            for ((sum, x), mean) in var[columns.clone()].iter_mut().zip(row).zip(&mean[columns]) {
                let distance = (*x).into() - mean;
                *sum += distance * distance;
            }
        })?;
        change(var, &mut interrupt, |sum| sum / count)?;
        if var.iter().any(|var| !var.is_finite()) {
            let expected = "numbers whose squares are finite";
            return Err(Error::space("rows", expected, "larger numbers", "scale the rows down"));
        }
        self.merge_batch(count, &mut interrupt)
    }

    /// Merges the statistics of another stream of rows into these statistics.
    ///
    /// # Errors
    /// [`Error::Shape`] if the numbers of columns differ. [`Error::Interrupted`] if the function of
    /// [`crate::interrupt::set_interrupt_check`] returns true.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        check_len("other", other.mean.len(), self.mean.len())?;
        // Remove the initial values of `other` (mean 0, variance 1, count 1e-4), which come from no
        // row.
        let (count, mut interrupt) = (other.count - FIRST_COUNT, InterruptCheck::default());
        if count <= 0.0 {
            return Ok(());
        }
        let parts = self.batch_mean.iter_mut().zip(&mut self.batch_var).zip(other.mean.iter().zip(&other.var));
        for ((batch_mean, batch_var), (mean, var)) in parts {
            *batch_mean = mean * other.count / count;
            let start = FIRST_COUNT + *batch_mean * *batch_mean * FIRST_COUNT * count / other.count;
            *batch_var = ((var * other.count - start) / count).max(0.0);
        }
        self.merge_batch(count, &mut interrupt)
    }

    /// Merges `batch_mean` and `batch_var`, the statistics of a batch of `count` rows.
    ///
    /// The merged statistics are computed in the work arrays and then swapped with the statistics,
    /// so that an interruption leaves the statistics unchanged.
    fn merge_batch(&mut self, count: f64, interrupt: &mut InterruptCheck) -> Result<()> {
        merge((&self.mean, &self.var, self.count), (&mut self.batch_mean, &mut self.batch_var, count), interrupt)?;
        std::mem::swap(&mut self.mean, &mut self.batch_mean);
        std::mem::swap(&mut self.var, &mut self.batch_var);
        self.count += count;
        Ok(())
    }

    /// Normalises `rows`, `[K, dim]`, in place: subtracts the mean, divides by the standard
    /// deviation and clips.
    ///
    /// `epsilon` is added to the variance. The result is clipped to `[-clip, clip]`. The statistics
    /// are unchanged.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length is not a multiple of the number of columns.
    pub fn normalize(&self, rows: &mut [f32], clip: f64, epsilon: f64) -> Result<()> {
        let dim = self.mean.len();
        if dim == 0 || !rows.len().is_multiple_of(dim) {
            let expected = format!("rows of {dim} numbers");
            return Err(Error::shape("rows", expected, format!("{} numbers", rows.len()), "pass whole rows"));
        }
        // The standard deviations of a block of columns are computed once for all rows, on the
        // stack.
        let mut deviations = [0.0; COLUMN_BLOCK];
        for from in (0..dim).step_by(COLUMN_BLOCK) {
            let (mean, var) = (&self.mean[from..], &self.var[from..]);
            for (deviation, var) in deviations.iter_mut().zip(var) {
                *deviation = (var + epsilon).sqrt();
            }
            for row in rows.chunks_exact_mut(dim) {
                for ((x, mean), deviation) in row[from..].iter_mut().zip(mean).zip(&deviations) {
                    *x = ((f64::from(*x) - mean) / deviation).clamp(-clip, clip) as f32;
                }
            }
        }
        Ok(())
    }
}

/// Settings of a [`Normalizer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormalizerOptions {
    /// True to normalise observations.
    pub obs: bool,
    /// True to normalise rewards.
    pub reward: bool,
    /// The discount of the running return, in [0, 1]. Rewards are divided by the standard deviation of this return.
    pub gamma: f64,
    /// The largest magnitude of a normalised observation.
    pub clip_obs: f64,
    /// The largest magnitude of a normalised reward.
    pub clip_reward: f64,
    /// Number added to the variance before its square root is taken.
    pub epsilon: f64,
}

impl Default for NormalizerOptions {
    fn default() -> Self {
        Self { obs: true, reward: true, gamma: 0.99, clip_obs: 10.0, clip_reward: 10.0, epsilon: 1e-8 }
    }
}

impl NormalizerOptions {
    fn validate(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.gamma) {
            return Err(Error::config(
                "gamma",
                "a number in [0, 1]",
                self.gamma.to_string(),
                "pass a number in [0, 1]",
            ));
        }
        for (name, value) in [("clip_obs", self.clip_obs), ("clip_reward", self.clip_reward), ("epsilon", self.epsilon)]
        {
            if value.is_nan() || value <= 0.0 {
                return Err(Error::config(name, "a positive number", value.to_string(), "pass a positive number"));
            }
        }
        Ok(())
    }
}

/// Normalizer of observations and rewards with running statistics.
///
/// Observations are normalised by their mean and standard deviation, rewards by the standard deviation of the
/// discounted return (Stable-Baselines3's `VecNormalize`; Engstrom et al. 2020, arXiv:2005.12729).
///
/// ```
/// use rlox_core::{Normalizer, normalize::NormalizerOptions};
///
/// let mut normalizer = Normalizer::new(2, 1, NormalizerOptions::default())?;
/// let mut obs = [1.0, 3.0];
/// normalizer.update_obs(&obs)?;
/// normalizer.normalize_obs(&mut obs)?;
/// assert!((obs[0] + 1.0).abs() < 1e-3 && (obs[1] - 1.0).abs() < 1e-3);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Normalizer {
    options: NormalizerOptions,
    obs: RunningMeanStd,
    reward: RunningMeanStd,
    returns: Vec<f64>,
}

impl Normalizer {
    /// Creates a normalizer for `num_envs` environments with observations of `obs_dim` numbers.
    ///
    /// # Errors
    /// [`Error::Config`] if a size is 0 or an option is out of range, [`Error::Memory`] if memory is insufficient.
    pub fn new(num_envs: usize, obs_dim: usize, options: NormalizerOptions) -> Result<Self> {
        options.validate()?;
        for (name, value) in [("num_envs", num_envs), ("obs_shape", obs_dim)] {
            if value == 0 {
                return Err(Error::config(name, "at least 1", "0", "pass a positive number"));
            }
        }
        let returns = zeroed("num_envs", num_envs)?;
        let (obs, reward) = (RunningMeanStd::with_shape("obs_shape", obs_dim)?, RunningMeanStd::new(1));
        Ok(Self { options, obs, reward, returns })
    }

    /// Returns the settings.
    pub fn options(&self) -> &NormalizerOptions {
        &self.options
    }

    /// Returns the statistics of the observations.
    pub fn obs(&self) -> &RunningMeanStd {
        &self.obs
    }

    /// Returns the statistics of the running discounted returns, which have one column.
    pub fn reward(&self) -> &RunningMeanStd {
        &self.reward
    }

    /// Returns the running discounted return of each environment, `[N]`.
    pub fn returns(&self) -> &[f64] {
        &self.returns
    }

    /// Replaces the statistics and the running returns by recorded ones.
    ///
    /// # Errors
    /// [`Error::Shape`] if a size is wrong, [`Error::NotFinite`] if a return is NaN or infinite.
    /// The normalizer is unchanged after an error.
    pub fn restore(&mut self, obs: RunningMeanStd, reward: RunningMeanStd, returns: &[f64]) -> Result<()> {
        check_len("obs_mean", obs.mean.len(), self.obs.mean.len())?;
        check_len("return_mean", reward.mean.len(), 1)?;
        check_len("returns", returns.len(), self.returns.len())?;
        if let Some(env) = returns.iter().position(|sum| !sum.is_finite()) {
            let got = returns[env].to_string();
            return Err(
                Error::not_finite("returns", "finite numbers", got, "pass the returns of a Normalizer").at_env(env)
            );
        }
        self.returns.copy_from_slice(returns);
        (self.obs, self.reward) = (obs, reward);
        Ok(())
    }

    /// Updates the statistics with observations, `[K, d]`. Does nothing if the option `obs` is
    /// false.
    ///
    /// # Errors
    /// The errors of [`RunningMeanStd::update`].
    pub fn update_obs(&mut self, rows: &[f32]) -> Result<()> {
        if self.options.obs { self.obs.update(rows) } else { Ok(()) }
    }

    /// Normalises observations, `[K, d]`, in place. Does nothing if the option `obs` is false.
    ///
    /// The statistics are unchanged.
    ///
    /// # Errors
    /// The errors of [`RunningMeanStd::normalize`].
    pub fn normalize_obs(&self, rows: &mut [f32]) -> Result<()> {
        if !self.options.obs {
            return Ok(());
        }
        self.obs.normalize(rows, self.options.clip_obs, self.options.epsilon)
    }

    /// Sets the running returns of all environments to 0, as at the start of new episodes.
    pub fn reset_returns(&mut self) {
        self.returns.fill(0.0);
    }

    /// Checks that the rewards of one step, `[N]`, would leave the statistics finite. Changes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length is wrong. [`Error::NotFinite`], with the index of the
    /// environment, if a reward is NaN or infinite, or if the square of the running return
    /// overflows.
    pub fn check_rewards(&self, rewards: &[f64]) -> Result<()> {
        if !self.options.reward {
            return Ok(());
        }
        check_len("rewards", rewards.len(), self.returns.len())?;
        let sums = self.returns.iter().zip(rewards).map(|(sum, reward)| sum * self.options.gamma + reward);
        let Some(env) = sums.into_iter().position(|sum| !(sum * sum).is_finite()) else { return Ok(()) };
        let (expected, got) = ("numbers whose squares are finite", rewards[env].to_string());
        Err(Error::not_finite("rewards", expected, got, "check the reward of the environment").at_env(env))
    }

    /// Updates the statistics with the rewards of one step, `[N]`, and normalises the rewards in
    /// place.
    ///
    /// The running return of an environment is set to 0 after a step with a `terminated` or
    /// `truncated` flag.
    ///
    /// # Errors
    /// [`Error::Shape`] if a length is wrong, and the errors of [`Normalizer::check_rewards`].
    pub fn step_rewards(&mut self, rewards: &mut [f64], terminated: &[bool], truncated: &[bool]) -> Result<()> {
        self.step_rewards_where(None, rewards, terminated, truncated)
    }

    /// Performs [`Normalizer::step_rewards`], but only some environments update the statistics.
    ///
    /// An environment updates the statistics if its flag in `valid`, `[N]`, is true, or if `valid`
    /// is `None`. The rewards of all environments are normalised.
    ///
    /// # Errors
    /// The errors of [`Normalizer::step_rewards`].
    pub fn step_rewards_where(
        &mut self,
        valid: Option<&[bool]>,
        rewards: &mut [f64],
        terminated: &[bool],
        truncated: &[bool],
    ) -> Result<()> {
        if !self.options.reward {
            return Ok(());
        }
        let num_envs = self.returns.len();
        check_len("rewards", rewards.len(), num_envs)?;
        check_len("terminated", terminated.len(), num_envs)?;
        check_len("truncated", truncated.len(), num_envs)?;
        check_len("valid", valid.map_or(num_envs, <[bool]>::len), num_envs)?;
        self.check_rewards(rewards)?;
        match valid.filter(|valid| valid.contains(&false)) {
            None => {
                for (sum, reward) in self.returns.iter_mut().zip(&*rewards) {
                    *sum = *sum * self.options.gamma + reward;
                }
                self.reward.update(&self.returns)?;
            }
            Some(valid) => {
                for i in (0..num_envs).filter(|i| valid[*i]) {
                    self.returns[i] = self.returns[i] * self.options.gamma + rewards[i];
                    self.reward.update(&self.returns[i..=i])?;
                }
            }
        }
        let deviation = (self.reward.var[0] + self.options.epsilon).sqrt();
        let clip = self.options.clip_reward;
        for (i, reward) in rewards.iter_mut().enumerate() {
            *reward = (*reward / deviation).clamp(-clip, clip);
            if terminated[i] || truncated[i] {
                self.returns[i] = 0.0;
            }
        }
        Ok(())
    }
}

// The loops below check for interruptions only after many elements, because a check takes as long
// as processing the few rows of one step.

/// Calls `add(columns, numbers)` for each row, or for each piece of a long row. `numbers` are the
/// numbers of the row in the range `columns`.
fn sweep<T>(
    rows: &[T],
    dim: usize,
    interrupt: &mut InterruptCheck,
    mut add: impl FnMut(Range<usize>, &[T]),
) -> Result<()> {
    for (i, chunk) in rows.chunks((InterruptCheck::POLL_ELEMENTS / dim).max(1) * dim).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        for row in chunk.chunks_exact(dim) {
            for (i, piece) in row.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
                if i > 0 {
                    interrupt.check()?;
                }
                add(i * InterruptCheck::POLL_ELEMENTS..i * InterruptCheck::POLL_ELEMENTS + piece.len(), piece);
            }
        }
    }
    Ok(())
}

/// Replaces each number `x` by `make(x)`.
fn change(column: &mut [f64], interrupt: &mut InterruptCheck, make: impl Fn(f64) -> f64) -> Result<()> {
    for (i, chunk) in column.chunks_mut(InterruptCheck::POLL_ELEMENTS).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        for x in chunk {
            *x = make(*x);
        }
    }
    Ok(())
}

/// Merges the statistics (mean, variance, count) of two sets of rows with the update of Chan et al.
/// Writes the result to the arrays of the batch.
fn merge(
    (mean, var, count): (&[f64], &[f64], f64),
    (batch_mean, batch_var, batch_count): (&mut [f64], &mut [f64], f64),
    interrupt: &mut InterruptCheck,
) -> Result<()> {
    const CHUNK: usize = InterruptCheck::POLL_ELEMENTS / 4;
    let total = count + batch_count;
    let batch = batch_mean.chunks_mut(CHUNK).zip(batch_var.chunks_mut(CHUNK));
    let parts = mean.chunks(CHUNK).zip(var.chunks(CHUNK)).zip(batch);
    for (i, ((mean, var), (batch_mean, batch_var))) in parts.enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        for ((mean, var), (batch_mean, batch_var)) in mean.iter().zip(var).zip(batch_mean.iter_mut().zip(batch_var)) {
            let delta = *batch_mean - mean;
            let squares = var * count + *batch_var * batch_count + delta * delta * count * batch_count / total;
            *batch_mean = mean + delta * batch_count / total;
            *batch_var = squares / total;
        }
    }
    Ok(())
}
