//! Invalid requests are rejected by an error that states the reason, and change nothing.

use std::sync::Arc;

use crate::support::raw::{converse, end, failure, networks, open, request, snapshot, step};
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{Env, EnvSpec, Pcg64, ResetOptions, Space, Step, VectorEnv, error::check_len};
use rlox_grpc::proto::{self, reply, request};
use rlox_grpc::{Limits, Worker, WorkerOptions};
use rlox_nn::{Activation, ActorCritic, PolicyNetworks};
use tonic::Code;

/// Environment with a state of `len` numbers.
#[derive(Clone)]
struct Heavy {
    state: Vec<f64>,
    spec: EnvSpec,
}

impl Env for Heavy {
    type Action = i64;
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }
    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }
    fn step(&mut self, _: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs.fill(1.0);
        Step { reward: 0.0, terminated: false, truncated: false }
    }
    fn state(&self) -> Option<Vec<f64>> {
        Some(self.state.clone())
    }
    fn check_state(&self, state: &[f64]) -> rlox_core::Result<()> {
        check_len("state", state.len(), self.state.len())
    }
    fn set_state(&mut self, state: &[f64], obs: &mut [f32]) -> rlox_core::Result<()> {
        self.state.copy_from_slice(state);
        obs.fill(0.5);
        Ok(())
    }
}

fn worker(limits: Limits) -> Worker {
    let make = |id: &str, options: &MakeOptions<'_>| {
        if id != "Heavy-v0" {
            return envs::make(id, options);
        }
        let state = vec![0.0; options.argument(&["len"], "len", 1.0)? as usize];
        let observation = Space::uniform_box(-1.0, 1.0, &[4]);
        let spec = EnvSpec { id: id.into(), observation, action: Space::discrete(2), max_episode_steps: None };
        options.build_vec_env(Heavy { state, spec })
    };
    Worker::start(WorkerOptions { make: Arc::new(make), limits, ..WorkerOptions::default() }).unwrap()
}

fn reset() -> request::What {
    request::What::Reset(proto::Reset { snapshot: true, ..proto::Reset::default() })
}

#[test]
fn invalid_sessions_are_rejected_with_a_reason() {
    let worker = worker(Limits { max_envs: 100, ..Limits::default() });
    let other = proto::Open { protocol: 7, ..open() };
    let replies = end(&worker.address(), vec![request(1, request::What::Open(other))]).unwrap();
    let proto::Failure { expected, got, .. } = failure(&replies[0]);
    assert_eq!((&expected[..], &got[..]), ("version 2", "version 7"));
    for (bad, text) in [
        (proto::Open { num_envs: 101, ..open() }, "--max-envs"),
        (proto::Open { num_envs: 0, ..open() }, "pass a positive number"),
        (proto::Open { env_id: "Pole".into(), ..open() }, "did you mean"),
        (proto::Open { autoreset_mode: 9, ..open() }, "same version"),
        (
            proto::Open {
                env_state: Some(proto::EnvState { width: u32::MAX, ..proto::EnvState::default() }),
                ..open()
            },
            "session",
        ),
        (proto::Open { policy: Some(networks("x", &[4])), ..open() }, "choose one of these"),
        (proto::Open { policy: Some(networks("tanh", &[7600, 7600])), ..open() }, "--max-message"),
        (proto::Open { policy: Some(networks("tanh", &[1; 65])), ..open() }, "fewer layers"),
        (proto::Open { arguments: vec![0; 1 << 20].into(), ..open() }, "same version"),
        (proto::Open { arguments: vec![1, b'x'].into(), ..open() }, "same version"),
        (
            proto::Open { policy: Some(proto::Policy { n_steps: u32::MAX, ..proto::Policy::default() }), ..open() },
            "--max-message",
        ),
    ] {
        let replies = end(&worker.address(), vec![request(1, request::What::Open(bad))]).unwrap();
        assert!(failure(&replies[0]).hint.contains(text), "{replies:?}");
    }
}

