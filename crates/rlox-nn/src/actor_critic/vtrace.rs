//! What IMPALA learns from: steps of an older policy, corrected by V-trace.

use rlox_core::{Actions, EpisodeEnds, Result, VtraceConfig, check_len, compute_vtrace_time_major};

use super::{ActorCritic, Minibatch};
use crate::alloc::resize;

/// T steps of N environments under a policy that may be older, time-major: row `t * num_envs + n` is step t of
/// environment n. All but the observations and actions are `[T * N]`.
#[derive(Clone, Copy, Debug)]
pub struct Trajectories<'a> {
    /// `[T * N, d]`.
    pub obs: &'a [f32],
    /// `[N, d]`: what was seen after the last steps.
    pub next_obs: &'a [f32],
    /// `[T * N, a]`, discrete ones counted from 0.
    pub actions: Actions<'a>,
    /// What was allowed, `[T * N, n]`.
    pub masks: Option<&'a [bool]>,
    /// The log-probabilities the actions had when they were chosen.
    pub log_probs: &'a [f32],
    /// What the actions were paid.
    pub rewards: &'a [f32],
    /// How the steps ended.
    pub ends: EpisodeEnds<'a, f32>,
    /// How many environments there are.
    pub num_envs: usize,
}

/// The minibatches of IMPALA (Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
/// Actor-Learner Architectures", section 4.2), in memory that is used again.
///
/// Its loss is that of A2C, [`super::PolicyLoss::Gradient`], whose advantages and targets of values are V-trace's by the
/// policy as it is: constants, of which nothing is learned. The paper sums over steps where losses here are means.
///
/// ```
/// use rlox_core::{Actions, AutoresetMode, Ends, Pcg64, VecEnv, VectorEnv, Vtrace, envs::CartPole};
/// use rlox_nn::{Activation, ActorCritic, ActorCriticLoss, Optimizer, PolicyLoss, PolicyNetworks};
/// use rlox_nn::{Trajectories, VtraceTargets};
///
/// let env = VecEnv::new(1, None, AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = PolicyNetworks::mlp(env.spec(), &[64], Activation::Tanh, &mut Pcg64::seed_from(0))?;
/// // Two steps of one environment, by an actor that was surer of them.
/// let steps = Trajectories {
///     obs: &[0.1; 8],
///     next_obs: &[0.1; 4],
///     actions: Actions::Discrete(&[0, 1]),
///     masks: None,
///     log_probs: &[-0.2, -0.3],
///     rewards: &[1.0, 1.0],
///     ends: Ends::dones(&[false, true]),
///     num_envs: 1,
/// };
/// let mut targets = VtraceTargets::default();
/// let loss = ActorCriticLoss { policy: PolicyLoss::Gradient, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.01 };
/// let batch = targets.minibatch(&mut policy, &steps, Vtrace::default())?;
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
    /// Of the steps that were corrected last: log-probabilities now less those there were.
    pub(crate) fn log_rhos(&self) -> &[f32] {
        &self.log_rhos
    }

    /// The steps with V-trace's advantages, and its `vs` as returns.
    ///
    /// # Errors
    /// Those of [`ActorCritic::evaluate_actions`] and of [`compute_vtrace_time_major`].
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
