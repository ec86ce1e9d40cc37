"""Exceptions and warnings of rlox. Errors have the argument and its location as attributes."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ClosedError",
    "CorruptFileError",
    "NonFiniteError",
    "OutOfMemoryError",
]


class StructuredError(Exception):
    """Base class of the rlox exceptions that name an argument.

    The text is ``"argument: expected X, got Y; hint"``, or ``"argument Y; hint"`` if `expected` is
    None. The text includes the location; `expected`, `got` and `hint` do not.

    Args:
        argument: Name of the rejected argument, object or file.
        expected: Description of the accepted values, or None for a plain sentence.
        got: Description of the rejected value.
        hint: Instruction that corrects the call, or None.
        env: Index of the environment.
        row: Index of the row of a batch, or of the step in a rollout.
        column: Index of the number within a flattened row of a batch.
        index: Index in a flat array or a list.
        step: Number of the step of that environment.
        timesteps: Number of steps of all environments together.
        section: Section of a file, a state or a list of arguments, or the name of one array.
        worker: Address of the worker that raised the error.
    """

    diagnosis: str | None = None
    """Folder that describes the state of the run when the error occurred."""

    def __init__(
        self,
        argument: "str | StructuredError",
        expected: str | None = None,
        got: str = "",
        hint: str | None = None,
        *,
        env: int | None = None,
        row: int | None = None,
        column: int | None = None,
        index: int | None = None,
        step: int | None = None,
        timesteps: int | None = None,
        section: str | None = None,
        worker: str | None = None,
    ) -> None:
        if expected is None and not got:
            # Gymnasium raises `type(error)(error)` for an error of a worker process and
            # `type(error)(text)` for an error of a constructor. In both cases, copy the original error.
            original: object = argument
            if sys._getframe(1).f_globals.get("__name__") == "gymnasium.envs.registration":
                original = sys.exc_info()[1]
            if isinstance(original, StructuredError):
                super().__init__(*original.args)
                vars(self).update(vars(original))
                return
        super().__init__(argument, expected, got, hint)
        self.argument = str(argument)
        self.expected = expected
        self.got = got
        self.hint = hint
        self.env = env
        self.row = row
        self.column = column
        self.index = index
        self.step = step
        self.timesteps = timesteps
        self.section = section
        self.worker = worker

    def __str__(self) -> str:
        """Return the text: argument, section, expected, got, location and hint."""
        section = "" if self.section is None else f", section {self.section}"
        expected = "" if self.expected is None else f": expected {self.expected}, got"
        got = f" {self.got}" if self.got else ""
        location = "".join(
            f" {preposition} {value}"
            for preposition, value in (
                ("in environment", self.env),
                ("in row", self.row),
                ("in column", self.column),
                ("at index", self.index),
                ("at step", self.step),
                ("at timestep", self.timesteps),
                ("on worker", self.worker),
            )
            if value is not None
        )
        hint = "" if self.hint is None else f"; {self.hint}"
        hint += "" if self.diagnosis is None else f"; see {self.diagnosis}"
        return f"{self.argument}{section}{expected}{got}{location}{hint}"


class ArgumentError(StructuredError, ValueError):
    """Raised when an argument has a value that is not accepted."""


class ArgumentTypeError(StructuredError, TypeError):
    """Raised when an argument has a type that is not accepted, or a keyword is unknown."""


class NonFiniteError(StructuredError, ValueError, FloatingPointError):
    """Raised when a number in an array, a state, a loss or a weight is NaN or infinite."""


class ClosedError(StructuredError, ValueError):
    """Raised when an object is closed, is in use by another call or belongs to another process."""


class CorruptFileError(StructuredError, ValueError):
    """Raised when a file is damaged, truncated or in an unknown format."""


class OutOfMemoryError(StructuredError, MemoryError):
    """Raised when an operation needs more memory than is available."""


def add_section(error: Exception, section: str) -> StructuredError:
    """Return a copy of an error in a section of a state; ArgumentTypeError becomes ArgumentError."""
    if not isinstance(error, StructuredError):
        expected = "a value that `state` returned"
        hint = "pass the value that `state` returned"
        return ArgumentError(section, expected, f"other data ({error})", hint)
    cls = ArgumentError if isinstance(error, ArgumentTypeError) else type(error)
    copy = cls(error)
    copy.section = section if error.section is None else f"{section}, {error.section}"
    return copy


def add_file(error: Exception, path: str | os.PathLike[str], cls: type[StructuredError]) -> StructuredError:
    """Return the error of a state that was read from a file, with the file as its argument."""
    hint = "use another copy of the file"
    if not isinstance(error, StructuredError):
        return cls(str(path), "a state that rlox wrote", f"invalid data ({error})", hint)
    parts = (error.section, error.argument)
    copy = cls(error)
    copy.argument = str(path)
    copy.section = ", ".join(part for part in parts if part is not None)
    copy.hint = hint if issubclass(cls, CorruptFileError) else error.hint
    return copy


@contextmanager
def rename_arguments(names: Mapping[str, str]) -> Iterator[None]:
    """Replace argument names in errors of a block or decorated function by the caller's names."""
    try:
        yield
    except StructuredError as error:
        error.argument = names.get(error.argument, error.argument)
        raise


def one_line(error: BaseException) -> str:
    """Return the type and text of an error on one line, for use in another message."""
    return " ".join(f"{type(error).__name__}: {error}".split())


for _name in __all__:
    globals()[_name].__module__ = "rlox"  # tracebacks show the public name
del _name
_log = logging.getLogger("rlox")
_BETWEEN = (f"{Path(__file__).parent}{os.sep}", contextlib.__file__)


def warn(message: str) -> None:
    """Issue a `UserWarning` at the nearest caller outside rlox."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_code.co_filename.startswith(_BETWEEN) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)


def warn_at_most(message: str) -> None:
    """Issue a warning, or log the message if a filter turns warnings into errors."""
    try:
        warn(message)
    except Warning:
        _log.warning("%s", message)
