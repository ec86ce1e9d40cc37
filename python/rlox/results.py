"""What training and evaluation give back."""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from rlox.trainer import Trainer


class TrainResult(TypedDict):
    """What `train` returns."""

    mean_reward: float  # mean return of the last 100 finished episodes; NaN before the first
    mean_length: float  # their mean number of steps
    episodes: int  # finished so far
    timesteps: int  # learned from so far, all environments and all calls of `train` together
    sps: float  # steps per second of this call, updates included
    seconds: float  # how long this call took
    interrupted: bool  # Ctrl-C or `stop` ended it before all steps were made; `train()` goes on
    run_dir: str | None  # the run folder, where there is one
    left_out: str | None  # what there was no room for in the run's checkpoint, and why


class EvaluationResult(TypedDict):
    """What `evaluate` gives."""

    mean_reward: float  # mean of `returns`
    std_reward: float  # standard deviation of `returns`
    returns: list[float]  # the sum of raw rewards of each episode
    lengths: list[int]  # the steps of each episode


def train_result(trainer: "Trainer", first: int, seconds: float) -> TrainResult:
    """What a call of `Trainer.train` gives back.

    Args:
        trainer: At the end of the call.
        first: The steps it had learned from at the beginning.
        seconds: What the call took.
    """
    episodes = trainer.learner.episodes
    return {
        "mean_reward": episodes.mean_return,
        "mean_length": episodes.mean_length,
        "episodes": episodes.count,
        "timesteps": trainer.timesteps,
        "sps": (trainer.timesteps - first) / seconds,
        "seconds": seconds,
        "interrupted": trainer.timesteps < trainer.target_timesteps,
        "run_dir": None if trainer.run is None else str(trainer.run.path),
        "left_out": None,
    }
