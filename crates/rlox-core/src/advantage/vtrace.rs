//! V-trace targets, for learning from data of another policy (Espeholt et al. 2018,
//! arXiv:1802.01561, eq. 1).
//!
//! - `rho_t = min(rho_bar, exp(log_rhos_t))`, `c_t = lambda * min(c_bar, exp(log_rhos_t))`
//! - `delta_t = r_t + gamma * (1 - terminated_t) * next_value_t - v_t`
//! - `vs_t - v_t = rho_t * delta_t + gamma * c_t * (1 - done_t) * (vs_{t+1} - v_{t+1})`
//! - `pg_advantage_t = min(pg_rho_bar, exp(log_rhos_t)) * (r_t + gamma * (1 - terminated_t) * next_vs_t - v_t)`
//!
//! Here `done = terminated | truncated`, and `v_t` is the value of the observation before step t.
//! If step t was truncated, `next_value_t` and `next_vs_t` are both the value of the final
//! observation of the episode. Otherwise they are `v_{t+1}` and `vs_{t+1}`. Values after the end of
//! an episode are ignored instead of multiplied by zero, so a NaN there has no effect on the
//! episode.

#![expect(
    clippy::inline_always,
    clippy::too_many_arguments,
    reason = "loops that are compiled for several instruction sets; free functions on slices"
)]

use super::lanes::{Window, array_at, mask};
use super::recurrence::{Recursion, Steps, Terms, compute_columns, compute_trajectory};
use super::{EpisodeEnds, check_discount, check_rows};
use crate::simd::LANES;
use crate::simd::exp::exp;
use crate::simd::f64x8::F64s;
use crate::{Error, Result, advantage::Float, error::check_len};

/// Settings of V-trace.
///
/// ```
/// let config = rlox_core::advantage::VtraceConfig { gamma: 0.9, ..rlox_core::advantage::VtraceConfig::default() };
/// assert_eq!((config.rho_bar, config.c_bar, config.lambda), (1.0, 1.0, 1.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VtraceConfig {
    /// Discount in [0, 1].
    pub gamma: f64,
    /// Upper limit of the importance ratios that weight the temporal differences. Infinity means no
    /// limit.
    ///
    /// The limit determines the policy whose value function is the fixed point of V-trace.
    pub rho_bar: f64,
    /// Upper limit of the importance ratios in the trace coefficients `c_t`. The paper assumes
    /// `c_bar <= rho_bar`.
    pub c_bar: f64,
    /// Factor of the trace coefficients `c_t`, in [0, 1] (remark 2 of the paper).
    pub lambda: f64,
    /// Upper limit of the importance ratios that weight the policy gradient advantages.
    pub pg_rho_bar: f64,
}

impl Default for VtraceConfig {
    /// Returns the settings of the paper: `gamma` 0.99, all others 1.
    fn default() -> Self {
        Self { gamma: 0.99, rho_bar: 1.0, c_bar: 1.0, lambda: 1.0, pg_rho_bar: 1.0 }
    }
}

impl VtraceConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] if `gamma` or `lambda` is outside [0, 1], or if an upper limit is negative
    /// or NaN.
    ///
    /// ```
    /// assert!(rlox_core::advantage::VtraceConfig { lambda: 2.0, ..Default::default() }.check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        check_discount("gamma", self.gamma)?;
        check_discount("lambda", self.lambda)?;
        for (name, bar) in [("rho_bar", self.rho_bar), ("c_bar", self.c_bar), ("pg_rho_bar", self.pg_rho_bar)] {
            if bar.is_nan() || bar < 0.0 {
                let hint = "pass 1 as the paper does, or infinity for no limit";
                return Err(Error::config(name, "a number of at least 0", bar.to_string(), hint));
            }
        }
        Ok(())
    }
}

