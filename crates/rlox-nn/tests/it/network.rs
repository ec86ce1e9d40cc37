//! Behaviour of the built-in network on any number of threads; `parity.rs` compares it to PyTorch.

use allocation_counter::measure;
use proptest::prelude::*;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Error, Pcg64, Result};
use rlox_nn::{Activation, Init, Mlp, NamedTensors, Network, Optimizer, Parameters, Workspace, clip_and_step};

use crate::support::assert_independent_of_threads;

fn draws(count: usize, seed: u128) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed);
    (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

fn net(sizes: &[usize], activation: Activation) -> Mlp {
    Mlp::new(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn gradients_equal_finite_differences(
        widths in proptest::collection::vec(1_usize..20, 2..5), rows in 1_usize..5, kind in 0_usize..3, seed: u64,
    ) {
        // ReLU is left out, because finite differences are wrong near its kink.
        let activation = [Activation::Tanh, Activation::Silu, Activation::Gelu][kind];
        let mut net = net(&widths, activation);
        let (input, output) = (widths[0], *widths.last().unwrap());
        let (mut x, dy) = (draws(rows * input, seed.into()), draws(rows * output, u128::from(seed) + 1));
        // The loss for the gradients of the parameters depends on the outputs and the last hidden
        // layer. The loss for the gradients of the inputs depends only on the outputs.
        let dh = draws(rows * net.hidden_dim(), u128::from(seed) + 2);
        let (mut y, mut h) = (vec![0.0; rows * output], vec![0.0; dh.len()]);
        net.forward(&x, rows, &mut y).unwrap();
        let mut dx = vec![0.0; x.len()];
        net.backward(&dy, false, Some(&mut dx)).unwrap();
        net.backward_hidden(&dy, &dh).unwrap();
        let mut scratch = Workspace::default();
        let mut losses = |net: &Mlp, x: &[f32]| {
            net.infer_hidden(x, rows, &mut y, &mut h, &mut scratch).unwrap();
            let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
            (dot(&y, &dy), dot(&y, &dy) + dot(&h, &dh))
        };
        let h = 1e-2_f32;
        let near = |difference: f64, gradient: f32| (difference - f64::from(gradient)).abs() < 3e-3;
        for i in 0..x.len() {
            let there = x[i];
            x[i] = there + h;
            let above = losses(&net, &x).0;
            x[i] = there - h;
            let below = losses(&net, &x).0;
            x[i] = there;
            prop_assert!(near((above - below) / f64::from(2.0 * h), dx[i]), "dx[{i}]");
        }
        let (parameters, gradients) = (net.tensors(), net.gradients());
        for (tensor, gradient) in parameters.iter().zip(&gradients) {
            // One element of each tensor is checked.
            let i = seed as usize % tensor.data.len();
            let moved = |by: f32| {
                let mut tensors = NamedTensors::default();
                for one in &parameters {
                    let mut data = one.data.clone();
                    if one.name == tensor.name {
                        data[i] += by;
                    }
                    tensors.push(one.name.clone(), &one.shape, data).unwrap();
                }
                let mut moved = net.clone();
                moved.load(&tensors).unwrap();
                moved
            };
            let difference = (losses(&moved(h), &x).1 - losses(&moved(-h), &x).1) / f64::from(2.0 * h);
            prop_assert!(near(difference, gradient.data[i]), "{}[{i}]", tensor.name);
        }
    }

    #[test]
    fn single_rows_and_batches_give_equal_bits(rows in 1_usize..40, outputs in 1_usize..12, seed: u64) {
        let mut net = net(&[3, 17, 33, outputs], Activation::Silu);
        let x = draws(rows * 3, seed.into());
        let (mut all, mut stored, mut one) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs], vec![0.0; outputs]);
        let mut scratch = Workspace::default();
        net.infer(&x, rows, &mut all, &mut scratch).unwrap();
        net.forward(&x, rows, &mut stored).unwrap();
        prop_assert_eq!(&all, &stored);
        for (x, y) in x.chunks(3).zip(all.chunks(outputs)) {
            net.infer(x, 1, &mut one, &mut scratch).unwrap();
            prop_assert_eq!(&one, y);
        }
    }
}

