//! N environments behind one object-safe trait, and the copy-of-any-`Env` implementation of it.

pub(crate) mod checks;

use crate::episode::EpisodeLog;
use crate::{Action, Actions, Env, EnvSpec, Pcg64, ResetOptions, Result, check_len, memory};

/// When a finished environment starts its next episode, as Gymnasium 1.x names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoresetMode {
    /// The step after the end ignores its action and gives the first observation, reward 0 and no flags.
    NextStep,
    /// The step that ends an episode gives the next episode's first observation; the true last one is `final_obs`.
    SameStep,
    /// Finished environments wait for a reset by mask; stepping them is an error.
    Disabled,
}

/// Where a reset takes its randomness from.
#[derive(Clone, Copy, Debug)]
pub enum Seeds<'a> {
    /// Each environment's stream goes on.
    Keep,
    /// Environment i is seeded with `base + i`, as Gymnasium does.
    Base(u64),
    /// One seed per environment; `None` lets that stream go on.
    Each(&'a [Option<u64>]),
}

/// Where a step writes to: the caller's slices, `[N, d]` and `[N]`.
#[derive(Debug)]
pub struct StepOut<'a> {
    /// The observations to act on next.
    pub obs: &'a mut [f32],
    /// The rewards.
    pub reward: &'a mut [f64],
    /// The task itself ended.
    pub terminated: &'a mut [bool],
    /// The episode was cut, by the time limit or by the environment.
    pub truncated: &'a mut [bool],
    /// The last observation of episodes that ended in this step. Only those rows are written, only in
    /// [`AutoresetMode::SameStep`]. May be empty if nobody wants it.
    pub final_obs: &'a mut [f32],
}

impl StepOut<'_> {
    pub(crate) fn check(&self, num_envs: usize, dim: usize) -> Result<()> {
        check_len("obs", self.obs.len(), num_envs * dim)?;
        check_len("rewards", self.reward.len(), num_envs)?;
        check_len("terminated", self.terminated.len(), num_envs)?;
        check_len("truncated", self.truncated.len(), num_envs)?;
        if self.final_obs.is_empty() { Ok(()) } else { check_len("final_obs", self.final_obs.len(), num_envs * dim) }
    }
}

/// Where an environment stands in its episode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Steps made.
    pub steps: u32,
    /// The sum of their rewards.
    pub episode_return: f64,
    /// The episode is over, and the next one has not begun.
    pub finished: bool,
}

/// N environments of one kind. One dynamic call per batch, never per environment.
pub trait VectorEnv: Send {
    /// How many environments there are.
    fn num_envs(&self) -> usize;

    /// What each environment is.
    fn spec(&self) -> &EnvSpec;

    /// When finished environments are reset.
    fn autoreset_mode(&self) -> AutoresetMode;

    /// Starts episodes where `mask` is true (everywhere without one) and writes all current observations, `[N, d]`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for slices of the wrong length, [`crate::Error::Config`] for options that the
    /// environment refuses, [`crate::Error::Action`] if an environment outside the mask has never been reset. Nothing
    /// has changed then.
    fn reset(&mut self, seeds: Seeds<'_>, mask: Option<&[bool]>, options: &ResetOptions, obs: &mut [f32])
    -> Result<()>;

    /// Steps all environments.
    ///
    /// # Errors
    /// Those of [`Action::rows`] for the actions, [`crate::Error::Shape`] for slices of the wrong length,
    /// [`crate::Error::Action`] before the first reset, or for finished environments in [`AutoresetMode::Disabled`].
    /// Nothing has changed then.
    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()>;

    /// Writes the current observations, `[N, d]`, without stepping.
    ///
    /// # Errors
    /// [`crate::Error::Action`] before the first reset, [`crate::Error::Shape`] for a slice of the wrong length.
    fn observe(&self, obs: &mut [f32]) -> Result<()>;

    /// The episodes finished since the log was last drained.
    fn episodes(&mut self) -> &mut EpisodeLog;

    /// What environment `index` remembers ([`Env::state`]); `None` if it cannot be told or there is no such index.
    fn state(&self, index: usize) -> Option<Vec<f64>>;

    /// Refuses what [`VectorEnv::set_state`] and [`VectorEnv::set_progress`] would refuse for environment `index`.
    ///
    /// # Errors
    /// Those of [`Env::check_state`], [`crate::Error::Config`] for a progress that no environment of this mode makes,
    /// [`crate::Error::Shape`] if there is no such index.
    fn check_state(&self, index: usize, state: &[f64], progress: Progress) -> Result<()>;

    /// Puts a state back, as if environment `index` had just been reset to it.
    ///
    /// # Errors
    /// Those of [`Env::set_state`], [`crate::Error::Shape`] if there is no such index.
    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()>;

    /// Where environment `index` stands in its episode; `None` if there is no such index.
    fn progress(&self, index: usize) -> Option<Progress>;

    /// Puts environment `index` where it stood in an episode, after [`VectorEnv::set_state`].
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if there is no such index, [`crate::Error::Config`] for a return that is not finite, or an
    /// environment that is finished where none stays so ([`AutoresetMode::SameStep`]).
    fn set_progress(&mut self, index: usize, progress: Progress) -> Result<()>;

    /// The random streams, one per environment.
    fn rngs(&self) -> Vec<Pcg64>;

    /// Replaces the random streams.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if their number is wrong.
    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()>;
}

/// Where an environment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Never reset.
    Unborn,
    /// In an episode.
    Running,
    /// Its episode is over and no reset has followed.
    Finished,
}

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

