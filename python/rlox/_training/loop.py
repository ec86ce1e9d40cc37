"""The iterations of a run, and who hears of them."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentError, ArgumentTypeError, NonFiniteError, warn_at_most
from rlox._training.diagnosis import write_diagnosis_on_error
from rlox._training.hooks import Callback, load_callback_states
from rlox._training.metrics import ELAPSED, ITERATIONS
from rlox._training.results import CTRL_C, STOP, TrainResult, train_result
from rlox._training.resume import end_run
from rlox._validation import check_int
from rlox.logger.base import Logger, Loggers

if TYPE_CHECKING:
    from rlox._training.run_folder import RunFolder
    from rlox.trainers import Trainer


class _RunFolderLogger:
    """The run folder's own `metrics.csv`, as a logger, which goes on trying where it fails."""

    def __init__(self, run: "RunFolder") -> None:
        self._run, self._warned = run, False

    def start(self, trainer: "Trainer") -> None:
        """Nothing: the file begins with the first row."""

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        self._try(lambda: self._run.log(metrics))

    def finish(self, result: TrainResult | None) -> None:
        self._try(self._run.flush)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._warned:
                warn_at_most(
                    f"{self._run.metrics.path}: rows cannot be written ({error}); training goes "
                    "on, and they wait until they can"
                )
            self._warned = True


def plan(trainer: "Trainer", total_timesteps: int | None) -> None:
    """Decides where a trainer's run ends.

    Raises:
        TypeError, ValueError: `total_timesteps` is no integer of at least 1; it is None, and there
            is nothing to go on with.
    """
    if total_timesteps is None:
        if trainer.timesteps < trainer.target_timesteps:
            return
        raise ArgumentError(
            "total_timesteps",
            "an integer of at least 1, as there is no run to go on with",
            "None",
            "say how many steps to make",
        )
    steps = check_int("total_timesteps", total_timesteps, 1, fix="say how many steps to make")
    trainer.start_timesteps = trainer.timesteps
    trainer.target_timesteps = trainer.timesteps + steps


class Loop:
    """Drives a trainer's learner to where the run is to end.

    Loggers start, then callbacks in their order. After each iteration callbacks are called, the row
    is logged, and callbacks are told so. At the end the run folder gets its checkpoint and summary,
    then callbacks end in the opposite order, and loggers last.

    Args:
        trainer: With a run planned.
        callbacks: In the order in which they are called.
        loggers: Beside the run folder's own.
    """

    def __init__(
        self, trainer: "Trainer", callbacks: Iterable[Callback], loggers: Iterable[Logger]
    ) -> None:
        self._trainer, self._callbacks = trainer, list(callbacks)
        run_loggers = [] if trainer.run is None else [_RunFolderLogger(trainer.run)]
        self._loggers = Loggers([*run_loggers, *loggers])
        self._first, self._began = trainer.timesteps, time.perf_counter()
        self._before = 0.0 if trainer.run is None else trainer.run.metrics.elapsed

    def run(self) -> TrainResult:
        """Runs, and gives what it came to.

        Raises:
            Exception: What callbacks and environments raise, when what was learned is saved;
                what the learner does.
        """
        trainer, done = self._trainer, list[TrainResult]()
        with ExitStack() as stack:
            stack.callback(lambda: self._loggers.finish(done[0] if done else None))
            self._loggers.start(trainer)
            for callback in self._callbacks:
                callback.on_train_start(trainer)
                stack.callback(callback.on_train_end, trainer)
            # What nobody takes waits in the next checkpoints for a call that has its callback.
            remaining = load_callback_states(self._callbacks, trainer.callback_states)
            trainer.callbacks, trainer.callback_states = self._callbacks, remaining
            with write_diagnosis_on_error(trainer):
                self._iterate()
            result = self._end()
            done.append(result)
        return result

    def _iterate(self) -> None:
        trainer, learner = self._trainer, self._trainer.learner
        start, target = trainer.start_timesteps, trainer.target_timesteps
        planned = target - start
        learner.progress_per_step = 1 / planned
        while trainer.timesteps < target and not learner.stop_requested:
            try:
                metrics = learner.iterate((trainer.timesteps - start) / planned)
            except Exception as error:
                # After a NonFiniteError the diagnosis has the state; checkpoints stay.
                if trainer.timesteps > self._first and not isinstance(error, NonFiniteError):
                    self._save_after(error)
                raise
            if not metrics:
                return
            trainer.iterations += 1
            elapsed = time.perf_counter() - self._began
            metrics |= {ITERATIONS: trainer.iterations, ELAPSED: self._before + elapsed}
            metrics["time/fps"] = (trainer.timesteps - self._first) / elapsed
            try:
                try:
                    self._call(metrics)
                finally:  # what a callback fails at has happened all the same
                    self._loggers.log(metrics, trainer.timesteps)
                for callback in self._callbacks:
                    callback.on_row_logged(trainer, metrics)
            except Exception as error:
                self._save_after(error)
                raise

    def _call(self, metrics: dict[str, float]) -> None:
        """Calls the callbacks, which may add to the row."""
        for callback in self._callbacks:
            try:
                callback.on_iteration(self._trainer, metrics)
            finally:  # also the row of a callback that raises is logged
                wrong = _to_plain_numbers(metrics)
            for name, value in wrong.items():
                raise ArgumentTypeError(
                    "metrics",
                    "names and numbers",
                    f"{name!r}: {value!r} from {type(callback).__name__}",
                    "keep what is no number to yourself",
                )

    def _save_after(self, error: Exception) -> None:
        """Saves what was learned before an error, which is the one to be told."""
        try:
            self._end(error)
        except Exception as failed:
            warn_at_most(
                f"what was learned before {type(error).__name__} could not be saved whole "
                f"({type(failed).__name__}: {failed}); while this trainer is there, save() may"
            )

    def _end(self, error: Exception | None = None) -> TrainResult:
        trainer = self._trainer
        seconds = time.perf_counter() - self._began
        result = train_result(trainer, self._first, seconds=seconds, error=error)
        if error is None and result["stopped_by"] not in (None, CTRL_C, STOP):
            # It ended well: there is nothing to go on with.
            trainer.target_timesteps = min(trainer.target_timesteps, trainer.timesteps)
        if trainer.run is not None:
            end_run(trainer, result)
        return result


def _to_plain_numbers(metrics: dict[Any, Any]) -> dict[Any, Any]:
    """Replace numbers of NumPy by plain ones; remove and return what is not a named number."""
    wrong = {}
    for name, value in [*metrics.items()]:
        if type(name) is str and type(value) in (float, int):
            continue
        if isinstance(name, str) and isinstance(value, Real):
            metrics[name] = int(value) if isinstance(value, Integral) else float(value)
        else:
            wrong[name] = metrics.pop(name)
    return wrong
