"""Callbacks of training runs: `trainer.train(callbacks=[...])`.

Frequencies count the environment steps of all environments together.
"""

from rlox._timing import EveryNSteps
from rlox._training.run import Callback, Run
from rlox.callbacks.checkpointing import CheckpointCallback
from rlox.callbacks.evaluation import EvalCallback
from rlox.callbacks.progress import ProgressBar, TimingCallback
from rlox.callbacks.stopping import EarlyStoppingCallback
from rlox.callbacks.video import VideoRecordingCallback

__all__ = [
    "Callback",
    "CheckpointCallback",
    "EarlyStoppingCallback",
    "EvalCallback",
    "EveryNSteps",
    "ProgressBar",
    "Run",
    "TimingCallback",
    "VideoRecordingCallback",
]
