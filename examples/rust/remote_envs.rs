//! Starts two workers and trains PPO on CartPole with remote environments.
//!
//! Run it with `cargo run --release -p rlox-grpc --example remote_envs`. To use other machines, start `rlox-worker` on
//! each machine, and pass the addresses of these workers to `RemoteVecEnv::new`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rlox_core::{Pcg64, Result};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};
use rlox_nn::train::{Ppo, PpoConfig, Schedule};
use rlox_nn::{Activation, Optimizer, PolicyNetworks};

fn main() -> Result<()> {
    if std::env::args().any(|argument| argument == "worker") {
        return serve();
    }
    let mut workers: Vec<_> = (0..2).map(|_| start()).collect();
    let addresses: Vec<_> = workers.iter().map(|(_, address)| address.clone()).collect();
    print(&format!("workers: {}", addresses.join(", ")));
    let env = RemoteVecEnv::new(&addresses, &EnvOptions::new("CartPole-v1", 8, 0), &ClientOptions::default())?;
    // Settings of rl-zoo3 for CartPole.
    let config = PpoConfig {
        n_steps: 32,
        batch_size: 256,
        n_epochs: 20,
        gamma: 0.98,
        gae_lambda: 0.8,
        optimizer: Optimizer::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-5 },
        lr_schedule: Schedule::Linear,
        clip_schedule: Schedule::Linear,
        ..PpoConfig::default()
    };
    let make = |spec: &_, rng: &mut Pcg64| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
    let mut ppo = Ppo::new(Box::new(env), make, config, 1)?;
    let metrics = ppo.train(100_000, |metrics| {
        if metrics.updates % 800 == 0 {
            print(&format!("{:>7} steps: mean return {:.1}", metrics.timesteps, metrics.mean_return));
        }
        true
    })?;
    print(&format!("mean return of the last episodes: {:.1}", metrics.mean_return));
    drop(ppo);
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
