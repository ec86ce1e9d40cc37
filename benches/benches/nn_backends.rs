//! `nn_backends/<row>/<sizes>/<batch>/<backend>`: a gradient step, or actions for a batch, on each backend of networks.
//!
//! All run on the CPU; a row's backends do the same with the same weights. Actor and critic of large networks are computed
//! at once where there are two cores, on each backend alike. A table of what was measured is printed at the end.

#[path = "nn_backends/table.rs"]
mod table;

use std::time::{Duration, SystemTime};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group};
use rlox_burn::BurnMlp;
use rlox_candle::CandleMlp;
use rlox_core::{Actions, ActionsMut, EnvSpec, Pcg64, Policy, PolicyOut, Result, Space};
use rlox_nn::{
    ActionValue, Activation, ActorCritic, ActorCriticLoss, CriticBatch, CriticEnsemble, Discount, Distribution, Init,
    Minibatch, Mlp, Network, Optimizer, PolicyLoss, PolicyNetworks, QBatch, QFunction, QLoss, QNetworks,
    SquashedPolicy, StochasticPolicy, TdLoss,
};

/// Discrete rows are CartPole's.
const OBS: usize = 4;
const CHOICES: i64 = 2;
/// Continuous rows are `HalfCheetah`'s.
const STATE: usize = 17;
const ACTION: usize = 6;

/// Its rate is too small to change the networks while they are measured, so that the work stays the same.
const ADAM: Optimizer = Optimizer::Adam { lr: 1e-6, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
const SIZES: [[usize; 2]; 3] = [[64, 64], [256, 256], [400, 300]];

/// What makes a network of a backend.
type Make<N> = fn(&[usize], Activation, Init, &mut Pcg64) -> Result<N>;
type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// A row's sizes and its batch.
#[derive(Clone, Copy)]
struct Row {
    sizes: [usize; 2],
    rows: usize,
}

/// A batch, drawn at random.
struct Drawn {
    obs: Vec<f32>,
    next_obs: Vec<f32>,
    choices: Vec<i64>,
    actions: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
    terminated: Vec<bool>,
}

impl Drawn {
    fn new(rows: usize, obs: usize) -> Self {
        let mut rng = Pcg64::seed_from(42);
        let choices = (0..rows).map(|_| rng.integers(0, CHOICES)).collect();
        let mut draw = |count| (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect::<Vec<_>>();
        Self {
            obs: draw(rows * obs),
            next_obs: draw(rows * obs),
            choices,
            actions: draw(rows * ACTION),
            log_probs: vec![-(CHOICES as f32).ln(); rows],
            values: draw(rows),
            advantages: draw(rows),
            returns: draw(rows),
            terminated: (0..rows).map(|row| row % 16 == 0).collect(),
        }
    }
}

/// A network with `ReLU`, as off-policy methods have it.
fn relu<N: Network>(make: Make<N>, inputs: usize, sizes: [usize; 2], outputs: usize) -> Result<N> {
    let sizes = [inputs, sizes[0], sizes[1], outputs];
    make(&sizes, Activation::Relu, Init::Kaiming, &mut Pcg64::seed_from(0))
}

fn policy<N: Network>(make: Make<N>, sizes: [usize; 2]) -> Result<PolicyNetworks<N>> {
    let spec = EnvSpec {
        id: "Bench-v0".into(),
        observation: Space::uniform_box(-1.0, 1.0, &[OBS]),
        action: Space::discrete(CHOICES),
        max_episode_steps: None,
    };
    let (distribution, mut rng) = (Distribution::new(&spec.action, 0.0)?, Pcg64::seed_from(0));
    let one = |sizes: &[usize], gain| make(sizes, Activation::Tanh, Init::orthogonal(gain), &mut rng);
    PolicyNetworks::with(&spec, &sizes, distribution, one)
}

/// PPO: losses, gradients of actor and critic, one clipped step of Adam.
fn ppo_step<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let drawn = Drawn::new(rows, OBS);
    let batch = Minibatch {
        obs: &drawn.obs,
        actions: Actions::Discrete(&drawn.choices),
        masks: None,
        log_probs: &drawn.log_probs,
        values: &drawn.values,
        advantages: &drawn.advantages,
        returns: &drawn.returns,
    };
    let policy_loss = PolicyLoss::Clipped { clip_coef: 0.2 };
    let loss = ActorCriticLoss { policy: policy_loss, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut policy = policy(make, sizes).unwrap();
        b.iter(|| policy.update(&batch, &loss, &ADAM, Some(0.5)).unwrap());
    });
}