/// N copies of any [`Env`]: time limit, autoreset, statistics and argument checks around it.
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
    unborn: usize,
    finished: usize,
    log: EpisodeLog,
}

impl<E: Env> std::fmt::Debug for VecEnv<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VecEnv").field("id", &self.spec.id).field("num_envs", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<E: Env> VecEnv<E> {
    /// `num_envs` environments made by `make`. Environment i draws from the seed `seed + i`; without a seed the
    /// streams come from the operating system.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if `num_envs` is 0, [`crate::Error::Space`] for spaces that make no sense,
    /// [`crate::Error::Memory`] if there is not enough memory.
    pub fn new(num_envs: usize, seed: Option<u64>, mode: AutoresetMode, mut make: impl FnMut() -> E) -> Result<Self> {
        checks::num_envs(num_envs)?;
        let first = make();
        let spec = first.spec().clone();
        spec.observation.validate("observation space")?;
        spec.action.validate("action space")?;
        let dim = spec.observation.dim();
        // Twice that, as callers hold spaces, observations and results for them, too.
        memory::check("num_envs", num_envs, 2 * (size_of::<Slot<E>>() + size_of::<f32>() * dim))?;
        let mut slots = memory::reserved("num_envs", num_envs)?;
        let last_obs = memory::zeroed("num_envs", num_envs * dim)?;
        let envs = std::iter::once(first).chain(std::iter::repeat_with(make)).take(num_envs);
        slots.extend(envs.zip(checks::streams(seed)).map(|(env, rng)| Slot {
            env,
            rng,
            phase: Phase::Unborn,
            steps: 0,
            episode_return: 0.0,
        }));
        Ok(Self { slots, spec, mode, dim, last_obs, unborn: num_envs, finished: 0, log: EpisodeLog::default() })
    }

    /// Replaces the time limit; `None` for none.
    #[must_use]
    pub fn with_max_episode_steps(mut self, limit: Option<u32>) -> Self {
        self.spec.max_episode_steps = limit;
        self
    }

    fn set_phase(&mut self, index: usize, phase: Phase) {
        let before = std::mem::replace(&mut self.slots[index].phase, phase);
        self.unborn -= usize::from(before == Phase::Unborn);
        self.finished = self.finished - usize::from(before == Phase::Finished) + usize::from(phase == Phase::Finished);
    }

    fn recount(&mut self) {
        self.unborn = self.slots.iter().filter(|slot| slot.phase == Phase::Unborn).count();
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
        checks::reset((self.slots.len(), self.dim), obs, seeds, mask, phases)?;
        self.slots[0].env.check_options(options)?;
        for (i, (slot, last)) in self.slots.iter_mut().zip(self.last_obs.chunks_exact_mut(self.dim)).enumerate() {
            if mask.is_some_and(|mask| !mask[i]) {
                continue;
            }
            checks::reseed(&mut slot.rng, seeds, i);
            slot.reset(options, last);
        }
        self.recount();
        obs.copy_from_slice(&self.last_obs);
        Ok(())
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        out.check(self.slots.len(), self.dim)?;
        checks::started(self.unborn, "step")?;
        if self.mode == AutoresetMode::Disabled && self.finished > 0 {
            let env = self.slots.iter().position(|slot| slot.phase == Phase::Finished).unwrap_or(0);
            return Err(checks::episode_over(env));
        }
        let actions = E::Action::rows(actions, self.slots.len(), &self.spec.action)?;
        let limit = self.spec.max_episode_steps.unwrap_or(u32::MAX);
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
            *truncated = step.truncated || slot.steps >= limit;
            if *terminated || *truncated {
                self.log.push(slot.episode_return, slot.steps);
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

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        checks::started(self.unborn, "observe")?;
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

    fn check_state(&self, index: usize, state: &[f64], progress: Progress) -> Result<()> {
        let Some(slot) = self.slots.get(index) else {
            return Err(checks::no_such_env(index, self.slots.len()));
        };
        slot.env.check_state(state).map_err(|error| checks::of_env(error, index))?;
        checks::progress(self.mode, index, progress)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        let num_envs = self.slots.len();
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(checks::no_such_env(index, num_envs));
        };
        slot.env.set_state(state, &mut self.last_obs[index * self.dim..(index + 1) * self.dim])?;
        (slot.steps, slot.episode_return) = (0, 0.0);
        self.set_phase(index, Phase::Running);
        Ok(())
    }

    fn progress(&self, index: usize) -> Option<Progress> {
        let Slot { phase, steps, episode_return, .. } = self.slots.get(index)?;
        Some(Progress { steps: *steps, episode_return: *episode_return, finished: *phase == Phase::Finished })
    }

    fn set_progress(&mut self, index: usize, progress: Progress) -> Result<()> {
        let num_envs = self.slots.len();
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(checks::no_such_env(index, num_envs));
        };
        checks::progress(self.mode, index, progress)?;
        (slot.steps, slot.episode_return) = (progress.steps, progress.episode_return);
        self.set_phase(index, if progress.finished { Phase::Finished } else { Phase::Running });
        Ok(())
    }

    fn rngs(&self) -> Vec<Pcg64> {
        self.slots.iter().map(|slot| slot.rng.clone()).collect()
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        check_len("rngs", rngs.len(), self.slots.len())?;
        for (slot, rng) in self.slots.iter_mut().zip(rngs) {
            slot.rng = rng.clone();
        }
        Ok(())
    }
}
