//! Workers are killed, stopped and slow; what they did goes on elsewhere, number by number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::process::{Process, killer};
use rlox_core::envs::{self, MakeOptions};
use rlox_core::testing::assert_rejects;
use rlox_core::{
    Actions, Env, EnvSnapshot, EnvSpec, Error, Pcg64, ResetOptions, Seeds, Space, Step, StepOut, VectorEnv,
};
use rlox_grpc::{ClientOptions, EnvOptions, RemoteVecEnv, Worker, WorkerOptions};

const N: usize = 5;

fn local() -> Box<dyn VectorEnv> {
    let autoreset_mode = rlox_core::AutoresetMode::SameStep;
    let options =
        MakeOptions { num_envs: N, seed: Some(1), autoreset_mode, max_episode_steps: Some(Some(30)), arguments: &[] };
    envs::make("CartPole-v1", &options).unwrap()
}

fn remote(workers: &[&Process], options: &ClientOptions) -> RemoteVecEnv {
    let addresses: Vec<_> = workers.iter().map(|worker| &worker.address).collect();
    let env = EnvOptions { max_episode_steps: Some(Some(30)), ..EnvOptions::new("CartPole-v1", N, 1) };
    RemoteVecEnv::new(&addresses, &env, options).unwrap()
}

/// Observations, rewards and flags.
type Said = (Vec<f32>, Vec<f64>, Vec<bool>, Vec<bool>);

/// One step; what it said.
fn step(env: &mut dyn VectorEnv, actions: &[i64]) -> rlox_core::Result<Said> {
    let (mut obs, mut reward) = (vec![0.0; N * 4], vec![0.0; N]);
    let (mut terminated, mut truncated) = (vec![false; N], vec![false; N]);
    let (over, cut) = (&mut terminated, &mut truncated);
    let out = StepOut { obs: &mut obs, reward: &mut reward, terminated: over, truncated: cut, final_obs: &mut [] };
    env.step(Actions::Discrete(actions), out)?;
    Ok((obs, reward, terminated, truncated))
}

fn begin(env: &mut dyn VectorEnv) {
    env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; N * 4]).unwrap();
}

/// Steps both and compares them; `each` is called before a step.
fn same(here: &mut dyn VectorEnv, there: &mut RemoteVecEnv, steps: usize, mut each: impl FnMut(usize)) -> Duration {
    let (mut rng, mut longest) = (Pcg64::seed_from(2), Duration::ZERO);
    for t in 0..steps {
        let actions: Vec<_> = (0..N).map(|_| rng.integers(0, 2)).collect();
        each(t);
        let start = Instant::now();
        let said = step(there, &actions).unwrap();
        longest = longest.max(start.elapsed());
        assert_eq!(said, step(here, &actions).unwrap(), "step {t}");
    }
    let (mut a, mut b) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    here.episodes().drain(&mut a.0, &mut a.1);
    there.episodes().drain(&mut b.0, &mut b.1);
    assert_eq!(a, b);
    assert!(!a.0.is_empty());
    longest
}

#[test]
fn a_killed_worker_s_environments_go_on_elsewhere() {
    for snapshot_every in [1, 7, 1000] {
        let (mut first, second) = (Process::start(&[]), Process::start(&[]));
        let options = ClientOptions { snapshot_every, ..ClientOptions::default() };
        let (mut here, mut there) = (local(), remote(&[&first, &second], &options));
        begin(here.as_mut());
        begin(&mut there);
        let longest = same(here.as_mut(), &mut there, 200, |t| {
            if t == 100 {
                first.kill();
            }
        });
        let faults = there.faults();
        assert_eq!((faults.lost, faults.restarted), (1, 1));
        assert!(longest < Duration::from_secs(2), "{longest:?}");
        assert!(faults.replayed as usize <= snapshot_every.min(101), "{faults:?}");
    }
}

#[test]
fn killed_in_the_middle_of_a_step_nothing_is_lost_or_doubled() {
    let (mut first, second) = (Process::start(&[]), Process::start(&[]));
    let (mut here, mut there) = (local(), remote(&[&first, &second], &ClientOptions::default()));
    begin(here.as_mut());
    begin(&mut there);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        first.kill();
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        same(here.as_mut(), &mut there, 50, |_| {});
    }
    killer.join().unwrap();
    assert_eq!(there.faults().restarted, 1);
}

#[test]
fn a_worker_that_comes_back_goes_on() {
    let mut only = Process::start(&[]);
    let (mut here, mut there) = (local(), remote(&[&only], &ClientOptions::default()));
    begin(here.as_mut());
    begin(&mut there);
    same(here.as_mut(), &mut there, 60, |_| {});
    let bound = only.bound().to_owned();
    only.kill();
    let back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        Process::start(&["--bind", &bound])
    });
    let longest = same(here.as_mut(), &mut there, 60, |_| {});
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    assert_eq!(there.faults().restarted, 1);
    drop(back.join().unwrap());
}

