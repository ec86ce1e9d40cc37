//! State of actor-critics between calls, and gradients after a network fails.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Actions, ActionsMut, EnvSpec, Error, Pcg64, Policy, PolicyOut, Result, Space};
use rlox_nn::{
    ActionValue, Activation, ActorCritic, ActorCriticLoss, ActorCriticStats, CriticBatch, CriticEnsemble, Distribution,
    Init, Minibatch, Mlp, NamedTensors, Network, Optimizer, PolicyBuilder, PolicyLoss, PolicyNetworks, SquashedPolicy,
    StochasticPolicy, Workspace,
};

const OBS: usize = 3;
const LOSS: ActorCriticLoss =
    ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.1 };

/// Creates a Gaussian policy with two networks or a shared trunk, and optionally gSDE.
fn policy(shared: bool, state_dependent: bool) -> PolicyNetworks<Mlp> {
    let (observation, action) = (Space::uniform_box(-1.0, 1.0, &[OBS]), Space::uniform_box(-1.0, 1.0, &[2]));
    let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
    let builder = PolicyBuilder::new(&spec).net_arch(&[8]).log_std_init(-0.5);
    builder.shared_trunk(shared).use_sde(state_dependent).build(&mut Pcg64::seed_from(0)).unwrap()
}

fn all() -> impl Iterator<Item = (bool, bool)> {
    [(false, false), (false, true), (true, false), (true, true)].into_iter()
}

/// Returns two minibatches of two rows.
fn batches() -> [Minibatch<'static>; 2] {
    let one = Minibatch {
        obs: &[0.1, 0.2, 0.3, -0.1, 0.4, 0.2],
        actions: Actions::Continuous(&[0.5, -0.3, 0.2, 0.9]),
        masks: None,
        log_probs: &[-2.0; 2],
        values: &[0.0; 2],
        advantages: &[1.0, -0.5],
        returns: &[1.0, 2.0],
    };
    [one, Minibatch { obs: &[0.9, -0.2, 0.5, 0.4, 0.4, -0.7], advantages: &[-0.3, 2.0], ..one }]
}

fn zero(gradients: &NamedTensors) -> bool {
    gradients.iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0))
}

#[test]
fn evaluate_does_not_change_gradients() {
    let ([one, other], adam) = (batches(), Optimizer::adam(1e-3));
    for (shared, state_dependent) in all() {
        let (mut evaluated, mut plain) = (policy(shared, state_dependent), policy(shared, state_dependent));
        evaluated.evaluate(&one, &LOSS).unwrap();
        evaluated.evaluate(&other, &LOSS).unwrap();
        assert!(zero(&evaluated.gradients()), "{shared}, {state_dependent}");
        // The backward pass uses only the last evaluation.
        evaluated.backward().unwrap();
        plain.evaluate(&other, &LOSS).unwrap();
        plain.backward().unwrap();
        assert_eq!(evaluated.gradients(), plain.gradients());
        assert!(evaluated.gradients().find("log_std").unwrap().data.iter().any(|x| *x != 0.0));
        let (mut evaluated, mut plain) = (policy(shared, state_dependent), policy(shared, state_dependent));
        evaluated.evaluate(&one, &LOSS).unwrap();
        let stats = evaluated.update(&one, &LOSS, &adam, None).unwrap();
        assert_eq!(stats, plain.update(&one, &LOSS, &adam, None).unwrap());
        assert_eq!(evaluated.tensors(), plain.tensors());
    }
}

#[test]
fn backward_requires_a_valid_evaluate() {
    let [one, _] = batches();
    for (shared, state_dependent) in all() {
        let mut policy = policy(shared, state_dependent);
        assert_eq!(assert_rejects(policy.backward(), Error::Shape, "backward").got, "none");
        policy.evaluate(&one, &LOSS).unwrap();
        // A rejected evaluation discards the data of the earlier evaluation.
        let wrong = Minibatch { actions: Actions::Continuous(&[0.0; 3]), ..one };
        policy.evaluate(&wrong, &LOSS).unwrap_err();
        assert_eq!(assert_rejects(policy.backward(), Error::Shape, "backward").got, "none");
        assert!(zero(&policy.gradients()));
    }
}

