//! Hostile or faulty clients are rejected or limited, while a correct client is served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::process::Process;
use crate::support::raw::{channel, open, request, runtime, session};
use rlox_core::{Actions, ResetOptions, Seeds, StepOut, VectorEnv};
use rlox_grpc::proto::{self, reply, request};
use rlox_grpc::{ClientOptions, EnvOptions, Limits, RemoteVecEnv};
use tonic::Code;
use tonic::transport::Endpoint;

const LIMIT: u64 = 256 << 20;

fn connect(worker: &Process) -> RemoteVecEnv {
    let env = EnvOptions::new("CartPole-v1", 2, 0);
    let mut remote = RemoteVecEnv::new(&[&worker.address], &env, &ClientOptions::default()).unwrap();
    remote.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 8]).unwrap();
    remote
}

/// Makes a step and returns its duration.
fn time_step(env: &mut RemoteVecEnv) -> Duration {
    let start = Instant::now();
    let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0; 8], [0.0; 2], [false; 2], [false; 2]);
    let (over, cut) = (&mut terminated, &mut truncated);
    let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
    env.step(Actions::Discrete(&[0, 1]), out).unwrap();
    start.elapsed()
}

/// Asserts that the correct client `env` was never disconnected, and that the worker's memory is
/// bounded.
fn assert_unharmed(worker: &Process, env: &mut RemoteVecEnv) {
    for _ in 0..20 {
        let took = time_step(env);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    assert_eq!(env.faults().lost, 0);
    let peak = worker.peak_memory();
    assert!(peak < LIMIT, "{} MiB", peak >> 20);
}

#[test]
fn sessions_beyond_the_limit_are_rejected() {
    let worker = Process::start(&["--max-sessions", "12", "--max-envs", "100"]);
    let mut env = connect(&worker);
    let first = || request(1, request::What::Open(open()));
    let runtime = runtime();
    runtime.block_on(async {
        let channel = channel(&worker.address).await;
        let mut held = Vec::new();
        let status = loop {
            let (sender, mut replies) = session(&channel).await.unwrap();
            sender.send(first()).await.unwrap();
            match replies.message().await {
                Ok(opened) => held.push((opened.unwrap(), sender, replies)),
                Err(status) => break status,
            }
        };
        assert!(held.len() <= 11, "{}", held.len());
        assert!(status.code() == Code::ResourceExhausted && status.message().contains("--max-sessions"), "{status}");
    });
    assert_unharmed(&worker, &mut env);
}

#[test]
fn simultaneous_sessions_are_all_accepted() {
    let worker = Process::start(&["--max-sessions", "32"]);
    let runtime = runtime();
    runtime.block_on(async {
        let sessions: Vec<_> = (0..32)
            .map(|_| {
                let address = worker.address.clone();
                tokio::spawn(async move {
                    let (sender, mut replies) = session(&channel(&address).await).await.unwrap();
                    sender.send(request(1, request::What::Open(open()))).await.unwrap();
                    (replies.message().await.unwrap().unwrap().what, sender, replies)
                })
            })
            .collect();
        let mut held = Vec::new();
        for one in sessions {
            let one = one.await.unwrap();
            assert!(matches!(one.0, Some(reply::What::Opened(_))), "{:?}", one.0);
            held.push(one);
        }
    });
}

#[test]
fn sessions_that_read_no_replies_end() {
    let worker = Process::start(&[]);
    let mut env = connect(&worker);
    let runtime = runtime();
    runtime.block_on(async {
        let channel = channel(&worker.address).await;
        let mut held = Vec::new();
        for _ in 0..7 {
            let (sender, replies) = session(&channel).await.unwrap();
            sender.send(request(1, request::What::Open(proto::Open { num_envs: 4096, ..open() }))).await.unwrap();
            for sequence in 2..1500 {
                let reset = request::What::Reset(proto::Reset { snapshot: true, ..proto::Reset::default() });
                // The session may have ended.
                let _ = sender.send(request(sequence, reset)).await;
            }
            held.push((sender, replies));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        for (_, replies) in &mut held {
            let mut ended = None;
            while ended.is_none() {
                ended = replies.message().await.transpose().map_or(Some(None), |reply| reply.err().map(Some));
            }
        }
    });
    assert_unharmed(&worker, &mut env);
}

#[test]
fn messages_of_64_mb_are_rejected() {
    let worker = Process::start(&[]);
    let mut env = connect(&worker);
    let large = || bytes::Bytes::from(vec![0; 64 << 20]);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let worker = worker.address.clone();
            std::thread::spawn(move || {
                runtime().block_on(async {
                    let channel = Endpoint::from_shared(worker).unwrap().connect().await.unwrap();
                    let (sender, mut replies) = session(&channel).await.unwrap();
                    sender.send(request(1, request::What::Open(open()))).await.unwrap();
                    let step = request::What::Step(proto::Step { actions: large(), snapshot: false });
                    sender.send(request(2, step)).await.unwrap();
                    loop {
                        match replies.message().await {
                            Ok(reply) => assert!(reply.is_some(), "the session ended without a status"),
                            Err(status) => break status,
                        }
                    }
                })
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(time_step(&mut env) < Duration::from_secs(1));
    }
    for thread in threads {
        let status = thread.join().unwrap();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    assert_unharmed(&worker, &mut env);
}

#[test]
fn garbage_and_silence_do_no_harm() {
    let worker = Process::start(&[]);
    let mut env = connect(&worker);
    let mut held = Vec::new();
    for i in 0..100_u8 {
        let Ok(mut stream) = TcpStream::connect(worker.bound()) else { continue };
        let bytes: Vec<_> = (0..10_000_u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 13) as u8 ^ i).collect();
        // The connection may be closed already.
        match i % 4 {
            0 => drop(stream.write_all(&bytes)),
            1 => drop(stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00")),
            2 => drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n")),
            _ => {}
        }
        held.push(stream);
    }
    assert_unharmed(&worker, &mut env);
    // Connections that send no data are closed after three seconds, so that new connections are
    // accepted.
    std::thread::sleep(Duration::from_secs(4));
    let start = Instant::now();
    let mut another = connect(&worker);
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_unharmed(&worker, &mut another);
    drop(held);
}

#[test]
fn idle_connections_make_way_for_new_clients() {
    let worker = Process::start(&[]);
    let mut env = connect(&worker);
    let runtime = runtime();
    let idle = runtime.block_on(async {
        let mut idle = Vec::new();
        for _ in 0..Limits::default().max_connections {
            // These connections answer pings.
            idle.push(channel(&worker.address).await);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        idle
    });
    let start = Instant::now();
    let mut another = connect(&worker);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_unharmed(&worker, &mut another);
    assert_unharmed(&worker, &mut env);
    drop(idle);
}

#[test]
fn connections_beyond_the_limit_are_rejected_if_all_have_sessions() {
    let worker = Process::start(&["--max-connections", "2"]);
    let (mut one, mut other) = (connect(&worker), connect(&worker));
    let start = Instant::now();
    let env = EnvOptions::new("CartPole-v1", 2, 0);
    let options = ClientOptions { connect_timeout: Duration::from_millis(500), ..ClientOptions::default() };
    assert!(RemoteVecEnv::new(&[&worker.address], &env, &options).is_err());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_unharmed(&worker, &mut one);
    assert_unharmed(&worker, &mut other);
}

/// Opens `count` streams over 20 connections without sending a request.
fn streams(count: usize) {
    let worker = Process::start(&[]);
    let mut env = connect(&worker);
    let runtime = runtime();
    let address = worker.address.clone();
    let hostile = runtime.spawn(async move {
        let mut held = Vec::new();
        for _ in 0..20 {
            let Ok(channel) = Endpoint::from_shared(address.clone()).unwrap().connect().await else { continue };
            for _ in 0..count / 20 {
                let channel = channel.clone();
                held.push(tokio::spawn(async move {
                    let (sender, mut replies) = session(&channel).await?;
                    let ended = replies.message().await;
                    drop(sender);
                    ended
                }));
            }
        }
        let mut rejected = 0;
        for one in held {
            let ended = tokio::time::timeout(Duration::from_secs(60), one).await;
            rejected += usize::from(matches!(ended, Ok(Ok(Err(_)))));
        }
        rejected
    });
    let start = Instant::now();
    while !hostile.is_finished() && start.elapsed() < Duration::from_secs(120) {
        let took = time_step(&mut env);
        assert!(took < Duration::from_secs(1), "{took:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(runtime.block_on(hostile).unwrap(), count / 20 * 20, "all are rejected");
    assert_unharmed(&worker, &mut env);
    let start = Instant::now();
    assert_unharmed(&worker, &mut connect(&worker));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn two_thousand_streams_are_bounded() {
    streams(2000);
}

#[test]
#[ignore = "takes half a minute"]
fn ten_thousand_streams_are_bounded() {
    streams(10_000);
}

#[test]
fn metrics_and_health_are_served() {
    let worker = Process::start(&["--metrics", "127.0.0.1:0"]);
    let mut env = connect(&worker);
    time_step(&mut env);
    let at = worker.line.split("http://").nth(2).unwrap().split('/').next().unwrap();
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let text = ask("/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("\nrlox_worker_sessions 1\n") && text.contains("\nrlox_worker_steps_total 2\n"), "{text}");
    assert!(ask("/other").starts_with("HTTP/1.1 404"));
    let health = runtime().block_on(async {
        let mut client = tonic_health::pb::health_client::HealthClient::new(channel(&worker.address).await);
        let health_request = tonic_health::pb::HealthCheckRequest { service: "rlox.v1.Worker".into() };
        client.check(health_request).await.unwrap().into_inner().status
    });
    assert_eq!(health, i32::from(tonic_health::pb::health_check_response::ServingStatus::Serving));
}
