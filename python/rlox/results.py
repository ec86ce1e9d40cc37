"""What training and evaluation give back."""

from typing import TypedDict


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


class EvaluationResult(TypedDict):
    """What `evaluate` gives."""

    mean_reward: float  # mean of `returns`
    std_reward: float  # standard deviation of `returns`
    returns: list[float]  # the sum of raw rewards of each episode
    lengths: list[int]  # the steps of each episode
