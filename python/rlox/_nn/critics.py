"""`Critics`: the values of actions, by several networks that are computed as one."""

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlox._nn.networks import ACTIVATIONS, mlp
from rlox._nn.optim import EACH


class StackedLinear(nn.Module):
    """Linear layers of several networks, computed together.

    In a `state_dict` each network has its own weights, by its own name: the name of this module
    must have `rlox._nn.optim.EACH` in it, in the place of "qf0", "qf1" and so on.

    Args:
        layers: One of each network, of one shape.

    >>> layers = [nn.Linear(2, 3), nn.Linear(2, 3)]
    >>> StackedLinear(layers)(torch.zeros(2, 5, 2)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """(networks, N, inputs) to (networks, N, outputs)."""
        # Which has a cheaper gradient than `baddbmm`.
        return torch.bmm(x, self.weight.mT).add_(self.bias.unsqueeze(1))

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        for name, stacked in (("weight", self.weight), ("bias", self.bias)):
            # Detached first: views of parameters take a lock of torch's, which a fork would copy.
            tensor = stacked if keep_vars else stacked.detach()
            for i, part in enumerate(tensor.unbind()):
                destination[prefix.replace(EACH, f"qf{i}") + name] = part


class Critics(nn.Module):
    """Q(s, a) of several MLPs behind common features, in one batched pass.

    Args:
        features, features_dim: From observations to (N, features_dim).
        action_dim: Numbers in an action.
        net_arch: Widths of the hidden layers.
        activation: Between layers.
        count: How many.
        generator: Decides the initial weights; None: torch's global one.

    >>> critics = Critics(nn.Identity(), 2, 1, (8,), nn.ReLU)
    >>> critics(torch.zeros(5, 2), torch.zeros(5, 1)).shape
    torch.Size([2, 5])
    >>> next(iter(critics.state_dict()))
    'qf0.0.weight'
    """

    def __init__(
        self,
        features: nn.Module,
        features_dim: int,
        action_dim: int,
        net_arch: Sequence[int],
        activation: type[nn.Module],
        count: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        sizes = [features_dim + action_dim, *net_arch, 1]
        nets = [mlp(sizes, activation, 1.0, False, generator) for _ in range(count)]
        layers: list[nn.Module] = []
        for parts in zip(*nets, strict=True):
            linear = isinstance(parts[0], nn.Linear)
            layers.append(StackedLinear(cast("Any", parts)) if linear else parts[0])
        self.add_module(EACH, nn.Sequential(*layers))
        self.count = count

    def forward(self, obs: Any, actions: Tensor) -> Tensor:
        """What each says of observations and actions (N, k): (critics, N)."""
        return self.values(self.features(obs), actions)

    def values(self, features: Tensor, actions: Tensor) -> Tensor:
        """The same, of features."""
        x = torch.cat((features, actions), 1)
        outputs: Tensor = self.get_submodule(EACH)(x.expand(self.count, *x.shape))
        return outputs.squeeze(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Puts the critics' own tensors together, under the names that torch knows here."""
        for name in [name for name in state_dict if name.startswith(f"{prefix}qf0.")]:
            rest = name[len(f"{prefix}qf0.") :]
            each = [f"{prefix}qf{i}.{rest}" for i in range(self.count)]
            if all(one in state_dict for one in each):
                stacked = torch.stack([state_dict.pop(one) for one in each])
                state_dict[f"{prefix}{EACH}.{rest}"] = stacked
        super()._load_from_state_dict(state_dict, prefix, *others)


def make_target_network(module: nn.Module) -> nn.Module:
    """A copy of a module that follows it by `polyak_update`, and learns nothing itself.

    Layers such as dropout do in it as in evaluation. What it draws comes from the same generator.
    """
    generators = (getattr(part, "generator", None) for part in module.modules())
    memo = {id(x): x for x in generators if isinstance(x, torch.Generator)}
    return copy.deepcopy(module, memo).requires_grad_(False).eval()


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Moves the parameters of a target towards those of its original, by a share; 1 copies.

    What else they keep, such as the statistics of batch normalisation, is copied.

    >>> online, target = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> polyak_update(target, online, tau=1.0)
    >>> bool(online.weight == target.weight)
    True
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for target_buffer, online_buffer in zip(target.buffers(), online.buffers(), strict=True):
        target_buffer.copy_(online_buffer)


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
