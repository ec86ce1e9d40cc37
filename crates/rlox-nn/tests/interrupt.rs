//! Long calls of trainers end when the interrupt check returns true.
//!
//! The check is global in a process, so these tests have their own binary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rlox_core::{
    AutoresetMode, Env, EnvSpec, Error, Pcg64, ResetOptions, Result, Space, Step, VecEnv, VectorEnv,
    interrupt::set_interrupt_check,
};
use rlox_nn::train::{
    A2c, A2cConfig, Dqn, DqnConfig, OffPolicy, OffPolicyMethod, Ppo, PpoConfig, Sac, SacConfig, Td3, Td3Config,
};
use rlox_nn::{Activation, ActorCritic, PolicyNetworks, QNetworks};

mod support;

use support::trainers::{HIDDEN, cartpole, pendulum};

static STOP: AtomicBool = AtomicBool::new(false);

/// Sets an interrupt check that reads `STOP`. The lock keeps other tests of this process from
/// running.
fn lock_check() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    STOP.store(false, Ordering::Relaxed);
    set_interrupt_check(|| STOP.load(Ordering::Relaxed));
    guard
}

/// Environment whose episodes never end.
struct Endless(EnvSpec);

impl Env for Endless {
    type Action = i64;

    fn spec(&self) -> &EnvSpec {
        &self.0
    }

    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }

    fn step(&mut self, _: &i64, rng: &mut Pcg64, obs: &mut [f32]) -> Step {
        obs[0] = rng.uniform(-1.0, 1.0) as f32;
        Step { reward: 1.0, terminated: false, truncated: false }
    }
}

fn endless() -> Box<dyn VectorEnv> {
    let make = || {
        Endless(EnvSpec {
            id: "Endless-v0".into(),
            observation: Space::uniform_box(-1.0, 1.0, &[1]),
            action: Space::discrete(2),
            max_episode_steps: None,
        })
    };
    Box::new(VecEnv::new(2, None, AutoresetMode::SameStep, make).unwrap())
}

#[test]
fn interrupted_updates_and_evaluations_keep_what_was_learned() {
    let _guard = lock_check();
    let config = PpoConfig { n_steps: 16, batch_size: 8, n_epochs: 1_000_000, ..PpoConfig::default() };
    let make = |spec: &EnvSpec, rng: &mut Pcg64| PolicyNetworks::mlp(spec, &[64, 64], Activation::Tanh, rng);
    let mut ppo = Ppo::new(endless(), make, config, 1).unwrap();
    let before = ppo.policy().tensors();
    STOP.store(true, Ordering::Relaxed);
    assert!(matches!(ppo.iterate(0.0), Err(Error::Interrupted)));
    assert_ne!(ppo.policy().tensors(), before);
    assert_eq!(ppo.timesteps(), 32);
    assert!(matches!(ppo.evaluate(endless().as_mut(), 1, 0), Err(Error::Interrupted)));
    // Each iteration is shorter than the time between two polls.
    let mut a2c = A2c::new(endless(), make, A2cConfig::default(), 1).unwrap();
    assert!(matches!(a2c.train(u64::MAX, |_| true), Err(Error::Interrupted)));
    assert!(a2c.timesteps() > 0);
    STOP.store(false, Ordering::Relaxed);
}

/// Returns the result of a call that is interrupted after 60 ms, and the time from then to its end.
fn stopped<T>(call: impl FnOnce() -> Result<T>) -> (Result<T>, Duration) {
    const AFTER: Duration = Duration::from_millis(60);
    let start = Instant::now();
    let interrupter = std::thread::spawn(|| {
        std::thread::sleep(AFTER);
        STOP.store(true, Ordering::Relaxed);
    });
    let result = call();
    let delay = start.elapsed().saturating_sub(AFTER);
    interrupter.join().unwrap();
    STOP.store(false, Ordering::Relaxed);
    (result, delay)
}

/// Settings that make iterations short or endless, in the warm-up or while learning.
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

fn assert_interruptible_and_resumable<A: OffPolicyMethod>(
    mut trainer: OffPolicy<A>,
    env: &mut dyn VectorEnv,
    Pace { learning_starts, train_freq, gradient_steps }: Pace,
) {
    let (result, delay) = stopped(|| trainer.train(u64::MAX, |_| true));
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    // Polls are 50 ms apart, but a busy machine may take longer.
    assert!(delay < Duration::from_secs(5), "{delay:?}");
    let steps = trainer.timesteps();
    assert!(steps > 0 && trainer.replay().len() as u64 == steps.min(1000), "{steps}");
    // The run can continue if its iterations are short.
    if train_freq < usize::MAX && gradient_steps < usize::MAX {
        let metrics = trainer.resume(|metrics| metrics.timesteps < steps + 200).unwrap();
        assert_eq!(metrics.timesteps, steps + 200);
        assert_eq!(metrics.updates > 0, learning_starts < u64::MAX);
    }
    let (result, delay) = stopped(|| trainer.evaluate(env, usize::MAX, 0));
    assert!(matches!(result, Err(Error::Interrupted)) && delay < Duration::from_secs(5), "{delay:?}");
}

#[test]
fn all_phases_of_off_policy_training_are_interruptible() {
    let _guard = lock_check();
    let buffer_size = 1000;
    for pace in PACES {
        let Pace { learning_starts, train_freq, gradient_steps } = pace;
        let gradient_steps = Some(gradient_steps);
        let config = DqnConfig { buffer_size, learning_starts, train_freq, gradient_steps, ..DqnConfig::default() };
        let network = |spec: &_, rng: &mut _| QNetworks::mlp(spec, HIDDEN, Activation::Relu, rng);
        let dqn = Dqn::new(cartpole(1), network, config, 1).unwrap();
        assert_interruptible_and_resumable(dqn, cartpole(1).as_mut(), pace);
    }
    for pace in PACES {
        let Pace { learning_starts, train_freq, gradient_steps } = pace;
        let gradient_steps = Some(gradient_steps);
        let config = SacConfig { buffer_size, learning_starts, train_freq, gradient_steps, ..SacConfig::default() };
        let sac = Sac::new(pendulum(1), |s: &_, r: &mut _| config.mlp(s, HIDDEN, r), config.clone(), 1).unwrap();
        assert_interruptible_and_resumable(sac, pendulum(1).as_mut(), pace);
    }
    for pace in PACES {
        let Pace { learning_starts, train_freq, gradient_steps } = pace;
        let gradient_steps = Some(gradient_steps);
        let config = Td3Config { buffer_size, learning_starts, train_freq, gradient_steps, ..Td3Config::default() };
        let td3 = Td3::new(pendulum(1), |s: &_, r: &mut _| config.mlp(s, HIDDEN, r), config.clone(), 1).unwrap();
        assert_interruptible_and_resumable(td3, pendulum(1).as_mut(), pace);
    }
}