/// DQN: targets of the target network, Huber, one clipped step of Adam.
fn dqn_step<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let drawn = Drawn::new(rows, OBS);
    let batch = QBatch {
        obs: &drawn.obs,
        actions: &drawn.choices,
        rewards: &drawn.advantages,
        next_obs: &drawn.next_obs,
        terminated: &drawn.terminated,
        discount: Discount::Same(0.99),
        weights: None,
        next_masks: None,
    };
    let loss = QLoss { distance: TdLoss::Huber, double: false };
    let net = || relu(make, OBS, sizes, CHOICES as usize).unwrap();
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut q = QNetworks::new(net(), net()).unwrap();
        b.iter(|| q.update(&batch, loss, &ADAM, Some(10.0)).unwrap());
    });
}

/// One critic of SAC or TD3, given targets: squared error, one step of Adam.
fn critic_step<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let drawn = Drawn::new(rows, STATE);
    let batch = CriticBatch { obs: &drawn.obs, actions: &drawn.actions, targets: &drawn.returns, weights: None };
    let net = || relu(make, STATE + ACTION, sizes, 1).unwrap();
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut critic = CriticEnsemble::new(vec![[net(), net()]], STATE).unwrap();
        b.iter(|| critic.update(&batch, 0.5, &ADAM, None).unwrap());
    });
}

/// SAC: squashed actions and their log-probabilities.
fn sac_sample<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let drawn = Drawn::new(rows, STATE);
    let mut rng = Pcg64::seed_from(1);
    let (mut actions, mut log_probs) = (vec![0.0; rows * ACTION], vec![0.0; rows]);
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let actor = relu(make, STATE, sizes, 2 * ACTION).unwrap();
        let mut policy = SquashedPolicy::new(actor, ACTION).unwrap();
        b.iter(|| policy.sample(&drawn.obs, &mut rng, &mut actions, &mut log_probs).unwrap());
    });
}

/// PPO's policy in a rollout: actor and critic, actions, log-probabilities and values.
fn inference<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let drawn = Drawn::new(rows, OBS);
    let mut rngs: Vec<_> = (0..rows as u128).map(Pcg64::seed_from).collect();
    let (mut actions, mut log_probs, mut values) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut policy = policy(make, sizes).unwrap();
        b.iter(|| {
            let actions = ActionsMut::Discrete(&mut actions);
            let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
            policy.act(&drawn.obs, None, &mut rngs, out).unwrap();
        });
    });
}

/// Runs a row on each backend: a new one is one more line.
macro_rules! on_each_backend {
    ($c:expr, $name:ident, $sizes:expr, $rows:expr) => {
        for sizes in $sizes {
            for rows in $rows {
                let title = format!("nn_backends/{}/{}x{}/{rows}", stringify!($name), sizes[0], sizes[1]);
                let (mut group, row) = ($c.benchmark_group(title), Row { sizes, rows });
                group.throughput(Throughput::Elements(rows as u64));
                $name(&mut group, "built_in", Mlp::new, row);
                $name(&mut group, "candle", CandleMlp::new, row);
                $name(&mut group, "burn", BurnMlp::new, row);
            }
        }
    };
}

fn nn_backends(c: &mut Criterion) {
    on_each_backend!(c, ppo_step, SIZES, [64, 256]);
    on_each_backend!(c, dqn_step, SIZES, [64]);
    on_each_backend!(c, critic_step, [[256, 256]], [256]);
    on_each_backend!(c, sac_sample, SIZES, [1]);
    on_each_backend!(c, inference, SIZES, [1, 8, 64, 256]);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500));
    targets = nn_backends
}

fn main() {
    let start = SystemTime::now();
    benches();
    Criterion::default().configure_from_args().final_summary();
    table::print_since(start);
}