#[test]
fn gradients_accumulate_until_the_step() {
    let mut net = net(&[3, 8, 2], Activation::Tanh);
    let (x, dy, mut y) = (draws(12, 1), draws(8, 2), [0.0; 8]);
    net.forward(&x, 4, &mut y).unwrap();
    net.backward(&dy, true, None).unwrap();
    let once = net.gradients();
    net.backward(&dy, true, None).unwrap();
    for (twice, once) in net.gradients().iter().zip(&once) {
        for (twice, once) in twice.data.iter().zip(&once.data) {
            assert!((twice - 2.0 * once).abs() <= 1e-6, "{twice} {once}");
        }
    }
    net.apply_gradients(&Optimizer::adam(1e-3), 1.0).unwrap();
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
    net.forward(&x, 4, &mut y).unwrap();
    net.backward(&dy, false, Some(&mut [0.0; 12])).unwrap();
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
}

#[test]
fn input_gradients_use_the_current_weights() {
    let mut net = net(&[3, 8, 1], Activation::Tanh);
    let (x, mut y, mut dx) = (draws(3, 1), [0.0], [[0.0; 3]; 2]);
    net.forward(&x, 1, &mut y).unwrap();
    net.backward(&[1.0], true, Some(&mut dx[0])).unwrap();
    net.apply_gradients(&Optimizer::adam(0.1), 1.0).unwrap();
    net.forward(&x, 1, &mut y).unwrap();
    net.backward(&[1.0], false, Some(&mut dx[1])).unwrap();
    assert_ne!(dx[0], dx[1]);
    let mut other = self::net(&[3, 8, 1], Activation::Tanh);
    other.soft_update(&net, 1.0).unwrap();
    other.forward(&x, 1, &mut y).unwrap();
    other.backward(&[1.0], false, Some(&mut dx[0])).unwrap();
    assert_eq!(dx[0], dx[1]);
}

