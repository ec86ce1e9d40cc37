//! Registry of native environments, which are implemented in Rust.

use super::{Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum, SoaVecEnv, argument, soa::LaneEnv};
use crate::{AutoresetMode, EnvSpec, Error, Result, VecEnv, VectorEnv};

/// Settings of a native environment besides its id.
#[derive(Clone, Debug)]
pub struct MakeOptions<'a> {
    /// The number of environments.
    pub num_envs: usize,
    /// The seed: environment `i` is seeded with `seed + i`. `None` means entropy of the operating system.
    pub seed: Option<u64>,
    /// The time at which an environment is reset after the end of an episode.
    pub autoreset_mode: AutoresetMode,
    /// The time limit in steps. `None` means the default of the id, `Some(None)` means no limit.
    pub max_episode_steps: Option<Option<u32>>,
    /// The arguments of the environment, with Gymnasium's names. Booleans are passed as 0 and 1.
    pub arguments: &'a [(String, f64)],
}

impl Default for MakeOptions<'_> {
    /// Returns options for one environment with a random seed, the mode
    /// [`AutoresetMode::SameStep`], and the defaults of the id.
    fn default() -> Self {
        Self {
            num_envs: 1,
            seed: None,
            autoreset_mode: AutoresetMode::SameStep,
            max_episode_steps: None,
            arguments: &[],
        }
    }
}

impl MakeOptions<'_> {
    /// Creates a vectorised environment from copies of `env`.
    ///
    /// The method applies all options except `arguments`, which the caller has already applied to
    /// `env`.
    ///
    /// ```
    /// use rlox_core::envs::{CartPole, MakeOptions};
    ///
    /// let options = MakeOptions { num_envs: 2, max_episode_steps: Some(Some(10)), ..Default::default() };
    /// assert_eq!(options.build_vec_env(CartPole::default())?.spec().max_episode_steps, Some(10));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`VecEnv::new`]. Also [`Error::Config`] if the time limit is 0.
    pub fn build_vec_env<E: crate::Env + Clone + 'static>(&self, env: E) -> Result<Box<dyn VectorEnv>> {
        build(self, env)
    }

    /// Returns the argument `name`, one of `known`, or `default` if the argument is not set.
    ///
    /// ```
    /// use rlox_core::envs::MakeOptions;
    ///
    /// let options = MakeOptions { num_envs: 1, arguments: &[("slip".into(), 0.5)], ..Default::default() };
    /// assert_eq!(options.argument(&["slip", "size"], "slip", 0.1)?, 0.5);
    /// assert_eq!(options.argument(&["slip", "size"], "size", 5.0)?, 5.0);
    /// assert!(options.argument(&["size"], "size", 5.0).is_err());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if any argument is not in `known` or not finite.
    pub fn argument(&self, known: &[&'static str], name: &str, default: f64) -> Result<f64> {
        argument(self.arguments, known, name, default)
    }
}

type Maker = fn(&MakeOptions<'_>) -> Result<Box<dyn VectorEnv>>;

const REGISTRY: &[(&str, Maker)] = &[
    ("Acrobot-v1", |options| build_lane_env(options, Acrobot::from_arguments(options.arguments)?)),
    ("CartPole-v1", |options| build_lane_env(options, CartPole::from_arguments(options.arguments)?)),
    ("MountainCar-v0", |options| build_lane_env(options, MountainCar::from_arguments(options.arguments)?)),
    ("MountainCarContinuous-v0", |options| {
        build_lane_env(options, MountainCarContinuous::from_arguments(options.arguments)?)
    }),
    ("Pendulum-v1", |options| build_lane_env(options, Pendulum::from_arguments(options.arguments)?)),
];

/// Returns the ids that [`make`] accepts.
pub fn ids() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(id, _)| *id)
}

