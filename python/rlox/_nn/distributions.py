"""Distributions of actions. Samples come from a given generator, never from torch's global one."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """Of one action in each of N rows."""

    def sample(self, generator: torch.Generator) -> Tensor:
        """One action for each row."""

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,), of whole actions."""

    def entropy(self) -> Tensor:
        """(N,), of whole actions."""

    def mode(self) -> Tensor:
        """The most probable actions."""


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


class MultiCategorical:
    """Independent components, each one of `counts[i]` values, from logits (N, sum(counts))."""

    def __init__(self, logits: Tensor, counts: Sequence[int]) -> None:
        self.components = [Categorical(part) for part in logits.split(list(counts), -1)]

    def sample(self, generator: torch.Generator) -> Tensor:
        """(N, k) int64."""
        return torch.stack([part.sample(generator) for part in self.components], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,), of the components together."""
        pairs = zip(self.components, action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(column) for part, column in pairs]).sum(0)

    def entropy(self) -> Tensor:
        """(N,), of the components together."""
        return torch.stack([part.entropy() for part in self.components]).sum(0)

    def mode(self) -> Tensor:
        """(N, k)."""
        return torch.stack([part.mode() for part in self.components], -1)


class Bernoulli:
    """Independent components that are 1 with probability sigmoid(logits), logits (N, k)."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: torch.Generator) -> Tensor:
        """(N, k) int64."""
        uniform = torch.empty_like(self.logits).uniform_(generator=generator)
        return (uniform < self.logits.sigmoid()).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """(N,), of the components together."""
        signs = 2 * action.to(self.logits.dtype) - 1
        return F.logsigmoid(signs * self.logits).sum(-1)

    def entropy(self) -> Tensor:
        """(N,), of the components together."""
        on, off = F.logsigmoid(self.logits), F.logsigmoid(-self.logits)
        return -(on.exp() * on + off.exp() * off).sum(-1)

    def mode(self) -> Tensor:
        """(N, k) int64."""
        return (self.logits > 0).long()


def apply_mask(logits: Tensor, flags: Tensor) -> Tensor:
    """Logits that leave next to no probability to what is not allowed.

    Args:
        logits: (N, n) of categorical distributions, or (N, k) of `Bernoulli`.
        flags: (N, n), or (N, 2 * k) for the 0 and 1 of each component; True is allowed.

    >>> apply_mask(torch.zeros(1, 2), torch.tensor([[True, False, True, True]])).sigmoid()
    tensor([[0.0000, 0.5000]])
    """
    # The smallest number, not -inf: 0 * log 0 shall be 0 in the entropy.
    least = torch.finfo(logits.dtype).min
    if flags.shape == logits.shape:
        return logits.masked_fill(~flags, least)
    off, on = flags.unflatten(-1, (-1, 2)).unbind(-1)
    return logits.masked_fill(~on, least).masked_fill(~off, -least)


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
