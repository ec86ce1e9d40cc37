//! The error type of all rlox crates.
//!
//! An error about an argument holds the argument's name, the expected and the rejected value, a
//! hint and a location.

use std::borrow::Cow;
use std::fmt;

/// The result type of the fallible functions of all rlox crates.
pub type Result<T> = std::result::Result<T, Error>;

/// Location of a rejected value. The error text of a [`Mismatch`] prints the location after the
/// rejected value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Index of the environment.
    pub env: Option<usize>,
    /// Index of the row of a batch, or of the time step of a rollout.
    pub row: Option<usize>,
    /// Index of the number within a row of a batch.
    pub column: Option<usize>,
    /// Index in a flat array or a list.
    pub index: Option<usize>,
    /// Index of the step of the environment, counted from 0.
    pub step: Option<usize>,
    /// Number of steps that all environments of a run had made together.
    pub timesteps: Option<u64>,
    /// Section of a file, or name of an array in a collection of arrays.
    pub section: Option<String>,
    /// Address of the worker that raised the error.
    pub worker: Option<String>,
}

/// A rejected argument: its name, the accepted and the rejected value, a hint and the location.
///
/// ```
/// let error = rlox_core::Error::config("obs", "finite numbers", "NaN", "check the environment").at_env(1).at_step(7);
/// assert_eq!(
///     error.to_string(),
///     "obs: expected finite numbers, got NaN in environment 1 at step 7; check the environment"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// Name of the argument, object or file, as the caller knows it.
    pub argument: Cow<'static, str>,
    /// Description of the accepted values. If the description is empty, the error text is
    /// `{argument} {got}; {hint}`.
    pub expected: String,
    /// Description of the rejected value.
    pub got: String,
    /// Instruction for correcting the call. May be empty.
    pub hint: Cow<'static, str>,
    /// Location of the rejected value.
    pub at: Location,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.argument)?;
        if let Some(section) = &self.at.section {
            write!(f, ", section {section}")?;
        }
        if self.expected.is_empty() {
            write!(f, " {}", self.got)?;
        } else {
            write!(f, ": expected {}, got {}", self.expected, self.got)?;
        }
        let indices = [
            ("in environment", self.at.env),
            ("in row", self.at.row),
            ("in column", self.at.column),
            ("at index", self.at.index),
            ("at step", self.at.step),
        ];
        for (preposition, index) in indices {
            if let Some(index) = index {
                write!(f, " {preposition} {index}")?;
            }
        }
        if let Some(timesteps) = self.at.timesteps {
            write!(f, " at timestep {timesteps}")?;
        }
        if let Some(worker) = &self.at.worker {
            write!(f, " on worker {worker}")?;
        }
        if self.hint.is_empty() { Ok(()) } else { write!(f, "; {}", self.hint) }
    }
}

/// Error of an rlox crate. Each variant is a kind of failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice or array has the wrong length, rank or dtype.
    #[error("{0}")]
    Shape(Box<Mismatch>),
    /// An action is outside the action space, not finite, or sent at the wrong time.
    #[error("{0}")]
    Action(Box<Mismatch>),
    /// A space is invalid or unsuitable, or a number is outside of the accepted set.
    #[error("{0}")]
    Space(Box<Mismatch>),
    /// An argument is out of range or unknown.
    #[error("{0}")]
    Config(Box<Mismatch>),
    /// A number that must be finite is NaN or infinite.
    #[error("{0}")]
    NotFinite(Box<Mismatch>),
    /// An allocation exceeds the available memory.
    #[error("{0}")]
    Memory(Box<Mismatch>),
    /// A file is damaged, truncated or of another format.
    #[error("{0}")]
    Corrupt(Box<Mismatch>),
    /// The object was closed or belongs to another process.
    #[error("{0}")]
    Closed(Box<Mismatch>),
    /// The operating system reported an error.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The function of [`crate::interrupt::set_interrupt_check`] reported an interruption.
    #[error("interrupted")]
    Interrupted,
    /// A backend (network library, environment code) failed with its own message.
    #[error("{0}")]
    Backend(String),
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $variant:ident),* $(,)?) => {
        impl Error {$(
            $(#[$doc])*
            pub fn $name(
                argument: impl Into<Cow<'static, str>>,
                expected: impl Into<String>,
                got: impl Into<String>,
                hint: impl Into<Cow<'static, str>>,
            ) -> Self {
                Self::$variant(Box::new(Mismatch {
                    argument: argument.into(),
                    expected: expected.into(),
                    got: got.into(),
                    hint: hint.into(),
                    at: Location::default(),
                }))
            }
        )*}
    };
}

