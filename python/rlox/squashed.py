"""`SquashedPolicy`: SAC's built-in policy, normal numbers squashed into [-1, 1], with critics."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlox.critics import Critics
from rlox.networks import ACTIVATIONS, mlp

# Logarithms of standard deviations, and gSDE's means, are cut to these, as Stable-Baselines3 does.
LOG_STD = (-20.0, 2.0)
CLIP_MEAN = 2.0
_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class SquashedPolicy(nn.Module):
    """An actor that squashes normal numbers by a hyperbolic tangent, and two critics.

    The actor sees what the critics' features are, without a gradient to them: features with
    weights learn by the critics' loss.

    Args:
        observation_space: Of one environment.
        action_space: Box.
        features: From observations to (N, features_dim).
        net_arch: Widths of the hidden layers of actor and critics.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        use_sde: State-dependent exploration (Raffin et al. 2021): a sample adds `latent @ matrix`
            to the mean, where `latent` is the actor's last hidden layer and the entries of the
            matrix have deviations `exp(log_std)`. Environments keep a matrix each until
            `reset_noise`; what updates sample has one for all rows, and for all samples within
            `one_matrix`. As in Stable-Baselines3's SAC, and unlike PPO's gSDE, the layer learns
            from the noise, too.
        log_std_init: Where `log_std` of gSDE begins.
        init: Decides the initial weights; None: torch's global generator.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        features: nn.Module,
        net_arch: Sequence[int],
        activation: str,
        use_sde: bool = False,
        log_std_init: float = -3.0,
        init: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        layer, width = ACTIVATIONS[activation], int(features.features_dim)  # type: ignore[arg-type]  # an int
        self.actions = math.prod(action_space.shape or ())
        outputs = self.actions if use_sde else 2 * self.actions
        self.actor = mlp([width, *net_arch, outputs], layer, 1.0, False, init)
        if use_sde:
            hidden = net_arch[-1] if net_arch else width
            self.log_std = nn.Parameter(torch.full((hidden, self.actions), log_std_init))
        self.critic = Critics(features, width, self.actions, net_arch, layer, generator=init)
        self.use_sde = use_sde
        self.exploration: Tensor | None = None
        self._drawn: Tensor | None = None  # what matrices are made of within `one_matrix`
        self.generator: torch.Generator | None = None

    def reset_noise(self, rows: int) -> None:
        """With gSDE, draws a new exploration matrix for each of so many rows."""
        if self.use_sde:
            self.exploration = self._matrices(rows).detach()

    @contextmanager
    def one_matrix(self) -> Iterator[None]:
        """Within it, with gSDE, one matrix makes all samples of `get_action_and_logprob`."""
        if self.use_sde:
            self._drawn = self._normals(1)
        try:
            yield
        finally:
            self._drawn = None

    def _normals(self, count: int) -> Tensor:
        drawn = torch.empty((count, *self.log_std.shape), device=self.log_std.device)
        return drawn.normal_(generator=self.generator)

    def _matrices(self, count: int) -> Tensor:
        return self.log_std.exp() * self._normals(count)

    def _latent(self, obs: Any) -> Tensor:
        """The actor's last hidden layer."""
        latent: Tensor = self.critic.features(obs).detach()
        for part in list(self.actor)[:-1]:
            latent = part(latent)
        return latent

    def mode(self, obs: Any) -> Tensor:
        """The greedy actions, (N, k)."""
        out: Tensor = self.actor[-1](self._latent(obs))
        if self.use_sde:
            return out.clamp(-CLIP_MEAN, CLIP_MEAN).tanh()
        return out[:, : self.actions].tanh()

    def explore(self, obs: Any) -> Tensor:
        """Samples, (N, k): with gSDE by `reset_noise`'s matrices, if there is one for each row."""
        exploration = self.exploration
        if not self.use_sde or exploration is None:
            return self.get_action_and_logprob(obs)[0]
        latent = self._latent(obs)
        if len(exploration) != len(latent):
            return self.get_action_and_logprob(obs)[0]
        mean: Tensor = self.actor[-1](latent).clamp(-CLIP_MEAN, CLIP_MEAN)
        return (mean + torch.bmm(latent.unsqueeze(1), exploration).squeeze(1)).tanh()

    def get_action_and_logprob(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Samples (N, k), through which gradients flow, and their log-probabilities (N,)."""
        latent = self._latent(obs)
        out = self.actor[-1](latent)
        if self.use_sde:
            mean = out.clamp(-CLIP_MEAN, CLIP_MEAN)
            variance = (latent**2) @ (2 * self.log_std).exp() + 1e-6
            drawn = self._normals(1) if self._drawn is None else self._drawn
            noise = latent @ (self.log_std.exp() * drawn[0])
            density = -0.5 * noise**2 / variance - 0.5 * variance.log()
        else:
            mean, log_std = out.chunk(2, 1)
            log_std = log_std.clamp(*LOG_STD)
            drawn = torch.empty_like(mean).normal_(generator=self.generator)
            noise = log_std.exp() * drawn
            density = -0.5 * drawn**2 - log_std
        u = mean + noise
        # The logarithm of the tangent's slope, 1 - tanh(u)^2, which keeps its digits.
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return u.tanh(), (density - log_slope - _HALF_LOG_2_PI).sum(1)
