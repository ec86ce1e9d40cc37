//! Tests that backends compute the same results as PyTorch, which `fixtures/make.py` records.

use rlox_core::{
    Actions, Pcg64, Space,
    advantage::{EpisodeEnds, VtraceConfig},
};
use rlox_nn::train::Schedule;
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Distribution, Init, Minibatch, NamedTensors, Network, Optimizer,
    PolicyLoss, PolicyNetworks, Trajectories, VtraceTargets, clip_and_step,
};

use crate::{Make, assert_all_near, assert_near};

const ROWS: usize = 13;
const OBS: usize = 5;
const HIDDEN: [usize; 2] = [20, 17];

fn fixtures() -> NamedTensors {
    NamedTensors::from_safetensors(include_bytes!("../fixtures/torch.safetensors")).unwrap()
}

fn data<'a>(tensors: &'a NamedTensors, name: &str) -> &'a [f32] {
    &tensors.find(name).unwrap_or_else(|| panic!("no {name}")).data
}

fn mlp<N: Network>(make: Make<N>, outputs: usize, activation: Activation) -> N {
    make(&[OBS, HIDDEN[0], HIDDEN[1], outputs], activation, Init::Kaiming, &mut Pcg64::seed_from(9)).unwrap()
}

pub fn networks_and_gradients_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    for name in ["tanh", "relu", "silu", "gelu"] {
        for outputs in [3, 11] {
            let case = all.strip_prefix(&format!("mlp_{name}_{outputs}"));
            let mut net = mlp(make, outputs, name.parse().unwrap());
            let weights = case.strip_prefix("net");
            net.load(&weights).unwrap();
            assert!(net.tensors().iter().all(|tensor| weights.find(&tensor.name) == Some(tensor)));
            let mut y = vec![0.0; ROWS * outputs];
            net.forward(data(&case, "x"), ROWS, &mut y).unwrap();
            assert_near(&y, data(&case, "y"), name);
            let mut dx = vec![0.0; ROWS * OBS];
            net.backward(data(&case, "dy"), true, Some(&mut dx)).unwrap();
            assert_near(&dx, data(&case, "dx"), name);
            assert_all_near(&net.gradients(), &case.strip_prefix("grad"), name);
        }
    }
}

pub fn optimizers_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    let eps = 1e-5;
    for (name, optimizer) in [
        ("adam", Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps }),
        ("adam_w", Optimizer::AdamW { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 }),
        ("rms_prop", Optimizer::RmsProp { lr: 0.01, alpha: 0.99, eps }),
    ] {
        let case = all.strip_prefix(&format!("optimizer_{name}"));
        let mut net = mlp(make, 2, Activation::Tanh);
        net.load(&case.strip_prefix("before")).unwrap();
        for _ in 0..5 {
            let mut y = vec![0.0; ROWS * 2];
            net.forward(data(&case, "x"), ROWS, &mut y).unwrap();
            let target = data(&case, "target");
            let dy: Vec<f32> = y.iter().zip(target).map(|(y, t)| (y - t) / ROWS as f32).collect();
            net.backward(&dy, true, None).unwrap();
            clip_and_step(&mut [("net", &mut net)], &optimizer, Some(0.1)).unwrap();
        }
        assert_all_near(&net.tensors(), &case.strip_prefix("after"), name);
    }
}

fn continuous(name: &str) -> bool {
    name == "gaussian" || name.ends_with("state_dependent")
}

