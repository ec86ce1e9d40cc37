"""Metrics to MLflow, into a local SQLite file unless told otherwise. Needs `rlox[mlflow]`."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox.extras import load_extra
from rlox.keywords import knowing_keywords
from rlox.logger.base import EVERY, Thinned

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer

# MLflow refuses longer values of parameters.
_LONGEST = 6000


class MLflowLogger(Thinned):
    """Logs a run to MLflow, by a client of its own: no run is made the active one.

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

    @knowing_keywords()
    def __init__(
        self, tracking_uri: str | None = None, experiment: str = "rlox", every: int = EVERY
    ) -> None:
        super().__init__(every)
        self._uri, self._experiment = tracking_uri, experiment
        self._mlflow = load_extra("mlflow", "mlflow", "MLflowLogger")

    def start(self, trainer: "Trainer") -> None:
        """Begins a run, with the settings as its parameters."""
        super().start(trainer)
        # <root>/<env>/<algorithm>/<time>-<seed>
        root = Path() if trainer.run is None else trainer.run.path.parents[2]
        usual = f"sqlite:///{(root / 'mlflow.db').resolve()}"
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or usual
        self._client: Any = self._mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(self._experiment)
        about = {} if uri != usual else {"artifact_location": str(root.resolve() / "mlartifacts")}
        made = found or self._client.create_experiment(self._experiment, **about)
        name = None if trainer.run is None else trainer.run.path.name
        run = self._client.create_run(getattr(made, "experiment_id", made), run_name=name)
        self._id = run.info.run_id
        self._client.log_batch(self._id, params=self._parameters(trainer))

    def _parameters(self, trainer: "Trainer") -> list[Any]:
        from rlox.manifest import describe, settings_told

        about = describe(trainer)
        told = {name: about[name] for name in ("algorithm", "backend", "env", "seed")}
        told |= settings_told(trainer.config)
        return [
            self._mlflow.entities.Param(name, str(value)[:_LONGEST]) for name, value in told.items()
        ]

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Logs a row."""
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        told = {name: x for name, x in metrics.items() if not math.isnan(x)}
        rows = [metric(name, float(x), now, timesteps) for name, x in told.items()]
        self._client.log_batch(self._id, metrics=rows)

    def finish(self, result: "TrainResult | None") -> None:
        """Ends the run: finished, killed by Ctrl-C or `stop`, or failed."""
        super().finish(result)
        how = "FAILED" if result is None else "KILLED" if result["interrupted"] else "FINISHED"
        self._client.set_terminated(self._id, how)
