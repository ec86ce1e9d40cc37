"""Progress bar, and shares of the run time per kind of work."""

import math
import time

from rlox import _timing
from rlox._optional import load_extra
from rlox._timing import PHASES, EveryNSteps
from rlox._training.run import Callback, Run
from rlox._validation import check_float
from rlox.logger.base import METRIC


class ProgressBar(Callback):
    """Callback that shows steps, mean return, steps per second and remaining time on stderr.

    If stderr is not a terminal, plain lines are printed instead of a bar. Needs the extra `rlox[progress]`.

    Args:
        every: Seconds between plain lines.

    Raises:
        ArgumentError: `every` is negative or not finite.
        ArgumentTypeError: `every` is not a number.
        ModuleNotFoundError: rich is not installed.
    """

    def __init__(self, every: float = 10.0) -> None:
        self._every = check_float("every", every, 0, fix="pass a number of seconds")
        rich = load_extra("rich.progress", "progress", "ProgressBar")
        self._console = load_extra("rich.console", "progress", "ProgressBar").Console(stderr=True)
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            rich.TextColumn("return {task.fields[mean]:.1f}"),
            rich.TextColumn("{task.fields[fps]:,.0f}/s"),
            rich.TimeRemainingColumn(),
            console=self._console,
        )

    def on_train_start(self, run: Run) -> None:
        """Show the bar."""
        self._start = run.budget_used
        self._last_line_time = time.monotonic()
        if self._console.is_terminal:
            self._task = self._bar.add_task(
                f"{run.learner.algorithm} {run.task}",
                total=run.budget_end - self._start,
                mean=run.learner.episodes.mean_return,
                fps=0.0,
                unit=run.learner.budget_unit,
            )
            self._bar.start()

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Update the bar, or print a line if one is due."""
        mean = metrics.get(METRIC, math.nan)
        fps = metrics["time/fps"]
        if self._console.is_terminal:
            self._bar.update(self._task, completed=run.budget_used - self._start, mean=mean, fps=fps)
            return
        now = time.monotonic()
        if now - self._last_line_time >= self._every or run.budget_used >= run.budget_end:
            self._last_line_time = now
            remaining_seconds = (run.budget_end - run.budget_used) / max(fps, 1e-9)
            self._console.out(
                f"{run.budget_used:,}/{run.budget_end:,} {run.learner.budget_unit}, return "
                f"{mean:.1f}, {fps:,.0f}/s, {max(remaining_seconds, 0):.0f} s remaining"
            )

    def on_train_end(self, run: Run) -> None:
        """Stop updating the bar, which stays visible."""
        if self._console.is_terminal:
            self._bar.stop()


class TimingCallback(Callback):
    """Callback that logs the shares of the run time per kind of work.

    Rows get `timing/env_step`, `timing/inference`, `timing/gae_compute`, `timing/gradient_update`, `timing/buffer` and
    `timing/other`. Each share is in [0, 1] and counts from the start of `train`; the shares of a row add up to 1.

    Args:
        every: Environment steps between two rows with shares, summed over all environments. The
            row after the last step has shares as well.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: `every` is not an integer.

    >>> from rlox.trainers import PPOTrainer
    >>> timing = TimingCallback()
    >>> result = PPOTrainer("CartPole-v1", seed=1, runs_dir=None).train(512, callbacks=[timing])
    >>> round(sum(timing.shares.values()), 2)
    1.0
    """

    def __init__(self, every: int = 10_000) -> None:
        self._every = EveryNSteps(every)
        self._before = dict.fromkeys(PHASES, 0.0)
        self.seconds = dict.fromkeys(PHASES, 0.0)
        """Seconds in each phase during the last call of `train`."""
        self.wall_clock = 0.0
        """Sum of `seconds`."""

    @property
    def shares(self) -> dict[str, float]:
        """Share of each phase in `wall_clock`, in [0, 1]."""
        total = self.wall_clock or 1.0
        return {name: seconds / total for name, seconds in self.seconds.items()}

    def on_train_start(self, run: Run) -> None:
        """Start the clock."""
        self._every.start(run.budget_used)
        _timing.start()
        self._before = _timing.read()

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Add the shares to the row if they are due."""
        if self._every.ready(run.budget_used) or run.budget_used >= run.budget_end:
            self._read()
            metrics |= {f"timing/{name}": share for name, share in self.shares.items()}

    def on_train_end(self, run: Run) -> None:
        """Read the clock a last time, and stop it."""
        self._read()
        _timing.stop()

    def _read(self) -> None:
        now = _timing.read()
        self.seconds = {name: now[name] - self._before[name] for name in PHASES}
        # The clock is always in one phase, so the sum is the time that passed.
        self.wall_clock = sum(self.seconds.values())
