//! Collection of a rollout with a Rust policy.

use super::record::{check_finite_policy_step, f32s, f32s_mut};
use super::{MASKS, PolicyStep, RolloutBuffer};
use crate::profile::{self, Phase, StepTimer};
use crate::{
    Actions, ActionsMut, Error, Normalizer, Pcg64, Policy, PolicyOut, Result, Seeds, VectorEnv, alloc,
    error::check_len,
    field::{DType, Field, FieldData, FieldMut},
    interrupt::InterruptCheck,
    vector::masked_actions,
};

/// Number of steps, summed over all environments, between two interrupt checks.
const POLL_EVERY_ROWS: usize = 1024;

/// Collects one rollout of T steps into `buffer`, with the actions of a Rust policy.
///
/// After T steps, the policy computes the values of two kinds of observations: those after the last
/// step, and the final ones of truncated episodes. [`RolloutBuffer::finish`] computes the advantages
/// from these values. The memory of the buffer is reused between calls. `rngs` are the random streams of the
/// policy, one per environment.
///
/// ```
/// use rlox_core::{
///     AutoresetMode, Pcg64, RandomPolicy, RolloutBuffer, VecEnv, VectorEnv, collect, envs::CartPole, field::FieldData,
/// };
///
/// let mut env = VecEnv::new(8, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = RandomPolicy::new(&env.spec().action)?;
/// let mut buffer = RolloutBuffer::for_env(32, &env)?;
/// let mut rngs: Vec<_> = (0..8).map(Pcg64::seed_from).collect();
/// collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.99, 0.95)?;
/// let FieldData::F32(rewards) = buffer.field("rewards").unwrap().data() else { unreachable!() };
/// assert!(rewards.iter().all(|r| *r == 1.0));
/// # Ok::<(), rlox_core::Error>(())
/// ```
///
/// If the environments have action masks, the policy receives the masks and the buffer stores the
/// masks ([`RolloutBuffer::for_env`]).
///
/// # Errors
/// The errors of [`RolloutBuffer::begin`], [`RolloutBuffer::step`], [`RolloutBuffer::finish`] and
/// of the policy. [`Error::Space`] if the environments have action masks and the buffer has no
/// field for masks. [`Error::Interrupted`] if the interrupt check ([`crate::interrupt`]) returns
/// true between two steps.
pub fn collect(
    env: &mut dyn VectorEnv,
    policy: &mut dyn Policy,
    rngs: &mut [Pcg64],
    buffer: &mut RolloutBuffer,
    mut normalizer: Option<&mut Normalizer>,
    gamma: f64,
    gae_lambda: f64,
) -> Result<()> {
    check_len("rngs", rngs.len(), buffer.num_envs)?;
    let masks = buffer.prepare_masks(env)?;
    buffer.begin(env, Seeds::Keep, normalizer.as_deref_mut())?;
    let (n, d, a) = (buffer.num_envs, buffer.obs.width(), buffer.actions.width());
    let (mut interrupt, mut timer) = (InterruptCheck::default(), StepTimer::new(n));
    for t in 0..buffer.n_steps {
        if t.is_multiple_of((POLL_EVERY_ROWS / n).max(1)) {
            interrupt.check()?;
        }
        timer.begin(Phase::EnvStep);
        if let Some(field) = masks {
            env.action_masks(&mut buffer.step_masks)?;
            let from = t * buffer.step_masks.len();
            buffer.extra.fields[field].write_at(from, buffer.step_masks[..].into());
        }
        let actions = match buffer.actions.data_mut() {
            FieldMut::I64(data) => ActionsMut::Discrete(&mut data[t * n * a..][..n * a]),
            FieldMut::F32(data) => ActionsMut::Continuous(&mut data[t * n * a..][..n * a]),
            _ => ActionsMut::Discrete(&mut []),
        };
        let out = PolicyOut {
            actions,
            log_probs: &mut f32s_mut(&mut buffer.log_probs)[t * n..][..n],
            values: &mut f32s_mut(&mut buffer.values)[t * n..][..n],
        };
        let current_masks = masks.map(|_| &buffer.step_masks[..]);
        timer.enter(Phase::Inference);
        policy.act(&f32s(&buffer.obs)[t * n * d..][..n * d], current_masks, rngs, out)?;
        check_finite_policy_step(buffer.policy_step(t), t)?;
        timer.enter(Phase::EnvStep);
        buffer.advance(env, normalizer.as_deref_mut())?;
    }
    drop(timer);
    let finals = buffer.final_index.len();
    let mut values = std::mem::take(&mut buffer.step_final_obs);
    let len = (n * d).max(n + finals);
    if let Err(error) = alloc::try_reserve("n_steps", &mut values, len - n * d) {
        buffer.step_final_obs = values;
        return Err(error);
    }
    values.resize(len, 0.0);
    let finished = bootstrap(policy, buffer, &mut values, finals, gamma, gae_lambda);
    values.resize(n * d, 0.0);
    buffer.step_final_obs = values;
    finished
}

impl RolloutBuffer {
    /// Returns the index of the custom field for action masks, or `None` without action masks.
    ///
    /// Resizes `step_masks`, the masks of one step, to `[N, n]` for `n` actions.
    fn prepare_masks(&mut self, env: &dyn VectorEnv) -> Result<Option<usize>> {
        if !env.has_action_masks() {
            return Ok(None);
        }
        let n = masked_actions(&env.spec().action);
        let fits = |field: &Field| field.name() == MASKS && (field.width(), field.dtype()) == (n, DType::Bool);
        let Some(index) = self.extra.fields.iter().position(fits) else {
            let expected = format!("a Bool field {MASKS} for {n} actions");
            return Err(Error::space(
                "buffer",
                expected,
                "a buffer without it",
                "create the buffer with RolloutBuffer::for_env",
            ));
        };
        let more = (self.num_envs * n).saturating_sub(self.step_masks.len());
        alloc::try_reserve("num_envs", &mut self.step_masks, more)?;
        self.step_masks.resize(self.num_envs * n, true);
        Ok(Some(index))
    }

    /// Returns the policy outputs stored for step `t`.
    fn policy_step(&self, t: usize) -> PolicyStep<'_> {
        let (n, width) = (self.num_envs, self.num_envs * self.actions.width());
        let actions = match self.actions.data() {
            FieldData::F32(data) => Actions::Continuous(&data[t * width..][..width]),
            FieldData::I64(data) => Actions::Discrete(&data[t * width..][..width]),
            _ => Actions::Discrete(&[]),
        };
        PolicyStep {
            actions,
            log_probs: &f32s(&self.log_probs)[t * n..][..n],
            values: &f32s(&self.values)[t * n..][..n],
        }
    }
}

/// Computes the advantages with the policy's values of the observations at which episodes were cut.
///
/// The values of the N observations after the last step and of the `finals` final observations are
/// written to `values`.
fn bootstrap(
    policy: &mut dyn Policy,
    buffer: &mut RolloutBuffer,
    values: &mut [f32],
    finals: usize,
    gamma: f64,
    gae_lambda: f64,
) -> Result<()> {
    let (last, rest) = values.split_at_mut(buffer.num_envs);
    let last_obs = buffer.n_steps * buffer.num_envs * buffer.obs.width();
    profile::enter(Phase::Inference);
    policy.value(&f32s(&buffer.obs)[last_obs..], last)?;
    policy.value(f32s(&buffer.final_obs), &mut rest[..finals])?;
    profile::enter(Phase::GaeCompute);
    buffer.finish(last, &rest[..finals], gamma, gae_lambda)
}
