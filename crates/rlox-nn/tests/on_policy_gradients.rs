//! The losses of PPO, A2C and IMPALA and their gradients against finite differences, for every distribution.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use proptest::prelude::*;
use rlox_core::{Actions, ActionsMut, Ends, EnvSpec, Pcg64, Policy, PolicyOut, Space, Vtrace};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Distribution, Minibatch, Mlp, NamedTensors, PolicyLoss, PolicyNetworks,
    Trajectories, VtraceTargets,
};

const OBS: usize = 3;
const HIDDEN: usize = 9;
const ENVS: usize = 2;
const STEP: f32 = 5e-3;

fn draws(count: usize, seed: u64, size: f64) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed.into());
    (0..count).map(|_| rng.uniform(-size, size) as f32).collect()
}

/// What is tested: a space, whether something is masked, whether exploration depends on the state, and whether the
/// trunk is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Categorical,
    MultiCategorical,
    Bernoulli,
    Gaussian,
    StateDependent,
    Shared,
    SharedStateDependent,
}

use Kind::{Bernoulli, Categorical, Gaussian, MultiCategorical, Shared, SharedStateDependent, StateDependent};

const KINDS: [Kind; 7] =
    [Categorical, MultiCategorical, Bernoulli, Gaussian, StateDependent, Shared, SharedStateDependent];

impl Kind {
    fn space(self) -> Space {
        match self {
            Categorical | Shared => Space::discrete(4),
            MultiCategorical => Space::MultiDiscrete { nvec: vec![2, 3] },
            Bernoulli => Space::MultiBinary { n: 3 },
            _ => Space::uniform_box(-1.0, 1.0, &[2]),
        }
    }

    /// Some flags are false, and one of each choice's is true.
    fn masks(self, rows: usize, seed: u64) -> Option<Vec<bool>> {
        let choices: &[usize] = match self {
            Categorical | Shared => &[4],
            MultiCategorical => &[2, 3],
            Bernoulli => &[2, 2, 2],
            _ => return None,
        };
        let mut rng = Pcg64::seed_from(seed.into());
        let mut masks = Vec::new();
        for choice in choices.iter().cycle().take(rows * choices.len()) {
            let kept = rng.integers(0, *choice as i64) as usize;
            masks.extend((0..*choice).map(|i| i == kept || rng.random() < 0.6));
        }
        Some(masks)
    }

    /// Weights of about 0.5, so that all chances differ.
    fn policy(self, seed: u64) -> PolicyNetworks<Mlp> {
        let (action, state_dependent) = (self.space(), matches!(self, StateDependent | SharedStateDependent));
        let distribution = if state_dependent {
            Distribution::state_dependent(&action, HIDDEN, -0.5).unwrap()
        } else {
            Distribution::new(&action, -0.5).unwrap()
        };
        let observation = Space::uniform_box(-1.0, 1.0, &[OBS]);
        let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
        let rng = &mut Pcg64::seed_from(0);
        let mut policy = if matches!(self, Shared | SharedStateDependent) {
            PolicyNetworks::shared_around(&spec, &[HIDDEN], Activation::Tanh, distribution, rng).unwrap()
        } else {
            PolicyNetworks::around(&spec, &[HIDDEN], Activation::Tanh, distribution, rng).unwrap()
        };
        let mut tensors = NamedTensors::default();
        for (i, tensor) in policy.tensors().iter().enumerate() {
            let data = draws(tensor.data.len(), seed ^ (i as u64) << 20, 0.8);
            tensors.push(tensor.name.clone(), &tensor.shape, data).unwrap();
        }
        policy.load(&tensors).unwrap();
        policy
    }

    /// Whether differences of a tensor say what the gradient does: state-dependent exploration takes its hidden layer for
    /// a constant, which they do not.
    fn tells(self, name: &str) -> bool {
        match self {
            StateDependent => !name.starts_with("actor.0."),
            SharedStateDependent => !name.starts_with("trunk."),
            _ => true,
        }
    }
}

