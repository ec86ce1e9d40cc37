//! `nn_backends/<row>/<sizes>/<backend>`: a gradient step, or actions for a batch, on each backend of networks.
//!
//! All run on the CPU; a row's backends do the same with the same weights.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rlox_burn::BurnMlp;
use rlox_candle::CandleMlp;
use rlox_core::{Actions, ActionsMut, EnvSpec, Pcg64, Policy, PolicyOut, Result, Space};
use rlox_nn::{
    Activation, ActorCritic, ActorCriticLoss, Distribution, Init, Minibatch, Mlp, Network, Optimizer, PolicyLoss,
    PolicyNetworks,
};

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

/// What makes a network of a backend.
type Make<N> = fn(&[usize], Activation, Init, &mut Pcg64) -> Result<N>;

fn policy<N: Network>(make: Make<N>, sizes: [usize; 2]) -> Result<PolicyNetworks<N>> {
    let (spec, mut rng) = (spec(4, 2), Pcg64::seed_from(0));
    let distribution = Distribution::new(&spec.action, 0.0)?;
    let one = |sizes: &[usize], gain| make(sizes, Activation::Tanh, Init::orthogonal(gain), &mut rng);
    PolicyNetworks::with(&spec, &sizes, distribution, one)
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn update<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, sizes: [usize; 2], drawn: &Drawn) {
    let loss = ActorCriticLoss {
        policy: PolicyLoss::Clipped { clip_coef: 0.2 },
        clip_coef_vf: None,
        vf_coef: 0.5,
        ent_coef: 0.01,
    };
    let adam = Optimizer::Adam { lr: 3e-4, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let Ok(mut policy) = policy(make, sizes) else { return };
        b.iter(|| policy.update(&drawn.minibatch(), &loss, &adam, Some(0.5)));
    });
}

fn act<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, sizes: [usize; 2], drawn: &Drawn) {
    let rows = drawn.values.len();
    let mut rngs: Vec<_> = (0..rows as u128).map(Pcg64::seed_from).collect();
    let (mut actions, mut log_probs, mut values) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let Ok(mut policy) = policy(make, sizes) else { return };
        b.iter(|| {
            let actions = ActionsMut::Discrete(&mut actions);
            let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
            policy.act(&drawn.obs, None, &mut rngs, out)
        });
    });
}

/// Runs a row on each backend: a new one is one more line.
macro_rules! on_each_backend {
    ($row:ident($group:expr, $sizes:expr, $drawn:expr)) => {
        $row($group, "built_in", Mlp::new, $sizes, $drawn);
        $row($group, "candle", CandleMlp::new, $sizes, $drawn);
        $row($group, "burn", BurnMlp::new, $sizes, $drawn);
    };
}

fn ppo_step(c: &mut Criterion) {
    for sizes in SIZES {
        for rows in [64, 256] {
            let mut group = c.benchmark_group(format!("nn_backends/ppo_step/{}x{}/{rows}", sizes[0], sizes[1]));
            group.throughput(Throughput::Elements(rows as u64));
            on_each_backend!(update(&mut group, sizes, &Drawn::new(rows, 4, 2)));
        }
    }
}

fn inference(c: &mut Criterion) {
    for sizes in SIZES {
        for rows in [1, 8, 64, 256] {
            let mut group = c.benchmark_group(format!("nn_backends/act/{}x{}/{rows}", sizes[0], sizes[1]));
            group.throughput(Throughput::Elements(rows as u64));
            on_each_backend!(act(&mut group, sizes, &Drawn::new(rows, 4, 2)));
        }
    }
}

criterion_group!(benches, ppo_step, inference);
criterion_main!(benches);
