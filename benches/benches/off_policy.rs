//! `off_policy/<algorithm>/<hidden layers>`: one step of Pendulum, which the replay buffer stores, and one update of
//! the built-in networks from 256 transitions. TD3's actor learns in every second update.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rlox_core::{AutoresetMode, VecEnv, VectorEnv, envs::Pendulum};
use rlox_nn::train::{ActionNoise, OffPolicy, OffPolicyMethod, Sac, SacConfig, Td3, Td3Config};

/// Steps before learning starts, equal to the batch size.
const WARM_UP: u64 = 256;

fn pendulum() -> Box<dyn VectorEnv> {
    Box::new(VecEnv::new(1, None, AutoresetMode::SameStep, Pendulum::default).expect("one environment"))
}

fn bench_step<A: OffPolicyMethod>(c: &mut Criterion, name: &str, sizes: &str, mut trainer: OffPolicy<A>) {
    trainer.train(WARM_UP, |_| true).expect("first steps");
    trainer.begin(u64::MAX / 2);
    let mut group = c.benchmark_group(format!("off_policy/{name}"));
    group.bench_function(BenchmarkId::from_parameter(sizes), |b| b.iter(|| trainer.iterate().expect("a step")));
    group.finish();
}

fn sac(c: &mut Criterion) {
    for sizes in [[64, 64], [256, 256]] {
        let config = SacConfig { buffer_size: 100_000, learning_starts: WARM_UP, ..SacConfig::default() };
        let trainer = Sac::new(pendulum(), |spec, rng| config.mlp(spec, &sizes, rng), config.clone(), 1);
        bench_step(c, "sac", &format!("{}x{}", sizes[0], sizes[1]), trainer.expect("SAC"));
    }
}

fn td3(c: &mut Criterion) {
    for sizes in [[64, 64], [256, 256]] {
        let action_noise = Some(ActionNoise::Gaussian { sigma: 0.1 });
        let config = Td3Config { buffer_size: 100_000, learning_starts: WARM_UP, action_noise, ..Td3Config::default() };
        let trainer = Td3::new(pendulum(), |spec, rng| config.mlp(spec, &sizes, rng), config.clone(), 1);
        bench_step(c, "td3", &format!("{}x{}", sizes[0], sizes[1]), trainer.expect("TD3"));
    }
}

criterion_group!(benches, sac, td3);
criterion_main!(benches);
