"""Critics, Q-networks and target networks."""

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlox._nn.networks import ACTIVATIONS, mlp
from rlox._nn.optim import EACH
from rlox._nn.runtime import TensorObs


class StackedLinear(nn.Module):
    """Linear layers of several networks, computed in one batched matrix product.

    A `state_dict` lists the weights of each network under a separate name. Therefore the name of
    this module in its parent must contain `rlox._nn.optim.EACH`, the placeholder for "qf0", "qf1"
    and so on.

    Args:
        layers: One layer per network, all of the same shape.

    >>> layers = [nn.Linear(2, 3), nn.Linear(2, 3)]
    >>> StackedLinear(layers)(torch.zeros(2, 5, 2)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """Map (networks, N, inputs) to (networks, N, outputs)."""
        # The backward pass of `bmm` and `add_` is faster than that of `baddbmm`.
        return torch.bmm(x, self.weight.mT).add_(self.bias.unsqueeze(1))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, stacked in (("weight", self.weight), ("bias", self.bias)):
            # A view of a parameter acquires a lock of torch, which a fork would copy. Detach first.
            tensor = stacked if keep_vars else stacked.detach()
            for i, part in enumerate(tensor.unbind()):
                destination[prefix.replace(EACH, f"qf{i}") + name] = part


class Critics(nn.Module):
    """Q(s, a) of several MLPs on shared features, computed in one batched pass.

    Args:
        features: Module that maps observations to features (N, features_dim).
        features_dim: Number of features.
        action_dim: Number of components of an action.
        net_arch: Sizes of the hidden layers.
        activation: Class of the activation between layers.
        count: Number of critics.
        generator: Generator of the initial weights; None: torch's global generator.

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

    def forward(self, obs: TensorObs, actions: Tensor) -> Tensor:
        """Return the values (critics, N) of observations and actions (N, k)."""
        return self.values(self.features(obs), actions)

    def values(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the values (critics, N) of features (N, features_dim) and actions (N, k)."""
        x = torch.cat((features, actions), 1)
        outputs: Tensor = self.get_submodule(EACH)(x.expand(self.count, *x.shape))
        return outputs.squeeze(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load a `state_dict` with the tensors of each critic: stack the tensors of all critics."""
        for name in [name for name in state_dict if name.startswith(f"{prefix}qf0.")]:
            rest = name[len(f"{prefix}qf0.") :]
            names = [f"{prefix}qf{i}.{rest}" for i in range(self.count)]
            if all(key in state_dict for key in names):
                stacked = torch.stack([state_dict.pop(key) for key in names])
                state_dict[f"{prefix}{EACH}.{rest}"] = stacked
        super()._load_from_state_dict(state_dict, prefix, *others)


def make_target_network(module: nn.Module) -> nn.Module:
    """Return a copy of a module in evaluation mode, without gradients, for `polyak_update`.

    The copy shares the random generators of the module.
    """
    generators = (getattr(part, "generator", None) for part in module.modules())
    memo = {id(x): x for x in generators if isinstance(x, torch.Generator)}
    return copy.deepcopy(module, memo).requires_grad_(False).eval()


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Update the parameters of a target in place: `target += tau * (online - target)`.

    Buffers, such as the statistics of batch normalization, are copied.

    >>> online, target = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> polyak_update(target, online, tau=1.0)
    >>> bool(online.weight == target.weight)
    True
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for target_buffer, online_buffer in zip(target.buffers(), online.buffers(), strict=True):
        target_buffer.copy_(online_buffer)


class FeaturedMlp(nn.Sequential):
    """MLP on features. Parameters are named as in a Sequential, such as "0.weight".

    Args:
        features: Module with an attribute `features_dim` that maps observations to features
            (N, features_dim).
        outputs: Number of outputs per observation.
        net_arch: Sizes of the hidden layers.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        init: Generator of the initial weights; None: torch's global generator.
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

    def forward(self, obs: TensorObs) -> Tensor:
        """Map observations to (N, outputs)."""
        x: Tensor = self.features(obs)
        for part in list(self)[: self.depth]:
            x = part(x)
        return x


class Actor(FeaturedMlp):
    """Deterministic actor: a `FeaturedMlp` with tanh outputs."""

    def forward(self, obs: TensorObs) -> Tensor:
        """Map observations to actions (N, k) in [-1, 1]."""
        return super().forward(obs).tanh()


class DuelingNetwork(FeaturedMlp):
    """Dueling Q-network (Wang et al. 2016); the last output of the MLP is the state value."""

    def forward(self, obs: TensorObs) -> Tensor:
        """Map observations to action values (N, outputs - 1)."""
        out = super().forward(obs)
        advantages, value = out[:, :-1], out[:, -1:]
        return value + advantages - advantages.mean(1, keepdim=True)


class DeterministicPolicy(nn.Module):
    """Deterministic actor with actions in [-1, 1] and two critics (TD3).

    Args:
        action_space: Box action space.
        actor_features: Features extractor of the actor, as `features` of `FeaturedMlp`.
        critic_features: Features extractor of the critics.
        net_arch, activation, init: As for `FeaturedMlp`; used for the actor and the critics.
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
