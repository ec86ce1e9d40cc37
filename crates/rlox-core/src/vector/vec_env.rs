//! Vectorised environment made of copies of an [`Env`].

use super::{AutoresetMode, EpisodeProgress, Phase, Seeds, StepOut, VectorEnv, validate};
use crate::interrupt::InterruptCheck;
use crate::{Action, Actions, Env, EnvSpec, EpisodeLog, Pcg64, ResetOptions, Result, alloc, error::check_len};

struct Slot<E> {
    env: E,
    rng: Pcg64,
    phase: Phase,
    steps: u32,
    episode_return: f64,
}

impl<E: Env> Slot<E> {
    fn reset(&mut self, options: &ResetOptions, obs: &mut [f32]) {
        self.env.reset(&mut self.rng, options, obs);
        self.phase = Phase::Running;
        self.steps = 0;
        self.episode_return = 0.0;
    }
}

/// Vectorised environment of N copies of an [`Env`].
///
/// The wrapper adds the time limit, autoreset, episode statistics and argument checks.
///
/// ```
/// use rlox_core::{Actions, AutoresetMode, ResetOptions, Seeds, StepOut, VecEnv, VectorEnv, envs::CartPole};
///
/// let mut env = VecEnv::new(2, Some(42), AutoresetMode::SameStep, || CartPole::default())?;
/// let mut obs = [0.0; 8];
/// env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut obs)?;
/// let (mut reward, mut terminated, mut truncated) = ([0.0; 2], [false; 2], [false; 2]);
/// let out = StepOut {
///     obs: &mut obs,
///     reward: &mut reward,
///     terminated: &mut terminated,
///     truncated: &mut truncated,
///     final_obs: &mut [],
/// };
/// env.step(Actions::Discrete(&[0, 1]), out)?;
/// assert_eq!(reward, [1.0, 1.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct VecEnv<E: Env> {
    slots: Vec<Slot<E>>,
    spec: EnvSpec,
    mode: AutoresetMode,
    dim: usize,
    last_obs: Vec<f32>,
    /// The action masks of the last states of truncated episodes, `[N, n]`. Empty if the
    /// environments have no action masks.
    final_masks: Vec<bool>,
    never_reset: usize,
    finished: usize,
    log: EpisodeLog,
}

impl<E: Env> std::fmt::Debug for VecEnv<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VecEnv").field("id", &self.spec.id).field("num_envs", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<E: Env> VecEnv<E> {
    /// Creates `num_envs` environments with `make`.
    ///
    /// Environment `i` is seeded with `seed + i`. Without a seed, the operating system provides the
    /// entropy.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if `num_envs` is 0. [`crate::Error::Space`] if a space is invalid,
    /// or if the environments have action masks and their action space is not Discrete.
    /// [`crate::Error::Memory`] if memory is insufficient. [`crate::Error::Interrupted`] if the
    /// interrupt check ([`crate::interrupt`]) returns true.
    pub fn new(num_envs: usize, seed: Option<u64>, mode: AutoresetMode, mut make: impl FnMut() -> E) -> Result<Self> {
        validate::check_num_envs(num_envs)?;
        let first = make();
        let spec = first.spec().clone();
        spec.observation.validate("observation space")?;
        spec.action.validate("action space")?;
        validate::check_maskable(first.has_action_mask(), &spec)?;
        let dim = spec.observation.dim();
        let mask_width = if first.has_action_mask() { validate::masked_actions(&spec.action) } else { 0 };
        // The check asks for twice the size, because callers store observations and results as
        // well.
        alloc::check_available("num_envs", num_envs, 2 * (size_of::<Slot<E>>() + size_of::<f32>() * dim + mask_width))?;
        let mut slots = alloc::with_capacity("num_envs", num_envs)?;
        let last_obs = alloc::zeroed("num_envs", num_envs * dim)?;
        let final_masks = alloc::zeroed("num_envs", num_envs * mask_width)?;
        let envs = std::iter::once(first).chain(std::iter::repeat_with(make)).take(num_envs);
        let mut interrupt = InterruptCheck::default();
        for (i, (env, rng)) in envs.zip(validate::spawn_streams(seed)).enumerate() {
            if i.is_multiple_of(64) {
                interrupt.check()?;
            }
            slots.push(Slot { env, rng, phase: Phase::NeverReset, steps: 0, episode_return: 0.0 });
        }
        let log = EpisodeLog::with_capacity()?;
        Ok(Self { slots, spec, mode, dim, last_obs, final_masks, never_reset: num_envs, finished: 0, log })
    }

    /// Replaces the time limit by `limit` steps per episode. `None` removes the time limit.
    #[must_use]
    pub fn with_max_episode_steps(mut self, limit: Option<u32>) -> Self {
        self.spec.max_episode_steps = limit;
        self
    }

    fn set_phase(&mut self, index: usize, phase: Phase) {
        let before = std::mem::replace(&mut self.slots[index].phase, phase);
        self.never_reset -= usize::from(before == Phase::NeverReset);
        self.finished = self.finished - usize::from(before == Phase::Finished) + usize::from(phase == Phase::Finished);
    }

    fn recount(&mut self) {
        self.never_reset = self.slots.iter().filter(|slot| slot.phase == Phase::NeverReset).count();
        self.finished = self.slots.iter().filter(|slot| slot.phase == Phase::Finished).count();
    }
}

