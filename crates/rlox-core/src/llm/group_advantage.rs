//! Advantages of completions relative to the other completions of the same prompt, its group.
//!
//! The options cover GRPO (Shao et al. 2024, arXiv:2402.03300, section 4.1.2), Dr. GRPO, which does
//! not divide by the standard deviation (Liu et al. 2025, arXiv:2503.20783) and the leave-one-out
//! baseline of RLOO (Ahmadian et al. 2024, arXiv:2402.14740).
//!
//! NaN marks a missing reward, as in TRL. Means and standard deviations exclude such a reward, and
//! its advantage is 0.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use super::rewards::check_size;
use crate::interrupt::InterruptCheck;
use crate::simd::f64x8::{F64s, on_f64s};
use crate::simd::{LANES, multiversion};
use crate::{Error, Result, advantage::Float, error::check_len};

/// Number of groups whose divisions and square roots are computed in one loop.
const BLOCK: usize = 16;

/// Divisor of the differences between the rewards and the baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewardScale {
    /// Standard deviation of the group's rewards: GRPO.
    #[default]
    Group,
    /// Standard deviation of all rewards of the call (Hu et al. 2025, arXiv:2508.08221).
    Batch,
    /// No division: Dr. GRPO, RLOO.
    None,
}

/// Options of the group advantages. The default is `(r - mean) / std` of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupOptions {
    /// Delta degrees of freedom: the variance is the sum of squares divided by `count - ddof`.
    /// PyTorch and TRL use 1.
    pub ddof: usize,
    /// Number added to the standard deviation. TRL uses 1e-4.
    pub eps: f64,
    /// Divisor of the differences between the rewards and the baseline.
    pub scale: RewardScale,
    /// If true, the baseline is the mean of the *other* rewards of the group, as in RLOO.
    pub leave_one_out: bool,
}

/// Computes the advantages of one group. `rewards` holds the rewards of all completions of one
/// prompt.
///
/// All advantages are 0 if there are at most `ddof` rewards, or if the rewards are equal up to two
/// rounding errors. They are also 0 if the rewards differ by less than about 1e-162, because the
/// squares of the differences underflow.
///
/// # Errors
/// The errors of [`compute_batch_group_advantages`].
///
/// ```
/// use rlox_core::llm::{GroupOptions, compute_group_advantages};
///
/// let mut advantages = [0.0; 4];
/// compute_group_advantages(&[0.0, 2.0, f64::NAN, 1.0], &GroupOptions::default(), &mut advantages)?;
/// let std = (2.0_f64 / 3.0).sqrt();
/// assert_eq!(advantages, [-1.0 / std, 1.0 / std, 0.0, 0.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_group_advantages<T: Float>(rewards: &[T], options: &GroupOptions, advantages: &mut [T]) -> Result<()> {
    compute_batch_group_advantages(rewards, rewards.len(), options, advantages)
}