#[test]
fn a_worker_that_hangs_is_left_within_two_seconds() {
    let (first, second) = (Process::start(&[]), Process::start(&[]));
    let (mut here, mut there) = (local(), remote(&[&first, &second], &ClientOptions::default()));
    begin(here.as_mut());
    begin(&mut there);
    let longest = same(here.as_mut(), &mut there, 100, |t| {
        if t == 50 {
            first.signal("STOP");
        }
    });
    assert!(longest < Duration::from_millis(2500), "{longest:?}");
    assert_eq!(there.faults().restarted, 1);
}

#[test]
fn waits_end_where_they_are_told_to_and_the_step_is_finished_later() {
    let only = Process::start(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let options = ClientOptions { stop: Some(Arc::new(move || asked.load(Relaxed))), ..ClientOptions::default() };
    let (mut here, mut there) = (local(), remote(&[&only], &options));
    begin(here.as_mut());
    begin(&mut there);
    only.signal("STOP");
    stop.store(true, Relaxed);
    let start = Instant::now();
    assert!(matches!(step(&mut there, &[0; N]), Err(rlox_core::Error::Interrupted)));
    assert!(start.elapsed() < Duration::from_millis(250));
    only.signal("CONT");
    stop.store(false, Relaxed);
    step(here.as_mut(), &[0; N]).unwrap();
    same(here.as_mut(), &mut there, 40, |_| {});
    // Who asks where they are has the answer that was left, first.
    only.signal("STOP");
    stop.store(true, Relaxed);
    assert!(matches!(step(&mut there, &[1; N]), Err(rlox_core::Error::Interrupted)));
    assert!(matches!(there.observe(&mut [0.0; N * 4]), Err(rlox_core::Error::Interrupted)));
    assert!(matches!(EnvSnapshot::capture(&there), Err(rlox_core::Error::Interrupted)));
    only.signal("CONT");
    stop.store(false, Relaxed);
    let (seen, mut now) = (step(here.as_mut(), &[1; N]).unwrap().0, vec![0.0; N * 4]);
    there.observe(&mut now).unwrap();
    assert_eq!(now, seen);
    assert_eq!(EnvSnapshot::capture(&there).unwrap(), EnvSnapshot::capture(here.as_ref()).unwrap());
    // A question that was not waited for is asked again.
    same(here.as_mut(), &mut there, 40, |_| {});
    only.signal("STOP");
    stop.store(true, Relaxed);
    assert!(there.rngs().is_err());
    only.signal("CONT");
    stop.store(false, Relaxed);
    assert_eq!(there.rngs().unwrap(), here.rngs().unwrap());
    same(here.as_mut(), &mut there, 40, |_| {});
}

#[test]
fn with_no_worker_left_an_error_says_which_was_lost() {
    let mut only = Process::start(&[]);
    let options = ClientOptions { recovery_timeout: Duration::from_millis(600), ..ClientOptions::default() };
    let mut there = remote(&[&only], &options);
    begin(&mut there);
    only.kill();
    let start = Instant::now();
    let error = step(&mut there, &[0; N]).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(error.contains(&only.address) && error.contains("start one"), "{error}");
    assert_rejects(step(&mut there, &[0; N]), Error::Closed, "workers");
}

#[test]
fn many_that_are_lost_at_once_have_one_time_together() {
    let mut workers = [(); 3].map(|()| Process::start(&[]));
    let options = ClientOptions { recovery_timeout: Duration::from_secs(1), ..ClientOptions::default() };
    let mut there = remote(&workers.iter().collect::<Vec<_>>(), &options);
    begin(&mut there);
    workers.iter_mut().for_each(Process::kill);
    let start = Instant::now();
    step(&mut there, &[0; N]).unwrap_err();
    let took = start.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&took), "{took:?}");
}

#[test]
fn a_worker_that_begins_later_is_waited_for() {
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
    let made = RemoteVecEnv::new(&[&address], &env, &ClientOptions::default());
    drop(late.join().unwrap());
    made.unwrap();
}

#[test]
fn one_that_has_no_room_is_not_the_last() {
    // The one that is left takes two environments, and the lost one had three.
    let (mut first, second) = (Process::start(&[]), Process::start(&["--max-envs", "2"]));
    let (mut here, mut there) = (local(), remote(&[&first, &second], &ClientOptions::default()));
    begin(here.as_mut());
    begin(&mut there);
    let bound = first.bound().to_owned();
    first.kill();
    let back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        Process::start(&["--bind", &bound])
    });
    same(here.as_mut(), &mut there, 60, |_| {});
    assert_eq!(there.faults().restarted, 1);
    drop(back.join().unwrap());
    let options = ClientOptions { recovery_timeout: Duration::from_millis(600), ..ClientOptions::default() };
    let mut first = Process::start(&[]);
    let mut there = remote(&[&first, &second], &options);
    begin(&mut there);
    first.kill();
    let error = step(&mut there, &[0; N]).unwrap_err().to_string();
    assert!(error.contains("no worker of") && error.contains("last error: "), "{error}");
}

