//! What DQN, SAC and TD3 are made of, put together: they learn, allocate nothing and do not depend on threads.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "tests")]

mod learners;

use allocation_counter::measure;
use learners::{ACT, DOUBLE, OBS, Sac, Td3, batch, largest, q_networks, squashed, twin_critics};
use rlox_core::Pcg64;
use rlox_nn::{ActionValue, DeterministicPolicy, NamedTensors, Optimizer, QFunction, StochasticPolicy, Temperature};

/// The mean distance of actions from the best ones.
fn distance(obs: &[f32], actions: &[f32]) -> f32 {
    let each = obs.chunks(OBS).zip(actions.chunks(ACT));
    let sum: f32 =
        each.map(|(obs, actions)| actions.iter().zip(obs).map(|(a, x)| (a - 0.7 * x).abs()).sum::<f32>()).sum();
    sum / actions.len() as f32
}

#[test]
fn one_step_tasks_are_learned() {
    let (optimizer, mut rng) = (Optimizer::adam(3e-3), Pcg64::seed_from(5));
    let test = batch(200, true, &mut rng);
    let mut actions = vec![0.0; 200 * ACT];
    for state_dependent in [false, true] {
        let mut sac = Sac::new(32, 64, state_dependent);
        (0..1500).for_each(|_| sac.update(&batch(64, true, &mut rng), &optimizer));
        sac.policy.act_deterministic(&test.obs, &mut actions).unwrap();
        let far = distance(&test.obs, &actions);
        assert!(far < 0.1, "SAC, state-dependent {state_dependent}: {far}");
    }
    let mut td3 = Td3::new(32, 64);
    (0..1500).for_each(|_| td3.update(&batch(64, true, &mut rng), &optimizer));
    td3.policy.act(&test.obs, &mut actions).unwrap();
    let far = distance(&test.obs, &actions);
    assert!(far < 0.1, "TD3: {far}");
    let (mut q, mut choices) = (q_networks(32), vec![0; 200]);
    for _ in 0..1500 {
        q.update(&batch(64, true, &mut rng).transitions(), DOUBLE, &optimizer, Some(10.0)).unwrap();
    }
    let mut rngs: Vec<_> = (0..200).map(Pcg64::seed_from).collect();
    q.act(&test.obs, None, 0.0, &mut rngs, &mut choices).unwrap();
    let right = test.obs.chunks(OBS).zip(&choices).filter(|(obs, choice)| largest(obs) == **choice).count();
    assert!(right > 185, "DQN: {right} of 200");
}

#[test]
fn nothing_is_allocated_after_the_first_update() {
    let (optimizer, batch) = (Optimizer::adam(1e-3), batch(64, false, &mut Pcg64::seed_from(5)));
    for hidden in [32, 128, 256] {
        let (mut q, mut td3) = (q_networks(hidden), Td3::new(hidden, 64));
        let mut sacs = [Sac::new(hidden, 64, false), Sac::new(hidden, 64, true)];
        let mut rngs: Vec<_> = (0..8).map(Pcg64::seed_from).collect();
        let (mut actions, mut log_probs, mut choices) = ([0.0; 8 * ACT], [0.0; 8], [0; 8]);
        let mut all = || {
            let obs = &batch.obs[..8 * OBS];
            q.act(obs, None, 0.5, &mut rngs, &mut choices).unwrap();
            q.update(&batch.transitions(), DOUBLE, &optimizer, Some(10.0)).unwrap();
            q.track(0.5).unwrap();
            td3.policy.act(obs, &mut actions).unwrap();
            td3.update(&batch, &optimizer);
            for sac in &mut sacs {
                sac.policy.act(obs, &mut rngs, &mut actions, &mut log_probs).unwrap();
                sac.update(&batch, &optimizer);
            }
        };
        all();
        assert_eq!(measure(|| (0..3).for_each(|_| all())).count_total, 0, "{hidden}");
    }
}

/// All weights after a few updates of everything, large enough to be shared among threads.
fn trained() -> Vec<NamedTensors> {
    let (optimizer, mut rng) = (Optimizer::adam(1e-3), Pcg64::seed_from(5));
    let (mut q, mut td3) = (q_networks(256), Td3::new(256, 64));
    let mut sacs = [Sac::new(256, 64, false), Sac::new(256, 64, true)];
    for _ in 0..3 {
        let batch = batch(64, false, &mut rng);
        q.update(&batch.transitions(), DOUBLE, &optimizer, Some(10.0)).unwrap();
        td3.update(&batch, &optimizer);
        for sac in &mut sacs {
            sac.update(&batch, &optimizer);
        }
    }
    let mut all = vec![q.tensors(), td3.policy.tensors(), td3.policy.optimizer_state(), td3.critics.tensors()];
    for sac in &sacs {
        all.extend([sac.policy.tensors(), sac.policy.optimizer_state(), sac.critics.tensors()]);
    }
    all
}

#[test]
fn weights_do_not_depend_on_the_number_of_threads() {
    const ASKED: &str = "RLOX_TEST_CHECKSUM";
    let checksum = |all: &[NamedTensors]| {
        let numbers = all.iter().flatten().flat_map(|tensor| &tensor.data);
        numbers.fold(0_u64, |sum, x| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(x.to_bits()))
    };
    if std::env::var_os(ASKED).is_some() {
        eprintln!("checksum {:x}", checksum(&trained()));
        return;
    }
    let in_process = |threads: &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "weights_do_not_depend_on_the_number_of_threads", "--nocapture"])
            .env(ASKED, "1")
            .env("RLOX_NUM_THREADS", threads)
            .output()
            .unwrap();
        let said = String::from_utf8(child.stderr).unwrap();
        said.lines().find(|line| line.starts_with("checksum")).expect("a checksum").to_owned()
    };
    let one = in_process("1");
    assert_eq!(one, in_process("2"));
    assert_eq!(one, format!("checksum {:x}", checksum(&trained())));
}

