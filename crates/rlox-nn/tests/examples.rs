//! The examples of off-policy methods run: a little by default, and whole where slow tests do.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

#[path = "../../../examples/rust/dqn_cartpole.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod dqn_cartpole;
#[path = "../../../examples/rust/sac_pendulum.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod sac_pendulum;

#[test]
fn they_run_and_evaluate() {
    // A few updates each. An episode of a pendulum pays at most 0 and no less than -16.3 a step.
    let score = dqn_cartpole::train(1_280).unwrap();
    assert!((1.0..=500.0).contains(&score), "{score}");
    let score = sac_pendulum::train(110).unwrap();
    assert!((-3300.0..0.0).contains(&score), "{score}");
}

// What seeds reach is tested in off_policy_scores.rs: these are far from what random actions are paid.

#[test]
#[ignore = "slow: 50,000 steps"]
fn dqn_learns_cartpole() {
    let score = dqn_cartpole::train(50_000).unwrap();
    assert!(score > 100.0, "{score}");
}

#[test]
#[ignore = "slow: 20,000 steps"]
fn sac_learns_pendulum() {
    let score = sac_pendulum::train(20_000).unwrap();
    assert!(score > -400.0, "{score}");
}
