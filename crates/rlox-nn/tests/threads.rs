//! What two threads share is bit for bit what one computes.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

use rlox_core::Pcg64;
use rlox_nn::{Activation, Init, Mlp, NamedTensors, Network, Optimizer, Scratch};

const ROWS: usize = 301;

fn draws(count: usize, seed: u128) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(seed);
    (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

/// A sum that any changed bit changes.
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

/// All that a network gives while it learns.
fn learned(sizes: &[usize], activation: Activation) -> u64 {
    let mut net = Mlp::new(sizes, activation, Init::Kaiming, &mut Pcg64::seed_from(5)).unwrap();
    let (inputs, outputs, hidden) = (net.in_dim(), net.out_dim(), net.hidden_dim());
    let (x, dy, dh) = (draws(ROWS * inputs, 1), draws(ROWS * outputs, 2), draws(ROWS * hidden, 3));
    // A gradient of some rows alone.
    let some: Vec<f32> = dy.iter().enumerate().map(|(i, x)| if i / outputs % 3 == 0 { *x } else { 0.0 }).collect();
    let (mut y, mut dx, mut h) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; ROWS * hidden]);
    let (mut sum, mut scratch) = (0, Scratch::default());
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
        // Thrice, so that gradients add up.
        net.backward(&dy, true, Some(&mut dx)).unwrap();
        net.backward(&some, true, None).unwrap();
        net.backward_hidden(&dy, &dh).unwrap();
        add(&mut sum, &dx);
        add_all(&mut sum, &net.gradients());
        sum ^= net.grad_sq().unwrap().to_bits();
        net.apply_gradients(&Optimizer::adam(1e-2), 0.5).unwrap();
        add_all(&mut sum, &net.tensors());
        add_all(&mut sum, &net.optimizer_state());
    }
    sum
}

/// Of networks whose rows, and parameters, two threads share.
fn all_learned() -> Vec<u64> {
    let sizes: [&[usize]; 5] =
        [&[3, 256, 256, 1], &[5, 200, 300, 12], &[300, 300], &[70, 600, 2], &[3, 90, 90, 90, 40]];
    let activations = [Activation::Relu, Activation::Tanh, Activation::Silu];
    sizes.iter().flat_map(|sizes| activations.map(|activation| learned(sizes, activation))).collect()
}

#[test]
fn networks_do_not_depend_on_the_number_of_threads() {
    const ASKED: &str = "RLOX_TEST_CHECKSUM";
    if std::env::var_os(ASKED).is_some() {
        eprintln!("checksums {:?}", all_learned());
        return;
    }
    let in_process = |threads: &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "networks_do_not_depend_on_the_number_of_threads", "--nocapture"])
            .env(ASKED, "1")
            .env("RLOX_NUM_THREADS", threads)
            .output()
            .unwrap();
        let said = String::from_utf8(child.stderr).unwrap();
        said.lines().find(|line| line.starts_with("checksums")).expect("checksums").to_owned()
    };
    let one = in_process("1");
    assert_eq!(one, in_process("2"));
    assert_eq!(one, format!("checksums {:?}", all_learned()));
}

#[test]
fn rows_whose_gradient_is_0_change_nothing_of_others() {
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
