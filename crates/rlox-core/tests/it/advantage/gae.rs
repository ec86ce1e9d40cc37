//! Comparisons of generalised advantage estimation with results computed by hand and a scalar
//! reference.

use proptest::collection::vec;
use proptest::prelude::*;
use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{
    Error, Result,
    advantage::{EpisodeEnds, Float, VtraceConfig, compute_gae_time_major, compute_returns, compute_vtrace},
    compute_gae, compute_gae_batched,
    error::Mismatch,
};

const NAN: f64 = f64::NAN;

fn gae(rewards: &[f64], values: &[f64], ends: EpisodeEnds<'_, f64>, last: f64, gamma: f64, lambda: f64) -> Vec<f64> {
    let (mut advantages, mut returns) = (vec![0.0; rewards.len()], vec![0.0; rewards.len()]);
    compute_gae(rewards, values, ends, last, gamma, lambda, &mut advantages, &mut returns).expect("good input");
    for ((&a, &v), &r) in advantages.iter().zip(values).zip(&returns) {
        assert!(r == a + v || a.is_nan());
    }
    advantages
}

#[test]
fn without_ends_the_last_value_is_bootstrapped() {
    let ends = EpisodeEnds::dones(&[false, false]);
    // delta_1 = 2 + 0.5 * 4 - 1 = 3; delta_0 = 1 + 0.5 * 1 - 2 = -0.5; A_0 = -0.5 + 0.25 * 3.
    assert_eq!(gae(&[1.0, 2.0], &[2.0, 1.0], ends, 4.0, 0.5, 0.5), [0.25, 3.0]);
}

#[test]
fn termination_bootstraps_nothing_and_ends_the_sum() {
    let ends = EpisodeEnds::dones(&[true, false]);
    assert_eq!(gae(&[1.0, 2.0], &[2.0, 1.0], ends, 4.0, 0.5, 0.5), [-1.0, 3.0]);
}

#[test]
fn truncation_bootstraps_the_final_observation_and_ends_the_sum() {
    let ends =
        EpisodeEnds { terminated: &[false, false], truncated: Some(&[true, false]), final_values: Some(&[6.0, NAN]) };
    // delta_0 = 1 + 0.5 * 6 - 2.
    assert_eq!(gae(&[1.0, 2.0], &[2.0, 1.0], ends, 4.0, 0.5, 0.5), [2.0, 3.0]);
}

#[test]
fn truncation_at_the_last_step_ignores_the_last_value() {
    let ends = EpisodeEnds { terminated: &[false], truncated: Some(&[true]), final_values: Some(&[6.0]) };
    assert_eq!(gae(&[1.0], &[2.0], ends, NAN, 0.5, 0.5), [2.0]);
}

#[test]
fn a_terminated_and_truncated_row_is_a_termination() {
    let ends = EpisodeEnds { terminated: &[true], truncated: Some(&[true]), final_values: Some(&[NAN]) };
    assert_eq!(gae(&[1.0], &[2.0], ends, NAN, 0.5, 0.5), [-1.0]);
    let ends = EpisodeEnds { final_values: None, ..ends };
    assert_eq!(gae(&[1.0], &[2.0], ends, NAN, 0.5, 0.5), [-1.0]);
}

#[test]
fn constant_reward_under_a_time_limit_has_the_infinite_horizon_value() {
    // The values 1 / (1 - gamma) are exact, so all advantages are zero, even those of truncated
    // steps.
    let (n, value) = (300, 10.0);
    let truncated: Vec<bool> = (0..n).map(|t| t % 7 == 6).collect();
    let (rewards, values, terminated) = (vec![1.0; n], vec![value; n], vec![false; n]);
    let ends = EpisodeEnds { terminated: &terminated, truncated: Some(&truncated), final_values: Some(&values) };
    let advantages = gae(&rewards, &values, ends, value, 0.9, 0.95);
    assert!(advantages.iter().all(|a| a.abs() < 1e-12));
}