/// Creates the vectorised environment with a Gymnasium id.
///
/// ```
/// use rlox_core::{AutoresetMode, envs};
///
/// let options = envs::MakeOptions { num_envs: 4, seed: Some(0), ..Default::default() };
/// assert_eq!(envs::make("CartPole-v1", &options)?.num_envs(), 4);
/// # Ok::<(), rlox_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Config`] if the id is unknown, with similar ids in the hint, if an argument is unknown,
/// or if the time limit is 0. Also the errors of [`VecEnv::new`].
pub fn make(id: &str, options: &MakeOptions<'_>) -> Result<Box<dyn VectorEnv>> {
    if let Some((_, maker)) = REGISTRY.iter().find(|(known, _)| *known == id) {
        return maker(options);
    }
    let mut near: Vec<_> = ids().map(|known| (distance(&known.to_lowercase(), &id.to_lowercase()), known)).collect();
    near.sort_unstable();
    let near: Vec<_> = near.iter().map(|(_, known)| *known).take(3).collect();
    Err(Error::config(
        "env_id",
        "the id of a native environment",
        format!("{id:?}"),
        format!("did you mean {}? All ids: {}", near.join(" or "), ids().collect::<Vec<_>>().join(", ")),
    ))
}

fn build_lane_env<E, const K: usize, const D: usize>(options: &MakeOptions<'_>, env: E) -> Result<Box<dyn VectorEnv>>
where
    E: LaneEnv<K, D> + 'static,
{
    if options.num_envs < E::MIN_ENVS || !env.supports_lanes() {
        return build(options, env);
    }
    let limit = time_limit(options, env.spec())?;
    let env = SoaVecEnv::new(options.num_envs, options.seed, options.autoreset_mode, env)?;
    Ok(Box::new(env.with_max_episode_steps(limit)))
}

fn build<E: crate::Env + Clone + 'static>(options: &MakeOptions<'_>, env: E) -> Result<Box<dyn VectorEnv>> {
    let limit = time_limit(options, env.spec())?;
    let env = VecEnv::new(options.num_envs, options.seed, options.autoreset_mode, move || env.clone())?;
    Ok(Box::new(env.with_max_episode_steps(limit)))
}

fn time_limit(options: &MakeOptions<'_>, spec: &EnvSpec) -> Result<Option<u32>> {
    let limit = options.max_episode_steps.unwrap_or(spec.max_episode_steps);
    if limit == Some(0) {
        let hint = "pass a positive number, or None for no limit";
        return Err(Error::config("max_episode_steps", "at least 1", "0", hint));
    }
    Ok(limit)
}

/// Returns the Levenshtein distance of two ids, for the hint with similar ids.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_rejects;

    fn options(arguments: &[(String, f64)]) -> MakeOptions<'_> {
        MakeOptions { num_envs: 1, seed: Some(0), arguments, ..Default::default() }
    }

    #[test]
    fn unknown_ids_list_near_names() {
        let rejected = assert_rejects(make("cartpole", &options(&[])), Error::Config, "env_id");
        assert!(rejected.hint.contains("did you mean CartPole-v1"), "{rejected}");
    }

    #[test]
    fn unknown_arguments_are_rejected() {
        let arguments = [("gravity".to_string(), 1.0)];
        let rejected = assert_rejects(make("Pendulum-v1", &options(&arguments)), Error::Config, "arguments");
        assert_eq!((&rejected.expected[..], &rejected.got[..]), ("only g", "\"gravity\""));
    }

    #[test]
    fn limits_can_be_changed_and_removed() {
        let limit = |limit| {
            let options = MakeOptions { max_episode_steps: limit, ..options(&[]) };
            make("Pendulum-v1", &options).map(|env| env.spec().max_episode_steps)
        };
        assert_eq!(limit(None).unwrap(), Some(200));
        assert_eq!(limit(Some(Some(7))).unwrap(), Some(7));
        assert_eq!(limit(Some(None)).unwrap(), None);
        assert!(limit(Some(Some(0))).is_err());
    }
}
