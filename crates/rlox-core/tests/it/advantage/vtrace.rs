//! Comparisons of V-trace with results computed by hand, generalised advantage estimation and a
//! scalar reference.

use proptest::collection::vec;
use proptest::prelude::*;
use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::advantage::compute_vtrace_time_major;
use rlox_core::{
    Error, Result,
    advantage::{EpisodeEnds, Float, VtraceConfig, compute_lambda_returns, compute_vtrace},
    compute_gae,
    error::Mismatch,
};

const NAN: f64 = f64::NAN;
const INFINITY: f64 = f64::INFINITY;
const HALF: VtraceConfig = VtraceConfig { gamma: 0.5, rho_bar: 1.0, c_bar: 1.0, lambda: 1.0, pg_rho_bar: 1.0 };

fn vtrace(
    log_rhos: &[f64],
    rewards: &[f64],
    values: &[f64],
    ends: EpisodeEnds<'_, f64>,
    last: f64,
    settings: VtraceConfig,
) -> (Vec<f64>, Vec<f64>) {
    let (mut vs, mut pg) = (vec![7.0; rewards.len()], vec![7.0; rewards.len()]);
    compute_vtrace(log_rhos, rewards, values, ends, last, settings, &mut vs, &mut pg).expect("good input");
    (vs, pg)
}

#[test]
fn limits_apply_separately_to_targets_traces_and_the_policy_gradient() {
    // The ratios are 1/2, 4 and 4. The temporal differences are 1 + 0.5 * 1 - 2 = -0.5, 2 + 0.5 *
    // 2 - 1 = 2 and 3 + 0.5 * 4 - 2 = 3.
    let log_rhos = [0.5, 4.0, 4.0].map(f64::ln);
    let (rewards, values) = ([1.0, 2.0, 3.0], [2.0, 1.0, 2.0]);
    let ends = EpisodeEnds::dones(&[false; 3]);
    let settings = VtraceConfig { rho_bar: 2.0, c_bar: 1.0, pg_rho_bar: 3.0, ..HALF };
    let (vs, pg) = vtrace(&log_rhos, &rewards, &values, ends, 4.0, settings);
    // vs - v, from the last step: 2 * 3 = 6, 2 * 2 + 0.5 * 1 * 6 = 7, 0.5 * -0.5 + 0.5 * 0.5 * 7 =
    // 1.5.
    assert_eq!(vs, [3.5, 8.0, 8.0]);
    // The advantages, from the last step: 3 * 3, 3 * (2 + 0.5 * 8 - 1), 0.5 * (1 + 0.5 * 8 - 2).
    assert_eq!(pg, [1.5, 15.0, 9.0]);
    // vs - v with lambda = 0.5, from the last step: 6, 4 + 0.25 * 6 = 5.5, -0.25 + 0.25 * 0.5 *
    // 5.5.
    let (vs, pg) = vtrace(&log_rhos, &rewards, &values, ends, 4.0, VtraceConfig { lambda: 0.5, ..settings });
    assert_eq!(vs, [2.4375, 6.5, 8.0]);
    assert_eq!(pg, [0.5 * (1.0 + 0.5 * 6.5 - 2.0), 15.0, 9.0]);
    // vs - v without limits, from the last step: 12, 8 + 0.5 * 4 * 12 = 32, -0.25 + 0.25 * 32.
    let free = VtraceConfig { rho_bar: INFINITY, c_bar: INFINITY, pg_rho_bar: INFINITY, ..HALF };
    let (vs, pg) = vtrace(&log_rhos, &rewards, &values, ends, 4.0, free);
    assert_eq!((vs, pg), (vec![9.75, 33.0, 14.0], vec![0.5 * 15.5, 4.0 * 8.0, 12.0]));
    let none = VtraceConfig { rho_bar: 0.0, c_bar: 0.0, pg_rho_bar: 0.0, ..HALF };
    assert_eq!(vtrace(&log_rhos, &rewards, &values, ends, 4.0, none), (values.to_vec(), vec![0.0; 3]));
}

#[test]
fn termination_bootstraps_nothing_and_ends_the_trace() {
    let (vs, pg) = vtrace(&[0.0; 2], &[1.0, 2.0], &[2.0, 1.0], EpisodeEnds::dones(&[true, false]), 4.0, HALF);
    assert_eq!((vs, pg), (vec![1.0, 4.0], vec![-1.0, 3.0]));
}

#[test]
fn truncation_bootstraps_the_final_observation_and_ends_the_trace() {
    let ends =
        EpisodeEnds { terminated: &[false; 2], truncated: Some(&[true, false]), final_values: Some(&[6.0, NAN]) };
    let (vs, pg) = vtrace(&[0.0; 2], &[1.0, 2.0], &[2.0, 1.0], ends, 4.0, HALF);
    assert_eq!((vs, pg), (vec![4.0, 4.0], vec![2.0, 3.0]));
    let ends = EpisodeEnds { terminated: &[false], truncated: Some(&[true]), final_values: Some(&[6.0]) };
    assert_eq!(vtrace(&[0.0], &[1.0], &[2.0], ends, NAN, HALF), (vec![4.0], vec![2.0]));
}

