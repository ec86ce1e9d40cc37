"""Worker processes that run tasks of experiments and actors."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from rlox._concurrency import InterruptScope

# Seconds that processes have to stop before they are killed.
_GRACE = 10.0
# Seconds between two checks for signals.
_POLL = 0.5
_THREAD_VARIABLES = ("RLOX_NUM_THREADS", "OMP_NUM_THREADS")
_starting = threading.Lock()  # starting a process changes environment variables
Report = Callable[[Any], Any]


class Task(Protocol):
    """Picklable work for a worker process."""

    def run(self, report: Report) -> object:
        """Return the result. `report(message)` sends a message and returns the reply."""


class Process:
    """Worker process that runs `worker_main`, with a connection to this process.

    Args:
        threads: Number of threads of the process, unless RLOX_NUM_THREADS or OMP_NUM_THREADS is set.
    """

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        stopped, self._stop = context.Pipe(duplex=False)
        self._process = context.Process(target=worker_main, args=(theirs, stopped), daemon=True)
        with _starting, _inherited_settings(threads):
            self._process.start()
        theirs.close()
        stopped.close()

    def send(self, message: object) -> None:
        """Send a task, or the reply to a report. If the process has died, `receive` reports that."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> tuple[bool, Any]:
        """Wait for a message; return (True, result) of the task, or (False, message) of a report.

        The result is an exception if the task raised it, or a RuntimeError if the process died.
        """
        try:
            is_result, value = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            self.connection.close()
            return True, RuntimeError(
                f"worker process died with exit code {self._process.exitcode}; check its output "
                "and the available memory"
            )
        return is_result, value

    def stop(self) -> None:
        """Stop the task as Ctrl-C stops a run. Signal handlers may call this method."""
        self._stop.close()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of the process, then kill it."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()


class Pool:
    """Pool of processes that each run one task at a time; leaving the context ends them.

    Args:
        count: Largest number of processes. A process starts when a task needs it.
        threads: As for `Process`.
    """

    def __init__(self, count: int, threads: int) -> None:
        self._count = count
        self._threads = threads
        self._processes: list[Process] = []
        self._labels: dict[Process, object] = {}  # labels of the running tasks
        self._stopped = False

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.end(0 if kind is KeyboardInterrupt else _GRACE)

    def end(self, grace: float) -> None:
        """Stop all processes, and kill those that still run after `grace` seconds."""
        self._stopped = True
        for process in self._processes:
            process.stop()
            process.connection.close()
        until = time.monotonic() + grace
        for process in self._processes:
            process.join(max(until - time.monotonic(), 0))

    def stop(self) -> None:
        """Stop all tasks as Ctrl-C stops a run. Signal handlers may call this method."""
        self._stopped = True
        for process in [*self._processes]:
            process.stop()

    @property
    def free(self) -> int:
        """Number of tasks that can be submitted now."""
        return self._count - len(self._labels)

    def submit(self, task: Task, label: object = None) -> Process:
        """Send a task to an idle process, and return the process.

        The caller receives the task's messages from `wait`, with the label, or from the process.
        """
        idle = [p for p in self._processes if p not in self._labels and not p.connection.closed]
        process = idle[0] if idle else Process(self._threads)
        if not idle:
            self._processes.append(process)
        if self._stopped:
            process.stop()
        process.send(task)
        self._labels[process] = label
        return process

    def wait(self) -> Iterator[tuple[Any, bool, Any, Process]]:
        """Wait up to 0.5 s; yield (label, is_result, result or report, process) for each message."""
        running: dict[Any, Process] = {process.connection: process for process in self._labels}
        # Without the timeout, a signal just before the wait is handled only after the wait.
        for connection in wait(list(running), _POLL):
            process = running[connection]
            label = self._labels[process]
            is_result, value = process.receive()
            if is_result:
                del self._labels[process]
            yield label, is_result, value, process


def worker_main(connection: Connection, stopped: Connection) -> None:
    """Run the tasks that a connection receives, until the connection closes.

    Tasks stop as on Ctrl-C when `stopped` closes, which also happens if the parent dies. The
    worker ignores SIGINT, because the parent handles Ctrl-C.
    """
    # Daemonic processes may not start processes, but tasks do; those end with their connections.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # has no public name
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    scope = InterruptScope()

    def watch() -> None:
        with suppress(EOFError, OSError):
            stopped.recv()
        scope.stop()

    def report(message: object) -> Any:
        connection.send((False, message))
        return connection.recv()

    threading.Thread(target=watch, daemon=True).start()
    with suppress(EOFError, OSError), scope.active():
        while True:
            task = connection.recv()
            try:
                result = task.run(report)
            except BaseException as error:  # the worker continues with later tasks
                result = picklable(error)
            connection.send((True, result))


def picklable(error: BaseException) -> BaseException:
    """Return the error, or a RuntimeError with its text if the error cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # trusted: pickled in the same expression
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _inherited_settings(threads: int) -> Iterator[None]:
    """Set thread counts and block SIGINT for processes that start within the context."""
    added = {name: str(threads) for name in _THREAD_VARIABLES if name not in os.environ}
    os.environ.update(added)
    blocks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blocks else set()
    try:
        yield
    finally:
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name in added:
            del os.environ[name]
