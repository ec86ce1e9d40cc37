"""What happens around the iterations of a run: `trainer.train(callbacks=[...])`.

All frequencies are in environment steps, all environments together.
"""

from rlox.callbacks.base import Callback, FunctionCallback, as_callback, as_callbacks
from rlox.callbacks.checkpointing import CheckpointCallback
from rlox.callbacks.evaluating import EvalCallback
from rlox.callbacks.progress import ProgressBar
from rlox.callbacks.stopping import EarlyStoppingCallback
from rlox.callbacks.timing import TimingCallback
from rlox.callbacks.video import VideoRecordingCallback
from rlox.every import Every

__all__ = [
    "Callback",
    "CheckpointCallback",
    "EarlyStoppingCallback",
    "EvalCallback",
    "Every",
    "FunctionCallback",
    "ProgressBar",
    "TimingCallback",
    "VideoRecordingCallback",
    "as_callback",
    "as_callbacks",
]