#[test]
fn a_terminated_and_truncated_row_is_a_termination() {
    for final_values in [Some(&[NAN][..]), None] {
        let ends = EpisodeEnds { terminated: &[true], truncated: Some(&[true]), final_values };
        assert_eq!(vtrace(&[0.0], &[1.0], &[2.0], ends, NAN, HALF), (vec![1.0], vec![-1.0]));
    }
}

#[test]
fn a_ratio_of_zero_leaves_values_unchanged() {
    for log_rho in [-INFINITY, -1e300, -708.0] {
        let (vs, pg) = vtrace(&[0.0, log_rho], &[1.0, 2.0], &[2.0, 1.0], EpisodeEnds::dones(&[false; 2]), 4.0, HALF);
        assert_eq!((vs, pg), (vec![1.5, 1.0], vec![-0.5, 0.0]));
    }
    let (vs, pg) = vtrace(&[INFINITY], &[1.0], &[2.0], EpisodeEnds::dones(&[true]), NAN, HALF);
    assert_eq!((vs, pg), (vec![1.0], vec![-1.0]));
}

#[test]
fn nan_behind_a_finished_episode_does_not_spread() {
    for n in [2, 3, 20, 40, 90, 150] {
        for cut in 0..n - 1 {
            let (mut log_rhos, mut values) = (vec![0.1; n], vec![0.5; n]);
            (log_rhos[cut + 1], values[cut + 1]) = (NAN, NAN);
            let (mut ended, none, mut finals) = (vec![false; n], vec![false; n], vec![INFINITY; n]);
            (ended[cut], finals[cut]) = (true, 0.0);
            let truncated = EpisodeEnds { terminated: &none, truncated: Some(&ended), final_values: Some(&finals) };
            for ends in [EpisodeEnds::dones(&ended), truncated] {
                let settings = VtraceConfig { gamma: 0.99, ..HALF };
                let (vs, pg) = vtrace(&log_rhos, &vec![1.0; n], &values, ends, 0.5, settings);
                assert!(vs[..=cut].iter().chain(&pg[..=cut]).all(|x| x.is_finite()), "n = {n}, cut = {cut}");
                assert!(vs[cut + 1].is_nan() && pg[cut + 1].is_nan());
            }
        }
    }
}

#[test]
fn a_nan_ratio_affects_earlier_steps_only() {
    for n in [5, 50, 200] {
        let mut log_rhos = vec![0.0; n];
        log_rhos[n / 2] = NAN;
        let (vs, pg) = vtrace(&log_rhos, &vec![1.0; n], &vec![0.0; n], EpisodeEnds::dones(&vec![false; n]), 0.0, HALF);
        for t in 0..n {
            assert_eq!((vs[t].is_nan(), pg[t].is_nan()), (t <= n / 2, t <= n / 2));
        }
    }
}

#[test]
fn empty_rollouts_are_accepted() -> Result<()> {
    let ends = EpisodeEnds { terminated: &[], truncated: Some(&[]), final_values: None };
    compute_vtrace::<f32>(&[], &[], &[], ends, 1.0, HALF, &mut [], &mut [])?;
    for n in [0, 3] {
        compute_vtrace_time_major::<f32>(&[], &[], &[], ends, n, &vec![0.0; n], HALF, &mut [], &mut [])?;
    }
    Ok(())
}

/// Checks the error of `call`, and that nothing was written.
fn rejects(
    (variant, argument, got): (Variant, &str, &str),
    call: impl FnOnce(&mut [f64], &mut [f64]) -> Result<()>,
) -> Mismatch {
    let (mut vs, mut pg) = ([7.0; 4], [7.0; 4]);
    let mismatch = assert_rejects(call(&mut vs, &mut pg), variant, argument);
    assert_eq!(mismatch.got, got, "{argument}");
    assert_eq!((vs, pg), ([7.0; 4], [7.0; 4]));
    mismatch
}

