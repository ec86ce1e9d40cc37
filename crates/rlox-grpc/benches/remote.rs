//! What crosses the loopback: observations of a worker's steps as a share of what raw TCP carries, and how long a step of
//! remote environments takes. `cargo bench -p rlox-grpc`; with `--test` briefly.

use std::io::{Read, Write, stdout};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rlox_core::envs::MakeOptions;
use rlox_core::{Actions, Env, EnvSpec, Pcg64, ResetOptions, Seeds, Space, Step, StepOut, VectorEnv};
use rlox_grpc::v1::{self, reply, request, worker_client::WorkerClient};
use rlox_grpc::{ClientOptions, EnvOptions, Limits, PROTOCOL, RemoteVecEnv, Worker, WorkerOptions};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

const KIB: usize = 1024;

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

fn worker() -> Worker {
    let make = |id: &str, options: &MakeOptions<'_>| {
        if id != "Load-v0" {
            return rlox_core::envs::make(id, options);
        }
        let observation = Space::uniform_box(-1.0, 1.0, &[options.argument(&["dim"], "dim", 1.0)? as usize]);
        options.copies_of(Load(EnvSpec {
            id: id.into(),
            observation,
            action: Space::discrete(2),
            max_episode_steps: None,
        }))
    };
    let limits = Limits { max_message_bytes: 64 << 20, credits: CREDITS as u32, ..Limits::default() };
    Worker::start(WorkerOptions { make: Arc::new(make), limits, ..WorkerOptions::default() }).expect("a worker")
}

const CREDITS: usize = 8;

/// Bytes a second of replies of so many bytes, as many asked for in advance as there are credits.
fn remote(address: &str, bytes: usize, count: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let handle = runtime.handle().clone();
    let address = address.to_owned();
    let took = runtime.block_on(handle.spawn(async move {
        let endpoint = Endpoint::from_shared(address).expect("an address").tcp_nodelay(true);
        let endpoint = endpoint.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20);
        let channel = endpoint.max_frame_size(1 << 18).connect().await.expect("a connection");
        let mut client = WorkerClient::new(channel).max_decoding_message_size(1 << 30);
        let (sender, receiver) = mpsc::channel(64);
        let mut replies = client.session(ReceiverStream::new(receiver)).await.expect("a session").into_inner();
        let dim = (bytes / 4) as f64;
        let (env_id, arguments) = ("Load-v0".into(), [&b"\x03dim"[..], &dim.to_le_bytes()].concat().into());
        let open = v1::Open { protocol: PROTOCOL, env_id, num_envs: 1, arguments, ..v1::Open::default() };
        let step = |sequence: u64| {
            let step = v1::Step { actions: vec![0; 8].into(), snapshot: false };
            v1::Request { sequence, what: Some(request::What::Step(step)) }
        };
        for what in [request::What::Open(open), request::What::Reset(v1::Reset::default())] {
            let sequence = if matches!(what, request::What::Open(_)) { 1 } else { 2 };
            sender.send(v1::Request { sequence, what: Some(what) }).await.expect("a session");
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
    (bytes * count) as f64 / took.expect("a task that ends").as_secs_f64()
}

/// Bytes a second that a thread writes and another one reads.
fn raw(bytes: usize, count: usize) -> f64 {
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
    (bytes * count) as f64 / took.as_secs_f64()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// How long steps take, sorted.
fn steps(address: &str, num_envs: usize, count: usize) -> Vec<Duration> {
    let options = ClientOptions::default();
    let env = EnvOptions::new("CartPole-v1", num_envs, 0);
    let mut env = RemoteVecEnv::new(&[address], &env, &options).expect("a worker");
    let mut obs = vec![0.0; num_envs * 4];
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).expect("a reset");
    let (mut reward, mut terminated) = (vec![0.0; num_envs], vec![false; num_envs]);
    let (mut truncated, actions) = (vec![false; num_envs], vec![1; num_envs]);
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

fn main() -> std::io::Result<()> {
    let brief = std::env::args().any(|word| word == "--test");
    let (rounds, total) = if brief { (1, 8 << 20) } else { (15, 256 << 20) };
    let worker = worker();
    let mut out = stdout().lock();
    for bytes in [4 * KIB, 64 * KIB, 1024 * KIB] {
        let count = (total / bytes).min(20_000);
        let (mut here, mut there, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            here.push(raw(bytes, count));
            there.push(remote(&worker.address(), bytes, count));
            shares.push(there[there.len() - 1] / here[here.len() - 1]);
        }
        let [here, there] = [here, there].map(|speeds| median(speeds) / 1e6);
        let share = median(shares) * 100.0;
        writeln!(out, "ingest {:4} KiB: {there:6.0} MB/s, raw TCP {here:6.0} MB/s: {share:.0} %", bytes / KIB)?;
    }
    for num_envs in [1, 64, 1024] {
        let took = steps(&worker.address(), num_envs, if brief { 100 } else { 10_000 });
        let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        writeln!(out, "step of {num_envs:4} environments: p50 {:.0} us, p99 {:.0} us", at(0.5), at(0.99))?;
    }
    Ok(())
}
