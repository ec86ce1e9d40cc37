//! Losses of PPO, A2C and IMPALA: gradients against finite differences, and invalid arguments.

use proptest::prelude::*;
use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{
    Actions, ActionsMut, EnvSpec, Error, Pcg64, Policy, PolicyOut, Result, Space,
    advantage::{EpisodeEnds, VtraceConfig},
};
use rlox_nn::losses::{clipped_policy_loss, explained_variance, policy_gradient_loss, value_loss};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, DistInputs, Distribution, Minibatch, Mlp, NamedTensors, Optimizer,
    PolicyBuilder, PolicyLoss, PolicyNetworks, Trajectories, VtraceTargets,
};

const OBS: usize = 3;
const HIDDEN: usize = 9;
const ENVS: usize = 2;
const STEP: f32 = 5e-3;

fn draws(count: usize, seed: u64, size: f64) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed.into());
    (0..count).map(|_| rng.uniform(-size, size) as f32).collect()
}

/// Distribution and architecture of a tested policy.
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

    /// Returns random masks with at least one allowed option per choice.
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
            let allowed = rng.integers(0, *choice as i64) as usize;
            masks.extend((0..*choice).map(|i| i == allowed || rng.random() < 0.6));
        }
        Some(masks)
    }

    /// Returns a policy with weights of about 0.5, for which the probabilities of actions differ.
    fn policy(self, seed: u64) -> PolicyNetworks<Mlp> {
        let (observation, action) = (Space::uniform_box(-1.0, 1.0, &[OBS]), self.space());
        let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
        let mut policy = PolicyBuilder::new(&spec)
            .net_arch(&[HIDDEN])
            .shared_trunk(matches!(self, Shared | SharedStateDependent))
            .use_sde(matches!(self, StateDependent | SharedStateDependent))
            .log_std_init(-0.5)
            .build(&mut Pcg64::seed_from(0))
            .unwrap();
        let mut tensors = NamedTensors::default();
        for (i, tensor) in policy.tensors().iter().enumerate() {
            let data = draws(tensor.data.len(), seed ^ (i as u64) << 20, 0.8);
            tensors.push(tensor.name.clone(), &tensor.shape, data).unwrap();
        }
        policy.load(&tensors).unwrap();
        policy
    }

    /// Returns whether finite differences of a tensor equal its gradient.
    ///
    /// The gradient of gSDE treats the hidden layer as a constant, but finite differences do not.
    fn has_exact_differences(self, name: &str) -> bool {
        match self {
            StateDependent => !name.starts_with("actor.0."),
            SharedStateDependent => !name.starts_with("trunk."),
            _ => true,
        }
    }
}

/// Returns the tensors with `by` added to one number of one tensor.
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

/// Asserts for one number of each tensor that the gradient is between the one-sided differences.
fn assert_gradients_equal_differences(
    policy: &mut PolicyNetworks<Mlp>,
    kind: Kind,
    batch: &Minibatch<'_>,
    loss: &ActorCriticLoss,
    seed: u64,
) {
    let tensors = policy.tensors();
    let loss_before = f64::from(policy.evaluate(batch, loss).unwrap().loss);
    policy.backward().unwrap();
    let gradients = policy.gradients();
    assert_eq!(gradients.len(), tensors.len());
    for gradient in gradients.iter().filter(|gradient| kind.has_exact_differences(&gradient.name)) {
        let i = seed as usize % gradient.data.len();
        let mut slope = |by: f32| {
            policy.load(&moved(&tensors, &gradient.name, i, by)).unwrap();
            (f64::from(policy.evaluate(batch, loss).unwrap().loss) - loss_before) / f64::from(by)
        };
        let (above, below) = (slope(STEP), slope(-STEP));
        let (got, margin) = (f64::from(gradient.data[i]), 2e-3 * (1.0 + above.abs()));
        let between = above.min(below) - margin..=above.max(below) + margin;
        assert!(between.contains(&got), "{kind:?}, {}[{i}]: {got} instead of {between:?}", gradient.name);
    }
    policy.load(&tensors).unwrap();
}

