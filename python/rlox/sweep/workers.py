"""The processes of a sweep. They share the CPUs rather than fight for them."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from rlox.sweep.worker import Job, Outcome, Score, serve

_THREADS = ("RLOX_NUM_THREADS", "OMP_NUM_THREADS")


class Workers:
    """Some processes, each of which trains one trial at a time. As a context manager they end.

    Args:
        count: How many.
        threads: That each may use, where no environment variable says so.
    """

    def __init__(self, count: int, threads: int) -> None:
        self._count, self._threads = count, threads
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
        """How many could begin a trial."""
        return self._count - len(self._busy)

    @property
    def busy(self) -> list[Any]:
        """What is going on: the labels of jobs that have begun and not ended."""
        return list(self._busy.values())

    def begin(self, job: Job, label: Any) -> None:
        """Gives a job to a free process; `label` comes back with what is told of it."""
        idle = [one for one in self._processes if one not in self._busy]
        connection = idle[0] if idle else self._start()
        connection.send(job)
        self._busy[connection] = label

    def _start(self) -> Connection:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        variables = dict.fromkeys(_THREADS, str(self._threads))
        with _variables(variables), _born_deaf():
            process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def told(self) -> Iterator[tuple[Any, Score | Outcome, Connection]]:
        """Waits, and gives what processes told, and of which job; scores need an answer.

        A process that died is told as a job that failed.
        """
        for connection in wait(list(self._busy)):
            assert isinstance(connection, Connection)
            label = self._busy[connection]
            try:
                said: Score | Outcome = connection.recv()
            except (EOFError, OSError):
                process = self._processes.pop(connection)
                process.join(5)
                said = Outcome(error=f"process: expected to end, died with {process.exitcode}")
                connection.close()
            if isinstance(said, Outcome):
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
