//! `replay/push/<obs>`: one transition of an environment; `replay/push_images`: one with a stack of four 84 x 84 frames, as a
//! whole or stored once; `replay/sample/<obs>/<batch>` from a full buffer; `replay/three_steps/<batch>`;
//! `replay/priorities/<capacity>`: a batch of 256 by priority, and new priorities for it.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::replay::{
    Layout, NStep, Part, PrioritizedReplayBuffer, Replay, ReplayBuffer, ReplayStorage, SampledBatch, Sampler, Steps,
    Uniform,
};
use rlox_core::{DType, FieldData, Pcg64};

const FRAME: usize = 84 * 84;
const STACK: usize = 4 * FRAME;

/// Observations that follow each other, as rows.
fn observations(dim: usize, rows: usize) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(0);
    (0..dim * (rows + 1)).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

/// Pushes row after row of one long episode, again from the first after the last.
struct Pushing {
    obs: Vec<f32>,
    dim: usize,
    row: usize,
    rows: usize,
}

impl Pushing {
    fn new(dim: usize) -> Self {
        let rows = 10_000;
        Self { obs: observations(dim, rows), dim, row: 0, rows }
    }

    fn push<S: Sampler>(&mut self, buffer: &mut Replay<S>) {
        let at = self.row * self.dim;
        let (obs, next_obs) = self.obs[at..at + 2 * self.dim].split_at(self.dim);
        let last = self.row + 1 == self.rows;
        buffer.push_slices(obs, next_obs, &[0.5], 1.0, false, last).expect("rows that fit");
        self.row = (self.row + 1) % self.rows;
    }

    fn fill<S: Sampler>(&mut self, mut buffer: Replay<S>, capacity: usize) -> Replay<S> {
        for _ in 0..capacity {
            self.push(&mut buffer);
        }
        buffer
    }
}

fn push(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/push");
    group.throughput(Throughput::Elements(1));
    for dim in [4, 17] {
        group.bench_function(BenchmarkId::from_parameter(dim), |b| {
            let mut pushing = Pushing::new(dim);
            let mut buffer = pushing.fill(ReplayBuffer::new(100_000, dim, 1).expect("room"), 100_000);
            b.iter(|| pushing.push(&mut buffer));
        });
    }
    group.finish();
}

fn push_images(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/push_images");
    group.throughput(Throughput::Bytes(STACK as u64));
    let frames: Vec<u8> = (0..FRAME * 1_004).map(|i| (i % 251) as u8).collect();
    for (name, frame_stack) in [("whole", 1), ("frames_once", 4)] {
        group.bench_function(name, |b| {
            let layout = Layout::new(Part::new("obs", &[4, 84, 84], DType::U8), Part::new("actions", &[], DType::I64));
            let storage = ReplayStorage::new(10_000, 1, Layout { frame_stack, ..layout }).expect("room");
            let mut buffer = Replay::with(storage, Uniform).expect("room");
            let mut row = 0;
            b.iter(|| {
                let stack = |row: usize| FieldData::U8(&frames[row * FRAME..][..STACK]);
                let steps = Steps {
                    obs: &[stack(row)],
                    actions: FieldData::I64(&[1]),
                    rewards: &[1.0],
                    terminated: &[false],
                    truncated: &[row == 999],
                    next_obs: Some(&[stack(row + 1)]),
                    extra: &[],
                };
                buffer.push_batch(&steps).expect("rows that fit");
                row = (row + 1) % 1_000;
            });
        });
    }
    group.finish();
}

fn sample(c: &mut Criterion) {
    for dim in [4, 17] {
        let mut group = c.benchmark_group(format!("replay/sample/{dim}"));
        let buffer = Pushing::new(dim).fill(ReplayBuffer::new(100_000, dim, 1).expect("room"), 100_000);
        for batch_size in [32, 256, 1024] {
            group.throughput(Throughput::Elements(batch_size as u64));
            group.bench_function(BenchmarkId::from_parameter(batch_size), |b| {
                let (mut batch, mut rng) = (SampledBatch::default(), Pcg64::seed_from(0));
                b.iter(|| buffer.sample_with(&mut batch, batch_size, &mut rng));
            });
        }
        group.finish();
    }
}

fn three_steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/three_steps");
    let buffer = ReplayBuffer::new(100_000, 4, 1).expect("room").with_n_step(NStep { n: 3, gamma: 0.99 });
    let buffer = Pushing::new(4).fill(buffer.expect("three steps"), 100_000);
    for batch_size in [32, 256] {
        group.throughput(Throughput::Elements(batch_size as u64));
        group.bench_function(BenchmarkId::from_parameter(batch_size), |b| {
            let (mut batch, mut rng) = (SampledBatch::default(), Pcg64::seed_from(0));
            b.iter(|| buffer.sample_with(&mut batch, batch_size, &mut rng));
        });
    }
    group.finish();
}

fn priorities(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/priorities");
    group.throughput(Throughput::Elements(256));
    for capacity in [100_000, 1_000_000] {
        group.bench_function(BenchmarkId::from_parameter(capacity), |b| {
            let buffer = PrioritizedReplayBuffer::new(capacity, 4, 1, 0.6, 0.4).expect("room");
            let mut buffer = Pushing::new(4).fill(buffer, capacity);
            let (mut batch, mut rng) = (SampledBatch::default(), Pcg64::seed_from(0));
            let new: Vec<f32> = (0..256).map(|_| rng.uniform(0.1, 1.1) as f32).collect();
            b.iter(|| {
                buffer.sample_with(&mut batch, 256, &mut rng)?;
                buffer.update_priorities(batch.indices(), &new)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, push, push_images, sample, three_steps, priorities);
criterion_main!(benches);