constructors! {
    /// Creates an [`Error::Shape`].
    shape => Shape,
    /// Creates an [`Error::Action`].
    action => Action,
    /// Creates an [`Error::Space`].
    space => Space,
    /// Creates an [`Error::Config`].
    config => Config,
    /// Creates an [`Error::NotFinite`].
    not_finite => NotFinite,
    /// Creates an [`Error::Memory`].
    memory => Memory,
    /// Creates an [`Error::Corrupt`].
    corrupt => Corrupt,
    /// Creates an [`Error::Closed`].
    closed => Closed,
}

impl Error {
    /// Returns the description of the rejected argument, or `None` if the error is not about an
    /// argument.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        match self {
            Self::Shape(mismatch)
            | Self::Action(mismatch)
            | Self::Space(mismatch)
            | Self::Config(mismatch)
            | Self::NotFinite(mismatch)
            | Self::Memory(mismatch)
            | Self::Corrupt(mismatch)
            | Self::Closed(mismatch) => Some(mismatch),
            Self::Io { .. } | Self::Interrupted | Self::Backend(_) => None,
        }
    }

    /// Returns the mutable description of the rejected argument, or `None` if the error is not
    /// about an argument.
    pub fn mismatch_mut(&mut self) -> Option<&mut Mismatch> {
        match self {
            Self::Shape(mismatch)
            | Self::Action(mismatch)
            | Self::Space(mismatch)
            | Self::Config(mismatch)
            | Self::NotFinite(mismatch)
            | Self::Memory(mismatch)
            | Self::Corrupt(mismatch)
            | Self::Closed(mismatch) => Some(mismatch),
            Self::Io { .. } | Self::Interrupted | Self::Backend(_) => None,
        }
    }

    fn with_location(mut self, set: impl FnOnce(&mut Location)) -> Self {
        if let Some(mismatch) = self.mismatch_mut() {
            set(&mut mismatch.at);
        }
        self
    }

    /// Sets the index of the environment.
    #[must_use]
    pub fn at_env(self, env: usize) -> Self {
        self.with_location(|location| location.env = Some(env))
    }

    /// Sets the index of the row of a batch, or of the time step of a rollout.
    #[must_use]
    pub fn at_row(self, row: usize) -> Self {
        self.with_location(|location| location.row = Some(row))
    }

    /// Sets the index of the number within a row.
    #[must_use]
    pub fn at_column(self, column: usize) -> Self {
        self.with_location(|location| location.column = Some(column))
    }

    /// Sets the index in a flat array or a list.
    #[must_use]
    pub fn at_index(self, index: usize) -> Self {
        self.with_location(|location| location.index = Some(index))
    }

    /// Sets the index of the step of the environment.
    #[must_use]
    pub fn at_step(self, step: usize) -> Self {
        self.with_location(|location| location.step = Some(step))
    }

    /// Sets the number of steps that all environments of a run had made together.
    #[must_use]
    pub fn at_timestep(self, timesteps: u64) -> Self {
        self.with_location(|location| location.timesteps = Some(timesteps))
    }

    /// Sets the section of the file, or the name of the array in a collection of arrays.
    #[must_use]
    pub fn in_section(self, section: impl Into<String>) -> Self {
        self.with_location(|location| location.section = Some(section.into()))
    }

    /// Sets the address of the worker.
    #[must_use]
    pub fn on_worker(self, address: impl Into<String>) -> Self {
        self.with_location(|location| location.worker = Some(address.into()))
    }

    /// Removes the index of the environment, for callers with a single environment.
    #[must_use]
    pub fn without_env(self) -> Self {
        self.with_location(|location| location.env = None)
    }

    /// Adds `first` to the index of the environment, if there is an index.
    ///
    /// A caller that passes on only the environments from `first` on uses this method, so that the
    /// error reports the index among all environments.
    #[must_use]
    pub fn offset_env(self, first: usize) -> Self {
        self.with_location(|location| location.env = location.env.map(|env| first + env))
    }

    /// Adds `first` to the index of the row, if there is an index. See also [`Error::offset_env`].
    #[must_use]
    pub fn offset_row(self, first: usize) -> Self {
        self.with_location(|location| location.row = location.row.map(|row| first + row))
    }

    /// Changes the name of the argument to `to` if the name is `from`.
    ///
    /// A caller whose own argument has another name uses this method.
    ///
    /// ```
    /// let error = rlox_core::error::check_len("rows", 3, 4).unwrap_err().rename_argument("rows", "obs");
    /// assert_eq!(error.to_string(), "obs: expected 4 elements, got 3; pass one array of that length");
    /// ```
    #[must_use]
    pub fn rename_argument(mut self, from: &str, to: impl Into<Cow<'static, str>>) -> Self {
        if let Some(mismatch) = self.mismatch_mut().filter(|wrong| wrong.argument == from) {
            mismatch.argument = to.into();
        }
        self
    }
}

