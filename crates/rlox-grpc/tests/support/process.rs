//! The `rlox-worker` binary as a process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rlox_core::Pcg64;

/// A running `rlox-worker` process, killed on drop.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
    pub(crate) line: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlox-worker"));
    command.args(arguments).env_remove("RLOX_WORKER_TOKEN").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Kills and restarts random workers in a thread.
///
/// Returns a flag that is set after `count` kills, and the thread, which returns the workers.
pub(crate) fn killer(
    count: usize,
    every: Duration,
    workers: Vec<Process>,
) -> (Arc<AtomicBool>, JoinHandle<Vec<Process>>) {
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let killer = thread::spawn(move || {
        let (mut workers, mut rng) = (workers, Pcg64::seed_from(5));
        for _ in 0..count {
            thread::sleep(every.mul_f64(rng.uniform(0.5, 1.5)));
            let at = rng.integers(0, workers.len() as i64) as usize;
            workers[at].kill();
            let bound = workers[at].bound().to_owned();
            workers[at] = Process::start(&["--bind", &bound]);
        }
        ended.store(true, Relaxed);
        workers
    });
    (done, killer)
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let found = line.split_whitespace().find(|word| word.starts_with("http"));
        let Some(address) = found.map(|word| word.trim_end_matches(',').to_owned()) else {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("no address in {line:?}: {errors}");
        };
        Self { child, address, line }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends the signal `name`. After STOP, waits until all threads have stopped.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
        while name == "STOP" && !self.is_stopped() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns true if every thread is in state T of `/proc`.
    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap()).all(|stat| {
            // The state follows the name in parentheses, which may contain spaces.
            stat.rsplit(") ").next().unwrap().starts_with('T')
        })
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Returns the host and port, to start another worker at the same address.
    pub(crate) fn bound(&self) -> &str {
        self.address.split("//").nth(1).unwrap()
    }

    /// Returns the peak of the resident memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}
