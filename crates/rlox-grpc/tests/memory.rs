//! What clients that are let in can do to a worker's memory.

mod process;
mod raw;

use std::time::{Duration, Instant};

use process::Process;
use raw::{channel, networks, open, request, runtime, session, step};
use rlox_core::{Pcg64, Space};
use rlox_grpc::v1::{self, reply, request};
use rlox_grpc::{ClientOptions, EnvOptions, Limits, RemoteVecEnv};
use rlox_nn::{Activation, ActorCritic, PolicyNetworks};

/// Bytes of a request that is as large as requests may be.
const LARGE: usize = (4 << 20) - 64;

/// The rollouts of one session are as large as the share of all that it may hold.
fn rollouts() -> (v1::Open, request::What) {
    let observation = Space::uniform_box(-1.0, 1.0, &[4]);
    let spec = rlox_core::EnvSpec { id: "x".into(), observation, action: Space::discrete(2), max_episode_steps: None };
    let made = PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let weights = made.tensors().to_safetensors().into();
    let policy = v1::Policy { n_steps: 10, ..networks("tanh", &[8]) };
    let open = v1::Open { num_envs: 4096, policy: Some(policy), ..open() };
    (open, request::What::Collect(v1::Collect { weights, reset: Some(1), ..v1::Collect::default() }))
}

#[test]
fn sessions_that_send_the_most_and_take_nothing_are_bounded() {
    let worker = Process::start(&[]);
    let sessions = Limits::default().max_sessions;
    let runtime = runtime();
    let held = runtime.block_on(async {
        let mut held = Vec::new();
        for i in 0..sessions {
            let (sender, mut replies) = session(&channel(&worker.address).await).await.unwrap();
            let (open, collect) = rollouts();
            // Half of them have large replies, and half have large requests.
            let open = if i % 2 == 0 { open } else { v1::Open { policy: None, ..open } };
            sender.send(request(1, request::What::Open(open))).await.unwrap();
            let opened = replies.message().await.unwrap().unwrap();
            assert!(matches!(opened.what, Some(reply::What::Opened(_))), "{i}: {opened:?}");
            for sequence in 2..6 {
                let what = if i % 2 == 0 { collect.clone() } else { step(&vec![0; LARGE]) };
                sender.send(request(sequence, what)).await.unwrap();
            }
            held.push((sender, replies));
        }
        // Until nothing moves any more.
        tokio::time::sleep(Duration::from_secs(3)).await;
        held
    });
    let peak = worker.peak_memory();
    eprintln!("{} MB of {} MB", peak / 1_000_000, Limits::default().memory_bytes() / 1_000_000);
    assert!(peak > 30_000_000, "nothing was held: {} MB", peak / 1_000_000);
    assert!(peak < 256_000_000, "{} MB", peak / 1_000_000);
    drop(held);
    drop(runtime);
    let start = Instant::now();
    let env = EnvOptions::new("CartPole-v1", 2, 0);
    while RemoteVecEnv::new(&[&worker.address], &env, &ClientOptions::default()).is_err() {
        assert!(start.elapsed() < Duration::from_secs(1), "they are gone, and nobody is let in");
    }
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn requests_that_wait_for_room_are_answered_in_order() {
    let worker = Process::start(&["--max-message-bytes", "65536", "--credits", "64"]);
    let runtime = runtime();
    runtime.block_on(async {
        let (sender, mut replies) = session(&channel(&worker.address).await).await.unwrap();
        sender.send(request(1, request::What::Open(v1::Open { num_envs: 500, ..open() }))).await.unwrap();
        // Each is small, or takes all the room that there is; so do the replies.
        for sequence in 2..60 {
            let reset = request::What::Reset(v1::Reset { snapshot: true, ..v1::Reset::default() });
            let what = if sequence % 3 == 0 { step(&vec![0; 60_000]) } else { reset };
            sender.send(request(sequence, what)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        for sequence in 1..60 {
            let reply = tokio::time::timeout(Duration::from_secs(5), replies.message()).await.unwrap();
            assert_eq!(reply.unwrap().unwrap().sequence, sequence);
        }
    });
}
