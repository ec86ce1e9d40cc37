//! Tests that backends compute the same results as the built-in network.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rlox_core::{Actions, EnvSpec, Pcg64, Space};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Init, Minibatch, NamedTensors, Network, Optimizer, PolicyBuilder,
    PolicyLoss, Workspace, clip_and_step,
};

use crate::{ACTIVATIONS, Make, assert_all_near, assert_near, draws, pair};

pub fn passes_equal_built_in_network<N: Network>(make: Make<N>) {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() });
    let cases = (proptest::collection::vec(1_usize..70, 2..6), 1_usize..70, 0_usize..4, any::<u64>());
    let check_case = |(sizes, rows, kind, seed): (Vec<_>, _, _, _)| {
        check_passes(make, &sizes, rows, kind, seed);
        Ok(())
    };
    runner.run(&cases, check_case).unwrap();
}

fn check_passes<N: Network>(make: Make<N>, sizes: &[usize], rows: usize, kind: usize, seed: u64) {
    let (mut net, mut built_in) = pair(make, sizes, ACTIVATIONS[kind]);
    let (input, output, hidden) = (built_in.in_dim(), built_in.out_dim(), built_in.hidden_dim());
    assert_eq!((net.in_dim(), net.out_dim(), net.hidden_dim()), (input, output, hidden));
    let (x, dy) = (draws(rows * input, seed.into()), draws(rows * output, u128::from(seed) + 1));
    let zeros = |count: usize| vec![0.0; rows * count];
    let (mut y, mut expected) = (zeros(output), zeros(output));
    built_in.forward(&x, rows, &mut expected).unwrap();
    net.forward(&x, rows, &mut y).unwrap();
    assert_near(&y, &expected, "forward");
    let (mut inferred, mut h, mut stored_hidden, mut expected_hidden) =
        (zeros(output), zeros(hidden), zeros(hidden), zeros(hidden));
    let mut workspace = Workspace::default();
    net.infer(&x, rows, &mut inferred, &mut workspace).unwrap();
    assert_near(&inferred, &expected, "infer");
    inferred.fill(0.0);
    net.infer_hidden(&x, rows, &mut inferred, &mut h, &mut workspace).unwrap();
    assert_near(&inferred, &expected, "infer_hidden");
    built_in.hidden(&mut expected_hidden).unwrap();
    net.hidden(&mut stored_hidden).unwrap();
    assert_near(&h, &expected_hidden, "the hidden layer of infer_hidden");
    assert_near(&stored_hidden, &expected_hidden, "hidden");
    let (mut dx, mut expected) = (zeros(input), zeros(input));
    built_in.backward(&dy, false, Some(&mut expected)).unwrap();
    net.backward(&dy, false, Some(&mut dx)).unwrap();
    assert_near(&dx, &expected, "dx");
    // Backward passes without `params` compute no gradients of parameters. Passes with `params` add
    // them up.
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
    assert_eq!(net.gradients(), built_in.gradients());
    for times in 1..3 {
        dx.fill(0.0);
        net.backward(&dy, true, Some(&mut dx)).unwrap();
        built_in.backward(&dy, true, None).unwrap();
        assert_near(&dx, &expected, "dx");
        assert_all_near(&net.gradients(), &built_in.gradients(), &format!("gradients, {times}"));
        assert_near(&[net.grad_norm_sq().unwrap() as f32], &[built_in.grad_norm_sq().unwrap() as f32], "grad_sq");
    }
    // `zero_gradients` clears the gradients.
    net.zero_gradients();
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
    net.backward(&dy, true, None).unwrap();
    built_in.zero_gradients();
    built_in.backward(&dy, true, None).unwrap();
    assert_all_near(&net.gradients(), &built_in.gradients(), "gradients after they were dropped");
    // `backward_hidden` adds to the gradients as well.
    let dh = draws(rows * hidden, u128::from(seed) + 2);
    net.backward_hidden(&dy, &dh).unwrap();
    built_in.backward_hidden(&dy, &dh).unwrap();
    assert_all_near(&net.gradients(), &built_in.gradients(), "gradients through the hidden layer");
    assert_near(&[net.grad_norm_sq().unwrap() as f32], &[built_in.grad_norm_sq().unwrap() as f32], "grad_sq");
}

