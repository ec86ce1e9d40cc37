//! The client rejects invalid replies of servers that are not workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{Actions, Error, ResetOptions, Seeds, StepOut, VectorEnv};
use rlox_grpc::proto::worker_server::{Worker, WorkerServer};
use rlox_grpc::proto::{self, reply, request, space::Kind};
use rlox_grpc::{ClientOptions, EnvOptions, PROTOCOL, RemoteVecEnv};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

type Respond = Arc<dyn Fn(request::What) -> reply::What + Send + Sync>;

/// Fake worker: a function that returns replies, the number of unrequested replies after a step,
/// and the number of those that were sent.
struct FakeWorker(Respond, usize, Arc<AtomicUsize>);

#[tonic::async_trait]
impl Worker for FakeWorker {
    type SessionStream = ReceiverStream<Result<proto::Reply, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<proto::Request>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (sender, replies) = tokio::sync::mpsc::channel(4);
        let (mut requests, respond) = (request.into_inner(), Arc::clone(&self.0));
        let (extra, sent) = (self.1, Arc::clone(&self.2));
        tokio::spawn(async move {
            while let Some(Ok(proto::Request { sequence, what: Some(what) })) = requests.next().await {
                let extra = if matches!(what, request::What::Step(_)) { extra } else { 0 };
                let reply = proto::Reply { sequence, what: Some(respond(what)) };
                let _ = sender.send(Ok(reply.clone())).await;
                for _ in 0..extra {
                    if sender.send(Ok(reply.clone())).await.is_err() {
                        return;
                    }
                    sent.fetch_add(1, Relaxed);
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

/// Returns the reply to `Open` for a CartPole environment without a time limit.
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

fn serve(fake: FakeWorker) -> (Runtime, String) {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder().add_service(WorkerServer::new(fake));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (runtime, address)
}

/// Opens, resets and steps one environment of a fake worker.
fn reset_and_step(first: proto::Opened, reset: reply::What, step: reply::What) -> rlox_core::Result<()> {
    let respond = move |what| match what {
        request::What::Open(open) => {
            let proto::Open { protocol, .. } = open;
            assert_eq!(protocol, PROTOCOL);
            reply::What::Opened(first.clone())
        }
        request::What::Reset(_) => reset.clone(),
        _ => step.clone(),
    };
    let (runtime, address) = serve(FakeWorker(Arc::new(respond), 0, Arc::default()));
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

/// Number of bytes of the reply to a step of one environment without masks.
const STEP: usize = 16 + 8 + 2;

#[test]
fn valid_replies_are_accepted() {
    reset_and_step(opened(), stepped(16, 0), stepped(STEP, 0)).unwrap();
}

#[test]
fn invalid_spaces_are_rejected() {
    let rejects = |argument, change: fn(&mut proto::Opened)| {
        let mut first = opened();
        change(&mut first);
        assert_rejects(reset_and_step(first, stepped(16, 0), stepped(STEP, 0)), Error::Space, argument)
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
fn replies_of_wrong_sizes_are_rejected() {
    let rejects = |variant: Variant, argument, reset, step, got: &str| {
        assert_eq!(assert_rejects(reset_and_step(opened(), reset, step), variant, argument).got, got, "{argument}");
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
fn unrequested_replies_end_the_session() {
    const EXTRA: usize = 1_000_000;
    let (sent, first) = (Arc::new(AtomicUsize::new(0)), opened());
    let respond = move |what| match what {
        request::What::Open(_) => reply::What::Opened(first.clone()),
        request::What::Reset(_) => stepped(16, 0),
        _ => stepped(STEP, 0),
    };
    let (runtime, address) = serve(FakeWorker(Arc::new(respond), EXTRA, Arc::clone(&sent)));
    let mut env =
        RemoteVecEnv::new(&[&address], &EnvOptions::new("CartPole-v1", 1, 0), &ClientOptions::default()).unwrap();
    let (mut obs, mut reward, mut terminated, mut truncated) = ([0.0; 4], [0.0], [false], [false]);
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).unwrap();
    let (over, cut) = (&mut terminated, &mut truncated);
    let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
    env.step(Actions::Discrete(&[0]), out).unwrap();
    // The loop waits until the worker sends no more replies.
    let mut before = usize::MAX;
    while before != sent.load(Relaxed) {
        before = sent.load(Relaxed);
        std::thread::sleep(Duration::from_millis(300));
    }
    // The flow-control window of the stream limits the replies that are sent before the session
    // ends.
    assert!(before < EXTRA / 2, "{before}");
    drop(env);
    runtime.shutdown_background();
}

#[test]
fn rollouts_of_another_version_are_rejected() {
    use rlox_core::{Pcg64, RolloutBuffer, pipeline::RolloutTicket};
    use rlox_grpc::{RemoteActor, RemoteRolloutConfig};
    use rlox_nn::{Activation, ActorCritic, PolicyNetworks, train::CollectConfig};

    let first = opened();
    let rollout = proto::Rollout { version: 9, ..proto::Rollout::default() };
    let respond = move |what| match what {
        request::What::Open(_) => reply::What::Opened(first.clone()),
        _ => reply::What::Rollout(rollout.clone()),
    };
    let (runtime, address) = serve(FakeWorker(Arc::new(respond), 0, Arc::default()));
    let collect_config = CollectConfig::default();
    let spec = rlox_core::EnvSpec {
        id: "CartPole-v1".into(),
        observation: rlox_core::Space::uniform_box(-1.0, 1.0, &[4]),
        action: rlox_core::Space::discrete(2),
        max_episode_steps: None,
    };
    let policy = PolicyNetworks::mlp(&spec, &[4], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let settings =
        RemoteRolloutConfig { n_steps: 3, config: collect_config, reset_seed: 0, arch: policy.arch().unwrap() };
    let (env, options) = (EnvOptions::new("CartPole-v1", 1, 0), ClientOptions::default());
    let mut actor = RemoteActor::new(&[&address], 0, &env, &settings, &options).unwrap();
    let mut steps = RolloutBuffer::for_spec(3, 1, &spec, false).unwrap();
    let ticket = RolloutTicket { slot: 0, number: 0, actor: 0, version: 1, seed: 0 };
    let (returns, lengths) = (&mut Vec::new(), &mut Vec::new());
    let result = actor.collect_into(ticket, &policy.tensors(), &mut steps, returns, lengths, &|| false);
    assert_eq!(assert_rejects(result, Error::Corrupt, "rollout").got, "a rollout of version 9");
    runtime.shutdown_background();
}
