"""Loggers for TensorBoard, Weights & Biases and MLflow; each needs the extra of its name."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError
from rlox._optional import load_extra
from rlox._validation import check_path
from rlox.logger.base import EVERY, IntervalLogger, RunInfo


class TensorBoardLogger(IntervalLogger):
    """Logger that writes TensorBoard scalars over environment steps, without torch.

    Show them with `tensorboard --logdir runs`.

    Args:
        path: Folder of the event files; None: `tensorboard` in the run folder.
        every: Environment steps between two rows; 1: all rows.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: An argument has a wrong type.
        ModuleNotFoundError: tensorboard is not installed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, every: int = EVERY) -> None:
        super().__init__(every)
        self.path = check_path("path", path)
        module = "tensorboard.summary.writer.event_file_writer"
        self._writers = load_extra(module, "tensorboard", "TensorBoardLogger")
        self._events = load_extra("tensorboard.compat.proto.event_pb2", "tensorboard", "TensorBoardLogger")

    def start(self, info: RunInfo) -> None:
        """Open an event file; after a resume, TensorBoard drops older events of repeated steps."""
        super().start(info)
        folder = self.path or info.file("tensorboard")
        self._writer = self._writers.EventFileWriter(str(folder))
        if self.path is None and info.budget_used:  # other folders may hold several runs
            first_step = info.budget_used + 1
            event = self._events.Event(step=first_step, wall_time=time.time())
            event.session_log.status = 1  # START: TensorBoard drops events from this step on
            self._writer.add_event(event)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write scalars, without NaN."""
        event = self._events.Event(step=step, wall_time=time.time())
        for name, value in metrics.items():
            if not math.isnan(value):
                event.summary.value.add(tag=name, simple_value=value)
        self._writer.add_event(event)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Write the pending rows, and close the file."""
        super().finish(result)
        self._writer.close()