pub fn rows_do_not_depend_on_each_other<N: Network>(make: Make<N>) {
    let (net, _) = pair(make, &[9, 70, 33, 5], Activation::Tanh);
    let (mut x, mut y, mut workspace) = (draws(64 * 9, 1), vec![0.0; 64 * 5], Workspace::default());
    // A NaN in one row must not reach other rows.
    x[9 * 20..9 * 21].fill(f32::NAN);
    net.infer(&x, 64, &mut y, &mut workspace).unwrap();
    for (row, (x, y)) in x.chunks_exact(9).zip(y.chunks_exact(5)).enumerate() {
        let mut alone = [0.0; 5];
        net.infer(x, 1, &mut alone, &mut workspace).unwrap();
        for (together, alone) in y.iter().zip(alone) {
            assert!((together - alone).abs() <= 1e-6 || (row == 20 && alone.is_nan() && together.is_nan()), "{row}");
        }
    }
}

fn optimizers() -> [Optimizer; 3] {
    let eps = 1e-5;
    [
        Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps },
        Optimizer::AdamW { lr: 0.01, beta1: 0.8, beta2: 0.99, eps, weight_decay: 0.1 },
        Optimizer::RmsProp { lr: 0.01, alpha: 0.99, eps },
    ]
}

/// Makes one optimiser step towards random targets, with a clipped gradient. Returns the gradient
/// norm.
fn learn(net: &mut impl Network, optimizer: &Optimizer) -> f32 {
    let (x, target, mut y) = (draws(13 * 5, 1), draws(13 * 2, 2), [0.0; 26]);
    net.forward(&x, 13, &mut y).unwrap();
    let dy: Vec<f32> = y.iter().zip(&target).map(|(y, t)| (y - t) / 13.0).collect();
    net.backward(&dy, true, None).unwrap();
    clip_and_step(&mut [("net", net)], optimizer, Some(0.1)).unwrap()
}

pub fn optimizers_equal_built_in_network<N: Network>(make: Make<N>) {
    for optimizer in optimizers() {
        for activation in ACTIVATIONS {
            let (mut net, mut built_in) = pair(make, &[5, 20, 17, 2], activation);
            for _ in 0..5 {
                assert_near(&[learn(&mut net, &optimizer)], &[learn(&mut built_in, &optimizer)], "norm");
            }
            let label = format!("{optimizer:?} {activation:?}");
            assert_all_near(&net.tensors(), &built_in.tensors(), &label);
            assert_all_near(&net.optimizer_state(), &built_in.optimizer_state(), &label);
            // A step clears the gradients. A step without gradients still updates the running
            // means.
            assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
            net.apply_gradients(&optimizer, 1.0).unwrap();
            built_in.apply_gradients(&optimizer, 1.0).unwrap();
            assert_all_near(&net.tensors(), &built_in.tensors(), &label);
        }
    }
}

/// Returns the changes of a parameter by torch's formulas, one per gradient, computed in f64.
fn exact_steps(optimizer: &Optimizer, gradients: &[f32]) -> Vec<f64> {
    let [mut m, mut v] = [0.0; 2];
    let steps = gradients.iter().zip(1..).map(|(g, t)| {
        let g = f64::from(*g);
        match *optimizer {
            Optimizer::Adam { lr, beta1, beta2, eps } => {
                let [lr, beta1, beta2, eps] = [lr, beta1, beta2, eps].map(f64::from);
                m = beta1 * m + (1.0 - beta1) * g;
                v = beta2 * v + (1.0 - beta2) * g * g;
                let [first, second] = [beta1, beta2].map(|beta| 1.0 - beta.powi(t));
                lr * (m / first) / ((v / second).sqrt() + eps)
            }
            Optimizer::RmsProp { lr, alpha, eps } => {
                let [lr, alpha, eps] = [lr, alpha, eps].map(f64::from);
                v = alpha * v + (1.0 - alpha) * g * g;
                lr * g / (v.sqrt() + eps)
            }
            Optimizer::AdamW { .. } => unreachable!("not tested"),
        }
    });
    steps.collect()
}

