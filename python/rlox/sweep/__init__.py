"""Searching for settings: many trials of one algorithm on one environment. Needs `rlox[sweep]`.

The command is `rlox sweep`; `docs/cli.md` shows it.
"""

from rlox.sweep.space import Choices, Range, as_space, default_space
from rlox.sweep.study import Plan, Sweep

__all__ = ["Choices", "Plan", "Range", "Sweep", "as_space", "default_space"]
