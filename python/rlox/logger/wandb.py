"""Metrics to Weights & Biases. Needs `rlox[wandb]`."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlox.extras import load_extra
from rlox.logger.base import EVERY, Thinned

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer


class WandbLogger(Thinned):
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
        from rlox.manifest import describe

        super().start(trainer)
        where: dict[str, Any] = {}
        if trainer.run is not None:
            where = {"dir": str(trainer.run.path), "name": trainer.run.path.name}
            if (known := trainer.run.known("wandb")) is not None:
                where |= {"id": known, "resume": "allow"}
        about = {"group": f"{trainer.env_name}-{trainer.algorithm}", "config": describe(trainer)}
        self._run = self._wandb.init(**{**where, **about, **self._init})
        if trainer.run is not None:
            trainer.run.keep("wandb", self._run.id)
        self._run.define_metric("*", step_metric="time/total_timesteps")

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Logs a row."""
        told = {name: x for name, x in metrics.items() if not math.isnan(x)}
        self._run.log({**told, "time/total_timesteps": timesteps})

    def finish(self, result: "TrainResult | None") -> None:
        """Ends the run, failed after an error, with what it came to as its summary."""
        super().finish(result)
        if result is not None:
            numbers = {n: x for n, x in result.items() if isinstance(x, int | float)}
            self._run.summary.update(numbers)
        self._run.finish(exit_code=0 if result is not None else 1)
