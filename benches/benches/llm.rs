//! `llm/advantages/<dtype>/<groups>x<size>`: group advantages.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::llm::{GroupOptions, compute_batch_group_advantages};
use rlox_core::{Float, Pcg64};

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

fn llm(c: &mut Criterion) {
    advantages(c, "f32", |x| x as f32);
    advantages(c, "f64", |x| x);
}

criterion_group!(groups, llm);
criterion_main!(groups);
