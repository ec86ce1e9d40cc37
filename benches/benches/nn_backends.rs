//! `nn_backends/<row>/<sizes>/<batch>/<backend>`: a gradient step, or actions for a batch, on each network backend.
//!
//! `<row>` is the name of the measured function, such as `ppo_step`, and `<sizes>` are the hidden layers. All backends
//! run on the CPU and, with the same weights, compute the same results. On two or more cores, large actor and critic
//! networks run in parallel on each backend. The program prints a table of the results at the end.

#[path = "nn_backends/table.rs"]
mod table;

use std::time::{Duration, SystemTime};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group};
use rlox_burn::BurnMlp;
use rlox_candle::CandleMlp;
use rlox_core::{Actions, ActionsMut, EnvSpec, Pcg64, Policy, PolicyOut, Result, Space};
use rlox_nn::{
    ActionValue, Activation, ActorCritic, ActorCriticLoss, CriticBatch, CriticEnsemble, Discount, Init, Minibatch, Mlp,
    Network, Optimizer, PolicyBuilder, PolicyLoss, PolicyNetworks, QBatch, QFunction, QLoss, QNetworks, SquashedPolicy,
    StochasticPolicy, TdLoss,
};

/// Elements of an observation and number of actions of `CartPole`, for benchmarks with discrete actions.
const OBS: usize = 4;
const CHOICES: i64 = 2;
/// Elements of an observation and of an action of `HalfCheetah`, for benchmarks with continuous actions.
const STATE: usize = 17;
const ACTION: usize = 6;

/// Adam with a learning rate that barely changes the networks, so that each iteration does the same work.
const ADAM: Optimizer = Optimizer::Adam { lr: 1e-6, beta1: 0.9, beta2: 0.999, eps: 1e-5 };
const SIZES: [[usize; 2]; 3] = [[64, 64], [256, 256], [400, 300]];

/// Constructor of a backend's network.
type Make<N> = fn(&[usize], Activation, Init, &mut Pcg64) -> Result<N>;
type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Sizes of the hidden layers and number of rows of the batch.
#[derive(Clone, Copy)]
struct Row {
    sizes: [usize; 2],
    rows: usize,
}

/// Random batch with the inputs of all measured functions.
struct RandomBatch {
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

impl RandomBatch {
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

/// Creates a network with `ReLU`, as in off-policy algorithms.
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
    PolicyBuilder::new(&spec).net_arch(&sizes).build_with(&mut Pcg64::seed_from(0), make)
}

/// Measures a PPO update: losses, gradients of actor and critic, and one step of Adam with clipped gradients.
fn ppo_step<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let data = RandomBatch::new(rows, OBS);
    let batch = Minibatch {
        obs: &data.obs,
        actions: Actions::Discrete(&data.choices),
        masks: None,
        log_probs: &data.log_probs,
        values: &data.values,
        advantages: &data.advantages,
        returns: &data.returns,
    };
    let policy_loss = PolicyLoss::Clipped { clip_coef: 0.2 };
    let loss = ActorCriticLoss { policy: policy_loss, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut policy = policy(make, sizes).unwrap();
        b.iter(|| policy.update(&batch, &loss, &ADAM, Some(0.5)).unwrap());
    });
}

/// Measures a DQN update: targets of the target network, Huber loss, and one step of Adam with clipped gradients.
fn dqn_step<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let data = RandomBatch::new(rows, OBS);
    let batch = QBatch {
        obs: &data.obs,
        actions: &data.choices,
        rewards: &data.advantages,
        next_obs: &data.next_obs,
        terminated: &data.terminated,
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

/// Measures an update of one critic of SAC or TD3 with fixed targets: squared error and one step of Adam.
fn critic_step<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let data = RandomBatch::new(rows, STATE);
    let batch = CriticBatch { obs: &data.obs, actions: &data.actions, targets: &data.returns, weights: None };
    let net = || relu(make, STATE + ACTION, sizes, 1).unwrap();
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut critic = CriticEnsemble::new(vec![[net(), net()]], STATE).unwrap();
        b.iter(|| critic.update(&batch, 0.5, &ADAM, None).unwrap());
    });
}

/// Measures sampling from SAC's actor: tanh-squashed actions and their log-probabilities.
fn sac_sample<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let data = RandomBatch::new(rows, STATE);
    let mut rng = Pcg64::seed_from(1);
    let (mut actions, mut log_probs) = (vec![0.0; rows * ACTION], vec![0.0; rows]);
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let actor = relu(make, STATE, sizes, 2 * ACTION).unwrap();
        let mut policy = SquashedPolicy::new(actor, ACTION).unwrap();
        b.iter(|| policy.sample(&data.obs, &mut rng, &mut actions, &mut log_probs).unwrap());
    });
}

/// Measures PPO's policy in a rollout step: forward passes, sampled actions, log-probabilities and values.
fn inference<N: Network>(group: &mut Group<'_>, name: &str, make: Make<N>, Row { sizes, rows }: Row) {
    let data = RandomBatch::new(rows, OBS);
    let mut rngs: Vec<_> = (0..rows as u128).map(Pcg64::seed_from).collect();
    let (mut actions, mut log_probs, mut values) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        let mut policy = policy(make, sizes).unwrap();
        b.iter(|| {
            let actions = ActionsMut::Discrete(&mut actions);
            let out = PolicyOut { actions, log_probs: &mut log_probs, values: &mut values };
            policy.act(&data.obs, None, &mut rngs, out).unwrap();
        });
    });
}

/// Runs a benchmark function on each backend. A new backend needs one more line.
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
