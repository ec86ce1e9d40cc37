//! The native environments and the one list that names them.

mod acrobot;
mod cartpole;
mod lanes;
mod mountain_car;
mod mountain_car_continuous;
pub(crate) mod numpy;
mod pendulum;

pub use acrobot::Acrobot;
pub use cartpole::CartPole;
pub use lanes::SoaVecEnv;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;

use crate::{AutoresetMode, EnvSpec, Error, ResetOptions, Result, VecEnv, VectorEnv, check_len};

/// What a native environment is made with, besides its id.
#[derive(Clone, Debug)]
pub struct MakeOptions<'a> {
    /// How many environments.
    pub num_envs: usize,
    /// Environment i is seeded with `seed + i`; `None` takes entropy from the operating system.
    pub seed: Option<u64>,
    /// When finished environments are reset.
    pub autoreset_mode: AutoresetMode,
    /// `None` for the id's own time limit, `Some(None)` for no limit.
    pub max_episode_steps: Option<Option<u32>>,
    /// The environment's own arguments by Gymnasium's names; booleans are 0 and 1.
    pub arguments: &'a [(String, f64)],
}

impl MakeOptions<'_> {
    /// Copies of any [`crate::Env`], made as these options say; but for the arguments, which `env` has taken already.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, envs::{CartPole, MakeOptions}};
    ///
    /// let options = MakeOptions {
    ///     num_envs: 2,
    ///     seed: None,
    ///     autoreset_mode: AutoresetMode::Disabled,
    ///     max_episode_steps: Some(Some(10)),
    ///     arguments: &[],
    /// };
    /// assert_eq!(options.copies_of(CartPole::default())?.spec().max_episode_steps, Some(10));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`VecEnv::new`], [`Error::Config`] for a time limit of 0.
    pub fn copies_of<E: crate::Env + Clone + 'static>(&self, env: E) -> Result<Box<dyn VectorEnv>> {
        build(self, env)
    }

    /// The environment's argument `name`, one of `known`, or its default.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, envs::MakeOptions};
    ///
    /// let options = MakeOptions {
    ///     num_envs: 1,
    ///     seed: None,
    ///     autoreset_mode: AutoresetMode::SameStep,
    ///     max_episode_steps: None,
    ///     arguments: &[("slip".into(), 0.5)],
    /// };
    /// assert_eq!(options.argument(&["slip", "size"], "slip", 0.1)?, 0.5);
    /// assert_eq!(options.argument(&["slip", "size"], "size", 5.0)?, 5.0);
    /// assert!(options.argument(&["size"], "size", 5.0).is_err());
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if any argument is not one of `known`, or not finite.
    pub fn argument(&self, known: &[&'static str], name: &str, default: f64) -> Result<f64> {
        argument(self.arguments, known, name, default)
    }
}

type Maker = fn(&MakeOptions<'_>) -> Result<Box<dyn VectorEnv>>;

const REGISTRY: &[(&str, Maker)] = &[
    ("Acrobot-v1", |options| build_lanes(options, Acrobot::from_arguments(options.arguments)?)),
    ("CartPole-v1", |options| build_lanes(options, CartPole::from_arguments(options.arguments)?)),
    ("MountainCar-v0", |options| build_lanes(options, MountainCar::from_arguments(options.arguments)?)),
    ("MountainCarContinuous-v0", |options| {
        build_lanes(options, MountainCarContinuous::from_arguments(options.arguments)?)
    }),
    ("Pendulum-v1", |options| build_lanes(options, Pendulum::from_arguments(options.arguments)?)),
];

/// The ids that [`make`] knows.
pub fn ids() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|(id, _)| *id)
}

/// Makes the vectorised environment of a Gymnasium id.
///
/// ```
/// use rlox_core::{AutoresetMode, envs};
///
/// let options = envs::MakeOptions {
///     num_envs: 4,
///     seed: Some(0),
///     autoreset_mode: AutoresetMode::SameStep,
///     max_episode_steps: None,
///     arguments: &[],
/// };
/// assert_eq!(envs::make("CartPole-v1", &options)?.num_envs(), 4);
/// # Ok::<(), rlox_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Config`] for an id or argument that does not exist (near names are listed), and those of [`VecEnv::new`].
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

