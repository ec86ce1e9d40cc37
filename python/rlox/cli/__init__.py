"""Command line of rlox: `rlox COMMAND`, also `python -m rlox`. See `docs/cli.md`.

The extra `rlox[cli]` installs the parser. A command's module is imported when the command runs.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name
from typing import TextIO

import gymnasium as gym

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import __version__
from rlox._serialize import dumps
from rlox._validation import hint

__all__ = ["main"]
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT
# Functions of the commands. They take the arguments after the name, and return the exit code.
COMMANDS = {
    "train": ("train:train", "train an algorithm on an environment: rlox train ppo CartPole-v1"),
    "resume": ("train:resume", "continue a stopped run, or add steps to a finished one"),
    "eval": ("inspect:evaluate", "evaluate a trained policy over full episodes"),
    "enjoy": ("inspect:enjoy", "watch a trained policy"),
    "sweep": ("sweep:sweep", "search for good settings with many trials"),
    "export": ("inspect:export", "write a trained policy as torch, safetensors or ONNX"),
    "plot": ("inspect:plot", "draw the learning curves of one or many runs"),
    "presets": ("inspect:presets", "list and show tuned settings"),
    "envs": ("inspect:envs", "list the native environments and their spaces"),
    "worker": ("worker:worker", "collect rollouts for trainers on other machines"),
    "doctor": ("doctor:doctor", "check the installation and suggest fixes"),
}
# Errors whose text needs no type name.
_EXPLAINED = (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, gym.error.Error)


class UsageError(Exception):
    """The command line, or a file named on it, is wrong."""


class RunError(Exception):
    """Training failed after it began, so no option is wrong; the error is the cause."""


class StdoutClosedError(Exception):
    """The reader of stdout, such as `head`, has closed the pipe."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; results go to stdout, messages to stderr.

    Args:
        argv: Arguments after `rlox`; None: the arguments of the process.

    Returns:
        Exit code. 0: success; 1: error; 2: wrong command line; 130: Ctrl-C.

    >>> main(["--version"])
    rlox ...
    0
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in argv
    argv = [word for word in argv if word != "--traceback"]
    try:
        return _run(argv)
    except SystemExit as end:  # tyro ends with 0 after help and with 2 after a wrong option
        if isinstance(end.code, str):
            echo(f"rlox: {printable(end.code)}", to=sys.stderr)
            return FAILED
        return end.code if isinstance(end.code, int) else DONE
    except KeyboardInterrupt:
        echo("interrupted", to=sys.stderr)
        return INTERRUPTED
    except StdoutClosedError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        is_usage = _is_usage_error(error, argv)
        if isinstance(error, RunError) and error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]  # an Exception
        text = printable(str(error)) if is_usage else describe_error(error)
        echo(f"rlox: {text}", to=sys.stderr)
        return USAGE if is_usage else FAILED


def _is_usage_error(error: Exception, argv: Sequence[str]) -> bool:
    """Return whether an error concerns the command line, an option or a setting."""
    if not isinstance(error, ArgumentError | ArgumentTypeError):
        return isinstance(error, UsageError)
    options = (word.partition("=")[0] for word in argv if word.startswith("--"))
    names = {option[2:].replace("-", "_") for option in options}
    if argv[:1] in (["train"], ["sweep"], ["presets"]):  # other commands only read files of rlox
        names |= resolve_name("rlox.cli._args:option_names")()
    return error.argument in names


def describe_error(error: BaseException) -> str:
    """Return a line that describes an error, with its type if the text needs it."""
    text = printable(str(error))
    if isinstance(error, _EXPLAINED) and text:
        return text
    return f"{type(error).__name__}: {text}; add --traceback to see where"


def printable(text: str) -> str:
    """Return a text as one line, with control characters escaped.

    >>> printable("a\\n  b\\x1b[31m")
    'a b\\\\x1b[31m'
    """
    line = " ".join(text.split())
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in line)


def echo(text: str, *, to: TextIO | None = None) -> None:
    """Write a line to stdout or another stream; escape characters that its encoding lacks."""
    stream = sys.stdout if to is None else to
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError as error:
        raise StdoutClosedError from error


def report(content: object, lines: Sequence[str], *, as_json: bool) -> int:
    """Write a result to stdout, as strict JSON or as lines, and return the exit code of success.

    NaN and infinity become null in JSON.
    """
    echo(dumps(content, indent=2) if as_json else "\n".join(lines))
    return DONE


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text with aligned columns.

    >>> print(columns([("a", "1"), ("long", "2")]))
    a     1
    long  2
    """
    table = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        echo(_overview())
        return DONE if argv else USAGE
    if name in ("--version", "-V"):
        echo(f"rlox {__version__}")
        return DONE
    if name not in COMMANDS:
        expected = "command before any option" if name.startswith("-") else "command"
        raise UsageError(f"expected a {expected}, got {name!r}; {hint(name, COMMANDS)}")
    command: Callable[[list[str]], int] = resolve_name(f"rlox.cli.{COMMANDS[name][0]}")
    return command(argv[1:])


def _overview() -> str:
    commands = columns((f"  {name}", summary) for name, (_, summary) in COMMANDS.items())
    return (
        f"usage: rlox COMMAND [OPTIONS]\n\n{commands}\n\n"
        "rlox COMMAND --help lists the options of a command. With --traceback, every command\n"
        "shows where an error was raised. rlox --version prints the version.\n"
        "Exit codes: 0 success, 1 error, 2 wrong command line, 130 Ctrl-C."
    )
