"""Result of `train`."""

from typing import TypedDict

from rlox._training.run import CTRL_C, STOP, Run


class TrainResult(TypedDict):
    """Result of `train`."""

    mean_reward: float  # mean return of the last 100 finished episodes; NaN before the first
    mean_length: float  # mean number of steps of these episodes
    episodes: int  # finished episodes so far
    timesteps: int  # budget used so far, over all calls of `train`: environment steps
    sps: float  # steps per second of this call, including updates
    seconds: float  # duration of this call
    # True if Ctrl-C or `stop()` without a reason ended the call early; `train()` continues the run.
    interrupted: bool
    stopped_by: str | None  # "Ctrl-C", "stop()", the reason of `stop`, an error, or None
    run_dir: str | None  # run folder
    checkpoint_warning: str | None  # part that the run's checkpoint lacks, and the reason


def train_result(run: Run, first: int, seconds: float, error: BaseException | None = None) -> TrainResult:
    """Return the result of a call of `train` that started at the budget `first`, and maybe ended with an error."""
    episodes = run.learner.episodes
    stopped_by = run.stopped_by
    is_incomplete = run.budget_used < run.budget_end
    if error is not None:
        stopped_by = f"{type(error).__name__}: {error}"
    elif not is_incomplete and stopped_by in (CTRL_C, STOP):  # the stop came after the last step
        stopped_by = None
    return {
        "mean_reward": episodes.mean_return,
        "mean_length": episodes.mean_length,
        "episodes": episodes.count,
        "timesteps": run.budget_used,
        "sps": (run.budget_used - first) / seconds,
        "seconds": seconds,
        "interrupted": error is None and is_incomplete and stopped_by in (None, CTRL_C, STOP),
        "stopped_by": stopped_by,
        "run_dir": None if run.path is None else str(run.path),
        "checkpoint_warning": None,
    }
