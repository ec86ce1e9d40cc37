//! The error type of the workspace: argument, expected value, rejected value, hint and location.

use std::borrow::Cow;
use std::fmt;

/// The result of every fallible call in this workspace.
pub type Result<T> = std::result::Result<T, Error>;

/// Location of a rejected value. The text of a [`Mismatch`] names it after the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Index of the environment.
    pub env: Option<usize>,
    /// Index of the row of a batch, or of the step in a rollout.
    pub row: Option<usize>,
    /// Index of the column of a batch, counted through the numbers of a row.
    pub column: Option<usize>,
    /// Index in a flat array or a list.
    pub index: Option<usize>,
    /// Index of the environment's step, counted from its first one.
    pub step: Option<usize>,
    /// Steps of all environments together that a run had made.
    pub timesteps: Option<u64>,
    /// Section of a file, or name of one array of several.
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
    /// Description of the accepted values. If it is empty, the text is the sentence "argument got; hint".
    pub expected: String,
    /// Description of the rejected value.
    pub got: String,
    /// Instruction how to correct the call, or empty.
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

/// Every failure of this workspace, by kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice or array has the wrong length, rank or dtype.
    #[error("{0}")]
    Shape(Box<Mismatch>),
    /// An action is outside the action space, not finite, or sent at the wrong time.
    #[error("{0}")]
    Action(Box<Mismatch>),
    /// A space or an element of a space differs from the required one.
    #[error("{0}")]
    Space(Box<Mismatch>),
    /// An argument is out of range or unknown.
    #[error("{0}")]
    Config(Box<Mismatch>),
    /// A computed value, not an argument, is NaN or infinite.
    #[error("{0}")]
    NotFinite(Box<Mismatch>),
    /// An allocation exceeds the available memory.
    #[error("{0}")]
    Memory(Box<Mismatch>),
    /// A file is damaged, truncated or foreign.
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
    /// Returns the rejected argument, or `None` for errors without one.
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

    /// Returns the rejected argument mutably, or `None` for errors without one.
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

    /// Sets the index of the row.
    #[must_use]
    pub fn at_row(self, row: usize) -> Self {
        self.with_location(|location| location.row = Some(row))
    }

    /// Sets the index of the column.
    #[must_use]
    pub fn at_column(self, column: usize) -> Self {
        self.with_location(|location| location.column = Some(column))
    }

    /// Sets the index in a flat array or a list.
    #[must_use]
    pub fn at_index(self, index: usize) -> Self {
        self.with_location(|location| location.index = Some(index))
    }

    /// Sets the index of the step.
    #[must_use]
    pub fn at_step(self, step: usize) -> Self {
        self.with_location(|location| location.step = Some(step))
    }

    /// Sets the number of timesteps of all environments together.
    #[must_use]
    pub fn at_timestep(self, timesteps: u64) -> Self {
        self.with_location(|location| location.timesteps = Some(timesteps))
    }

    /// Sets the section of the file, or the name of one array of several.
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
    /// Callers that pass a range of environments starting at `first` use it to report the global index.
    #[must_use]
    pub fn offset_env(self, first: usize) -> Self {
        self.with_location(|location| location.env = location.env.map(|env| first + env))
    }

    /// Adds `first` to the index of the row, if there is an index, as [`Error::offset_env`] does.
    #[must_use]
    pub fn offset_row(self, first: usize) -> Self {
        self.with_location(|location| location.row = location.row.map(|row| first + row))
    }

    /// Renames the argument if its name is `from`, for callers that use another name.
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

/// Checks a length. The error names the argument.
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
