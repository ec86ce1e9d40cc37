//! V-trace targets of IMPALA, which correct for steps of an older policy.

use rlox_core::{
    Actions, Result,
    advantage::{EpisodeEnds, VtraceConfig, compute_vtrace_time_major},
    error::check_len,
};

use super::{ActorCritic, Minibatch};
use crate::alloc::resize;

/// T steps of N environments in time-major order, whose actions may come from an older policy.
///
/// Row `t * num_envs + n` is step t of environment n. Arrays have the shape `[T * N]` unless stated
/// otherwise. In shapes, `d` is the number of elements of an observation, `a` the number of
/// elements of an action, and `n` the number of flags of an action mask.
#[derive(Clone, Copy, Debug)]
pub struct Trajectories<'a> {
    /// Observations, `[T * N, d]`.
    pub obs: &'a [f32],
    /// Observations after the last step of each environment, `[N, d]`.
    pub next_obs: &'a [f32],
    /// Actions, `[T * N, a]`; discrete actions count from 0.
    pub actions: Actions<'a>,
    /// Action masks, `[T * N, n]`; a flag is true if the action is allowed.
    pub masks: Option<&'a [bool]>,
    /// Log-probabilities of the actions under the policy that chose them.
    pub log_probs: &'a [f32],
    /// Rewards of the actions.
    pub rewards: &'a [f32],
    /// Terminations and truncations of the steps.
    pub ends: EpisodeEnds<'a, f32>,
    /// Number of environments.
    pub num_envs: usize,
}

/// Computes the minibatches of IMPALA; the memory for the results is reused.
///
/// The loss is the loss of A2C, [`super::PolicyLoss::Gradient`]. V-trace computes the advantages
/// and the value targets under the current policy. Both are constants without gradient. The paper
/// sums the losses of all steps; here, losses are means (Espeholt et al. 2018, "IMPALA: Scalable
/// Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", section 4.2).
///
/// ```
/// use rlox_core::{
///     Actions, AutoresetMode, Pcg64, VecEnv, VectorEnv, advantage::{EpisodeEnds, VtraceConfig}, envs::CartPole,
/// };
/// use rlox_nn::{Activation, ActorCritic, ActorCriticLoss, Optimizer, PolicyLoss, PolicyNetworks};
/// use rlox_nn::{Trajectories, VtraceTargets};
///
/// let env = VecEnv::new(1, None, AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[64], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// // Two steps of one environment by an actor with larger probabilities.
/// let steps = Trajectories {
///     obs: &[0.1; 8],
///     next_obs: &[0.1; 4],
///     actions: Actions::Discrete(&[0, 1]),
///     masks: None,
///     log_probs: &[-0.2, -0.3],
///     rewards: &[1.0, 1.0],
///     ends: EpisodeEnds::dones(&[false, true]),
///     num_envs: 1,
/// };
/// let mut targets = VtraceTargets::default();
/// let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
/// let batch = targets.minibatch(&mut policy, &steps, VtraceConfig::default())?;
/// policy.update(&batch, &loss, &Optimizer::rms_prop(6e-4), Some(40.0))?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct VtraceTargets {
    log_rhos: Vec<f32>,
    values: Vec<f32>,
    next_values: Vec<f32>,
    vs: Vec<f32>,
    pg_advantages: Vec<f32>,
}

impl VtraceTargets {
    /// Returns the log-ratios of the last minibatch: log-probabilities under the current policy
    /// minus those in [`Trajectories::log_probs`].
    pub(crate) fn log_rhos(&self) -> &[f32] {
        &self.log_rhos
    }

    /// Returns a minibatch with the advantages of V-trace; its returns are the value targets `vs`
    /// of V-trace.
    ///
    /// # Errors
    /// The errors of [`ActorCritic::evaluate_actions`] and of [`compute_vtrace_time_major`].
    pub fn minibatch<'a>(
        &'a mut self,
        policy: &mut (impl ActorCritic + ?Sized),
        trajectories: &Trajectories<'a>,
        config: VtraceConfig,
    ) -> Result<Minibatch<'a>> {
        let Trajectories { obs, next_obs, actions, masks, log_probs, rewards, ends, num_envs } = *trajectories;
        let Self { log_rhos, values, next_values, vs, pg_advantages } = self;
        check_len("log_probs", log_probs.len(), rewards.len())?;
        for vector in [&mut *log_rhos, values, vs, pg_advantages] {
            resize("rewards", vector, rewards.len(), 0.0)?;
        }
        resize("num_envs", next_values, num_envs, 0.0)?;
        policy.evaluate_actions(obs, masks, actions, log_rhos, values)?;
        policy.value(next_obs, next_values)?;
        log_rhos.iter_mut().zip(log_probs).for_each(|(log_rho, old)| *log_rho -= old);
        compute_vtrace_time_major(log_rhos, rewards, values, ends, num_envs, next_values, config, vs, pg_advantages)?;
        Ok(Minibatch { obs, actions, masks, log_probs, values, advantages: pg_advantages, returns: vs })
    }
}
