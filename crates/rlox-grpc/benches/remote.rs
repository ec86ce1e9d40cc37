//! Benchmarks of traffic over the loopback. `cargo bench -p rlox-grpc` prints a table, and `--test` shortens the run.
//! `--measure NAME` measures one benchmark once and prints JSON, for `benches/python/bench_distributed.py`.
//!
//! - `ingest/BYTES/grpc`: steps with observations of BYTES bytes, requested in advance up to the number of credits.
//! - `ingest/BYTES/rollouts`: rollouts of about BYTES bytes, which a worker collects one after the other.
//! - `ingest/BYTES/tcp`: BYTES bytes from a raw TCP socket.
//! - `step/ENVS/grpc`, `step/ENVS/local`: a step of ENVS environments on a worker and in this process.
//! - `weights/WIDTH/sent`, `weights/WIDTH/unchanged`: a rollout of one step with WIDTH x WIDTH networks, with and
//!   without new weights in the request.

use std::io::{Read, Write, stdout};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rlox_core::envs::{self, MakeOptions};
use rlox_core::{
    Actions, AutoresetMode, Env, EnvSpec, Pcg64, ResetOptions, RolloutBuffer, Seeds, Space, Step, StepOut, VectorEnv,
    pipeline::{Collect, Rollout, RolloutJob, RolloutTicket},
};
use rlox_grpc::proto::{self, reply, request, worker_client::WorkerClient};
use rlox_grpc::{ClientOptions, EnvOptions, Limits, PROTOCOL, RemoteActor, RemoteRolloutConfig, RemoteVecEnv};
use rlox_grpc::{Worker, WorkerOptions};
use rlox_nn::train::CollectConfig;
use rlox_nn::{Activation, ActorCritic, PolicyNetworks};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

const KIB: usize = 1024;
const CREDITS: usize = 8;
/// Number of steps of a rollout.
const STEPS: usize = 16;
/// Bytes of a transition without its observation.
const TRANSITION_BYTES: usize = 29;

/// Environment with observations of any size, which computes nothing.
#[derive(Clone)]
struct Load(EnvSpec);

impl Env for Load {
    type Action = i64;
    fn spec(&self) -> &EnvSpec {
        &self.0
    }
    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }
    fn step(&mut self, action: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs[0] += *action as f32;
        Step { reward: 1.0, terminated: false, truncated: false }
    }
}

fn load_spec(dim: usize) -> EnvSpec {
    let observation = Space::uniform_box(-1.0, 1.0, &[dim]);
    EnvSpec { id: "Load-v0".into(), observation, action: Space::discrete(2), max_episode_steps: None }
}

fn worker() -> Worker {
    let make = |id: &str, options: &MakeOptions<'_>| {
        if id != "Load-v0" {
            return envs::make(id, options);
        }
        options.build_vec_env(Load(load_spec(options.argument(&["dim"], "dim", 1.0)? as usize)))
    };
    let limits = Limits { max_message_bytes: 64 << 20, credits: CREDITS as u32, ..Limits::default() };
    Worker::start(WorkerOptions { make: Arc::new(make), limits, ..WorkerOptions::default() }).expect("a worker")
}

fn load_options(dim: usize) -> EnvOptions {
    EnvOptions { arguments: vec![("dim".into(), dim as f64)], ..EnvOptions::new("Load-v0", 1, 0) }
}

/// Returns the duration of `count` steps with `CREDITS` requests in advance.
///
/// Observations have `bytes` bytes.
fn time_steps_in_advance(address: &str, bytes: usize, count: usize) -> Duration {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let (handle, address) = (runtime.handle().clone(), address.to_owned());
    let duration = runtime.block_on(handle.spawn(async move {
        let endpoint = Endpoint::from_shared(address).expect("an address").tcp_nodelay(true);
        let endpoint = endpoint.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20);
        let channel = endpoint.max_frame_size(1 << 18).connect().await.expect("a connection");
        let mut client = WorkerClient::new(channel).max_decoding_message_size(1 << 30);
        let (sender, receiver) = mpsc::channel(64);
        let mut replies = client.session(ReceiverStream::new(receiver)).await.expect("a session").into_inner();
        // The encoding of `Open.arguments`: length of the name, name, number.
        let dim = (bytes / 4) as f64;
        let arguments = [&[3][..], b"dim", &dim.to_le_bytes()].concat().into();
        let (env_id, autoreset_mode) = ("Load-v0".into(), proto::AutoresetMode::SameStep.into());
        let open =
            proto::Open { protocol: PROTOCOL, env_id, num_envs: 1, arguments, autoreset_mode, ..Default::default() };
        let step = |sequence: u64| {
            let step = proto::Step { actions: vec![0; 8].into(), snapshot: false };
            proto::Request { sequence, what: Some(request::What::Step(step)) }
        };
        for (what, sequence) in [(request::What::Open(open), 1), (request::What::Reset(proto::Reset::default()), 2)] {
            sender.send(proto::Request { sequence, what: Some(what) }).await.expect("a session");
            replies.message().await.expect("an answer");
        }
        let (mut sent, start) = (0, Instant::now());
        for received in 0..count {
            while sent < count.min(received + CREDITS) {
                sender.send(step(sent as u64 + 3)).await.expect("a session");
                sent += 1;
            }
            let reply = replies.message().await.expect("an answer").and_then(|reply| reply.what);
            assert!(matches!(reply, Some(reply::What::Stepped(stepped)) if stepped.slab.len() >= bytes));
        }
        start.elapsed()
    }));
    duration.expect("a task that ends")
}