/// Samples actions with their log-probabilities and values.
fn sample_actions(
    policy: &mut PolicyNetworks<Mlp>,
    obs: &[f32],
    masks: Option<&[bool]>,
    space: &Space,
) -> SampledActions {
    let rows = obs.len() / OBS;
    let mut sampled =
        SampledActions { log_probs: vec![0.0; rows], values: vec![0.0; rows], ..SampledActions::default() };
    let mut rngs: Vec<_> = (0..rows as u128).map(Pcg64::seed_from).collect();
    let actions = if matches!(space, Space::Box { .. }) {
        sampled.continuous.resize(rows * space.dim(), 0.0);
        ActionsMut::Continuous(&mut sampled.continuous)
    } else {
        sampled.discrete.resize(rows * space.dim(), 0);
        ActionsMut::Discrete(&mut sampled.discrete)
    };
    let out = PolicyOut { actions, log_probs: &mut sampled.log_probs, values: &mut sampled.values };
    policy.act(obs, masks, &mut rngs, out).unwrap();
    sampled
}

#[derive(Default)]
struct SampledActions {
    discrete: Vec<i64>,
    continuous: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
}

/// Returns the numbers, each moved up or down by `small` or `large`.
///
/// At a kink of a clipped loss, finite differences would be wrong. The moved numbers are not near a
/// kink.
fn moved_off_kinks(numbers: &[f32], seed: u64, [small, large]: [f32; 2]) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed.into());
    let mut offset = || [small, -small, large, -large][rng.integers(0, 4) as usize];
    numbers.iter().map(|x| x + offset()).collect()
}

impl SampledActions {
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
    fn ppo_and_a2c_gradients_equal_finite_differences(
        kind_index in 0..KINDS.len(), masked: bool, ppo: bool, rows in 1_usize..7, seed: u64,
    ) {
        let kind = KINDS[kind_index];
        let (mut policy, obs) = (kind.policy(seed), draws(rows * OBS, seed ^ 1, 1.0));
        let masks = kind.masks(rows, seed ^ 2).filter(|_| masked);
        let sampled = sample_actions(&mut policy, &obs, masks.as_deref(), &kind.space());
        let (advantages, returns) = (draws(rows, seed ^ 4, 1.0), draws(rows, seed ^ 5, 1.0));
        let batch = Minibatch {
            obs: &obs,
            actions: sampled.actions(),
            masks: masks.as_deref(),
            log_probs: &moved_off_kinks(&sampled.log_probs, seed ^ 3, [0.05, 0.5]),
            values: &moved_off_kinks(&sampled.values, seed ^ 6, [0.1, 0.5]),
            advantages: &advantages,
            returns: &returns,
        };
        let loss = ActorCriticLoss {
            policy: if ppo { PolicyLoss::Clipped { clip_coef: 0.2 } } else { PolicyLoss::Gradient },
            clip_coef_vf: ppo.then_some(0.3),
            vf_coef: 0.5,
            ent_coef: 0.1,
        };
        assert_gradients_equal_differences(&mut policy, kind, &batch, &loss, seed);
    }

    #[test]
    fn impala_gradients_equal_finite_differences(
        kind_index in 0..KINDS.len(), masked: bool, steps in 1_usize..4, seed: u64,
    ) {
        let kind = KINDS[kind_index];
        let rows = steps * ENVS;
        let (mut policy, obs) = (kind.policy(seed), draws(rows * OBS, seed ^ 1, 1.0));
        let masks = kind.masks(rows, seed ^ 2).filter(|_| masked);
        let sampled = sample_actions(&mut policy, &obs, masks.as_deref(), &kind.space());
        let ended: Vec<bool> = draws(rows, seed ^ 7, 1.0).iter().map(|x| *x > 0.5).collect();
        let trajectories = Trajectories {
            obs: &obs,
            next_obs: &draws(ENVS * OBS, seed ^ 4, 1.0),
            actions: sampled.actions(),
            masks: masks.as_deref(),
            log_probs: &moved_off_kinks(&sampled.log_probs, seed ^ 3, [0.05, 0.5]),
            rewards: &draws(rows, seed ^ 5, 1.0),
            ends: EpisodeEnds::dones(&ended),
            num_envs: ENVS,
        };
        let mut targets = VtraceTargets::default();
        let batch = targets.minibatch(&mut policy, &trajectories, VtraceConfig::default()).unwrap();
        let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.1 };
        assert_gradients_equal_differences(&mut policy, kind, &batch, &loss, seed);
    }
}