/// Computes the advantages of several groups. `rewards` holds `group_size` rewards per group, one
/// group after the other.
///
/// [`compute_group_advantages`] describes when all advantages of a group are 0.
///
/// # Errors
/// - [`Error::Shape`] if the length of `rewards` is not a multiple of `group_size`, or if
///   `advantages` has another length than `rewards`;
/// - [`Error::Config`] if `eps` is negative or not finite, or the magnitude of a reward exceeds 1e140 (f32: 1e37).
///
/// Nothing is written if one of these errors occurs.
///
/// ```
/// use rlox_core::llm::{GroupOptions, RewardScale, compute_batch_group_advantages};
///
/// // Leave-one-out: 1 - (0 + 0) / 2 and 0 - (1 + 0) / 2. The second group has equal rewards.
/// let rewards = [1.0_f32, 0.0, 0.0, 0.1, 0.1, 0.1];
/// let options = GroupOptions { scale: RewardScale::None, leave_one_out: true, ..Default::default() };
/// let mut advantages = [0.0; 6];
/// compute_batch_group_advantages(&rewards, 3, &options, &mut advantages)?;
/// assert_eq!(advantages, [1.0, -0.5, -0.5, 0.0, 0.0, 0.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn compute_batch_group_advantages<T: Float>(
    rewards: &[T],
    group_size: usize,
    options: &GroupOptions,
    advantages: &mut [T],
) -> Result<()> {
    if !rewards.is_empty() && (group_size == 0 || !rewards.len().is_multiple_of(group_size)) {
        return Err(Error::shape(
            "rewards",
            format!("a multiple of group_size = {group_size} elements"),
            rewards.len().to_string(),
            "pass complete groups, prompt by prompt",
        ));
    }
    check_len("advantages", advantages.len(), rewards.len())?;
    if !(0.0..f64::INFINITY).contains(&options.eps) {
        let hint = "pass 0, or a small positive number such as 1e-4";
        return Err(Error::config("eps", "a finite number that is not negative", options.eps.to_string(), hint));
    }
    check_size("rewards", rewards)?;
    if rewards.is_empty() {
        return Ok(());
    }
    let mut interrupt = InterruptCheck::default();
    let params = ScaleParams::from_options(rewards, options, &mut interrupt)?;
    let chunk_len = (InterruptCheck::POLL_ELEMENTS / group_size / BLOCK * BLOCK).max(1) * group_size;
    for (i, (rewards, advantages)) in rewards.chunks(chunk_len).zip(advantages.chunks_mut(chunk_len)).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        if group_size > InterruptCheck::POLL_ELEMENTS {
            large(rewards, &params, advantages, &mut interrupt)?;
        } else {
            groups(rewards, group_size, &params, advantages);
        }
    }
    Ok(())
}

/// Options of one call, with the divisor that is common to all groups.
struct ScaleParams {
    ddof: f64,
    eps: f64,
    by_group: bool,
    /// Divisor of all groups. Not used if `by_group` is true.
    scale: f64,
    leave_one_out: bool,
}

impl ScaleParams {
    fn from_options<T: Float>(rewards: &[T], options: &GroupOptions, interrupt: &mut InterruptCheck) -> Result<Self> {
        let (ddof, eps) = (options.ddof as f64, options.eps);
        let (scale, eps) = match options.scale {
            RewardScale::Group => (0.0, eps),
            RewardScale::Batch => (Sums::from_long_slice(rewards, interrupt)?.std::<T>(ddof), eps),
            RewardScale::None => (1.0, 0.0),
        };
        let by_group = options.scale == RewardScale::Group;
        Ok(Self { ddof, eps, by_group, scale, leave_one_out: options.leave_one_out })
    }
}

on_f64s! {
    fn groups<T: Float>(simd: F64s, rewards: &[T], group_size: usize, params: &ScaleParams, advantages: &mut [T]) {
        let block_len = group_size.saturating_mul(BLOCK);
        for (rewards, advantages) in rewards.chunks(block_len).zip(advantages.chunks_mut(block_len)) {
            block(simd, rewards, group_size, params, advantages);
        }
    }
}

/// Computes the advantages of one group that is so long that interruption checks are needed.
fn large<T: Float>(
    rewards: &[T],
    params: &ScaleParams,
    advantages: &mut [T],
    interrupt: &mut InterruptCheck,
) -> Result<()> {
    let group = Sums::from_long_slice(rewards, interrupt)?;
    let (mean, factor) = (group.mean(), group.factor::<T>(params));
    for (rewards, advantages) in
        rewards.chunks(InterruptCheck::POLL_ELEMENTS).zip(advantages.chunks_mut(InterruptCheck::POLL_ELEMENTS))
    {
        interrupt.check()?;
        write_advantages(rewards, &group, mean, factor, advantages);
    }
    Ok(())
}

