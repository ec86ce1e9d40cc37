//! Starts two workers and trains IMPALA on CartPole with rollouts that the workers collect.
//!
//! Run it with `cargo run --release -p rlox-grpc --example remote_rollouts`. To use other machines, start `rlox-worker`
//! on each machine, and pass the addresses of these workers to `build_async_on_policy`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rlox_core::{AutoresetMode, Pcg64, Result, VecEnv, envs::CartPole, pipeline::StalenessPolicy};
use rlox_grpc::{ClientOptions, EnvOptions, Worker, WorkerOptions, build_async_on_policy};
use rlox_nn::train::ImpalaConfig;
use rlox_nn::{Activation, PolicyNetworks};

fn main() -> Result<()> {
    if std::env::args().any(|argument| argument == "worker") {
        return serve();
    }
    let mut workers: Vec<_> = (0..2).map(|_| start()).collect();
    let addresses: Vec<_> = workers.iter().map(|(_, address)| address.clone()).collect();
    print(&format!("workers: {}", addresses.join(", ")));
    // Two actors with eight environments each, one actor per worker.
    let env = EnvOptions::new("CartPole-v1", 8, 0);
    let config = ImpalaConfig::default();
    let make = |spec: &_, rng: &mut Pcg64| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
    let staleness_policy = StalenessPolicy { max_staleness: 2, deterministic: false };
    let mut impala =
        build_async_on_policy(&addresses, &env, 2, make, config, staleness_policy, 1, &ClientOptions::default())?;
    impala.train(500_000, |metrics| {
        if metrics.updates % 1000 == 0 {
            print(&format!("{:>7} steps: mean return {:.1}", metrics.timesteps, metrics.mean_return));
        }
        true
    })?;
    let mut test = VecEnv::new(8, None, AutoresetMode::SameStep, CartPole::default)?;
    let returns = impala.evaluate(&mut test, 40, 7)?;
    print(&format!(
        "mean of {} greedy episodes: {:.1}",
        returns.len(),
        returns.iter().sum::<f64>() / returns.len() as f64
    ));
    impala.stop()?;
    for (worker, _) in &mut workers {
        drop(worker.stdin.take());
    }
    Ok(())
}

/// Starts this program as a worker and returns its address.
fn start() -> (Child, String) {
    let program = std::env::current_exe().expect("a program");
    let mut command = Command::new(program);
    let child = command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("a process");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("an address");
    (child, line.trim().to_owned())
}

/// Runs a worker until the parent process closes the pipe.
fn serve() -> Result<()> {
    let worker = Worker::start(WorkerOptions::default())?;
    print(&worker.address());
    // The read ends when the parent closes the pipe.
    let _ = std::io::stdin().read(&mut [0]);
    worker.stop()
}

#[expect(clippy::print_stdout, reason = "an example")]
fn print(text: &str) {
    println!("{text}");
}
