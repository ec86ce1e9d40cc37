//! Where a network fails on the way, as one on a device may, no gradient is half done.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{Error, Pcg64, Result};
use rlox_nn::{
    ActionValue, Activation, Init, Mlp, NamedTensors, Network, Optimizer, Scratch, SquashedPolicy, StochasticPolicy,
    TwinCritics, ValuedActions,
};

const ROWS: usize = 3;

/// Fails where it should go back to its parameters, as often as it is told to.
#[derive(Clone, Debug)]
struct Failing {
    net: Mlp,
    fails: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Failing {
    fn new(sizes: &[usize]) -> Self {
        let net = Mlp::new(sizes, Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(3)).unwrap();
        Self { net, fails: std::sync::Arc::default() }
    }

    fn set(&self, fails: bool) {
        self.fails.store(fails, std::sync::atomic::Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        let fails = self.fails.load(std::sync::atomic::Ordering::Relaxed);
        if fails { Err(Error::Backend("out of order".into())) } else { Ok(()) }
    }
}

/// Methods that are those of the network inside.
macro_rules! inside {
    ($(&mut $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        fn $name(&mut self, $($arg: $ty),*) $(-> $ret)? { self.net.$name($($arg),*) }
    )*};
    ($(&$name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> $ret { self.net.$name($($arg),*) }
    )*};
}

impl Network for Failing {
    inside! {
        &in_dim() -> usize;
        &out_dim() -> usize;
        &hidden_dim() -> usize;
        &infer(x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Scratch) -> Result<()>;
        &infer_hidden(x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], scratch: &mut Scratch) -> Result<()>;
        &hidden(h: &mut [f32]) -> Result<()>;
        &tensors() -> NamedTensors;
        &gradients() -> NamedTensors;
        &optimizer_state() -> NamedTensors;
    }
    inside! {
        &mut forward(x: &[f32], rows: usize, y: &mut [f32]) -> Result<()>;
        &mut grad_sq() -> Result<f64>;
        &mut zero_gradients();
        &mut apply_gradients(optimizer: &Optimizer, scale: f32) -> Result<()>;
        &mut load(tensors: &NamedTensors) -> Result<()>;
        &mut load_optimizer_state(state: &NamedTensors) -> Result<()>;
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        self.check()?;
        self.net.backward(dy, params, dx)
    }

    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()> {
        self.check()?;
        self.net.backward_hidden(dy, dh)
    }

    fn track(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.net.track(&online.net, tau)
    }
}

#[test]
fn of_a_policy_with_state_dependent_exploration() {
    let actor = Failing::new(&[2, 8, 1]);
    let mut policy = SquashedPolicy::state_dependent(actor, 1, -1.0).unwrap();
    let (obs, mut actions, mut log_probs) = ([0.3; 2 * ROWS], [0.0; ROWS], [0.0; ROWS]);
    policy.rsample(&obs, &mut Pcg64::seed_from(1), &mut actions, &mut log_probs).unwrap();
    let none = policy.gradients();
    policy.actor().set(true);
    assert!(policy.backward(&[1.0; ROWS], &[1.0; ROWS]).is_err());
    assert_eq!(policy.gradients(), none);
    policy.actor().set(false);
    policy.backward(&[1.0; ROWS], &[1.0; ROWS]).unwrap();
    let log_std = policy.gradients().find("log_std").unwrap().data.clone();
    assert!(log_std.iter().any(|x| *x != 0.0));
}

#[test]
fn of_two_critics() {
    let pairs: Vec<_> = (0..2).map(|_| [Failing::new(&[3, 8, 1]), Failing::new(&[3, 8, 1])]).collect();
    let mut critics = TwinCritics::new(pairs, 2).unwrap();
    let (obs, actions, targets) = ([0.3; 2 * ROWS], [0.1; ROWS], [1.0; ROWS]);
    let batch = ValuedActions { obs: &obs, actions: &actions, targets: &targets, weights: None };
    let none = critics.gradients();
    for which in 0..2 {
        critics.online().nth(which).unwrap().set(true);
        assert!(critics.backward(&batch, 0.5).is_err());
        assert_eq!(critics.gradients(), none, "critic {which} fails");
        critics.online().nth(which).unwrap().set(false);
    }
    critics.backward(&batch, 0.5).unwrap();
    assert_ne!(critics.gradients(), none);
}