#[test]
fn nan_behind_a_finished_episode_does_not_spread() {
    for n in [3, 40, 200, 300] {
        for cut in 0..n - 1 {
            let mut values = vec![0.5; n];
            values[cut + 1] = NAN;
            let mut ended = vec![false; n];
            ended[cut] = true;
            let none = vec![false; n];
            let mut finals = vec![f64::INFINITY; n];
            finals[cut] = 0.0;
            let rewards = vec![1.0; n];
            let truncated = EpisodeEnds { terminated: &none, truncated: Some(&ended), final_values: Some(&finals) };
            for ends in [EpisodeEnds::dones(&ended), truncated] {
                let advantages = gae(&rewards, &values, ends, 0.5, 0.99, 0.95);
                assert!(advantages[..=cut].iter().all(|a| a.is_finite()), "n = {n}, cut = {cut}");
                assert!(advantages[cut + 1].is_nan());
                let (mut by_rows, mut returns) = (vec![0.0; n], vec![0.0; n]);
                let last = &[0.5];
                compute_gae_time_major(&rewards, &values, ends, 1, last, 0.99, 0.95, &mut by_rows, &mut returns)
                    .expect("good input");
                assert!(by_rows[..=cut].iter().all(|a| a.is_finite()));
            }
        }
    }
}

#[test]
fn empty_rollouts_are_accepted() -> Result<()> {
    let ends = EpisodeEnds { terminated: &[], truncated: Some(&[]), final_values: None };
    compute_gae::<f32>(&[], &[], ends, 1.0, 0.9, 0.9, &mut [], &mut [])?;
    compute_gae_time_major::<f32>(&[], &[], ends, 0, &[], 0.9, 0.9, &mut [], &mut [])?;
    compute_gae_time_major::<f32>(&[], &[], ends, 3, &[0.0; 3], 0.9, 0.9, &mut [], &mut [])?;
    compute_gae_batched::<f32>(&[], &[], ends, &[0.0; 3], 0, 0.9, 0.9, &mut [], &mut [])?;
    compute_gae_batched::<f32>(&[], &[], ends, &[], 5, 0.9, 0.9, &mut [], &mut [])
}

/// Checks the error of `call`, and that nothing was written.
fn rejects(
    (variant, argument, got): (Variant, &str, &str),
    call: impl FnOnce(&mut [f64], &mut [f64]) -> Result<()>,
) -> Mismatch {
    let (mut advantages, mut returns) = ([7.0; 4], [7.0; 4]);
    let mismatch = assert_rejects(call(&mut advantages, &mut returns), variant, argument);
    assert_eq!(mismatch.got, got, "{argument}");
    assert_eq!((advantages, returns), ([7.0; 4], [7.0; 4]));
    mismatch
}

#[test]
fn invalid_arguments_are_rejected_before_any_write() {
    let x = [0.0; 4];
    let none = EpisodeEnds::dones(&[false; 4]);
    rejects((Error::Shape, "values", "3"), |a, r| compute_gae(&x, &x[..3], none, 0.0, 0.9, 0.9, a, r));
    let short = EpisodeEnds::dones(&[false; 3]);
    rejects((Error::Shape, "terminated", "3"), |a, r| compute_gae(&x, &x, short, 0.0, 0.9, 0.9, a, r));
    let short = EpisodeEnds { truncated: Some(&[false; 5]), ..none };
    rejects((Error::Shape, "truncated", "5"), |a, r| compute_gae(&x, &x, short, 0.0, 0.9, 0.9, a, r));
    let short = EpisodeEnds { final_values: Some(&x[..1]), ..none };
    rejects((Error::Shape, "final_values", "1"), |a, r| compute_gae(&x, &x, short, 0.0, 0.9, 0.9, a, r));
    rejects((Error::Shape, "advantages", "2"), |a, r| compute_gae(&x, &x, none, 0.0, 0.9, 0.9, &mut a[..2], r));
    rejects((Error::Shape, "returns", "2"), |a, r| compute_gae(&x, &x, none, 0.0, 0.9, 0.9, a, &mut r[..2]));
    rejects((Error::Config, "gamma", "1.5"), |a, r| compute_gae(&x, &x, none, 0.0, 1.5, 0.9, a, r));
    rejects((Error::Config, "gae_lambda", "NaN"), |a, r| compute_gae(&x, &x, none, 0.0, 0.9, NAN, a, r));
    let cut = EpisodeEnds { truncated: Some(&[false, false, true, false]), ..none };
    let missing = rejects((Error::Shape, "final_values", "none"), |a, r| compute_gae(&x, &x, cut, 0.0, 0.9, 0.9, a, r));
    assert_eq!(missing.at.row, Some(2));
}

