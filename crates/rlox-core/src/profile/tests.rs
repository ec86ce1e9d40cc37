use std::cell::Cell;
use std::ops::Sub;

use super::*;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

const MS: Duration = Duration::from_millis(1);

/// Simulated clock. Each reading advances the clock by `READING`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant(Duration);

impl Instant {
    pub(super) fn now() -> Self {
        pass(READING.get());
        Self(NOW.get())
    }

    pub(super) fn elapsed(self) -> Duration {
        Self::now() - self
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

fn pass(time: Duration) {
    NOW.set(NOW.get() + time);
}

fn assert_near(seconds: [f64; 6], expected: [f64; 6]) {
    let near = seconds.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(near, "{seconds:?} are not {expected:?}");
}

/// Runs a sequence of steps. Each step takes 1 ms in the policy and 3 ms in the environments.
fn run_steps(num_envs: usize, count: usize) {
    let mut steps = StepTimer::new(num_envs);
    for _ in 0..count {
        steps.begin(Phase::Inference);
        pass(MS);
        steps.enter(Phase::EnvStep);
        pass(3 * MS);
    }
}

#[test]
fn phases_add_up_to_the_elapsed_time() {
    pass(MS);
    start();
    pass(MS);
    enter(Phase::Buffer);
    pass(2 * MS);
    enter(Phase::GradientUpdate);
    pass(4 * MS);
    enter(Phase::Buffer);
    pass(8 * MS);
    assert_near(read(), [0.0, 0.0, 0.0, 0.004, 0.010, 0.001]);
    pass(16 * MS);
    assert_near(read(), [0.0, 0.0, 0.0, 0.004, 0.026, 0.001]);
    stop();
}

#[test]
fn nothing_is_counted_without_a_clock() {
    let passing = || {
        enter(Phase::Buffer);
        run_steps(1, 10);
        pass(MS);
    };
    passing();
    assert_eq!(read(), [0.0; 6]);
    start();
    pass(MS);
    stop();
    passing();
    assert_eq!(read(), [0.0; 6]);
    start();
    assert_eq!(read(), [0.0; 6]);
    stop();
    stop();
}

#[test]
fn a_clock_runs_until_stops_match_starts() {
    start();
    enter(Phase::Buffer);
    pass(MS);
    start();
    pass(MS);
    stop();
    pass(MS);
    assert_near(read(), [0.0, 0.0, 0.0, 0.0, 0.003, 0.0]);
    stop();
    assert_eq!(read(), [0.0; 6]);
}

#[test]
fn threads_have_separate_clocks() {
    start();
    let other = std::thread::spawn(|| {
        enter(Phase::Buffer);
        pass(MS);
        read()
    });
    assert_eq!(other.join().ok(), Some([0.0; 6]));
    assert_eq!(read(), [0.0; 6]);
    stop();
}

#[test]
fn a_sequence_is_divided_like_its_steps() {
    for (num_envs, count) in [(1, 1000), (8, 100), (1, 1), (500, 3)] {
        start();
        pass(MS);
        enter(Phase::GaeCompute);
        pass(MS);
        run_steps(num_envs, count);
        let n = count as f64 / 1000.0;
        assert_near(read(), [3.0 * n, n, 0.001, 0.0, 0.0, 0.001]);
        pass(MS);
        assert_near(read(), [3.0 * n, n, 0.002, 0.0, 0.0, 0.001]);
        stop();
    }
}

#[test]
fn sequences_share_their_samples() {
    start();
    run_steps(1, 40);
    // None of these steps is sampled, because the next sample is the 64th step since the start.
    let mut steps = StepTimer::new(1);
    for _ in 0..10 {
        steps.begin(Phase::Buffer);
        pass(MS);
    }
    drop(steps);
    assert_near(read(), [0.1275, 0.0425, 0.0, 0.0, 0.0, 0.0]);
    stop();
}

#[test]
fn one_step_in_64_is_sampled_on_average() {
    for (num_envs, least, most) in [(1, 20, 22), (8, 113, 116), (64, 1000, 1000), (4096, 1000, 1000)] {
        start();
        let mut steps = StepTimer::new(num_envs);
        let sampled = (0..1000).filter(|_| {
            steps.begin(Phase::EnvStep);
            steps.now.is_some()
        });
        let num_sampled = sampled.count();
        assert!((least..=most).contains(&num_sampled), "{num_sampled} of 1000 steps of {num_envs}");
        drop(steps);
        stop();
    }
}

#[test]
fn clock_readings_are_not_part_of_a_step() {
    READING.set(2 * MS);
    start();
    enter(Phase::Buffer);
    let before = read();
    run_steps(1, 1);
    let [env_step, inference, ..] = read();
    assert!((env_step / inference - 3.0).abs() < 1e-9 && before[Phase::EnvStep as usize] == 0.0);
    READING.set(Duration::ZERO);
    stop();
}