fn build_lanes<E, const K: usize, const D: usize>(options: &MakeOptions<'_>, env: E) -> Result<Box<dyn VectorEnv>>
where
    E: lanes::Lanes<K, D> + 'static,
{
    if options.num_envs < E::FROM || !env.has_lanes() {
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
        let fix = "pass a positive number, or none for no limit";
        return Err(Error::config("max_episode_steps", "at least 1", "0", fix));
    }
    Ok(limit)
}

/// Reads an environment's arguments: every one must be known and finite.
fn argument(arguments: &[(String, f64)], known: &[&'static str], name: &str, default: f64) -> Result<f64> {
    for (given, value) in arguments {
        if !known.contains(&given.as_str()) {
            let expected = format!("only {}", known.join(", "));
            return Err(Error::config("arguments", expected, format!("{given:?}"), "remove or rename it"));
        }
        if !value.is_finite() {
            return Err(Error::config(given.clone(), "a finite number", value.to_string(), "pass a finite number"));
        }
    }
    Ok(arguments.iter().rev().find(|(given, _)| given == name).map_or(default, |(_, value)| *value))
}

/// Reads an argument that is 0 or 1, by default 0.
fn switch(arguments: &[(String, f64)], known: &[&'static str], name: &'static str) -> Result<bool> {
    match argument(arguments, known, name, 0.0)? {
        0.0 => Ok(false),
        1.0 => Ok(true),
        other => Err(Error::config(name, "0 or 1", other.to_string(), "pass one of them")),
    }
}

/// The options `low` and `high`, between which the starting state is drawn.
fn bounds(options: &ResetOptions, default: (f64, f64)) -> (f64, f64) {
    (options.get("low").unwrap_or(default.0), options.get("high").unwrap_or(default.1))
}

/// Refuses all options but a `low` and a `high` that have numbers between them which f32 observations can hold.
fn check_bounds(options: &ResetOptions, default: (f64, f64)) -> Result<()> {
    options.only(&["low", "high"])?;
    let (low, high) = bounds(options, default);
    let limit = f64::from(f32::MAX);
    if -limit <= low && low <= high && high <= limit {
        return Ok(());
    }
    let fix = "swap or correct them";
    Err(Error::config("options", "low <= high, both finite in f32", format!("low {low}, high {high}"), fix))
}

/// Refuses states of another length, or with numbers that f32 observations cannot hold.
fn check_state(state: &[f64], len: usize) -> Result<()> {
    check_len("state", state.len(), len)?;
    let limit = f64::from(f32::MAX);
    let Some(at) = state.iter().position(|x| !(-limit..=limit).contains(x)) else { return Ok(()) };
    let make = if state[at].is_finite() { Error::config } else { Error::not_finite };
    let fix = "pass what the environment gave as its state";
    Err(make("state", "numbers finite in f32", state[at].to_string(), fix).at_index(at))
}

/// Refuses a mark, the state's last number, that is neither 0 nor 1.
fn check_mark(state: &[f64]) -> Result<()> {
    let Some(mark) = state.last().filter(|mark| **mark != 0.0 && **mark != 1.0) else { return Ok(()) };
    let fix = "pass what the environment gave as its state";
    Err(Error::config("state", "0 or 1 as its last number", mark.to_string(), fix).at_index(state.len() - 1))
}

/// Levenshtein distance, for near names.
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
        MakeOptions {
            num_envs: 1,
            seed: Some(0),
            autoreset_mode: AutoresetMode::SameStep,
            max_episode_steps: None,
            arguments,
        }
    }

    #[test]
    fn unknown_ids_list_near_names() {
        let rejected = assert_rejects(make("cartpole", &options(&[])), Error::Config, "env_id");
        assert!(rejected.hint.contains("did you mean CartPole-v1"), "{rejected}");
    }

    #[test]
    fn unknown_arguments_are_refused() {
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
