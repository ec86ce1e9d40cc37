//! `replay/push/<obs>`: one transition of an environment; `replay/push_batch/<obs>`: one of each of 64 that go to and fro
//! between two states; `replay/push_images`: one with a stack of four 84 x 84 frames, as a whole or stored once, and
//! `replay/sample_images/<batch>` of them; `replay/sample/<obs>/<batch>` from a full buffer; `replay/three_steps/<batch>`;
//! `replay/priorities/<capacity>`: a batch of 256 by priority, and new priorities for it; `replay/mmap`: a transition pushed
//! to a file, and a batch of 256 of which nine tenths lie in it.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::replay::{
    FieldSpec, MmapReplayBuffer, NStep, PrioritizedReplayBuffer, Replay, ReplayBuffer, ReplayStorage, SampledBatch,
    Sampler, TransitionBatch, TransitionSchema, Uniform,
};
use rlox_core::{DType, FieldData, Pcg64};

const FRAME: usize = 84 * 84;
const STACK: usize = 4 * FRAME;
const ENVS: usize = 64;

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

fn push_batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/push_batch");
    group.throughput(Throughput::Elements(ENVS as u64));
    for dim in [4, 17] {
        group.bench_function(BenchmarkId::from_parameter(dim), |b| {
            let part = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
            let layout = TransitionSchema::new(part("obs", dim), part("actions", 1));
            let storage = ReplayStorage::new(100_000, ENVS, layout).expect("room");
            let mut buffer = Replay::from_parts(storage, Uniform).expect("room");
            let states = observations(dim, 2 * ENVS - 1);
            let (here, there) = states.split_at(dim * ENVS);
            let [mut here, mut there] = [here, there].map(|state| [FieldData::F32(state)]);
            let never = [false; ENVS];
            b.iter(|| {
                let steps = TransitionBatch {
                    obs: &here,
                    actions: FieldData::F32(&[0.5; ENVS]),
                    rewards: &[1.0; ENVS],
                    terminated: &never,
                    truncated: &never,
                    next_obs: Some(&there),
                    extra: &[],
                };
                buffer.push_batch(&steps).expect("rows that fit");
                std::mem::swap(&mut here, &mut there);
            });
        });
    }
    group.finish();
}

/// Pushes stack after stack of an episode of a thousand, again from the first after the last.
struct Pictures {
    frames: Vec<u8>,
    row: usize,
}

impl Pictures {
    fn new() -> Self {
        Self { frames: (0..FRAME * 1_004).map(|i| (i % 251) as u8).collect(), row: 0 }
    }

    fn buffer(frame_stack: usize) -> ReplayBuffer {
        let layout = TransitionSchema::new(
            FieldSpec::new("obs", &[4, 84, 84], DType::U8),
            FieldSpec::new("actions", &[], DType::I64),
        );
        let storage = ReplayStorage::new(10_000, 1, TransitionSchema { frame_stack, ..layout }).expect("room");
        Replay::from_parts(storage, Uniform).expect("room")
    }

    fn push(&mut self, buffer: &mut ReplayBuffer) {
        let stack = |row: usize| FieldData::U8(&self.frames[row * FRAME..][..STACK]);
        let steps = TransitionBatch {
            obs: &[stack(self.row)],
            actions: FieldData::I64(&[1]),
            rewards: &[1.0],
            terminated: &[false],
            truncated: &[self.row == 999],
            next_obs: Some(&[stack(self.row + 1)]),
            extra: &[],
        };
        buffer.push_batch(&steps).expect("rows that fit");
        self.row = (self.row + 1) % 1_000;
    }
}

const KEPT: [(&str, usize); 2] = [("whole", 1), ("frames_once", 4)];

fn push_images(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/push_images");
    group.throughput(Throughput::Bytes(STACK as u64));
    for (name, frame_stack) in KEPT {
        group.bench_function(name, |b| {
            let (mut pictures, mut buffer) = (Pictures::new(), Pictures::buffer(frame_stack));
            b.iter(|| pictures.push(&mut buffer));
        });
    }
    group.finish();
}

fn sample_images(c: &mut Criterion) {
    for (name, frame_stack) in KEPT {
        let mut group = c.benchmark_group(format!("replay/sample_images/{name}"));
        let (mut pictures, mut buffer) = (Pictures::new(), Pictures::buffer(frame_stack));
        (0..10_000).for_each(|_| pictures.push(&mut buffer));
        for batch_size in [32, 256] {
            group.throughput(Throughput::Bytes((2 * STACK * batch_size) as u64));
            group.bench_function(BenchmarkId::from_parameter(batch_size), |b| {
                let (mut batch, mut rng) = (SampledBatch::default(), Pcg64::seed_from(0));
                b.iter(|| buffer.sample_with(&mut batch, batch_size, &mut rng));
            });
        }
        group.finish();
    }
}

fn mmap(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/mmap");
    let path = std::env::temp_dir().join(format!("rlox-bench-replay-{}", std::process::id()));
    let (obs, part) = (observations(4, 10_000), |name, dim| FieldSpec::new(name, &[dim], DType::F32));
    let layout = TransitionSchema::new(part("obs", 4), part("actions", 1));
    let mut buffer = MmapReplayBuffer::create(&path, 10_000, 100_000, layout).expect("a file");
    let mut row = 0;
    let mut push = |buffer: &mut MmapReplayBuffer| {
        let (now, next) = obs[4 * row..4 * row + 8].split_at(4);
        buffer.push_slices(now, next, &[0.5], 1.0, false, false).expect("rows that fit");
        row = (row + 1) % 10_000;
    };
    (0..100_000).for_each(|_| push(&mut buffer));
    group.throughput(Throughput::Elements(1));
    group.bench_function("push", |b| b.iter(|| push(&mut buffer)));
    group.throughput(Throughput::Elements(256));
    group.bench_function("sample", |b| {
        let (mut batch, mut rng) = (SampledBatch::default(), Pcg64::seed_from(0));
        b.iter(|| buffer.sample_with(&mut batch, 256, &mut rng));
    });
    group.finish();
    drop(buffer);
    std::fs::remove_file(path).expect("the file");
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

criterion_group!(benches, push, push_batch, push_images, sample_images, sample, three_steps, priorities, mmap);
criterion_main!(benches);
