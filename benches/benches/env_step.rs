//! `env_step/<id>/<n>`: one step of n native environments, episode ends and resets included.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{Actions, AutoresetMode, Pcg64, ResetOptions, Seeds, Space, StepOut};

/// So many batches of random actions are drawn beforehand and used in turn.
const BATCHES: usize = 256;

fn env_step(c: &mut Criterion) {
    for id in envs::ids() {
        let mut group = c.benchmark_group(format!("env_step/{id}"));
        for n in [1, 4, 64, 256, 1024] {
            group.throughput(Throughput::Elements(n as u64));
            group.bench_function(BenchmarkId::from_parameter(n), |b| {
                let options = MakeOptions {
                    num_envs: n,
                    seed: Some(0),
                    autoreset_mode: AutoresetMode::SameStep,
                    max_episode_steps: None,
                    arguments: &[],
                };
                let mut env = envs::make(id, &options).expect("a native id");
                let (d, a) = (env.spec().observation.dim(), env.spec().action.dim());
                let mut rng = Pcg64::seed_from(1);
                let integers: Vec<i64> = (0..BATCHES * n * a).map(|_| rng.integers(0, 2)).collect();
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
}

criterion_group!(groups, env_step);
criterion_main!(groups);