#[test]
fn hidden_returns_the_last_hidden_layer() {
    // With unit weights in the last layer, the output is the sum of the hidden layer.
    let mut net = net(&[2, 5, 1], Activation::Tanh);
    let mut tensors = NamedTensors::default();
    for tensor in &net.tensors() {
        let data = if tensor.name == "2.weight" { vec![1.0; 5] } else { tensor.data.clone() };
        let data = if tensor.name == "2.bias" { vec![0.0] } else { data };
        tensors.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    net.load(&tensors).unwrap();
    let (x, mut y, mut h) = (draws(6, 3), [0.0; 3], [0.0; 15]);
    net.infer_hidden(&x, 3, &mut y, &mut h, &mut Workspace::default()).unwrap();
    for (y, h) in y.iter().zip(h.chunks(5)) {
        assert!((y - h.iter().sum::<f32>()).abs() < 1e-6);
    }
    let mut stored = [0.0; 15];
    net.forward(&x, 3, &mut y).unwrap();
    net.hidden(&mut stored).unwrap();
    assert_eq!(h, stored);
}

#[test]
fn soft_update_moves_towards_the_online_network() {
    let (online, mut target) = (net(&[2, 4, 1], Activation::Relu), {
        Mlp::new(&[2, 4, 1], Activation::Relu, Init::Kaiming, &mut Pcg64::seed_from(6)).unwrap()
    });
    let before = target.tensors();
    target.soft_update(&online, 0.25).unwrap();
    for ((new, old), to) in target.tensors().iter().zip(&before).zip(&online.tensors()) {
        for ((new, old), to) in new.data.iter().zip(&old.data).zip(&to.data) {
            assert!((new - (0.75 * old + 0.25 * to)).abs() < 1e-6);
        }
    }
    target.soft_update(&online, 1.0).unwrap();
    assert_eq!(target.tensors(), online.tensors());
}

#[test]
fn safetensors_restore_network_and_optimizer() {
    let mut net = net(&[3, 8, 2], Activation::Tanh);
    let (x, dy, mut y) = (draws(12, 1), draws(8, 2), [0.0; 8]);
    let learn = |net: &mut Mlp, y: &mut [f32]| {
        net.forward(&x, 4, y).unwrap();
        net.backward(&dy, true, None).unwrap();
        clip_and_step(&mut [("net", net)], &Optimizer::adam(1e-2), Some(0.5)).unwrap();
    };
    learn(&mut net, &mut y);
    let through = |tensors: NamedTensors| {
        let bytes = tensors.to_safetensors();
        NamedTensors::from_safetensors(&bytes).unwrap()
    };
    let mut copy = self::net(&[3, 8, 2], Activation::Tanh);
    copy.load(&through(net.tensors())).unwrap();
    copy.load_optimizer_state(&through(net.optimizer_state())).unwrap();
    learn(&mut net, &mut y);
    learn(&mut copy, &mut y);
    assert_eq!(net.tensors(), copy.tensors());
    assert_eq!(net.optimizer_state(), copy.optimizer_state());
}

#[test]
fn truncated_files_are_rejected() {
    let bytes = net(&[3, 8, 2], Activation::Tanh).tensors().to_safetensors();
    for cut in [0, 7, 8, 100, bytes.len() - 1] {
        assert_rejects(NamedTensors::from_safetensors(&bytes[..cut]), Error::Corrupt, "file");
    }
}

#[test]
fn updates_do_not_allocate_after_the_first() {
    let mut net = net(&[4, 64, 64, 2], Activation::Gelu);
    let (x, dy, mut y) = (draws(4 * 64, 1), draws(2 * 64, 2), vec![0.0; 128]);
    let mut scratch = Workspace::default();
    let mut step = || {
        net.infer(&x, 64, &mut y, &mut scratch).unwrap();
        net.forward(&x, 64, &mut y).unwrap();
        net.backward(&dy, true, None).unwrap();
        clip_and_step(&mut [("net", &mut net)], &Optimizer::adam(1e-3), Some(0.5)).unwrap();
        net.forward(&x[..8], 2, &mut y[..4]).unwrap();
    };
    step();
    assert_eq!(measure(|| (0..3).for_each(|_| step())).count_total, 0);
}

#[test]
fn wrong_arguments_are_rejected_without_changes() {
    let mut net = net(&[3, 8, 2], Activation::Tanh);
    let before = net.tensors();
    let mut y = [0.0; 4];
    let rejects = |result: Result<()>, argument, got: &str| {
        assert_eq!(assert_rejects(result, Error::Shape, argument).got, got, "{argument}");
    };
    rejects(net.backward(&[0.0; 2], true, None), "rows", "none");
    rejects(net.hidden(&mut [0.0; 8]), "rows", "none");
    rejects(net.forward(&[0.0; 5], 2, &mut y), "x", "5");
    rejects(net.forward(&[], 0, &mut []), "rows", "0");
    net.forward(&[0.0; 6], 2, &mut y).unwrap();
    rejects(net.backward(&[0.0; 3], true, None), "dy", "3");
    rejects(net.backward(&y, true, Some(&mut [0.0; 5])), "dx", "5");
    let empty = Mlp::new(&[3, 0, 2], Activation::Tanh, Init::Kaiming, &mut Pcg64::seed_from(0));
    assert_eq!(assert_rejects(empty, Error::Config, "sizes").got, "[3, 0, 2]");
    let unknown = assert_rejects("softsign".parse::<Activation>(), Error::Config, "activation");
    assert_eq!(unknown.got, "\"softsign\"");
    let other = self::net(&[3, 9, 2], Activation::Tanh);
    let rejected = assert_rejects(net.soft_update(&other, 0.5), Error::Shape, "online");
    assert!(rejected.got.contains("[3, 9, 2]"), "{rejected}");
    let rejected = assert_rejects(net.load(&other.tensors()), Error::Shape, "tensors");
    assert_eq!(rejected.expected, "\"0.weight\" of shape [8, 3]");
    let without: NamedTensors = {
        let mut some = NamedTensors::default();
        before.iter().skip(1).for_each(|t| some.push(t.name.clone(), &t.shape, t.data.clone()).unwrap());
        some
    };
    assert_eq!(assert_rejects(net.load(&without), Error::Shape, "tensors").expected, "a tensor named \"0.weight\"");
    let mut more = before.clone();
    more.push("4.weight", &[1], vec![0.0]).unwrap();
    rejects(net.load(&more), "tensors", "one more, \"4.weight\"");
    rejects(more.push("4.weight", &[1], vec![0.0]), "tensors", "two tensors named \"4.weight\"");
    let mut spoiled = NamedTensors::default();
    for tensor in &before {
        let mut data = tensor.data.clone();
        if tensor.name == "0.weight" {
            data[4] = f32::NAN;
        }
        spoiled.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    let rejected = assert_rejects(net.load(&spoiled), Error::NotFinite, "tensors");
    assert_eq!(
        (&rejected.got[..], rejected.at.section.as_deref(), rejected.at.row),
        ("NaN", Some("0.weight"), Some(1))
    );
    assert_eq!(net.tensors(), before);
}

#[test]
fn non_finite_gradients_change_nothing() {
    let mut net = net(&[3, 8, 2], Activation::Tanh);
    let (before, mut y) = (net.tensors(), [0.0; 2]);
    net.forward(&[0.1; 3], 1, &mut y).unwrap();
    net.backward(&[f32::NAN, 0.0], true, None).unwrap();
    let result = clip_and_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), None);
    let rejected = assert_rejects(result, Error::NotFinite, "gradients");
    assert_eq!((&rejected.got[..], rejected.at.section.as_deref()), ("NaN", Some("critic.0.weight")));
    assert!(rejected.at.row.is_some());
    assert_eq!(net.tensors(), before);
    // The gradients are 0 again before the next minibatch.
    net.backward(&[1.0, 0.0], true, None).unwrap();
    assert!(clip_and_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), None).unwrap() > 0.0);
}

