//! `env_step/<id>/<form>/<n>`: one step of n native environments, with resets.
//! The form is `copies` (`VecEnv`), `lanes` (`SoaVecEnv`), or `default`, the one of these that `envs::make` creates.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::envs::{self, Acrobot, CartPole, MakeOptions, MountainCar, MountainCarContinuous, Pendulum, SoaVecEnv};
use rlox_core::{Actions, AutoresetMode, Pcg64, ResetOptions, Seeds, Space, StepOut, VecEnv, VectorEnv};

/// Number of batches of random actions, which are drawn before the measurement and used in turn.
const BATCHES: usize = 64;
const SIZES: [usize; 6] = [1, 8, 64, 256, 1024, 4096];
const MODE: AutoresetMode = AutoresetMode::SameStep;

fn bench(c: &mut Criterion, id: &str, form: &str, make: impl Fn(usize) -> Box<dyn VectorEnv>) {
    let mut group = c.benchmark_group(format!("env_step/{id}/{form}"));
    for n in SIZES {
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            let mut env = make(n);
            let (d, a) = (env.spec().observation.dim(), env.spec().action.dim());
            let mut rng = Pcg64::seed_from(1);
            let count = if let Space::Discrete { n, .. } = env.spec().action { n } else { 1 };
            let integers: Vec<i64> = (0..BATCHES * n * a).map(|_| rng.integers(0, count)).collect();
            let reals: Vec<f32> = (0..BATCHES * n * a).map(|_| rng.uniform(-2.0, 2.0) as f32).collect();
            let continuous = matches!(env.spec().action, Space::Box { .. });
            let (mut obs, mut final_obs) = (vec![0.0; n * d], vec![0.0; n * d]);
            let (mut reward, mut terminated, mut truncated) = (vec![0.0; n], vec![false; n], vec![false; n]);
            env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs).expect("a reset");
            let mut batches = (0..BATCHES).cycle();
            b.iter(|| {
                let at = batches.next().unwrap_or(0) * n * a;
                let actions = if continuous {
                    Actions::Continuous(&reals[at..][..n * a])
                } else {
                    Actions::Discrete(&integers[at..][..n * a])
                };
                let out = StepOut {
                    obs: &mut obs,
                    reward: &mut reward,
                    terminated: &mut terminated,
                    truncated: &mut truncated,
                    final_obs: &mut final_obs,
                };
                env.step(black_box(actions), out).expect("actions inside the space");
            });
        });
    }
    group.finish();
}

fn make_choice(c: &mut Criterion) {
    for id in envs::ids() {
        bench(c, id, "default", |num_envs| {
            let options = MakeOptions { num_envs, seed: Some(0), autoreset_mode: MODE, ..Default::default() };
            envs::make(id, &options).expect("a native id")
        });
    }
}

/// Benchmarks `VecEnv` and `SoaVecEnv` with an environment, whichever of these `envs::make` creates.
macro_rules! forms {
    ($c:expr, $env:expr) => {
        let env = $env;
        let id = rlox_core::Env::spec(&env).id.clone();
        bench($c, &id, "copies", |n| Box::new(VecEnv::new(n, Some(0), MODE, || env.clone()).expect("environments")));
        bench($c, &id, "lanes", |n| Box::new(SoaVecEnv::new(n, Some(0), MODE, env.clone()).expect("environments")));
    };
}

fn both_forms(c: &mut Criterion) {
    forms!(c, CartPole::default());
    forms!(c, Acrobot::default());
    forms!(c, MountainCar::default());
    forms!(c, MountainCarContinuous::default());
    forms!(c, Pendulum::default());
}

criterion_group!(groups, make_choice, both_forms);
criterion_main!(groups);
