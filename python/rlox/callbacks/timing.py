"""Where the time of a run goes."""

from typing import TYPE_CHECKING

from rlox import phases
from rlox.callbacks.base import Callback
from rlox.every import Every
from rlox.phases import PHASES

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class TimingCallback(Callback):
    """Adds the shares of the time since the start of `train` that went into each kind of work.

    The row gets `timing/env_step`, `timing/inference`, `timing/gae_compute`,
    `timing/gradient_update`, `timing/buffer` and `timing/other`, each in [0, 1];
    together they are the whole. `rlox.phases` says what each is.

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
        self._every, self._target = Every(every), 0
        self._before = dict.fromkeys(PHASES, 0.0)
        self.seconds = dict.fromkeys(PHASES, 0.0)
        """In each phase, of the last call of `train`."""
        self.wall_clock = 0.0
        """Seconds of that call."""

    @property
    def shares(self) -> dict[str, float]:
        """Of the wall clock, by phase."""
        whole = self.wall_clock or 1.0
        return {name: seconds / whole for name, seconds in self.seconds.items()}

    def on_train_start(self, trainer: "Trainer") -> None:
        """Counts from here."""
        self._every.start(trainer.timesteps)
        self._target = trainer.target_timesteps
        phases.start()
        self._before = phases.read()

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Adds the shares where it is time to."""
        timesteps = trainer.timesteps
        if self._every.due(timesteps) or timesteps >= self._target:
            self._read()
            metrics |= {f"timing/{name}": share for name, share in self.shares.items()}

    def on_train_end(self, trainer: "Trainer") -> None:
        """Notes what the whole call came to."""
        self._read()
        phases.stop()

    def _read(self) -> None:
        now = phases.read()
        self.seconds = {name: now[name] - self._before[name] for name in PHASES}
        # The clock is always in a phase: another would only tell what came between the two.
        self.wall_clock = sum(self.seconds.values())