#[test]
fn overflow_errors_name_the_largest_gradient() {
    let mut net = net(&[3, 8, 2], Activation::Tanh);
    net.forward(&[0.1; 3], 1, &mut [0.0; 2]).unwrap();
    net.backward(&[-1e30, 1e20], true, None).unwrap();
    let result = clip_and_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), None);
    let rejected = assert_rejects(result, Error::NotFinite, "gradients");
    assert_eq!(rejected.got, "-1000000000000000000000000000000, whose square overflows");
    assert_eq!((rejected.at.section.as_deref(), rejected.at.row), (Some("critic.2.bias"), Some(0)));
}

#[test]
fn steps_to_infinity_are_rejected_with_the_tensor_name() {
    assert!(Optimizer::adam(1e30).check().is_ok());
    for too_much in [Optimizer::adam(1.1e30), Optimizer::adam_w(f32::MAX), Optimizer::rms_prop(f32::INFINITY)] {
        assert_rejects(too_much.check(), Error::Config, "lr");
    }
    // Elements 16 and 18 of this single tensor are after the last full SIMD vector of 16 numbers.
    for at in [0, 16, 18] {
        for optimizer in [Optimizer::adam(1e30), Optimizer::rms_prop(1e30)].map(|it| it.with_eps(2e-38)) {
            let mut values = [0.0; 19];
            values[at] = if at == 16 { f32::MAX } else { f32::MIN };
            let mut parameters = Parameters::new("log_std", &[19], &values).unwrap();
            parameters.add_gradients((0..19).map(|i| if i == at { -1e-30 * values[at].signum() } else { 0.0 }));
            let result = clip_and_step(&mut [("policy", &mut parameters)], &optimizer, None);
            let rejected = assert_rejects(result, Error::NotFinite, "parameters of policy");
            assert!(rejected.got.ends_with("inf"), "{rejected}");
            assert_eq!(rejected.at.section.as_deref(), Some("log_std"));
        }
    }
}

#[test]
fn max_grad_norm_must_be_non_negative() {
    let mut net = net(&[3, 8, 2], Activation::Tanh);
    let before = (net.tensors(), net.optimizer_state());
    net.forward(&[0.1; 3], 1, &mut [0.0; 2]).unwrap();
    net.backward(&[1.0, 0.0], true, None).unwrap();
    for wrong in [f32::NAN, -1.0] {
        let result = clip_and_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), Some(wrong));
        assert_eq!(assert_rejects(result, Error::Config, "max_grad_norm").got, wrong.to_string());
    }
    assert_eq!((net.tensors(), net.optimizer_state()), before);
}

#[test]
fn parameters_reject_values_that_do_not_match_the_shape() {
    assert_eq!(assert_rejects(Parameters::new("x", &[3], &[1.0]), Error::Shape, "values").got, "1");
    assert!(Parameters::new("x", &[1 << 63, 2], &[]).is_err());
    let nan = assert_rejects(Parameters::new("x", &[2, 1], &[0.0, f32::NAN]), Error::NotFinite, "values");
    assert_eq!((&nan.got[..], nan.at.row), ("NaN", Some(1)));
    for name in ["__metadata__", "a\nb"] {
        assert_rejects(Parameters::filled(name, &[1], 0.0), Error::Shape, "name");
    }
    assert!(Parameters::filled("x", &[1], f32::INFINITY).is_err());
}

#[test]
fn moments_without_gradients_decay_to_zero_without_denormals() {
    for optimizer in [
        Optimizer::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8 },
        Optimizer::RmsProp { lr: 1e-3, alpha: 0.95, eps: 1e-8 },
    ] {
        let (mut mean, mut square, mut parameters, mut gradient) = ([0.0], [0.0], [0.5], [1.0_f32]);
        for step in 1..2500 {
            assert!(optimizer.update(step).apply(1.0, &gradient, [&mut mean, &mut square], &mut parameters));
            assert!(!mean[0].is_subnormal() && !square[0].is_subnormal(), "{optimizer:?}, step {step}");
            gradient = [0.0];
        }
        assert_eq!((mean, square), ([0.0], [0.0]));
    }
}

