//! Tests that backends reject invalid arguments with the errors of the built-in network, and that
//! their state then stays unchanged.

use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::{Actions, EnvSpec, Error, Pcg64, Result, Space};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Init, Minibatch, Mlp, NamedTensors, Network, Optimizer, PolicyBuilder,
    PolicyLoss, Workspace, clip_and_step,
};

use crate::{Make, draws, pair};

/// Checks that both errors have the same variant and the same fields.
fn assert_same_error<T>(got: Result<T>, expected: Result<T>, label: &str) {
    let fields = |result: Result<T>| match result {
        Ok(_) => panic!("{label} is not rejected"),
        Err(error @ Error::Backend(_)) => panic!("{label}: {error}"),
        // The amount of free memory changes from call to call.
        Err(Error::Memory(mismatch)) => format!("Memory({})", mismatch.argument),
        Err(error) => format!("{error:?}"),
    };
    assert_eq!(fields(got), fields(expected), "{label}");
}

/// Returns a copy of the tensors with edited data.
fn edited(tensors: &NamedTensors, edit: impl Fn(&str, &mut Vec<f32>)) -> NamedTensors {
    let mut edited = NamedTensors::default();
    for tensor in tensors {
        let mut data = tensor.data.clone();
        edit(&tensor.name, &mut data);
        edited.push(tensor.name.clone(), &tensor.shape, data).unwrap();
    }
    edited
}

pub fn invalid_arguments_give_errors_of_built_in_network<N: Network>(make: Make<N>) {
    for sizes in [&[][..], &[3], &[3, 0, 2], &[usize::MAX, 2], &[1 << 20, 1 << 20]] {
        let rng = &mut Pcg64::seed_from(0);
        let expected = Mlp::new(sizes, Activation::Tanh, Init::Kaiming, rng).map(|_| ());
        assert_same_error(
            make(sizes, Activation::Tanh, Init::Kaiming, rng).map(|_| ()),
            expected,
            &format!("{sizes:?}"),
        );
    }
    let (mut net, mut built_in) = pair(make, &[3, 8, 2], Activation::Tanh);
    let before = (net.tensors(), net.optimizer_state());
    macro_rules! both {
        (|$net:ident| $call:expr) => {{
            let $net = &mut net;
            let got = $call;
            let $net = &mut built_in;
            assert_same_error(got, $call, stringify!($call));
        }};
    }
    let (y, h, workspace) = (&mut [0.0; 4], &mut [0.0; 16], &mut Workspace::default());
    both!(|net| net.backward(&[0.0; 2], true, None));
    both!(|net| net.backward_hidden(&[0.0; 4], &[0.0; 16]));
    both!(|net| net.forward(&[0.0; 5], 2, y));
    both!(|net| net.forward(&[0.0; 6], 2, &mut y[..3]));
    both!(|net| net.forward(&[], 0, &mut []));
    both!(|net| net.infer(&[0.0; 6], usize::MAX, y, workspace));
    both!(|net| net.infer(&[0.0; 7], 2, y, workspace));
    both!(|net| net.infer_hidden(&[0.0; 6], 2, y, &mut h[..15], workspace));
    both!(|net| net.infer_hidden(&[], 0, &mut [], &mut [], workspace));
    assert_eq!(assert_rejects(net.infer_hidden(&[], 0, &mut [], &mut [], workspace), Error::Shape, "rows").got, "0");
    both!(|net| net.hidden(&mut h[..8]));
    net.forward(&[0.0; 6], 2, y).unwrap();
    built_in.forward(&[0.0; 6], 2, y).unwrap();
    both!(|net| net.hidden(&mut h[..15]));
    both!(|net| net.backward(&[0.0; 3], true, None));
    both!(|net| net.backward(&[0.0; 4], true, Some(&mut h[..5])));
    for (dy, dh) in [(3, 16), (4, 15), (4, 0), (0, 0), (4, 17)] {
        both!(|net| net.backward_hidden(&[0.0; 4][..dy], &[0.0; 17][..dh]));
    }
    assert_eq!(assert_rejects(net.backward_hidden(&[0.0; 4], &[0.0; 15]), Error::Shape, "dh").got, "15");
    both!(|net| net.apply_gradients(&Optimizer::adam(-1.0), 1.0));
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
    both!(|net| net
        .backward(&[1.0; 4], true, None)
        .and_then(|()| net.apply_gradients(&Optimizer::adam(1.0), f32::NAN)));
    let gradients = net.gradients();
    for scale in [f32::INFINITY, -1.0] {
        both!(|net| net.apply_gradients(&Optimizer::adam(1e-3), scale));
    }
    assert_eq!((net.tensors(), net.optimizer_state(), net.gradients()), (before.0, before.1, gradients));
}

