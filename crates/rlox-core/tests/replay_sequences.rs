//! Sequences are what a slow walk over the pushed steps says.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod stacking;

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use rlox_core::replay::{ChosenSequences, Column, ReplayBuffer, ReplayStorage, Sequences};
use rlox_core::{FieldMut, Pcg64};
use stacking::{FRAME, Pushed, Stacking, layout, push_with};

/// Whether an environment's row goes on in its next one.
fn goes_on(model: &[Pushed], num_envs: usize, at: usize) -> bool {
    let next = model.get(at + num_envs);
    !model[at].terminated && !model[at].truncated && next.is_some_and(|next| next.obs == model[at].next_obs)
}

/// The rows of a sequence, step by step, and which of them are the first of an episode.
fn walked(model: &[Pushed], n: usize, held: &Range<usize>, start: usize, of: Sequences) -> Vec<Option<(usize, bool)>> {
    let first = |at: usize| at < n || !goes_on(model, n, at - n);
    let mut rows = vec![None; of.burn_in + of.length];
    let mut at = start;
    for row in &mut rows[of.burn_in..] {
        *row = Some((at, first(at)));
        if !goes_on(model, n, at) || at + n >= held.end {
            break;
        }
        at += n;
    }
    at = start;
    for row in rows[..of.burn_in].iter_mut().rev() {
        if first(at) || at - n < held.start {
            break;
        }
        at -= n;
        *row = Some((at, first(at)));
    }
    rows
}

/// The first steps of episodes whose every step is stored.
fn whole(model: &[Pushed], n: usize, held: &Range<usize>) -> Vec<usize> {
    let ends = |mut at: usize| {
        while goes_on(model, n, at) && at + n < held.end {
            at += n;
        }
        model[at].terminated || model[at].truncated
    };
    held.clone().filter(|at| (*at < n || !goes_on(model, n, at - n)) && ends(*at)).collect()
}

