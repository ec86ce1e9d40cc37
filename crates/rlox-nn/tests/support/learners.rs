//! DQN, SAC and TD3 composed from their parts, and minibatches for them.

use rlox_core::Pcg64;
use rlox_nn::losses::{soft_values, td_targets};
use rlox_nn::{
    ActionValue, Activation, CriticBatch, CriticEnsemble, DeterministicActor, DeterministicPolicy, Discount, Init, Mlp,
    Optimizer, QBatch, QLoss, QNetworks, Smoothing, SquashedPolicy, StochasticPolicy, TdLoss, Temperature,
};

pub(crate) const OBS: usize = 3;
pub(crate) const ACT: usize = 2;

pub(crate) fn mlp(inputs: usize, hidden: usize, outputs: usize, seed: u128) -> Mlp {
    let sizes = [inputs, hidden, hidden, outputs];
    Mlp::new(&sizes, Activation::Relu, Init::Kaiming, &mut Pcg64::seed_from(seed)).unwrap()
}

pub(crate) fn pair(inputs: usize, hidden: usize, outputs: usize, seed: u128) -> [Mlp; 2] {
    [mlp(inputs, hidden, outputs, seed), mlp(inputs, hidden, outputs, seed)]
}

pub(crate) fn q_networks(hidden: usize) -> QNetworks<Mlp> {
    let [online, target] = pair(OBS, hidden, 3, 1);
    QNetworks::new(online, target).unwrap()
}

pub(crate) fn twin_critics(hidden: usize) -> CriticEnsemble<Mlp> {
    CriticEnsemble::new(vec![pair(OBS + ACT, hidden, 1, 2), pair(OBS + ACT, hidden, 1, 3)], OBS).unwrap()
}

pub(crate) fn actor(hidden: usize) -> DeterministicActor<Mlp> {
    let [online, target] = pair(OBS, hidden, ACT, 4);
    DeterministicActor::new(online, target).unwrap()
}

pub(crate) fn squashed(hidden: usize, state_dependent: bool) -> SquashedPolicy<Mlp> {
    if state_dependent {
        SquashedPolicy::state_dependent(mlp(OBS, hidden, ACT, 4), ACT, -3.0).unwrap()
    } else {
        SquashedPolicy::new(mlp(OBS, hidden, 2 * ACT, 4), ACT).unwrap()
    }
}

/// Minibatch of random transitions. Rewards are highest if `actions` are 0.7 times the first
/// numbers of the observation.
pub(crate) struct Batch {
    pub(crate) obs: Vec<f32>,
    pub(crate) next_obs: Vec<f32>,
    pub(crate) actions: Vec<f32>,
    pub(crate) choices: Vec<i64>,
    pub(crate) rewards: Vec<f32>,
    pub(crate) choice_rewards: Vec<f32>,
    pub(crate) terminated: Vec<bool>,
}

/// Returns the optimal discrete action: the index of the largest number of the observation.
pub(crate) fn largest(obs: &[f32]) -> i64 {
    (0..OBS).max_by(|a, b| obs[*a].total_cmp(&obs[*b])).unwrap() as i64
}

pub(crate) fn batch(rows: usize, terminated: bool, rng: &mut Pcg64) -> Batch {
    let mut draws = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.uniform(-1.0, 1.0) as f32).collect() };
    let (obs, next_obs, actions) = (draws(rows * OBS), draws(rows * OBS), draws(rows * ACT));
    let choices: Vec<i64> = (0..rows).map(|_| rng.integers(0, OBS as i64)).collect();
    let distance = |(obs, actions): (&[f32], &[f32])| -> f32 {
        actions.iter().zip(obs).map(|(action, x)| -2.0 * (action - 0.7 * x).powi(2)).sum()
    };
    let rewards = obs.chunks(OBS).zip(actions.chunks(ACT)).map(distance).collect();
    let choice_rewards =
        obs.chunks(OBS).zip(&choices).map(|(obs, choice)| f32::from(u8::from(largest(obs) == *choice))).collect();
    let terminated = (0..rows).map(|row| terminated || row % 4 == 0).collect();
    Batch { obs, next_obs, actions, choices, rewards, choice_rewards, terminated }
}