/// The same tensors, with one number of one of them moved.
fn moved(tensors: &NamedTensors, name: &str, i: usize, by: f32) -> NamedTensors {
    let mut all = NamedTensors::default();
    for tensor in tensors {
        let mut data = tensor.data.clone();
        if tensor.name == name {
            data[i] += by;
        }
        all.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    all
}

/// Every tensor's gradient, of one number of it, is between the differences to both sides.
fn gradients_are_differences(
    policy: &mut PolicyNetworks<Mlp>,
    kind: Kind,
    batch: &Minibatch<'_>,
    loss: &ActorCriticLoss,
    seed: u64,
) {
    let tensors = policy.tensors();
    let there = f64::from(policy.evaluate(batch, loss).unwrap().loss);
    policy.backward().unwrap();
    let gradients = policy.gradients();
    assert_eq!(gradients.len(), tensors.len());
    for gradient in gradients.iter().filter(|gradient| kind.tells(&gradient.name)) {
        let i = seed as usize % gradient.data.len();
        let mut slope = |by: f32| {
            policy.load(&moved(&tensors, &gradient.name, i, by)).unwrap();
            (f64::from(policy.evaluate(batch, loss).unwrap().loss) - there) / f64::from(by)
        };
        let (above, below) = (slope(STEP), slope(-STEP));
        let (got, margin) = (f64::from(gradient.data[i]), 2e-3 * (1.0 + above.abs()));
        let between = above.min(below) - margin..=above.max(below) + margin;
        assert!(between.contains(&got), "{kind:?}, {}[{i}]: {got} instead of {between:?}", gradient.name);
    }
    policy.load(&tensors).unwrap();
}

/// Actions that the policy draws, their log-probabilities and values.
fn drawn(policy: &mut PolicyNetworks<Mlp>, obs: &[f32], masks: Option<&[bool]>, space: &Space) -> Drawn {
    let rows = obs.len() / OBS;
    let mut drawn = Drawn { log_probs: vec![0.0; rows], values: vec![0.0; rows], ..Drawn::default() };
    let mut rngs: Vec<_> = (0..rows as u128).map(Pcg64::seed_from).collect();
    let actions = if matches!(space, Space::Box { .. }) {
        drawn.continuous.resize(rows * space.dim(), 0.0);
        ActionsMut::Continuous(&mut drawn.continuous)
    } else {
        drawn.discrete.resize(rows * space.dim(), 0);
        ActionsMut::Discrete(&mut drawn.discrete)
    };
    let out = PolicyOut { actions, log_probs: &mut drawn.log_probs, values: &mut drawn.values };
    policy.act(obs, masks, &mut rngs, out).unwrap();
    drawn
}

#[derive(Default)]
struct Drawn {
    discrete: Vec<i64>,
    continuous: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
}

/// The numbers, each moved a little or much: what clipping leaves, and what it cuts, and nothing that is near its kinks.
fn away(numbers: &[f32], seed: u64, [little, much]: [f32; 2]) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed.into());
    let mut way = || [little, -little, much, -much][rng.integers(0, 4) as usize];
    numbers.iter().map(|x| x + way()).collect()
}

impl Drawn {
    fn actions(&self) -> Actions<'_> {
        if self.continuous.is_empty() {
            Actions::Discrete(&self.discrete)
        } else {
            Actions::Continuous(&self.continuous)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn losses_of_ppo_and_a2c(which in 0..KINDS.len(), masked: bool, ppo: bool, rows in 1_usize..7, seed: u64) {
        let kind = KINDS[which];
        let (mut policy, obs) = (kind.policy(seed), draws(rows * OBS, seed ^ 1, 1.0));
        let masks = kind.masks(rows, seed ^ 2).filter(|_| masked);
        let drawn = drawn(&mut policy, &obs, masks.as_deref(), &kind.space());
        let (advantages, returns) = (draws(rows, seed ^ 4, 1.0), draws(rows, seed ^ 5, 1.0));
        let batch = Minibatch {
            obs: &obs,
            actions: drawn.actions(),
            masks: masks.as_deref(),
            log_probs: &away(&drawn.log_probs, seed ^ 3, [0.05, 0.5]),
            values: &away(&drawn.values, seed ^ 6, [0.1, 0.5]),
            advantages: &advantages,
            returns: &returns,
        };
        let loss = ActorCriticLoss {
            policy: if ppo { PolicyLoss::Clipped { clip_coef: 0.2 } } else { PolicyLoss::Gradient },
            clip_coef_vf: ppo.then_some(0.3),
            vf_coef: 0.5,
            ent_coef: 0.1,
        };
        gradients_are_differences(&mut policy, kind, &batch, &loss, seed);
    }

    #[test]
    fn losses_of_impala(which in 0..KINDS.len(), masked: bool, steps in 1_usize..4, seed: u64) {
        let kind = KINDS[which];
        let rows = steps * ENVS;
        let (mut policy, obs) = (kind.policy(seed), draws(rows * OBS, seed ^ 1, 1.0));
        let masks = kind.masks(rows, seed ^ 2).filter(|_| masked);
        let drawn = drawn(&mut policy, &obs, masks.as_deref(), &kind.space());
        let ended: Vec<bool> = draws(rows, seed ^ 7, 1.0).iter().map(|x| *x > 0.5).collect();
        let trajectories = Trajectories {
            obs: &obs,
            next_obs: &draws(ENVS * OBS, seed ^ 4, 1.0),
            actions: drawn.actions(),
            masks: masks.as_deref(),
            log_probs: &away(&drawn.log_probs, seed ^ 3, [0.05, 0.5]),
            rewards: &draws(rows, seed ^ 5, 1.0),
            ends: Ends::dones(&ended),
            num_envs: ENVS,
        };
        let mut targets = VtraceTargets::default();
        let batch = targets.minibatch(&mut policy, &trajectories, Vtrace::default()).unwrap();
        let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.1 };
        gradients_are_differences(&mut policy, kind, &batch, &loss, seed);
    }
}