/// Actor of a worker, with the job that it repeats.
struct Actor {
    actor: RemoteActor,
    job: RolloutJob<rlox_nn::NamedTensors, Rollout>,
}

impl Actor {
    fn new(address: &str, env: &EnvOptions, spec: &EnvSpec, hidden: &[usize], n_steps: usize) -> Self {
        let policy = PolicyNetworks::mlp(spec, hidden, Activation::Tanh, &mut Pcg64::seed_from(0)).expect("a policy");
        let (config, arch) = (CollectConfig::default(), policy.arch().expect("a known architecture"));
        let rollout_config = RemoteRolloutConfig { n_steps, config, reset_seed: 0, arch };
        let options = ClientOptions::default();
        let actor = RemoteActor::new(&[address], 0, env, &rollout_config, &options).expect("a worker");
        let steps = RolloutBuffer::for_spec(n_steps, env.num_envs, spec, false).expect("memory");
        let ticket = RolloutTicket { slot: 0, number: 0, actor: 0, version: 0, seed: 0 };
        let job = RolloutJob { ticket, weights: policy.tensors().into(), buffer: Rollout::from_buffer(steps) };
        Self { actor, job }
    }

    /// Collects a rollout; the weights are sent if their version is new.
    fn collect(&mut self, version: u64) {
        self.job.ticket.version = version;
        self.actor.collect(&mut self.job, &|| false).expect("a rollout");
    }
}

/// Returns the duration of `count` rollouts of about `bytes` bytes.
fn time_rollouts(address: &str, bytes: usize, count: usize) -> Duration {
    let dim = (bytes / STEPS - TRANSITION_BYTES) / 4;
    let mut actor = Actor::new(address, &load_options(dim), &load_spec(dim), &[1], STEPS);
    actor.collect(1);
    let start = Instant::now();
    (0..count).for_each(|_| actor.collect(1));
    start.elapsed()
}

/// Returns the duration of `count` transfers of `bytes` bytes over TCP from another thread.
fn time_tcp(bytes: usize, count: usize) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let writer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let buffer = vec![1; bytes];
        (0..count).for_each(|_| stream.write_all(&buffer).expect("a reader"));
    });
    let (mut stream, mut buffer) = (TcpStream::connect(address).expect("a writer"), vec![0; bytes]);
    let start = Instant::now();
    (0..count).for_each(|_| stream.read_exact(&mut buffer).expect("a writer"));
    let duration = start.elapsed();
    writer.join().expect("a writer");
    duration
}

/// Returns the sorted durations of `count` steps.
fn time_steps(env: &mut dyn VectorEnv, count: usize) -> Vec<Duration> {
    let n = env.num_envs();
    let mut obs = vec![0.0; n * 4];
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).expect("a reset");
    let (mut reward, mut terminated, mut truncated, actions) =
        (vec![0.0; n], vec![false; n], vec![false; n], vec![1; n]);
    let mut durations = Vec::with_capacity(count);
    for _ in 0..count {
        let out = StepOut {
            obs: &mut obs,
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut [],
        };
        let start = Instant::now();
        env.step(Actions::Discrete(&actions), out).expect("a step");
        durations.push(start.elapsed());
    }
    durations.sort_unstable();
    durations
}

/// Returns the sorted durations of `count` rollouts of one step; if `is_new`, each request has new weights.
fn time_weights(address: &str, width: usize, is_new: bool, count: usize) -> Vec<Duration> {
    let spec = load_spec(8);
    let mut actor = Actor::new(address, &load_options(8), &spec, &[width, width], 1);
    actor.collect(0);
    let time_rollout = |version| {
        let start = Instant::now();
        actor.collect(if is_new { version } else { 0 });
        start.elapsed()
    };
    let mut durations: Vec<_> = (1..=count as u64).map(time_rollout).collect();
    durations.sort_unstable();
    durations
}

