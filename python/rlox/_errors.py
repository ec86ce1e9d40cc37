"""Exceptions of rlox, with the rejected argument and its location as attributes."""

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
    """Base class of the exceptions of rlox that name an argument.

    The text is ``"argument: expected X, got Y; hint"``, or ``"argument Y; hint"`` if `expected` is
    None. The location is part of the text, but not of the other attributes.

    Args:
        argument: Name of the rejected argument, object or file.
        expected: Description of the accepted values, or None for a plain sentence.
        got: Description of the rejected value.
        hint: How to correct the call, or None.
        env: Index of the environment.
        row: Index of the row of a batch, or of the step in a rollout.
        column: Index of the column of a batch, counted through the numbers of a row.
        index: Index in a flat array or a list.
        step: Index of the step of that environment.
        timesteps: Steps of all environments together.
        section: Section of a file, of a state or of a list of arguments, or name of one array of
            several.
        worker: Address of the worker that raised the error.
    """

    diagnosis: str | None = None
    """Folder that describes the state of the run at the error."""

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
            # Gymnasium raises `type(error)(error)` for an error of a worker process, and
            # `type(error)(text)` for an error of a constructor.
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
    """An argument has a value that is not accepted."""


class ArgumentTypeError(StructuredError, TypeError):
    """An argument has a type that is not accepted, or a keyword is unknown."""


class NonFiniteError(StructuredError, ValueError, FloatingPointError):
    """A number in an array, a state, a loss or a weight is NaN or infinite."""


class ClosedError(StructuredError, ValueError):
    """The object was closed, is in use by another call or belongs to another process."""


class CorruptFileError(StructuredError, ValueError):
    """A file is damaged, truncated or has another format."""


class OutOfMemoryError(StructuredError, MemoryError):
    """More memory is needed than is available."""


def add_section(error: Exception, section: str) -> StructuredError:
    """Return the error with the section of the state; a wrong type in a state is a wrong value."""
    if not isinstance(error, StructuredError):
        hint = "pass what `state` returned"
        return ArgumentError(section, "what `state` returned", f"other ({error})", hint)
    cls = ArgumentError if isinstance(error, ArgumentTypeError) else type(error)
    copy = cls(error)
    copy.section = section if error.section is None else f"{section}, {error.section}"
    return copy


def add_file(
    error: Exception, path: str | os.PathLike[str], cls: type[StructuredError]
) -> StructuredError:
    """Return the error of a state that was read from a file, with the file as argument.

    A damaged file cannot be corrected by an argument, so its hint is another one.
    """
    hint = "use another copy of the file"
    if not isinstance(error, StructuredError):
        return cls(str(path), "what rlox wrote", f"other ({error})", hint)
    parts = (error.section, error.argument)
    copy = cls(error)
    copy.argument = str(path)
    copy.section = ", ".join(part for part in parts if part is not None)
    copy.hint = hint if issubclass(cls, CorruptFileError) else error.hint
    return copy


@contextmanager
def rename_arguments(names: Mapping[str, str]) -> Iterator[None]:
    """Name the argument that the caller passed in errors of a block or of a decorated function."""
    try:
        yield
    except StructuredError as error:
        error.argument = names.get(error.argument, error.argument)
        raise


def one_line(error: BaseException) -> str:
    """Return the type and the text of an error on one line, to quote them in a message."""
    return " ".join(f"{type(error).__name__}: {error}".split())


for _name in __all__:
    globals()[_name].__module__ = "rlox"  # tracebacks show the public name
del _name
_log = logging.getLogger("rlox")
_BETWEEN = (f"{Path(__file__).parent}{os.sep}", contextlib.__file__)


def warn(message: str) -> None:
    """Gives a `UserWarning` that names the nearest caller outside of rlox.

    Args:
        message: What was expected, what came, and what to do.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(_BETWEEN) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def warn_at_most(message: str) -> None:
    """Warns of what shall not stop a run: where warnings are errors, it is logged instead."""
    try:
        warn(message)
    except Warning:
        _log.warning("%s", message)
