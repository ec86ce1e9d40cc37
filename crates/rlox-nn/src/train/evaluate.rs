//! What a policy is worth: the returns of whole greedy episodes.

use rlox_core::{
    ActionsMut, Error, Normalizer, ResetOptions, Result, Seeds, Space, StepOut, VectorEnv, Watch, masked_actions,
};

use super::Greedy;
use crate::ActionScaling;

/// The returns of `episodes` greedy episodes, shared out evenly among the environments so that short ones are not
/// favoured. The environments start anew from `seed`; `normalizer`'s statistics are used and not changed.
///
/// # Errors
/// [`Error::Config`] for no episodes and for environments that do not reset in the same step, those of
/// [`ActionScaling::new`] where the policy's actions are scaled, those of the policy and the environments, and
/// [`Error::Interrupted`] between two steps ([`rlox_core::set_interrupt_check`]).
///
/// ```
/// use rlox_core::{AutoresetMode, Pcg64, VecEnv, VectorEnv, envs::CartPole};
/// use rlox_nn::{Activation, PolicyNetworks, train::evaluate_policy};
///
/// let mut env = VecEnv::new(4, None, AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[8], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// let returns = evaluate_policy(&mut policy, &mut env, 10, 0, None)?;
/// assert_eq!(returns.len(), 10);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn evaluate_policy<Kind: ?Sized, P: Greedy<Kind> + ?Sized>(
    policy: &mut P,
    env: &mut dyn VectorEnv,
    episodes: usize,
    seed: u64,
    normalizer: Option<&Normalizer>,
) -> Result<Vec<f64>> {
    let scaling = P::SCALED.then(|| ActionScaling::new(&env.spec().action)).transpose()?;
    let mut act = |obs: &[f32], masks: Option<&[bool]>, actions: ActionsMut<'_>| match (&scaling, actions) {
        (Some(scaling), ActionsMut::Continuous(actions)) => {
            policy.act_greedily(obs, masks, ActionsMut::Continuous(actions))?;
            scaling.scale(actions)
        }
        (_, actions) => policy.act_greedily(obs, masks, actions),
    };
    play(&mut act, env, episodes, seed, normalizer)
}

/// Chooses actions of observations, with masks or without.
type Act<'a> = dyn FnMut(&[f32], Option<&[bool]>, ActionsMut<'_>) -> Result<()> + 'a;

/// The same, of what chooses actions as environments take them.
fn play(
    act: &mut Act<'_>,
    env: &mut dyn VectorEnv,
    episodes: usize,
    seed: u64,
    normalizer: Option<&Normalizer>,
) -> Result<Vec<f64>> {
    if episodes == 0 {
        return Err(Error::config("episodes", "at least 1", "0", "ask for one or more"));
    }
    if env.autoreset_mode() != rlox_core::AutoresetMode::SameStep {
        let got = format!("{:?}", env.autoreset_mode());
        return Err(Error::config("env", "AutoresetMode::SameStep", got, "make the environments so"));
    }
    let (n, d, a) = (env.num_envs(), env.spec().observation.dim(), env.spec().action.dim());
    let space = env.spec().action.clone();
    let (mut obs, mut seen) = (vec![0.0; n * d], vec![0.0; n * d]);
    let (mut discrete, mut continuous) = (vec![0; n * a], vec![0.0; n * a]);
    let (mut rewards, mut terminated, mut truncated) = (vec![0.0; n], vec![false; n], vec![false; n]);
    let mut masks = vec![true; if env.has_action_masks() { n * masked_actions(&space) } else { 0 }];
    // The first episodes % n environments play one more.
    let mut left: Vec<usize> = (0..n).map(|i| episodes / n + usize::from(i < episodes % n)).collect();
    let (mut sums, mut returns) = (vec![0.0; n], Vec::new());
    env.reset(Seeds::Base(seed), None, &ResetOptions::default(), &mut obs)?;
    let mut watch = Watch::default();
    while returns.len() < episodes {
        watch.check()?;
        seen.copy_from_slice(&obs);
        if let Some(normalizer) = normalizer.filter(|normalizer| normalizer.options().obs) {
            normalizer.normalize_obs(&mut seen)?;
        }
        let given = if masks.is_empty() {
            None
        } else {
            env.action_masks(&mut masks)?;
            Some(&masks[..])
        };
        let out = StepOut {
            obs: &mut obs,
            reward: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut [],
        };
        let mut actions = if matches!(space, Space::Box { .. }) {
            ActionsMut::Continuous(&mut continuous)
        } else {
            ActionsMut::Discrete(&mut discrete)
        };
        act(&seen, given, actions.part(0..n * a))?;
        env.step(actions.sent(&space), out)?;
        for i in 0..n {
            sums[i] += rewards[i];
            if terminated[i] || truncated[i] {
                if left[i] > 0 {
                    returns.push(sums[i]);
                    left[i] -= 1;
                }
                sums[i] = 0.0;
            }
        }
    }
    Ok(returns)
}
