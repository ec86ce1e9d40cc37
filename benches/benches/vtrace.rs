//! `vtrace/one/<dtype>/<t>`: one trajectory of t steps. `vtrace/time_major/<dtype>/<t>x<n>`: t steps of n environments
//! in time-major arrays. `vtrace/returns/<dtype>/<t>x<n>`: lambda returns of the same steps.

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main, measurement};
use rlox_core::{
    Pcg64,
    advantage::{
        EpisodeEnds, Float, VtraceConfig, compute_lambda_returns, compute_lambda_returns_time_major, compute_vtrace,
        compute_vtrace_time_major,
    },
};

/// Random log importance ratios, rewards and values. Each step ends an episode with probability 0.05.
struct Rollout<T> {
    log_rhos: Vec<T>,
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
        let (log_rhos, rewards, values) = (draw(rows), draw(rows), draw(rows));
        let last_values: Vec<T> = draw(num_envs);
        let terminated = (0..rows).map(|_| rng.uniform(0.0, 1.0) < 0.05).collect();
        Self { log_rhos, rewards, values, terminated, last_values }
    }

    fn vtrace(&self, group: &mut BenchmarkGroup<'_, measurement::WallTime>, name: &str) {
        let (mut vs, mut pg_advantages) = (self.values.clone(), self.values.clone());
        let (settings, n) = (VtraceConfig::default(), self.last_values.len());
        let (log_rhos, rewards, values, last) = (&self.log_rhos, &self.rewards, &self.values, &self.last_values);
        group.throughput(Throughput::Elements(rewards.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let ends = EpisodeEnds::dones(&self.terminated);
                let (vs, pg) = (&mut vs, &mut pg_advantages);
                if n == 1 {
                    compute_vtrace(log_rhos, rewards, values, ends, last[0], settings, vs, pg)
                } else {
                    compute_vtrace_time_major(log_rhos, rewards, values, ends, n, last, settings, vs, pg)
                }
            });
        });
    }

    fn lambda_returns(&self, group: &mut BenchmarkGroup<'_, measurement::WallTime>, name: &str) {
        let (mut returns, n) = (self.values.clone(), self.last_values.len());
        let (rewards, values, last) = (&self.rewards, &self.values, &self.last_values);
        group.throughput(Throughput::Elements(rewards.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let ends = EpisodeEnds::dones(&self.terminated);
                if n == 1 {
                    compute_lambda_returns(rewards, values, ends, last[0], 0.99, 0.95, &mut returns)
                } else {
                    compute_lambda_returns_time_major(rewards, values, ends, n, last, 0.99, 0.95, &mut returns)
                }
            });
        });
    }
}

fn measure<T: Float>(c: &mut Criterion, dtype: &str, number: fn(f64) -> T) {
    let mut group = c.benchmark_group(format!("vtrace/one/{dtype}"));
    for steps in [128, 2048, 32_768] {
        Rollout::new(steps, 1, number).vtrace(&mut group, &steps.to_string());
    }
    group.finish();
    let grids = [(128, 8), (128, 64), (2048, 64), (2048, 256)];
    let mut group = c.benchmark_group(format!("vtrace/time_major/{dtype}"));
    for (steps, n) in grids {
        Rollout::new(steps, n, number).vtrace(&mut group, &format!("{steps}x{n}"));
    }
    group.finish();
    let mut group = c.benchmark_group(format!("vtrace/returns/{dtype}"));
    for (steps, n) in [(2048, 1)].into_iter().chain(grids) {
        Rollout::new(steps, n, number).lambda_returns(&mut group, &format!("{steps}x{n}"));
    }
    group.finish();
}

fn vtrace(c: &mut Criterion) {
    measure(c, "f32", |x| x as f32);
    measure(c, "f64", |x| x);
}

criterion_group!(groups, vtrace);
criterion_main!(groups);
