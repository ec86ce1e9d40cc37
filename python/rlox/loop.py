"""The iterations of a run, and who hears of them."""

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from numbers import Real
from typing import TYPE_CHECKING, Any

from rlox.callbacks import Callback
from rlox.callbacks.states import give_back
from rlox.diagnosis import Recent, diagnosed
from rlox.logger import Logger, Loggers
from rlox.restoring import end_run
from rlox.results import TrainResult, train_result

if TYPE_CHECKING:
    from rlox.logger import RunFolder
    from rlox.trainer import Trainer


class _Rows:
    """The run folder's own `metrics.csv`, as a logger."""

    def __init__(self, run: "RunFolder") -> None:
        self._run = run

    def start(self, trainer: "Trainer") -> None:
        """Nothing: the file begins with the first row."""

    def log(self, metrics: Mapping[str, float], timesteps: int) -> None:
        self._run.log(metrics)

    def finish(self, result: TrainResult | None) -> None:
        self._run.flush()


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
        own = [] if trainer.run is None else [_Rows(trainer.run)]
        self._loggers = Loggers([*own, *loggers])
        self._recent = Recent()
        self._first, self._began = trainer.timesteps, time.perf_counter()

    def run(self) -> TrainResult:
        """Runs, and gives what it came to.

        Raises:
            Exception: What callbacks raise, when what was learned is saved; what the learner does.
        """
        trainer, done = self._trainer, list[TrainResult]()
        with ExitStack() as ends:
            ends.callback(lambda: self._loggers.finish(done[0] if done else None))
            self._loggers.start(trainer)
            for callback in self._callbacks:
                callback.on_train_start(trainer)
                ends.callback(callback.on_train_end, trainer)
            give_back(self._callbacks, trainer.remembered)
            trainer.callbacks, trainer.remembered = self._callbacks, []
            with diagnosed(trainer, self._recent):
                self._iterate()
            result = self._end()
            done.append(result)
        return result

    def _iterate(self) -> None:
        trainer, learner, iteration = self._trainer, self._trainer.learner, 0
        start, target = trainer.start_timesteps, trainer.target_timesteps
        planned = target - start
        learner.growth = 1 / planned
        while trainer.timesteps < target and not learner.stopping:
            metrics = learner.iterate((trainer.timesteps - start) / planned)
            if not metrics:
                return
            iteration += 1
            elapsed = time.perf_counter() - self._began
            metrics |= {"time/iterations": iteration, "time/time_elapsed": elapsed}
            metrics["time/fps"] = (trainer.timesteps - self._first) / elapsed
            try:
                try:
                    self._call(metrics)
                finally:  # what a callback fails at has happened all the same
                    self._recent.add(metrics)
                    self._loggers.log(metrics, trainer.timesteps)
                for callback in self._callbacks:
                    callback.on_row_logged(trainer, metrics)
            except Exception:
                with suppress(Exception):  # the callback's error is the one to be told
                    self._end()
                raise

    def _call(self, metrics: dict[str, float]) -> None:
        """Calls the callbacks, which may add to the row."""
        known = len(metrics)
        for callback in self._callbacks:
            callback.on_iteration(self._trainer, metrics)
            if len(metrics) != known:
                known = _expect_numbers(metrics, callback)

    def _end(self) -> TrainResult:
        seconds = time.perf_counter() - self._began
        result = train_result(self._trainer, self._first, seconds=seconds)
        if self._trainer.run is not None:
            end_run(self._trainer, result)
        return result


def _expect_numbers(metrics: dict[Any, Any], callback: Callback) -> int:
    """Refuses what loggers cannot write; how many metrics there are.

    Raises:
        TypeError: A name is no str, or a value no number; it is taken out of the row.
    """
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            del metrics[name]
            raise TypeError(
                f"metrics: expected names and numbers, got {name!r}: {value!r} from "
                f"{type(callback).__name__}; keep what is no number to yourself"
            )
    return len(metrics)
