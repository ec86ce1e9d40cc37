"""Locks for objects that several threads use, and Ctrl-C that stops runs in order."""

import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rlox._errors import ClosedError

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("rlox")
_current = threading.local()


class CallGuard:
    """Re-entrant lock of an environment, for the process that made the environment.

    Raises:
        rlox.ClosedError: On entering, in a child process that was forked after the lock was made.

    >>> guard = CallGuard()
    >>> with guard, guard:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.in_call = False  # whether the thread that holds the lock runs the environment's code

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the process that made the lock."""
        return os.getpid() != self._pid

    def __enter__(self) -> None:
        if self.inherited:  # threads that hold the lock do not exist in a forked child
            raise ClosedError(
                "env",
                "one made in this process",
                "one made before this process was forked",
                "make it here, or start processes with multiprocessing's 'spawn' method",
            )
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["CallGuard"], tuple[()]]:
        """Give copies of the environment a lock of their own."""
        return CallGuard, ()


class _Guarded(Protocol):
    _guard: CallGuard


S = TypeVar("S", bound=_Guarded)


def synchronized(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method wait until no other thread runs a synchronized method of the same object."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._guard:
            return method(self, *args, **kwargs)

    return locked


class InterruptScope:
    """Runs of several threads that stop together.

    >>> scope, stopped = InterruptScope(), []
    >>> with scope.active(), stop_on_interrupt(lambda: stopped.append(True)):
    ...     scope.stop()
    >>> stopped, scope.stop_requested
    ([True], True)
    """

    def __init__(self) -> None:
        # Re-entrant: a signal handler may stop the scope in the middle of a call.
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self.stop_requested = False

    def stop(self) -> None:
        """Stop all runs of the scope, and those that begin later."""
        with self._lock:
            self.stop_requested = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add the runs that this thread begins within the context to the scope."""
        _current.scope = self
        try:
            yield
        finally:
            _current.scope = None

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` when the scope stops within the context."""
        with self._lock:
            self._callbacks.append(callback)
            if self.stop_requested:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first Ctrl-C within the context; the second one acts as before.

    A run of an `InterruptScope` stops with the scope instead. Nothing changes outside of the main
    thread, where Python runs no signal handlers, and where interrupts are ignored.
    """
    scope = getattr(_current, "scope", None)
    if scope is not None:
        with scope.calling(stop):
            yield
        return
    previous = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or previous in (None, signal.SIG_IGN):
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        _log.warning("stopping after the current step; Ctrl-C again stops at once")
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
