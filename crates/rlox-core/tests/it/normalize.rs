//! Running statistics and normalisation.

use proptest::prelude::*;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    Actions, AutoresetMode, Error, Normalizer, RolloutBuffer, Seeds, VecEnv,
    envs::Pendulum,
    field::FieldData,
    normalize::{NormalizerOptions, RunningMeanStd},
    rollout::PolicyStep,
};

fn close(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * (1.0 + b.abs()))
}

proptest! {
    #[test]
    fn statistics_do_not_depend_on_the_split_of_a_stream(
        rows in prop::collection::vec(-1e3_f64..1e3, 2..200),
        at in 0.0_f64..1.0,
    ) {
        let rows = &rows[..rows.len() / 2 * 2];
        let cut = (at * (rows.len() / 2) as f64) as usize * 2;
        let (mut all, mut parts, mut first, mut second) =
            (RunningMeanStd::new(2), RunningMeanStd::new(2), RunningMeanStd::new(2), RunningMeanStd::new(2));
        all.update(rows).unwrap();
        parts.update(&rows[..cut]).unwrap();
        parts.update(&rows[cut..]).unwrap();
        first.update(&rows[..cut]).unwrap();
        second.update(&rows[cut..]).unwrap();
        prop_assert!(close(parts.mean(), all.mean()) && close(parts.var(), all.var()));
        prop_assert!((parts.count() - all.count()).abs() < 1e-6);
        first.merge(&second).unwrap();
        prop_assert!(close(first.mean(), all.mean()) && close(first.var(), all.var()), "{first:?} {all:?}");
    }

    #[test]
    fn statistics_equal_the_formula(rows in prop::collection::vec(-100.0_f64..100.0, 1..50)) {
        let mut statistics = RunningMeanStd::new(1);
        statistics.update(&rows).unwrap();
        // The initial statistics are those of 1e-4 rows with mean 0 and variance 1.
        let n = rows.len() as f64 + 1e-4;
        let mean = rows.iter().sum::<f64>() / n;
        let squares = rows.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() + 1e-4 * (1.0 + mean * mean);
        prop_assert!(close(statistics.mean(), &[mean]) && close(statistics.var(), &[squares / n]));
    }
}

#[test]
fn invalid_rows_change_nothing() {
    let mut statistics = RunningMeanStd::new(2);
    assert!(matches!(statistics.update(&[1.0_f32, 2.0, 3.0]), Err(Error::Shape(_))));
    let error = statistics.update(&[1.0_f32, 2.0, 3.0, f32::NAN]).unwrap_err();
    let wrong = error.mismatch().unwrap();
    assert_eq!((&*wrong.got, wrong.at.row, wrong.at.column), ("NaN", Some(1), Some(1)));
    assert!(RunningMeanStd::from_parts(vec![0.0], vec![-1.0], 1.0).is_err());
    assert!(RunningMeanStd::from_parts(vec![0.0], vec![1.0], 0.0).is_err());
    assert_rejects(statistics.update(&[1e200, 1.0, -1e200, 1.0]), Error::Space, "rows");
    assert_eq!((statistics.mean(), statistics.var(), statistics.count()), (&[0.0; 2][..], &[1.0; 2][..], 1e-4));
}