#[test]
fn invalid_requests_are_rejected_with_a_reason() {
    let worker = worker(Limits::default());
    let first = || request(1, request::What::Open(open()));
    let collect = request::What::Collect(proto::Collect::default());
    let replies = end(
        &worker.address(),
        vec![first(), request(2, step(&[0; 8])), request(3, step(&[0; 7])), request(4, collect)],
    );
    let replies = replies.unwrap();
    assert!(failure(&replies[1]).hint.contains("reset"), "{replies:?}");
    assert_eq!((&failure(&replies[2]).expected[..], &failure(&replies[2]).got[..]), ("8 bytes", "7"));
    assert!(failure(&replies[3]).hint.contains("policy"));
    for (requests, code, text) in [
        (vec![request(1, step(&[]))], Code::FailedPrecondition, "as the first request"),
        (vec![first(), request(3, step(&[]))], Code::FailedPrecondition, "expected 2, got 3"),
    ] {
        let status = end(&worker.address(), requests).unwrap_err();
        assert_eq!(status.code(), code);
        assert!(status.message().contains(text), "{status}");
    }
    let reset = |reset: proto::Reset| request(2, request::What::Reset(reset));
    let (options, seeds) = (vec![9, b'x'].into(), vec![1; 8].into());
    for (bad, names) in [
        (proto::Reset { options, ..proto::Reset::default() }, "options"),
        (proto::Reset { seeds, ..proto::Reset::default() }, "seeds"),
    ] {
        let replies = end(&worker.address(), vec![first(), reset(bad)]).unwrap();
        assert_eq!(failure(&replies[1]).argument, names);
    }
}