multiversion! {
    fn write_advantages<T: Float>(rewards: &[T], group: &Sums, mean: f64, factor: f64, advantages: &mut [T]) {
        for (advantage, reward) in advantages.iter_mut().zip(rewards) {
            let centred = (reward.to_f64() - group.origin) - mean;
            // A missing reward has the advantage 0, as an average reward has.
            *advantage = T::from_f64(if factor == 0.0 || centred.is_nan() { 0.0 } else { centred * factor + 0.0 });
        }
    }
}

/// Computes the advantages of up to [`BLOCK`] groups.
///
/// The divisions and square roots of all groups are computed in one loop, which the compiler
/// vectorises.
#[inline(always)]
fn block<T: Float>(simd: impl F64s, rewards: &[T], group_size: usize, params: &ScaleParams, advantages: &mut [T]) {
    let mut sums = [[0.0; BLOCK]; 3];
    for (i, rewards) in rewards.chunks_exact(group_size).enumerate() {
        let group = Sums::from_slice(simd, rewards);
        [sums[0][i], sums[1][i], sums[2][i]] = [group.origin, group.sum, group.square];
    }
    let (mut means, mut factors, mut missing) = ([0.0; BLOCK], [0.0; BLOCK], false);
    for i in 0..BLOCK {
        let group = Sums { count: group_size as f64, origin: sums[0][i], sum: sums[1][i], square: sums[2][i] };
        means[i] = group.mean();
        missing |= means[i].is_nan();
        factors[i] = group.factor::<T>(params);
    }
    let pairs = rewards.chunks_exact(group_size).zip(advantages.chunks_exact_mut(group_size));
    for (i, (rewards, advantages)) in pairs.enumerate() {
        scaled(simd, rewards, [sums[0][i], means[i], factors[i]], advantages);
    }
    if missing {
        incomplete(rewards, group_size, params, advantages);
    }
}

/// Writes the advantages of one group: `((reward - origin) - mean) * factor`.
#[inline(always)]
fn scaled<T: Float>(simd: impl F64s, rewards: &[T], [origin, mean, factor]: [f64; 3], advantages: &mut [T]) {
    let (blocks, rest) = rewards.as_chunks::<LANES>();
    let (to_blocks, to_rest) = advantages.as_chunks_mut::<LANES>();
    let [origins, means, factors, zero] = [origin, mean, factor, 0.0].map(|x| simd.splat(x));
    for (advantages, rewards) in to_blocks.iter_mut().zip(blocks) {
        let centred = simd.sub(simd.sub(T::load(simd, rewards), origins), means);
        // Adding 0 turns negative zeros into zeros.
        T::store(simd, simd.add(simd.mul(centred, factors), zero), advantages);
    }
    for (advantage, reward) in to_rest.iter_mut().zip(rest) {
        *advantage = T::from_f64(((reward.to_f64() - origin) - mean) * factor + 0.0);
    }
}

/// Computes the advantages of groups with missing rewards again, without the missing rewards.
#[cold]
fn incomplete<T: Float>(rewards: &[T], group_size: usize, params: &ScaleParams, advantages: &mut [T]) {
    for (rewards, advantages) in rewards.chunks_exact(group_size).zip(advantages.chunks_exact_mut(group_size)) {
        if !rewards.iter().any(|reward| reward.to_f64().is_nan()) {
            continue;
        }
        let group = Sums::from_present(rewards);
        let (mean, factor) = (group.mean(), group.factor::<T>(params));
        write_advantages(rewards, &group, mean, factor, advantages);
    }
}

/// Sums over the rewards of a group, after `origin` has been subtracted from each reward. `origin`
/// is the first reward.
///
/// Therefore the variance of equal rewards is exactly zero, and a large number that is common to
/// all rewards causes no cancellation.
#[derive(Clone, Copy)]
struct Sums {
    count: f64,
    origin: f64,
    /// Sum of the differences from `origin`; NaN if a reward is missing.
    sum: f64,
    /// Sum of the squared differences.
    square: f64,
}

impl Sums {
    #[inline(always)]
    fn from_slice<T: Float>(simd: impl F64s, rewards: &[T]) -> Self {
        Self::with_origin(simd, rewards.first().map_or(f64::NAN, |x| x.to_f64()), rewards)
    }