pub fn small_gradients_follow_torch_formulas<N: Network>(make: Make<N>) {
    for (g, eps) in [(1e-16_f32, 1e-8), (1e-16, 1e-20), (1e-15, 1e-30), (1e-18, 1e-30), (3e-19, 1e-35)] {
        for optimizer in [Optimizer::adam(1e-2).with_eps(eps), Optimizer::rms_prop(1e-2).with_eps(eps)] {
            let (mut net, _) = pair(make, &[1, 1], ACTIVATIONS[0]);
            // A step without a gradient may round a subnormal mean of squared gradients to 0.
            let gradients = if g * g < 1e-37 { &[g; 3][..] } else { &[g, g, g, 0.0, 0.0, -g] };
            for (gradient, step) in gradients.iter().zip(exact_steps(&optimizer, gradients)) {
                let parameter = |net: &N| f64::from(net.tensors().find("0.weight").unwrap().data[0]);
                let before = parameter(&net);
                net.forward(&[1.0], 1, &mut [0.0]).unwrap();
                net.backward(&[*gradient], true, None).unwrap();
                net.apply_gradients(&optimizer, 1.0).unwrap();
                let moved = before - parameter(&net);
                assert!((moved - step).abs() < 1e-5 + 1e-3 * step.abs(), "{optimizer:?}, {g}: {moved}, not {step}");
            }
        }
    }
}

const ROWS: usize = 64;

fn spec(action: Space) -> EnvSpec {
    EnvSpec { id: "Test-v0".into(), observation: Space::uniform_box(-1.0, 1.0, &[4]), action, max_episode_steps: None }
}

/// Random numbers of a minibatch.
struct Drawn {
    obs: Vec<f32>,
    discrete: Option<Vec<i64>>,
    continuous: Vec<f32>,
    targets: [Vec<f32>; 4],
}

impl Drawn {
    fn new(space: &Space, seed: u128) -> Self {
        let mut rng = Pcg64::seed_from(seed);
        let discrete = matches!(space, Space::Discrete { .. });
        let discrete = discrete.then(|| (0..ROWS).map(|_| rng.integers(0, 2)).collect());
        let mut targets = [1, 2, 3, 4].map(|offset| draws(ROWS, seed * 10 + offset));
        // The log-probabilities are near those of an untrained policy.
        targets[0].iter_mut().for_each(|x| *x = -0.7 + 0.1 * *x);
        Self { obs: draws(ROWS * 4, seed * 10 + 5), discrete, continuous: draws(ROWS * 2, seed * 10 + 6), targets }
    }

    fn minibatch(&self) -> Minibatch<'_> {
        let [log_probs, values, advantages, returns] = &self.targets;
        let actions = self.discrete.as_deref().map_or(Actions::Continuous(&self.continuous), Actions::Discrete);
        Minibatch { obs: &self.obs, actions, masks: None, log_probs, values, advantages, returns }
    }
}

const LOSS: ActorCriticLoss = ActorCriticLoss {
    policy: PolicyLoss::Clipped { clip_coef: 0.2 },
    clip_coef_vf: Some(0.3),
    vf_coef: 0.5,
    ent_coef: 0.01,
};

