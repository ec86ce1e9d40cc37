//! DQN, SAC and TD3 end where they are told to, be they filling their buffer or learning, and go on from there: the check
//! is a process's own, so these tests have one.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod trainers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rlox_core::{Error, Result, VectorEnv, set_interrupt_check};
use rlox_nn::train::{Dqn, DqnConfig, OffPolicy, OffPolicyMethod, Sac, SacConfig, Td3, Td3Config};
use rlox_nn::{Activation, QNetworks};
use trainers::{HIDDEN, cartpole, pendulum};

static STOP: AtomicBool = AtomicBool::new(false);

/// What a call ends with that is told to stop after a tenth of a second, and when it had ended after that.
fn stopped<T>(call: impl FnOnce() -> Result<T>) -> (Result<T>, Duration) {
    const AFTER: Duration = Duration::from_millis(100);
    let start = Instant::now();
    let told = std::thread::spawn(|| {
        std::thread::sleep(AFTER);
        STOP.store(true, Ordering::Relaxed);
    });
    let said = call();
    let late = start.elapsed().saturating_sub(AFTER);
    told.join().unwrap();
    STOP.store(false, Ordering::Relaxed);
    (said, late)
}

/// Short iterations or endless ones, of filling the buffer or of learning.
struct Pace {
    learning_starts: u64,
    train_freq: usize,
    gradient_steps: usize,
}

const PACES: [Pace; 4] = [
    Pace { learning_starts: u64::MAX, train_freq: 1, gradient_steps: 1 },
    Pace { learning_starts: u64::MAX, train_freq: usize::MAX, gradient_steps: 1 },
    Pace { learning_starts: 20, train_freq: 1, gradient_steps: 1 },
    Pace { learning_starts: 20, train_freq: 4, gradient_steps: usize::MAX },
];

fn ends_and_goes_on<A: OffPolicyMethod>(
    mut trainer: OffPolicy<A>,
    env: &mut dyn VectorEnv,
    Pace { learning_starts, train_freq, gradient_steps }: Pace,
) {
    let (said, late) = stopped(|| trainer.train(u64::MAX, |_| true));
    assert!(matches!(said, Err(Error::Interrupted)), "{said:?}");
    // It is asked every 50 ms; what else the machine is busy with may take longer.
    assert!(late < Duration::from_secs(5), "{late:?}");
    let steps = trainer.timesteps();
    assert!(steps > 0 && trainer.replay().len() as u64 == steps.min(1000), "{steps}");
    // It goes on where it was, as long as it is let.
    if train_freq < usize::MAX && gradient_steps < usize::MAX {
        let metrics = trainer.resume(|metrics| metrics.timesteps < steps + 200).unwrap();
        assert_eq!(metrics.timesteps, steps + 200);
        assert_eq!(metrics.updates > 0, learning_starts < u64::MAX);
    }
    let (said, late) = stopped(|| trainer.evaluate(env, usize::MAX, 0));
    assert!(matches!(said, Err(Error::Interrupted)) && late < Duration::from_secs(5), "{late:?}");
}

#[test]
fn whatever_a_trainer_does_it_ends_when_it_is_told_to() {
    set_interrupt_check(|| STOP.load(Ordering::Relaxed));
    let buffer_size = 1000;
    for pace in PACES {
        let Pace { learning_starts, train_freq, gradient_steps } = pace;
        let gradient_steps = Some(gradient_steps);
        let config = DqnConfig { buffer_size, learning_starts, train_freq, gradient_steps, ..DqnConfig::default() };
        let network = |spec: &_, rng: &mut _| QNetworks::mlp(spec, HIDDEN, Activation::Relu, rng);
        let dqn = Dqn::new(cartpole(1), network, config, 1).unwrap();
        ends_and_goes_on(dqn, cartpole(1).as_mut(), pace);
    }
    for pace in PACES {
        let Pace { learning_starts, train_freq, gradient_steps } = pace;
        let gradient_steps = Some(gradient_steps);
        let config = SacConfig { buffer_size, learning_starts, train_freq, gradient_steps, ..SacConfig::default() };
        let sac = Sac::new(pendulum(1), |s: &_, r: &mut _| config.mlp(s, HIDDEN, r), config.clone(), 1).unwrap();
        ends_and_goes_on(sac, pendulum(1).as_mut(), pace);
    }
    for pace in PACES {
        let Pace { learning_starts, train_freq, gradient_steps } = pace;
        let gradient_steps = Some(gradient_steps);
        let config = Td3Config { buffer_size, learning_starts, train_freq, gradient_steps, ..Td3Config::default() };
        let td3 = Td3::new(pendulum(1), |s: &_, r: &mut _| config.mlp(s, HIDDEN, r), config.clone(), 1).unwrap();
        ends_and_goes_on(td3, pendulum(1).as_mut(), pace);
    }
}
