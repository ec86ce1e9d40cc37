//! Compares the built-in network, DQN, SAC and TD3 with PyTorch's results in
//! `fixtures/off_policy.safetensors`, which `fixtures/make_off_policy.py` writes.

use rlox_core::Pcg64;
use rlox_nn::losses::{sac_actor_loss, soft_values, td_targets, td3_actor_loss, temperature_loss};
use rlox_nn::{
    ActionValue, Activation, CriticBatch, CriticEnsemble, CriticReduction, DeterministicActor, DeterministicPolicy,
    Discount, Init, Mlp, NamedTensors, QBatch, QFunction, QLoss, QNetworks, Smoothing, SquashedGaussian,
    SquashedPolicy, StochasticPolicy, TdLoss,
};
use rlox_testkit::{assert_all_near, assert_near, backend_tests};

backend_tests! {
    Mlp::new;
    agreement: small_gradients_follow_torch_formulas;
    bad_input: parameter_changes_invalidate_forward_pass, gradients_whose_squares_overflow_change_nothing,
        nan_actions_change_nothing, invalid_arguments_give_errors_of_built_in_network;
    torch: networks_and_gradients_equal_torch, optimizers_equal_torch, losses_and_gradients_equal_torch,
        vtrace_and_gradients_equal_torch, losses_equal_torch_for_a_hundred_updates;
}

const ROWS: usize = 13;
const OBS: usize = 5;
const ACT: usize = 2;
const HIDDEN: [usize; 2] = [20, 17];
const GAMMA: f32 = 0.97;
const ALPHA: f32 = 0.3;

fn fixtures() -> NamedTensors {
    NamedTensors::from_safetensors(include_bytes!("../fixtures/off_policy.safetensors")).unwrap()
}

fn data<'a>(tensors: &'a NamedTensors, name: &str) -> &'a [f32] {
    &tensors.find(name).unwrap_or_else(|| panic!("no {name}")).data
}

fn flags(tensors: &NamedTensors, name: &str) -> Vec<bool> {
    data(tensors, name).iter().map(|x| *x != 0.0).collect()
}

fn mlp(inputs: usize, outputs: usize) -> Mlp {
    let sizes = [inputs, HIDDEN[0], HIDDEN[1], outputs];
    Mlp::new(&sizes, Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(9)).unwrap()
}

fn critics(tensors: &NamedTensors) -> CriticEnsemble<Mlp> {
    let pair = || [mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)];
    let mut critics = CriticEnsemble::new(vec![pair(), pair()], OBS).unwrap();
    critics.load(tensors).unwrap();
    critics
}

#[test]
fn q_functions_equal_torch() {
    let all = fixtures();
    for (double, huber) in [(false, false), (false, true), (true, false), (true, true)] {
        let kind = if huber { "huber" } else { "squared" };
        let label = format!("dqn_{}_{kind}", if double { "double" } else { "plain" });
        let case = all.strip_prefix(&label);
        let mut q = QNetworks::new(mlp(OBS, 4), mlp(OBS, 4)).unwrap();
        q.load(&case.strip_prefix("net")).unwrap();
        let actions: Vec<i64> = data(&case, "actions").iter().map(|x| *x as i64).collect();
        let terminated = flags(&case, "terminated");
        let batch = QBatch {
            obs: data(&case, "obs"),
            actions: &actions,
            rewards: data(&case, "rewards"),
            next_obs: data(&case, "next_obs"),
            terminated: &terminated,
            discount: if huber { Discount::Each(data(&case, "discount")) } else { Discount::Same(GAMMA) },
            weights: double.then(|| data(&case, "weights")),
            next_masks: None,
        };
        let distance = if huber { TdLoss::Huber } else { TdLoss::SquaredError };
        let stats = q.evaluate(&batch, QLoss { distance, double }).unwrap();
        q.backward().unwrap();
        assert_near(&[stats.loss], data(&case, "loss"), &label);
        assert_near(&[stats.mean_value], data(&case, "mean_value"), &label);
        assert_near(q.td_errors(), data(&case, "td_errors"), &label);
        assert_all_near(&q.gradients(), &case.strip_prefix("grad"), &label);
    }
}