pub fn policy_gradients_equal_built_in_network<N: Network>(make: Make<N>) {
    let numbers = Space::uniform_box(-1.0, 1.0, &[2]);
    for (space, sde) in [(Space::discrete(2), false), (numbers.clone(), false), (numbers, true)] {
        let (spec, drawn) = (spec(space.clone()), Drawn::new(&space, 3));
        let builder = PolicyBuilder::new(&spec).net_arch(&[20, 17]).use_sde(sde).log_std_init(-1.0);
        let mut net = builder.build_with(&mut Pcg64::seed_from(1), make).unwrap();
        let mut built_in = builder.build(&mut Pcg64::seed_from(1)).unwrap();
        assert_eq!(net.tensors(), built_in.tensors());
        let (stats, expected) = (net.evaluate(&drawn.minibatch(), &LOSS), built_in.evaluate(&drawn.minibatch(), &LOSS));
        assert_near(&[stats.unwrap().loss], &[expected.unwrap().loss], "loss");
        net.backward().unwrap();
        built_in.backward().unwrap();
        assert_all_near(&net.gradients(), &built_in.gradients(), &format!("{space:?}, sde {sde}"));
    }
}

/// Maximum relative difference of losses during a hundred updates, caused by accumulated rounding
/// errors.
const DRIFT: f32 = 1e-4;