class WandbLogger(IntervalLogger):
    """Logger for Weights & Biases; the step is the used budget, such as `time/total_timesteps`.

    If the trainer has a run folder, files are written there, and the run has the name of the
    folder. The id of the run is stored in the folder, so that a resumed run continues it.

    Args:
        project: Name of the project.
        every: Environment steps between two rows; 1: all rows.
        **init: Arguments of `wandb.init`, which override those of the logger. `mode="offline"` writes to the disk only,
            like the environment variable `WANDB_MODE=offline`; upload the run with `wandb sync`.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: `every` is not an integer.
        ModuleNotFoundError: wandb is not installed.
    """

    def __init__(self, project: str = "rlox", every: int = EVERY, **init: object) -> None:
        super().__init__(every)
        self._wandb = load_extra("wandb", "wandb", "WandbLogger")
        self._init = {"project": project, **init}

    def start(self, info: RunInfo) -> None:
        """Start or resume the run, with the description of the run as its config."""
        super().start(info)
        run_kwargs: dict[str, Any] = {}
        if info.path is not None:
            run_kwargs = {"dir": str(info.path), "name": info.path.name}
            if (run_id := _read_service_id(info, "wandb")) is not None:
                run_kwargs |= {"id": run_id, "resume": "allow"}
        run_kwargs |= {"group": f"{info.task}-{info.algorithm}", "config": info.description}
        self._run = self._wandb.init(**{**run_kwargs, **self._init})
        _write_service_id(info, "wandb", self._run.id)
        self._step_metric = f"time/total_{info.budget_unit}"
        self._run.define_metric("*", step_metric=self._step_metric)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row, without NaN."""
        values = {name: x for name, x in metrics.items() if not math.isnan(x)}
        self._run.log({**values, self._step_metric: step})

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """End the run with the result as its summary; mark the run as failed after an error."""
        super().finish(result)
        if result is not None:
            numbers = {n: x for n, x in result.items() if isinstance(x, int | float)}
            self._run.summary.update(numbers)
        self._run.finish(exit_code=0 if result is not None else 1)


# Maximum length of a parameter value in MLflow.
_LONGEST = 6000


class MLflowLogger(IntervalLogger):
    """Logger for MLflow with its own client; the active run of MLflow does not change.

    The id of the run is stored in the run folder, so that a resumed run continues it.

    Args:
        tracking_uri: Address of the tracking store. None: the environment variable `MLFLOW_TRACKING_URI`, else the
            SQLite file `mlflow.db` in `runs_dir`, or in the working directory without a run folder. Show the file with
            `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`.
        experiment: Name of the experiment, which is created if it does not exist.
        every: Environment steps between two rows; 1: all rows.

    Raises:
        ArgumentError: `every` is below 1.
        ArgumentTypeError: `every` is not an integer.
        ModuleNotFoundError: mlflow is not installed.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "rlox", every: int = EVERY) -> None:
        super().__init__(every)
        self._uri = tracking_uri
        self._experiment = experiment
        self._last_logged_step = -math.inf
        self._mlflow = load_extra("mlflow", "mlflow", "MLflowLogger")

    def start(self, info: RunInfo) -> None:
        """Create a run with the settings as parameters, or continue the run of the folder."""
        super().start(info)
        root = Path()
        if info.path is not None:  # <root>/<env>/<algorithm>/<time>-<seed>, unless the run folder was moved
            folder = info.path.parent
            root = folder.parents[1] if folder.name == info.algorithm else folder
        default_uri = f"sqlite:///{(root / 'mlflow.db').resolve()}"
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri
        self._client: Any = self._mlflow.MlflowClient(tracking_uri=uri)
        self._last_logged_step = -math.inf
        self._step_metric = f"time/total_{info.budget_unit}"
        if self._resume_run(_read_service_id(info, "mlflow")):
            return
        found = self._client.get_experiment_by_name(self._experiment)
        experiment_kwargs = {} if uri != default_uri else {"artifact_location": str(root.resolve() / "mlartifacts")}
        experiment = found or self._client.create_experiment(self._experiment, **experiment_kwargs)
        name = None if info.path is None else info.path.name
        run = self._client.create_run(getattr(experiment, "experiment_id", experiment), run_name=name)
        self._id = run.info.run_id
        _write_service_id(info, "mlflow", self._id)
        self._client.log_batch(self._id, params=self._make_parameters(info))

    def _resume_run(self, run_id: str | None) -> bool:
        """Continue an earlier run; return False if the store does not have the run."""
        try:
            if run_id is None or self._client.get_run(run_id).info.lifecycle_stage != "active":
                return False
        except self._mlflow.exceptions.MlflowException:
            return False
        self._client.update_run(run_id, status="RUNNING")
        history = self._client.get_metric_history(run_id, self._step_metric)
        self._id = run_id
        self._last_logged_step = max((metric.step for metric in history), default=-math.inf)
        return True

    def _make_parameters(self, info: RunInfo) -> list[Any]:
        description = info.description
        names = [name for name in ("algorithm", "backend", "env", "seed") if name in description]
        values = {name: description[name] for name in names} | description["settings"]
        return [self._mlflow.entities.Param(name, str(value)[:_LONGEST]) for name, value in values.items()]

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row, unless the store has a row of this step or of a later one."""
        if step <= self._last_logged_step:
            return
        now = int(time.time() * 1000)  # milliseconds
        metric = self._mlflow.entities.Metric
        rows = [metric(name, float(x), now, step) for name, x in metrics.items() if not math.isnan(x)]
        self._client.log_batch(self._id, metrics=rows)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """End the run as FAILED after an error, KILLED if it was interrupted, else FINISHED."""
        super().finish(result)
        status = "FAILED" if result is None else "KILLED" if result["interrupted"] else "FINISHED"
        self._client.set_terminated(self._id, status)


def _read_service_id(info: RunInfo, service: str) -> str | None:
    """Return the id that a service gave to the run, from the run folder; None if there is none."""
    try:
        return info.file(f"{service}.id").read_text(encoding="utf-8").strip() or None
    except (ArgumentError, OSError, UnicodeDecodeError):
        return None


def _write_service_id(info: RunInfo, service: str, run_id: str) -> None:
    """Store the id that a service gave to the run in the run folder, if there is one."""
    if info.path is not None:
        info.file(f"{service}.id").write_text(f"{run_id}\n", encoding="utf-8")
