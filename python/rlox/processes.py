"""Processes that train side by side. They share the CPUs rather than fight for them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

_THREADS = ("RLOX_NUM_THREADS", "OMP_NUM_THREADS")


class Workers:
    """Some processes, each of which trains one run at a time. As a context manager they end.

    Args:
        count: How many.
        threads: That each may use, where no environment variable says so.
        serve: What a process does: it takes jobs from a connection, and tells what comes of them.
        about: Passed to `serve` besides, as it is made for each by this function.
        ends: Whether what was told ends a job.
        died: From the exit code of a process that died to what is told of its job.
    """

    def __init__(
        self,
        count: int,
        threads: int,
        serve: Callable[..., None],
        *,
        about: Callable[[], tuple[Any, ...]] = tuple,
        ends: Callable[[Any], bool],
        died: Callable[[int | None], Any],
    ) -> None:
        self._count, self._threads = count, threads
        self._serve, self._about, self._ends, self._died = serve, about, ends, died
        self._processes: dict[Connection, Any] = {}
        self._busy: dict[Connection, Any] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        for connection, process in self._processes.items():
            if kind is not None or connection in self._busy:
                process.terminate()
            connection.close()  # which ends it
        for process in self._processes.values():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

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
        process = context.Process(target=self._serve, args=(theirs, *self._about()), daemon=True)
        variables = dict.fromkeys(_THREADS, str(self._threads))
        with _variables(variables), _born_deaf():
            process.start()
        theirs.close()
        self._processes[ours] = process
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
def _born_deaf() -> Iterator[None]:
    """Processes that start within ignore Ctrl-C from their first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


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