#[test]
fn sac_losses_equal_torch() {
    let all = fixtures();
    for name in ["gaussian", "state_dependent"] {
        let case = all.strip_prefix(&format!("sac_{name}"));
        let mut policy = if name == "gaussian" {
            SquashedPolicy::new(mlp(OBS, 2 * ACT), ACT).unwrap()
        } else {
            SquashedPolicy::state_dependent(mlp(OBS, ACT), ACT, -3.0).unwrap()
        };
        policy.load(&case.strip_prefix("policy")).unwrap();
        let mut critics = critics(&case.strip_prefix("critics"));
        let (mut actions, mut log_probs) = ([0.0; ROWS * ACT], [0.0; ROWS]);

        policy.rsample_with(data(&case, "next_obs"), data(&case, "next_noise"), &mut actions, &mut log_probs).unwrap();
        assert_near(&actions, data(&case, "next_actions"), name);
        assert_near(&log_probs, data(&case, "next_log_probs"), name);
        let (mut values, mut targets) = ([0.0; ROWS], [0.0; ROWS]);
        critics.target_values(data(&case, "next_obs"), &actions, &mut values).unwrap();
        soft_values(&mut values, &log_probs, ALPHA).unwrap();
        let terminated = flags(&case, "terminated");
        td_targets(data(&case, "rewards"), &terminated, Discount::Same(GAMMA), &values, &mut targets).unwrap();
        assert_near(&targets, data(&case, "targets"), name);
        let batch = CriticBatch {
            obs: data(&case, "obs"),
            actions: data(&case, "actions"),
            targets: data(&case, "targets"),
            weights: None,
        };
        let stats = critics.backward(&batch, 0.5).unwrap();
        assert_near(&[stats.loss], data(&case, "critic_loss"), name);
        assert_near(critics.td_errors(), data(&case, "td_errors"), name);
        assert_all_near(&critics.gradients(), &case.strip_prefix("critic_grad"), name);

        let obs = data(&case, "obs");
        policy.rsample_with(obs, data(&case, "noise"), &mut actions, &mut log_probs).unwrap();
        assert_near(&actions, data(&case, "sampled"), name);
        assert_near(&log_probs, data(&case, "log_probs"), name);
        let (mut d_actions, mut d_log_probs) = ([0.0; ROWS * ACT], [0.0; ROWS]);
        critics.action_gradients(obs, &actions, CriticReduction::Min, &mut values, &mut d_actions).unwrap();
        let loss = sac_actor_loss(&log_probs, &values, ALPHA, &mut d_log_probs, &mut d_actions).unwrap();
        assert_near(&[loss], data(&case, "actor_loss"), name);
        policy.backward(&d_actions, &d_log_probs).unwrap();
        assert_all_near(&policy.gradients(), &case.strip_prefix("actor_grad"), name);
        // The actor's loss has not changed the gradients of the critics' parameters.
        assert_all_near(&critics.gradients(), &case.strip_prefix("critic_grad"), name);

        let (loss, gradient) = temperature_loss(ALPHA.ln(), &log_probs, -2.0).unwrap();
        assert_near(&[loss], data(&case, "temperature_loss"), name);
        assert_near(&[gradient], data(&case, "d_log_alpha"), name);
    }
}

#[test]
fn td3_losses_equal_torch() {
    let case = fixtures().strip_prefix("td3");
    let mut policy = DeterministicActor::new(mlp(OBS, ACT), mlp(OBS, ACT)).unwrap();
    policy.load(&case.strip_prefix("policy")).unwrap();
    let mut critics = critics(&case.strip_prefix("critics"));
    let (next_obs, mut actions) = (data(&case, "next_obs"), [0.0; ROWS * ACT]);
    let still = Smoothing { noise: 0.0, clip: 0.5 };
    policy.target_actions(next_obs, still, &mut Pcg64::seed_from(0), &mut actions).unwrap();
    assert_near(&actions, data(&case, "chosen"), "chosen");
    Smoothing { noise: 0.4, clip: 0.5 }.apply(data(&case, "noise"), &mut actions);
    assert_near(&actions, data(&case, "smoothed"), "smoothed");
    let (mut values, mut targets) = ([0.0; ROWS], [0.0; ROWS]);
    critics.target_values(next_obs, &actions, &mut values).unwrap();
    td_targets(data(&case, "rewards"), &flags(&case, "terminated"), Discount::Same(GAMMA), &values, &mut targets)
        .unwrap();
    assert_near(&targets, data(&case, "targets"), "targets");
    let batch = CriticBatch {
        obs: data(&case, "obs"),
        actions: data(&case, "actions"),
        targets: &targets,
        weights: Some(data(&case, "weights")),
    };
    let stats = critics.backward(&batch, 1.0).unwrap();
    assert_near(&[stats.loss], data(&case, "critic_loss"), "critic_loss");
    assert_all_near(&critics.gradients(), &case.strip_prefix("critic_grad"), "critics");
    let mut d_actions = [0.0; ROWS * ACT];
    policy.forward(batch.obs, &mut actions).unwrap();
    critics.action_gradients(batch.obs, &actions, CriticReduction::First, &mut values, &mut d_actions).unwrap();
    let loss = td3_actor_loss(&values, &mut d_actions).unwrap();
    assert_near(&[loss], data(&case, "actor_loss"), "actor_loss");
    policy.backward(&d_actions).unwrap();
    assert_all_near(&policy.gradients(), &case.strip_prefix("actor_grad"), "actor");
}

#[test]
fn squashed_log_probabilities_equal_torch() {
    // The case "squashed_edge" has actions up to the f32 number closest to 1.
    for name in ["squashed", "squashed_edge"] {
        let case = fixtures().strip_prefix(name);
        let (outputs, mut log_probs) = (data(&case, "outputs"), [0.0; ROWS]);
        let mut policy = SquashedGaussian::new(ACT).unwrap();
        policy.log_prob(outputs, data(&case, "actions"), &mut log_probs).unwrap();
        for (row, (got, expected)) in log_probs.iter().zip(data(&case, "log_probs")).enumerate() {
            assert!(
                (got - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                "{name}, {row}: {got} instead of {expected}"
            );
        }
        let mut d_outputs = [0.0; ROWS * 2 * ACT];
        policy.log_prob_backward(outputs, data(&case, "weights"), &mut d_outputs).unwrap();
        assert_near(&d_outputs, data(&case, "d_outputs"), name);
    }
}
