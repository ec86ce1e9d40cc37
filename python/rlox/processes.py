"""Processes that train side by side. They share the CPUs rather than fight for them."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from rlox.interrupt import Group

# How long processes that are to end are waited for, in seconds.
_PATIENCE = 10.0
_THREADS = ("RLOX_NUM_THREADS", "OMP_NUM_THREADS")
# Threads that start processes take turns: all share the environment variables.
_starting = threading.Lock()


class Process:
    """A process that serves the one that started it.

    Args:
        serve: What it does, within `serving`: it is called with a connection, whose other end is
            `connection`, and with what `stop` ends.
        threads: That it may use, where no environment variable says so.
    """

    def __init__(self, serve: Callable[..., None], threads: int) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        ended, self._stop = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(theirs, ended), daemon=True)
        variables = dict.fromkeys(_THREADS, str(threads))
        with _starting, _variables(variables), _born_deaf():
            self._process.start()
        theirs.close()
        ended.close()

    def stop(self) -> None:
        """Ends what it does, in order: as Ctrl-C ends a run. Signal handlers may call it."""
        self._stop.close()

    def died(self) -> int | None:
        """Lets go of a process that has died, or soon will have; its exit code."""
        self._process.join(5)
        self.connection.close()
        return self._process.exitcode

    def end(self, until: float) -> None:
        """Waits for its end until `time.monotonic()` says so, and no longer."""
        self._process.join(max(until - time.monotonic(), 0))
        self._process.terminate()

    def kill(self) -> None:
        """Where it has not ended by itself."""
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def end_all(processes: Collection[Process], patience: float = _PATIENCE) -> None:
    """Ends processes in order, or after `patience` seconds at all costs."""
    for process in processes:
        process.stop()
    for process in processes:
        process.connection.close()  # which ends those that wait for something to do
    until = time.monotonic() + patience
    for process in processes:
        process.end(until)
    for process in processes:
        process.kill()


class Workers:
    """Some processes, each of which trains one run at a time. As a context manager they end.

    Args:
        count: How many.
        threads: That each may use, where no environment variable says so.
        serve: What a process does, see `Process`: it takes jobs from the connection, and tells
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
        self._processes: dict[Connection, Process] = {}
        self._stopped = False
        self._busy: dict[Connection, Any] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._stopped = True
        end_all(self._processes.values(), 0 if kind is KeyboardInterrupt else _PATIENCE)

    def stop(self) -> None:
        """Ends what they train, in order: as Ctrl-C ends a run. Signal handlers may call it."""
        self._stopped = True
        for process in list(self._processes.values()):
            process.stop()

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
        process = Process(self._serve, self._threads)
        self._processes[process.connection] = process
        if self._stopped:
            process.stop()
        return process.connection

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
                said = self._died(self._processes.pop(connection).died())
            if self._ends(said):
                del self._busy[connection]
            yield label, said, connection


def sendable(error: BaseException) -> BaseException:
    """An error that another process can read."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # what was just written
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def serving(ended: Connection, patience: float | None = None) -> Iterator[None]:
    """What a process of `Workers` trains within ends in order, as after Ctrl-C, when it shall.

    That is when `Workers.stop` was called, or the process that has the workers is gone. Ctrl-C
    itself is for that one.

    Args:
        ended: The second argument of `serve`.
        patience: After so many seconds it ends at all costs; None: never, as it may be saving.
    """
    # It may have processes of its own, which end with their connections.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # has no public name
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    group = Group()

    def watch() -> None:
        with suppress(EOFError, OSError):
            ended.recv()
        group.stop()
        if patience is not None:
            time.sleep(patience)
            os._exit(1)

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
