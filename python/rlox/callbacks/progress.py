"""The progress bar. Needs rich, the extra `rlox[progress]`."""

import time
from typing import TYPE_CHECKING

from rlox.callbacks.base import Callback
from rlox.extras import load_extra
from rlox.settings import number

if TYPE_CHECKING:
    from rlox.trainers import Trainer


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
        rich = load_extra("rich.progress", "progress", "ProgressBar")
        self._console = load_extra("rich.console", "progress", "ProgressBar").Console(stderr=True)
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            rich.TextColumn("return {task.fields[mean]:.1f}"),
            rich.TextColumn("{task.fields[fps]:,.0f} steps/s"),
            rich.TimeRemainingColumn(),
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
