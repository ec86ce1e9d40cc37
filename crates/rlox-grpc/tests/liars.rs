//! Servers that are no workers, though they speak the protocol: what they say is checked.

use std::sync::Arc;
use std::time::Duration;

use rlox_core::{Actions, ResetOptions, Seeds, StepOut, VectorEnv};
use rlox_grpc::v1::worker_server::{Worker, WorkerServer};
use rlox_grpc::v1::{self, reply, request, space::Kind};
use rlox_grpc::{ClientOptions, EnvOptions, PROTOCOL, RemoteVecEnv};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

type Answer = Arc<dyn Fn(request::What) -> reply::What + Send + Sync>;

/// Answers as it was told to.
struct Liar(Answer);

#[tonic::async_trait]
impl Worker for Liar {
    type SessionStream = ReceiverStream<Result<v1::Reply, Status>>;

    async fn session(&self, request: Request<Streaming<v1::Request>>) -> Result<Response<Self::SessionStream>, Status> {
        let (sender, replies) = tokio::sync::mpsc::channel(4);
        let (mut requests, answer) = (request.into_inner(), Arc::clone(&self.0));
        tokio::spawn(async move {
            while let Some(Ok(v1::Request { sequence, what: Some(what) })) = requests.next().await {
                let _ = sender.send(Ok(v1::Reply { sequence, what: Some(answer(what)) })).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

/// One CartPole without a limit, told by hand.
fn opened() -> v1::Opened {
    let bound = |x: f32| x.to_le_bytes().repeat(4).into();
    let (kind, low, high) = (Kind::Box.into(), bound(-1.0), bound(1.0));
    v1::Opened {
        credits: 4,
        env_id: "CartPole-v1".into(),
        observation: Some(v1::Space { kind, shape: vec![4], low, high, ..v1::Space::default() }),
        action: Some(v1::Space { kind: Kind::Discrete.into(), n: 2, ..v1::Space::default() }),
        max_message_bytes: 1 << 20,
        ..v1::Opened::default()
    }
}

fn stepped(bytes: usize, finals: u32) -> reply::What {
    reply::What::Stepped(v1::Stepped { slab: vec![0; bytes].into(), finals, ..v1::Stepped::default() })
}

/// The error of opening, resetting and stepping one environment there.
fn error(first: v1::Opened, reset: reply::What, step: reply::What) -> Option<String> {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let liar = Liar(Arc::new(move |what| match what {
        request::What::Open(open) => {
            assert_eq!(open.protocol, PROTOCOL);
            reply::What::Opened(first.clone())
        }
        request::What::Reset(_) => reset.clone(),
        _ => step.clone(),
    }));
    let server = tonic::transport::Server::builder().add_service(WorkerServer::new(liar));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let options = ClientOptions { recovery_timeout: Duration::from_millis(300), ..ClientOptions::default() };
    let tried = (|| {
        let mut env = RemoteVecEnv::new(&[&address], &EnvOptions::new("CartPole-v1", 1, 0), &options)?;
        let mut obs = [0.0; 4];
        env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs)?;
        let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
        let (over, cut) = (&mut terminated, &mut truncated);
        let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
        env.step(Actions::Discrete(&[0]), out)
    })();
    runtime.shutdown_background();
    tried.err().map(|error| error.to_string())
}

/// Bytes of a reply to a step of one environment without masks.
const STEP: usize = 16 + 8 + 2;

#[test]
fn what_fits_is_believed() {
    assert_eq!(error(opened(), stepped(16, 0), stepped(STEP, 0)), None);
}

#[test]
fn spaces_that_cannot_be_are_refused() {
    let with = |change: fn(&mut v1::Opened)| {
        let mut told = opened();
        change(&mut told);
        error(told, stepped(16, 0), stepped(STEP, 0)).unwrap()
    };
    assert!(with(|told| told.mask = 7).contains("action masks: expected none, or one for each of 2 choices, got 7"));
    assert!(with(|told| told.action = None).starts_with("action space"));
    assert!(with(|told| told.observation.as_mut().unwrap().shape = vec![u64::MAX, 2]).starts_with("observation space"));
    assert!(with(|told| told.observation.as_mut().unwrap().kind = 99).starts_with("observation space"));
    assert!(with(|told| told.action.as_mut().unwrap().n = -1).starts_with("action space"));
    assert!(with(|told| *told = v1::Opened::default()).contains("action space"));
}

#[test]
fn replies_of_other_sizes_are_refused() {
    for bytes in [0, 15, 17, STEP] {
        let said = error(opened(), stepped(bytes, 0), stepped(STEP, 0)).unwrap();
        assert!(said.contains("a worker's reply: expected") && said.contains(&bytes.to_string()), "{said}");
    }
    for bytes in [16, STEP - 1, STEP + 1] {
        assert!(error(opened(), stepped(16, 0), stepped(bytes, 0)).unwrap().contains("a worker's reply"));
    }
    let finals = error(opened(), stepped(16, 0), stepped(STEP + 16, 1)).unwrap();
    assert!(finals.contains("last observations: expected 0, of the episodes that ended, got 1"), "{finals}");
    let many = v1::Stepped { slab: vec![0; STEP].into(), episodes: u32::MAX, ..v1::Stepped::default() };
    assert!(error(opened(), stepped(16, 0), reply::What::Stepped(many)).unwrap().contains("a worker's reply"));
    let other = error(opened(), reply::What::Done(v1::Done {}), stepped(STEP, 0)).unwrap();
    assert!(other.contains("reply: expected observations, got another answer"), "{other}");
}
