//! Predictions for batches of observations equal those for single observations.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{ActionsMut, EnvSpec, Error, Pcg64, Result, Space, field::FieldData};
use rlox_nn::train::{Encoding, Observations, mask_width, predict_actions};
use rlox_nn::{Activation, Mlp, PolicyNetworks};

const DIM: usize = 3;
/// Number of rows, more than are computed at a time.
const ROWS: usize = 9000;

fn policy(action: &Space) -> PolicyNetworks<Mlp> {
    let observation = Space::uniform_box(-1.0, 1.0, &[DIM]);
    let spec = EnvSpec { id: "none".into(), observation, action: action.clone(), max_episode_steps: None };
    PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap()
}

fn obs() -> Vec<f32> {
    let mut rng = Pcg64::seed_from(1);
    (0..DIM * ROWS).map(|_| rng.uniform(-9.0, 9.0) as f32).collect()
}

fn predict(
    space: &Space,
    obs: &[f32],
    masks: Option<&[bool]>,
    seed: Option<u64>,
    actions: ActionsMut<'_>,
) -> Result<()> {
    let encoding = Encoding::Numbers(DIM);
    let obs = Observations { data: FieldData::F32(obs), encoding: &encoding, normalizer: None, masks };
    predict_actions(&mut policy(space), obs, seed, space, &mut Vec::new(), actions)
}

#[test]
fn batched_predictions_equal_single_ones() {
    let (space, obs) = (Space::Discrete { n: 3, start: 5 }, obs());
    let mut all = vec![0; ROWS];
    predict(&space, &obs, None, None, ActionsMut::Discrete(&mut all)).unwrap();
    assert!(all.iter().all(|action| (5..8).contains(action)));
    assert!(all.iter().any(|action| *action != all[0]));
    for i in [0, 1, 5000, ROWS - 1] {
        let mut one = [0];
        predict(&space, &obs[DIM * i..][..DIM], None, None, ActionsMut::Discrete(&mut one)).unwrap();
        assert_eq!(one[0], all[i], "{i}");
    }
    let space = Space::uniform_box(-0.1, 0.2, &[2]);
    let mut samples = vec![0.0; 2 * ROWS];
    predict(&space, &obs, None, Some(4), ActionsMut::Continuous(&mut samples)).unwrap();
    let at = |bound: f32| samples.iter().filter(|x| **x == bound).count();
    assert!(samples.iter().all(|x| (-0.1..=0.2).contains(x)) && at(-0.1) > 100 && at(0.2) > 100);
    let mut repeated = vec![0.0; 2 * ROWS];
    predict(&space, &obs, None, Some(4), ActionsMut::Continuous(&mut repeated)).unwrap();
    assert_eq!(samples, repeated);
}

#[test]
fn masks_apply_to_their_rows() {
    let (space, obs) = (Space::MultiDiscrete { nvec: vec![2, 3] }, obs());
    assert_eq!(mask_width(&space).unwrap(), 5);
    // In row i, the only allowed actions are i % 2 for the first component and i % 3 for the second.
    let masks: Vec<_> =
        (0..ROWS).flat_map(|i| [0, 1].map(|k| i % 2 == k).into_iter().chain([0, 1, 2].map(|k| i % 3 == k))).collect();
    for seed in [None, Some(2)] {
        let mut actions = vec![0; 2 * ROWS];
        predict(&space, &obs, Some(&masks), seed, ActionsMut::Discrete(&mut actions)).unwrap();
        assert!(actions.chunks(2).enumerate().all(|(i, pair)| pair == [(i % 2) as i64, (i % 3) as i64]));
    }
}

#[test]
fn non_finite_observations_are_rejected() {
    let (space, mut obs) = (Space::discrete(2), obs());
    obs[DIM * ROWS - 1] = f32::NAN;
    let result = predict(&space, &obs, None, None, ActionsMut::Discrete(&mut vec![0; ROWS]));
    let rejected = assert_rejects(result, Error::NotFinite, "obs");
    // 5461 rows of 3 numbers are computed at a time, so the NaN is in the second chunk.
    assert_eq!((&rejected.got[..], rejected.at.row), ("NaN", Some(ROWS - 1)));
}

#[test]
fn mismatched_shapes_are_rejected() {
    let space = Space::discrete(2);
    let run = |obs, encoding: &Encoding, masks, actions: &mut [i64]| {
        let obs = Observations { data: obs, encoding, normalizer: None, masks };
        let actions = ActionsMut::Discrete(actions);
        predict_actions(&mut policy(&space), obs, None, &space, &mut Vec::new(), actions)
    };
    let (numbers, plain) = (Encoding::Numbers(DIM), FieldData::F32(&[0.0; DIM]));
    assert_eq!(assert_rejects(run(plain, &numbers, Some(&[true]), &mut [0]), Error::Shape, "masks").got, "1");
    for result in [
        run(plain, &Encoding::Numbers(0), None, &mut [0]),
        run(FieldData::I64(&[0]), &Encoding::OneHot(vec![]), None, &mut [0]),
    ] {
        assert_eq!(assert_rejects(result, Error::Shape, "obs").expected, "more than 0 rows of 0 numbers");
    }
    let wide = Space::MultiDiscrete { nvec: vec![2, 3] };
    let obs = Observations { data: plain, encoding: &numbers, normalizer: None, masks: None };
    let actions = ActionsMut::Discrete(&mut [0; 3]);
    let result = predict_actions(&mut policy(&wide), obs, None, &wide, &mut Vec::new(), actions);
    assert_eq!(assert_rejects(result, Error::Shape, "actions").got, "3");
}
