"""Metrics to MLflow, into a local SQLite file unless told otherwise. Needs `rlox[mlflow]`."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox.extras import load_extra
from rlox.logger.base import EVERY, Thinned

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer

STEPS = "time/total_timesteps"
# MLflow refuses longer values of parameters.
_LONGEST = 6000


class MLflowLogger(Thinned):
    """Logs a run to MLflow, by a client of its own: no run is made the active one.

    Its id is kept in the run folder, and a run that is resumed goes on under it.

    Args:
        tracking_uri: Where runs are kept; None: the environment variable `MLFLOW_TRACKING_URI`,
            else the SQLite file `mlflow.db` above all run folders, which
            `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows; without run folders it
            is made in the working directory.
        experiment: Its name; made if it is not there.
        every: Environment steps between two rows, at least; 1: all rows.

    Raises:
        TypeError, ValueError: `every` is no integer of at least 1.
        ModuleNotFoundError: mlflow is not installed.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str = "rlox", every: int = EVERY
    ) -> None:
        super().__init__(every)
        self._uri, self._experiment = tracking_uri, experiment
        self._made = -math.inf
        self._mlflow = load_extra("mlflow", "mlflow", "MLflowLogger")

    def start(self, trainer: "Trainer") -> None:
        """Begins a run, with the settings as its parameters, or goes on with that of the folder."""
        super().start(trainer)
        # <root>/<env>/<algorithm>/<time>-<seed>
        root = Path() if trainer.run is None else trainer.run.path.parents[2]
        usual = f"sqlite:///{(root / 'mlflow.db').resolve()}"
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or usual
        self._client: Any = self._mlflow.MlflowClient(tracking_uri=uri)
        self._made = -math.inf
        if trainer.run is not None and self._goes_on(trainer.run.known("mlflow")):
            return
        found = self._client.get_experiment_by_name(self._experiment)
        about = {} if uri != usual else {"artifact_location": str(root.resolve() / "mlartifacts")}
        made = found or self._client.create_experiment(self._experiment, **about)
        name = None if trainer.run is None else trainer.run.path.name
        run = self._client.create_run(getattr(made, "experiment_id", made), run_name=name)
        self._id = run.info.run_id
        if trainer.run is not None:
            trainer.run.keep("mlflow", self._id)
        self._client.log_batch(self._id, params=self._parameters(trainer))

    def _goes_on(self, known: str | None) -> bool:
        """Goes on with a run that was begun before; False if it is not kept there."""
        if known is None:
            return False
        try:
            there = self._client.get_run(known).info.lifecycle_stage == "active"
        except self._mlflow.exceptions.MlflowException:
            there = False
        if not there:
            return False
        self._client.update_run(known, status="RUNNING")
        told = self._client.get_metric_history(known, STEPS)
        self._id, self._made = known, max((one.step for one in told), default=-math.inf)
        return True

    def _parameters(self, trainer: "Trainer") -> list[Any]:
        from rlox.manifest import describe, settings_told

        about = describe(trainer)
        told = {name: about[name] for name in ("algorithm", "backend", "env", "seed")}
        told |= settings_told(trainer.config)
        return [
            self._mlflow.entities.Param(name, str(value)[:_LONGEST]) for name, value in told.items()
        ]

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Logs a row, but none of steps that are there and were made again: nothing is removed."""
        if timesteps <= self._made:
            return
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        told = {name: x for name, x in metrics.items() if not math.isnan(x)}
        rows = [metric(name, float(x), now, timesteps) for name, x in told.items()]
        self._client.log_batch(self._id, metrics=rows)

    def finish(self, result: "TrainResult | None") -> None:
        """Ends the run: finished, killed by Ctrl-C or a `stop` without a reason, or failed."""
        super().finish(result)
        how = "FAILED" if result is None else "KILLED" if result["interrupted"] else "FINISHED"
        self._client.set_terminated(self._id, how)
