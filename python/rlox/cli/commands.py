"""Which commands there are, and what the shell hears of how one ended."""

import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pkgutil import resolve_name

import gymnasium as gym

from rlox._errors import ClosedError, CorruptFileError
from rlox._rlox import __version__
from rlox.cli.mistakes import UsageError, blaming, hint
from rlox.cli.output import ReaderGoneError, say

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT

# Each is `run(words) -> exit code` of the module `rlox.cli.NAME`.
COMMANDS = {
    "train": "train an algorithm on an environment: rlox train ppo CartPole-v1",
    "resume": "go on with a run that was stopped, or for more steps",
    "eval": "score a trained policy over full episodes",
    "enjoy": "watch a trained policy",
    "sweep": "search for good settings, many trials side by side",
    "export": "write a trained policy as torch, safetensors or ONNX",
    "plot": "draw the learning curves of one or many runs",
    "presets": "list and show tuned settings",
    "envs": "list the native environments and their spaces",
    "worker": "step environments and collect rollouts for trainers on other machines",
    "doctor": "check the installation, and say what to do about what is wrong",
}
_HELP = ("-h", "--help", "help")
# What says in its message all that there is to say.
_SAID = (
    *(ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError, FloatingPointError),
    *(ClosedError, CorruptFileError, gym.error.Error),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; messages go to stderr, results to stdout.

    Args:
        argv: The words after `rlox`; None: those of the process.

    Returns:
        0: done; 1: it failed, and a line says why; 2: the command line is wrong; 130: Ctrl-C.

    >>> main(["--version"])
    rlox ...
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    traced = "--traceback" in words
    words = [word for word in words if word != "--traceback"]
    try:
        with blaming(words):
            code = _run(words)
        _flush()
        return code
    except SystemExit as leaving:  # help and mistakes, told by the parser
        if isinstance(leaving.code, str):  # which an environment may end with
            say(f"rlox: {plain(leaving.code)}", to=sys.stderr)
            return FAILED
        return leaving.code if isinstance(leaving.code, int) else DONE
    except KeyboardInterrupt:
        say("interrupted", to=sys.stderr)
        return INTERRUPTED
    except ReaderGoneError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except UsageError as error:
        if traced:
            traceback.print_exc()
        say(f"rlox: {plain(str(error))}", to=sys.stderr)
        return USAGE
    except Exception as error:
        if traced:
            traceback.print_exc()
        say(f"rlox: {in_a_line(error)}", to=sys.stderr)
        return FAILED


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def in_a_line(error: BaseException) -> str:
    """What an error says, in one line; its type where the message alone would say too little.

    >>> in_a_line(ValueError("gamma: expected a number,\\n  got 'a'")), in_a_line(KeyError("x"))
    ("gamma: expected a number, got 'a'", "KeyError: 'x'; --traceback shows where")
    """
    text = re.sub(r"^\[Errno \d+\] ", "", plain(str(error)))
    if isinstance(error, _SAID) and text:
        return text
    return f"{type(error).__name__}: {text}; --traceback shows where"


def plain(text: str) -> str:
    """A text in one line, in which nothing moves a terminal's cursor or changes its colours.

    >>> plain("a\\n  b\\x1b[31m")
    'a b\\\\x1b[31m'
    """
    line = " ".join(text.split())
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in line)


def _run(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in _HELP:
        say(_overview())
        return DONE if words else USAGE
    if name in ("--version", "-V"):
        say(f"rlox {__version__}")
        return DONE
    if name not in COMMANDS:
        what = "command" if not name.startswith("-") else "command before any flag"
        raise UsageError(f"expected a {what}, got {name!r}; {hint(name, COMMANDS)}")
    code: int = resolve_name(f"rlox.cli.{name}:run")(words[1:])
    return code


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {about}" for name, about in COMMANDS.items()]
    return "\n".join(
        (
            "usage: rlox COMMAND [OPTIONS]",
            "",
            *lines,
            "",
            "rlox COMMAND --help tells what a command takes. All commands know --traceback, which",
            "shows where an error came from; --version tells the version.",
            "Exit codes: 0 done, 1 error, 2 wrong command line, 130 Ctrl-C.",
        )
    )