#[test]
fn invalid_arguments_are_rejected_before_any_write() {
    let x = &[0.0; 4];
    let none = EpisodeEnds::dones(&[false; 4]);
    let cut = EpisodeEnds { truncated: Some(&[false, false, true, false]), ..none };
    rejects((Error::Shape, "log_rhos", "3"), |v, p| compute_vtrace(&x[..3], x, x, none, 0.0, HALF, v, p));
    rejects((Error::Shape, "values", "3"), |v, p| compute_vtrace(x, x, &x[..3], none, 0.0, HALF, v, p));
    rejects((Error::Shape, "vs", "2"), |v, p| compute_vtrace(x, x, x, none, 0.0, HALF, &mut v[..2], p));
    rejects((Error::Shape, "pg_advantages", "2"), |v, p| compute_vtrace(x, x, x, none, 0.0, HALF, v, &mut p[..2]));
    rejects((Error::Shape, "terminated", "1"), |v, p| {
        compute_vtrace(x, x, x, EpisodeEnds::dones(&[true]), 0.0, HALF, v, p)
    });
    let missing = rejects((Error::Shape, "final_values", "none"), |v, p| compute_vtrace(x, x, x, cut, 0.0, HALF, v, p));
    assert_eq!(missing.at.row, Some(2));
    let rows = rejects((Error::Shape, "rewards", "4"), |v, p| {
        compute_vtrace_time_major(x, x, x, none, 3, &x[..3], HALF, v, p)
    });
    assert_eq!(rows.expected, "a multiple of num_envs = 3 elements");
    rejects((Error::Shape, "bootstrap_values", "4"), |v, p| compute_vtrace_time_major(x, x, x, none, 2, x, HALF, v, p));
    for (argument, got, settings) in [
        ("gamma", "1.5", VtraceConfig { gamma: 1.5, ..HALF }),
        ("lambda", "NaN", VtraceConfig { lambda: NAN, ..HALF }),
        ("rho_bar", "-1", VtraceConfig { rho_bar: -1.0, ..HALF }),
        ("c_bar", "NaN", VtraceConfig { c_bar: NAN, ..HALF }),
        ("pg_rho_bar", "-inf", VtraceConfig { pg_rho_bar: -INFINITY, ..HALF }),
    ] {
        let rejection: (Variant, _, _) = (Error::Config, argument, got);
        rejects(rejection, |v, p| compute_vtrace(x, x, x, none, 0.0, settings, v, p));
        rejects(rejection, |v, p| compute_vtrace_time_major(x, x, x, none, 2, &x[..2], settings, v, p));
    }
}

/// A rollout of N environments over T steps, time-major.
///
/// A row holds the log-ratio, the reward, the value, the final value, and the terminated and
/// truncated flags.
#[derive(Clone, Debug)]
struct Case {
    n: usize,
    rows: Vec<(f64, f64, f64, f64, bool, bool)>,
    last_values: Vec<f64>,
    settings: VtraceConfig,
}

prop_compose! {
    fn cases()(n in 1_usize..90, t in 1_usize..12, long in 0_usize..3, ends in 0.0..0.4)
        // Some cases have one long trajectory instead of several short ones.
        (rows in vec(
            (-3.0..3.0, -1.0..1.0, -1.0..1.0, -1.0..1.0, prop::bool::weighted(ends), prop::bool::weighted(ends)), n * t),
         last_values in vec(-1.0..1.0, n), n in Just(if long == 0 { 1 } else { n }), gamma in 0.0..=1.0,
         lambda in 0.0..=1.0, rho_bar in 0.0..3.0, c_bar in 0.0..1.5, pg_rho_bar in 0.0..3.0) -> Case {
        Case { n, rows, last_values, settings: VtraceConfig { gamma, rho_bar, c_bar, lambda, pg_rho_bar } }
    }
}

impl Case {
    /// Computes the equations of the paper step by step in f64. `round` rounds the inputs.
    fn reference(&self, round: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<f64>) {
        let VtraceConfig { gamma, rho_bar, c_bar, lambda, pg_rho_bar } = self.settings;
        let (mut vs, mut pg) = (vec![0.0; self.rows.len()], vec![0.0; self.rows.len()]);
        for n in 0..self.n {
            let (mut next_value, mut next_vs) = (round(self.last_values[n]), round(self.last_values[n]));
            for i in (n..self.rows.len()).step_by(self.n).rev() {
                let (log_rho, reward, value, final_value, terminated, truncated) = self.rows[i];
                let [ratio, reward, value] = [round(log_rho).exp(), round(reward), round(value)];
                if truncated {
                    (next_value, next_vs) = (round(final_value), round(final_value));
                }
                let discount = if terminated { 0.0 } else { gamma };
                let delta = rho_bar.min(ratio) * (reward + discount * next_value - value);
                vs[i] = value + delta + discount * lambda * c_bar.min(ratio) * (next_vs - next_value);
                pg[i] = pg_rho_bar.min(ratio) * (reward + discount * next_vs - value);
                (next_value, next_vs) = (value, vs[i]);
            }
        }
        (vs, pg)
    }
}

struct Columns<T> {
    log_rhos: Vec<T>,
    rewards: Vec<T>,
    values: Vec<T>,
    finals: Vec<T>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
}

