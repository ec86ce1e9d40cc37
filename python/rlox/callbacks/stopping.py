"""Ending a run that does not get better."""

import math
import weakref
from typing import TYPE_CHECKING

from rlox._errors import ArgumentError
from rlox._training.hooks import Callback
from rlox._validation import check_float, check_int, check_str, hint

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class EarlyStoppingCallback(Callback):
    """Ends the run when a metric has not improved for so many environment steps.

    Another trainer begins with nothing remembered; the same one goes on with its best value.

    Args:
        metric: Its name in the row; "eval/mean_reward" where an `EvalCallback` comes before. Rows
            without it, or with NaN, count as no improvement.
        patience: Environment steps without an improvement that end the run.
        min_delta: What counts as an improvement on the best value is more than this.
        mode: "max" where higher is better, "min" where lower is.

    Raises:
        TypeError, ValueError: An argument of another kind or out of range. In training: no row had
            the metric within `patience` steps.

    >>> callback = EarlyStoppingCallback(patience=50_000, min_delta=1.0)
    >>> callback.best
    -inf
    """

    def __init__(
        self,
        metric: str = "rollout/ep_rew_mean",
        patience: int = 100_000,
        min_delta: float = 0.0,
        mode: str = "max",
    ) -> None:
        self.metric = check_str("metric", metric)
        self.patience = check_int("patience", patience, 1, fix="pass a number of environment steps")
        self.min_delta = check_float("min_delta", min_delta, 0, fix="pass 0 or more")
        self._sign = 1.0 if check_str("mode", mode, ("max", "min")) == "max" else -1.0
        self._forget()
        self._trainer: weakref.ref[Trainer] | None = None

    def _forget(self) -> None:
        self.best = -self._sign * math.inf
        self._has_metric, self._since = False, 0

    def on_train_start(self, trainer: "Trainer") -> None:
        """Counts from here; the best value of before stays, if it was this trainer's."""
        if self._trainer is None or self._trainer() is not trainer:
            self._forget()
        self._trainer = weakref.ref(trainer)
        self._since = trainer.timesteps

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Looks at the metric, and stops the run where it is time to."""
        value = metrics.get(self.metric, math.nan)
        self._has_metric = self._has_metric or self.metric in metrics
        if self._sign * (value - self.best) > self.min_delta:  # False for NaN
            self.best, self._since = value, trainer.timesteps
        elif trainer.timesteps - self._since >= self.patience:
            if not self._has_metric:
                raise ArgumentError(
                    "metric",
                    f"one that a row has within {self.patience:,} steps",
                    repr(self.metric),
                    hint(self.metric, metrics),
                )
            trainer.stop(
                f"EarlyStoppingCallback: {self.metric} has not improved on {self.best:.6g} for "
                f"{trainer.timesteps - self._since:,} steps"
            )

    def state(self) -> dict[str, float]:
        """The best value, at which step it came, and whether any did."""
        return {"best": self.best, "since": self._since, "seen": self._has_metric}

    def load_state(self, state: dict[str, float]) -> None:
        """Goes on from there."""
        self.best, self._since = state["best"], int(state["since"])
        self._has_metric = bool(state["seen"])
