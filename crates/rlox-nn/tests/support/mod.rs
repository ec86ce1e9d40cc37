//! Helpers that the integration tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod actors;
pub(crate) mod checkpoints;
pub(crate) mod learners;
pub(crate) mod trainers;

use std::env;
use std::process::Command;

/// Asserts that `checksum` returns the same text with one thread, with two threads and in this
/// process.
///
/// A process cannot change its number of threads. The test with the path `test`, which is the
/// calling test, therefore runs in child processes.
pub(crate) fn assert_independent_of_threads(test: &str, checksum: impl Fn() -> String) {
    const CHILD: &str = "RLOX_TEST_CHECKSUM";
    if env::var_os(CHILD).is_some() {
        eprintln!("checksum {}", checksum());
        return;
    }
    let in_process = |threads: &str| {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("RLOX_NUM_THREADS", threads);
        let stderr = String::from_utf8(child.output().unwrap().stderr).unwrap();
        stderr.lines().find(|line| line.starts_with("checksum")).expect("a checksum").to_owned()
    };
    let one = in_process("1");
    assert_eq!(one, in_process("2"));
    assert_eq!(one, format!("checksum {}", checksum()));
}