#[test]
fn rewards_are_divided_by_the_deviation_of_the_discounted_return() {
    let options = NormalizerOptions { gamma: 0.5, ..NormalizerOptions::default() };
    let mut normalizer = Normalizer::new(2, 1, options).unwrap();
    let mut rewards = [1.0, 3.0];
    normalizer.step_rewards(&mut rewards, &[false, true], &[false, false]).unwrap();
    // The variance of the returns 1 and 3 is 1, up to the effect of the initial count of 1e-4.
    assert!((rewards[0] - 1.0).abs() < 1e-3 && (rewards[1] - 3.0).abs() < 1e-3, "{rewards:?}");
    assert_eq!(normalizer.returns(), [1.0, 0.0]);
    normalizer.step_rewards(&mut [1.0, 1.0], &[false; 2], &[true, false]).unwrap();
    assert_eq!(normalizer.returns(), [0.0, 1.0], "1 * 0.5 + 1, reset at the truncation");
    let result = normalizer.step_rewards(&mut [0.0, f64::INFINITY], &[false; 2], &[false; 2]);
    let infinite = assert_rejects(result, Error::NotFinite, "rewards");
    assert_eq!((&infinite.got[..], infinite.at.env), ("inf", Some(1)));
    assert!(normalizer.step_rewards(&mut [1e200, 0.0], &[false; 2], &[false; 2]).is_err());
    normalizer.step_rewards(&mut [1.0, 1.0], &[false; 2], &[false; 2]).unwrap();
    normalizer.reset_returns();
    assert_eq!(normalizer.returns(), [0.0, 0.0]);
}

#[test]
fn invalid_options_are_rejected() {
    let default = NormalizerOptions::default();
    for options in [
        NormalizerOptions { gamma: 1.1, ..default },
        NormalizerOptions { gamma: f64::NAN, ..default },
        NormalizerOptions { clip_obs: 0.0, ..default },
        NormalizerOptions { epsilon: -1.0, ..default },
    ] {
        assert!(matches!(Normalizer::new(1, 1, options), Err(Error::Config(_))), "{options:?}");
    }
    assert!(Normalizer::new(0, 1, default).is_err());
}

#[test]
fn observations_and_final_observations_are_normalised_alike() {
    let make = || VecEnv::new(2, Some(3), AutoresetMode::SameStep, Pendulum::default).unwrap();
    let (mut env, mut twin) = (make().with_max_episode_steps(Some(2)), make().with_max_episode_steps(Some(2)));
    let mut normalizer = Normalizer::new(2, 3, NormalizerOptions::default()).unwrap();
    let mut normalised = RolloutBuffer::for_env(2, &env).unwrap();
    let mut raw = RolloutBuffer::for_env(2, &twin).unwrap();
    normalised.begin(&mut env, Seeds::Keep, Some(&mut normalizer)).unwrap();
    raw.begin(&mut twin, Seeds::Keep, None).unwrap();
    let policy_step =
        PolicyStep { actions: Actions::Continuous(&[0.5, -0.5]), log_probs: &[0.0; 2], values: &[0.0; 2] };
    for t in 0..2 {
        normalised.step(t, &mut env, policy_step, Some(&mut normalizer)).unwrap();
        raw.step(t, &mut twin, policy_step, None).unwrap();
    }
    let FieldData::F32(finals) = raw.final_obs() else { panic!("final observations are f32") };
    let mut expected = finals.to_vec();
    normalizer.normalize_obs(&mut expected).unwrap();
    assert_eq!(
        normalised.final_obs(),
        FieldData::F32(&expected),
        "with the statistics of the step that ended the episode"
    );
    assert!(expected.iter().any(|x| x.abs() > 0.0));
    assert_eq!(normalizer.obs().count(), 6.0 + 1e-4, "two rows from the reset and two from each step");
    let mut other = Normalizer::new(2, 2, NormalizerOptions::default()).unwrap();
    assert!(matches!(normalised.begin(&mut env, Seeds::Keep, Some(&mut other)), Err(Error::Shape(_))));
}

#[test]
fn oversized_statistics_are_rejected() {
    let normalizer = |num_envs, dim| Normalizer::new(num_envs, dim, NormalizerOptions::default());
    assert_rejects(RunningMeanStd::try_new(1 << 60), Error::Memory, "shape");
    assert_rejects(RunningMeanStd::try_new(usize::MAX), Error::Memory, "shape");
    assert_rejects(normalizer(1 << 60, 1), Error::Memory, "num_envs");
    assert_rejects(normalizer(1, 1 << 60), Error::Memory, "obs_shape");
    assert!(matches!(RunningMeanStd::try_new(0), Err(Error::Config(_))));
    assert_eq!(RunningMeanStd::try_new(2).unwrap().var(), [1.0, 1.0]);
}
