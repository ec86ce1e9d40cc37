//! Argument checks and seeding shared by all vectorised environments.

use super::{AutoresetMode, EpisodeProgress, Phase, Seeds};
use crate::{EnvSpec, Error, Pcg64, Result, SeedSequence, Space, error::check_len};

/// Checks that there is at least one environment.
pub(crate) fn check_num_envs(num_envs: usize) -> Result<()> {
    if num_envs > 0 {
        return Ok(());
    }
    Err(Error::config("num_envs", "at least 1", "0", "pass a positive number"))
}

/// Checks that every environment has been reset.
pub(crate) fn check_started(never_reset: usize, doing: &'static str) -> Result<()> {
    if never_reset == 0 {
        return Ok(());
    }
    Err(Error::action(doing, "environments that have been reset", "a call before reset", "call reset first"))
}

/// Checks the slice lengths of a reset, and that environments outside the mask have been reset
/// before.
pub(crate) fn check_reset(
    (num_envs, dim): (usize, usize),
    obs: &[f32],
    seeds: Seeds<'_>,
    mask: Option<&[bool]>,
    phases: impl Iterator<Item = Phase>,
) -> Result<()> {
    check_len("obs", obs.len(), num_envs * dim)?;
    if let Seeds::Each(seeds) = seeds {
        check_len("seed", seeds.len(), num_envs)?;
    }
    if let Some(mask) = mask {
        check_len("reset_mask", mask.len(), num_envs)?;
        let never_reset =
            phases.zip(mask).filter(|(phase, selected)| *phase == Phase::NeverReset && !**selected).count();
        check_started(never_reset, "reset_mask")?;
    }
    Ok(())
}

/// Returns the error for a step of the finished environment `env`.
pub(crate) fn episode_over(env: usize) -> Error {
    let got = "an episode that is over";
    Error::action("step", "running environments", got, "reset it through reset_mask first").at_env(env)
}

/// Returns the error for the invalid environment `index`.
pub(crate) fn no_such_env(index: usize, num_envs: usize) -> Error {
    Error::shape("index", format!("less than {num_envs}"), index.to_string(), "name an environment")
}

/// Returns the number of flags in an action mask.
///
/// The result is the number of actions of a Discrete space, and 1 for other spaces.
///
/// ```
/// use rlox_core::{Space, vector::masked_actions};
///
/// assert_eq!(masked_actions(&Space::discrete(4)), 4);
/// ```
pub fn masked_actions(space: &Space) -> usize {
    if let Space::Discrete { n, .. } = space { usize::try_from(*n).unwrap_or(1) } else { 1 }
}

/// Checks that environments with action masks have a Discrete action space.
pub(crate) fn check_maskable(masks: bool, spec: &EnvSpec) -> Result<()> {
    if !masks || matches!(spec.action, Space::Discrete { .. }) {
        return Ok(());
    }
    let got = format!("{:?}", spec.action);
    Err(Error::space(
        "action_mask",
        "a Discrete action space",
        got,
        "use a Discrete action space, or return false from has_action_mask",
    ))
}

/// Checks that environment `index` can have `progress` in this autoreset mode.
pub(crate) fn check_progress(mode: AutoresetMode, index: usize, progress: EpisodeProgress) -> Result<()> {
    let hint = "pass what the environments gave";
    if !progress.episode_return.is_finite() {
        let got = progress.episode_return.to_string();
        return Err(Error::not_finite("episode_returns", "finite numbers", got, hint).at_env(index));
    }
    if progress.finished && mode == AutoresetMode::SameStep {
        let expected = "false, as environments of this mode reset in the same step";
        return Err(Error::config("finished", expected, "true", hint).at_env(index));
    }
    Ok(())
}

/// Returns an endless iterator over random streams.
///
/// Stream `i` has the seed `seed + i`. Without a seed, the streams are seeded by the operating
/// system.
pub(crate) fn spawn_streams(seed: Option<u64>) -> impl Iterator<Item = Pcg64> {
    let mut entropy = SeedSequence::from_os();
    (0..).map(move |i| match seed {
        Some(base) => seeded(base, i),
        None => Pcg64::from_seed_sequence(&entropy.spawn(1)[0]),
    })
}

/// Reseeds the random stream of environment `index` as `seeds` requires.
pub(crate) fn reseed(rng: &mut Pcg64, seeds: Seeds<'_>, index: usize) {
    match seeds {
        Seeds::Keep => {}
        Seeds::Base(base) => *rng = seeded(base, index),
        Seeds::Each(seeds) => {
            if let Some(seed) = seeds[index] {
                *rng = seeded(seed, 0);
            }
        }
    }
}

/// Returns a generator with the seed `base + index`, as in Gymnasium.
fn seeded(base: u64, index: usize) -> Pcg64 {
    Pcg64::seed_from(u128::from(base) + index as u128)
}