impl Batch {
    pub(crate) fn transitions(&self) -> QBatch<'_> {
        QBatch {
            obs: &self.obs,
            actions: &self.choices,
            rewards: &self.choice_rewards,
            next_obs: &self.next_obs,
            terminated: &self.terminated,
            discount: Discount::Same(0.9),
            weights: None,
            next_masks: None,
        }
    }

    pub(crate) fn valued<'a>(&'a self, targets: &'a [f32]) -> CriticBatch<'a> {
        CriticBatch { obs: &self.obs, actions: &self.actions, targets, weights: None }
    }
}

pub(crate) const DOUBLE: QLoss = QLoss { distance: TdLoss::Huber, double: true };

/// Buffers of one minibatch.
#[derive(Default)]
struct Memory {
    actions: Vec<f32>,
    next_actions: Vec<f32>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    targets: Vec<f32>,
}

impl Memory {
    fn of(rows: usize) -> Self {
        let [actions, next_actions] = [vec![0.0; rows * ACT], vec![0.0; rows * ACT]];
        Self { actions, next_actions, log_probs: vec![0.0; rows], values: vec![0.0; rows], targets: vec![0.0; rows] }
    }
}

pub(crate) struct SacParts {
    pub(crate) policy: SquashedPolicy<Mlp>,
    pub(crate) critics: CriticEnsemble<Mlp>,
    pub(crate) temperature: Temperature,
    memory: Memory,
    pub(crate) rng: Pcg64,
}

impl SacParts {
    pub(crate) fn new(hidden: usize, rows: usize, state_dependent: bool) -> Self {
        Self {
            policy: squashed(hidden, state_dependent),
            critics: twin_critics(hidden),
            temperature: Temperature::learned(0.1, -(ACT as f32) * 1.5).unwrap(),
            memory: Memory::of(rows),
            rng: Pcg64::seed_from(8),
        }
    }

    /// Makes one update in the order of Stable-Baselines3.
    pub(crate) fn update(&mut self, batch: &Batch, optimizer: &Optimizer) {
        let Self { policy, critics, temperature, memory, rng } = self;
        let Memory { actions, next_actions, log_probs, values, targets } = memory;
        policy.rsample(&batch.obs, rng, actions, log_probs).unwrap();
        let alpha = temperature.alpha();
        temperature.update(log_probs, optimizer).unwrap();
        policy.sample(&batch.next_obs, rng, next_actions, log_probs).unwrap();
        critics.target_values(&batch.next_obs, next_actions, values).unwrap();
        soft_values(values, log_probs, alpha).unwrap();
        td_targets(&batch.rewards, &batch.terminated, Discount::Same(0.9), values, targets).unwrap();
        critics.update(&batch.valued(targets), 0.5, optimizer, None).unwrap();
        policy.update(&batch.obs, critics, alpha, optimizer, None).unwrap();
        critics.soft_update(0.01).unwrap();
    }
}

pub(crate) struct Td3Parts {
    pub(crate) policy: DeterministicActor<Mlp>,
    pub(crate) critics: CriticEnsemble<Mlp>,
    memory: Memory,
    pub(crate) rng: Pcg64,
}

impl Td3Parts {
    pub(crate) fn new(hidden: usize, rows: usize) -> Self {
        let (policy, critics) = (actor(hidden), twin_critics(hidden));
        Self { policy, critics, memory: Memory::of(rows), rng: Pcg64::seed_from(8) }
    }

    pub(crate) fn update(&mut self, batch: &Batch, optimizer: &Optimizer) {
        let Self { policy, critics, memory, rng } = self;
        let Memory { next_actions, values, targets, .. } = memory;
        policy.target_actions(&batch.next_obs, Smoothing { noise: 0.2, clip: 0.5 }, rng, next_actions).unwrap();
        critics.target_values(&batch.next_obs, next_actions, values).unwrap();
        td_targets(&batch.rewards, &batch.terminated, Discount::Same(0.9), values, targets).unwrap();
        critics.update(&batch.valued(targets), 1.0, optimizer, None).unwrap();
        policy.update(&batch.obs, critics, optimizer, None).unwrap();
        policy.soft_update(0.01).unwrap();
        critics.soft_update(0.01).unwrap();
    }
}