impl<E: Env> VectorEnv for VecEnv<E> {
    fn num_envs(&self) -> usize {
        self.slots.len()
    }

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn autoreset_mode(&self) -> AutoresetMode {
        self.mode
    }

    fn reset(
        &mut self,
        seeds: Seeds<'_>,
        mask: Option<&[bool]>,
        options: &ResetOptions,
        obs: &mut [f32],
    ) -> Result<()> {
        let phases = self.slots.iter().map(|slot| slot.phase);
        validate::check_reset((self.slots.len(), self.dim), obs, seeds, mask, phases)?;
        self.slots[0].env.check_options(options)?;
        let (mut interrupt, mut polled) = (InterruptCheck::default(), Ok(()));
        for (i, (slot, last)) in self.slots.iter_mut().zip(self.last_obs.chunks_exact_mut(self.dim)).enumerate() {
            if i.is_multiple_of(64) {
                polled = interrupt.check();
            }
            if polled.is_err() {
                break;
            }
            if mask.is_some_and(|mask| !mask[i]) {
                continue;
            }
            validate::reseed(&mut slot.rng, seeds, i);
            slot.reset(options, last);
        }
        self.recount();
        polled?;
        obs.copy_from_slice(&self.last_obs);
        Ok(())
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        out.check(self.slots.len(), self.dim)?;
        validate::check_started(self.never_reset, "step")?;
        if self.mode == AutoresetMode::Disabled && self.finished > 0 {
            let env = self.slots.iter().position(|slot| slot.phase == Phase::Finished).unwrap_or(0);
            return Err(validate::episode_over(env));
        }
        let actions = E::Action::rows(actions, self.slots.len(), &self.spec.action)?;
        let limit = self.spec.max_episode_steps;
        let mask_width = self.final_masks.len() / self.slots.len();
        let flags = out.terminated.iter_mut().zip(out.truncated.iter_mut());
        let results = out.obs.chunks_exact_mut(self.dim).zip(out.reward.iter_mut()).zip(flags);
        for (i, ((slot, action), ((obs, reward), (terminated, truncated)))) in
            self.slots.iter_mut().zip(actions).zip(results).enumerate()
        {
            if slot.phase == Phase::Finished {
                slot.reset(&ResetOptions::default(), obs);
                self.finished -= 1;
                (*reward, *terminated, *truncated) = (0.0, false, false);
                continue;
            }
            let step = slot.env.step(action, &mut slot.rng, obs);
            slot.steps = slot.steps.saturating_add(1);
            slot.episode_return += step.reward;
            (*reward, *terminated) = (step.reward, step.terminated);
            *truncated = step.truncated || limit.is_some_and(|limit| slot.steps >= limit);
            if *terminated || *truncated {
                self.log.push(slot.episode_return, slot.steps);
                if mask_width > 0 && !*terminated {
                    slot.env.action_mask(&mut self.final_masks[i * mask_width..(i + 1) * mask_width]);
                }
                if self.mode == AutoresetMode::SameStep {
                    if let Some(last) = out.final_obs.get_mut(i * self.dim..(i + 1) * self.dim) {
                        last.copy_from_slice(obs);
                    }
                    slot.reset(&ResetOptions::default(), obs);
                } else {
                    slot.phase = Phase::Finished;
                    self.finished += 1;
                }
            }
        }
        self.last_obs.copy_from_slice(out.obs);
        Ok(())
    }

