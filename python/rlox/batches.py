"""`Batch`: steps to learn from, as torch tensors."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlox._rlox import RolloutBuffer


class Batch(NamedTuple):
    """B steps of what was collected."""

    obs: Any  # (B, *obs_shape), normalised; rows of a `Layout`, or what policies take
    actions: Tensor  # (B, *action_shape) int64 or float32, as the policy said them
    log_probs: Tensor  # (B,) float32, when collected
    values: Tensor  # (B,) float32, when collected
    advantages: Tensor  # (B,) float32
    returns: Tensor  # (B,) float32, advantages + values
    masks: Tensor | None = None  # (B, n) bool, which actions were allowed; None: all

    @classmethod
    def views_of(cls, buffer: RolloutBuffer, masks: Tensor | None) -> "Batch":
        """All rows of a buffer, whatever it holds from now on, and of (T, N, n) masks; no copy."""
        fields = [torch.from_numpy(buffer.field(name)) for name in cls._fields[:-1]]
        return cls._make(None if x is None else x.flatten(0, 1) for x in (*fields, masks))

    def to(self, device: torch.device) -> "Batch":
        """The same steps on a device."""
        return Batch._make(None if x is None else x.to(device) for x in self)

    def at(self, index: Tensor) -> "Batch":
        """The steps of these indices, or where a mask is true."""
        return Batch._make(None if x is None else x[index] for x in self)
