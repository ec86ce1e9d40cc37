"""What training and evaluation give back."""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class TrainResult(TypedDict):
    """What `train` returns."""

    mean_reward: float  # mean return of the last 100 finished episodes; NaN before the first
    mean_length: float  # their mean number of steps
    episodes: int  # finished so far
    timesteps: int  # learned from so far, all environments and all calls of `train` together
    sps: float  # steps per second of this call, updates included
    seconds: float  # how long this call took
    # Ctrl-C, or `stop` without a reason, ended it before all steps were made; `train()` goes on.
    interrupted: bool
    stopped_by: str | None  # "Ctrl-C", "stop()", the reason given to `stop`, or an error; else None
    run_dir: str | None  # the run folder, where there is one
    checkpoint_warning: str | None  # what there was no room for in the run's checkpoint, and why


# What ends a run that shall go on; other reasons end it for good.
CTRL_C, STOP = "Ctrl-C", "stop()"


def train_result(
    trainer: "Trainer", first: int, seconds: float, error: BaseException | None = None
) -> TrainResult:
    """What a call of `Trainer.train` gives back.

    Args:
        trainer: At the end of the call.
        first: The steps it had learned from at the beginning.
        seconds: What the call took.
        error: What ended it, if one did.
    """
    episodes, stopped_by = trainer.learner.episodes, trainer.stopped_by
    is_incomplete = trainer.timesteps < trainer.target_timesteps
    if error is not None:
        stopped_by = f"{type(error).__name__}: {error}"
    elif not is_incomplete and stopped_by in (CTRL_C, STOP):  # they came too late
        stopped_by = None
    return {
        "mean_reward": episodes.mean_return,
        "mean_length": episodes.mean_length,
        "episodes": episodes.count,
        "timesteps": trainer.timesteps,
        "sps": (trainer.timesteps - first) / seconds,
        "seconds": seconds,
        "interrupted": error is None and is_incomplete and stopped_by in (None, CTRL_C, STOP),
        "stopped_by": stopped_by,
        "run_dir": None if trainer.run is None else str(trainer.run.path),
        "checkpoint_warning": None,
    }