#[test]
fn acting_between_evaluate_and_backward_changes_nothing() {
    let [one, _] = batches();
    for (shared, state_dependent) in all() {
        let (mut acting, mut plain) = (policy(shared, state_dependent), policy(shared, state_dependent));
        let (mut action, mut value, mut log_prob) = ([0.0; 2], [0.0], [0.0]);
        acting.evaluate(&one, &LOSS).unwrap();
        acting.value(&one.obs[..OBS], &mut value).unwrap();
        let value_before = value;
        acting.act_deterministic(&one.obs[..OBS], None, ActionsMut::Continuous(&mut action)).unwrap();
        let out =
            PolicyOut { actions: ActionsMut::Continuous(&mut action), log_probs: &mut log_prob, values: &mut value };
        acting.act(&one.obs[..OBS], None, &mut [Pcg64::seed_from(1)], out).unwrap();
        assert_eq!(value_before, value);
        let (mut log_prob_again, drawn) = ([0.0], log_prob);
        acting
            .evaluate_actions(&one.obs[..OBS], None, Actions::Continuous(&action), &mut log_prob_again, &mut value)
            .unwrap();
        assert!((log_prob_again[0] - drawn[0]).abs() < 1e-4 && value_before == value, "{log_prob_again:?} {drawn:?}");
        acting.backward().unwrap();
        plain.evaluate(&one, &LOSS).unwrap();
        plain.backward().unwrap();
        assert_eq!(acting.gradients(), plain.gradients());
    }
}

#[test]
fn rejected_updates_leave_no_gradients() {
    let ([one, _], adam) = (batches(), Optimizer::adam(1e-3));
    for (shared, state_dependent) in all() {
        let (mut rejected_policy, mut plain) = (policy(shared, state_dependent), policy(shared, state_dependent));
        rejected_policy.update(&one, &LOSS, &Optimizer::adam(-1.0), None).unwrap_err();
        assert!(zero(&rejected_policy.gradients()));
        rejected_policy.update(&Minibatch { advantages: &[f32::NAN, 0.0], ..one }, &LOSS, &adam, None).unwrap_err();
        assert!(zero(&rejected_policy.gradients()));
        assert_eq!(
            rejected_policy.update(&one, &LOSS, &adam, None).unwrap(),
            plain.update(&one, &LOSS, &adam, None).unwrap()
        );
        assert_eq!(rejected_policy.tensors(), plain.tensors());
        let mut failing = FailingStep(policy(shared, state_dependent));
        assert_rejects(failing.update(&one, &LOSS, &Optimizer::adam(-1.0), None), Error::Config, "lr");
        assert!(zero(&failing.gradients()));
        failing.update(&one, &LOSS, &adam, None).unwrap_err();
        assert!(zero(&failing.gradients()));
    }
}

/// Policy whose optimiser steps fail, with the trait's default implementations.
struct FailingStep(PolicyNetworks<Mlp>);

impl Policy for FailingStep {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        self.0.act(obs, masks, rngs, out)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        self.0.value(obs, values)
    }
}

impl ActorCritic for FailingStep {
    fn act_deterministic(&mut self, obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>) -> Result<()> {
        self.0.act_deterministic(obs, masks, actions)
    }

    fn evaluate_actions(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        self.0.evaluate_actions(obs, masks, actions, log_probs, values)
    }

    fn evaluate(&mut self, batch: &Minibatch<'_>, loss: &ActorCriticLoss) -> Result<ActorCriticStats> {
        self.0.evaluate(batch, loss)
    }

    fn backward(&mut self) -> Result<()> {
        self.0.backward()
    }

    fn step(&mut self, _: &Optimizer, _: Option<f32>) -> Result<f32> {
        Err(Error::Backend("no step".into()))
    }

    fn zero_gradients(&mut self) {
        self.0.zero_gradients();
    }

    fn draw_noise(&mut self, rngs: &mut [Pcg64]) -> Result<()> {
        self.0.draw_noise(rngs)
    }

    fn act_stateless(
        &mut self,
        obs: &[f32],
        masks: Option<&[bool]>,
        rngs: &mut [Pcg64],
        out: PolicyOut<'_>,
    ) -> Result<()> {
        self.0.act_stateless(obs, masks, rngs, out)
    }

    fn tensors(&self) -> NamedTensors {
        self.0.tensors()
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        self.0.load(tensors)
    }

