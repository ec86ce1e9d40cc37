"""Hints for misspelled names of settings, metrics and environments."""

import difflib
import re
from collections.abc import Iterable, Mapping

from rlox._errors import ArgumentTypeError


def hint(name: str, known: Iterable[str], default: str | None = None) -> str:
    """Return the known names that are close to a misspelled one, else `default` or all of them.

    Case and version suffixes such as "-v1" do not count.

    >>> hint("cartpole", ["Acrobot-v1", "CartPole-v1"]), hint("x", ["train", "eval"])
    ("did you mean 'CartPole-v1'?", 'there are train, eval')
    """
    names = list(known)
    by_stem = {_stem(one): one for one in sorted(names)}
    if close := difflib.get_close_matches(_stem(name), by_stem):
        return f"did you mean {' or '.join(repr(by_stem[stem]) for stem in close)}?"
    return default or f"there are {', '.join(names)}"


def _stem(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.lower())


def refuse_unknown(
    names: Iterable[str], known: Iterable[str], owner: str, hints: Mapping[str, str] | None = None
) -> None:
    """Check that all names of keyword arguments are known.

    Args:
        names: The keywords passed.
        known: The keywords that exist.
        owner: The class or function that takes them.
        hints: Fixes for names that are often passed by mistake.

    Raises:
        TypeError: A name is unknown; close ones are suggested.

    >>> refuse_unknown(["gama"], ["gamma", "n_steps"], owner="PPOTrainer")
    Traceback (most recent call last):
    rlox.ArgumentTypeError: gama: expected a setting of PPOTrainer, got an unknown name; did you \
mean 'gamma'?
    """
    known = list(known)
    for name in map(str, names):
        if name not in known:
            fix = (hints or {}).get(name) or hint(name, known)
            raise ArgumentTypeError(name, f"a setting of {owner}", "an unknown name", fix)