/// Computes V-trace targets `vs` and policy gradient advantages of one trajectory of T steps.
///
/// `log_rhos` are `log pi(a|s) - log mu(a|s)`, with the learned policy `pi` and the policy `mu`
/// that chose the actions. All slices have length T. `vs` and `pg_advantages` are overwritten.
/// `bootstrap_value` is the value of the observation after the last step, and is not used if that
/// step ends an episode. For an empty trajectory, nothing is written.
///
/// Ratios are computed in `T`, with an error of at most 1 unit in the last place (2 units in f32).
/// Everything else is computed in f64. `log_rhos` below -707 (below -86 in f32) are valid and
/// result in a ratio of zero. A NaN makes the results of its step NaN, and those of all earlier
/// steps that depend on it.
///
/// # Errors
/// - [`Error::Shape`] if the length of a slice differs from that of `rewards`, or if a step is
///   truncated and not terminated but `final_values` is `None`;
/// - [`Error::Config`] if `gamma` or `lambda` is outside [0, 1], or if an upper limit is negative
///   or NaN.
///
/// Nothing is written if one of these errors occurs.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, VtraceConfig, compute_vtrace};
///
/// // `pi` takes the first action half as often as `mu`, and the second action four times as often.
/// let log_rhos = [0.5_f64.ln(), 4.0_f64.ln()];
/// let (rewards, values) = ([1.0, 2.0], [2.0, 1.0]);
/// let (mut vs, mut pg_advantages) = ([0.0; 2], [0.0; 2]);
/// let config = VtraceConfig { gamma: 0.5, ..VtraceConfig::default() };
/// let ends = EpisodeEnds::dones(&[false, false]);
/// compute_vtrace(&log_rhos, &rewards, &values, ends, 4.0, config, &mut vs, &mut pg_advantages)?;
/// // vs - v of step 1 is 1 * (2 + 0.5 * 4 - 1) = 3, and of step 0
/// // 0.5 * (1 + 0.5 * 1 - 2) + 0.5 * 0.5 * 3 = 0.5.
/// assert_eq!(vs, [2.5, 4.0]);
/// // Step 0: 0.5 * (1 + 0.5 * 4 - 2). Step 1: 1 * (2 + 0.5 * 4 - 1).
/// assert_eq!(pg_advantages, [0.5, 3.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_vtrace<T: Float>(
    log_rhos: &[T],
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
    bootstrap_value: T,
    config: VtraceConfig,
    vs: &mut [T],
    pg_advantages: &mut [T],
) -> Result<()> {
    let targets = check(log_rhos, rewards, values, ends, config, [vs.len(), pg_advantages.len()])?;
    compute_trajectory(&targets, bootstrap_value, [vs, pg_advantages])
}

/// Computes V-trace targets and policy gradient advantages of N environments over T steps, stored
/// time-major.
///
/// Element `t * num_envs + n` of a slice belongs to step t of environment n. `bootstrap_values` has
/// length N, all other slices have length T * N. The results of each environment equal those of
/// [`compute_vtrace`] up to rounding.
///
/// # Errors
/// The errors of [`compute_vtrace`]. Also [`Error::Shape`] if the length of `rewards` is not a
/// multiple of `num_envs`.
///
/// ```
/// use rlox_core::advantage::{EpisodeEnds, VtraceConfig, compute_vtrace_time_major};
///
/// // Two environments, two on-policy steps; the second environment terminates at its first step.
/// let (rewards, zeros) = ([1.0_f32, 2.0, 3.0, 4.0], [0.0; 4]);
/// let ends = EpisodeEnds::dones(&[false, true, false, false]);
/// let (mut vs, mut pg_advantages) = ([0.0; 4], [0.0; 4]);
/// let config = VtraceConfig { gamma: 0.5, ..VtraceConfig::default() };
/// compute_vtrace_time_major(&zeros, &rewards, &zeros, ends, 2, &[8.0, 8.0], config, &mut vs, &mut pg_advantages)?;
/// assert_eq!(vs, [4.5, 2.0, 7.0, 8.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_vtrace_time_major<T: Float>(
    log_rhos: &[T],
    rewards: &[T],
    values: &[T],
    ends: EpisodeEnds<'_, T>,
    num_envs: usize,
    bootstrap_values: &[T],
    config: VtraceConfig,
    vs: &mut [T],
    pg_advantages: &mut [T],
) -> Result<()> {
    check_rows(rewards.len(), "num_envs", num_envs)?;
    check_len("bootstrap_values", bootstrap_values.len(), num_envs)?;
    let targets = check(log_rhos, rewards, values, ends, config, [vs.len(), pg_advantages.len()])?;
    compute_columns(&targets, bootstrap_values, [vs, pg_advantages])
}

/// Checks all arguments and returns the inputs of the recursion.
fn check<'a, T: Float>(
    log_rhos: &'a [T],
    rewards: &'a [T],
    values: &'a [T],
    ends: EpisodeEnds<'a, T>,
    config: VtraceConfig,
    out: [usize; 2],
) -> Result<Targets<'a, T>> {
    config.check()?;
    let len = rewards.len();
    check_len("log_rhos", log_rhos.len(), len)?;
    check_len("values", values.len(), len)?;
    let finals = ends.check(len)?;
    check_len("vs", out[0], len)?;
    check_len("pg_advantages", out[1], len)?;
    let steps = Steps { rewards, values, terminated: ends.terminated, finals };
    Ok(Targets { log_rhos, steps, config, trace: config.gamma * config.lambda })
}

/// Inputs of the recursion over `vs_t - v_t`.
struct Targets<'a, T> {
    log_rhos: &'a [T],
    steps: Steps<'a, T>,
    config: VtraceConfig,
    /// Factor of the limited ratio in a trace: `gamma * lambda`.
    trace: f64,
}

