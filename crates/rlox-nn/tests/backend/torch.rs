//! A backend computes what PyTorch does: `fixtures/make.py` writes what it says.

use rlox_core::{Actions, EnvSpec, Pcg64, Space};
use rlox_nn::train::Schedule;
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Distribution, Init, Minibatch, NamedTensors, Network, Optimizer,
    PolicyLoss, PolicyNetworks, clipped_step,
};

use super::{Make, assert_all_near, assert_near, policy};

const ROWS: usize = 13;
const OBS: usize = 5;

fn fixtures() -> NamedTensors {
    NamedTensors::from_safetensors(include_bytes!("../fixtures/torch.safetensors")).unwrap()
}

fn data<'a>(tensors: &'a NamedTensors, name: &str) -> &'a [f32] {
    &tensors.find(name).unwrap_or_else(|| panic!("no {name}")).data
}

fn mlp<N: Network>(make: Make<N>, outputs: usize, activation: Activation) -> N {
    make(&[OBS, 20, 17, outputs], activation, Init::Kaiming, &mut Pcg64::seed_from(9)).unwrap()
}

pub fn networks_and_their_gradients_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    for name in ["tanh", "relu", "silu", "gelu"] {
        for outputs in [3, 11] {
            let case = all.part(&format!("mlp_{name}_{outputs}"));
            let mut net = mlp(make, outputs, name.parse().unwrap());
            let weights = case.part("net");
            net.load(&weights).unwrap();
            assert!(net.tensors().iter().all(|tensor| weights.find(&tensor.name) == Some(tensor)));
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

pub fn optimizers_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    let eps = 1e-5;
    for (name, optimizer) in [
        ("adam", Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps }),
        ("adam_w", Optimizer::AdamW { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 }),
        ("rms_prop", Optimizer::RmsProp { lr: 0.01, alpha: 0.99, eps }),
    ] {
        let case = all.part(&format!("optimizer_{name}"));
        let mut net = mlp(make, 2, Activation::Tanh);
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

/// The policy of a case, with these weights.
fn loaded<N: Network>(make: Make<N>, name: &str, weights: &NamedTensors) -> PolicyNetworks<N> {
    let action = match name {
        "gaussian" | "state_dependent" => Space::uniform_box(-1.0, 1.0, &[2]),
        _ => Space::discrete(3),
    };
    let distribution = if name == "state_dependent" {
        Distribution::state_dependent(&action, 17, 0.0).unwrap()
    } else {
        Distribution::new(&action, 0.0).unwrap()
    };
    let observation = Space::uniform_box(-1.0, 1.0, &[OBS]);
    let spec = EnvSpec { id: "Test-v0".into(), observation, action, max_episode_steps: None };
    let mut policy = if name == "shared" {
        PolicyNetworks::shared(mlp(make, distribution.outputs() + 1, Activation::Tanh), distribution).unwrap()
    } else {
        policy(make, &spec, distribution, 0)
    };
    policy.load(weights).unwrap();
    policy
}

pub fn losses_and_gradients_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    for (algorithm, ppo) in [("ppo", true), ("a2c", false)] {
        for name in ["categorical", "gaussian", "state_dependent", "shared"] {
            let what = format!("{algorithm}_{name}");
            let case = all.part(&what);
            let mut policy = loaded(make, name, &case.part("net"));
            let discrete: Vec<i64> = data(&case, "action").iter().map(|x| *x as i64).collect();
            let continuous = matches!(name, "gaussian" | "state_dependent");
            let numbers = Actions::Continuous(data(&case, "action"));
            let batch = Minibatch {
                obs: data(&case, "obs"),
                actions: if continuous { numbers } else { Actions::Discrete(&discrete) },
                masks: None,
                log_probs: data(&case, "log_prob"),
                values: data(&case, "value"),
                advantages: data(&case, "advantage"),
                returns: data(&case, "return"),
            };
            let loss = ActorCriticLoss {
                policy: if ppo { PolicyLoss::Clipped { clip_coef: 0.2 } } else { PolicyLoss::Gradient },
                clip_coef_vf: ppo.then_some(0.3),
                vf_coef: 0.5,
                ent_coef: 0.01,
            };
            let stats = policy.evaluate(&batch, &loss).unwrap();
            policy.backward().unwrap();
            assert_near(&[stats.loss], data(&case, "loss"), &what);
            assert_all_near(&policy.gradients(), &case.part("grad"), &what);
        }
    }
}

/// Rounding differs, and grows from step to step; so much of the curve's span, after a hundred of them, is allowed for it.
const DRIFT: f32 = 1e-3;

/// Learning rate and clipping stay, or fall to 0 in a straight line.
pub fn losses_of_a_hundred_updates_equal_torch<N: Network>(make: Make<N>) {
    let all = fixtures();
    for (name, schedule) in [("constant", Schedule::Constant), ("linear", Schedule::Linear)] {
        let case = all.part(&format!("curve_{name}"));
        let mut policy = loaded(make, name, &case.part("before"));
        let batches: Vec<_> = (0..4).map(|i| case.part(&i.to_string())).collect();
        let actions = batches.iter().map(|batch| data(batch, "action").iter().map(|x| *x as i64).collect());
        let actions: Vec<Vec<i64>> = actions.collect();
        let expected = data(&case, "losses");
        assert_eq!(expected.len(), 100);
        let ends = expected.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
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
                policy: PolicyLoss::Clipped { clip_coef: schedule.at(0.2, progress) },
                clip_coef_vf: None,
                vf_coef: 0.5,
                ent_coef: 0.01,
            };
            let lr = schedule.at(3e-3, progress);
            let adam = Optimizer::Adam { lr, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
            let got = policy.update(&minibatch, &loss, &adam, Some(0.5)).unwrap().loss;
            let allowed = DRIFT * (ends.1 - ends.0);
            assert!((got - expected).abs() <= allowed, "{name}, update {i}: {got} instead of {expected}");
        }
        for tensor in &policy.tensors() {
            let (after, before) = (case.part("after"), case.part("before"));
            let (after, before) = (data(&after, &tensor.name), data(&before, &tensor.name));
            let way = after.iter().zip(before).fold(0.0_f32, |most, (x, y)| most.max((x - y).abs()));
            for (got, expected) in tensor.data.iter().zip(after) {
                assert!((got - expected).abs() <= 0.01 * way, "{name}, {}: {got}, {expected}", tensor.name);
            }
        }
    }
}
