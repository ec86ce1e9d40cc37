//! One error type of a few nouns; every message carries the argument, what was expected, what came and the fix.

use std::borrow::Cow;
use std::fmt;

/// The result of every fallible call in this workspace.
pub type Result<T> = std::result::Result<T, Error>;

/// What was wrong with an argument, in the four parts a reader needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The argument's name as the caller wrote it.
    pub argument: Cow<'static, str>,
    /// What would have been accepted.
    pub expected: String,
    /// What came.
    pub got: String,
    /// What to do about it.
    pub fix: Cow<'static, str>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}; {}", self.argument, self.expected, self.got, self.fix)
    }
}

/// Everything that can go wrong, by kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice or array has the wrong length, rank or dtype.
    #[error("{0}")]
    Shape(Box<Mismatch>),
    /// An action is outside the action space, not a number, or came at the wrong time.
    #[error("{0}")]
    Action(Box<Mismatch>),
    /// A space is not what the call needs.
    #[error("{0}")]
    Space(Box<Mismatch>),
    /// A setting is out of range or unknown.
    #[error("{0}")]
    Config(Box<Mismatch>),
    /// Something that was computed, and that nobody passed, is NaN or infinite.
    #[error("{0}")]
    NotFinite(Box<Mismatch>),
    /// More memory was asked for than there is.
    #[error("{0}")]
    Memory(Box<Mismatch>),
    /// A file is damaged, truncated or foreign.
    #[error("{0}")]
    Corrupt(Box<Mismatch>),
    /// The object was closed, or belongs to another process.
    #[error("{0}")]
    Closed(Box<Mismatch>),
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file concerned.
        path: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The check of [`crate::set_interrupt_check`] said to stop.
    #[error("interrupted")]
    Interrupted,
    /// A backend (network library, environment code) failed in its own words.
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
                fix: impl Into<Cow<'static, str>>,
            ) -> Self {
                Self::$variant(Box::new(Mismatch {
                    argument: argument.into(),
                    expected: expected.into(),
                    got: got.into(),
                    fix: fix.into(),
                }))
            }
        )*}
    };
}

constructors! {
    /// An [`Error::Shape`].
    shape => Shape,
    /// An [`Error::Action`].
    action => Action,
    /// An [`Error::Space`].
    space => Space,
    /// An [`Error::Config`].
    config => Config,
    /// An [`Error::NotFinite`].
    not_finite => NotFinite,
    /// An [`Error::Memory`].
    memory => Memory,
    /// An [`Error::Corrupt`].
    corrupt => Corrupt,
    /// An [`Error::Closed`].
    closed => Closed,
}

impl Error {
    /// What was wrong, if an argument was.
    pub fn mismatch_mut(&mut self) -> Option<&mut Mismatch> {
        match self {
            Self::Shape(wrong)
            | Self::Action(wrong)
            | Self::Space(wrong)
            | Self::Config(wrong)
            | Self::NotFinite(wrong)
            | Self::Memory(wrong)
            | Self::Corrupt(wrong)
            | Self::Closed(wrong) => Some(wrong),
            Self::Io { .. } | Self::Interrupted | Self::Backend(_) => None,
        }
    }

    /// The same error, where the caller knows the argument `from` by another name.
    ///
    /// ```
    /// let error = rlox_core::check_len("rows", 3, 4).unwrap_err().renamed("rows", "obs");
    /// assert_eq!(error.to_string(), "obs: expected 4 elements, got 3; pass one array of that length");
    /// ```
    #[must_use]
    pub fn renamed(mut self, from: &str, to: &'static str) -> Self {
        if let Some(wrong) = self.mismatch_mut().filter(|wrong| wrong.argument == from) {
            wrong.argument = to.into();
        }
        self
    }
}

/// Checks a length, naming the argument if it is wrong.
///
/// # Errors
/// [`Error::Shape`] if `got != expected`.
///
/// ```
/// let error = rlox_core::check_len("rewards", 3, 4).unwrap_err();
/// assert_eq!(error.to_string(), "rewards: expected 4 elements, got 3; pass one array of that length");
/// ```
#[inline]
pub fn check_len(argument: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(wrong_len(argument, got, expected)) }
}

#[cold]
fn wrong_len(argument: &'static str, got: usize, expected: usize) -> Error {
    Error::shape(argument, format!("{expected} elements"), got.to_string(), "pass one array of that length")
}