/// Returns the policy of the test case `name`, with `weights`.
fn policy<N: Network>(make: Make<N>, name: &str, weights: &NamedTensors) -> PolicyNetworks<N> {
    let space = match name {
        "masked" => Space::discrete(4),
        "multi_categorical" | "masked_multi_categorical" => Space::MultiDiscrete { nvec: vec![2, 5] },
        "bernoulli" | "masked_bernoulli" => Space::MultiBinary { n: 3 },
        _ if continuous(name) => Space::uniform_box(-1.0, 1.0, &[2]),
        _ => Space::discrete(3),
    };
    let distribution = if name.ends_with("state_dependent") {
        Distribution::state_dependent(&space, HIDDEN[1], 0.0).unwrap()
    } else {
        Distribution::new(&space, 0.0).unwrap()
    };
    let mlp = |outputs| mlp(make, outputs, Activation::Tanh);
    let outputs = distribution.outputs();
    let mut policy = if name.starts_with("shared") {
        PolicyNetworks::with_shared_trunk(mlp(outputs + 1), distribution).unwrap()
    } else {
        PolicyNetworks::new(mlp(outputs), mlp(1), distribution).unwrap()
    };
    policy.load(weights).unwrap();
    policy
}

fn integers(case: &NamedTensors) -> Vec<i64> {
    data(case, "action").iter().map(|x| *x as i64).collect()
}

/// Returns the actions of a test case; `discrete` holds discrete actions as integers.
fn actions<'a>(name: &str, case: &'a NamedTensors, discrete: &'a [i64]) -> Actions<'a> {
    if continuous(name) { Actions::Continuous(data(case, "action")) } else { Actions::Discrete(discrete) }
}

fn flags(case: &NamedTensors, name: &str) -> Vec<bool> {
    data(case, name).iter().map(|x| *x != 0.0).collect()
}

pub fn losses_and_gradients_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    for algorithm in ["ppo", "a2c"] {
        for name in [
            "categorical",
            "masked",
            "multi_categorical",
            "masked_multi_categorical",
            "bernoulli",
            "masked_bernoulli",
            "gaussian",
            "state_dependent",
            "shared",
            "shared_state_dependent",
        ] {
            let label = format!("{algorithm}_{name}");
            let case = all.strip_prefix(&label);
            let mut policy = policy(make, name, &case.strip_prefix("net"));
            let discrete = integers(&case);
            let masks = case.find("mask").map(|_| flags(&case, "mask"));
            let batch = Minibatch {
                obs: data(&case, "obs"),
                actions: actions(name, &case, &discrete),
                masks: masks.as_deref(),
                log_probs: data(&case, "log_prob"),
                values: data(&case, "value"),
                advantages: data(&case, "advantage"),
                returns: data(&case, "return"),
            };
            let ppo = algorithm == "ppo";
            let loss = ActorCriticLoss {
                policy: if ppo { PolicyLoss::Clipped { clip_coef: 0.2 } } else { PolicyLoss::Gradient },
                clip_coef_vf: ppo.then_some(0.3),
                vf_coef: 0.5,
                ent_coef: 0.01,
            };
            let stats = policy.evaluate(&batch, &loss).unwrap();
            policy.backward().unwrap();
            let mut metrics = vec![
                ("policy_loss", stats.policy_loss),
                ("value_loss", stats.value_loss),
                ("entropy_loss", stats.entropy_loss),
                ("loss", stats.loss),
            ];
            if ppo {
                metrics.extend([("approx_kl", stats.approx_kl), ("clip_fraction", stats.clip_fraction)]);
            }
            for (key, value) in metrics {
                assert_near(&[value], data(&case, key), &format!("{label}.{key}"));
            }
            assert_all_near(&policy.gradients(), &case.strip_prefix("grad"), &label);
        }
    }
}

