"""Ctrl-C that ends a run in order."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_log = logging.getLogger("rlox")


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Within it, the first Ctrl-C calls `stop`; the second one does what it did before.

    Outside of the main thread, where Python takes no signals, it changes nothing; nor does it where
    interrupts are ignored.
    """
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