#[test]
fn everything_goes_through_tensors_and_back() {
    let (optimizer, mut rng) = (Optimizer::adam(1e-2), Pcg64::seed_from(5));
    let (first, second) = (batch(16, false, &mut rng), batch(16, false, &mut rng));
    let (mut q, mut td3, mut sac) = (q_networks(8), Td3::new(8, 16), Sac::new(8, 16, true));
    q.update(&first.transitions(), DOUBLE, &optimizer, None).unwrap();
    td3.update(&first, &optimizer);
    sac.update(&first, &optimizer);
    let (mut q2, mut td32, mut sac2) = (q_networks(8), Td3::new(8, 16), Sac::new(8, 16, true));
    q2.load(&q.tensors()).unwrap();
    q2.load_optimizer_state(&q.optimizer_state()).unwrap();
    for (copy, one) in [(&mut td32.critics, &td3.critics), (&mut sac2.critics, &sac.critics)] {
        copy.load(&one.tensors()).unwrap();
        copy.load_optimizer_state(&one.optimizer_state()).unwrap();
    }
    td32.policy.load(&td3.policy.tensors()).unwrap();
    td32.policy.load_optimizer_state(&td3.policy.optimizer_state()).unwrap();
    sac2.policy.load(&sac.policy.tensors()).unwrap();
    sac2.policy.load_optimizer_state(&sac.policy.optimizer_state()).unwrap();
    sac2.temperature.load(&sac.temperature.tensors()).unwrap();
    sac2.temperature.load_optimizer_state(&sac.temperature.optimizer_state()).unwrap();
    (td32.rng, sac2.rng) = (td3.rng.clone(), sac.rng.clone());
    for (q, td3, sac) in [(&mut q, &mut td3, &mut sac), (&mut q2, &mut td32, &mut sac2)] {
        q.update(&second.transitions(), DOUBLE, &optimizer, None).unwrap();
        td3.update(&second, &optimizer);
        sac.update(&second, &optimizer);
    }
    assert_eq!(q.tensors(), q2.tensors());
    assert_eq!(td3.policy.tensors(), td32.policy.tensors());
    assert_eq!(td3.critics.tensors(), td32.critics.tensors());
    assert_eq!(sac.policy.tensors(), sac2.policy.tensors());
    assert_eq!(sac.critics.tensors(), sac2.critics.tensors());
    assert_eq!(sac.temperature.tensors(), sac2.temperature.tensors());
    assert_eq!(sac.policy.tensors().iter().next_back().unwrap().name, "log_std");
}

#[test]
fn randomness_of_a_row_comes_from_its_own_stream() {
    let test = batch(4, true, &mut Pcg64::seed_from(5));
    let streams = || (0..4).map(Pcg64::seed_from).collect::<Vec<_>>();
    for state_dependent in [false, true] {
        let mut policy = squashed(16, state_dependent);
        let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
        policy.draw_noise(&mut streams()).unwrap();
        policy.act(&test.obs, &mut streams(), &mut actions, &mut log_probs).unwrap();
        policy.draw_noise(&mut streams()[2..3]).unwrap();
        let (mut alone, mut log_prob) = ([0.0; ACT], [0.0]);
        policy.act(&test.obs[2 * OBS..3 * OBS], &mut streams()[2..3], &mut alone, &mut log_prob).unwrap();
        assert_eq!((&actions[2 * ACT..3 * ACT], log_probs[2]), (&alone[..], log_prob[0]));
        assert_ne!(actions[..ACT], actions[ACT..2 * ACT]);
    }
    let mut q = q_networks(16);
    let mut choices = [0; 4];
    let allowed = [false, true, true, true, false, true, true, true, false, false, false, true];
    let mut counts = [0; 3];
    let mut rngs = streams();
    for _ in 0..300 {
        q.act(&test.obs, Some(&allowed), 0.5, &mut rngs, &mut choices).unwrap();
        assert!(choices.iter().enumerate().all(|(row, choice)| allowed[row * 3 + *choice as usize]));
        counts[choices[2] as usize] += 1;
    }
    assert!(counts[0] > 50 && counts[1] > 50 && counts[2] == 0, "{counts:?}");
}

#[test]
fn a_sample_is_learned_from_once() {
    let good = batch(4, false, &mut Pcg64::seed_from(5));
    let (mut policy, mut critics, optimizer) = (squashed(8, true), twin_critics(8), Optimizer::adam(1e-3));
    let (mut actions, mut log_probs) = ([0.0; 4 * ACT], [0.0; 4]);
    policy.rsample(&good.obs, &mut Pcg64::seed_from(0), &mut actions, &mut log_probs).unwrap();
    policy.update(&good.obs, &mut critics, 0.1, &optimizer, None).unwrap();
    let error = policy.update(&good.obs, &mut critics, 0.1, &optimizer, None).unwrap_err();
    assert!(error.to_string().contains("call rsample first"), "{error}");
}

#[test]
fn the_temperature_follows_the_entropy() {
    let mut temperature = Temperature::learned(0.5, -2.0).unwrap();
    // An entropy of -3, below the target: it is worth more.
    let loss = temperature.update(&[3.0; 4], &Optimizer::adam(0.1)).unwrap();
    assert!((loss - -(0.5_f32.ln())).abs() < 1e-6 && (temperature.alpha() - 0.5 * 0.1_f32.exp()).abs() < 1e-4);
    let mut fixed = Temperature::fixed(0.5).unwrap();
    fixed.update(&[3.0; 4], &Optimizer::adam(0.1)).unwrap();
    assert_eq!(fixed.alpha(), 0.5);
}