    fn gradients(&self) -> NamedTensors {
        self.0.gradients()
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.0.optimizer_state()
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.0.load_optimizer_state(state)
    }
}

/// Network whose last layer has parameters other than weight and bias.
struct Scaled {
    net: Mlp,
    scale: f32,
    gain: [f32; 1],
}

impl Scaled {
    fn append_scale(&self, mut tensors: NamedTensors) -> NamedTensors {
        tensors.push("2.scale", &[], vec![self.scale]).unwrap();
        tensors.push("2.gain", &[1], self.gain.to_vec()).unwrap();
        tensors
    }
}

impl Network for Scaled {
    fn in_dim(&self) -> usize {
        self.net.in_dim()
    }

    fn out_dim(&self) -> usize {
        self.net.out_dim()
    }

    fn hidden_dim(&self) -> usize {
        self.net.hidden_dim()
    }

    fn infer(&self, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Workspace) -> Result<()> {
        self.net.infer(x, rows, y, scratch)
    }

    fn infer_hidden(
        &self,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
        h: &mut [f32],
        scratch: &mut Workspace,
    ) -> Result<()> {
        self.net.infer_hidden(x, rows, y, h, scratch)
    }

    fn forward(&mut self, x: &[f32], rows: usize, y: &mut [f32]) -> Result<()> {
        self.net.forward(x, rows, y)
    }

    fn hidden(&self, h: &mut [f32]) -> Result<()> {
        self.net.hidden(h)
    }

    fn backward(&mut self, dy: &[f32], params: bool, dx: Option<&mut [f32]>) -> Result<()> {
        self.net.backward(dy, params, dx)
    }

    fn backward_hidden(&mut self, dy: &[f32], dh: &[f32]) -> Result<()> {
        self.net.backward_hidden(dy, dh)
    }

    fn grad_norm_sq(&mut self) -> Result<f64> {
        self.net.grad_norm_sq()
    }

    fn zero_gradients(&mut self) {
        self.net.zero_gradients();
    }

    fn apply_gradients(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        self.net.apply_gradients(optimizer, scale)
    }

    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.net.soft_update(&online.net, tau)
    }

    fn tensors(&self) -> NamedTensors {
        self.append_scale(self.net.tensors())
    }

    fn load(&mut self, tensors: &NamedTensors) -> Result<()> {
        tensors.check(&self.tensors())?;
        let mut own = NamedTensors::default();
        for tensor in self.net.tensors().iter().filter_map(|tensor| tensors.find(&tensor.name)) {
            own.push(tensor.name.clone(), &tensor.shape, tensor.data.clone())?;
        }
        self.scale = tensors.find("2.scale").unwrap().data[0];
        self.gain[0] = tensors.find("2.gain").unwrap().data[0];
        self.net.load(&own)
    }

    fn gradients(&self) -> NamedTensors {
        self.append_scale(self.net.gradients())
    }

    fn optimizer_state(&self) -> NamedTensors {
        self.net.optimizer_state()
    }

    fn load_optimizer_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.net.load_optimizer_state(state)
    }
}

#[test]
fn shared_trunks_save_and_load_all_tensors() {
    let trunk = |scale, seed| {
        let net = Mlp::new(&[OBS, 8, 3], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(seed)).unwrap();
        Scaled { net, scale, gain: [scale + 1.0] }
    };
    let space = Space::uniform_box(-1.0, 1.0, &[2]);
    let policy_with = |scale, seed| {
        PolicyNetworks::with_shared_trunk(trunk(scale, seed), Distribution::new(&space, 0.0).unwrap()).unwrap()
    };
    let (one, mut other) = (policy_with(2.0, 1), policy_with(5.0, 2));
    let tensors = one.tensors();
    let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "trunk.0.weight",
            "trunk.0.bias",
            "actor.0.weight",
            "actor.0.bias",
            "trunk.2.scale",
            "trunk.2.gain",
            "critic.0.weight",
            "critic.0.bias",
            "log_std"
        ]
    );
    other.load(&tensors).unwrap();
    assert_eq!(other.tensors(), tensors);
    assert_eq!((other.actor().scale, other.actor().gain), (2.0, [3.0]));
    assert_eq!(one.gradients().len(), tensors.len());
    // The same holds for heads that are created one by one.
    let observation = Space::uniform_box(-1.0, 1.0, &[OBS]);
    let spec = EnvSpec { id: "none".into(), observation, action: space, max_episode_steps: None };
    let make = |sizes: &[usize], activation, init, rng: &mut Pcg64| {
        Ok(Scaled { net: Mlp::new(sizes, activation, init, rng)?, scale: 4.0, gain: [6.0] })
    };
    let builder = PolicyBuilder::new(&spec).net_arch(&[8]).shared_trunk(true);
    let policy = builder.build_with(&mut Pcg64::seed_from(1), make).unwrap();
    assert_eq!((policy.actor().scale, policy.actor().gain), (4.0, [6.0]));
}