#[test]
fn step_counts_start_at_1() {
    assert_eq!(Optimizer::adam(1e-3).update(0), Optimizer::adam(1e-3).update(1));
}

const ROWS: usize = 301;

/// Adds numbers to a checksum that depends on every bit.
fn add(sum: &mut u64, numbers: &[f32]) {
    for x in numbers {
        *sum = (*sum ^ u64::from(x.to_bits())).wrapping_mul(0x0100_0000_01b3);
    }
}

fn add_all(sum: &mut u64, tensors: &NamedTensors) {
    for tensor in tensors {
        add(sum, &tensor.data);
    }
}

/// Returns a checksum of all outputs, gradients and parameters of a network during training.
fn training_checksum(sizes: &[usize], activation: Activation) -> u64 {
    let mut net = Mlp::new(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
    let (inputs, outputs, hidden) = (net.in_dim(), net.out_dim(), net.hidden_dim());
    let (x, dy, dh) = (draws(ROWS * inputs, 1), draws(ROWS * outputs, 2), draws(ROWS * hidden, 3));
    // Two thirds of the rows have a gradient of 0.
    let some: Vec<f32> = dy.iter().enumerate().map(|(i, x)| if i / outputs % 3 == 0 { *x } else { 0.0 }).collect();
    let (mut y, mut dx, mut h) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; ROWS * hidden]);
    let (mut sum, mut scratch) = (0, Workspace::default());
    for _ in 0..2 {
        net.infer_hidden(&x, ROWS, &mut y, &mut h, &mut scratch).unwrap();
        add(&mut sum, &y);
        add(&mut sum, &h);
        net.forward(&x, ROWS, &mut y).unwrap();
        net.hidden(&mut h).unwrap();
        add(&mut sum, &y);
        add(&mut sum, &h);
        net.backward(&some, false, Some(&mut dx)).unwrap();
        add(&mut sum, &dx);
        // The gradients of three backward passes are added up.
        net.backward(&dy, true, Some(&mut dx)).unwrap();
        net.backward(&some, true, None).unwrap();
        net.backward_hidden(&dy, &dh).unwrap();
        add(&mut sum, &dx);
        add_all(&mut sum, &net.gradients());
        sum ^= net.grad_norm_sq().unwrap().to_bits();
        net.apply_gradients(&Optimizer::adam(1e-2), 0.5).unwrap();
        add_all(&mut sum, &net.tensors());
        add_all(&mut sum, &net.optimizer_state());
    }
    sum
}

/// Returns checksums of networks that are so large that two threads divide rows and parameters.
fn all_training_checksums() -> Vec<u64> {
    let sizes: [&[usize]; 5] =
        [&[3, 256, 256, 1], &[5, 200, 300, 12], &[300, 300], &[70, 600, 2], &[3, 90, 90, 90, 40]];
    let activations = [Activation::Relu, Activation::Tanh, Activation::Silu];
    sizes.iter().flat_map(|sizes| activations.map(|activation| training_checksum(sizes, activation))).collect()
}

#[test]
fn networks_do_not_depend_on_the_number_of_threads() {
    let name = "network::networks_do_not_depend_on_the_number_of_threads";
    assert_independent_of_threads(name, || format!("{:?}", all_training_checksums()));
}

#[test]
fn rows_with_zero_gradient_do_not_affect_other_rows() {
    for activation in [Activation::Relu, Activation::Gelu] {
        for sizes in [&[4, 40, 33, 1][..], &[4, 40, 33, 20], &[4, 256, 256, 1]] {
            let mut net = Mlp::new(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
            let outputs = net.out_dim();
            let (x, mut dy) = (draws(100 * 4, 1), draws(100 * outputs, 2));
            let (mut all, mut some, mut y) = (vec![0.0; 400], vec![9.0; 400], vec![0.0; dy.len()]);
            net.forward(&x, 100, &mut y).unwrap();
            net.backward(&dy, false, Some(&mut all)).unwrap();
            for (row, dy) in dy.chunks_mut(outputs).enumerate() {
                if row % 3 != 1 {
                    dy.fill(0.0);
                    all[row * 4..][..4].fill(0.0);
                }
            }
            net.backward(&dy, false, Some(&mut some)).unwrap();
            assert_eq!(some, all, "{activation:?} {sizes:?}");
            net.backward(&vec![0.0; dy.len()], false, Some(&mut some)).unwrap();
            assert_eq!(some, [0.0; 400], "{activation:?} {sizes:?}");
        }
    }
}
