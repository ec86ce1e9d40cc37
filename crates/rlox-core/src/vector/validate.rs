//! Checks that all vectorised environments share, with the same words in the same order, and the seeding of their streams.

use super::{AutoresetMode, EpisodeProgress, Phase, Seeds};
use crate::{EnvSpec, Error, Pcg64, Result, SeedSequence, Space, check_len};

/// Refuses a vector of no environments.
pub(crate) fn check_num_envs(num_envs: usize) -> Result<()> {
    if num_envs > 0 {
        return Ok(());
    }
    Err(Error::config("num_envs", "at least 1", "0", "ask for one or more environments"))
}

/// Refuses to go on while `never_reset` environments have never been reset.
pub(crate) fn check_started(never_reset: usize, doing: &'static str) -> Result<()> {
    if never_reset == 0 {
        return Ok(());
    }
    Err(Error::action(doing, "environments that have been reset", "a call before reset", "call reset first"))
}

/// Refuses a reset whose slices have the wrong length, or that would leave an environment without a first state.
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

/// Says that environment `env` waits for a reset by mask.
pub(crate) fn episode_over(env: usize) -> Error {
    let got = "an episode that is over";
    Error::action("step", "running environments", got, "reset it through reset_mask first").at_env(env)
}

/// Says that there is no environment `index`.
pub(crate) fn no_such_env(index: usize, num_envs: usize) -> Error {
    Error::shape("index", format!("less than {num_envs}"), index.to_string(), "name an environment")
}

/// How many actions a mask is about: those of a Discrete space; 1 where they cannot be counted.
///
/// ```
/// use rlox_core::{Space, masked_actions};
///
/// assert_eq!(masked_actions(&Space::discrete(4)), 4);
/// ```
pub fn masked_actions(space: &Space) -> usize {
    if let Space::Discrete { n, .. } = space { usize::try_from(*n).unwrap_or(1) } else { 1 }
}

/// Refuses masks of actions that cannot be counted.
pub(crate) fn check_maskable(masks: bool, spec: &EnvSpec) -> Result<()> {
    if !masks || matches!(spec.action, Space::Discrete { .. }) {
        return Ok(());
    }
    let got = format!("{:?}", spec.action);
    Err(Error::space("action_mask", "a Discrete action space", got, "leave the masks out, or make the space Discrete"))
}

/// Refuses a progress that no environment of this mode makes.
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

/// The streams of a new vector of environments: of `seed + i`, or of the operating system's entropy.
pub(crate) fn spawn_streams(seed: Option<u64>) -> impl Iterator<Item = Pcg64> {
    let mut entropy = SeedSequence::from_os();
    (0..).map(move |i| match seed {
        Some(base) => seeded(base, i),
        None => Pcg64::from_seed_sequence(&entropy.spawn(1)[0]),
    })
}

/// Gives environment `index` the stream that a reset asks for.
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

/// The generator Gymnasium gives environment `index` under the seed `base`.
fn seeded(base: u64, index: usize) -> Pcg64 {
    Pcg64::seed_from(u128::from(base) + index as u128)
}