impl<T: Float> Columns<T> {
    /// Returns the columns of every `step`-th row from row `first` on.
    fn new(case: &Case, first: usize, step: usize, of: impl Fn(f64) -> T) -> Self {
        let rows: Vec<_> = case.rows.iter().skip(first).step_by(step).collect();
        Self {
            log_rhos: rows.iter().map(|r| of(r.0)).collect(),
            rewards: rows.iter().map(|r| of(r.1)).collect(),
            values: rows.iter().map(|r| of(r.2)).collect(),
            finals: rows.iter().map(|r| of(r.3)).collect(),
            terminated: rows.iter().map(|r| r.4).collect(),
            truncated: rows.iter().map(|r| r.5).collect(),
        }
    }

    fn ends(&self) -> EpisodeEnds<'_, T> {
        let (truncated, final_values) = (Some(&self.truncated[..]), Some(&self.finals[..]));
        EpisodeEnds { terminated: &self.terminated, truncated, final_values }
    }
}

/// Checks that each error is at most `rtol * |expected| + atol * max(1, largest |expected|)`.
fn close<T: Float + Into<f64>>(got: &[T], expected: impl IntoIterator<Item = f64>, [rtol, atol]: [f64; 2]) {
    let expected: Vec<f64> = expected.into_iter().collect();
    let atol = atol * expected.iter().fold(1.0, |largest: f64, x| largest.max(x.abs()));
    assert_eq!(got.len(), expected.len());
    for (i, (&got, expected)) in got.iter().zip(expected).enumerate() {
        let got = got.into();
        assert!((got - expected).abs() <= atol + rtol * expected.abs(), "row {i}: {got} instead of {expected}");
    }
}

/// Compares the results for a grid with the reference, and those for single trajectories with the
/// grid.
fn check<T: Float + Into<f64>>(case: &Case, of: impl Fn(f64) -> T, tolerance: [f64; 2]) -> Result<()> {
    let (n, settings) = (case.n, case.settings);
    let last: Vec<T> = case.last_values[..n].iter().map(|x| of(*x)).collect();
    let all = Columns::new(case, 0, 1, &of);
    let (mut vs, mut pg) = (all.values.clone(), all.values.clone());
    let Columns { log_rhos, rewards, values, .. } = &all;
    compute_vtrace_time_major(log_rhos, rewards, values, all.ends(), n, &last, settings, &mut vs, &mut pg)?;
    let expected = case.reference(|x| of(x).into());
    close(&vs, expected.0, tolerance);
    close(&pg, expected.1, tolerance);
    for (first, last) in last.into_iter().enumerate() {
        let one = Columns::new(case, first, n, &of);
        let (mut alone, mut pg_alone) = (one.values.clone(), one.values.clone());
        let Columns { log_rhos, rewards, values, .. } = &one;
        compute_vtrace(log_rhos, rewards, values, one.ends(), last, settings, &mut alone, &mut pg_alone)?;
        close(&alone, vs.iter().skip(first).step_by(n).map(|x| (*x).into()), tolerance);
        close(&pg_alone, pg.iter().skip(first).step_by(n).map(|x| (*x).into()), tolerance);
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_functions_equal_the_reference_in_f64(case in cases()) {
        check(&case, |x| x, [1e-6, 1e-10])?;
    }

    /// Ratios are within 2 units in the last place of f32. All other arithmetic is in f64.
    #[test]
    fn all_functions_equal_the_reference_in_f32(case in cases()) {
        check(&case, |x| x as f32, [1e-6, 3e-6])?;
    }

    /// Checks that on policy, `vs` is the lambda return, and `vs - v` is the advantage of GAE.
    ///
    /// With lambda = 1, the policy gradient advantage also equals the advantage of GAE.
    #[test]
    fn on_policy_targets_are_lambda_returns(case in cases(), bars in 1.0..5.0) {
        let VtraceConfig { gamma, lambda, .. } = case.settings;
        let rows = Columns::new(&case, 0, 1, |x| x);
        let (last, len) = (case.last_values[0], rows.values.len());
        for lambda in [lambda, 1.0] {
            let settings = VtraceConfig { gamma, lambda, rho_bar: bars, c_bar: bars, pg_rho_bar: bars };
            let (vs, pg) = vtrace(&vec![0.0; len], &rows.rewards, &rows.values, rows.ends(), last, settings);
            let (mut advantages, mut returns) = (vec![0.0; len], vec![0.0; len]);
            let (r, v) = (&rows.rewards, &rows.values);
            compute_gae(r, v, rows.ends(), last, gamma, lambda, &mut advantages, &mut returns)?;
            close(&vs, returns.iter().copied(), [1e-9, 1e-9]);
            if lambda == 1.0 {
                close(&pg, advantages, [1e-9, 1e-9]);
            }
            compute_lambda_returns(r, v, rows.ends(), last, gamma, lambda, &mut returns)?;
            close(&vs, returns, [1e-9, 1e-9]);
        }
    }
}
