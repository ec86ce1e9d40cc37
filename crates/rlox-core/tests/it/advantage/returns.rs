//! Comparisons of discounted and lambda returns with results computed by hand and with generalised
//! advantage estimation.

use proptest::collection::vec;
use proptest::prelude::*;
use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{
    Error, Result,
    advantage::{
        EpisodeEnds, Float, compute_lambda_returns, compute_lambda_returns_time_major, compute_returns,
        compute_returns_time_major,
    },
    compute_gae,
};

const NAN: f64 = f64::NAN;

fn discounted(rewards: &[f64], ends: EpisodeEnds<'_, f64>, last: f64, gamma: f64) -> Vec<f64> {
    let mut returns = vec![7.0; rewards.len()];
    compute_returns(rewards, ends, last, gamma, &mut returns).expect("good input");
    returns
}

#[test]
fn discounted_returns_equal_results_by_hand() {
    let rewards = [1.0, 2.0, 4.0];
    assert_eq!(discounted(&rewards, EpisodeEnds::dones(&[false; 3]), 8.0, 0.5), [4.0, 6.0, 8.0]);
    assert_eq!(discounted(&rewards, EpisodeEnds::dones(&[false; 3]), 8.0, 0.0), rewards);
    assert_eq!(discounted(&rewards, EpisodeEnds::dones(&[true, false, true]), NAN, 0.5), [1.0, 4.0, 4.0]);
    let ends = EpisodeEnds {
        terminated: &[false, false, true],
        truncated: Some(&[false, true, true]),
        final_values: Some(&[NAN, 6.0, NAN]),
    };
    assert_eq!(discounted(&rewards, ends, NAN, 0.5), [3.5, 5.0, 4.0]);
}

#[test]
fn lambda_mixes_values_and_later_returns() {
    let (rewards, values) = ([1.0, 2.0, 4.0], [NAN, 2.0, 4.0]);
    let ends = EpisodeEnds { terminated: &[false; 3], truncated: Some(&[false; 3]), final_values: Some(&[NAN; 3]) };
    let mut returns = [0.0; 3];
    for (lambda, expected) in [(0.0, [2.0, 4.0, 8.0]), (0.5, [2.75, 5.0, 8.0]), (1.0, [4.0, 6.0, 8.0])] {
        compute_lambda_returns(&rewards, &values, ends, 8.0, 0.5, lambda, &mut returns).expect("good input");
        assert_eq!(returns, expected);
    }
}

#[test]
fn constant_reward_under_a_time_limit_has_the_infinite_horizon_value() {
    let (n, value) = (300, 10.0);
    let truncated: Vec<bool> = (0..n).map(|t| t % 7 == 6).collect();
    let (rewards, values, terminated) = (vec![1.0; n], vec![value; n], vec![false; n]);
    let ends = EpisodeEnds { terminated: &terminated, truncated: Some(&truncated), final_values: Some(&values) };
    assert!(discounted(&rewards, ends, value, 0.9).iter().all(|x| (x - value).abs() < 1e-12));
}

#[test]
fn nan_behind_a_finished_episode_does_not_spread() {
    for n in [2, 20, 40, 150] {
        for cut in 0..n - 1 {
            let mut rewards = vec![1.0; n];
            rewards[cut + 1] = NAN;
            let mut dones = vec![false; n];
            dones[cut] = true;
            let returns = discounted(&rewards, EpisodeEnds::dones(&dones), 0.0, 0.99);
            assert!(returns[..=cut].iter().all(|x| x.is_finite()) && returns[cut + 1].is_nan(), "{n}, {cut}");
        }
    }
}

#[test]
fn empty_rollouts_are_accepted() -> Result<()> {
    compute_returns::<f32>(&[], EpisodeEnds::dones(&[]), 1.0, 0.9, &mut [])?;
    compute_returns_time_major::<f32>(&[], EpisodeEnds::dones(&[]), 3, &[0.0; 3], 0.9, &mut [])?;
    compute_lambda_returns_time_major::<f32>(&[], &[], EpisodeEnds::dones(&[]), 0, &[], 0.9, 0.9, &mut [])
}

#[test]
fn invalid_arguments_are_rejected_before_any_write() {
    let rejects = |(variant, argument, got): (Variant, &str, &str), call: &dyn Fn(&mut [f64]) -> Result<()>| {
        let mut returns = [7.0; 4];
        let mismatch = assert_rejects(call(&mut returns), variant, argument);
        assert_eq!((mismatch.got.as_str(), returns), (got, [7.0; 4]), "{argument}");
        mismatch
    };
    let (x, none) = (&[0.0; 4], EpisodeEnds::dones(&[false; 4]));
    let cut = EpisodeEnds { truncated: Some(&[true; 4]), ..none };
    rejects((Error::Shape, "terminated", "1"), &|r| compute_returns(x, EpisodeEnds::dones(&[false]), 0.0, 0.9, r));
    rejects((Error::Shape, "returns", "3"), &|r| compute_returns(x, none, 0.0, 0.9, &mut r[..3]));
    rejects((Error::Config, "gamma", "-1"), &|r| compute_returns(x, none, 0.0, -1.0, r));
    rejects((Error::Config, "lambda", "2"), &|r| compute_lambda_returns(x, x, none, 0.0, 1.0, 2.0, r));
    rejects((Error::Shape, "values", "1"), &|r| compute_lambda_returns(x, &x[..1], none, 0.0, 1.0, 1.0, r));
    rejects((Error::Shape, "final_values", "none"), &|r| compute_returns(x, cut, 0.0, 0.9, r));
    let rows = rejects((Error::Shape, "rewards", "4"), &|r| compute_returns_time_major(x, none, 3, &x[..3], 0.9, r));
    assert_eq!(rows.expected, "a multiple of num_envs = 3 elements");
    rejects((Error::Shape, "last_values", "1"), &|r| {
        compute_lambda_returns_time_major(x, x, none, 2, &x[..1], 0.9, 0.9, r)
    });
}

