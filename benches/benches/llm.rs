//! `llm/advantages/<dtype>/<groups>x<size>`: advantages of `<groups>` groups of `<size>` rewards.
//! `llm/k3/<dtype>/<batch>x<tokens>`: Schulman's KL estimator k3, summed over each of `<batch>` sequences.
//! `llm/packing/<count>`: packing of `<count>` sequences into rows of 2048 tokens.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::llm::{
    GroupOptions, KlEstimator, Overflow, Reduction, compute_batch_group_advantages, pack, sequence_kl,
};
use rlox_core::{Pcg64, advantage::Float};

fn draw<T>(count: usize, low: f64, high: f64, number: fn(f64) -> T) -> Vec<T> {
    let mut rng = Pcg64::seed_from(42);
    (0..count).map(|_| number(rng.uniform(low, high))).collect()
}

fn advantages<T: Float>(c: &mut Criterion, dtype: &str, number: fn(f64) -> T) {
    let mut group = c.benchmark_group(format!("llm/advantages/{dtype}"));
    for (groups, size) in [(16, 4), (256, 16), (1024, 32)] {
        group.throughput(Throughput::Elements((groups * size) as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{groups}x{size}")), |b| {
            let rewards = draw(groups * size, 0.0, 1.0, number);
            let mut out = rewards.clone();
            b.iter(|| compute_batch_group_advantages(&rewards, size, &GroupOptions::default(), &mut out));
        });
    }
    group.finish();
}

fn k3<T: Float>(c: &mut Criterion, dtype: &str, number: fn(f64) -> T) {
    let mut group = c.benchmark_group(format!("llm/k3/{dtype}"));
    for (batch, tokens) in [(1, 128), (1, 8192), (32, 2048)] {
        group.throughput(Throughput::Elements((batch * tokens) as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{batch}x{tokens}")), |b| {
            let policy = draw(batch * tokens, -5.0, 0.0, number);
            let difference = draw(batch * tokens, -0.5, 0.5, number);
            let reference: Vec<T> = policy.iter().zip(&difference).map(|(p, x)| *p + *x).collect();
            let mut out = draw(batch, 0.0, 1.0, number);
            b.iter(|| sequence_kl(&policy, &reference, None, KlEstimator::K3, Reduction::Sum, &mut out));
        });
    }
    group.finish();
}

fn packing(c: &mut Criterion) {
    let mut group = c.benchmark_group("llm/packing");
    for count in [1000, 100_000] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            let lengths = draw(count, 2.0, 7.6, |x| x.exp() as usize);
            b.iter(|| pack(&lengths, 2048, Overflow::Error));
        });
    }
    group.finish();
}

fn llm(c: &mut Criterion) {
    advantages(c, "f32", |x| x as f32);
    advantages(c, "f64", |x| x);
    k3(c, "f32", |x| x as f32);
    k3(c, "f64", |x| x);
    packing(c);
}

criterion_group!(groups, llm);
criterion_main!(groups);
