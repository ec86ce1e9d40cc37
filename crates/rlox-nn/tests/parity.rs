//! The network, its optimisers and the losses against PyTorch: `fixtures/make.py` writes what it says.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "tests")]

use rlox_core::{Actions, Ends, Pcg64, Space, Vtrace};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Distribution, Init, Minibatch, Mlp, NamedTensors, Network, Optimizer,
    PolicyLoss, PolicyNetworks, Trajectories, VtraceTargets, clipped_step,
};

#[allow(dead_code, reason = "one promise of backends is tested here")]
#[path = "backend/mod.rs"]
mod backend;

const ROWS: usize = 13;
const OBS: usize = 5;
const HIDDEN: [usize; 2] = [20, 17];

fn fixtures() -> NamedTensors {
    NamedTensors::from_safetensors(include_bytes!("fixtures/torch.safetensors")).unwrap()
}

fn data<'a>(tensors: &'a NamedTensors, name: &str) -> &'a [f32] {
    &tensors.find(name).unwrap_or_else(|| panic!("no {name}")).data
}

/// Within `1e-4` of the largest number.
fn assert_near(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= 1e-4 * scale, "{what}[{i}]: {got} instead of {expected}");
    }
}

fn assert_all_near(got: &NamedTensors, expected: &NamedTensors, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for tensor in got {
        let there = expected.find(&tensor.name).unwrap_or_else(|| panic!("{what}: no {}", tensor.name));
        assert_eq!(tensor.shape, there.shape, "{what}.{}", tensor.name);
        assert_near(&tensor.data, &there.data, &format!("{what}.{}", tensor.name));
    }
}

fn mlp(outputs: usize, activation: Activation) -> Mlp {
    let sizes = [OBS, HIDDEN[0], HIDDEN[1], outputs];
    Mlp::new(&sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(9)).unwrap()
}

#[test]
fn networks_and_their_gradients_equal_torch() {
    let all = fixtures();
    for name in ["tanh", "relu", "silu", "gelu"] {
        for outputs in [3, 11] {
            let case = all.part(&format!("mlp_{name}_{outputs}"));
            let mut net = mlp(outputs, name.parse().unwrap());
            net.load(&case.part("net")).unwrap();
            let mut y = vec![0.0; ROWS * outputs];
            net.forward(data(&case, "x"), ROWS, &mut y).unwrap();
            assert_near(&y, data(&case, "y"), name);
            let mut dx = vec![0.0; ROWS * OBS];
            net.backward(data(&case, "dy"), true, Some(&mut dx)).unwrap();
            assert_near(&dx, data(&case, "dx"), name);
            assert_all_near(&net.gradients(), &case.part("grad"), name);
        }
    }
}

#[test]
fn optimizers_equal_torch() {
    let all = fixtures();
    let eps = 1e-5;
    for (name, optimizer) in [
        ("adam", Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps }),
        ("adam_w", Optimizer::AdamW { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 }),
        ("rms_prop", Optimizer::RmsProp { lr: 0.01, alpha: 0.99, eps }),
    ] {
        let case = all.part(&format!("optimizer_{name}"));
        let mut net = mlp(2, Activation::Tanh);
        net.load(&case.part("before")).unwrap();
        for _ in 0..5 {
            let mut y = vec![0.0; ROWS * 2];
            net.forward(data(&case, "x"), ROWS, &mut y).unwrap();
            let target = data(&case, "target");
            let dy: Vec<f32> = y.iter().zip(target).map(|(y, t)| (y - t) / ROWS as f32).collect();
            net.backward(&dy, true, None).unwrap();
            clipped_step(&mut [("net", &mut net)], &optimizer, Some(0.1)).unwrap();
        }
        assert_all_near(&net.tensors(), &case.part("after"), name);
    }
}

fn continuous(name: &str) -> bool {
    name == "gaussian" || name.ends_with("state_dependent")
}