/// Benchmarks, by name.
struct Bench {
    worker: Worker,
    /// Approximate number of bytes that a benchmark transfers.
    total_bytes: usize,
}

impl Bench {
    /// Returns the median and the 99th percentile of the seconds of a benchmark; for `ingest`, the mean twice.
    fn measure(&self, name: &str) -> [f64; 2] {
        let parts: Vec<_> = name.split('/').collect();
        let [group, size, variant] = parts[..] else { panic!("name: expected GROUP/SIZE/VARIANT, got {name:?}") };
        let (address, size) = (self.worker.address(), size.parse::<usize>().expect("a number"));
        let count = (self.total_bytes / size).clamp(8, 20_000);
        let mean = |duration: Duration| [duration.as_secs_f64() / count as f64; 2];
        let percentiles = |sorted: Vec<Duration>| {
            [0.5, 0.99].map(|share| sorted[(sorted.len() as f64 * share) as usize].as_secs_f64())
        };
        let env = EnvOptions::new("CartPole-v1", size, 0);
        let num_steps = (self.total_bytes >> 14).clamp(100, 10_000);
        match (group, variant) {
            ("ingest", "grpc") => mean(time_steps_in_advance(&address, size, count)),
            ("ingest", "rollouts") => mean(time_rollouts(&address, size, count)),
            ("ingest", "tcp") => mean(time_tcp(size, count)),
            ("step", "grpc") => percentiles(time_steps(
                &mut RemoteVecEnv::new(&[address], &env, &ClientOptions::default()).expect("a worker"),
                num_steps,
            )),
            ("step", "local") => {
                let (num_envs, seed, autoreset_mode) = (size, Some(0), AutoresetMode::SameStep);
                let options = MakeOptions { num_envs, seed, autoreset_mode, ..Default::default() };
                percentiles(time_steps(envs::make("CartPole-v1", &options).expect("environments").as_mut(), num_steps))
            }
            ("weights", "sent" | "unchanged") => {
                percentiles(time_weights(&address, size, variant == "sent", (num_steps / 20).min(200)))
            }
            _ => panic!("name: expected a benchmark of this file, got {name:?}"),
        }
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> std::io::Result<()> {
    let args: Vec<_> = std::env::args().collect();
    let is_test = args.iter().any(|arg| arg == "--test");
    let (rounds, total_bytes) = if is_test { (1, 1 << 20) } else { (15, 256 << 20) };
    let bench = Bench { worker: worker(), total_bytes };
    let mut out = stdout().lock();
    if let Some(index) = args.iter().position(|arg| arg == "--measure") {
        let [seconds, p99] = bench.measure(&args[index + 1]);
        return writeln!(out, "{}", serde_json::json!({ "seconds": seconds, "p99": p99 }));
    }
    for bytes in [4 * KIB, 64 * KIB, 1024 * KIB] {
        let variants = ["grpc", "rollouts", "tcp"];
        let measure_all = |_| variants.map(|variant| bench.measure(&format!("ingest/{bytes}/{variant}"))[0]);
        let rounds: Vec<_> = (0..rounds).map(measure_all).collect();
        let speed = |variant: usize| bytes as f64 / median(rounds.iter().map(|round| round[variant]).collect()) / 1e6;
        let share = |variant: usize| 100.0 * median(rounds.iter().map(|round| round[2] / round[variant]).collect());
        let (steps, steps_share, rollouts, rollouts_share) = (speed(0), share(0), speed(1), share(1));
        let kib = bytes / KIB;
        writeln!(
            out,
            "ingest of {kib:4} KiB: raw TCP {:6.0} MB/s; steps {steps:6.0}, {steps_share:.0} %; rollouts {rollouts:6.0}, {rollouts_share:.0} %",
            speed(2)
        )?;
    }
    for (group, sizes, variants) in
        [("step", [1, 64, 1024], ["grpc", "local"]), ("weights", [64, 256, 1024], ["sent", "unchanged"])]
    {
        for (size, variant) in sizes.into_iter().flat_map(|size| variants.map(|variant| (size, variant))) {
            let [p50, p99] = bench.measure(&format!("{group}/{size}/{variant}")).map(|seconds| seconds * 1e6);
            writeln!(out, "{group} of {size:4} {variant}: p50 {p50:.1} us, p99 {p99:.1} us")?;
        }
    }
    Ok(())
}