fn snapshot_of(reply: &reply::What) -> &proto::EnvState {
    match reply {
        reply::What::EnvState(snapshot) => snapshot,
        reply::What::Stepped(stepped) => stepped.env_state.as_ref().unwrap(),
        reply::What::Rollout(rollout) => rollout.env_state.as_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Returns a snapshot with `bytes` at offset `at` of its slab.
///
/// The slab holds, one after another, states of `width` numbers, returns, steps, flags and random
/// streams.
fn with(snapshot: &proto::EnvState, at: usize, bytes: &[u8]) -> proto::EnvState {
    let mut slab = snapshot.slab.to_vec();
    slab[at..at + bytes.len()].copy_from_slice(bytes);
    proto::EnvState { slab: slab.into(), ..snapshot.clone() }
}

#[test]
fn invalid_snapshots_are_rejected_and_change_nothing() {
    let worker = worker(Limits::default());
    for id in ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"] {
        // Two environments are stepped one by one, 40 with SIMD instructions.
        for num_envs in [2, 40] {
            let open = proto::Open { env_id: id.into(), num_envs, ..open() };
            let opened = request::What::Open(open.clone());
            let first_replies = converse(&worker.address(), vec![opened.clone(), reset()]).unwrap();
            let good = snapshot_of(&first_replies[1]).clone();
            let (n, width) = (num_envs as usize, good.width as usize);
            let (returns, steps, flags) = (8 * n * width, 8 * n * (width + 1), 8 * n * (width + 2));
            assert_eq!(good.slab.len(), flags + n + 48 * n);
            let cut = proto::EnvState { slab: good.slab.slice(1..), ..good.clone() };
            let empty = proto::EnvState { slab: vec![].into(), ..good.clone() };
            let bad = [
                with(&good, 0, &f64::NAN.to_le_bytes()),
                with(&good, returns - 8, &f64::INFINITY.to_le_bytes()),
                with(&good, returns, &f64::NAN.to_le_bytes()),
                with(&good, steps, &(-1_i64).to_le_bytes()),
                with(&good, flags - 8, &(1_i64 << 32).to_le_bytes()),
                // In this mode no environment waits for a reset, so the flag must be 0.
                with(&good, flags, &[1]),
                // The flag of a buffered random number is 0 or 1.
                with(&good, flags + n + 32, &7_i64.to_le_bytes()),
                cut,
                empty,
                proto::EnvState::default(),
                proto::EnvState { width: u32::MAX, ..good.clone() },
                proto::EnvState { width: 0, ..good.clone() },
            ];
            for (at, bad) in bad.iter().enumerate() {
                let with_it = proto::Open { env_state: Some(bad.clone()), ..open.clone() };
                let replies = converse(&worker.address(), vec![request::What::Open(with_it)]).unwrap();
                assert!(!failure(&replies[0]).argument.is_empty(), "{id} {at}: {replies:?}");
                for only_check in [false, true] {
                    let bad = request::What::Restore(proto::Restore { env_state: Some(bad.clone()), only_check });
                    let replies = converse(&worker.address(), vec![opened.clone(), reset(), bad, snapshot()]).unwrap();
                    assert!(!failure(&replies[2]).argument.is_empty(), "{id} {at}: {replies:?}");
                    assert_eq!(snapshot_of(&replies[3]), &good);
                }
            }
            // A request with `only_check` changes nothing.
            let other = with(&good, returns, &2.5_f64.to_le_bytes());
            let restore =
                |only_check| request::What::Restore(proto::Restore { env_state: Some(other.clone()), only_check });
            let all = vec![opened, reset(), restore(true), snapshot(), restore(false), snapshot()];
            let replies = converse(&worker.address(), all).unwrap();
            assert_eq!(replies[2], reply::What::Done(proto::Done {}));
            assert_eq!((snapshot_of(&replies[3]), snapshot_of(&replies[5])), (&good, &other));
        }
    }
    assert_eq!(worker.counters().panics.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn snapshots_larger_than_a_reply_are_omitted() {
    let worker = worker(Limits { max_message_bytes: 1 << 16, ..Limits::default() });
    for (len, fits) in [(8000_u32, true), (9000, false)] {
        let arguments = [&b"\x03len"[..], &f64::from(len).to_le_bytes()].concat().into();
        let open = request::What::Open(proto::Open { env_id: "Heavy-v0".into(), arguments, ..open() });
        let mut stepped = step(&[0; 8]);
        if let request::What::Step(step) = &mut stepped {
            step.snapshot = true;
        }
        let replies = converse(&worker.address(), vec![open, reset(), stepped, snapshot()]).unwrap();
        for reply in &replies[1..] {
            let snapshot = snapshot_of(reply);
            assert_eq!((snapshot.width == len, !snapshot.slab.is_empty()), (fits, fits), "{snapshot:?}");
        }
    }
}

#[test]
fn the_session_continues_after_a_reply_that_is_too_large() {
    let worker = worker(Limits { max_message_bytes: 10_000, ..Limits::default() });
    // Every step truncates an episode, so that every step adds a final observation to the rollout.
    let mut policy = networks("tanh", &[8]);
    policy.n_steps = 160;
    let (open, max_episode_steps) = (open(), Some(1));
    let networks = PolicyNetworks::mlp(worker_spec().spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0));
    let weights = networks.unwrap().tensors().to_safetensors().into();
    let collect = request::What::Collect(proto::Collect { weights, reset: Some(0), ..proto::Collect::default() });
    let fits = proto::Open { policy: Some(policy.clone()), ..open.clone() };
    let replies = converse(&worker.address(), vec![request::What::Open(fits), collect.clone()]).unwrap();
    assert!(matches!(replies[1], reply::What::Rollout(_)), "{replies:?}");
    let open = request::What::Open(proto::Open { max_episode_steps, policy: Some(policy), ..open });
    let replies = converse(&worker.address(), vec![open, collect, snapshot()]).unwrap();
    let proto::Failure { kind, argument, expected, got, hint, .. } = failure(&replies[1]);
    assert_eq!((*kind, &argument[..]), (proto::failure::Kind::Config.into(), "max_message_bytes"));
    assert!(
        expected.contains("10000 bytes") && got.contains("bytes") && hint.contains("--max-message-bytes"),
        "{replies:?}"
    );
    assert!(!snapshot_of(&replies[2]).slab.is_empty());
}

/// Returns a CartPole environment as created by workers.
fn worker_spec() -> Box<dyn VectorEnv> {
    let autoreset_mode = rlox_core::AutoresetMode::SameStep;
    let options = MakeOptions { num_envs: 1, seed: Some(0), autoreset_mode, ..Default::default() };
    envs::make("CartPole-v1", &options).unwrap()
}

#[test]
fn memory_of_all_sessions_is_bounded() {
    let limits = Limits { max_message_bytes: 1 << 20, max_sessions: 2, ..Limits::default() };
    let worker = worker(limits);
    let open = |hidden: &[u32], num_envs| {
        request::What::Open(proto::Open { policy: Some(networks("tanh", hidden)), num_envs, ..open() })
    };
    // The memory for network outputs is counted for each environment.
    for what in [open(&[20_000], 256), open(&[25_000], 1)] {
        let replies = converse(&worker.address(), vec![what]).unwrap();
        let proto::Failure { argument, expected, .. } = failure(&replies[0]);
        assert!(argument.contains("hidden") && expected.contains("free memory for sessions"), "{replies:?}");
    }
    let replies = converse(&worker.address(), vec![open(&[64, 64], 256)]).unwrap();
    assert!(matches!(replies[0], reply::What::Opened(_)), "{replies:?}");
}
