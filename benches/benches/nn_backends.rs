//! `nn_backends/<row>/<sizes>/<backend>`: a gradient step, or actions for a batch, on each backend of networks.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_core::{Actions, EnvSpec, Pcg64, Policy, PolicyOut, Space};
use rlox_nn::{Activation, ActorCritic, ActorCriticLoss, Minibatch, Optimizer, PolicyLoss, PolicyNetworks};

fn spec(obs: usize, actions: i64) -> EnvSpec {
    EnvSpec {
        id: "Bench-v0".into(),
        observation: Space::uniform_box(-1.0, 1.0, &[obs]),
        action: Space::discrete(actions),
        max_episode_steps: None,
    }
}

/// A minibatch of PPO, drawn at random.
struct Drawn {
    obs: Vec<f32>,
    actions: Vec<i64>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
}

impl Drawn {
    fn new(rows: usize, obs: usize, actions: i64) -> Self {
        let mut rng = Pcg64::seed_from(42);
        let chosen = (0..rows).map(|_| rng.integers(0, actions)).collect();
        let mut draw = |count| (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect::<Vec<_>>();
        Self {
            obs: draw(rows * obs),
            actions: chosen,
            log_probs: vec![-(actions as f32).ln(); rows],
            values: draw(rows),
            advantages: draw(rows),
            returns: draw(rows),
        }
    }

    fn minibatch(&self) -> Minibatch<'_> {
        Minibatch {
            obs: &self.obs,
            actions: Actions::Discrete(&self.actions),
            masks: None,
            log_probs: &self.log_probs,
            values: &self.values,
            advantages: &self.advantages,
            returns: &self.returns,
        }
    }
}

const SIZES: [[usize; 2]; 3] = [[64, 64], [256, 256], [400, 300]];

fn ppo_step(c: &mut Criterion) {
    let loss = ActorCriticLoss {
        policy: PolicyLoss::Clipped { clip_coef: 0.2 },
        clip_coef_vf: None,
        vf_coef: 0.5,
        ent_coef: 0.01,
    };
    let adam = Optimizer::Adam { lr: 3e-4, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
    for sizes in SIZES {
        for rows in [64, 256] {
            let name = format!("nn_backends/ppo_step/{}x{}/{rows}", sizes[0], sizes[1]);
            let mut group = c.benchmark_group(name);
            group.throughput(Throughput::Elements(rows as u64));
            let drawn = Drawn::new(rows, 4, 2);
            group.bench_function(BenchmarkId::from_parameter("built_in"), |b| {
                let mut rng = Pcg64::seed_from(0);
                let Ok(mut policy) = PolicyNetworks::mlp(&spec(4, 2), &sizes, Activation::Tanh, &mut rng) else {
                    return;
                };
                b.iter(|| policy.update(&drawn.minibatch(), &loss, &adam, Some(0.5)));
            });
        }
    }
}

fn inference(c: &mut Criterion) {
    for sizes in SIZES {
        for rows in [1, 8, 64, 256] {
            let name = format!("nn_backends/act/{}x{}/{rows}", sizes[0], sizes[1]);
            let mut group = c.benchmark_group(name);
            group.throughput(Throughput::Elements(rows as u64));
            let drawn = Drawn::new(rows, 4, 2);
            let mut rngs: Vec<_> = (0..rows as u128).map(Pcg64::seed_from).collect();
            let (mut actions, mut log_probs, mut values) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
            group.bench_function(BenchmarkId::from_parameter("built_in"), |b| {
                let mut rng = Pcg64::seed_from(0);
                let Ok(mut policy) = PolicyNetworks::mlp(&spec(4, 2), &sizes, Activation::Tanh, &mut rng) else {
                    return;
                };
                b.iter(|| {
                    let out = PolicyOut {
                        actions: rlox_core::ActionsMut::Discrete(&mut actions),
                        log_probs: &mut log_probs,
                        values: &mut values,
                    };
                    policy.act(&drawn.obs, None, &mut rngs, out)
                });
            });
        }
    }
}

criterion_group!(benches, ppo_step, inference);
criterion_main!(benches);