pub fn vtrace_and_gradients_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    for name in ["categorical", "gaussian"] {
        let label = format!("vtrace_{name}");
        let case = all.strip_prefix(&label);
        let mut policy = policy(make, name, &case.strip_prefix("net"));
        let discrete = integers(&case);
        let (terminated, truncated) = (flags(&case, "terminated"), flags(&case, "truncated"));
        let trajectories = Trajectories {
            obs: data(&case, "obs"),
            next_obs: data(&case, "next_obs"),
            actions: actions(name, &case, &discrete),
            masks: None,
            log_probs: data(&case, "log_prob"),
            rewards: data(&case, "reward"),
            ends: EpisodeEnds {
                terminated: &terminated,
                truncated: Some(&truncated),
                final_values: Some(data(&case, "final_value")),
            },
            num_envs: 2,
        };
        let config = VtraceConfig { gamma: 0.97, rho_bar: 0.9, c_bar: 0.8, lambda: 0.95, pg_rho_bar: 1.1 };
        let mut targets = VtraceTargets::default();
        let batch = targets.minibatch(&mut policy, &trajectories, config).unwrap();
        assert_near(batch.returns, data(&case, "vs"), &label);
        assert_near(batch.advantages, data(&case, "pg_advantage"), &label);
        let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
        let stats = policy.evaluate(&batch, &loss).unwrap();
        policy.backward().unwrap();
        for (key, value) in [
            ("policy_loss", stats.policy_loss),
            ("value_loss", stats.value_loss),
            ("entropy_loss", stats.entropy_loss),
            ("loss", stats.loss),
        ] {
            assert_near(&[value], data(&case, key), &format!("{label}.{key}"));
        }
        assert_all_near(&policy.gradients(), &case.strip_prefix("grad"), &label);
        let short = Trajectories { log_probs: &trajectories.log_probs[1..], ..trajectories };
        let result = targets.minibatch(&mut policy, &short, config);
        assert_eq!(
            rlox_core::__private::testing::assert_rejects(result, rlox_core::Error::Shape, "log_probs").got,
            "11"
        );
    }
}

/// Maximum difference of losses during a hundred updates, relative to the range of the curve. The
/// difference is caused by accumulated rounding errors.
const DRIFT: f32 = 1e-3;

/// Checks updates with constant and with linear schedules of learning rate and clip range.
pub fn losses_equal_torch_for_a_hundred_updates<N: Network>(make: Make<N>) {
    let all = fixtures();
    for (name, schedule) in [("constant", Schedule::Constant), ("linear", Schedule::Linear)] {
        let case = all.strip_prefix(&format!("curve_{name}"));
        let mut policy = policy(make, name, &case.strip_prefix("before"));
        let batches: Vec<_> = (0..4).map(|i| case.strip_prefix(&i.to_string())).collect();
        let actions: Vec<_> = batches.iter().map(integers).collect();
        let expected = data(&case, "losses");
        assert_eq!(expected.len(), 100);
        let range = expected.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        for (i, expected) in expected.iter().enumerate() {
            let (batch, progress) = (&batches[i % 4], i as f64 / 100.0);
            let minibatch = Minibatch {
                obs: data(batch, "obs"),
                actions: Actions::Discrete(&actions[i % 4]),
                masks: None,
                log_probs: data(batch, "log_prob"),
                values: data(batch, "return"),
                advantages: data(batch, "advantage"),
                returns: data(batch, "return"),
            };
            let loss = ActorCriticLoss {
                policy: PolicyLoss::Clipped { clip_coef: schedule.value_at(0.2, progress) },
                clip_coef_vf: None,
                vf_coef: 0.5,
                ent_coef: 0.01,
            };
            let lr = schedule.value_at(3e-3, progress);
            let adam = Optimizer::Adam { lr, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
            let got = policy.update(&minibatch, &loss, &adam, Some(0.5)).unwrap().loss;
            let allowed = DRIFT * (range.1 - range.0);
            assert!((got - expected).abs() <= allowed, "{name}, update {i}: {got} instead of {expected}");
        }
        for tensor in &policy.tensors() {
            let (after, before) = (case.strip_prefix("after"), case.strip_prefix("before"));
            let (after, before) = (data(&after, &tensor.name), data(&before, &tensor.name));
            let max_change = after.iter().zip(before).fold(0.0_f32, |most, (x, y)| most.max((x - y).abs()));
            for (got, expected) in tensor.data.iter().zip(after) {
                assert!((got - expected).abs() <= 0.01 * max_change, "{name}, {}: {got}, {expected}", tensor.name);
            }
        }
    }
}
