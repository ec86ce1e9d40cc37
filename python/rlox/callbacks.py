"""Callbacks: what happens around the iterations of a training run."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rlox.settings import number

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class Callback:
    """Derive from it and write the methods you need. `trainer.stop()` ends the run.

    >>> class Best(Callback):
    ...     score = float("-inf")
    ...
    ...     def on_iteration(self, trainer, metrics):
    ...         self.score = max(self.score, metrics["rollout/ep_rew_mean"])
    """

    def on_train_start(self, trainer: "Trainer") -> None:
        """Before the first iteration."""

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After each iteration, with the row that goes into `metrics.csv`."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last iteration and what it leaves behind, also when an error ended the run.

        Callbacks that started are ended in the opposite order, each of them, whatever the others
        raise.
        """


class FunctionCallback(Callback):
    """A plain function `f(trainer, metrics)`, called after each iteration."""

    def __init__(self, function: Callable[["Trainer", dict[str, float]], object]) -> None:
        if not callable(function):
            raise TypeError(
                "function: expected a function of (trainer, metrics), got "
                f"{_named(function)}; pass one"
            )
        self._function = function

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Calls it."""
        self._function(trainer, metrics)


def as_callback(callback: Any) -> Callback:
    """A callback as it is, or a function as one.

    Raises:
        TypeError: It is neither; a class is none, its objects are.
    """
    if isinstance(callback, Callback):
        return callback
    if callable(callback) and not isinstance(callback, type):
        return FunctionCallback(callback)
    raise TypeError(
        "callbacks: expected a list of rlox.callbacks.Callback objects or functions of (trainer, "
        f"metrics), got {_named(callback)}; derive it from Callback, and pass an object of it"
    )


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Each as `as_callback`.

    Raises:
        TypeError: One is no callback, or they are no sequence.
    """
    if not isinstance(callbacks, Iterable):
        raise TypeError(
            f"callbacks: expected a list, got {_named(callbacks)}; put it into square brackets"
        )
    return [as_callback(callback) for callback in callbacks]


def _named(callback: Any) -> str:
    if isinstance(callback, type):
        return f"the class {callback.__name__}"
    return type(callback).__name__


class ProgressBar(Callback):
    """Steps done, mean return, steps per second and time left, on stderr.

    Where stderr is no terminal, a plain line now and then. Needs rich, the extra `rlox[progress]`.

    Args:
        every: Seconds between plain lines.

    Raises:
        TypeError, ValueError: `every` is no finite number of at least 0.
        ModuleNotFoundError: rich is not installed.
    """

    def __init__(self, every: float = 10.0) -> None:
        self._every = number("every", every, 0, fix="pass a number of seconds")
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the progress bar needs rich; install it with: pip install 'rlox[progress]'",
                name="rich",
            ) from error
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("return {task.fields[mean]:.1f}"),
            TextColumn("{task.fields[fps]:,.0f} steps/s"),
            TimeRemainingColumn(),
            console=self._console,
        )

    def on_train_start(self, trainer: "Trainer") -> None:
        """Shows the bar."""
        self._start, self._said = trainer.timesteps, time.monotonic()
        if self._console.is_terminal:
            self._task = self._bar.add_task(
                f"{trainer.learner.algorithm} {trainer.env_name}",
                total=trainer.target_timesteps - self._start,
                mean=trainer.learner.episodes.mean_return,
                fps=0.0,
            )
            self._bar.start()

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Moves it on."""
        mean, fps = metrics["rollout/ep_rew_mean"], metrics["time/fps"]
        done = trainer.timesteps - self._start
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, mean=mean, fps=fps)
            return
        now, finished = time.monotonic(), trainer.timesteps >= trainer.target_timesteps
        if now - self._said >= self._every or finished:
            self._said = now
            left = (trainer.target_timesteps - trainer.timesteps) / max(fps, 1e-9)
            text = f"{trainer.timesteps:,}/{trainer.target_timesteps:,} steps, return {mean:.1f}, "
            self._console.out(text + f"{fps:,.0f} steps/s, {max(left, 0):.0f} s left")

    def on_train_end(self, trainer: "Trainer") -> None:
        """Leaves the bar as it is and gives the terminal back."""
        if self._console.is_terminal:
            self._bar.stop()
