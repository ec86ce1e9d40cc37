"""The progress bar. Needs rich, the extra `rlox[progress]`."""

import time
from typing import TYPE_CHECKING

from rlox import _timing
from rlox._optional import load_extra
from rlox._timing import PHASES, EveryNSteps
from rlox._training.hooks import Callback
from rlox._validation import check_float

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
        self._every = check_float("every", every, 0, fix="pass a number of seconds")
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
        self._start, self._last_line_time = trainer.timesteps, time.monotonic()
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
        if now - self._last_line_time >= self._every or finished:
            self._last_line_time = now
            remaining_seconds = (trainer.target_timesteps - trainer.timesteps) / max(fps, 1e-9)
            line = f"{trainer.timesteps:,}/{trainer.target_timesteps:,} steps, return {mean:.1f}, "
            self._console.out(line + f"{fps:,.0f} steps/s, {max(remaining_seconds, 0):.0f} s left")

    def on_train_end(self, trainer: "Trainer") -> None:
        """Leaves the bar as it is and gives the terminal back."""
        if self._console.is_terminal:
            self._bar.stop()


class TimingCallback(Callback):
    """Adds the shares of the time since the start of `train` that went into each kind of work.

    The row gets `timing/env_step`, `timing/inference`, `timing/gae_compute`,
    `timing/gradient_update`, `timing/buffer` and `timing/other`, each in [0, 1];
    together they are the whole. `rlox._timing` says what each is.

    Args:
        every: Environment steps between two such rows, all environments together; the row after the
            last step is one, too.

    Raises:
        TypeError, ValueError: `every` is no integer of at least 1.

    >>> from rlox.trainers import PPOTrainer
    >>> timing = TimingCallback()
    >>> result = PPOTrainer("CartPole-v1", seed=1, runs_dir=None).train(512, callbacks=[timing])
    >>> round(sum(timing.shares.values()), 2)
    1.0
    """

    def __init__(self, every: int = 10_000) -> None:
        self._every, self._target = EveryNSteps(every), 0
        self._before = dict.fromkeys(PHASES, 0.0)
        self.seconds = dict.fromkeys(PHASES, 0.0)
        """In each phase, of the last call of `train`."""
        self.wall_clock = 0.0
        """Seconds of that call."""

    @property
    def shares(self) -> dict[str, float]:
        """Of the wall clock, by phase."""
        total = self.wall_clock or 1.0
        return {name: seconds / total for name, seconds in self.seconds.items()}

    def on_train_start(self, trainer: "Trainer") -> None:
        """Counts from here."""
        self._every.start(trainer.timesteps)
        self._target = trainer.target_timesteps
        _timing.start()
        self._before = _timing.read()

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Adds the shares where it is time to."""
        timesteps = trainer.timesteps
        if self._every.ready(timesteps) or timesteps >= self._target:
            self._read()
            metrics |= {f"timing/{name}": share for name, share in self.shares.items()}

    def on_train_end(self, trainer: "Trainer") -> None:
        """Notes what the whole call came to."""
        self._read()
        _timing.stop()

    def _read(self) -> None:
        now = _timing.read()
        self.seconds = {name: now[name] - self._before[name] for name in PHASES}
        # The clock is always in a phase: another would only tell what came between the two.
        self.wall_clock = sum(self.seconds.values())