/// Intermediate results of N steps for the policy gradient advantages.
struct StepCache<const N: usize> {
    delta: [f64; N],
    rho: [f64; N],
    open: [bool; N],
}

/// Returns the smaller number, or NaN if the ratio is NaN.
#[inline(always)]
fn limit(rho: f64, bar: f64) -> f64 {
    if rho > bar { bar } else { rho }
}

impl<T: Float> Recursion<2> for Targets<'_, T> {
    type Float = T;
    type Cache<const N: usize> = StepCache<N>;
    /// Importance ratios of N steps, before limits.
    type Ready<const N: usize> = [T; N];

    #[inline(always)]
    fn steps(&self) -> Steps<'_, T> {
        self.steps
    }

    #[inline(always)]
    fn start(_: T) -> f64 {
        0.0
    }

    #[inline(always)]
    fn new_cache<const N: usize>() -> StepCache<N> {
        StepCache { delta: [0.0; N], rho: [0.0; N], open: [false; N] }
    }

    #[inline(always)]
    fn terms<const N: usize>(&self, index: usize, next: &[T; N], terms: Terms<'_, N>, cache: &mut StepCache<N>) {
        let VtraceConfig { gamma, rho_bar, c_bar, pg_rho_bar, .. } = self.config;
        let following = self.steps.following(index, next);
        let (log_rhos, rewards) = (array_at::<_, N>(self.log_rhos, index), array_at::<_, N>(self.steps.rewards, index));
        let values = array_at::<_, N>(self.steps.values, index);
        for i in 0..N {
            let ratio = exp(log_rhos[i]).to_f64();
            let (bootstrap, open) = following.step(i);
            let delta = rewards[i].to_f64() + gamma * bootstrap - values[i].to_f64();
            terms.offset[i] = limit(ratio, rho_bar) * delta;
            terms.factor[i] = mask(open, self.trace * limit(ratio, c_bar));
            (cache.delta[i], cache.rho[i], cache.open[i]) = (delta, limit(ratio, pg_rho_bar), open);
        }
    }

    #[inline(always)]
    fn write<const N: usize>(
        &self,
        index: usize,
        cache: &StepCache<N>,
        x: &[f64; N],
        after: &[f64; N],
        [vs, pg_advantages]: [&mut [T; N]; 2],
    ) {
        let values = array_at::<_, N>(self.steps.values, index);
        self.targets(values, cache, x, after, vs, pg_advantages);
    }

    #[inline(always)]
    fn prepare<const N: usize>(&self, index: usize) -> [T; N] {
        let mut ratios = *array_at::<_, N>(self.log_rhos, index);
        for ratio in &mut ratios {
            *ratio = exp(*ratio);
        }
        ratios
    }

    #[inline(always)]
    fn block<S: F64s, const N: usize>(
        &self,
        index: usize,
        (ratios, first): (&[T; N], usize),
        values: S::Vector,
        next: S::Vector,
        window: &mut Window<S, true>,
        [vs, pg_advantages]: [&mut [T; LANES]; 2],
    ) {
        let (simd, behind, config) = (window.simd, window.x, self.config);
        let (gamma, ratio) = (simd.splat(config.gamma), T::load(simd, array_at(ratios, first)));
        let limited = |bar| simd.min(simd.splat(bar), ratio);
        let (bootstrap, done) = self.steps.bootstrap_lanes(simd, index, next);
        let rewards = T::load(simd, array_at(self.steps.rewards, index));
        let delta = simd.sub(simd.add(rewards, simd.mul(gamma, bootstrap)), values);
        let trace = simd.mul(simd.splat(self.trace), limited(config.c_bar));
        let x = window.step(simd.mul(limited(config.rho_bar), delta), simd.mask_zero(done, trace));
        let discounted_next = simd.mask_zero(done, simd.mul(gamma, simd.shift_lanes::<1>(x, behind)));
        T::store(simd, simd.add(values, x), vs);
        T::store(simd, simd.mul(limited(config.pg_rho_bar), simd.add(delta, discounted_next)), pg_advantages);
    }
}

impl<T: Float> Targets<'_, T> {
    /// Writes the outputs of N steps.
    ///
    /// This is a separate function, because only for function arguments does the compiler assume
    /// that slices do not overlap.
    #[inline(always)]
    fn targets<const N: usize>(
        &self,
        values: &[T; N],
        cache: &StepCache<N>,
        x: &[f64; N],
        after: &[f64; N],
        vs: &mut [T; N],
        pg_advantages: &mut [T; N],
    ) {
        for i in 0..N {
            vs[i] = T::from_f64(values[i].to_f64() + x[i]);
            let discounted_next = mask(cache.open[i], self.config.gamma * after[i]);
            pg_advantages[i] = T::from_f64(cache.rho[i] * (cache.delta[i] + discounted_next));
        }
    }
}
