//! Native environments, which are implemented in Rust, and the registry that creates them by id.

mod acrobot;
mod cartpole;
mod mountain_car;
mod mountain_car_continuous;
pub(crate) mod numpy_math;
mod pendulum;
mod registry;
mod soa;

pub use acrobot::Acrobot;
pub use cartpole::CartPole;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;
pub use registry::{MakeOptions, ids, make};
pub use soa::SoaVecEnv;

use crate::{Error, ResetOptions, Result, error::check_len};

/// Returns the value of the argument `name`, or `default` if it is not set. Checks that all
/// arguments are in `known` and finite.
fn argument(arguments: &[(String, f64)], known: &[&'static str], name: &str, default: f64) -> Result<f64> {
    for (key, value) in arguments {
        if !known.contains(&key.as_str()) {
            let expected = format!("only {}", known.join(", "));
            return Err(Error::config("arguments", expected, format!("{key:?}"), "remove or rename it"));
        }
        if !value.is_finite() {
            return Err(Error::config(key.clone(), "a finite number", value.to_string(), "pass a finite number"));
        }
    }
    Ok(arguments.iter().rev().find(|(key, _)| key == name).map_or(default, |(_, value)| *value))
}

/// Returns the value of the argument `name`, which must be 0 or 1, as a flag. The default is false.
fn bool_argument(arguments: &[(String, f64)], known: &[&'static str], name: &'static str) -> Result<bool> {
    match argument(arguments, known, name, 0.0)? {
        0.0 => Ok(false),
        1.0 => Ok(true),
        other => Err(Error::config(name, "0 or 1", other.to_string(), "pass 0 for false or 1 for true")),
    }
}

/// Returns the reset options `low` and `high`, the bounds of the starting state, or their defaults.
fn bounds(options: &ResetOptions, default: (f64, f64)) -> (f64, f64) {
    (options.get("low").unwrap_or(default.0), options.get("high").unwrap_or(default.1))
}

/// Checks that only the reset options `low` and `high` are set, that `low <= high`, and that both
/// are finite in f32.
fn check_bounds(options: &ResetOptions, default: (f64, f64)) -> Result<()> {
    options.check_known(&["low", "high"])?;
    let (low, high) = bounds(options, default);
    let limit = f64::from(f32::MAX);
    if -limit <= low && low <= high && high <= limit {
        return Ok(());
    }
    let hint = "pass low <= high within the range of f32";
    Err(Error::config("options", "low <= high, both finite in f32", format!("low {low}, high {high}"), hint))
}

/// Checks the length of a state, and that f32 observations can represent its numbers.
fn check_state(state: &[f64], len: usize) -> Result<()> {
    check_len("state", state.len(), len)?;
    let limit = f64::from(f32::MAX);
    let Some(index) = state.iter().position(|x| !(-limit..=limit).contains(x)) else { return Ok(()) };
    let make = if state[index].is_finite() { Error::config } else { Error::not_finite };
    let hint = "pass a state of Env::state";
    Err(make("state", "numbers finite in f32", state[index].to_string(), hint).at_index(index))
}

/// Checks that the last number of a state is 0 or 1.
fn check_flag(state: &[f64]) -> Result<()> {
    let Some(mark) = state.last().filter(|mark| **mark != 0.0 && **mark != 1.0) else { return Ok(()) };
    let hint = "pass a state of Env::state";
    Err(Error::config("state", "0 or 1 as its last number", mark.to_string(), hint).at_index(state.len() - 1))
}
