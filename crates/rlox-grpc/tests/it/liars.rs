//! Servers that are no workers, though they speak the protocol: what they say is checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rlox_core::testing::{Variant, assert_rejects};
use rlox_core::{Actions, Error, ResetOptions, Seeds, StepOut, VectorEnv};
use rlox_grpc::proto::worker_server::{Worker, WorkerServer};
use rlox_grpc::proto::{self, reply, request, space::Kind};
use rlox_grpc::{ClientOptions, EnvOptions, PROTOCOL, RemoteVecEnv};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

type Answer = Arc<dyn Fn(request::What) -> reply::What + Send + Sync>;

/// Answers as it was told to; steps also so many times that nobody asked for, of which it counts what is taken.
struct Liar(Answer, usize, Arc<AtomicUsize>);

#[tonic::async_trait]
impl Worker for Liar {
    type SessionStream = ReceiverStream<Result<proto::Reply, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::Request>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (sender, replies) = tokio::sync::mpsc::channel(4);
        let (mut requests, answer) = (request.into_inner(), Arc::clone(&self.0));
        let (more, taken) = (self.1, Arc::clone(&self.2));
        tokio::spawn(async move {
            while let Some(Ok(proto::Request { sequence, what: Some(what) })) = requests.next().await {
                let more = if matches!(what, request::What::Step(_)) { more } else { 0 };
                let reply = proto::Reply { sequence, what: Some(answer(what)) };
                let _ = sender.send(Ok(reply.clone())).await;
                for _ in 0..more {
                    if sender.send(Ok(reply.clone())).await.is_err() {
                        return;
                    }
                    taken.fetch_add(1, Relaxed);
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

/// One CartPole without a limit, told by hand.
fn opened() -> proto::Opened {
    let bound = |x: f32| x.to_le_bytes().repeat(4).into();
    let (kind, low, high) = (Kind::Box.into(), bound(-1.0), bound(1.0));
    proto::Opened {
        credits: 4,
        env_id: "CartPole-v1".into(),
        observation: Some(proto::Space { kind, shape: vec![4], low, high, ..proto::Space::default() }),
        action: Some(proto::Space { kind: Kind::Discrete.into(), n: 2, ..proto::Space::default() }),
        max_message_bytes: 1 << 20,
        ..proto::Opened::default()
    }
}

fn stepped(bytes: usize, finals: u32) -> reply::What {
    reply::What::Stepped(proto::Stepped { slab: vec![0; bytes].into(), finals, ..proto::Stepped::default() })
}

fn served(liar: Liar) -> (Runtime, String) {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder().add_service(WorkerServer::new(liar));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (runtime, address)
}

/// The error of opening, resetting and stepping one environment there.
fn tried(first: proto::Opened, reset: reply::What, step: reply::What) -> rlox_core::Result<()> {
    let answer = move |what| match what {
        request::What::Open(open) => {
            let proto::Open { protocol, .. } = open;
            assert_eq!(protocol, PROTOCOL);
            reply::What::Opened(first.clone())
        }
        request::What::Reset(_) => reset.clone(),
        _ => step.clone(),
    };
    let (runtime, address) = served(Liar(Arc::new(answer), 0, Arc::default()));
    let options = ClientOptions { recovery_timeout: Duration::from_millis(300), ..ClientOptions::default() };
    let result = (|| {
        let mut env = RemoteVecEnv::new(&[&address], &EnvOptions::new("CartPole-v1", 1, 0), &options)?;
        let mut obs = [0.0; 4];
        env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs)?;
        let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
        let (over, cut) = (&mut terminated, &mut truncated);
        let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
        env.step(Actions::Discrete(&[0]), out)
    })();
    runtime.shutdown_background();
    result
}

/// Bytes of a reply to a step of one environment without masks.
const STEP: usize = 16 + 8 + 2;

#[test]
fn what_fits_is_believed() {
    tried(opened(), stepped(16, 0), stepped(STEP, 0)).unwrap();
}

#[test]
fn spaces_that_cannot_be_are_refused() {
    let rejects = |argument, change: fn(&mut proto::Opened)| {
        let mut first = opened();
        change(&mut first);
        assert_rejects(tried(first, stepped(16, 0), stepped(STEP, 0)), Error::Space, argument)
    };
    let masks = rejects("action masks", |first| first.mask = 7);
    assert_eq!((&masks.expected[..], &masks.got[..]), ("no masks, or 2 flags", "7"));
    rejects("action space", |first| first.action = None);
    rejects("observation space", |first| first.observation.as_mut().unwrap().shape = vec![u64::MAX, 2]);
    rejects("observation space", |first| first.observation.as_mut().unwrap().kind = 99);
    rejects("action space", |first| first.action.as_mut().unwrap().n = -1);
    rejects("action space", |first| *first = proto::Opened::default());
}

#[test]
fn replies_of_other_sizes_are_refused() {
    let rejects = |variant: Variant, argument, reset, step, got: &str| {
        assert_eq!(assert_rejects(tried(opened(), reset, step), variant, argument).got, got, "{argument}");
    };
    for bytes in [0, 15, 17, STEP] {
        let got = bytes.to_string();
        rejects(Error::Shape, "a worker's reply", stepped(bytes, 0), stepped(STEP, 0), &got);
    }
    for bytes in [16, STEP - 1, STEP + 1] {
        let got = bytes.to_string();
        rejects(Error::Shape, "a worker's reply", stepped(16, 0), stepped(bytes, 0), &got);
    }
    rejects(Error::Corrupt, "last observations", stepped(16, 0), stepped(STEP + 16, 1), "1");
    let many = proto::Stepped { slab: vec![0; STEP].into(), episodes: u32::MAX, ..proto::Stepped::default() };
    let got = STEP.to_string();
    rejects(Error::Shape, "a worker's reply", stepped(16, 0), reply::What::Stepped(many), &got);
    rejects(Error::Config, "reply", reply::What::Done(proto::Done {}), stepped(STEP, 0), "another reply");
}

#[test]
fn answers_that_nobody_asked_for_end_the_session() {
    const MORE: usize = 1_000_000;
    let (taken, first) = (Arc::new(AtomicUsize::new(0)), opened());
    let answer = move |what| match what {
        request::What::Open(_) => reply::What::Opened(first.clone()),
        request::What::Reset(_) => stepped(16, 0),
        _ => stepped(STEP, 0),
    };
    let (runtime, address) = served(Liar(Arc::new(answer), MORE, Arc::clone(&taken)));
    let mut env =
        RemoteVecEnv::new(&[&address], &EnvOptions::new("CartPole-v1", 1, 0), &ClientOptions::default()).unwrap();
    let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0; 4], [0.0], [false], [false]);
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).unwrap();
    let (over, cut) = (&mut terminated, &mut truncated);
    let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
    env.step(Actions::Discrete(&[0]), out).unwrap();
    // Until nothing more is taken.
    let mut before = usize::MAX;
    while before != taken.load(Relaxed) {
        before = taken.load(Relaxed);
        std::thread::sleep(Duration::from_millis(300));
    }
    // What fits in the stream's window had been sent by then.
    assert!(before < MORE / 2, "{before}");
    drop(env);
    runtime.shutdown_background();
}

#[test]
fn rollouts_of_another_version_are_refused() {
    use rlox_core::{Pcg64, RolloutBuffer, RolloutTicket};
    use rlox_grpc::{RemoteActor, RemoteRolloutConfig};
    use rlox_nn::{Activation, ActorCritic, PolicyNetworks, train::CollectConfig};

    let first = opened();
    let rollout = proto::Rollout { version: 9, ..proto::Rollout::default() };
    let answer = move |what| match what {
        request::What::Open(_) => reply::What::Opened(first.clone()),
        _ => reply::What::Rollout(rollout.clone()),
    };
    let (runtime, address) = served(Liar(Arc::new(answer), 0, Arc::default()));
    let how = CollectConfig { gamma: 0.99, gae_lambda: 0.95, sde_sample_freq: 0 };
    let spec = rlox_core::EnvSpec {
        id: "CartPole-v1".into(),
        observation: rlox_core::Space::uniform_box(-1.0, 1.0, &[4]),
        action: rlox_core::Space::discrete(2),
        max_episode_steps: None,
    };
    let policy = PolicyNetworks::mlp(&spec, &[4], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let settings = RemoteRolloutConfig { n_steps: 3, config: how, reset_seed: 0, arch: policy.arch().unwrap() };
    let (env, options) = (EnvOptions::new("CartPole-v1", 1, 0), ClientOptions::default());
    let mut actor = RemoteActor::new(&[&address], 0, &env, &settings, &options).unwrap();
    let mut steps = RolloutBuffer::for_spec(3, 1, &spec, false).unwrap();
    let turn = RolloutTicket { slot: 0, number: 0, actor: 0, version: 1, seed: 0 };
    let (returns, lengths) = (&mut Vec::new(), &mut Vec::new());
    let result = actor.collect_into(turn, &policy.tensors(), &mut steps, returns, lengths, &|| false);
    assert_eq!(assert_rejects(result, Error::Corrupt, "rollout").got, "one of version 9");
    runtime.shutdown_background();
}
