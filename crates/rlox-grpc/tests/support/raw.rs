//! A client that sends any messages of the protocol.

use std::time::Duration;

use rlox_grpc::PROTOCOL;
use rlox_grpc::proto::{self, reply, request, worker_client::WorkerClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub(crate) async fn channel(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
    endpoint.initial_stream_window_size(1 << 24).connect().await.unwrap()
}

pub(crate) fn open() -> proto::Open {
    let (env_id, autoreset_mode) = ("CartPole-v1".into(), proto::AutoresetMode::SameStep.into());
    proto::Open { protocol: PROTOCOL, env_id, num_envs: 1, autoreset_mode, ..proto::Open::default() }
}

pub(crate) type Session = (mpsc::Sender<proto::Request>, Streaming<proto::Reply>);

pub(crate) async fn session(channel: &Channel) -> Result<Session, Status> {
    let (sender, receiver) = mpsc::channel(2048);
    let mut client = WorkerClient::new(channel.clone()).max_decoding_message_size(1 << 30);
    Ok((sender, client.session(ReceiverStream::new(receiver)).await?.into_inner()))
}

pub(crate) fn request(sequence: u64, what: request::What) -> proto::Request {
    proto::Request { sequence, what: Some(what) }
}

/// Sends all requests at once; returns the replies, or the status that ended the session.
pub(crate) fn end(address: &str, requests: Vec<proto::Request>) -> Result<Vec<reply::What>, Status> {
    runtime().block_on(async {
        let (sender, mut replies) = session(&channel(address).await).await?;
        let count = requests.len();
        for one in requests {
            // The session may have ended.
            let _ = sender.send(one).await;
        }
        let mut replies_received = Vec::new();
        while replies_received.len() < count {
            let reply = tokio::time::timeout(Duration::from_secs(5), replies.message()).await.unwrap()?;
            let Some(reply) = reply else { break };
            replies_received.extend(reply.what);
        }
        Ok(replies_received)
    })
}

/// Sends each request after the reply to the previous one; returns the replies.
pub(crate) fn converse(address: &str, what: Vec<request::What>) -> Result<Vec<reply::What>, Status> {
    runtime().block_on(async {
        let (sender, mut replies) = session(&channel(address).await).await?;
        let mut replies_received = Vec::new();
        for (what, sequence) in what.into_iter().zip(1..) {
            sender.send(request(sequence, what)).await.unwrap();
            let reply = tokio::time::timeout(Duration::from_secs(5), replies.message()).await.unwrap()?;
            replies_received.extend(reply.unwrap().what);
        }
        Ok(replies_received)
    })
}

pub(crate) fn failure(reply: &reply::What) -> &proto::Failure {
    let reply::What::Failure(failure) = reply else { panic!("{reply:?}") };
    failure
}

pub(crate) fn networks(activation: &str, widths: &[u32]) -> proto::Policy {
    let hidden = widths.iter().flat_map(|width| width.to_le_bytes()).collect();
    proto::Policy { activation: activation.into(), n_steps: 1, hidden, ..proto::Policy::default() }
}

pub(crate) fn step(actions: &[u8]) -> request::What {
    request::What::Step(proto::Step { actions: actions.to_vec().into(), snapshot: false })
}

pub(crate) fn snapshot() -> request::What {
    request::What::Snapshot(proto::Snapshot {})
}
