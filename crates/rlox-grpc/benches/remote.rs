//! What crosses the loopback. `cargo bench -p rlox-grpc` prints a table, with `--test` briefly; `--measure NAME`
//! measures one of them once and prints numbers as JSON, for `benches/python/bench_distributed.py`.
//!
//! - `ingest/BYTES/grpc`: observations of so many bytes, steps that are asked for as far ahead as credits allow;
//!   `ingest/BYTES/rollouts`: rollouts of so many bytes, which a worker collects one after the other;
//!   `ingest/BYTES/tcp`: the same bytes from a socket, and nothing else.
//! - `step/ENVS/grpc`, `step/ENVS/here`: a step of so many environments.
//! - `weights/WIDTH/sent`, `weights/WIDTH/kept`: a rollout of one step, with and without weights of WIDTH x WIDTH
//!   networks.

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
/// Steps of a rollout, and bytes of one beside its observation.
const STEPS: usize = 16;
const BESIDE: usize = 29;

/// Observations of some size, which cost nothing but their copies.
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

fn load(dim: usize) -> EnvSpec {
    let observation = Space::uniform_box(-1.0, 1.0, &[dim]);
    EnvSpec { id: "Load-v0".into(), observation, action: Space::discrete(2), max_episode_steps: None }
}

fn worker() -> Worker {
    let make = |id: &str, options: &MakeOptions<'_>| {
        if id != "Load-v0" {
            return envs::make(id, options);
        }
        options.build_vec_env(Load(load(options.argument(&["dim"], "dim", 1.0)? as usize)))
    };
    let limits = Limits { max_message_bytes: 64 << 20, credits: CREDITS as u32, ..Limits::default() };
    Worker::start(WorkerOptions { make: Arc::new(make), limits, ..WorkerOptions::default() }).expect("a worker")
}

fn loads(dim: usize) -> EnvOptions {
    EnvOptions { arguments: vec![("dim".into(), dim as f64)], ..EnvOptions::new("Load-v0", 1, 0) }
}

/// How long steps of so many bytes take, as many asked for in advance as there are credits.
fn asked_ahead(address: &str, bytes: usize, count: usize) -> Duration {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let (handle, address) = (runtime.handle().clone(), address.to_owned());
    let took = runtime.block_on(handle.spawn(async move {
        let endpoint = Endpoint::from_shared(address).expect("an address").tcp_nodelay(true);
        let endpoint = endpoint.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20);
        let channel = endpoint.max_frame_size(1 << 18).connect().await.expect("a connection");
        let mut client = WorkerClient::new(channel).max_decoding_message_size(1 << 30);
        let (sender, receiver) = mpsc::channel(64);
        let mut replies = client.session(ReceiverStream::new(receiver)).await.expect("a session").into_inner();
        // As Open has arguments: the name's length, the name, the number.
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
            assert!(matches!(reply, Some(reply::What::Stepped(said)) if said.slab.len() >= bytes));
        }
        start.elapsed()
    }));
    took.expect("a task that ends")
}

/// A worker's actor, the rollout that it fills, and the policy that acts.
struct Actor {
    actor: RemoteActor,
    begun: Option<RolloutJob<rlox_nn::NamedTensors, Rollout>>,
}

impl Actor {
    fn new(address: &str, env: &EnvOptions, spec: &EnvSpec, hidden: &[usize], n_steps: usize) -> Self {
        let policy = PolicyNetworks::mlp(spec, hidden, Activation::Tanh, &mut Pcg64::seed_from(0)).expect("a policy");
        let how = CollectConfig::default();
        let settings =
            RemoteRolloutConfig { n_steps, config: how, reset_seed: 0, arch: policy.arch().expect("a known one") };
        let options = ClientOptions::default();
        let actor = RemoteActor::new(&[address], 0, env, &settings, &options).expect("a worker");
        let steps = RolloutBuffer::for_spec(n_steps, env.num_envs, spec, false).expect("memory");
        let turn = RolloutTicket { slot: 0, number: 0, actor: 0, version: 0, seed: 0 };
        let begun = RolloutJob { ticket: turn, weights: policy.tensors().into(), buffer: Rollout::from_buffer(steps) };
        Self { actor, begun: Some(begun) }
    }

    /// A rollout, with weights where their version is new.
    fn collect(&mut self, version: u64) {
        let mut begun = self.begun.take().expect("one at a time");
        begun.ticket.version = version;
        self.actor.collect(&mut begun, &|| false).expect("a rollout");
        self.begun = Some(begun);
    }
}

/// How long rollouts of about so many bytes take.
fn rollouts(address: &str, bytes: usize, count: usize) -> Duration {
    let dim = (bytes / STEPS - BESIDE) / 4;
    let mut actor = Actor::new(address, &loads(dim), &load(dim), &[1], STEPS);
    actor.collect(1);
    let start = Instant::now();
    (0..count).for_each(|_| actor.collect(1));
    start.elapsed()
}

/// How long so many bytes take from a thread that writes to one that reads.
fn raw(bytes: usize, count: usize) -> Duration {
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
    let took = start.elapsed();
    writer.join().expect("a writer");
    took
}