pub fn invalid_tensors_and_networks_give_errors_of_built_in_network<N: Network>(make: Make<N>) {
    let (mut net, mut built_in) = pair(make, &[3, 8, 2], Activation::Tanh);
    let (weights, state) = (net.tensors(), net.optimizer_state());
    let (other, other_built_in) = pair(make, &[3, 9, 2], Activation::Tanh);
    assert_same_error(net.soft_update(&other, 0.5), built_in.soft_update(&other_built_in, 0.5), "another width");
    let (other, other_built_in) = pair(make, &[3, 8, 2], Activation::Relu);
    assert_same_error(net.soft_update(&other, 0.5), built_in.soft_update(&other_built_in, 0.5), "another activation");
    let (same, same_built_in) = pair(make, &[3, 8, 2], Activation::Tanh);
    for tau in [-0.1, 1.5, f32::NAN] {
        assert_same_error(net.soft_update(&same, tau), built_in.soft_update(&same_built_in, tau), "tau");
    }
    let (wider_net, _) = pair(make, &[3, 9, 2], Activation::Tanh);
    let mut more = weights.clone();
    more.push("4.weight", &[1], vec![0.0]).unwrap();
    let with_last_value = |name: &'static str, number: f32| {
        move |tensor_name: &str, data: &mut Vec<f32>| {
            if tensor_name == name {
                let last = data.len() - 1;
                data[last] = number;
            }
        }
    };
    assert!(more.push("0.weight", &[1], vec![0.0]).is_err(), "a duplicate name is accepted");
    let with_nan = edited(&weights, with_last_value("0.weight", f32::NAN));
    let cases: [(_, Variant, _, _); 4] = [
        (NamedTensors::default(), Error::Shape, r#"a tensor named "0.weight""#, ""),
        (wider_net.tensors(), Error::Shape, r#""0.weight" of shape [8, 3]"#, ""),
        (more, Error::Shape, "", r#"one more, "4.weight""#),
        (with_nan, Error::NotFinite, "finite numbers", "NaN"),
    ];
    for (invalid, variant, expected, got) in cases {
        assert_same_error(net.load(&invalid), built_in.load(&invalid), "weights");
        let rejected = assert_rejects(net.load(&invalid), variant, "tensors");
        assert!(rejected.expected.contains(expected) && rejected.got.contains(got), "{rejected}");
        let location = (rejected.at.section.as_deref(), rejected.at.row);
        assert_eq!(location, if got == "NaN" { (Some("0.weight"), Some(7)) } else { (None, None) });
    }
    for invalid in [
        weights.clone(),
        wider_net.optimizer_state(),
        edited(&state, with_last_value("step", 0.5)),
        edited(&state, with_last_value("0.weight.exp_avg", f32::INFINITY)),
        edited(&state, with_last_value("2.bias.exp_avg_sq", -1e-9)),
    ] {
        assert_same_error(net.load_optimizer_state(&invalid), built_in.load_optimizer_state(&invalid), "state");
    }
    assert_eq!((net.tensors(), net.optimizer_state()), (weights, state));
}

/// Checks that backward passes fail after the parameters of the forward pass have changed.
pub fn parameter_changes_invalidate_forward_pass<N: Network>(make: Make<N>) {
    let changes: [fn(&mut N, &N); 4] = [
        |net, _| net.apply_gradients(&Optimizer::adam(1e-3), 1.0).unwrap(),
        |net, other| net.load(&other.tensors()).unwrap(),
        |net, other| net.soft_update(other, 0.5).unwrap(),
        |net, other| net.soft_update(other, 1.0).unwrap(),
    ];
    let (other, _) = pair(make, &[3, 8, 2], Activation::Tanh);
    for change in changes {
        let (mut net, _) = pair(make, &[3, 8, 2], Activation::Tanh);
        net.forward(&draws(3, 1), 1, &mut [0.0; 2]).unwrap();
        net.backward(&[1.0, 0.0], true, None).unwrap();
        // Backward passes may be repeated until the parameters change.
        net.backward(&[1.0, 0.0], true, None).unwrap();
        change(&mut net, &other);
        net.zero_gradients();
        let hidden_result = net.backward_hidden(&[1.0, 0.0], &[0.0; 8]);
        for result in [net.backward(&[1.0, 0.0], true, None), hidden_result, net.hidden(&mut [0.0; 8])] {
            assert_eq!(assert_rejects(result, Error::Shape, "rows").got, "none");
        }
        assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
        net.forward(&draws(3, 1), 1, &mut [0.0; 2]).unwrap();
        net.backward(&[1.0, 0.0], true, None).unwrap();
    }
}

pub fn nan_gradients_change_nothing<N: Network>(make: Make<N>) {
    let (mut net, _) = pair(make, &[3, 8, 2], Activation::Tanh);
    let (before, mut y) = (net.tensors(), [0.0; 2]);
    net.forward(&draws(3, 1), 1, &mut y).unwrap();
    net.backward(&[f32::NAN, 0.0], true, None).unwrap();
    let result = clip_and_step(&mut [("critic", &mut net)], &Optimizer::adam(1e-3), None);
    let rejected = assert_rejects(result, Error::NotFinite, "gradients");
    assert_eq!((&rejected.got[..], rejected.at.section.as_deref()), ("NaN", Some("critic.0.weight")));
    assert!(rejected.at.row.is_some());
    assert_eq!(net.tensors(), before);
    assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
}

/// Checks that gradients whose squares overflow are rejected.
///
/// An infinite mean of squared gradients would make all later steps of the parameter 0.
pub fn gradients_whose_squares_overflow_change_nothing<N: Network>(make: Make<N>) {
    for optimizer in [Optimizer::adam(1e-3), Optimizer::adam_w(1e-3), Optimizer::rms_prop(1e-3)] {
        for (gradient, scale) in [(3e19, 1.0), (3e9, 1e10)] {
            let (mut net, _) = pair(make, &[3, 8, 2], Activation::Tanh);
            let before = (net.tensors(), net.optimizer_state());
            net.forward(&draws(3, 1), 1, &mut [0.0; 2]).unwrap();
            net.backward(&[gradient, 0.0], true, None).unwrap();
            let rejected = assert_rejects(net.apply_gradients(&optimizer, scale), Error::NotFinite, "gradients");
            assert_eq!(rejected.got, format!("{gradient}, whose square overflows"));
            assert_eq!((rejected.at.section.as_deref(), rejected.at.row), (Some("2.bias"), Some(0)));
            assert_eq!((net.tensors(), net.optimizer_state()), before);
            if scale > 1.0 {
                // The gradients remain, and their squares are finite without the scale.
                net.apply_gradients(&optimizer, 1.0).unwrap();
                assert_eq!(net.grad_norm_sq().unwrap(), 0.0);
                let square = net.optimizer_state().find("2.bias.exp_avg_sq").unwrap().data[0];
                assert!(square > 0.0 && square.is_finite(), "{square}");
            }
        }
        let (mut net, mut other) = pair(make, &[3, 8, 2], Activation::Tanh);
        let before = (net.tensors(), net.optimizer_state(), other.tensors(), other.optimizer_state());
        other.forward(&draws(3, 1), 1, &mut [0.0; 2]).unwrap();
        other.backward(&[1.0, 0.0], true, None).unwrap();
        net.forward(&draws(3, 1), 1, &mut [0.0; 2]).unwrap();
        net.backward(&[3e19, 0.0], true, None).unwrap();
        let result = clip_and_step(&mut [("actor", &mut other), ("critic", &mut net)], &optimizer, None);
        let rejected = assert_rejects(result, Error::NotFinite, "gradients");
        assert_eq!(rejected.got, "30000000000000000000, whose square overflows");
        assert_eq!((rejected.at.section.as_deref(), rejected.at.row), (Some("critic.2.bias"), Some(0)));
        assert_eq!((net.tensors(), net.optimizer_state(), other.tensors(), other.optimizer_state()), before);
        assert_eq!([net.grad_norm_sq().unwrap(), other.grad_norm_sq().unwrap()], [0.0; 2]);
    }
}

pub fn nan_actions_change_nothing<N: Network>(make: Make<N>) {
    let [observation, action] = [3, 1].map(|n| Space::uniform_box(-1.0, 1.0, &[n]));
    let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
    let mut policy = PolicyBuilder::new(&spec).build_with(&mut Pcg64::seed_from(0), make).unwrap();
    let before = (policy.tensors(), policy.optimizer_state());
    let (obs, actions, numbers) = (draws(6, 1), [0.1, f32::NAN], [0.5; 2]);
    let [log_probs, values, advantages, returns] = [&numbers[..]; 4];
    let actions = Actions::Continuous(&actions);
    let batch = Minibatch { obs: &obs, actions, masks: None, log_probs, values, advantages, returns };
    let policy_loss = PolicyLoss::Clipped { clip_coef: 0.2 };
    let loss = ActorCriticLoss { policy: policy_loss, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
    for result in [
        policy.evaluate(&batch, &loss).map(drop),
        policy.update(&batch, &loss, &Optimizer::adam(1e-3), None).map(drop),
        policy.evaluate_actions(&obs, None, actions, &mut [0.0; 2], &mut [0.0; 2]),
    ] {
        let rejected = assert_rejects(result, Error::NotFinite, "actions");
        assert_eq!((&rejected.got[..], rejected.at.row), ("NaN", Some(1)));
    }
    assert_eq!((policy.tensors(), policy.optimizer_state()), before);
    assert!(policy.gradients().iter().all(|tensor| tensor.data.iter().all(|x| *x == 0.0)));
}

pub fn steps_to_infinity_report_the_tensor<N: Network>(make: Make<N>) {
    let (mut net, _) = pair(make, &[3, 8, 2], Activation::Tanh);
    net.forward(&draws(3, 1), 1, &mut [0.0; 2]).unwrap();
    net.backward(&[1.0, 0.0], true, None).unwrap();
    let optimizer = Optimizer::AdamW { lr: 1e30, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e30 };
    let result = clip_and_step(&mut [("critic", &mut net)], &optimizer, None);
    let rejected = assert_rejects(result, Error::NotFinite, "parameters of critic");
    assert_eq!((rejected.at.section.as_deref(), rejected.at.row), (Some("0.weight"), Some(0)));
}