/// Checks that the length `got` equals `expected`. The error names `argument`.
///
/// # Errors
/// [`Error::Shape`] if `got != expected`.
///
/// ```
/// let error = rlox_core::error::check_len("rewards", 3, 4).unwrap_err();
/// assert_eq!(error.to_string(), "rewards: expected 4 elements, got 3; pass one array of that length");
/// ```
#[inline]
pub fn check_len(argument: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(len_mismatch(argument, got, expected)) }
}

#[cold]
fn len_mismatch(argument: &'static str, got: usize, expected: usize) -> Error {
    Error::shape(argument, format!("{expected} elements"), got.to_string(), "pass one array of that length")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_finite() -> Error {
        Error::not_finite("obs", "finite numbers", "NaN", "check the environment")
    }

    #[test]
    fn display_prints_each_location_after_the_value() {
        let cases = [
            (not_finite(), "obs: expected finite numbers, got NaN; check the environment"),
            (not_finite().at_row(4), "obs: expected finite numbers, got NaN in row 4; check the environment"),
            (
                not_finite().at_column(2).at_row(4),
                "obs: expected finite numbers, got NaN in row 4 in column 2; check the environment",
            ),
            (not_finite().at_index(9), "obs: expected finite numbers, got NaN at index 9; check the environment"),
            (
                not_finite().on_worker("http://a:1").at_env(3).offset_env(4),
                "obs: expected finite numbers, got NaN in environment 7 on worker http://a:1; check the environment",
            ),
            (
                not_finite().at_step(7).at_env(1),
                "obs: expected finite numbers, got NaN in environment 1 at step 7; check the environment",
            ),
            (
                not_finite().in_section("run"),
                "obs, section run: expected finite numbers, got NaN; check the environment",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
            assert_eq!(error.mismatch().unwrap().got, "NaN");
        }
    }

    #[test]
    fn display_prints_a_sentence_without_expected_value() {
        assert_eq!(
            Error::closed("env", "", "is closed", "create a new one").to_string(),
            "env is closed; create a new one"
        );
        assert_eq!(Error::closed("env", "", "is closed", "").to_string(), "env is closed");
    }

    #[test]
    fn errors_without_an_argument_ignore_locations() {
        assert_eq!(Error::Backend("failed".into()).at_env(1).to_string(), "failed");
    }
}
