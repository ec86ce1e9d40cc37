//! Where environments stand is put back whole, or not at all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::borrow::Cow;

use rlox_core::{Actions, AutoresetMode, ResetOptions, Seeds, Standing, StepOut, VectorEnv, envs};

fn make(n: usize) -> Box<dyn VectorEnv> {
    let autoreset_mode = AutoresetMode::NextStep;
    let options =
        envs::MakeOptions { num_envs: n, seed: Some(0), autoreset_mode, max_episode_steps: None, arguments: &[] };
    envs::make("CartPole-v1", &options).unwrap()
}

/// All observations and rewards of some steps.
fn steps(env: &mut dyn VectorEnv, count: usize) -> (Vec<f32>, Vec<f64>) {
    let n = env.num_envs();
    let (mut obs, mut reward) = (vec![0.0; 4 * n], vec![0.0; n]);
    let (mut terminated, mut truncated, mut all) = (vec![false; n], vec![false; n], (vec![], vec![]));
    for _ in 0..count {
        let out = StepOut {
            obs: &mut obs,
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut [],
        };
        env.step(Actions::Discrete(&vec![1; n]), out).unwrap();
        all.0.extend_from_slice(&obs);
        all.1.extend_from_slice(&reward);
    }
    all
}

/// Environments some of whose episodes are over.
fn begun(n: usize) -> Box<dyn VectorEnv> {
    let mut env = make(n);
    env.reset(Seeds::Base(7), None, &ResetOptions::default(), &mut vec![0.0; 4 * n]).unwrap();
    steps(env.as_mut(), 9);
    env
}

#[test]
fn a_copy_goes_on_as_the_original_would() {
    for n in [2, 70] {
        let mut env = begun(n);
        let standing = Standing::of(env.as_ref()).unwrap().unwrap();
        assert!(n == 2 || standing.finished.contains(&true));
        assert!(standing.episode_steps.iter().any(|steps| *steps > 0));
        let mut copy = make(n);
        standing.put(copy.as_mut()).unwrap();
        assert_eq!(Standing::of(copy.as_ref()).unwrap().as_ref(), Some(&standing));
        assert_eq!(steps(copy.as_mut(), 60), steps(env.as_mut(), 60));
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    type Change = fn(&mut Standing<'_>);
    let changes: [(Change, &str); 8] = [
        (|s| s.states.to_mut().truncate(3), "states: expected 4 numbers an environment, got 1 numbers"),
        (|s| s.states.to_mut()[7] = f64::NAN, "for environment 1"),
        (|s| s.episode_returns = Cow::Borrowed(&[0.0]), "episode_returns: expected"),
        (|s| s.episode_steps.to_mut()[1] = -1, "episode_steps: expected numbers in [0, 2**32), got -1"),
        (|s| s.episode_steps = Cow::Borrowed(&[]), "episode_steps: expected"),
        (|s| s.finished = Cow::Borrowed(&[true; 3]), "finished: expected"),
        (|s| s.streams.to_mut()[6 + 3] = 2, "streams: expected"),
        (|s| s.streams.to_mut().truncate(11), "streams: expected"),
    ];
    let good = Standing::of(begun(2).as_ref()).unwrap().unwrap();
    for (change, words) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        let mut env = begun(2);
        steps(env.as_mut(), 1);
        let before = Standing::of(env.as_ref()).unwrap();
        for error in [bad.check(env.as_ref()).unwrap_err(), bad.put(env.as_mut()).unwrap_err()] {
            assert!(error.to_string().contains(words), "{error}: expected {words}");
        }
        assert_eq!(Standing::of(env.as_ref()).unwrap(), before, "{words}");
    }
}
