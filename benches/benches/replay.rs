//! Replay buffers. `<obs>` is the number of elements of an observation, and `<batch>` the size of a minibatch.
//!
//! - `replay/push/<obs>`: a push of one transition.
//! - `replay/push_batch/<obs>`: a push of one transition from each of 64 environments, which alternate between two
//!   states.
//! - `replay/push_images/<form>`: a push of one transition with stacks of four 84 x 84 frames. The buffer stores the
//!   complete stacks (`whole`) or each frame once (`frames_once`).
//! - `replay/sample_images/<form>/<batch>`: a minibatch of these transitions.
//! - `replay/sample/<obs>/<batch>`: a minibatch from a full buffer.
//! - `replay/three_steps/<batch>`: a minibatch with three-step returns.
//! - `replay/priorities/<capacity>`: a minibatch of 256 by priority, and an update of its priorities.
//! - `replay/mmap`: a push to a buffer with a file, and a minibatch of 256 from a buffer of which nine tenths are only
//!   in the file.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::replay::{
    FieldSpec, MmapReplayBuffer, NStep, PrioritizedReplayBuffer, Replay, ReplayBuffer, ReplayStorage, SampledBatch,
    Sampler, TransitionBatch, TransitionSchema, Uniform,
};
use rlox_core::{
    Pcg64,
    field::{DType, FieldData},
};

const FRAME: usize = 84 * 84;
const STACK: usize = 4 * FRAME;
const ENVS: usize = 64;

/// Returns `rows + 1` consecutive random observations.
fn observations(dim: usize, rows: usize) -> Vec<f32> {
    let mut rng = Pcg64::seed_from(0);
    (0..dim * (rows + 1)).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

/// Source of pushes that repeats the transitions of one episode of 10,000 steps.
struct EpisodePusher {
    obs: Vec<f32>,
    dim: usize,
    row: usize,
    rows: usize,
}

impl EpisodePusher {
    fn new(dim: usize) -> Self {
        let rows = 10_000;
        Self { obs: observations(dim, rows), dim, row: 0, rows }
    }

    fn push<S: Sampler>(&mut self, buffer: &mut Replay<S>) {
        let at = self.row * self.dim;
        let (obs, next_obs) = self.obs[at..at + 2 * self.dim].split_at(self.dim);
        let last = self.row + 1 == self.rows;
        buffer.push_slices(obs, next_obs, &[0.5], 1.0, false, last).expect("valid rows");
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
            let mut pusher = EpisodePusher::new(dim);
            let mut buffer = pusher.fill(ReplayBuffer::new(100_000, dim, 1).expect("a buffer"), 100_000);
            b.iter(|| pusher.push(&mut buffer));
        });
    }
    group.finish();
}

fn push_batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/push_batch");
    group.throughput(Throughput::Elements(ENVS as u64));
    for dim in [4, 17] {
        group.bench_function(BenchmarkId::from_parameter(dim), |b| {
            let field = |name, dim| FieldSpec::new(name, &[dim], DType::F32);
            let schema = TransitionSchema::new(field("obs", dim), field("actions", 1));
            let storage = ReplayStorage::new(100_000, ENVS, schema).expect("a buffer");
            let mut buffer = Replay::from_parts(storage, Uniform).expect("a buffer");
            let states = observations(dim, 2 * ENVS - 1);
            let (state, next_state) = states.split_at(dim * ENVS);
            let [mut state, mut next_state] = [state, next_state].map(|state| [FieldData::F32(state)]);
            let never = [false; ENVS];
            b.iter(|| {
                let steps = TransitionBatch {
                    obs: &state,
                    actions: FieldData::F32(&[0.5; ENVS]),
                    rewards: &[1.0; ENVS],
                    terminated: &never,
                    truncated: &never,
                    next_obs: Some(&next_state),
                    extra: &[],
                };
                buffer.push_batch(&steps).expect("valid rows");
                std::mem::swap(&mut state, &mut next_state);
            });
        });
    }
    group.finish();
}

/// Source of pushes that repeats the frame stacks of one episode of 1,000 steps.
struct ImagePusher {
    frames: Vec<u8>,
    row: usize,
}

impl ImagePusher {
    fn new() -> Self {
        Self { frames: (0..FRAME * 1_004).map(|i| (i % 251) as u8).collect(), row: 0 }
    }

    fn buffer(frame_stack: usize) -> ReplayBuffer {
        let schema = TransitionSchema::new(
            FieldSpec::new("obs", &[4, 84, 84], DType::U8),
            FieldSpec::new("actions", &[], DType::I64),
        );
        let storage = ReplayStorage::new(10_000, 1, TransitionSchema { frame_stack, ..schema }).expect("a buffer");
        Replay::from_parts(storage, Uniform).expect("a buffer")
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
        buffer.push_batch(&steps).expect("valid rows");
        self.row = (self.row + 1) % 1_000;
    }
}

const STORAGE_FORMS: [(&str, usize); 2] = [("whole", 1), ("frames_once", 4)];

fn push_images(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay/push_images");
    group.throughput(Throughput::Bytes(STACK as u64));
    for (name, frame_stack) in STORAGE_FORMS {
        group.bench_function(name, |b| {
            let (mut pusher, mut buffer) = (ImagePusher::new(), ImagePusher::buffer(frame_stack));
            b.iter(|| pusher.push(&mut buffer));
        });
    }
    group.finish();
}

fn sample_images(c: &mut Criterion) {
    for (name, frame_stack) in STORAGE_FORMS {
        let mut group = c.benchmark_group(format!("replay/sample_images/{name}"));
        let (mut pusher, mut buffer) = (ImagePusher::new(), ImagePusher::buffer(frame_stack));
        (0..10_000).for_each(|_| pusher.push(&mut buffer));
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
    let (obs, field) = (observations(4, 10_000), |name, dim| FieldSpec::new(name, &[dim], DType::F32));
    let schema = TransitionSchema::new(field("obs", 4), field("actions", 1));
    let mut buffer = MmapReplayBuffer::create(&path, 10_000, 100_000, schema).expect("a file");
    let mut row = 0;
    let mut push = |buffer: &mut MmapReplayBuffer| {
        let (now, next) = obs[4 * row..4 * row + 8].split_at(4);
        buffer.push_slices(now, next, &[0.5], 1.0, false, false).expect("valid rows");
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
        let buffer = EpisodePusher::new(dim).fill(ReplayBuffer::new(100_000, dim, 1).expect("a buffer"), 100_000);
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
    let buffer = ReplayBuffer::new(100_000, 4, 1).expect("a buffer").with_n_step(NStep { n: 3, gamma: 0.99 });
    let buffer = EpisodePusher::new(4).fill(buffer.expect("three steps"), 100_000);
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
            let buffer = PrioritizedReplayBuffer::new(capacity, 4, 1, 0.6, 0.4).expect("a buffer");
            let mut buffer = EpisodePusher::new(4).fill(buffer, capacity);
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