fn agrees(storage: &ReplayStorage, chosen: &ChosenSequences, model: &[Pushed], of: Sequences, frames: usize) {
    let (batch, steps, width) = (chosen.indices().len(), of.burn_in + of.length, frames * FRAME);
    let mut obs = vec![9_u8; steps * batch * width];
    let mut next_obs = obs.clone();
    let (mut actions, mut rewards) = (vec![9_i64; steps * batch], vec![9.0_f32; steps * batch]);
    let (mut terminated, mut truncated) = (vec![true; steps * batch], vec![9_u8; steps * batch]);
    chosen.read(storage, Column::Obs(0), FieldMut::U8(&mut obs)).unwrap();
    chosen.read(storage, Column::NextObs(0), FieldMut::U8(&mut next_obs)).unwrap();
    chosen.read(storage, Column::Action, FieldMut::I64(&mut actions)).unwrap();
    chosen.read(storage, Column::Reward, FieldMut::F32(&mut rewards)).unwrap();
    chosen.read_bools(storage, Column::Terminated, &mut terminated).unwrap();
    chosen.read(storage, Column::Truncated, FieldMut::Bool(&mut truncated)).unwrap();
    let none = Pushed {
        obs: vec![0; width],
        next_obs: vec![0; width],
        action: 0,
        reward: 0.0,
        terminated: false,
        truncated: false,
    };
    for (b, start) in chosen.indices().iter().enumerate() {
        let rows = walked(model, storage.num_envs(), &storage.indices(), *start, of);
        assert_eq!(chosen.lengths()[b], rows[of.burn_in..].iter().flatten().count());
        for (t, row) in rows.iter().enumerate() {
            let at = t * batch + b;
            assert_eq!(chosen.mask()[at], row.is_some());
            assert_eq!(chosen.episode_starts()[at], row.is_some_and(|row| row.1));
            let got = Pushed {
                obs: obs[at * width..][..width].to_vec(),
                next_obs: next_obs[at * width..][..width].to_vec(),
                action: actions[at],
                reward: rewards[at],
                terminated: terminated[at],
                truncated: truncated[at] != 0,
            };
            assert_eq!(&got, row.map_or(&none, |row| &model[row.0]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn sequences_are_what_a_slow_walk_finds(
        seed in any::<u64>(),
        num_envs in 1_usize..4,
        frames in 1_usize..4,
        capacity in 1_usize..40,
        steps in 1_usize..80,
        length in 1_usize..12,
        burn_in in 0_usize..5,
    ) {
        let mut storage = ReplayStorage::new(capacity, num_envs, layout(frames)).unwrap();
        let mut envs: Vec<_> = (0..num_envs).map(|i| Stacking::new(u128::from(seed) + i as u128, frames)).collect();
        let mut rng = Pcg64::seed_from(u128::from(seed) << 1);
        let (mut model, mut chosen): (Vec<Pushed>, _) = (Vec::new(), ChosenSequences::default());
        for _ in 0..steps {
            let rows: Vec<_> = envs.iter_mut().map(Stacking::step).collect();
            let kept = rows.iter().zip(&envs).all(|(row, env)| {
                !row.terminated && !row.truncated && row.next_obs == env.stack
            });
            push_with(&rows, kept && rng.integers(0, 3) == 0, |steps| storage.push(steps));
            model.extend(rows);
            let held = storage.indices();
            if held.is_empty() {
                continue;
            }
            let part = Sequences { length, burn_in, whole: false };
            part.choose(&storage, held.len(), &mut rng, &mut chosen).unwrap();
            agrees(&storage, &chosen, &model, part, frames);
            let (all, starts) = (Sequences { length, burn_in: 0, whole: true }, whole(&model, num_envs, &held));
            match all.choose(&storage, 1, &mut rng, &mut chosen) {
                Ok(()) => {
                    prop_assert!(starts.contains(&chosen.indices()[0]));
                    agrees(&storage, &chosen, &model, all, frames);
                }
                Err(error) => prop_assert!(starts.is_empty(), "{error}"),
            }
        }
    }
}

/// Episodes of the lengths that are given, each with its number as observation.
fn episodes(lengths: &[usize], capacity: usize) -> ReplayBuffer {
    let mut buffer = ReplayBuffer::new(capacity, 1, 1).unwrap();
    let mut at = 0.0;
    for length in lengths {
        for i in 1..=*length {
            buffer.push_slices(&[at], &[at + 1.0], &[0.0], 0.0, false, i == *length).unwrap();
            at += 1.0;
        }
        at += 100.0;
    }
    buffer
}

#[test]
fn starts_are_as_likely_as_each_other() {
    // The first episode has lost its first steps; few long ones are in a large ring, too.
    for (lengths, capacity, wanted) in [(vec![4, 1, 3, 8], 14, 3), (vec![3000, 2, 1000, 5000, 1], 8000, 4)] {
        let buffer = episodes(&lengths, capacity);
        let (mut rng, mut chosen) = (Pcg64::seed_from(1), ChosenSequences::default());
        let mut counts = BTreeMap::new();
        for _ in 0..100 {
            let of = Sequences { length: 2, burn_in: 0, whole: true };
            of.choose(buffer.storage(), 6, &mut rng, &mut chosen).unwrap();
            chosen.indices().iter().for_each(|start| *counts.entry(*start).or_insert(0.0) += 1.0);
        }
        assert_eq!(counts.len(), wanted, "{counts:?}");
        let expected = 600.0 / wanted as f64;
        let chi_squared: f64 = counts.values().map(|count: &f64| (count - expected).powi(2) / expected).sum();
        assert!(chi_squared < 22.0, "{counts:?}"); // 2 or 3 degrees of freedom: p = 0.0001
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (buffer, mut rng) = (episodes(&[3], 10), Pcg64::seed_from(1));
    let mut chosen = ChosenSequences::default();
    let mut said = |length, burn_in, whole, batch_size, buffer: &ReplayBuffer| {
        let of = Sequences { length, burn_in, whole };
        of.choose(buffer.storage(), batch_size, &mut rng, &mut chosen).unwrap_err().to_string()
    };
    assert!(said(0, 0, false, 1, &buffer).starts_with("length: expected at least 1, got 0"));
    assert!(said(2, 1, true, 1, &buffer).starts_with("burn_in: expected 0 with whole episodes, got 1"));
    assert!(said(2, 0, false, 4, &buffer).starts_with("batch_size: expected 1 to 3"));
    assert!(said(usize::MAX, 9, false, 1, &buffer).starts_with("length: expected at most"));
    let asked = said(1 << 50, 0, false, 2, &buffer);
    assert!(asked.contains("got length = 1125899906842624, which needs"), "{asked}");
    assert!(said(3, 1 << 50, false, 2, &buffer).starts_with("burn_in: expected at most"));
    assert!(said(1 << 50, 0, false, 2, &ReplayBuffer::new(5, 1, 1).unwrap()).starts_with("length: expected at most"));
    let mut running = ReplayBuffer::new(5, 1, 1).unwrap();
    running.push_slices(&[0.0], &[1.0], &[0.0], 0.0, false, false).unwrap();
    assert!(said(2, 0, true, 1, &running).starts_with("whole: expected an episode"));
}
