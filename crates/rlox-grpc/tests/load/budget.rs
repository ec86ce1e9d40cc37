//! The memory that clients can use with accepted requests is bounded.

use std::time::{Duration, Instant};

use crate::support::process::Process;
use crate::support::raw::{Session, channel, networks, open, request, runtime, session, step};
use rlox_core::{Pcg64, Space};
use rlox_grpc::proto::{self, reply, request};
use rlox_grpc::{ClientOptions, EnvOptions, Limits, RemoteVecEnv};
use rlox_nn::{Activation, ActorCritic, PolicyNetworks};
use tonic::Code;
use tonic::transport::Endpoint;

/// Bytes of the largest allowed request.
const LARGE: usize = (4 << 20) - 64;

/// Returns requests for rollouts that use all of a session's part of the memory budget.
fn rollouts() -> (proto::Open, request::What) {
    let observation = Space::uniform_box(-1.0, 1.0, &[4]);
    let spec = rlox_core::EnvSpec { id: "x".into(), observation, action: Space::discrete(2), max_episode_steps: None };
    let policy_networks = PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let weights = policy_networks.tensors().to_safetensors().into();
    let policy = proto::Policy { n_steps: 10, ..networks("tanh", &[8]) };
    let open = proto::Open { num_envs: 4096, policy: Some(policy), ..open() };
    (open, request::What::Collect(proto::Collect { weights, reset: Some(1), ..proto::Collect::default() }))
}

#[test]
fn sessions_that_read_no_replies_are_bounded() {
    let worker = Process::start(&[]);
    let sessions = Limits::default().max_sessions;
    for round in 0..3 {
        let runtime = runtime();
        let held = runtime.block_on(fill_sessions(&worker, sessions));
        let peak = worker.peak_memory();
        eprintln!("{} MB of {} MB", peak / 1_000_000, Limits::default().memory_bytes() / 1_000_000);
        assert!(peak > 30_000_000, "nothing was held: {} MB", peak / 1_000_000);
        assert!(peak < 256_000_000, "{} MB in round {round}", peak / 1_000_000);
        drop(held);
        drop(runtime);
        assert_session_available(&worker);
    }
}

/// Opens `sessions` sessions with the largest possible messages, and reads no replies.
async fn fill_sessions(worker: &Process, sessions: usize) -> Vec<Session> {
    let mut held = Vec::new();
    for i in 0..sessions {
        let (sender, mut replies) = session(&channel(&worker.address).await).await.unwrap();
        let (open, collect) = rollouts();
        // Half of the sessions have large replies, the other half large requests.
        let open = if i % 2 == 0 { open } else { proto::Open { policy: None, ..open } };
        sender.send(request(1, request::What::Open(open))).await.unwrap();
        let opened = replies.message().await.unwrap().unwrap();
        assert!(matches!(opened.what, Some(reply::What::Opened(_))), "{i}: {opened:?}");
        for sequence in 2..6 {
            let what = if i % 2 == 0 { collect.clone() } else { step(&vec![0; LARGE]) };
            sender.send(request(sequence, what)).await.unwrap();
        }
        held.push((sender, replies));
    }
    // After this time all buffers are full.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    held
}

/// Asserts that another client gets a session within a second.
fn assert_session_available(worker: &Process) {
    let start = Instant::now();
    let env = EnvOptions::new("CartPole-v1", 2, 0);
    while let Err(error) = RemoteVecEnv::new(&[&worker.address], &env, &ClientOptions::default()) {
        assert!(start.elapsed() < Duration::from_secs(1), "no session after the others have ended: {error}");
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    // This session must end before other sessions fill the worker.
    std::thread::sleep(Duration::from_millis(200));
}

#[test]
fn requests_that_wait_for_memory_are_answered_in_order() {
    let worker = Process::start(&["--max-message-bytes", "65536", "--credits", "64"]);
    let runtime = runtime();
    runtime.block_on(async {
        let (sender, mut replies) = session(&channel(&worker.address).await).await.unwrap();
        sender.send(request(1, request::What::Open(proto::Open { num_envs: 500, ..open() }))).await.unwrap();
        // Every third request has almost the maximum size. Replies to the others contain snapshots.
        for sequence in 2..60 {
            let reset = request::What::Reset(proto::Reset { snapshot: true, ..proto::Reset::default() });
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

#[test]
fn requests_count_until_their_replies_are_read() {
    let worker = Process::start(&["--credits", "2"]);
    let runtime = runtime();
    runtime.block_on(async {
        for (count, ended) in [(4, false), (5, true)] {
            let endpoint = Endpoint::from_shared(worker.address.clone()).unwrap().initial_stream_window_size(1 << 10);
            let (sender, mut replies) = session(&endpoint.connect().await.unwrap()).await.unwrap();
            sender.send(request(1, request::What::Open(proto::Open { num_envs: 4096, ..open() }))).await.unwrap();
            replies.message().await.unwrap().unwrap();
            // HTTP/2 sends one reply and buffers one, and two waiting replies use both credits. A
            // fifth request exceeds the credits.
            for sequence in 2..2 + count {
                sender.send(request(sequence, request::What::Reset(proto::Reset::default()))).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            for _ in 0..4 {
                replies.message().await.unwrap().unwrap();
            }
            if ended {
                let status = replies.message().await.unwrap_err();
                assert!(status.message().contains("credits: expected at most 2"), "{status}");
            } else {
                sender.send(request(2 + count, request::What::Reset(proto::Reset::default()))).await.unwrap();
                assert_eq!(replies.message().await.unwrap().unwrap().sequence, 2 + count);
            }
        }
    });
}

#[test]
fn streams_with_the_largest_first_request_are_bounded() {
    let worker = Process::start(&[]);
    let runtime = runtime();
    runtime.block_on(async {
        for _ in 0..2 {
            let mut streams = Vec::new();
            for _ in 0..8 {
                let channel = channel(&worker.address).await;
                for _ in 0..4 {
                    let channel = channel.clone();
                    streams.push(tokio::spawn(async move {
                        let (sender, mut replies) = session(&channel).await?;
                        let open = proto::Open { env_id: "x".repeat(LARGE), ..open() };
                        // The stream may have ended.
                        let _ = sender.send(request(1, request::What::Open(open))).await;
                        replies.message().await
                    }));
                }
            }
            for stream in streams {
                match stream.await.unwrap() {
                    Ok(reply) => assert!(matches!(reply.unwrap().what, Some(reply::What::Failure(_)))),
                    Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
                }
            }
        }
    });
    let peak = worker.peak_memory();
    eprintln!("{} MB", peak / 1_000_000);
    assert!(peak < 256_000_000, "{} MB", peak / 1_000_000);
    assert_session_available(&worker);
}
