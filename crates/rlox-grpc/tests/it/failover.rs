//! Environments of killed, stopped and slow workers continue on other workers, with the same
//! trajectories.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::process::{Process, killer};
use rlox_core::__private::testing::assert_rejects;
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{
    Actions, Env, EnvSpec, Error, Pcg64, ResetOptions, Seeds, Space, Step, StepOut, VectorEnv, vector::EnvSnapshot,
};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};

const N: usize = 5;

fn local() -> Box<dyn VectorEnv> {
    let autoreset_mode = rlox_core::AutoresetMode::SameStep;
    let options = MakeOptions {
        num_envs: N,
        seed: Some(1),
        autoreset_mode,
        max_episode_steps: Some(Some(30)),
        ..Default::default()
    };
    envs::make("CartPole-v1", &options).unwrap()
}

fn remote(workers: &[&Process], options: &ClientOptions) -> RemoteVecEnv {
    let addresses: Vec<_> = workers.iter().map(|worker| &worker.address).collect();
    let env = EnvOptions { max_episode_steps: Some(Some(30)), ..EnvOptions::new("CartPole-v1", N, 1) };
    RemoteVecEnv::new(&addresses, &env, options).unwrap()
}

/// Observations, rewards, terminations and truncations.
type StepResult = (Vec<f32>, Vec<f64>, Vec<bool>, Vec<bool>);

/// Steps all environments and returns the results.
fn step(env: &mut dyn VectorEnv, actions: &[i64]) -> rlox_core::Result<StepResult> {
    let (mut obs, mut reward) = (vec![0.0; N * 4], vec![0.0; N]);
    let (mut terminated, mut truncated) = (vec![false; N], vec![false; N]);
    let (over, cut) = (&mut terminated, &mut truncated);
    let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
    env.step(Actions::Discrete(actions), out)?;
    Ok((obs, reward, terminated, truncated))
}

fn reset(env: &mut dyn VectorEnv) {
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; N * 4]).unwrap();
}

/// Steps both environments and asserts that the results are equal. Returns the duration of the
/// longest step.
///
/// `each` is called before every step.
fn assert_same_trajectory(
    local_env: &mut dyn VectorEnv,
    remote_env: &mut RemoteVecEnv,
    steps: usize,
    mut each: impl FnMut(usize),
) -> Duration {
    let (mut rng, mut longest) = (Pcg64::seed_from(2), Duration::ZERO);
    for t in 0..steps {
        let actions: Vec<_> = (0..N).map(|_| rng.integers(0, 2)).collect();
        each(t);
        let start = Instant::now();
        let result = step(remote_env, &actions).unwrap();
        longest = longest.max(start.elapsed());
        assert_eq!(result, step(local_env, &actions).unwrap(), "step {t}");
    }
    let (mut a, mut b) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    local_env.episodes().drain(&mut a.0, &mut a.1);
    remote_env.episodes().drain(&mut b.0, &mut b.1);
    assert_eq!(a, b);
    assert!(!a.0.is_empty());
    longest
}

#[test]
fn environments_of_a_killed_worker_continue_elsewhere() {
    for snapshot_every in [1, 7, 1000] {
        let (mut first, second) = (Process::start(&[]), Process::start(&[]));
        let options = ClientOptions { snapshot_every, ..ClientOptions::default() };
        let (mut local_env, mut remote_env) = (local(), remote(&[&first, &second], &options));
        reset(local_env.as_mut());
        reset(&mut remote_env);
        let longest = assert_same_trajectory(local_env.as_mut(), &mut remote_env, 200, |t| {
            if t == 100 {
                first.kill();
            }
        });
        let faults = remote_env.faults();
        assert_eq!((faults.lost, faults.restarted), (1, 1));
        assert!(longest < Duration::from_secs(2), "{longest:?}");
        assert!(faults.replayed as usize <= snapshot_every.min(101), "{faults:?}");
    }
}

#[test]
fn a_kill_during_a_step_loses_and_repeats_nothing() {
    let (mut first, second) = (Process::start(&[]), Process::start(&[]));
    let (mut local_env, mut remote_env) = (local(), remote(&[&first, &second], &ClientOptions::default()));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        first.kill();
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        assert_same_trajectory(local_env.as_mut(), &mut remote_env, 50, |_| {});
    }
    killer.join().unwrap();
    assert_eq!(remote_env.faults().restarted, 1);
}

#[test]
fn environments_continue_on_a_restarted_worker() {
    let mut only = Process::start(&[]);
    let (mut local_env, mut remote_env) = (local(), remote(&[&only], &ClientOptions::default()));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    assert_same_trajectory(local_env.as_mut(), &mut remote_env, 60, |_| {});
    let bound = only.bound().to_owned();
    only.kill();
    let restart = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        Process::start(&["--bind", &bound])
    });
    let longest = assert_same_trajectory(local_env.as_mut(), &mut remote_env, 60, |_| {});
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    assert_eq!(remote_env.faults().restarted, 1);
    drop(restart.join().unwrap());
}