    #[inline(always)]
    fn with_origin<T: Float>(simd: impl F64s, origin: f64, rewards: &[T]) -> Self {
        let (blocks, rest) = rewards.as_chunks::<LANES>();
        let (mut sum, mut square) = (0.0, 0.0);
        if !blocks.is_empty() {
            let (mut sums, mut squares, origins) = (simd.splat(0.0), simd.splat(0.0), simd.splat(origin));
            for block in blocks {
                let x = simd.sub(T::load(simd, block), origins);
                sums = simd.add(sums, x);
                squares = simd.add(squares, simd.mul(x, x));
            }
            (sum, square) = (total(simd, sums), total(simd, squares));
        }
        for x in rest {
            let x = x.to_f64() - origin;
            sum += x;
            square += x * x;
        }
        Self { count: rewards.len() as f64, origin, sum, square }
    }

    /// Returns the sums over many rewards, some of which may be missing.
    fn from_long_slice<T: Float>(rewards: &[T], interrupt: &mut InterruptCheck) -> Result<Self> {
        let mut all = Self { count: 0.0, origin: rewards[0].to_f64(), sum: 0.0, square: 0.0 };
        for (i, rewards) in rewards.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
            if i > 0 {
                interrupt.check()?;
            }
            add(rewards, &mut all);
        }
        if !all.sum.is_nan() {
            return Ok(all);
        }
        let origin = rewards.iter().map(|x| x.to_f64()).find(|x| !x.is_nan()).unwrap_or(0.0);
        all = Self { count: 0.0, origin, sum: 0.0, square: 0.0 };
        for (i, rewards) in rewards.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
            if i > 0 {
                interrupt.check()?;
            }
            all.add(&Self::present_with_origin(origin, rewards));
        }
        Ok(all)
    }

    /// Adds the sums over other rewards with the same `origin`.
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.square += other.square;
    }

    /// Returns the sums over the rewards that are not missing.
    #[cold]
    fn from_present<T: Float>(rewards: &[T]) -> Self {
        let origin = rewards.iter().map(|x| x.to_f64()).find(|x| !x.is_nan());
        Self::present_with_origin(origin.unwrap_or(0.0), rewards)
    }

    fn present_with_origin<T: Float>(origin: f64, rewards: &[T]) -> Self {
        let present = rewards.iter().map(|x| x.to_f64()).filter(|x| !x.is_nan());
        let nothing = Self { count: 0.0, origin, sum: 0.0, square: 0.0 };
        present.fold(nothing, |sums, x| {
            let x = x - origin;
            Self { count: sums.count + 1.0, sum: sums.sum + x, square: sums.square + x * x, ..sums }
        })
    }

    #[inline(always)]
    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    /// Returns the standard deviation, or 0 if it is undefined or all rewards are equal up to two
    /// rounding errors.
    #[inline(always)]
    fn std<T: Float>(&self, ddof: f64) -> f64 {
        let ulp = if size_of::<T>() == 4 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let mean = self.mean();
        let std = ((self.square - self.sum * mean) / (self.count - ddof)).sqrt();
        // The root of the sum of squares is at least the largest difference from `origin`. A
        // comparison with NaN is false.
        if self.count > ddof && self.square.sqrt() > 2.0 * ulp * self.origin.abs() { std } else { 0.0 }
    }

    /// Returns the factor by which differences from the mean are multiplied, or 0 if the rewards do
    /// not differ.
    #[inline(always)]
    fn factor<T: Float>(&self, params: &ScaleParams) -> f64 {
        let std = self.std::<T>(params.ddof);
        let scale = 1.0 / (if params.by_group { std } else { params.scale } + params.eps);
        // r - (n * mean - r) / (n - 1) = (r - mean) * n / (n - 1)
        let others = if params.leave_one_out { self.count - 1.0 } else { self.count };
        let factor = scale * (self.count / others);
        if std > 0.0 && factor < f64::INFINITY { factor } else { 0.0 }
    }
}

