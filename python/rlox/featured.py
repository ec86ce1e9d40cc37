"""`FeaturedMlp`: layers behind features; the built-in Q-network and TD3's built-in policy."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlox.critics import Critics
from rlox.networks import ACTIVATIONS, mlp


class FeaturedMlp(nn.Sequential):
    """An MLP behind features, whose layers have the names that a Sequential's have, "0.weight".

    Args:
        features: From observations to (N, features_dim).
        outputs: Of each row.
        net_arch: Widths of the hidden layers.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        init: Decides the initial weights; None: torch's global generator.
    """

    def __init__(
        self,
        features: nn.Module,
        outputs: int,
        net_arch: Sequence[int],
        activation: str,
        init: torch.Generator | None = None,
    ) -> None:
        sizes = [int(features.features_dim), *net_arch, outputs]  # type: ignore[arg-type]  # an int
        layers = mlp(sizes, ACTIVATIONS[activation], 1.0, False, init)
        super().__init__(*layers)
        self.depth = len(layers)
        self.features = features

    def forward(self, obs: Any) -> Tensor:
        """Observations to (N, outputs)."""
        x: Tensor = self.features(obs)
        for part in list(self)[: self.depth]:
            x = part(x)
        return x


class Actor(FeaturedMlp):
    """A `FeaturedMlp` whose outputs a hyperbolic tangent squashes."""

    def forward(self, obs: Any) -> Tensor:
        """Observations to actions (N, k) in [-1, 1]."""
        return super().forward(obs).tanh()


class DuelingNetwork(FeaturedMlp):
    """A `FeaturedMlp` of advantages and, last, a value (Wang et al. 2016)."""

    def forward(self, obs: Any) -> Tensor:
        """Observations to the values of actions, (N, outputs - 1)."""
        out = super().forward(obs)
        advantages, value = out[:, :-1], out[:, -1:]
        return value + advantages - advantages.mean(1, keepdim=True)


class DeterministicPolicy(nn.Module):
    """An actor of one action a state, between -1 and 1, and two critics.

    Args:
        action_space: Box.
        actor_features, critic_features: From observations to (N, features_dim), one each.
        net_arch, activation, init: As for `FeaturedMlp`; actor and critics have the same layers.
    """

    def __init__(
        self,
        action_space: gym.Space[Any],
        actor_features: nn.Module,
        critic_features: nn.Module,
        *,
        net_arch: Sequence[int],
        activation: str,
        init: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        layer, actions = ACTIVATIONS[activation], math.prod(action_space.shape or ())
        self.actor = Actor(actor_features, actions, net_arch, activation, init)
        width = int(critic_features.features_dim)  # type: ignore[arg-type]  # an int
        self.critic = Critics(critic_features, width, actions, net_arch, layer, generator=init)


def q_network(
    features: nn.Module,
    actions: int,
    net_arch: Sequence[int],
    activation: str,
    dueling: bool,
    init: torch.Generator | None = None,
) -> FeaturedMlp:
    """A network from observations to the values of so many actions."""
    if dueling:
        return DuelingNetwork(features, actions + 1, net_arch, activation, init)
    return FeaturedMlp(features, actions, net_arch, activation, init)
