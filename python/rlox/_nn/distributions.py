"""Distributions of actions. Samples come from an explicit generator, not torch's global one."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """Batch of N action distributions."""

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample one action per row, with a generator on the device of the distribution."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities (N,) of actions, summed over components."""

    def entropy(self) -> Tensor:
        """Return the entropies (N,), summed over components."""

    def mode(self) -> Tensor:
        """Return the most probable action of each row."""


class Categorical:
    """Categorical distribution of n actions with logits (N, n)."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits, -1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample int64 actions (N,)."""
        # Of n exponential variables with rates p_i, the i-th is the smallest with probability p_i.
        clocks = torch.empty_like(self.log_probs).exponential_(generator=generator)
        return (self.log_probs - clocks.log_()).argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities (N,) of int64 actions (N,)."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropies (N,)."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 (N,)."""
        return self.log_probs.argmax(-1)


class MultiCategorical:
    """Independent categorical components with `counts[i]` values each; logits (N, sum(counts))."""

    def __init__(self, logits: Tensor, counts: Sequence[int]) -> None:
        self.components = [Categorical(part) for part in logits.split(list(counts), -1)]

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample int64 actions (N, k)."""
        return torch.stack([part.sample(generator) for part in self.components], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities (N,) of actions (N, k)."""
        pairs = zip(self.components, action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(column) for part, column in pairs]).sum(0)

    def entropy(self) -> Tensor:
        """Return the entropies (N,)."""
        return torch.stack([part.entropy() for part in self.components]).sum(0)

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 (N, k)."""
        return torch.stack([part.mode() for part in self.components], -1)


class Bernoulli:
    """Independent Bernoulli components, each 1 with probability sigmoid(logit); logits (N, k)."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample int64 actions (N, k)."""
        uniform = torch.empty_like(self.logits).uniform_(generator=generator)
        return (uniform < self.logits.sigmoid()).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities (N,) of actions (N, k)."""
        signs = 2 * action.to(self.logits.dtype) - 1
        return F.logsigmoid(signs * self.logits).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropies (N,)."""
        on, off = F.logsigmoid(self.logits), F.logsigmoid(-self.logits)
        return -(on.exp() * on + off.exp() * off).sum(-1)

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 (N, k)."""
        return (self.logits > 0).long()


def apply_mask(logits: Tensor, flags: Tensor) -> Tensor:
    """Return logits with a probability of about 0 for disallowed actions.

    Args:
        logits: (N, n) of categorical distributions, or (N, k) of `Bernoulli`.
        flags: (N, n), or (N, 2 * k) for the values 0 and 1 of each component. True marks an allowed value.

    >>> apply_mask(torch.zeros(1, 2), torch.tensor([[True, False, True, True]])).sigmoid()
    tensor([[0.0000, 0.5000]])
    """
    # With -inf instead, the entropy would be NaN, because 0 * -inf is NaN.
    least = torch.finfo(logits.dtype).min
    if flags.shape == logits.shape:
        return logits.masked_fill(~flags, least)
    off, on = flags.unflatten(-1, (-1, 2)).unbind(-1)
    return logits.masked_fill(~on, least).masked_fill(~off, -least)


class Gaussian:
    """Independent normal components.

    Args:
        mean: (N, k).
        std: (k,) or (N, k).
        noise: (N, k), added to the mean by `sample` instead of a random draw.
    """

    def __init__(self, mean: Tensor, std: Tensor, noise: Tensor | None = None) -> None:
        self.mean, self.std, self.noise = mean, std, noise

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sample actions (N, k)."""
        if self.noise is not None:
            return self.mean + self.noise
        return self.mean + self.std * torch.empty_like(self.mean).normal_(generator=generator)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-densities (N,) of actions (N, k)."""
        z = (action - self.mean) / self.std
        return (-0.5 * z * z - self.std.log() - LOG_SQRT_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropies (N,)."""
        return (0.5 + LOG_SQRT_2PI + self.std.log()).expand_as(self.mean).sum(-1)

    def mode(self) -> Tensor:
        """Return the means (N, k)."""
        return self.mean
