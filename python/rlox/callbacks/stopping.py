"""Early stopping of runs that no longer improve."""

import math

from rlox._errors import ArgumentError
from rlox._training.run import Callback, Run
from rlox._validation import check_float, check_int, check_str, hint
from rlox.callbacks.base import LastRun


class EarlyStoppingCallback(Callback):
    """Callback that ends the run when a metric has not improved for `patience` environment steps.

    With the same trainer, the best value carries over to the next call of `train`. With another
    trainer, the callback starts again without a best value.

    Args:
        metric: Name of a metric of the rows, for example "eval/mean_reward" after an
            `EvalCallback`. A row without the metric, or with NaN, is no improvement.
        patience: Environment steps without an improvement after which the run ends.
        min_delta: A value is an improvement if it is better than the best value by more than this.
        mode: "max" if higher values are better, "min" if lower values are.

    Raises:
        ArgumentError: An argument is out of range. During training: no row had the metric when
            `patience` steps had passed.
        ArgumentTypeError: An argument has a wrong type.

    >>> callback = EarlyStoppingCallback(patience=50_000, min_delta=1.0)
    >>> callback.best
    -inf
    """

    def __init__(
        self, metric: str = "rollout/ep_rew_mean", patience: int = 100_000, min_delta: float = 0.0, mode: str = "max"
    ) -> None:
        self.metric = check_str("metric", metric)
        self.patience = check_int("patience", patience, 1, fix="pass a number of environment steps")
        self.min_delta = check_float("min_delta", min_delta, 0, fix="pass a number of at least 0")
        self._sign = 1.0 if check_str("mode", mode, ("max", "min")) == "max" else -1.0
        self._forget()
        self._last_run = LastRun()

    def _forget(self) -> None:
        self.best = -self._sign * math.inf
        """Best value so far; -inf or inf before the first one."""
        self._has_metric = False
        self._since = 0

    def on_train_start(self, run: Run) -> None:
        """Start counting steps; reset the best value for another run."""
        if self._last_run.replace(run):
            self._forget()
        self._since = run.budget_used

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare the metric with the best value, and stop the run if `patience` is exceeded."""
        value = metrics.get(self.metric, math.nan)
        self._has_metric = self._has_metric or self.metric in metrics
        if self._sign * (value - self.best) > self.min_delta:  # False for NaN
            self.best = value
            self._since = run.budget_used
        elif run.budget_used - self._since >= self.patience:
            if not self._has_metric:
                raise ArgumentError(
                    "metric",
                    f"a metric that a row has within {self.patience:,} steps",
                    repr(self.metric),
                    hint(self.metric, metrics),
                )
            run.stop(
                f"EarlyStoppingCallback: {self.metric} has not improved on {self.best:.6g} for "
                f"{run.budget_used - self._since:,} steps"
            )

    def state(self) -> dict[str, float]:
        """Return the best value, the start of the patience, and whether a row had the metric."""
        return {"best": self.best, "since": self._since, "seen": self._has_metric}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore the values that `state` returned."""
        self.best = state["best"]
        self._since = int(state["since"])
        self._has_metric = bool(state["seen"])