#[test]
fn a_hanging_worker_is_replaced_within_seconds() {
    let (first, second) = (Process::start(&[]), Process::start(&[]));
    let (mut local_env, mut remote_env) = (local(), remote(&[&first, &second], &ClientOptions::default()));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    let longest = assert_same_trajectory(local_env.as_mut(), &mut remote_env, 100, |t| {
        if t == 50 {
            first.signal("STOP");
        }
    });
    assert!(longest < Duration::from_millis(2500), "{longest:?}");
    assert_eq!(remote_env.faults().restarted, 1);
}

#[test]
fn interrupted_steps_finish_later() {
    let only = Process::start(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let stop_flag = Arc::clone(&stop);
    let options = ClientOptions { stop: Some(Arc::new(move || stop_flag.load(Relaxed))), ..ClientOptions::default() };
    let (mut local_env, mut remote_env) = (local(), remote(&[&only], &options));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    only.signal("STOP");
    stop.store(true, Relaxed);
    let start = Instant::now();
    assert!(matches!(step(&mut remote_env, &[0; N]), Err(rlox_core::Error::Interrupted)));
    assert!(start.elapsed() < Duration::from_millis(250));
    only.signal("CONT");
    stop.store(false, Relaxed);
    step(local_env.as_mut(), &[0; N]).unwrap();
    assert_same_trajectory(local_env.as_mut(), &mut remote_env, 40, |_| {});
    // Other calls first receive the reply to the interrupted step.
    only.signal("STOP");
    stop.store(true, Relaxed);
    assert!(matches!(step(&mut remote_env, &[1; N]), Err(rlox_core::Error::Interrupted)));
    assert!(matches!(remote_env.observe(&mut [0.0; N * 4]), Err(rlox_core::Error::Interrupted)));
    assert!(matches!(EnvSnapshot::capture(&remote_env), Err(rlox_core::Error::Interrupted)));
    only.signal("CONT");
    stop.store(false, Relaxed);
    let (expected, mut now) = (step(local_env.as_mut(), &[1; N]).unwrap().0, vec![0.0; N * 4]);
    remote_env.observe(&mut now).unwrap();
    assert_eq!(now, expected);
    assert_eq!(EnvSnapshot::capture(&remote_env).unwrap(), EnvSnapshot::capture(local_env.as_ref()).unwrap());
    // A request whose wait was interrupted is sent again.
    assert_same_trajectory(local_env.as_mut(), &mut remote_env, 40, |_| {});
    only.signal("STOP");
    stop.store(true, Relaxed);
    assert!(remote_env.rngs().is_err());
    only.signal("CONT");
    stop.store(false, Relaxed);
    assert_eq!(remote_env.rngs().unwrap(), local_env.rngs().unwrap());
    assert_same_trajectory(local_env.as_mut(), &mut remote_env, 40, |_| {});
}

#[test]
fn errors_name_the_lost_worker_if_no_worker_remains() {
    let mut only = Process::start(&[]);
    let options = ClientOptions { recovery_timeout: Duration::from_millis(600), ..ClientOptions::default() };
    let mut remote_env = remote(&[&only], &options);
    reset(&mut remote_env);
    only.kill();
    let start = Instant::now();
    let error = step(&mut remote_env, &[0; N]).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(error.contains(&only.address) && error.contains("start one"), "{error}");
    assert_rejects(step(&mut remote_env, &[0; N]), Error::Closed, "workers");
}

#[test]
fn workers_lost_together_share_the_recovery_timeout() {
    let mut workers = [(); 3].map(|()| Process::start(&[]));
    let options = ClientOptions { recovery_timeout: Duration::from_secs(1), ..ClientOptions::default() };
    let mut remote_env = remote(&workers.iter().collect::<Vec<_>>(), &options);
    reset(&mut remote_env);
    workers.iter_mut().for_each(Process::kill);
    let start = Instant::now();
    step(&mut remote_env, &[0; N]).unwrap_err();
    let took = start.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&took), "{took:?}");
}

#[test]
fn clients_wait_for_a_worker_that_starts_later() {
    let bound = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let address = format!("http://{bound}");
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(600));
        Process::start(&["--bind", &bound])
    });
    let env = EnvOptions::new("CartPole-v1", N, 1);
    let result = RemoteVecEnv::new(&[&address], &env, &ClientOptions::default());
    drop(late.join().unwrap());
    result.unwrap();
}

#[test]
fn a_full_worker_is_skipped() {
    // The remaining worker accepts two environments; the lost worker had three.
    let (mut first, second) = (Process::start(&[]), Process::start(&["--max-envs", "2"]));
    let (mut local_env, mut remote_env) = (local(), remote(&[&first, &second], &ClientOptions::default()));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    let bound = first.bound().to_owned();
    first.kill();
    let restart = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        Process::start(&["--bind", &bound])
    });
    assert_same_trajectory(local_env.as_mut(), &mut remote_env, 60, |_| {});
    assert_eq!(remote_env.faults().restarted, 1);
    drop(restart.join().unwrap());
    let options = ClientOptions { recovery_timeout: Duration::from_millis(600), ..ClientOptions::default() };
    let mut first = Process::start(&[]);
    let mut remote_env = remote(&[&first, &second], &options);
    reset(&mut remote_env);
    first.kill();
    let error = step(&mut remote_env, &[0; N]).unwrap_err().to_string();
    assert!(error.contains("no worker of") && error.contains("last error: "), "{error}");
}