#[inline(always)]
fn total<S: F64s>(simd: S, vector: S::Vector) -> f64 {
    let mut lanes = [0.0; LANES];
    simd.store(vector, &mut lanes);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

on_f64s! {
    fn add<T: Float>(simd: F64s, rewards: &[T], sums: &mut Sums) {
        sums.add(&Sums::with_origin(simd, sums.origin, rewards));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::tests::on_each_isa;
    use crate::testing::{Variant, assert_rejects};

    fn batch<T: Float>(rewards: &[T], group_size: usize, options: &GroupOptions) -> Vec<T> {
        let mut advantages = vec![T::from_f64(9.0); rewards.len()];
        compute_batch_group_advantages(rewards, group_size, options, &mut advantages).unwrap();
        advantages
    }

    /// Computes the advantages as a reference, with the mean before the standard deviation.
    fn slow(rewards: &[f64], group_size: usize, options: &GroupOptions) -> Vec<f64> {
        let without_nan = |group: &[f64]| group.iter().copied().filter(|x| !x.is_nan()).collect::<Vec<_>>();
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        let std = |x: &[f64]| {
            let square = x.iter().map(|y| (y - mean(x)).powi(2)).sum::<f64>();
            if x.len() > options.ddof { (square / (x.len() - options.ddof) as f64).sqrt() } else { 0.0 }
        };
        let of_group = |group: &[f64]| {
            let present = without_nan(group);
            let scale = match options.scale {
                RewardScale::Group => std(&present) + options.eps,
                RewardScale::Batch => std(&without_nan(rewards)) + options.eps,
                RewardScale::None => 1.0,
            };
            let n = present.len() as f64;
            let one = |r: f64| {
                let others = (n * mean(&present) - r) / (n - 1.0);
                let baseline = if options.leave_one_out { others } else { mean(&present) };
                if r.is_nan() || std(&present) == 0.0 { 0.0 } else { (r - baseline) / scale }
            };
            group.iter().map(|r| one(*r)).collect::<Vec<_>>()
        };
        rewards.chunks(group_size).flat_map(of_group).collect()
    }

    #[test]
    fn group_advantages_equal_values_computed_by_hand() {
        // The mean is 3, and the squared differences from the mean are 4, 1, 0 and 9.
        let rewards = [1.0, 2.0, 3.0, 6.0];
        let std = 3.5_f64.sqrt();
        let expected = [-2.0 / std, -1.0 / std, 0.0, 3.0 / std];
        for (got, expected) in batch(&rewards, 4, &GroupOptions::default()).iter().zip(expected) {
            assert!((got - expected).abs() < 1e-15, "{got} {expected}");
        }
        let trl = GroupOptions { ddof: 1, eps: 0.5, ..Default::default() };
        assert!((batch(&rewards, 4, &trl)[3] - 3.0 / ((14.0_f64 / 3.0).sqrt() + 0.5)).abs() < 1e-15);
    }

    #[test]
    fn equal_rewards_have_zero_advantages() {
        for scale in [RewardScale::Group, RewardScale::Batch, RewardScale::None] {
            let options = GroupOptions { scale, leave_one_out: true, ..Default::default() };
            let rewards = [0.1, 0.1, 0.1, 0.1 + 0.2, 0.3, 0.3, 5.0, 5.0, 7.0];
            let bits: Vec<u64> = batch(&rewards, 3, &options)[..6].iter().map(|x: &f64| x.to_bits()).collect();
            assert_eq!(bits, [0; 6], "{scale:?}");
            assert!(batch(&rewards, 3, &options)[8] > 0.0);
        }
        assert_eq!(batch(&[7.0_f32], 1, &GroupOptions { ddof: 1, ..Default::default() }), [0.0]);
        assert_eq!(batch(&[f64::NAN; 4], 2, &GroupOptions::default()), [0.0; 4]);
        assert_eq!(batch::<f64>(&[], 0, &GroupOptions::default()), [0.0; 0]);
    }

    #[test]
    fn small_differences_in_large_groups_count() {
        let mut rewards = vec![1.0_f32; 65_536];
        rewards[0] += 1e-5;
        let advantages = batch(&rewards, 65_536, &GroupOptions::default());
        assert!((advantages[0] - 256.0).abs() < 0.01, "{}", advantages[0]);
        let close = batch(&[1000.0_f32, 1000.0002, 1000.0004, 1000.0002], 4, &GroupOptions::default());
        assert!((close[2] - 1.51).abs() < 0.01, "{close:?}");
    }

    proptest! {
        #[test]
        fn group_advantages_equal_the_reference(
            rewards in prop::collection::vec(prop_oneof![9 => -10.0..10.0, 1 => Just(f64::NAN)], 6 * 20),
            group_size in prop::sample::select(vec![1_usize, 2, 3, 8, 10, 12, 20, 24, 60]),
            ddof in 0..3_usize,
            eps in prop::sample::select(vec![0.0, 1e-4]),
            scale in prop::sample::select(vec![RewardScale::Group, RewardScale::Batch, RewardScale::None]),
            leave_one_out: bool,
        ) {
            let options = GroupOptions { ddof, eps, scale, leave_one_out };
            // If count - ddof is small, the reference is as accurate as the kernel, so a small tolerance suffices.
            for (got, expected) in batch(&rewards, group_size, &options).iter().zip(slow(&rewards, group_size, &options)) {
                let expected = if expected.is_finite() { expected } else { 0.0 };
                prop_assert!((got - expected).abs() <= 1e-9 * (1.0 + expected.abs()), "{} {}", got, expected);
            }
        }

        #[test]
        fn every_instruction_set_computes_the_same_bits(
            rewards in prop::collection::vec(prop_oneof![9 => -1.0..1.0_f32, 1 => Just(f32::NAN)], 90),
            group_size in prop::sample::select(vec![2_usize, 9, 15, 45, 90]),
        ) {
            let options = GroupOptions { scale: RewardScale::Batch, ..Default::default() };
            let bits = || batch(&rewards, group_size, &options).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let results = on_each_isa(bits);
            prop_assert!(results.iter().all(|result| *result == results[0]));
        }
    }

    #[test]
    fn large_offsets_do_not_reduce_accuracy() {
        let rewards: Vec<f64> = [0.0, 1.0, 2.0, 5.0].iter().map(|x| 1e9 + x).collect();
        let near = batch(&[0.0, 1.0, 2.0, 5.0], 4, &GroupOptions::default());
        assert!(batch(&rewards, 4, &GroupOptions::default()).iter().zip(near).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn invalid_arguments_are_rejected_before_any_write() {
        let rejects = |rewards: &[f64], group_size, options: &GroupOptions, variant: Variant, argument| {
            let mut advantages = vec![9.0; rewards.len()];
            let result = compute_batch_group_advantages(rewards, group_size, options, &mut advantages);
            assert!(advantages.iter().all(|x| *x == 9.0));
            assert_rejects(result, variant, argument)
        };
        let usual = GroupOptions::default();
        for group_size in [2, 0] {
            let rejected = rejects(&[1.0; 5], group_size, &usual, Error::Shape, "rewards");
            assert_eq!(rejected.expected, format!("a multiple of group_size = {group_size} elements"));
            assert_eq!(rejected.got, "5");
        }
        let infinite = rejects(&[1.0, f64::INFINITY], 2, &usual, Error::Config, "rewards");
        assert_eq!((&infinite.got[..], infinite.at.index), ("inf", Some(1)));
        let large = rejects(&[1e200, 1.0], 2, &usual, Error::Config, "rewards");
        assert_eq!((&large.got[..], large.at.index), ("1e200", Some(0)));
        for eps in [-1e-4, f64::NAN, f64::INFINITY] {
            rejects(&[1.0, 2.0], 2, &GroupOptions { eps, ..usual }, Error::Config, "eps");
        }
    }
}
