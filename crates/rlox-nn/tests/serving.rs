//! The example that serves a policy answers as `rlox.load(checkpoint).predict` does in Python, which gave these numbers.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

#[path = "../../../examples/rust/serve_policy.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod serve_policy;

use std::path::PathBuf;

const PENDULUM: &str = "0.5 -0.25 1.5\n-0.9 0.4 -6\n";
const CARTPOLE: &str = "0.5 -0.25 0.1 1.5\n-0.9 0.4 -0.1 -1\n";

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/checkpoint", name].iter().collect()
}

#[test]
fn checkpoints_of_python_and_of_rust_answer_as_in_python() {
    let cases: [(&str, &str, [f32; 2]); 9] = [
        ("python-half", PENDULUM, [0.012_746_958, -0.006_467_344_3]),
        ("rust-half", PENDULUM, [0.012_746_958, -0.006_467_344_3]),
        ("rust-a2c", CARTPOLE, [0.0, 0.0]),
        ("python-dqn", CARTPOLE, [0.0, 1.0]),
        ("rust-dqn", CARTPOLE, [0.0, 1.0]),
        ("python-sac", PENDULUM, [1.010_268_2, 0.238_056]),
        ("rust-sac", PENDULUM, [1.010_268_2, 0.238_056]),
        ("python-td3", PENDULUM, [0.352_859_74, -0.260_747_85]),
        ("rust-td3", PENDULUM, [0.352_859_74, -0.260_747_85]),
    ];
    for (name, observations, expected) in cases {
        let mut answers = Vec::new();
        serve_policy::serve(fixture(name), observations.as_bytes(), &mut answers).unwrap();
        let answers = String::from_utf8(answers).unwrap();
        let got: Vec<f32> = answers.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(got.len(), 2, "{name}: {answers}");
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-5, "{name}: {got} instead of {expected}");
        }
    }
}

#[test]
fn what_is_no_observation_or_no_checkpoint_is_refused() {
    for line in ["1 2", "1 2 x", "1 2 inf", ""] {
        let said = serve_policy::serve(fixture("python-half"), format!("{line}\n").as_bytes(), Vec::new());
        assert!(said.unwrap_err().to_string().contains("expected 3 finite numbers"), "{line:?}");
    }
    assert!(serve_policy::Served::load(fixture("nowhere")).is_err());
}