#[test]
fn a_silent_worker_is_not_lost_before_the_keepalive_timeout() {
    let only = Process::start(&[]);
    let options = ClientOptions { keepalive_timeout: Duration::from_secs(20), ..ClientOptions::default() };
    let (mut local_env, mut remote_env) = (local(), remote(&[&only], &options));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    only.signal("STOP");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2500));
            only.signal("CONT");
        });
        assert_same_trajectory(local_env.as_mut(), &mut remote_env, 40, |_| {});
    });
    assert_eq!(remote_env.faults().lost, 0);
}

#[test]
fn workers_end_on_sigterm() {
    let mut only = Process::start(&[]);
    let mut remote_env = remote(&[&only], &ClientOptions::default());
    reset(&mut remote_env);
    let start = Instant::now();
    only.signal("TERM");
    assert!(only.wait().success());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Environment whose first step panics if `fault` is 1, and sleeps otherwise.
#[derive(Clone)]
struct Bad {
    fault: f64,
    spec: EnvSpec,
}

impl Env for Bad {
    type Action = i64;
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }
    fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
        obs.fill(0.0);
    }
    fn step(&mut self, _: &i64, _: &mut Pcg64, _: &mut [f32]) -> Step {
        assert!(self.fault != 1.0, "a bad day");
        std::thread::sleep(Duration::from_millis(300));
        Step { reward: 0.0, terminated: false, truncated: false }
    }
}

fn bad_worker() -> Worker {
    let make = |id: &str, options: &MakeOptions<'_>| {
        let fault = options.argument(&["fault"], "fault", 0.0)?;
        let observation = Space::uniform_box(-1.0, 1.0, &[4]);
        let spec = EnvSpec { id: id.into(), observation, action: Space::discrete(2), max_episode_steps: None };
        options.build_vec_env(Bad { fault, spec })
    };
    Worker::start(WorkerOptions { make: Arc::new(make), ..WorkerOptions::default() }).unwrap()
}

#[test]
fn a_panic_ends_only_its_session() {
    let worker = bad_worker();
    let options = ClientOptions::default();
    let with = |fault: f64| EnvOptions { arguments: vec![("fault".into(), fault)], ..EnvOptions::new("Bad-v0", N, 0) };
    let mut bad = RemoteVecEnv::new(&[worker.address()], &with(1.0), &options).unwrap();
    reset(&mut bad);
    let error = step(&mut bad, &[0; N]).unwrap_err().to_string();
    assert!(error.contains("panicked: a bad day") && error.contains(&worker.address()), "{error}");
    reset(&mut RemoteVecEnv::new(&[worker.address()], &with(0.0), &options).unwrap());
    assert_eq!(worker.counters().panics.load(Relaxed), 1);
}

#[test]
fn slow_replies_time_out() {
    let worker = bad_worker();
    let options = ClientOptions {
        reply_timeout: Duration::from_millis(200),
        recovery_timeout: Duration::from_millis(500),
        ..ClientOptions::default()
    };
    let env = EnvOptions { arguments: vec![("fault".into(), 2.0)], ..EnvOptions::new("Bad-v0", N, 0) };
    let mut slow = RemoteVecEnv::new(&[worker.address()], &env, &options).unwrap();
    reset(&mut slow);
    let start = Instant::now();
    let error = step(&mut slow, &[0; N]).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    assert!(error.contains("no answer within 0.2 s") && error.contains(&worker.address()), "{error}");
}

#[test]
#[ignore = "two minutes of random kills"]
fn a_hundred_kills_do_not_change_trajectories() {
    kills(100, Duration::from_secs(1));
}

#[test]
fn some_kills_do_not_change_trajectories() {
    kills(5, Duration::from_millis(400));
}

fn kills(count: usize, every: Duration) {
    let workers: Vec<_> = (0..3).map(|_| Process::start(&[])).collect();
    let (mut local_env, mut remote_env) =
        (local(), remote(&workers.iter().collect::<Vec<_>>(), &ClientOptions::default()));
    reset(local_env.as_mut());
    reset(&mut remote_env);
    let (done, killer) = killer(count, every, workers);
    let (mut longest, mut steps) = (Duration::ZERO, 0);
    while !done.load(Relaxed) {
        longest = longest.max(assert_same_trajectory(local_env.as_mut(), &mut remote_env, 100, |_| {}));
        steps += 100;
    }
    let workers = killer.join().unwrap();
    let faults = remote_env.faults();
    eprintln!("{count} kills: {faults:?}, longest step {longest:?}, {} steps", steps * N);
    assert!(faults.lost > 0 && faults.restarted > 0);
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    drop(workers);
}