type Row = (f64, f64, f64, bool, bool);

/// Compares the results for single trajectories and for a grid of `n` columns with the returns of
/// GAE in f64.
fn check<T: Float + Into<f64>>(rows: &[Row], n: usize, last: &[f64], lambda: f64, of: fn(f64) -> T) -> Result<()> {
    let (gamma, last) = (0.97, last.iter().map(|x| of(*x)).collect::<Vec<T>>());
    let wide = |x: f64| of(x).into();
    let mut grid = vec![of(0.0); rows.len()];
    for first in 0..n {
        let rows: Vec<&Row> = rows.iter().skip(first).step_by(n).collect();
        let column = |get: fn(&Row) -> f64| rows.iter().map(|r| get(r)).collect::<Vec<f64>>();
        let (rewards, values, finals) = (column(|r| r.0), column(|r| r.1), column(|r| r.2));
        let terminated: Vec<bool> = rows.iter().map(|r| r.3).collect();
        let truncated: Vec<bool> = rows.iter().map(|r| r.4).collect();
        let [exact_rewards, exact_values, exact_finals] =
            [&rewards, &values, &finals].map(|x| x.iter().map(|x| wide(*x)).collect::<Vec<f64>>());
        let truncation = Some(&truncated[..]);
        let ends =
            EpisodeEnds { terminated: &terminated, truncated: truncation, final_values: Some(&exact_finals[..]) };
        let (mut advantages, mut expected) = (finals.clone(), finals.clone());
        let exact_last = last[first].into();
        compute_gae(&exact_rewards, &exact_values, ends, exact_last, gamma, lambda, &mut advantages, &mut expected)?;

        let [rewards, values, finals] = [rewards, values, finals].map(|x| x.into_iter().map(of).collect::<Vec<T>>());
        let ends = EpisodeEnds { terminated: &terminated, truncated: truncation, final_values: Some(&finals[..]) };
        let mut returns = finals.clone();
        compute_lambda_returns(&rewards, &values, ends, last[first], gamma, lambda, &mut returns)?;
        for (t, (&got, expected)) in returns.iter().zip(expected).enumerate() {
            assert!((got.into() - expected).abs() <= 1e-6 * expected.abs() + 1e-9, "{got} instead of {expected}");
            grid[t * n + first] = got;
        }
        if lambda == 1.0 {
            let mut plain = finals.clone();
            compute_returns(&rewards, ends, last[first], gamma, &mut plain)?;
            assert_eq!(plain, returns);
        }
    }
    let column = |get: fn(&Row) -> f64| rows.iter().map(|r| of(get(r))).collect::<Vec<T>>();
    let (rewards, values, finals) = (column(|r| r.0), column(|r| r.1), column(|r| r.2));
    let terminated: Vec<bool> = rows.iter().map(|r| r.3).collect();
    let truncated: Vec<bool> = rows.iter().map(|r| r.4).collect();
    let ends =
        EpisodeEnds { terminated: &terminated, truncated: Some(&truncated[..]), final_values: Some(&finals[..]) };
    let mut returns = finals.clone();
    compute_lambda_returns_time_major(&rewards, &values, ends, n, &last, gamma, lambda, &mut returns)?;
    for (got, expected) in returns.into_iter().zip(grid) {
        let (got, expected): (f64, f64) = (got.into(), expected.into());
        assert!((got - expected).abs() <= 1e-6 * expected.abs() + 1e-9, "time-major: {got} instead of {expected}");
    }
    Ok(())
}

prop_compose! {
    fn cases()(n in 1_usize..90, t in 1_usize..12, long in 0_usize..3, ends in 0.0..0.4)
        (rows in vec((-1.0..1.0, -1.0..1.0, -1.0..1.0, prop::bool::weighted(ends), prop::bool::weighted(ends)), n * t),
         last in vec(-1.0..1.0, n), n in Just(if long == 0 { 1 } else { n })) -> (Vec<Row>, usize, Vec<f64>) {
        let last = last[..n].to_vec();
        (rows, n, last)
    }
}

proptest! {
    #[test]
    fn lambda_returns_equal_the_returns_of_gae((rows, n, last) in cases(), lambda in 0.0..=1.0) {
        for lambda in [lambda, 0.0, 1.0] {
            check(&rows, n, &last, lambda, |x| x)?;
            check(&rows, n, &last, lambda, |x| x as f32)?;
        }
    }
}
