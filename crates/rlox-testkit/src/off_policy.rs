//! Tests that off-policy updates equal those of the built-in network with equal weights,
//! minibatches and noise.

use rlox_core::{Actions, EnvSpec, Pcg64, Result, Space};
use rlox_nn::train::{
    DqnConfig, DqnLearner, OffPolicyMethod, ReplayBatch, SacConfig, SacLearner, Td3Config, Td3Learner,
};
use rlox_nn::{
    Activation, CriticEnsemble, DeterministicActor, Discount, Dueling, Init, Mlp, NamedTensors, Network, Optimizer,
    QNetworks, SquashedPolicy,
};

use crate::{Make, assert_all_near, draws};

const ROWS: usize = 32;
const OBS: usize = 5;

fn spec(action: Space) -> EnvSpec {
    let observation = Space::uniform_box(-1.0, 1.0, &[OBS]);
    EnvSpec { id: "Test-v0".into(), observation, action, max_episode_steps: None }
}

/// Returns Adam with a large `eps`.
///
/// With a small `eps`, the sign of a gradient near 0 decides the step, and rounding can change this
/// sign.
fn optimizer() -> Optimizer {
    Optimizer::adam(1e-2).with_eps(1e-2)
}

/// Returns all tensors after three updates with fixed minibatches and noise.
fn train_briefly<M: OffPolicyMethod>(config: M::Config, networks: M::Networks, spec: &EnvSpec) -> NamedTensors {
    M::replay_config(&config, spec).unwrap();
    let mut learner = M::new(config, networks, spec, 1).unwrap();
    let mut rng = Pcg64::seed_from(9);
    for update in 0..3_u64 {
        let seed = u128::from(update);
        let (numbers, integers) = (draws(ROWS * 3, 10 + seed), (0..ROWS as i64).map(|i| i % 4).collect::<Vec<_>>());
        let discrete = matches!(spec.action, Space::Discrete { .. });
        let terminated: Vec<_> = (0..ROWS).map(|i| i % 7 == 0).collect();
        let batch = ReplayBatch {
            obs: &draws(ROWS * OBS, 20 + seed),
            actions: if discrete { Actions::Discrete(&integers) } else { Actions::Continuous(&numbers) },
            rewards: &draws(ROWS, 30 + seed),
            next_obs: &draws(ROWS * OBS, 40 + seed),
            terminated: &terminated,
            discount: Discount::Same(0.9),
            weights: None,
            next_masks: None,
        };
        learner.learn(&batch, &mut rng, 0.0).unwrap();
        learner.on_step(update..update + 1).unwrap();
    }
    learner.tensors()
}

/// Returns a constructor of a backend's `ReLU` networks.
fn relu_network<N: Network>(make: Make<N>) -> impl FnMut(&[usize], &mut Pcg64) -> Result<N> {
    move |sizes, rng| make(sizes, Activation::Relu, Init::Kaiming, rng)
}

fn dqn<N: Network>(make: Make<N>, dueling: bool) -> NamedTensors {
    let spec = spec(Space::discrete(4));
    let config = DqnConfig { optimizer: optimizer(), double: true, target_update_interval: 2, ..DqnConfig::default() };
    let mut rng = Pcg64::seed_from(3);
    if dueling {
        let q = QNetworks::<Dueling<N>>::dueling_with(&spec, &[20, 17], &mut rng, relu_network(make)).unwrap();
        return train_briefly::<DqnLearner<_>>(config, q, &spec);
    }
    let q = QNetworks::with(&spec, &[20, 17], &mut rng, relu_network(make)).unwrap();
    train_briefly::<DqnLearner<_>>(config, q, &spec)
}

fn sac<N: Network>(make: Make<N>, use_sde: bool) -> NamedTensors {
    let spec = spec(Space::uniform_box(-2.0, 1.0, &[3]));
    let config = SacConfig { optimizer: optimizer(), use_sde, tau: 0.1, ..SacConfig::default() };
    let mut rng = Pcg64::seed_from(3);
    let policy = SquashedPolicy::with(&spec, &[20, 17], use_sde.then_some(-1.0), &mut rng, relu_network(make)).unwrap();
    let critics = CriticEnsemble::with(&spec, &[20, 17], 2, &mut rng, relu_network(make)).unwrap();
    train_briefly::<SacLearner<_, _>>(config, (policy, critics), &spec)
}

fn td3<N: Network>(make: Make<N>) -> NamedTensors {
    let spec = spec(Space::uniform_box(-2.0, 1.0, &[3]));
    let config = Td3Config { optimizer: optimizer(), policy_delay: 2, tau: 0.1, ..Td3Config::default() };
    let mut rng = Pcg64::seed_from(3);
    let policy = DeterministicActor::with(&spec, &[20, 17], &mut rng, relu_network(make)).unwrap();
    let critics = CriticEnsemble::with(&spec, &[20, 17], 2, &mut rng, relu_network(make)).unwrap();
    train_briefly::<Td3Learner<_, _>>(config, (policy, critics), &spec)
}

pub fn dqn_updates_equal_built_in_network<N: Network>(make: Make<N>) {
    for dueling in [false, true] {
        assert_all_near(&dqn(make, dueling), &dqn::<Mlp>(Mlp::new, dueling), &format!("dueling: {dueling}"));
    }
}

pub fn sac_updates_equal_built_in_network<N: Network>(make: Make<N>) {
    for use_sde in [false, true] {
        assert_all_near(&sac(make, use_sde), &sac::<Mlp>(Mlp::new, use_sde), &format!("use_sde: {use_sde}"));
    }
}

pub fn td3_updates_equal_built_in_network<N: Network>(make: Make<N>) {
    assert_all_near(&td3(make), &td3::<Mlp>(Mlp::new), "td3");
}
