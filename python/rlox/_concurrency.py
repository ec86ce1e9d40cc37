"""Locks for objects that several threads share, and graceful handling of Ctrl-C."""

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
    """Re-entrant lock of an environment, usable only in the process that created the lock.

    Raises:
        ClosedError: A forked child process enters a lock that its parent created.

    >>> guard = CallGuard()
    >>> with guard, guard:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.in_call = False  # True while the thread that holds the lock is in the environment

    @property
    def inherited(self) -> bool:
        """True if this process was forked from the process that created the lock."""
        return os.getpid() != self._pid

    def __enter__(self) -> None:
        if self.inherited:  # threads that hold the lock do not exist in a forked child
            raise ClosedError(
                "env",
                "an environment created in this process",
                "an environment created before this process was forked",
                "create it here, or start processes with the 'spawn' method of multiprocessing",
            )
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["CallGuard"], tuple[()]]:
        """Give each copy of the environment a new lock."""
        return CallGuard, ()


class _Guarded(Protocol):
    _guard: CallGuard


S = TypeVar("S", bound=_Guarded)


def synchronized(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method to hold the object's lock `_guard`, so that one thread at a time runs it."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._guard:
            return method(self, *args, **kwargs)

    return locked


class InterruptScope:
    """Group of runs in several threads that stop together.

    >>> scope = InterruptScope()
    >>> calls = []
    >>> with scope.active(), stop_on_interrupt(lambda: calls.append("stop")):
    ...     scope.stop()
    >>> calls, scope.stop_requested
    (['stop'], True)
    """

    def __init__(self) -> None:
        # Re-entrant because a signal handler may call `stop` while this thread holds the lock.
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self.stop_requested = False

    def stop(self) -> None:
        """Stop all runs of the scope, including runs that start later."""
        with self._lock:
            self.stop_requested = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add the runs that this thread starts within the context to the scope."""
        _current.scope = self
        try:
            yield
        finally:
            _current.scope = None

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` if the scope stops within the context or has stopped before."""
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
    """Call `stop` on the first Ctrl-C within the context; later ones call the previous handler.

    In a thread with an active `InterruptScope`, `stop` is called when the scope stops, and the signal handler does not
    change. The handler does not change outside the main thread either, or if SIGINT is ignored.
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
        _log.warning("stopping after the current step; press Ctrl-C again to stop immediately")
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
