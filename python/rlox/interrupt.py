"""Ctrl-C that ends a run in order."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_log = logging.getLogger("rlox")
_joined = threading.local()


class Group:
    """Runs of several threads, which end together.

    >>> group, stopped = Group(), []
    >>> with group.joined(), stop_on_interrupt(lambda: stopped.append(True)):
    ...     group.stop()
    >>> stopped, group.stopping
    ([True], True)
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may stop the group in the middle of a call.
        self._lock = threading.RLock()
        self._stops: list[Callable[[], None]] = []
        self.stopping = False  # whether they are to end

    def stop(self) -> None:
        """Ends the runs that go on, and those that begin from now on."""
        with self._lock:
            self.stopping = True
            for stop in self._stops:
                stop()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Runs that this thread begins within belong to the group."""
        _joined.group = self
        try:
            yield
        finally:
            _joined.group = None

    @contextmanager
    def going_on(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within it, the end of the group calls `stop`."""
        with self._lock:
            self._stops.append(stop)
            if self.stopping:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stops.remove(stop)


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Within it, the first Ctrl-C calls `stop`; the second one does what it did before.

    Outside of the main thread, where Python takes no signals, it changes nothing; nor does it where
    interrupts are ignored. A run of a `Group` ends with that.
    """
    group = getattr(_joined, "group", None)
    if group is not None:
        with group.going_on(stop):
            yield
        return
    usual = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or usual in (None, signal.SIG_IGN):
        yield
        return

    def first(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, usual)
        _log.warning("stopping after the current step; Ctrl-C again stops at once")
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
