//! Starting and stopping workers.

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

async fn watch_health(address: &str) -> Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest { service: "rlox.v1.Worker".into() };
    let mut statuses = HealthClient::new(channel(address).await).watch(request).await.unwrap().into_inner();
    assert_eq!(statuses.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    statuses
}

#[test]
fn health_watchers_are_notified_and_do_not_delay_the_end() {
    let mut worker = Process::start(&[]);
    let mut env =
        RemoteVecEnv::new(&[&worker.address], &EnvOptions::new("CartPole-v1", 1, 0), &ClientOptions::default())
            .unwrap();
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 4]).unwrap();
    let runtime = runtime();
    let mut statuses = runtime.block_on(watch_health(&worker.address));
    let start = Instant::now();
    worker.signal("TERM");
    let next = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), statuses.message()).await });
    assert_eq!(next.unwrap().unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(worker.wait().success());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// Environment that counts its instances and is slow to drop.
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
fn stop_drops_all_environments() {
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
        let statuses = watch_health(&worker.address()).await;
        (sender, replies, statuses)
    });
    assert!(count.load(Relaxed) > 0);
    worker.stop().unwrap();
    assert_eq!(count.load(Relaxed), 0);
}

#[test]
fn workers_start_stop_and_drop_inside_a_runtime() {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for runtime in [one, runtime()] {
        runtime.block_on(async {
            let worker = Worker::start(WorkerOptions::default()).unwrap();
            let _connected = channel(&worker.address()).await;
            worker.stop().unwrap();
            drop(Worker::start(WorkerOptions::default()).unwrap());
            let running = Worker::start(WorkerOptions::default()).unwrap();
            let bind = running.address().rsplit('/').next().unwrap().parse().unwrap();
            assert!(Worker::start(WorkerOptions { bind, ..WorkerOptions::default() }).is_err());
        });
    }
}

#[test]
fn clients_that_read_no_replies_do_not_block_stop() {
    let make = |id: &str, options: &MakeOptions<'_>| {
        let observation = Space::uniform_box(-1.0, 1.0, &[400_000]);
        let spec = EnvSpec { id: id.into(), observation, action: Space::discrete(2), max_episode_steps: None };
        options.build_vec_env(Counted(Arc::default(), spec))
    };
    let worker = Worker::start(WorkerOptions { make: Arc::new(make), ..WorkerOptions::default() }).unwrap();
    let runtime = runtime();
    let session = runtime.block_on(async {
        // This client has the default flow-control window, which is smaller than a reply.
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
    // During a stop, the worker waits for a client that reads no replies, but for less time than
    // before.
    let took = start.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{took:?}");
    drop(session);
}
