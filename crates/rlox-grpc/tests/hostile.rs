//! Clients that mean no good, or know no better: refused or bounded, while a good one is answered.

mod process;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use process::Process;
use rlox_core::{Actions, ResetOptions, Seeds, StepOut, VectorEnv};
use rlox_grpc::v1::{self, reply, request, worker_client::WorkerClient};
use rlox_grpc::{ClientOptions, EnvOptions, PROTOCOL, RemoteVecEnv};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

const LIMIT: u64 = 256 << 20;

fn good(worker: &Process) -> RemoteVecEnv {
    let env = EnvOptions::new("CartPole-v1", 2, 0);
    let mut made = RemoteVecEnv::new(&[&worker.address], &env, &ClientOptions::default()).unwrap();
    made.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 8]).unwrap();
    made
}

/// How long a step takes.
fn answered(env: &mut RemoteVecEnv) -> Duration {
    let start = Instant::now();
    let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0; 8], [0.0; 2], [false; 2], [false; 2]);
    let (over, cut) = (&mut terminated, &mut truncated);
    let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
    env.step(Actions::Discrete(&[0, 1]), out).unwrap();
    start.elapsed()
}

/// Whether the good client was never lost, and the worker is not swollen.
fn unharmed(worker: &Process, env: &mut RemoteVecEnv) {
    for _ in 0..20 {
        let took = answered(env);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    assert_eq!(env.faults().lost, 0);
    let peak = worker.peak_memory();
    assert!(peak < LIMIT, "{} MiB", peak >> 20);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

async fn channel(worker: &Process) -> Channel {
    let endpoint = Endpoint::from_shared(worker.address.clone()).unwrap();
    endpoint.initial_stream_window_size(1 << 24).connect().await.unwrap()
}

fn open() -> v1::Open {
    let (env_id, autoreset_mode) = ("CartPole-v1".into(), v1::AutoresetMode::SameStep.into());
    v1::Open { protocol: PROTOCOL, env_id, num_envs: 1, autoreset_mode, ..v1::Open::default() }
}

type Session = (mpsc::Sender<v1::Request>, Streaming<v1::Reply>);

async fn session(channel: &Channel) -> Result<Session, Status> {
    let (sender, receiver) = mpsc::channel(2048);
    let mut client = WorkerClient::new(channel.clone()).max_decoding_message_size(1 << 30);
    Ok((sender, client.session(ReceiverStream::new(receiver)).await?.into_inner()))
}

fn request(sequence: u64, what: request::What) -> v1::Request {
    v1::Request { sequence, what: Some(what) }
}

/// What a session of these requests ends with.
fn end(worker: &Process, requests: Vec<v1::Request>) -> Result<Vec<reply::What>, Status> {
    runtime().block_on(async {
        let (sender, mut replies) = session(&channel(worker).await).await?;
        let count = requests.len();
        for one in requests {
            // It may have ended.
            let _ = sender.send(one).await;
        }
        let mut said = Vec::new();
        while said.len() < count {
            let reply = tokio::time::timeout(Duration::from_secs(5), replies.message()).await.unwrap()?;
            let Some(reply) = reply else { break };
            said.extend(reply.what);
        }
        Ok(said)
    })
}

fn failure(said: &reply::What) -> &v1::Failure {
    let reply::What::Failure(failure) = said else { panic!("{said:?}") };
    failure
}

fn networks(activation: &str, widths: &[u32]) -> v1::Policy {
    let hidden = widths.iter().flat_map(|width| width.to_le_bytes()).collect();
    v1::Policy { activation: activation.into(), n_steps: 1, hidden, ..v1::Policy::default() }
}

#[test]
fn what_is_against_the_protocol_is_refused_and_says_why() {
    let worker = Process::start(&["--max-sessions", "12", "--max-envs", "100"]);
    let mut env = good(&worker);
    let other = v1::Open { protocol: 7, ..open() };
    let said = end(&worker, vec![request(1, request::What::Open(other))]).unwrap();
    let v1::Failure { expected, got, .. } = failure(&said[0]);
    assert_eq!((&expected[..], &got[..]), ("version 1", "version 7"));
    for (bad, says) in [
        (v1::Open { num_envs: 101, ..open() }, "--max-envs"),
        (v1::Open { num_envs: 0, ..open() }, "one or more"),
        (v1::Open { env_id: "Pole".into(), ..open() }, "did you mean"),
        (v1::Open { autoreset_mode: 9, ..open() }, "same version"),
        (v1::Open { standing: Some(v1::Standing { width: u32::MAX, ..v1::Standing::default() }), ..open() }, "session"),
        (v1::Open { policy: Some(networks("x", &[4])), ..open() }, "choose one of these"),
        (v1::Open { policy: Some(networks("tanh", &[7600, 7600])), ..open() }, "--max-message"),
        (v1::Open { policy: Some(networks("tanh", &[1; 65])), ..open() }, "fewer layers"),
        (v1::Open { arguments: vec![0; 1 << 20].into(), ..open() }, "same version"),
        (v1::Open { arguments: vec![1, b'x'].into(), ..open() }, "same version"),
        (
            v1::Open { policy: Some(v1::Policy { n_steps: u32::MAX, ..v1::Policy::default() }), ..open() },
            "--max-message",
        ),
    ] {
        let said = end(&worker, vec![request(1, request::What::Open(bad))]).unwrap();
        assert!(failure(&said[0]).fix.contains(says), "{said:?}");
    }
    let first = || request(1, request::What::Open(open()));
    let reset = |reset: v1::Reset| request(2, request::What::Reset(reset));
    let (options, seeds) = (vec![9, b'x'].into(), vec![1; 8].into());
    for (bad, names) in [
        (v1::Reset { options, ..v1::Reset::default() }, "options"),
        (v1::Reset { seeds, ..v1::Reset::default() }, "seeds"),
    ] {
        let said = end(&worker, vec![first(), reset(bad)]).unwrap();
        assert_eq!(failure(&said[1]).argument, names);
    }
    let step = |actions: &[u8]| request::What::Step(v1::Step { actions: actions.to_vec().into(), snapshot: false });
    let collect = request::What::Collect(v1::Collect::default());
    let said = end(&worker, vec![first(), request(2, step(&[0; 8])), request(3, step(&[0; 7])), request(4, collect)]);
    let said = said.unwrap();
    assert!(failure(&said[1]).fix.contains("reset"), "{said:?}");
    assert_eq!((&failure(&said[2]).expected[..], &failure(&said[2]).got[..]), ("8 bytes", "7"));
    assert!(failure(&said[3]).fix.contains("policy"));
    for (requests, code, says) in [
        (vec![request(1, step(&[]))], Code::FailedPrecondition, "as the first request"),
        (vec![first(), request(3, step(&[]))], Code::FailedPrecondition, "expected 2, got 3"),
    ] {
        let status = end(&worker, requests).unwrap_err();
        assert_eq!(status.code(), code);
        assert!(status.message().contains(says), "{status}");
    }
    let runtime = runtime();
    runtime.block_on(async {
        let channel = channel(&worker).await;
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
    unharmed(&worker, &mut env);
}

#[test]
fn who_asks_without_taking_answers_is_ended() {
    let worker = Process::start(&[]);
    let mut env = good(&worker);
    let runtime = runtime();
    runtime.block_on(async {
        let channel = channel(&worker).await;
        let mut held = Vec::new();
        for _ in 0..8 {
            let (sender, replies) = session(&channel).await.unwrap();
            sender.send(request(1, request::What::Open(v1::Open { num_envs: 4096, ..open() }))).await.unwrap();
            for sequence in 2..1500 {
                let reset = request::What::Reset(v1::Reset { snapshot: true, ..v1::Reset::default() });
                // It may have ended.
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
    unharmed(&worker, &mut env);
}

#[test]
fn messages_of_64_mb_are_refused() {
    let worker = Process::start(&[]);
    let mut env = good(&worker);
    let large = || bytes::Bytes::from(vec![0; 64 << 20]);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let worker = worker.address.clone();
            std::thread::spawn(move || {
                runtime().block_on(async {
                    let channel = Endpoint::from_shared(worker).unwrap().connect().await.unwrap();
                    let (sender, mut replies) = session(&channel).await.unwrap();
                    sender.send(request(1, request::What::Open(open()))).await.unwrap();
                    let step = request::What::Step(v1::Step { actions: large(), snapshot: false });
                    sender.send(request(2, step)).await.unwrap();
                    loop {
                        match replies.message().await {
                            Ok(reply) => assert!(reply.is_some(), "the session ended without a word"),
                            Err(status) => break status,
                        }
                    }
                })
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(answered(&mut env) < Duration::from_secs(1));
    }
    for thread in threads {
        let status = thread.join().unwrap();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    unharmed(&worker, &mut env);
}

#[test]
fn garbage_and_silence_do_no_harm() {
    let worker = Process::start(&[]);
    let mut env = good(&worker);
    let mut held = Vec::new();
    for i in 0..100_u8 {
        let Ok(mut stream) = TcpStream::connect(worker.bound()) else { continue };
        let bytes: Vec<_> = (0..10_000_u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 13) as u8 ^ i).collect();
        // It may be closed already.
        match i % 4 {
            0 => drop(stream.write_all(&bytes)),
            1 => drop(stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00")),
            2 => drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n")),
            _ => {}
        }
        held.push(stream);
    }
    unharmed(&worker, &mut env);
    // Who said nothing is closed soon, so that there is room again.
    std::thread::sleep(Duration::from_secs(4));
    let start = Instant::now();
    let mut another = good(&worker);
    assert!(start.elapsed() < Duration::from_secs(1));
    unharmed(&worker, &mut another);
    drop(held);
}

/// Opens so many streams over some connections, whose requests are never sent.
fn streams(count: usize) {
    let worker = Process::start(&[]);
    let mut env = good(&worker);
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
        let mut refused = 0;
        for one in held {
            let ended = tokio::time::timeout(Duration::from_secs(60), one).await;
            refused += usize::from(matches!(ended, Ok(Ok(Err(_)))));
        }
        refused
    });
    let start = Instant::now();
    while !hostile.is_finished() && start.elapsed() < Duration::from_secs(120) {
        let took = answered(&mut env);
        assert!(took < Duration::from_secs(1), "{took:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(runtime.block_on(hostile).unwrap(), count / 20 * 20, "all are refused");
    unharmed(&worker, &mut env);
    let start = Instant::now();
    unharmed(&worker, &mut good(&worker));
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
fn metrics_and_health_are_told() {
    let worker = Process::start(&["--metrics", "127.0.0.1:0"]);
    let mut env = good(&worker);
    answered(&mut env);
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
        let mut client = tonic_health::pb::health_client::HealthClient::new(channel(&worker).await);
        let asked = tonic_health::pb::HealthCheckRequest { service: "rlox.v1.Worker".into() };
        client.check(asked).await.unwrap().into_inner().status
    });
    assert_eq!(health, i32::from(tonic_health::pb::health_check_response::ServingStatus::Serving));
}
