"""Training loop: iterations, callbacks, loggers, and the end of a run."""

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from numbers import Integral, Real
from typing import Any

from rlox._concurrency import stop_on_interrupt
from rlox._errors import ArgumentTypeError, ClosedError, NonFiniteError, warn, warn_at_most
from rlox._training.callback_states import get_callback_states, load_callback_states
from rlox._training.diagnosis import write_diagnosis_on_error
from rlox._training.results import TrainResult, train_result
from rlox._training.run import CTRL_C, STOP, Callback, Run
from rlox._training.run_folder import RunFolder
from rlox.logger.base import ELAPSED, ITERATIONS, Logger, Loggers, RunInfo
from rlox.logger.files import MetricsFile

# Errors of a full disk, or of a quota of the process.
_DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def train(
    run: Run, total: int | None, *, callbacks: Sequence[Callback] = (), loggers: Sequence[Logger] = ()
) -> TrainResult:
    """Train the run's learner, and save the run; see `rlox.trainers.Trainer.train`.

    Loggers start first, then callbacks in order. After each iteration, the callbacks handle the row
    of metrics, the loggers log the row, and the callbacks get the complete row. At the end, the run
    folder gets a checkpoint and a summary, callbacks end in reverse order, and loggers end last.

    Args:
        run: Run to start or continue.
        total: Budget to use in addition; None: up to the end of an interrupted or loaded run.
        callbacks: Callbacks, in the order of the calls.
        loggers: Loggers in addition to the run folder's `metrics.csv`.

    Raises:
        ClosedError: Another call trains the run.
        Exception: Errors of callbacks and environments, after the run has been saved; errors of the learner.
    """
    if run.is_training:
        raise ClosedError("train", "one call at a time", "a call during another one", "wait until train() returns")
    earlier_budget = run.budget_start, run.budget_end
    run.plan(total)
    run.warn_about_restore()
    run.learner.stop_requested = False
    run.stop_reason = None
    loop = None
    with stop_on_interrupt(lambda: run.stop(CTRL_C)):
        run.is_training = True
        try:
            run.make_folder()
            with nullcontext() if run.folder is None else run.folder.lock():
                loop = _Loop(run, callbacks, loggers)
                return loop.run()
        finally:
            run.is_training = False
            if loop is None or not loop.has_started:  # an interrupted run can still be continued
                run.budget_start, run.budget_end = earlier_budget