#[test]
fn one_that_is_silent_is_lost_no_sooner_than_asked() {
    let only = Process::start(&[]);
    let options = ClientOptions { keepalive_timeout: Duration::from_secs(20), ..ClientOptions::default() };
    let (mut here, mut there) = (local(), remote(&[&only], &options));
    begin(here.as_mut());
    begin(&mut there);
    only.signal("STOP");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2500));
            only.signal("CONT");
        });
        same(here.as_mut(), &mut there, 40, |_| {});
    });
    assert_eq!(there.faults().lost, 0);
}

#[test]
fn a_worker_that_is_told_to_end_does_so() {
    let mut only = Process::start(&[]);
    let mut there = remote(&[&only], &ClientOptions::default());
    begin(&mut there);
    let start = Instant::now();
    only.signal("TERM");
    assert!(only.wait().success());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Does as its argument says in the first step: 1 panics, 2 sleeps.
#[derive(Clone)]
struct Bad {
    how: f64,
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
        assert!(self.how != 1.0, "a bad day");
        std::thread::sleep(Duration::from_millis(300));
        Step { reward: 0.0, terminated: false, truncated: false }
    }
}

fn bad_worker() -> Worker {
    let make = |id: &str, options: &MakeOptions<'_>| {
        let how = options.argument(&["how"], "how", 0.0)?;
        let observation = Space::uniform_box(-1.0, 1.0, &[4]);
        let spec = EnvSpec { id: id.into(), observation, action: Space::discrete(2), max_episode_steps: None };
        options.build_vec_env(Bad { how, spec })
    };
    Worker::start(WorkerOptions { make: Arc::new(make), ..WorkerOptions::default() }).unwrap()
}

#[test]
fn a_panic_is_an_error_of_its_session_alone() {
    let worker = bad_worker();
    let options = ClientOptions::default();
    let with = |how: f64| EnvOptions { arguments: vec![("how".into(), how)], ..EnvOptions::new("Bad-v0", N, 0) };
    let mut bad = RemoteVecEnv::new(&[worker.address()], &with(1.0), &options).unwrap();
    begin(&mut bad);
    let error = step(&mut bad, &[0; N]).unwrap_err().to_string();
    assert!(error.contains("panicked: a bad day") && error.contains(&worker.address()), "{error}");
    begin(&mut RemoteVecEnv::new(&[worker.address()], &with(0.0), &options).unwrap());
    assert_eq!(worker.counters().panics.load(Relaxed), 1);
}

#[test]
fn a_slow_worker_is_waited_for_no_longer_than_asked() {
    let worker = bad_worker();
    let options = ClientOptions {
        reply_timeout: Duration::from_millis(200),
        recovery_timeout: Duration::from_millis(500),
        ..ClientOptions::default()
    };
    let env = EnvOptions { arguments: vec![("how".into(), 2.0)], ..EnvOptions::new("Bad-v0", N, 0) };
    let mut slow = RemoteVecEnv::new(&[worker.address()], &env, &options).unwrap();
    begin(&mut slow);
    let start = Instant::now();
    let error = step(&mut slow, &[0; N]).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    assert!(error.contains("no answer within 0.2 s") && error.contains(&worker.address()), "{error}");
}

#[test]
#[ignore = "two minutes of random kills"]
fn a_hundred_kills_leave_no_trace_in_the_trajectories() {
    kills(100, Duration::from_secs(1));
}

#[test]
fn some_kills_leave_no_trace_in_the_trajectories() {
    kills(5, Duration::from_millis(400));
}

fn kills(count: usize, every: Duration) {
    let workers: Vec<_> = (0..3).map(|_| Process::start(&[])).collect();
    let (mut here, mut there) = (local(), remote(&workers.iter().collect::<Vec<_>>(), &ClientOptions::default()));
    begin(here.as_mut());
    begin(&mut there);
    let (done, killer) = killer(count, every, workers);
    let (mut longest, mut steps) = (Duration::ZERO, 0);
    while !done.load(Relaxed) {
        longest = longest.max(same(here.as_mut(), &mut there, 100, |_| {}));
        steps += 100;
    }
    let workers = killer.join().unwrap();
    let faults = there.faults();
    eprintln!("{count} kills: {faults:?}, longest step {longest:?}, {} steps", steps * N);
    assert!(faults.lost > 0 && faults.restarted > 0);
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    drop(workers);
}
