"""Several runs: seeds of one setting, and searches for settings."""

from rlox.experiments.many import train_many
from rlox.experiments.space import Choices, Range, Space, default_space
from rlox.experiments.sweep import Plan, Sweep

__all__ = ["Choices", "Plan", "Range", "Space", "Sweep", "default_space", "train_many"]