/// The policy of a case.
fn policy(name: &str, case: &NamedTensors) -> PolicyNetworks<Mlp> {
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
    let outputs = distribution.outputs();
    let mut policy = if name.starts_with("shared") {
        PolicyNetworks::shared(mlp(outputs + 1, Activation::Tanh), distribution).unwrap()
    } else {
        PolicyNetworks::new(mlp(outputs, Activation::Tanh), mlp(1, Activation::Tanh), distribution).unwrap()
    };
    policy.load(&case.part("net")).unwrap();
    policy
}

#[test]
fn losses_and_their_gradients_equal_torch() {
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
            let what = format!("{algorithm}_{name}");
            let case = all.part(&what);
            let mut policy = policy(name, &case);
            let discrete: Vec<i64> = data(&case, "action").iter().map(|x| *x as i64).collect();
            let masks: Option<Vec<bool>> = case.find("mask").map(|mask| mask.data.iter().map(|x| *x != 0.0).collect());
            let batch = Minibatch {
                obs: data(&case, "obs"),
                actions: if continuous(name) {
                    Actions::Continuous(data(&case, "action"))
                } else {
                    Actions::Discrete(&discrete)
                },
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
            let mut said = vec![
                ("policy_loss", stats.policy_loss),
                ("value_loss", stats.value_loss),
                ("entropy_loss", stats.entropy_loss),
                ("loss", stats.loss),
            ];
            if ppo {
                said.extend([("approx_kl", stats.approx_kl), ("clip_fraction", stats.clip_fraction)]);
            }
            for (key, value) in said {
                assert_near(&[value], data(&case, key), &format!("{what}.{key}"));
            }
            assert_all_near(&policy.gradients(), &case.part("grad"), &what);
        }
    }
}

#[test]
fn v_trace_and_its_gradients_equal_torch() {
    let all = fixtures();
    for name in ["categorical", "gaussian"] {
        let what = format!("vtrace_{name}");
        let case = all.part(&what);
        let mut policy = policy(name, &case);
        let discrete: Vec<i64> = data(&case, "action").iter().map(|x| *x as i64).collect();
        let flags = |name| -> Vec<bool> { data(&case, name).iter().map(|x| *x != 0.0).collect() };
        let (terminated, truncated) = (flags("terminated"), flags("truncated"));
        let steps = Trajectories {
            obs: data(&case, "obs"),
            next_obs: data(&case, "next_obs"),
            actions: if continuous(name) {
                Actions::Continuous(data(&case, "action"))
            } else {
                Actions::Discrete(&discrete)
            },
            masks: None,
            log_probs: data(&case, "log_prob"),
            rewards: data(&case, "reward"),
            ends: Ends {
                terminated: &terminated,
                truncated: Some(&truncated),
                final_values: Some(data(&case, "final_value")),
            },
            num_envs: 2,
        };
        let settings = Vtrace { gamma: 0.97, rho_bar: 0.9, c_bar: 0.8, lambda: 0.95, pg_rho_bar: 1.1 };
        let mut targets = VtraceTargets::default();
        let batch = targets.minibatch(&mut policy, &steps, settings).unwrap();
        assert_near(batch.returns, data(&case, "vs"), &what);
        assert_near(batch.advantages, data(&case, "pg_advantage"), &what);
        let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
        let stats = policy.evaluate(&batch, &loss).unwrap();
        policy.backward().unwrap();
        for (key, value) in [
            ("policy_loss", stats.policy_loss),
            ("value_loss", stats.value_loss),
            ("entropy_loss", stats.entropy_loss),
            ("loss", stats.loss),
        ] {
            assert_near(&[value], data(&case, key), &format!("{what}.{key}"));
        }
        assert_all_near(&policy.gradients(), &case.part("grad"), &what);
        let short = Trajectories { log_probs: &steps.log_probs[1..], ..steps };
        let error = targets.minibatch(&mut policy, &short, settings).unwrap_err().to_string();
        assert!(error.starts_with("log_probs: expected 12 elements, got 11"), "{error}");
    }
}

#[test]
fn losses_of_a_hundred_updates_equal_torch() {
    backend::torch::losses_of_a_hundred_updates_equal_torch(Mlp::new);
}
