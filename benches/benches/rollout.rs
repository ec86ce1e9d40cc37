//! `rollout/<id>/<n>x<t>`: a rollout of t steps of n environments with random actions, including its advantages.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::envs::{self, MakeOptions};
use rlox_core::{Pcg64, RandomPolicy, RolloutBuffer, collect};

fn rollout(c: &mut Criterion) {
    for id in envs::ids() {
        let mut group = c.benchmark_group(format!("rollout/{id}"));
        group.sample_size(20);
        for (n, steps) in [(8, 128), (64, 512), (256, 2048)] {
            group.throughput(Throughput::Elements((n * steps) as u64));
            group.bench_function(BenchmarkId::from_parameter(format!("{n}x{steps}")), |b| {
                let options = MakeOptions { num_envs: n, seed: Some(0), ..Default::default() };
                let mut env = envs::make(id, &options).expect("a native id");
                let mut policy = RandomPolicy::new(&env.spec().action).expect("a policy for the space");
                let mut buffer = RolloutBuffer::for_env(steps, env.as_ref()).expect("a buffer");
                let mut rngs: Vec<_> = (0..n as u128).map(Pcg64::seed_from).collect();
                b.iter(|| collect(env.as_mut(), &mut policy, &mut rngs, &mut buffer, None, 0.99, 0.95));
            });
        }
        group.finish();
    }
}

criterion_group!(groups, rollout);
criterion_main!(groups);