class _Loop:
    """Iterations of one call of `train`."""

    def __init__(self, run: Run, callbacks: Sequence[Callback], loggers: Sequence[Logger]) -> None:
        self._run = run
        self._callbacks = list(callbacks)
        run_loggers: list[Logger] = [] if run.folder is None else [_RunFolderLogger(run.folder.metrics)]
        self._loggers = Loggers([*run_loggers, *loggers])
        self.has_started = False  # whether the callbacks have started
        self._first = run.budget_used
        self._start_time = time.perf_counter()
        self._earlier_seconds = 0.0 if run.folder is None else run.folder.metrics.elapsed

    def run(self) -> TrainResult:
        """Run the iterations, and return the result."""
        run = self._run
        result: TrainResult | None = None
        with ExitStack() as stack:
            stack.callback(lambda: self._loggers.finish(result))
            self._loggers.start(run.info())
            for callback in self._callbacks:
                callback.on_train_start(run)
                stack.callback(callback.on_train_end, run)
            # States without a callback remain in later checkpoints, for a later call of `train`.
            run.callback_states = load_callback_states(self._callbacks, run.callback_states)
            run.callbacks = self._callbacks
            get_callback_states(self._callbacks)  # rejects invalid states before training
            self.has_started = True
            with write_diagnosis_on_error(run):
                self._iterate()
            result = self._end()
        return result

    def _iterate(self) -> None:
        run = self._run
        learner = run.learner
        planned = run.budget_end - run.budget_start
        learner.progress_per_step = 1 / planned
        while run.budget_used < run.budget_end and not learner.stop_requested:
            try:
                metrics = learner.iterate((run.budget_used - run.budget_start) / planned)
            except Exception as error:
                # After a NonFiniteError, the diagnosis has the state, and checkpoints stay valid.
                if run.budget_used > self._first and not isinstance(error, NonFiniteError):
                    self._save_after(error)
                raise
            if not metrics:
                return
            run.iterations += 1
            run.lacks_replay, run.new_episodes_reason = False, None
            elapsed = time.perf_counter() - self._start_time
            metrics |= {ITERATIONS: run.iterations, ELAPSED: self._earlier_seconds + elapsed}
            metrics["time/fps"] = (run.budget_used - self._first) / elapsed
            try:
                try:
                    self._call_callbacks(metrics)
                finally:  # the iteration is complete even if a callback fails
                    self._loggers.log(metrics, run.budget_used)
                for callback in self._callbacks:
                    callback.on_row_logged(run, metrics)
            except Exception as error:
                self._save_after(error)
                raise

    def _call_callbacks(self, metrics: dict[str, float]) -> None:
        """Call the callbacks, which may add metrics to the row."""
        for callback in self._callbacks:
            try:
                callback.on_iteration(self._run, metrics)
            finally:  # the row is logged even if the callback fails
                wrong = _to_plain_numbers(metrics)
            for name, value in wrong.items():
                raise ArgumentTypeError(
                    "metrics",
                    "names and numbers",
                    f"{name!r}: {value!r} from {type(callback).__name__}",
                    "add only numbers",
                )

    def _save_after(self, error: Exception) -> None:
        """Save the run before `error` is raised; failures to save cause a warning."""
        try:
            self._end(error)
        except Exception as failure:
            warn_at_most(
                f"the run could not be saved after {type(error).__name__} "
                f"({type(failure).__name__}: {failure}); save() of this trainer can be tried again"
            )

    def _end(self, error: Exception | None = None) -> TrainResult:
        """Save the run, and return the result."""
        run = self._run
        seconds = time.perf_counter() - self._start_time
        result = train_result(run, self._first, seconds, error)
        if error is None and result["stopped_by"] not in (None, CTRL_C, STOP):
            run.budget_end = min(run.budget_end, run.budget_used)  # the run is complete
        if run.folder is not None:
            _write_results(run, run.folder, result)
        return result


class _RunFolderLogger:
    """Logger for the run folder's `metrics.csv`, which retries after errors."""

    def __init__(self, file: MetricsFile) -> None:
        self._file = file
        self._warned = False

    def start(self, info: RunInfo) -> None:
        """Do nothing; the first row creates the file."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._try(lambda: self._file.log(metrics))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._try(self._file.flush)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._warned:
                warn_at_most(
                    f"{self._file.path}: rows cannot be written ({error}); training "
                    "continues, and the rows are written once this is possible"
                )
            self._warned = True


def _to_plain_numbers(metrics: dict[Any, Any]) -> dict[Any, Any]:
    """Replace NumPy numbers by Python ones; remove and return the items that are not numbers."""
    wrong = {}
    for name, value in [*metrics.items()]:
        if type(name) is str and type(value) in (float, int):
            continue
        if isinstance(name, str) and isinstance(value, Real):
            metrics[name] = int(value) if isinstance(value, Integral) else float(value)
        else:
            wrong[name] = metrics.pop(name)
    return wrong


def _write_results(run: Run, folder: RunFolder, result: TrainResult) -> None:
    """Write the checkpoint and the summary; warn if the checkpoint lacks the replay buffer."""
    result["checkpoint_warning"] = "all: no checkpoint could be written"
    try:
        result["checkpoint_warning"] = _save_with_fallback(run, folder.path / "checkpoint")
    finally:
        folder.write("summary.json", result)
    if result["checkpoint_warning"] is not None:
        warn(
            f"{result['checkpoint_warning']}. The run's checkpoint lacks the replay buffer; save() "
            "of this trainer can write a complete checkpoint elsewhere"
        )


def _save_with_fallback(run: Run, path: os.PathLike[str]) -> str | None:
    """Write a checkpoint, if necessary without the replay buffer; then return the reason."""
    try:
        run.save(path)
        return None
    except (MemoryError, OSError) as error:
        is_full = isinstance(error, MemoryError) or error.errno in _DISK_FULL
        if not is_full or not hasattr(run.learner, "replay"):
            raise
        reason = f"replay: {error}"
    # Outside of the handler, the error no longer holds the copy that did not fit.
    run.save(path, replay=False)
    return reason