pub fn losses_equal_built_in_network_for_a_hundred_updates<N: Network>(make: Make<N>) {
    let space = Space::discrete(2);
    let spec = spec(space.clone());
    let builder = PolicyBuilder::new(&spec).net_arch(&[20, 17]);
    let mut net = builder.build_with(&mut Pcg64::seed_from(1), make).unwrap();
    let mut built_in = builder.build(&mut Pcg64::seed_from(1)).unwrap();
    let adam = Optimizer::Adam { lr: 3e-3, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
    let minibatches: Vec<_> = (0..4).map(|i| Drawn::new(&space, 100 + i)).collect();
    let loss = ActorCriticLoss { clip_coef_vf: None, ..LOSS };
    let mut losses = Vec::new();
    for i in 0..100 {
        let batch = minibatches[i % 4].minibatch();
        let got = net.update(&batch, &loss, &adam, Some(0.5)).unwrap();
        let expected = built_in.update(&batch, &loss, &adam, Some(0.5)).unwrap();
        let allowed = DRIFT * expected.loss.abs().max(0.01);
        assert!((got.loss - expected.loss).abs() <= allowed, "{i}: {} instead of {}", got.loss, expected.loss);
        losses.push(expected.loss);
    }
    // The losses must decrease, because the equality of constant losses would prove nothing.
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert!(mean(&losses[92..]) < mean(&losses[..8]) - 0.02, "{} {}", mean(&losses[..8]), mean(&losses[92..]));
}

pub fn weights_and_optimizer_states_round_trip<N: Network>(make: Make<N>) {
    let round_trip = |tensors: NamedTensors| NamedTensors::from_safetensors(&tensors.to_safetensors()).unwrap();
    for optimizer in optimizers() {
        let (mut net, mut built_in) = pair(make, &[5, 20, 17, 2], ACTIVATIONS[0]);
        learn(&mut net, &optimizer);
        let (weights, state) = (round_trip(net.tensors()), round_trip(net.optimizer_state()));
        built_in.load(&weights).unwrap();
        built_in.load_optimizer_state(&state).unwrap();
        assert_eq!((built_in.tensors(), built_in.optimizer_state()), (weights, state));
        let mut other = make(&[5, 20, 17, 2], ACTIVATIONS[0], Init::Kaiming, &mut Pcg64::seed_from(6)).unwrap();
        other.load(&round_trip(built_in.tensors())).unwrap();
        other.load_optimizer_state(&round_trip(built_in.optimizer_state())).unwrap();
        assert_eq!((other.tensors(), other.optimizer_state()), (net.tensors(), net.optimizer_state()));
        // Training continues with the loaded state.
        learn(&mut net, &optimizer);
        learn(&mut other, &optimizer);
        assert_eq!((other.tensors(), other.optimizer_state()), (net.tensors(), net.optimizer_state()));
    }
}

pub fn soft_updates_interpolate_parameters<N: Network>(make: Make<N>) {
    let (online, _) = pair(make, &[2, 4, 1], ACTIVATIONS[1]);
    let mut target = make(&[2, 4, 1], ACTIVATIONS[1], Init::Kaiming, &mut Pcg64::seed_from(6)).unwrap();
    let before = target.tensors();
    target.soft_update(&online, 0.25).unwrap();
    for ((new, old), online) in target.tensors().iter().zip(&before).zip(&online.tensors()) {
        for ((new, old), online) in new.data.iter().zip(&old.data).zip(&online.data) {
            assert!((new - (0.75 * old + 0.25 * online)).abs() < 1e-6);
        }
    }
    target.soft_update(&online, 1.0).unwrap();
    assert_eq!(target.tensors(), online.tensors());
    // Inference uses the new parameters, too.
    let (x, mut y, mut expected, mut workspace) = (draws(2, 1), [0.0], [0.0], Workspace::default());
    target.infer(&x, 1, &mut y, &mut workspace).unwrap();
    online.infer(&x, 1, &mut expected, &mut workspace).unwrap();
    assert_eq!(y, expected);
}

pub fn clones_are_independent<N: Network + Clone>(make: Make<N>) {
    let (mut net, _) = pair(make, &[5, 8, 2], ACTIVATIONS[2]);
    let (x, dy, mut y) = (draws(15, 1), draws(6, 2), [0.0; 6]);
    net.forward(&x, 3, &mut y).unwrap();
    let mut copy = net.clone();
    let (mut dx, mut copy_dx) = ([0.0; 15], [0.0; 15]);
    copy.backward(&dy, true, Some(&mut copy_dx)).unwrap();
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
    net.backward(&dy, true, Some(&mut dx)).unwrap();
    assert_eq!(dx, copy_dx);
    assert_eq!(net.gradients(), copy.gradients());
    let before = net.tensors();
    copy.apply_gradients(&Optimizer::adam(0.1), 1.0).unwrap();
    assert_ne!(copy.tensors(), before);
    assert_eq!(net.tensors(), before);
}

/// Output `y = f(x)` of a network, and gradients of `sum(dy * y)`, computed by another library.
#[derive(Debug)]
pub struct Derivatives {
    pub y: Vec<f32>,
    pub dx: Vec<f32>,
    /// Gradients of the parameters, in the order of the parameters.
    pub parameters: Vec<Vec<f32>>,
}

/// Function that computes [`Derivatives`] with a library's own operations. The arguments are the
/// parameters, the activation, `x`, `dy` and the number of rows.
pub type Differentiate = fn(&NamedTensors, Activation, &[f32], &[f32], usize) -> Derivatives;

pub fn gradients_equal_library<N: Network>(make: Make<N>, differentiate: Differentiate) {
    for activation in ACTIVATIONS {
        for (sizes, rows) in [(&[3, 2][..], 1), (&[1, 1, 1], 3), (&[5, 20, 17, 3], 13), (&[4, 64, 64, 2], 64)] {
            let label = format!("{activation:?}, {sizes:?}, {rows} rows");
            let (mut net, _) = pair(make, sizes, activation);
            let (x, dy) = (draws(rows * net.in_dim(), 1), draws(rows * net.out_dim(), 2));
            let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
            net.forward(&x, rows, &mut y).unwrap();
            net.backward(&dy, true, Some(&mut dx)).unwrap();
            let expected = differentiate(&net.tensors(), activation, &x, &dy, rows);
            assert_near(&y, &expected.y, &format!("{label}: y"));
            assert_near(&dx, &expected.dx, &format!("{label}: dx"));
            let gradients = net.gradients();
            assert_eq!(gradients.len(), expected.parameters.len());
            for (gradient, expected) in gradients.iter().zip(&expected.parameters) {
                assert!(expected.iter().any(|x| *x != 0.0), "{label}: {}", gradient.name);
                assert_near(&gradient.data, expected, &format!("{label}: {}", gradient.name));
            }
        }
    }
}
