//! `gae/one/<dtype>/<t>`: one trajectory of t steps. `gae/time_major/<dtype>/<t>x<n>`: t steps of n environments in
//! time-major arrays. `gae/batched/<dtype>/<n>x<t>`: n trajectories of t steps, one after another.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::{
    Pcg64,
    advantage::{EpisodeEnds, Float, compute_gae_time_major},
    compute_gae, compute_gae_batched,
};

/// Random rewards and values. Each step ends an episode with probability 0.05.
struct Rollout<T> {
    rewards: Vec<T>,
    values: Vec<T>,
    terminated: Vec<bool>,
    last_values: Vec<T>,
}

impl<T: Float> Rollout<T> {
    fn new(steps: usize, num_envs: usize, number: fn(f64) -> T) -> Self {
        let mut rng = Pcg64::seed_from(42);
        let rows = steps * num_envs;
        let mut draw = |count| (0..count).map(|_| number(rng.uniform(-1.0, 1.0))).collect();
        let (rewards, values, last_values): (_, _, Vec<T>) = (draw(rows), draw(rows), draw(num_envs));
        let terminated = (0..rows).map(|_| rng.uniform(0.0, 1.0) < 0.05).collect();
        Self { rewards, values, terminated, last_values }
    }

    fn ends(&self) -> EpisodeEnds<'_, T> {
        EpisodeEnds::dones(&self.terminated)
    }
}

const GAMMA: f64 = 0.99;
const LAMBDA: f64 = 0.95;

fn one<T: Float>(c: &mut Criterion, dtype: &str, number: fn(f64) -> T) {
    let mut group = c.benchmark_group(format!("gae/one/{dtype}"));
    for steps in [128, 512, 2048, 8192, 32_768] {
        group.throughput(Throughput::Elements(steps as u64));
        group.bench_function(BenchmarkId::from_parameter(steps), |b| {
            let data = Rollout::new(steps, 1, number);
            let (mut advantages, mut returns) = (data.values.clone(), data.values.clone());
            b.iter(|| {
                compute_gae(
                    &data.rewards,
                    &data.values,
                    data.ends(),
                    data.last_values[0],
                    GAMMA,
                    LAMBDA,
                    &mut advantages,
                    &mut returns,
                )
            });
        });
    }
    group.finish();
}

fn time_major<T: Float>(c: &mut Criterion, dtype: &str, number: fn(f64) -> T) {
    let mut group = c.benchmark_group(format!("gae/time_major/{dtype}"));
    for (steps, n) in [(128, 8), (128, 64), (2048, 64), (2048, 256)] {
        group.throughput(Throughput::Elements((steps * n) as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{steps}x{n}")), |b| {
            let data = Rollout::new(steps, n, number);
            let (mut advantages, mut returns) = (data.values.clone(), data.values.clone());
            b.iter(|| {
                compute_gae_time_major(
                    &data.rewards,
                    &data.values,
                    data.ends(),
                    n,
                    &data.last_values,
                    GAMMA,
                    LAMBDA,
                    &mut advantages,
                    &mut returns,
                )
            });
        });
    }
    group.finish();
}

fn batched<T: Float>(c: &mut Criterion, dtype: &str, number: fn(f64) -> T) {
    let mut group = c.benchmark_group(format!("gae/batched/{dtype}"));
    for (n, steps) in [(8, 128), (64, 128), (64, 2048), (256, 2048)] {
        group.throughput(Throughput::Elements((steps * n) as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{n}x{steps}")), |b| {
            let data = Rollout::new(steps, n, number);
            let (mut advantages, mut returns) = (data.values.clone(), data.values.clone());
            b.iter(|| {
                compute_gae_batched(
                    &data.rewards,
                    &data.values,
                    data.ends(),
                    &data.last_values,
                    steps,
                    GAMMA,
                    LAMBDA,
                    &mut advantages,
                    &mut returns,
                )
            });
        });
    }
    group.finish();
}

fn gae(c: &mut Criterion) {
    for measure in [one::<f32>, time_major, batched] {
        measure(c, "f32", |x| x as f32);
    }
    for measure in [one::<f64>, time_major, batched] {
        measure(c, "f64", |x| x);
    }
}

criterion_group!(groups, gae);
criterion_main!(groups);
