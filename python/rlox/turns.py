"""Who uses an object now: one thread after the other, and no forked child without a lock."""

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rlox._errors import ClosedError

P = ParamSpec("P")
R = TypeVar("R")


class Turns:
    """A lock for one thread at a time, which may take it again. A forked child has it to itself.

    >>> turns = Turns()
    >>> with turns.lock, turns.lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.lock, self._process = threading.RLock(), os.getpid()
        self.busy = False  # whether the thread that has the lock is in `alone`
        _ALL.add(self)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For calls that must not begin again in their own middle. The lock is held meanwhile.

        Raises:
            ClosedError: One is under way.
        """
        if self.busy:
            raise ClosedError(
                "env",
                "one free to use",
                "one in the middle of this thread's own call",
                "let the call end first",
            )
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return os.getpid() != self._process

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        """A copy is of something else, which nobody uses yet."""
        return Turns, ()


_ALL: weakref.WeakSet[Turns] = weakref.WeakSet()


def _renew() -> None:
    # The threads that had the locks are not in a forked child.
    for turns in _ALL:
        turns.lock, turns.busy = threading.RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class _TakesTurns(Protocol):
    _turns: Turns


S = TypeVar("S", bound=_TakesTurns)


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that waits until no other thread is in one of the same object."""

    @functools.wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._turns.lock:
            return method(self, *args, **kwargs)

    return waiting