/// How long steps take, sorted.
fn steps(env: &mut dyn VectorEnv, count: usize) -> Vec<Duration> {
    let n = env.num_envs();
    let mut obs = vec![0.0; n * 4];
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).expect("a reset");
    let (mut reward, mut terminated, mut truncated, actions) =
        (vec![0.0; n], vec![false; n], vec![false; n], vec![1; n]);
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let (over, cut) = (&mut terminated, &mut truncated);
        let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
        let start = Instant::now();
        env.step(Actions::Discrete(&actions), out).expect("a step");
        took.push(start.elapsed());
    }
    took.sort_unstable();
    took
}

/// How long rollouts of one step take, sorted; `sent` says whether each has new weights.
fn weights(address: &str, width: usize, sent: bool, count: usize) -> Vec<Duration> {
    let spec = load(8);
    let mut actor = Actor::new(address, &loads(8), &spec, &[width, width], 1);
    actor.collect(0);
    let each = |version| {
        let start = Instant::now();
        actor.collect(if sent { version } else { 0 });
        start.elapsed()
    };
    let mut took: Vec<_> = (1..=count as u64).map(each).collect();
    took.sort_unstable();
    took
}

/// What there is to be measured, by its name.
struct Bench {
    worker: Worker,
    /// Of what is sent; a part of it briefly.
    total: usize,
}

impl Bench {
    /// Seconds of one of what is measured, for most and for all but one in a hundred.
    fn measure(&self, name: &str) -> [f64; 2] {
        let parts: Vec<_> = name.split('/').collect();
        let [what, size, side] = parts[..] else { panic!("{name:?} is no name such as step/64/grpc") };
        let (address, size) = (self.worker.address(), size.parse::<usize>().expect("a number"));
        let count = (self.total / size).clamp(8, 20_000);
        let mean = |took: Duration| [took.as_secs_f64() / count as f64; 2];
        let most =
            |took: Vec<Duration>| [0.5, 0.99].map(|share| took[(took.len() as f64 * share) as usize].as_secs_f64());
        let (env, some) = (EnvOptions::new("CartPole-v1", size, 0), (self.total >> 14).clamp(100, 10_000));
        match (what, side) {
            ("ingest", "grpc") => mean(asked_ahead(&address, size, count)),
            ("ingest", "rollouts") => mean(rollouts(&address, size, count)),
            ("ingest", "tcp") => mean(raw(size, count)),
            ("step", "grpc") => most(steps(
                &mut RemoteVecEnv::new(&[address], &env, &ClientOptions::default()).expect("a worker"),
                some,
            )),
            ("step", "here") => {
                let (num_envs, seed, autoreset_mode) = (size, Some(0), AutoresetMode::SameStep);
                let options = MakeOptions { num_envs, seed, autoreset_mode, ..Default::default() };
                most(steps(envs::make("CartPole-v1", &options).expect("environments").as_mut(), some))
            }
            ("weights", "sent" | "kept") => most(weights(&address, size, side == "sent", (some / 20).min(200))),
            _ => panic!("{name:?} is not measured"),
        }
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> std::io::Result<()> {
    let words: Vec<_> = std::env::args().collect();
    let brief = words.iter().any(|word| word == "--test");
    let (rounds, total) = if brief { (1, 1 << 20) } else { (15, 256 << 20) };
    let bench = Bench { worker: worker(), total };
    let mut out = stdout().lock();
    if let Some(at) = words.iter().position(|word| word == "--measure") {
        let [seconds, p99] = bench.measure(&words[at + 1]);
        return writeln!(out, "{}", serde_json::json!({ "seconds": seconds, "p99": p99 }));
    }
    for bytes in [4 * KIB, 64 * KIB, 1024 * KIB] {
        let sides = ["grpc", "rollouts", "tcp"];
        let rounds: Vec<_> =
            (0..rounds).map(|_| sides.map(|side| bench.measure(&format!("ingest/{bytes}/{side}"))[0])).collect();
        let speed = |side: usize| bytes as f64 / median(rounds.iter().map(|round| round[side]).collect()) / 1e6;
        let share = |side: usize| 100.0 * median(rounds.iter().map(|round| round[2] / round[side]).collect());
        let (ahead, share_ahead, whole, share_whole) = (speed(0), share(0), speed(1), share(1));
        let kib = bytes / KIB;
        writeln!(
            out,
            "ingest of {kib:4} KiB: raw TCP {:6.0} MB/s; steps {ahead:6.0}, {share_ahead:.0} %; rollouts {whole:6.0}, {share_whole:.0} %",
            speed(2)
        )?;
    }
    for (what, sizes, sides) in
        [("step", [1, 64, 1024], ["grpc", "here"]), ("weights", [64, 256, 1024], ["sent", "kept"])]
    {
        for (size, side) in sizes.into_iter().flat_map(|size| sides.map(|side| (size, side))) {
            let [most, all] = bench.measure(&format!("{what}/{size}/{side}")).map(|seconds| seconds * 1e6);
            writeln!(out, "{what} of {size:4} {side}: p50 {most:.1} us, p99 {all:.1} us")?;
        }
    }
    Ok(())
}