const LOSS: ActorCriticLoss =
    ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };

fn spaces() -> [Space; 4] {
    [
        Space::discrete(2),
        Space::MultiDiscrete { nvec: vec![2, 3] },
        Space::MultiBinary { n: 2 },
        Space::uniform_box(-1.0, 1.0, &[2]),
    ]
}

fn policy(space: &Space) -> PolicyNetworks<Mlp> {
    let observation = Space::uniform_box(-1.0, 1.0, &[OBS]);
    let spec = EnvSpec { id: "none".into(), observation, action: space.clone(), max_episode_steps: None };
    PolicyNetworks::mlp(&spec, &[8], Activation::Relu, &mut Pcg64::seed_from(0)).unwrap()
}

/// Returns a policy whose weights are finite and whose outputs overflow.
fn overflowing(space: &Space) -> PolicyNetworks<Mlp> {
    let mut policy = policy(space);
    let mut tensors = NamedTensors::default();
    for tensor in &policy.tensors() {
        let huge = matches!(tensor.name.as_str(), "actor.0.weight" | "actor.2.weight");
        let data = if huge { vec![f32::MAX; tensor.data.len()] } else { tensor.data.clone() };
        tensors.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    policy.load(&tensors).unwrap();
    policy
}

/// Asserts that an error reports a number that is not finite, with its row.
fn rejects_nan<T>(result: Result<T>, argument: &str, got: f32, row: usize) {
    let rejected = assert_rejects(result, Error::NotFinite, argument);
    assert_eq!((rejected.got, rejected.at.row), (got.to_string(), Some(row)), "{argument}");
}

/// Asserts that an error reports this rejected value.
#[expect(clippy::needless_pass_by_value, reason = "calls pass numbers and literals")]
fn rejects<T>(result: Result<T>, variant: Variant, argument: &str, got: impl ToString) {
    assert_eq!(assert_rejects(result, variant, argument).got, got.to_string(), "{argument}");
}

/// Calls `run` with a buffer for the actions of two rows, and asserts that the buffer stays
/// unchanged.
fn with_actions(space: &Space, run: impl FnOnce(ActionsMut<'_>)) {
    if matches!(space, Space::Box { .. }) {
        let mut actions = vec![9.0; 2 * space.dim()];
        run(ActionsMut::Continuous(&mut actions));
        assert!(actions.iter().all(|x| *x == 9.0));
    } else {
        let mut actions = vec![9; 2 * space.dim()];
        run(ActionsMut::Discrete(&mut actions));
        assert!(actions.iter().all(|x| *x == 9));
    }
}

#[test]
fn non_finite_outputs_are_rejected_before_sampling() {
    for space in spaces() {
        let name = if matches!(space, Space::Box { .. }) { "mean" } else { "logits" };
        let nan = [[0.1; OBS], [f32::NAN; OBS]].concat();
        for (mut policy, obs, row) in [(policy(&space), nan, 1), (overflowing(&space), vec![1.0; 2 * OBS], 0)] {
            // If the observations are not finite, the error reports the observations instead of the
            // outputs.
            let (argument, got) = if row == 1 { ("obs", f32::NAN) } else { (name, f32::INFINITY) };
            let before = policy.tensors();
            with_actions(&space, |actions| {
                rejects_nan(policy.act_deterministic(&obs, None, actions), argument, got, row);
            });
            let (mut rngs, mut log_probs, mut values) = ([0, 1].map(Pcg64::seed_from), [9.0; 2], [9.0; 2]);
            with_actions(&space, |actions| {
                let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
                rejects_nan(policy.act(&obs, None, &mut rngs, out), argument, got, row);
            });
            assert_eq!((log_probs, values, rngs), ([9.0; 2], [9.0; 2], [0, 1].map(Pcg64::seed_from)));
            let (integers, numbers) = (vec![0; 2 * space.dim()], vec![0.0; 2 * space.dim()]);
            let actions = if name == "mean" { Actions::Continuous(&numbers) } else { Actions::Discrete(&integers) };
            let result = policy.evaluate_actions(&obs, None, actions, &mut log_probs, &mut values);
            rejects_nan(result, argument, got, row);
            let [log_probs, values, advantages, returns] = [&[0.5; 2]; 4].map(|x| &x[..]);
            let batch = Minibatch { obs: &obs, actions, masks: None, log_probs, values, advantages, returns };
            rejects_nan(policy.evaluate(&batch, &LOSS), argument, got, row);
            rejects_nan(policy.update(&batch, &LOSS, &Optimizer::adam(1e-3), None), argument, got, row);
            assert_eq!(policy.tensors(), before);
            assert!(policy.gradients().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
        }
    }
}

#[test]
fn single_non_finite_outputs_are_rejected() {
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut integers = [9; 4];
        for (space, outputs) in [(Space::discrete(2), 2), (Space::MultiBinary { n: 2 }, 2)] {
            let mut distribution = Distribution::new(&space, 0.0).unwrap();
            let mut logits = vec![0.0; 2 * outputs];
            logits[3] = wrong;
            let allowed = [true; 8];
            for masks in [None, Some(&allowed[..2 * outputs * if outputs == space.dim() { 2 } else { 1 }])] {
                let inputs = DistInputs { outputs: &logits, hidden: &[], masks };
                let len = 2 * space.dim();
                let result = distribution.mode(inputs, ActionsMut::Discrete(&mut integers[..len]));
                rejects_nan(result, "logits", wrong, 1);
            }
        }
        assert_eq!(integers, [9; 4]);
        let mut normal = Distribution::new(&Space::uniform_box(-1.0, 1.0, &[1]), 0.0).unwrap();
        let inputs = DistInputs { outputs: &[0.0, wrong], hidden: &[], masks: None };
        rejects_nan(normal.mode(inputs, ActionsMut::Continuous(&mut [0.0; 2])), "mean", wrong, 1);
    }
}

#[test]
fn non_finite_minibatches_are_rejected_without_changes() {
    let mut policy = policy(&Space::discrete(2));
    let before = policy.tensors();
    for (at, name) in ["obs", "log_probs", "values", "advantages", "returns"].into_iter().enumerate() {
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut numbers = [2 * OBS, 2, 2, 2, 2].map(|len| vec![0.5; len]);
            *numbers[at].last_mut().unwrap() = wrong;
            let [obs, log_probs, values, advantages, returns] = [0, 1, 2, 3, 4].map(|i| &numbers[i][..]);
            let actions = Actions::Discrete(&[0, 1]);
            let batch = Minibatch { obs, actions, masks: None, log_probs, values, advantages, returns };
            rejects_nan(policy.update(&batch, &LOSS, &Optimizer::adam(1e-3), None), name, wrong, 1);
            rejects_nan(policy.evaluate(&batch, &LOSS), name, wrong, 1);
        }
    }
    assert_eq!(policy.tensors(), before);
}

#[test]
fn non_finite_actions_and_hidden_layers_are_rejected() {
    let space = Space::uniform_box(-1.0, 1.0, &[2]);
    let one = |wrong: f32| [vec![0.5; 3], vec![wrong]].concat();
    for wrong in [f32::NAN, f32::INFINITY] {
        let (bad, good) = (one(wrong), one(0.5));
        for sde in [false, true] {
            let mut it =
                if sde { Distribution::state_dependent(&space, 2, 0.0) } else { Distribution::new(&space, 0.0) }
                    .unwrap();
            let hidden = if sde { &good[..] } else { &[] };
            let inputs = DistInputs { outputs: &good, hidden, masks: None };
            let (mut log_probs, mut entropies, mut out) = ([9.0; 2], [9.0; 2], [9.0; 4]);
            let actions = Actions::Continuous(&bad);
            rejects_nan(it.evaluate(inputs, actions, &mut log_probs, &mut entropies), "actions", wrong, 1);
            it.evaluate(inputs, Actions::Continuous(&good), &mut [0.0; 2], &mut [0.0; 2]).unwrap();
            rejects_nan(it.backward(inputs, actions, &[1.0; 2], 0.0, &mut out), "actions", wrong, 1);
            assert!(it.parameters().unwrap().tensors().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
            if sde {
                let (inputs, actions) = (DistInputs { hidden: &bad, ..inputs }, Actions::Continuous(&good));
                rejects_nan(it.evaluate(inputs, actions, &mut log_probs, &mut entropies), "hidden", wrong, 1);
                rejects_nan(it.mode(inputs, ActionsMut::Continuous(&mut out)), "hidden", wrong, 1);
                let mut rngs = [0, 1].map(Pcg64::seed_from);
                let result = it.sample(inputs, &mut rngs, ActionsMut::Continuous(&mut out), &mut log_probs);
                rejects_nan(result, "hidden", wrong, 1);
                assert_eq!(rngs, [0, 1].map(Pcg64::seed_from));
                it.evaluate(DistInputs { hidden, ..inputs }, actions, &mut [0.0; 2], &mut [0.0; 2]).unwrap();
                rejects_nan(it.backward(inputs, actions, &[1.0; 2], 0.0, &mut out), "hidden", wrong, 1);
            }
            assert_eq!((log_probs, entropies, out), ([9.0; 2], [9.0; 2], [9.0; 4]));
        }
    }
}

#[test]
fn errors_count_rows_from_the_start_of_the_minibatch() {
    const ROWS: usize = 2000;
    let mut policy = policy(&Space::discrete(2));
    let mut actions = [1; ROWS];
    actions[1500] = 2;
    let (obs, numbers) = (vec![0.1; ROWS * OBS], vec![0.5; ROWS]);
    let [log_probs, values, advantages, returns] = [&numbers[..]; 4];
    let actions = Actions::Discrete(&actions);
    let batch = Minibatch { obs: &obs, actions, masks: None, log_probs, values, advantages, returns };
    let result = policy.update(&batch, &LOSS, &Optimizer::adam(1e-3), None);
    let rejected = assert_rejects(result, Error::Action, "actions");
    assert_eq!((&rejected.got[..], rejected.at.row), ("2", Some(1500)));
}

#[test]
fn invalid_losses_and_optimizers_are_rejected() {
    let space = Space::discrete(2);
    let mut policy = policy(&space);
    let before = policy.tensors();
    let [log_probs, values, advantages, returns] = [&[0.5; 2]; 4].map(|x| &x[..]);
    let obs = [0.3; 2 * OBS];
    let batch = Minibatch {
        obs: &obs,
        actions: Actions::Discrete(&[0, 1]),
        masks: None,
        log_probs,
        values,
        advantages,
        returns,
    };
    for wrong in [f32::NAN, -0.1, f32::INFINITY] {
        for (name, loss) in [
            ("clip_coef", ActorCriticLoss { policy: PolicyLoss::Clipped { clip_coef: wrong }, ..LOSS }),
            ("clip_coef_vf", ActorCriticLoss { clip_coef_vf: Some(wrong), ..LOSS }),
            ("vf_coef", ActorCriticLoss { vf_coef: wrong, ..LOSS }),
            ("ent_coef", ActorCriticLoss { ent_coef: wrong, ..LOSS }),
        ] {
            rejects(policy.evaluate(&batch, &loss), Error::Config, name, wrong);
            rejects(policy.update(&batch, &loss, &Optimizer::adam(1e-3), None), Error::Config, name, wrong);
        }
        rejects(policy.update(&batch, &LOSS, &Optimizer::adam(wrong), None), Error::Config, "lr", wrong);
        let clipped = clipped_policy_loss(&[0.0], &[0.0], &[1.0], wrong, &mut [0.0]);
        rejects(clipped, Error::Config, "clip_coef", wrong);
        let clipped = value_loss(&[0.0], &[0.0], Some((&[0.0], wrong)), 0.5, &mut [0.0]);
        rejects(clipped, Error::Config, "clip_coef_vf", wrong);
        rejects(value_loss(&[0.0], &[0.0], None, wrong, &mut [0.0]), Error::Config, "vf_coef", wrong);
        rejects(Distribution::new(&space, f32::NAN), Error::Config, "log_std_init", "NaN");
        let state_dependent = Distribution::state_dependent(&Space::uniform_box(-1.0, 1.0, &[1]), 2, f32::NEG_INFINITY);
        rejects(state_dependent, Error::Config, "log_std_init", "-inf");
    }
    assert_eq!(policy.tensors(), before);
    assert!(policy.gradients().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
}

#[test]
fn losses_reject_mismatched_lengths() {
    let (two, one, mut out) = (&[0.5, 3.0][..], &[1.0][..], [7.0; 2]);
    rejects(clipped_policy_loss(two, one, two, 0.2, &mut out), Error::Shape, "old_log_probs", 1);
    rejects(clipped_policy_loss(two, two, one, 0.2, &mut out), Error::Shape, "advantages", 1);
    rejects(clipped_policy_loss(two, two, two, 0.2, &mut out[..1]), Error::Shape, "d_log_probs", 1);
    rejects(policy_gradient_loss(two, one, &mut out), Error::Shape, "advantages", 1);
    rejects(policy_gradient_loss(two, two, &mut out[..1]), Error::Shape, "d_log_probs", 1);
    rejects(value_loss(two, one, None, 0.5, &mut out), Error::Shape, "returns", 1);
    rejects(value_loss(two, two, Some((one, 0.2)), 0.5, &mut out), Error::Shape, "old_values", 1);
    rejects(value_loss(two, two, None, 0.5, &mut out[..1]), Error::Shape, "d_values", 1);
    rejects(explained_variance(two, one), Error::Shape, "returns", 1);
    rejects(clipped_policy_loss(&[], &[], &[], 0.2, &mut []), Error::Shape, "log_probs", "none");
    rejects(policy_gradient_loss(&[], &[], &mut []), Error::Shape, "log_probs", "none");
    rejects(value_loss(&[], &[], None, 0.5, &mut []), Error::Shape, "values", "none");
    assert_eq!(out, [7.0; 2]);
}

#[test]
fn backward_requires_an_evaluate_of_the_same_rows() {
    let discrete = Space::discrete(2);
    let torque = Space::uniform_box(-1.0, 1.0, &[1]);
    let cases: [(Distribution, usize, usize, bool); 4] = [
        (Distribution::new(&discrete, 0.0).unwrap(), 2, 0, false),
        (Distribution::new(&Space::MultiBinary { n: 1 }, 0.0).unwrap(), 1, 0, false),
        (Distribution::new(&torque, 0.0).unwrap(), 1, 0, true),
        (Distribution::state_dependent(&torque, 2, 0.0).unwrap(), 1, 2, true),
    ];
    for (mut distribution, width, hidden, continuous) in cases {
        let (outputs, hidden, mut d_outputs) = (vec![0.1; 2 * width], vec![0.5; 2 * hidden], vec![7.0; 2 * width]);
        let inputs = DistInputs { outputs: &outputs, hidden: &hidden, masks: None };
        let actions = if continuous { Actions::Continuous(&[0.1, 0.2]) } else { Actions::Discrete(&[1, 0]) };
        let rejects_backward = |result| {
            let rejected = assert_rejects(result, Error::Shape, "backward");
            assert_eq!(rejected.expected, "a previous evaluate call with 2 rows");
        };
        rejects_backward(distribution.backward(inputs, actions, &[1.0; 2], 0.0, &mut d_outputs));
        // A backward pass fails if the last evaluation had one row instead of two, and after
        // sampling.
        let less = DistInputs { outputs: &outputs[..width], hidden: &hidden[..hidden.len() / 2], masks: None };
        let first = if continuous { Actions::Continuous(&[0.1]) } else { Actions::Discrete(&[1]) };
        distribution.evaluate(less, first, &mut [0.0], &mut [0.0]).unwrap();
        rejects_backward(distribution.backward(inputs, actions, &[1.0; 2], 0.0, &mut d_outputs));
        distribution.evaluate(inputs, actions, &mut [0.0; 2], &mut [0.0; 2]).unwrap();
        let (mut integers, mut numbers) = ([0; 2], [0.0; 2]);
        let out = if continuous { ActionsMut::Continuous(&mut numbers) } else { ActionsMut::Discrete(&mut integers) };
        distribution.sample(inputs, &mut [0, 1].map(Pcg64::seed_from), out, &mut [0.0; 2]).unwrap();
        rejects_backward(distribution.backward(inputs, actions, &[1.0; 2], 0.0, &mut d_outputs));
        distribution.evaluate(inputs, actions, &mut [0.0; 2], &mut [0.0; 2]).unwrap();
        if !continuous {
            let wrong = Actions::Discrete(&[1, 7]);
            let result = distribution.backward(inputs, wrong, &[1.0; 2], 0.0, &mut d_outputs);
            assert_rejects(result, Error::Action, "actions");
        }
        assert!(d_outputs.iter().all(|x| *x == 7.0));
        distribution.backward(inputs, actions, &[1.0; 2], 0.0, &mut d_outputs).unwrap();
        assert!(d_outputs.iter().all(|x| *x != 7.0));
    }
}

#[test]
fn masked_actions_are_rejected() {
    let multi = [true, true, true, false, true, true, false, true, true, true];
    for (space, masks, good, wrong, got, row) in [
        (Space::discrete(2), &[true, true, true, false][..], &[1, 0][..], &[1, 1][..], "1", 1),
        (Space::MultiDiscrete { nvec: vec![2, 3] }, &multi, &[0, 2, 0, 0], &[0, 1, 0, 0], "1", 0),
        (Space::MultiBinary { n: 1 }, &[true, true, false, true], &[0, 1], &[0, 0], "0", 1),
    ] {
        let mut distribution = Distribution::new(&space, 0.0).unwrap();
        let outputs = vec![0.1; 2 * distribution.outputs()];
        let inputs = DistInputs { outputs: &outputs, hidden: &[], masks: Some(masks) };
        let (mut log_probs, mut entropies) = ([7.0; 2], [7.0; 2]);
        let evaluated = distribution.evaluate(inputs, Actions::Discrete(wrong), &mut log_probs, &mut entropies);
        let rejected = assert_rejects(evaluated, Error::Action, "actions");
        assert_eq!((&rejected.got[..], rejected.at.row), (got, Some(row)));
        assert_eq!((log_probs, entropies), ([7.0; 2], [7.0; 2]));
        distribution.evaluate(inputs, Actions::Discrete(good), &mut log_probs, &mut entropies).unwrap();
        assert!(log_probs.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn initial_log_std_is_bounded() {
    let space = Space::uniform_box(-1.0, 1.0, &[1]);
    for wrong in [100.0, -21.0] {
        rejects(Distribution::new(&space, wrong), Error::Config, "log_std_init", wrong);
        rejects(Distribution::state_dependent(&space, 2, wrong), Error::Config, "log_std_init", wrong);
    }
    for log_std_init in [-20.0, 20.0] {
        let (mut actions, mut log_probs, rngs) = ([0.0], [0.0], &mut [Pcg64::seed_from(0)]);
        for (mut distribution, hidden) in [
            (Distribution::new(&space, log_std_init).unwrap(), &[][..]),
            (Distribution::state_dependent(&space, 2, log_std_init).unwrap(), &[100.0, -3.0]),
        ] {
            let inputs = DistInputs { outputs: &[0.0], hidden, masks: None };
            distribution.sample(inputs, rngs, ActionsMut::Continuous(&mut actions), &mut log_probs).unwrap();
            assert!(actions[0].is_finite() && log_probs[0].is_finite());
        }
    }
}

#[test]
fn backward_requires_an_evaluate_with_the_current_weights() {
    let mut policy = policy(&Space::discrete(2));
    let [log_probs, values, advantages, returns] = [&[0.5; 2]; 4].map(|x| &x[..]);
    let (obs, actions) = ([0.3; 2 * OBS], Actions::Discrete(&[0, 1]));
    let batch = Minibatch { obs: &obs, actions, masks: None, log_probs, values, advantages, returns };
    let weights = policy.tensors();
    for change in [0, 1] {
        policy.evaluate(&batch, &LOSS).unwrap();
        policy.backward().unwrap();
        if change == 0 {
            policy.step(&Optimizer::adam(1e-3), None).unwrap();
        } else {
            policy.load(&weights).unwrap();
        }
        rejects(policy.backward(), Error::Shape, "backward", "none");
    }
}