#[test]
fn builder_draws_actor_first_and_heads_last() {
    let (observation, action) = (Space::uniform_box(-1.0, 1.0, &[OBS]), Space::discrete(2));
    let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
    for ortho_init in [true, false] {
        let builder = PolicyBuilder::new(&spec).net_arch(&[8]).activation(Activation::Relu).ortho_init(ortho_init);
        let built = |shared| builder.clone().shared_trunk(shared).build(&mut Pcg64::seed_from(4)).unwrap().tensors();
        let draw = |networks: [(&[usize], f32); 3]| {
            let mut rng = Pcg64::seed_from(4);
            networks.map(|(sizes, gain)| {
                let init = if ortho_init { Init::orthogonal(gain) } else { Init::Kaiming };
                Mlp::new(sizes, Activation::Relu, init, &mut rng).unwrap().tensors()
            })
        };
        let [actor, critic, _] = draw([(&[OBS, 8, 2], 0.01), (&[OBS, 8, 1], 1.0), (&[1, 1], 1.0)]);
        let mut expected = NamedTensors::default();
        expected.extend("actor", &actor).unwrap();
        expected.extend("critic", &critic).unwrap();
        assert_eq!(built(false), expected);
        let [trunk, actor, critic] = draw([(&[OBS, 8, 3], 1.0), (&[8, 2], 0.01), (&[8, 1], 1.0)]);
        let shared = built(true);
        assert_eq!(shared.find("trunk.0.weight").unwrap().data, trunk.find("0.weight").unwrap().data);
        for name in ["0.weight", "0.bias"] {
            assert_eq!(shared.find(&format!("actor.{name}")).unwrap().data, actor.find(name).unwrap().data);
            assert_eq!(shared.find(&format!("critic.{name}")).unwrap().data, critic.find(name).unwrap().data);
        }
    }
}

const ROWS: usize = 3;

/// Network whose backward passes fail while `fails` is set.
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

/// Forwards methods to the wrapped network.
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
        &infer(x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Workspace) -> Result<()>;
        &infer_hidden(x: &[f32], rows: usize, y: &mut [f32], h: &mut [f32], scratch: &mut Workspace) -> Result<()>;
        &hidden(h: &mut [f32]) -> Result<()>;
        &tensors() -> NamedTensors;
        &gradients() -> NamedTensors;
        &optimizer_state() -> NamedTensors;
    }
    inside! {
        &mut forward(x: &[f32], rows: usize, y: &mut [f32]) -> Result<()>;
        &mut grad_norm_sq() -> Result<f64>;
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

    fn soft_update(&mut self, online: &Self, tau: f32) -> Result<()> {
        self.net.soft_update(&online.net, tau)
    }
}

#[test]
fn failed_backward_changes_no_gradient_of_gsde_policies() {
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
fn failed_backward_changes_no_gradient_of_critics() {
    let pairs: Vec<_> = (0..2).map(|_| [Failing::new(&[3, 8, 1]), Failing::new(&[3, 8, 1])]).collect();
    let mut critics = CriticEnsemble::new(pairs, 2).unwrap();
    let (obs, actions, targets) = ([0.3; 2 * ROWS], [0.1; ROWS], [1.0; ROWS]);
    let batch = CriticBatch { obs: &obs, actions: &actions, targets: &targets, weights: None };
    let none = critics.gradients();
    for index in 0..2 {
        critics.online().nth(index).unwrap().set(true);
        assert!(critics.backward(&batch, 0.5).is_err());
        assert_eq!(critics.gradients(), none, "critic {index} fails");
        critics.online().nth(index).unwrap().set(false);
    }
    critics.backward(&batch, 0.5).unwrap();
    assert_ne!(critics.gradients(), none);
}
