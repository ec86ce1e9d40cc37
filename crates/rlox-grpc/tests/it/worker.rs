//! How workers end, and where they may be started from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::process::Process;
use crate::support::raw::{channel, open, request, runtime, session};
use rlox_core::envs::MakeOptions;
use rlox_core::{Env, EnvSpec, Pcg64, ResetOptions, Seeds, Space, Step, VectorEnv};
use rlox_grpc::proto::{self, request};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};
use tonic::Streaming;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_client::HealthClient};

async fn watched(address: &str) -> Streaming<HealthCheckResponse> {
    let asked = HealthCheckRequest { service: "rlox.v1.Worker".into() };
    let mut told = HealthClient::new(channel(address).await).watch(asked).await.unwrap().into_inner();
    assert_eq!(told.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    told
}

#[test]
fn who_watches_is_told_and_does_not_hold_it() {
    let mut worker = Process::start(&[]);
    let mut env =
        RemoteVecEnv::new(&[&worker.address], &EnvOptions::new("CartPole-v1", 1, 0), &ClientOptions::default())
            .unwrap();
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 4]).unwrap();
    let runtime = runtime();
    let mut told = runtime.block_on(watched(&worker.address));
    let start = Instant::now();
    worker.signal("TERM");
    let next = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), told.message()).await });
    assert_eq!(next.unwrap().unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(worker.wait().success());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// Counts those that there are, and takes its time to go.
struct Counted(Arc<AtomicUsize>, EnvSpec);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Relaxed);
        Self(Arc::clone(&self.0), self.1.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(150));
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Env for Counted {
    type Action = i64;
    fn spec(&self) -> &EnvSpec {
        &self.1
    }
    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }
    fn step(&mut self, _: &i64, _: &mut Pcg64, _: &mut [f32]) -> Step {
        Step { reward: 0.0, terminated: false, truncated: false }
    }
}

#[test]
fn environments_are_gone_when_it_has_ended() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let make = move |id: &str, options: &MakeOptions<'_>| {
        let observation = Space::uniform_box(-1.0, 1.0, &[4]);
        let spec = EnvSpec { id: id.into(), observation, action: Space::discrete(2), max_episode_steps: None };
        counted.fetch_add(1, Relaxed);
        options.build_vec_env(Counted(Arc::clone(&counted), spec))
    };
    let worker = Worker::start(WorkerOptions { make: Arc::new(make), ..WorkerOptions::default() }).unwrap();
    let runtime = runtime();
    let _held = runtime.block_on(async {
        let (sender, mut replies) = session(&channel(&worker.address()).await).await.unwrap();
        sender.send(request(1, request::What::Open(open()))).await.unwrap();
        replies.message().await.unwrap().unwrap();
        let told = watched(&worker.address()).await;
        (sender, replies, told)
    });
    assert!(count.load(Relaxed) > 0);
    worker.stop().unwrap();
    assert_eq!(count.load(Relaxed), 0);
}

#[test]
fn it_is_started_stopped_and_dropped_inside_a_runtime() {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for runtime in [one, runtime()] {
        runtime.block_on(async {
            let worker = Worker::start(WorkerOptions::default()).unwrap();
            let _connected = channel(&worker.address()).await;
            worker.stop().unwrap();
            drop(Worker::start(WorkerOptions::default()).unwrap());
            let taken = Worker::start(WorkerOptions::default()).unwrap();
            let bind = taken.address().rsplit('/').next().unwrap().parse().unwrap();
            assert!(Worker::start(WorkerOptions { bind, ..WorkerOptions::default() }).is_err());
        });
    }
}

#[test]
fn who_takes_no_replies_does_not_hold_it() {
    let make = |id: &str, options: &MakeOptions<'_>| {
        let observation = Space::uniform_box(-1.0, 1.0, &[400_000]);
        let spec = EnvSpec { id: id.into(), observation, action: Space::discrete(2), max_episode_steps: None };
        options.build_vec_env(Counted(Arc::default(), spec))
    };
    let worker = Worker::start(WorkerOptions { make: Arc::new(make), ..WorkerOptions::default() }).unwrap();
    let runtime = runtime();
    let session = runtime.block_on(async {
        // With the usual window, which one reply is larger than.
        let channel = tonic::transport::Endpoint::from_shared(worker.address()).unwrap().connect().await.unwrap();
        let (sender, mut replies) = session(&channel).await.unwrap();
        sender.send(request(1, request::What::Open(open()))).await.unwrap();
        replies.message().await.unwrap().unwrap();
        for sequence in 2..6 {
            sender.send(request(sequence, request::What::Reset(proto::Reset::default()))).await.unwrap();
        }
        (sender, replies)
    });
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    worker.stop().unwrap();
    // It is waited for, but not as long as while the worker goes on.
    let took = start.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{took:?}");
    drop(session);
}
