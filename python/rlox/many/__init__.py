"""Many runs side by side: seeds, settings, or both, each equal to the same run done alone."""

from rlox.many.together import Runs, RunsFailedError, runs, train_many

__all__ = ["Runs", "RunsFailedError", "runs", "train_many"]