#[test]
fn mismatched_row_counts_are_rejected() {
    let x = [0.0; 4];
    let none = EpisodeEnds::dones(&[false; 4]);
    for num_envs in [3, 0] {
        let rows = rejects((Error::Shape, "rewards", "4"), |a, r| {
            compute_gae_time_major(&x, &x, none, num_envs, &x[..num_envs], 0.9, 0.9, a, r)
        });
        assert_eq!(rows.expected, format!("a multiple of num_envs = {num_envs} elements"));
    }
    rejects((Error::Shape, "last_values", "4"), |a, r| compute_gae_time_major(&x, &x, none, 2, &x, 0.9, 0.9, a, r));
    let rows = rejects((Error::Shape, "rewards", "4"), |a, r| compute_gae_batched(&x, &x, none, &x, 3, 0.9, 0.9, a, r));
    assert_eq!(rows.expected, "a multiple of n_steps = 3 elements");
    rejects((Error::Shape, "last_values", "4"), |a, r| compute_gae_batched(&x, &x, none, &x, 2, 0.9, 0.9, a, r));
}

/// A rollout of N environments over T steps, environment-major.
#[derive(Clone, Debug)]
struct Case {
    n: usize,
    t: usize,
    rows: Vec<(f64, f64, f64, bool, bool)>,
    last_values: Vec<f64>,
    gamma: f64,
    lambda: f64,
}

impl Case {
    fn column<X>(&self, get: impl Fn(&(f64, f64, f64, bool, bool)) -> X) -> Vec<X> {
        self.rows.iter().map(get).collect()
    }

    /// Computes the advantages with the formula, step by step.
    fn reference(&self) -> Vec<f64> {
        let mut advantages = vec![0.0; self.rows.len()];
        for n in 0..self.n {
            let (mut next_value, mut next_advantage) = (self.last_values[n], 0.0);
            for i in (n * self.t..(n + 1) * self.t).rev() {
                let (reward, value, final_value, terminated, truncated) = self.rows[i];
                if truncated {
                    next_value = final_value;
                }
                let going = if terminated { 0.0 } else { 1.0 };
                let open = if terminated || truncated { 0.0 } else { 1.0 };
                let delta = reward + self.gamma * going * next_value - value;
                next_advantage = delta + self.gamma * self.lambda * open * next_advantage;
                advantages[i] = next_advantage;
                next_value = value;
            }
        }
        advantages
    }
}

prop_compose! {
    fn cases()(n in 1_usize..400, t in 1_usize..12, long in 0_usize..4, ends in 0.0..0.5, gamma in 0.0..=1.0, lambda in 0.0..=1.0)
        // Some cases have one long trajectory instead of several short ones.
        (rows in { let (n, t) = if long == 0 { (1, n * t) } else { (n, t) }; (Just((n, t)), vec(
            (-1.0..1.0, -1.0..1.0, -1.0..1.0, prop::bool::weighted(ends), prop::bool::weighted(ends)), n * t)) },
         last_values in vec(-1.0..1.0, n), gamma in Just(gamma), lambda in Just(lambda)) -> Case {
        let ((n, t), rows) = rows;
        Case { n, t, rows, last_values, gamma, lambda }
    }
}

fn close(got: f64, expected: f64, rtol: f64, atol: f64) -> bool {
    (got - expected).abs() <= atol + rtol * expected.abs()
}

