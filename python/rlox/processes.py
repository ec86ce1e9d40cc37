"""Processes that train side by side. They share the CPUs rather than fight for them."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from rlox.interrupt import Group

# How long processes that are to end are waited for, in seconds.
_PATIENCE = 10.0
_THREADS = ("RLOX_NUM_THREADS", "OMP_NUM_THREADS")


class Workers:
    """Some processes, each of which trains one run at a time. As a context manager they end.

    Args:
        count: How many.
        threads: That each may use, where no environment variable says so.
        serve: What a process does, within `serving`: it takes jobs from a connection, and tells
            what comes of them.
        ends: Whether what was told ends a job.
        died: From the exit code of a process that died to what is told of its job.
    """

    def __init__(
        self,
        count: int,
        threads: int,
        serve: Callable[..., None],
        *,
        ends: Callable[[Any], bool],
        died: Callable[[int | None], Any],
    ) -> None:
        self._count, self._threads = count, threads
        self._serve, self._ends, self._died = serve, ends, died
        self._processes: dict[Connection, Any] = {}
        self._stops: list[Connection] = []
        self._stopped = False
        self._busy: dict[Connection, Any] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.stop()
        for connection in self._processes:
            connection.close()  # which ends those that wait for jobs
        until = time.monotonic() + (0 if kind is KeyboardInterrupt else _PATIENCE)
        for process in self._processes.values():
            process.join(max(until - time.monotonic(), 0))
            process.terminate()
        for process in self._processes.values():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def stop(self) -> None:
        """Ends what they train, in order: as Ctrl-C ends a run. Signal handlers may call it."""
        self._stopped = True
        for stop in self._stops:
            stop.close()

    @property
    def free(self) -> int:
        """How many could begin a run."""
        return self._count - len(self._busy)

    @property
    def busy(self) -> list[Any]:
        """What is going on: the labels of jobs that have begun and not ended."""
        return list(self._busy.values())

    def begin(self, job: Any, label: Any) -> None:
        """Gives a job to a free process; `label` comes back with what is told of it."""
        idle = [one for one in self._processes if one not in self._busy]
        connection = idle[0] if idle else self._start()
        connection.send(job)
        self._busy[connection] = label

    def _start(self) -> Connection:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        ended, stop = context.Pipe(duplex=False)
        process = context.Process(target=self._serve, args=(theirs, ended), daemon=True)
        variables = dict.fromkeys(_THREADS, str(self._threads))
        with _variables(variables), _born_deaf():
            process.start()
        theirs.close()
        ended.close()
        self._processes[ours] = process
        self._stops.append(stop)
        if self._stopped:
            stop.close()
        return ours

    def told(self) -> Iterator[tuple[Any, Any, Connection]]:
        """Waits, and gives what processes told, of which job, and where an answer goes.

        A process that died is told as a job that failed.
        """
        for connection in wait(list(self._busy)):
            assert isinstance(connection, Connection)
            label = self._busy[connection]
            try:
                said = connection.recv()
            except (EOFError, OSError):
                process = self._processes.pop(connection)
                process.join(5)
                said = self._died(process.exitcode)
                connection.close()
            if self._ends(said):
                del self._busy[connection]
            yield label, said, connection


@contextmanager
def serving(ended: Connection) -> Iterator[None]:
    """What a process of `Workers` trains within ends in order, as after Ctrl-C, when it shall.

    That is when `Workers.stop` was called, or the process that has the workers is gone. Ctrl-C
    itself is for that one.

    Args:
        ended: The second argument of `serve`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    group = Group()

    def watch() -> None:
        with suppress(EOFError, OSError):
            ended.recv()
        group.stop()

    threading.Thread(target=watch, daemon=True).start()
    with suppress(EOFError, ConnectionError), group.joined():  # who asks is gone
        yield


@contextmanager
def _born_deaf() -> Iterator[None]:
    """Processes that start within hear no Ctrl-C before `serving` ignores it; this one does later.

    On Windows, which has no masks of signals, a process that is only starting may end of it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Environment variables that are not set, for processes that start within."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