    fn has_action_masks(&self) -> bool {
        self.slots[0].env.has_action_mask()
    }

    fn action_masks(&self, masks: &mut [bool]) -> Result<()> {
        let n = validate::masked_actions(&self.spec.action);
        check_len("masks", masks.len(), self.slots.len() * n)?;
        for (slot, mask) in self.slots.iter().zip(masks.chunks_exact_mut(n)) {
            if slot.phase == Phase::Running {
                slot.env.action_mask(mask);
            } else {
                mask.fill(true);
            }
        }
        Ok(())
    }

    fn final_action_masks(&self, masks: &mut [bool]) -> Result<()> {
        check_len("masks", masks.len(), self.final_masks.len())?;
        masks.copy_from_slice(&self.final_masks);
        Ok(())
    }

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        validate::check_started(self.never_reset, "observe")?;
        check_len("obs", obs.len(), self.last_obs.len())?;
        obs.copy_from_slice(&self.last_obs);
        Ok(())
    }

    fn episodes(&mut self) -> &mut EpisodeLog {
        &mut self.log
    }

    fn state(&self, index: usize) -> Option<Vec<f64>> {
        self.slots.get(index)?.env.state()
    }

    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()> {
        let Some(slot) = self.slots.get(index) else {
            return Err(validate::no_such_env(index, self.slots.len()));
        };
        slot.env.check_state(state).map_err(|error| error.rename_argument("state", "states").at_env(index))?;
        validate::check_progress(self.mode, index, progress)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        let num_envs = self.slots.len();
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(validate::no_such_env(index, num_envs));
        };
        slot.env.set_state(state, &mut self.last_obs[index * self.dim..(index + 1) * self.dim])?;
        (slot.steps, slot.episode_return) = (0, 0.0);
        self.set_phase(index, Phase::Running);
        Ok(())
    }

    fn progress(&self, index: usize) -> Option<EpisodeProgress> {
        let Slot { phase, steps, episode_return, .. } = self.slots.get(index)?;
        Some(EpisodeProgress { steps: *steps, episode_return: *episode_return, finished: *phase == Phase::Finished })
    }

    fn set_progress(&mut self, index: usize, progress: EpisodeProgress) -> Result<()> {
        let num_envs = self.slots.len();
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(validate::no_such_env(index, num_envs));
        };
        validate::check_progress(self.mode, index, progress)?;
        (slot.steps, slot.episode_return) = (progress.steps, progress.episode_return);
        self.set_phase(index, if progress.finished { Phase::Finished } else { Phase::Running });
        Ok(())
    }

    fn rngs(&self) -> Result<Vec<Pcg64>> {
        let mut rngs = alloc::with_capacity("num_envs", self.slots.len())?;
        rngs.extend(self.slots.iter().map(|slot| slot.rng.clone()));
        Ok(rngs)
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.slots.len())?;
        for (slot, rng) in self.slots.iter_mut().zip(rngs) {
            slot.rng = rng.clone();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::MakeOptions;
    use crate::{Error, Seeds, Space, Step, plugin::EnvPlugin};

    /// Environment that counts its steps.
    ///
    /// The parity of the count is the only allowed action. Step `end` terminates an episode.
    #[derive(Clone)]
    struct Parity {
        count: usize,
        end: usize,
        spec: EnvSpec,
    }

    impl Parity {
        fn new(end: usize, limit: u32) -> Self {
            let (id, observation, action) = ("Parity".into(), Space::uniform_box(0.0, 9.0, &[1]), Space::discrete(2));
            Self { count: 0, end, spec: EnvSpec { id, observation, action, max_episode_steps: Some(limit) } }
        }
    }

    impl Env for Parity {
        type Action = i64;
        fn spec(&self) -> &EnvSpec {
            &self.spec
        }
        fn reset(&mut self, _: &mut Pcg64, _: &ResetOptions, obs: &mut [f32]) {
            self.count = 0;
            obs[0] = 0.0;
        }
        fn step(&mut self, _: &i64, _: &mut Pcg64, obs: &mut [f32]) -> Step {
            self.count += 1;
            obs[0] = self.count as f32;
            Step { reward: 0.0, terminated: self.count == self.end, truncated: false }
        }
        fn has_action_mask(&self) -> bool {
            true
        }
        fn action_mask(&self, mask: &mut [bool]) {
            assert!(self.count != self.end, "a terminal state has no mask");
            mask.copy_from_slice(&[self.count.is_multiple_of(2), !self.count.is_multiple_of(2)]);
        }
    }

    fn step(env: &mut dyn VectorEnv) -> (Vec<bool>, Vec<bool>) {
        let n = env.num_envs();
        let (mut obs, mut reward) = (vec![0.0; n], vec![0.0; n]);
        let (mut terminated, mut truncated) = (vec![false; n], vec![false; n]);
        let out = StepOut {
            obs: &mut obs,
            reward: &mut reward,
            terminated: &mut terminated,
            truncated: &mut truncated,
            final_obs: &mut [],
        };
        env.step(Actions::Discrete(&vec![0; n]), out).unwrap();
        (terminated, truncated)
    }

    /// Creates one environment that terminates at step 3 and one that the time limit truncates at step 3.
    fn two(options: &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> {
        let mut ends = [3, 9].into_iter().cycle();
        let make = || Parity::new(ends.next().unwrap_or(9), 3);
        Ok(Box::new(VecEnv::new(options.num_envs, options.seed, options.autoreset_mode, make)?))
    }

    #[test]
    fn final_masks_of_built_in_and_plugin_environments_agree() {
        for autoreset_mode in [AutoresetMode::SameStep, AutoresetMode::NextStep, AutoresetMode::Disabled] {
            let options = MakeOptions { num_envs: 2, autoreset_mode, ..Default::default() };
            for mut env in [two(&options).unwrap(), EnvPlugin::new(two).make(&options).unwrap()] {
                env.reset(Seeds::Keep, None, &ResetOptions::default(), &mut [0.0; 2]).unwrap();
                step(env.as_mut());
                step(env.as_mut());
                assert_eq!(step(env.as_mut()), (vec![true, false], vec![true; 2]));
                let (mut last, mut now) = ([false; 4], [false; 4]);
                env.final_action_masks(&mut last).unwrap();
                env.action_masks(&mut now).unwrap();
                assert_eq!(last[2..], [false, true], "{autoreset_mode:?}");
                // The mask of the first state of the next episode (SameStep), or of a finished
                // environment.
                assert_eq!(now[2..], [true, autoreset_mode != AutoresetMode::SameStep]);
                assert!(matches!(env.final_action_masks(&mut [false; 3]), Err(Error::Shape(_))));
            }
        }
    }
}
