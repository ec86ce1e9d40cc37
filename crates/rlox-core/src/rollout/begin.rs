//! How a rollout is begun.

use super::fill::{f32s_mut, flags_mut};
use super::finite::{check_obs, check_rows};
use super::{RolloutBuffer, Stage};
use crate::{
    AutoresetMode, DType, Error, FieldData, Normalizer, ResetOptions, Result, Seeds, Space, VectorEnv, check_len,
};

impl RolloutBuffer {
    /// Starts a rollout: the first observations come from a reset (the first time, or where `seeds` are given), else
    /// from where the environments stand. In [`AutoresetMode::Disabled`], the rollout itself resets environments whose
    /// episodes have ended, at once.
    ///
    /// # Errors
    /// [`Error::Shape`] if the environments do not fit the buffer, [`Error::Space`] for observations that are not
    /// finite, and those of [`VectorEnv::reset`].
    pub fn begin(
        &mut self,
        env: &mut dyn VectorEnv,
        seeds: Seeds<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        let first = self.num_envs * self.obs.width();
        let row = &mut f32s_mut(&mut self.obs)[..first];
        let fresh = !matches!(seeds, Seeds::Keep) || env.observe(row).is_err();
        if fresh {
            env.reset(seeds, None, &ResetOptions::default(), row)?;
        }
        let mode = env.autoreset_mode();
        self.resets_next_step = mode == AutoresetMode::NextStep;
        if mode != AutoresetMode::SameStep {
            for (i, ended) in self.ended.iter_mut().enumerate() {
                *ended = env.progress(i).is_some_and(|progress| progress.finished);
            }
            if mode == AutoresetMode::Disabled && self.ended.contains(&true) {
                env.reset(Seeds::Keep, Some(&self.ended), &ResetOptions::default(), row)?;
            }
        }
        check_rows("obs", row, first / self.num_envs, 0, None)?;
        self.open(fresh, normalizer)
    }

    /// Starts a rollout from observations that the caller has, `[N, d]`, of the buffer's dtype.
    ///
    /// `fresh` says that they come from a reset, so that the normaliser has not seen them. `ended`, `[N]`, is for
    /// environments that reset in the next step ([`AutoresetMode::NextStep`]): whose episode has ended, so that their
    /// first row is no transition. `None` is for environments that reset in the same step.
    ///
    /// # Errors
    /// [`Error::Shape`] for a wrong length or another dtype than the buffer's, [`Error::Space`] for observations that are
    /// not finite, [`Error::Config`] for a normaliser of observations that are not f32.
    pub fn begin_with(
        &mut self,
        obs: FieldData<'_>,
        fresh: bool,
        ended: Option<&[bool]>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_obs("obs", obs)?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("obs", obs.len(), self.num_envs * self.obs.width())?;
        check_obs("obs", obs, self.obs.width(), 0, None)?;
        check_len("ended", ended.map_or(self.num_envs, <[bool]>::len), self.num_envs)?;
        self.obs.put(0, obs);
        self.resets_next_step = ended.is_some();
        if let Some(ended) = ended {
            self.ended.copy_from_slice(ended);
        }
        self.open(fresh, normalizer)
    }

    fn open(&mut self, fresh: bool, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let first = self.num_envs * self.obs.width();
        if let Some(normalizer) = normalizer {
            if normalizer.options().obs {
                let row = &mut f32s_mut(&mut self.obs)[..first];
                if fresh {
                    normalizer.update_obs(row)?;
                }
                normalizer.normalize_obs(row)?;
            }
            if fresh {
                normalizer.forget_returns();
            }
        }
        (self.next_step, self.stage) = (0, Stage::Begun);
        if self.reset_rows > 0 {
            flags_mut(&mut self.valid).fill(1);
            self.reset_rows = 0;
        }
        self.final_index.clear();
        self.final_obs.clear();
        Ok(())
    }

    /// Refuses a normalizer of other observations or environments, as every call that takes one does.
    ///
    /// # Errors
    /// [`Error::Config`] for one of observations that the buffer does not hold as f32, [`Error::Shape`] for one of other
    /// numbers.
    pub fn check_normalizer(&self, normalizer: Option<&Normalizer>) -> Result<()> {
        let Some(normalizer) = normalizer else { return Ok(()) };
        if normalizer.options().obs && self.obs.dtype() != DType::F32 {
            let got = format!("a buffer of {:?} observations", self.obs.dtype());
            let fix = "make the normalizer with obs = false, or the buffer with F32";
            return Err(Error::config("normalizer", "F32 observations to normalise", got, fix));
        }
        check_len("normalizer's obs_shape", normalizer.obs().mean().len(), self.obs.width())?;
        check_len("normalizer's num_envs", normalizer.returns().len(), self.num_envs)
    }

    /// Refuses observations of another type than the buffer's; none at all are of any.
    pub(super) fn check_obs(&self, argument: &'static str, obs: FieldData<'_>) -> Result<()> {
        if obs.is_empty() || obs.dtype() == self.obs.dtype() {
            return Ok(());
        }
        let (expected, got) = (format!("{:?} elements", self.obs.dtype()), format!("{:?}", obs.dtype()));
        Err(Error::shape(argument, expected, got, "convert them, or make the buffer with their dtype"))
    }

    pub(super) fn check_f32(&self) -> Result<()> {
        if self.obs.dtype() == DType::F32 {
            return Ok(());
        }
        Err(Error::shape("obs dtype", "F32", format!("{:?}", self.obs.dtype()), "make the buffer with F32"))
    }

    pub(super) fn check_fits(&self, env: &dyn VectorEnv) -> Result<()> {
        let spec = env.spec();
        let wanted = [env.num_envs(), spec.observation.dim(), spec.action.dim()];
        let there = [self.num_envs, self.obs.width(), self.actions.width()];
        if wanted != there {
            let say = |[n, obs, action]: [usize; 3]| {
                format!("one for {n} environments with observations of {obs} and actions of {action} numbers")
            };
            return Err(Error::shape("buffer", say(wanted), say(there), "make one for these environments"));
        }
        let wanted = if matches!(env.spec().action, Space::Box { .. }) { DType::F32 } else { DType::I64 };
        if self.actions.dtype() != wanted {
            let got = format!("a buffer with {:?}", self.actions.dtype());
            return Err(Error::space("buffer's action dtype", format!("{wanted:?}"), got, "make one for this env"));
        }
        self.check_f32()
    }
}
