"""Worker processes that run the tasks that they are sent, for experiments and actors."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from rlox._concurrency import InterruptScope

# Seconds that processes have to end in order.
_GRACE = 10.0
# Seconds between two checks for signals.
_POLL = 0.5
_THREAD_VARIABLES = ("RLOX_NUM_THREADS", "OMP_NUM_THREADS")
_starting = threading.Lock()  # starting a process changes environment variables
Report = Callable[[Any], Any]


class Task(Protocol):
    """Picklable work for a worker process."""

    def run(self, report: Report) -> Any:
        """Return the result. `report(message)` sends a message, and returns the answer to it."""


class Process:
    """Worker process with a connection to this process; it runs `worker_main`.

    Args:
        threads: Number of threads that the process may use, unless environment variables set it.
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
        """Send a task, or the answer to a report; `receive` tells if the process has died."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> tuple[bool, Any]:
        """Wait for a message: whether it is the result of the task, and the result or the report.

        An exception as the result is what the task raised, or a RuntimeError if the process died.
        """
        try:
            is_result, value = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            self.connection.close()
            return True, RuntimeError(
                f"worker process died with exit code {self._process.exitcode}; look at its "
                "output, and whether memory ran out"
            )
        return is_result, value

    def stop(self) -> None:
        """Stop the task in order, as Ctrl-C stops a run. Signal handlers may call this."""
        self._stop.close()


def end_all(processes: Collection[Process], grace: float = _GRACE) -> None:
    """End processes in order, and kill those that have not ended after `grace` seconds."""
    for process in processes:
        process.stop()
        process.connection.close()
    until = time.monotonic() + grace
    for process in processes:
        process._process.join(max(until - time.monotonic(), 0))
        process._process.kill()
        process._process.join()


class Pool:
    """Processes that each run one task at a time. Leaving the context ends them.

    Args:
        count: Number of processes, which start when they are needed.
        threads: As for `Process`.
    """

    def __init__(self, count: int, threads: int) -> None:
        self._count, self._threads = count, threads
        self._processes: list[Process] = []
        self._labels: dict[Process, Any] = {}  # of the tasks that run
        self._stopped = False

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._stopped = True
        end_all(self._processes, 0 if kind is KeyboardInterrupt else _GRACE)

    def stop(self) -> None:
        """Stop all tasks in order, as Ctrl-C stops a run. Signal handlers may call this."""
        self._stopped = True
        for process in [*self._processes]:
            process.stop()

    @property
    def free(self) -> int:
        """Number of processes that run no task."""
        return self._count - len(self._labels)

    def submit(self, task: Task, label: Any) -> None:
        """Send a task to a free process; `wait` returns the label with its messages."""
        idle = [x for x in self._processes if x not in self._labels and not x.connection.closed]
        process = idle[0] if idle else Process(self._threads)
        if not idle:
            self._processes.append(process)
        if self._stopped:
            process.stop()
        process.send(task)
        self._labels[process] = label

    def wait(self) -> Iterator[tuple[Any, bool, Any, Process]]:
        """Wait a while for messages: label, what `Process.receive` returns, and the process."""
        running: dict[Any, Process] = {process.connection: process for process in self._labels}
        # A signal just before a wait without a limit would be handled only after the wait.
        for connection in wait(list(running), _POLL):
            process = running[connection]
            label = self._labels[process]
            is_result, value = process.receive()
            if is_result:
                del self._labels[process]
            yield label, is_result, value, process


def worker_main(connection: Connection, stopped: Connection) -> None:
    """Run the tasks that come through a connection until it closes.

    Tasks stop in order, as on Ctrl-C, when `stopped` closes, also because the parent has died.
    Ctrl-C itself is the parent's to handle.
    """
    # The worker may start processes itself, which end with their connections.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # has no public name
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    scope = InterruptScope()

    def watch() -> None:
        with suppress(EOFError, OSError):
            stopped.recv()
        scope.stop()

    def report(message: Any) -> Any:
        connection.send((False, message))
        return connection.recv()

    threading.Thread(target=watch, daemon=True).start()
    with suppress(EOFError, OSError), scope.active():
        while True:
            task = connection.recv()
            try:
                result = task.run(report)
            except BaseException as error:  # later tasks run all the same
                result = picklable(error)
            connection.send((True, result))


def picklable(error: BaseException) -> BaseException:
    """Return an error that another process can read."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # what was just written
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _inherited_settings(threads: int) -> Iterator[None]:
    """Set numbers of threads, and block interrupts, for processes that start within."""
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