/// Compares every function with the reference, and the results of the batched function with those
/// of single trajectories.
fn check<T: Float + Into<f64>>(mut case: Case, of: impl Fn(f64) -> T) -> Result<()> {
    let (rtol, atol) = (1e-6, 1e-10);
    // The inputs of the reference are rounded to `T`.
    let rounded = |x: &mut f64| *x = of(*x).into();
    case.rows.iter_mut().for_each(|(reward, value, last, ..)| [reward, value, last].into_iter().for_each(rounded));
    case.last_values.iter_mut().for_each(rounded);
    let numbers = |x: Vec<f64>| x.into_iter().map(&of).collect::<Vec<T>>();
    let (rewards, values) = (numbers(case.column(|r| r.0)), numbers(case.column(|r| r.1)));
    let (finals, last) = (numbers(case.column(|r| r.2)), numbers(case.last_values.clone()));
    let (terminated, truncated) = (case.column(|r| r.3), case.column(|r| r.4));
    let ends = EpisodeEnds { terminated: &terminated, truncated: Some(&truncated), final_values: Some(&finals) };
    let (n, t, gamma, lambda) = (case.n, case.t, case.gamma, case.lambda);
    let fresh = || (vec![of(0.0); n * t], vec![of(0.0); n * t]);

    let (mut advantages, mut returns) = fresh();
    let last = &last[..n];
    compute_gae_batched(&rewards, &values, ends, last, t, gamma, lambda, &mut advantages, &mut returns)?;
    for (i, expected) in case.reference().into_iter().enumerate() {
        let (got, sum) = (advantages[i].into(), returns[i].into());
        assert!(close(got, expected, rtol, atol), "row {i}: {got} instead of {expected}");
        assert!(close(sum, expected + values[i].into(), rtol, atol));
    }
    for (i, &last_value) in last.iter().enumerate() {
        let rows = i * t..(i + 1) * t;
        let ends = EpisodeEnds {
            terminated: &terminated[rows.clone()],
            truncated: Some(&truncated[rows.clone()]),
            final_values: Some(&finals[rows.clone()]),
        };
        let (mut a, mut r) = (vec![of(0.0); t], vec![of(0.0); t]);
        compute_gae(&rewards[rows.clone()], &values[rows.clone()], ends, last_value, gamma, lambda, &mut a, &mut r)?;
        assert!(a == advantages[rows.clone()] && r == returns[rows], "batched differs from unbatched");
    }

    let turn = |x: &[T]| (0..n * t).map(|row| x[row % n * t + row / n]).collect::<Vec<T>>();
    let turn_flags = |x: &[bool]| (0..n * t).map(|row| x[row % n * t + row / n]).collect::<Vec<bool>>();
    let (terminated, truncated, finals) = (turn_flags(&terminated), turn_flags(&truncated), turn(&finals));
    let ends = EpisodeEnds { terminated: &terminated, truncated: Some(&truncated), final_values: Some(&finals) };
    let (mut a, mut r) = fresh();
    let (rewards, values) = (turn(&rewards), turn(&values));
    compute_gae_time_major(&rewards, &values, ends, n, last, gamma, lambda, &mut a, &mut r)?;
    for (got, expected) in a.into_iter().zip(turn(&advantages)).chain(r.into_iter().zip(turn(&returns))) {
        assert!(close(got.into(), expected.into(), rtol, atol), "time-major: {got} instead of {expected}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_functions_equal_the_reference_in_f64(case in cases()) {
        check(case, |x| x)?;
    }

    #[test]
    fn all_functions_equal_the_reference_in_f32(case in cases()) {
        check(case, |x| x as f32)?;
    }
}

#[test]
fn final_values_without_truncated_flags_are_rejected() {
    let (x, mut a, mut b) = ([1.0_f32; 2], [0.0; 2], [0.0; 2]);
    let ends = EpisodeEnds { final_values: Some(&x[..]), ..EpisodeEnds::dones(&[false, true]) };
    let results = [
        compute_gae(&x, &x, ends, 0.0, 0.9, 0.9, &mut a, &mut b),
        compute_gae_time_major(&x, &x, ends, 1, &[0.0], 0.9, 0.9, &mut a, &mut b),
        compute_gae_batched(&x, &x, ends, &[0.0], 2, 0.9, 0.9, &mut a, &mut b),
        compute_returns(&x, ends, 0.0, 0.9, &mut a),
        compute_vtrace(&x, &x, &x, ends, 0.0, VtraceConfig::default(), &mut a, &mut b),
    ];
    for result in results {
        assert_eq!(assert_rejects(result, Error::Shape, "truncated").got, "none");
    }
}
