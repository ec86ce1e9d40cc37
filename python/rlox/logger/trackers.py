"""Metrics as TensorBoard's events. Needs `rlox[tensorboard]`, not torch."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox._optional import load_extra
from rlox._validation import check_path
from rlox.logger.base import EVERY, IntervalLogger
from rlox.logger.files import run_folder_path

if TYPE_CHECKING:
    from rlox._training.results import TrainResult
    from rlox.trainers import Trainer


class TensorBoardLogger(IntervalLogger):
    """Writes scalars over environment steps, for `tensorboard --logdir runs`.

    Args:
        path: The folder of the events; None: `tensorboard` in the run folder.
        every: Environment steps between two rows, at least; 1: all rows.

    Raises:
        TypeError, ValueError: An argument of another kind, or `every` below 1.
        ModuleNotFoundError: tensorboard is not installed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, every: int = EVERY) -> None:
        super().__init__(every)
        self.path = check_path("path", path)
        module = "tensorboard.summary.writer.event_file_writer"
        self._writers = load_extra(module, "tensorboard", "TensorBoardLogger")
        self._events = load_extra(
            "tensorboard.compat.proto.event_pb2", "tensorboard", "TensorBoardLogger"
        )

    def start(self, trainer: "Trainer") -> None:
        """Opens a file of events; those of steps that a resumed run makes again are forgotten."""
        super().start(trainer)
        folder = self.path or run_folder_path(trainer, "tensorboard")
        self._writer = self._writers.EventFileWriter(str(folder))
        if self.path is None and trainer.timesteps:  # another folder may have other runs
            first = trainer.timesteps + 1
            event = self._events.Event(step=first, wall_time=time.time())
            event.session_log.status = 1  # START, at which TensorBoard drops this step and later
            self._writer.add_event(event)

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes scalars; NaN, which no curve shows, is left out."""
        event = self._events.Event(step=timesteps, wall_time=time.time())
        for name, value in metrics.items():
            if not math.isnan(value):
                event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def finish(self, result: "TrainResult | None") -> None:
        """Writes what waits, and closes the file."""
        super().finish(result)
        self._writer.close()


class WandbLogger(IntervalLogger):
    """Logs a run to Weights & Biases, over the metric `time/total_timesteps`.

    Args:
        project: Where the run goes.
        every: Environment steps between two rows, at least; 1: all rows.
        **init: For `wandb.init`: `mode="offline"` writes to the disk alone, as the environment
            variable `WANDB_MODE=offline` has it, and `wandb sync` uploads it later. Files lie in
            the run folder, where there is one; the run has its name, and keeps its id there, with
            which it goes on when it is resumed.

    Raises:
        TypeError, ValueError: `every` is no integer of at least 1.
        ModuleNotFoundError: wandb is not installed.
    """

    def __init__(self, project: str = "rlox", every: int = EVERY, **init: Any) -> None:
        super().__init__(every)
        self._wandb = load_extra("wandb", "wandb", "WandbLogger")
        self._init = {"project": project, **init}

    def start(self, trainer: "Trainer") -> None:
        """Begins a run, with the settings as its config."""
        from rlox._training.resume import describe

        super().start(trainer)
        run_kwargs: dict[str, Any] = {}
        if trainer.run is not None:
            run_kwargs = {"dir": str(trainer.run.path), "name": trainer.run.path.name}
            if (known := trainer.run.read_service_id("wandb")) is not None:
                run_kwargs |= {"id": known, "resume": "allow"}
        init_kwargs = {
            "group": f"{trainer.env_name}-{trainer.spec.name}",
            "config": describe(trainer),
        }
        self._run = self._wandb.init(**{**run_kwargs, **init_kwargs, **self._init})
        if trainer.run is not None:
            trainer.run.write_service_id("wandb", self._run.id)
        self._run.define_metric("*", step_metric="time/total_timesteps")

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Logs a row."""
        values = {name: x for name, x in metrics.items() if not math.isnan(x)}
        self._run.log({**values, "time/total_timesteps": timesteps})

    def finish(self, result: "TrainResult | None") -> None:
        """Ends the run, failed after an error, with what it came to as its summary."""
        super().finish(result)
        if result is not None:
            numbers = {n: x for n, x in result.items() if isinstance(x, int | float)}
            self._run.summary.update(numbers)
        self._run.finish(exit_code=0 if result is not None else 1)


STEPS = "time/total_timesteps"
# MLflow refuses longer values of parameters.
_LONGEST = 6000


class MLflowLogger(IntervalLogger):
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
        self._last_logged_step = -math.inf
        self._mlflow = load_extra("mlflow", "mlflow", "MLflowLogger")

    def start(self, trainer: "Trainer") -> None:
        """Begins a run, with the settings as its parameters, or goes on with that of the folder."""
        super().start(trainer)
        # <root>/<env>/<algorithm>/<time>-<seed>
        root = Path() if trainer.run is None else trainer.run.path.parents[2]
        default_uri = f"sqlite:///{(root / 'mlflow.db').resolve()}"
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri
        self._client: Any = self._mlflow.MlflowClient(tracking_uri=uri)
        self._last_logged_step = -math.inf
        if trainer.run is not None and self._resume_run(trainer.run.read_service_id("mlflow")):
            return
        found = self._client.get_experiment_by_name(self._experiment)
        experiment_kwargs = (
            {} if uri != default_uri else {"artifact_location": str(root.resolve() / "mlartifacts")}
        )
        experiment = found or self._client.create_experiment(self._experiment, **experiment_kwargs)
        name = None if trainer.run is None else trainer.run.path.name
        run = self._client.create_run(
            getattr(experiment, "experiment_id", experiment), run_name=name
        )
        self._id = run.info.run_id
        if trainer.run is not None:
            trainer.run.write_service_id("mlflow", self._id)
        self._client.log_batch(self._id, params=self._make_parameters(trainer))

    def _resume_run(self, known: str | None) -> bool:
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
        history = self._client.get_metric_history(known, STEPS)
        self._id, self._last_logged_step = (
            known,
            max((one.step for one in history), default=-math.inf),
        )
        return True

    def _make_parameters(self, trainer: "Trainer") -> list[Any]:
        from rlox._training.resume import config_to_dict, describe

        description = describe(trainer)
        values = {name: description[name] for name in ("algorithm", "backend", "env", "seed")}
        values |= config_to_dict(trainer.config)
        return [
            self._mlflow.entities.Param(name, str(value)[:_LONGEST])
            for name, value in values.items()
        ]

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Logs a row, but none of steps that are there and were made again: nothing is removed."""
        if timesteps <= self._last_logged_step:
            return
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        values = {name: x for name, x in metrics.items() if not math.isnan(x)}
        rows = [metric(name, float(x), now, timesteps) for name, x in values.items()]
        self._client.log_batch(self._id, metrics=rows)

    def finish(self, result: "TrainResult | None") -> None:
        """Ends the run: finished, killed by Ctrl-C or a `stop` without a reason, or failed."""
        super().finish(result)
        status = "FAILED" if result is None else "KILLED" if result["interrupted"] else "FINISHED"
        self._client.set_terminated(self._id, status)
