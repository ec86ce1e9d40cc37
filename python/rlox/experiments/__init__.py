"""Training of several runs: many seeds or settings, and hyperparameter searches."""

from rlox.experiments.many import train_many
from rlox.experiments.space import Choices, Range, Space, default_space
from rlox.experiments.sweep import Sweep

__all__ = ["Choices", "Range", "Space", "Sweep", "default_space", "train_many"]
