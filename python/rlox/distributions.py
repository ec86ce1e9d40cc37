"""Distributions of actions. Samples come from a given generator, never from torch's global one."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Categorical:
    """One of n actions, from logits (N, n). Samples come from the generator given."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits, -1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """(N,) int64."""
        # The first of n exponential clocks with rates p_i to ring is i with probability p_i.
        clocks = torch.empty_like(self.log_probs).exponential_(generator=generator)
        return (self.log_probs - clocks.log_()).argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,)."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """(N,)."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def mode(self) -> Tensor:
        """(N,), the most probable actions."""
        return self.log_probs.argmax(-1)


class Gaussian:
    """Independent normal components, mean (N, k) and std (k,) or (N, k).

    `noise`, (N, k), is what a sample adds to the mean, if that is decided elsewhere.
    """

    def __init__(self, mean: Tensor, std: Tensor, noise: Tensor | None = None) -> None:
        self.mean, self.std, self.noise = mean, std, noise

    def sample(self, generator: torch.Generator) -> Tensor:
        """(N, k)."""
        if self.noise is not None:
            return self.mean + self.noise
        return self.mean + self.std * torch.empty_like(self.mean).normal_(generator=generator)

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,), of the components together."""
        z = (action - self.mean) / self.std
        return (-0.5 * z * z - self.std.log() - _LOG_SQRT_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """(N,), of the components together."""
        return (0.5 + _LOG_SQRT_2PI + self.std.log()).expand_as(self.mean).sum(-1)

    def mode(self) -> Tensor:
        """(N, k)."""
        return self.mean
