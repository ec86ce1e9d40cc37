use std::cell::Cell;
use std::ops::Sub;

use super::*;

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

const MS: Duration = Duration::from_millis(1);

/// A clock that these tests move; reading it takes time as well, if they say so.
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

/// A stretch whose steps take 1 ms to act and 3 ms in the environments.
fn stretch(num_envs: usize, count: usize) {
    let mut steps = StepTimer::new(num_envs);
    for _ in 0..count {
        steps.begin(Phase::Inference);
        pass(MS);
        steps.enter(Phase::EnvStep);
        pass(3 * MS);
    }
}

#[test]
fn phases_add_up_to_what_went_by() {
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
fn nothing_is_counted_while_no_clock_runs() {
    let passing = || {
        enter(Phase::Buffer);
        stretch(1, 10);
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
fn a_clock_runs_until_it_was_stopped_as_often_as_started() {
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
fn other_threads_have_clocks_of_their_own() {
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
fn a_stretch_divides_as_its_steps_do() {
    for (num_envs, count) in [(1, 1000), (8, 100), (1, 1), (500, 3)] {
        start();
        pass(MS);
        enter(Phase::GaeCompute);
        pass(MS);
        stretch(num_envs, count);
        let n = count as f64 / 1000.0;
        assert_near(read(), [3.0 * n, n, 0.001, 0.0, 0.0, 0.001]);
        pass(MS);
        assert_near(read(), [3.0 * n, n, 0.002, 0.0, 0.0, 0.001]);
        stop();
    }
}

#[test]
fn stretches_share_what_they_saw() {
    start();
    stretch(1, 40);
    // None of these is looked into: the next is the 64th.
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
fn one_step_in_about_64_is_looked_into() {
    for (num_envs, looked, most) in [(1, 20, 22), (8, 113, 116), (64, 1000, 1000), (4096, 1000, 1000)] {
        start();
        let mut steps = StepTimer::new(num_envs);
        let sampled = (0..1000).filter(|_| {
            steps.begin(Phase::EnvStep);
            steps.now.is_some()
        });
        let num_sampled = sampled.count();
        assert!((looked..=most).contains(&num_sampled), "{num_sampled} of 1000 steps of {num_envs}");
        drop(steps);
        stop();
    }
}

#[test]
fn reading_the_clock_is_no_part_of_a_step() {
    READING.set(2 * MS);
    start();
    enter(Phase::Buffer);
    let before = read();
    stretch(1, 1);
    let [env_step, inference, ..] = read();
    assert!((env_step / inference - 3.0).abs() < 1e-9 && before[Phase::EnvStep as usize] == 0.0);
    READING.set(Duration::ZERO);
    stop();
}
