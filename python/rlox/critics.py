"""`Critics`: the values of actions, by several networks that are computed as one."""

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlox.networks import mlp
from rlox.optimizer import EACH


class StackedLinear(nn.Module):
    """Linear layers of several networks, computed together.

    In a `state_dict` each network has its own weights, by its own name: the name of this module
    must have `rlox.optimizer.EACH` in it, in the place of "qf0", "qf1" and so on.

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
            told = stacked if keep_vars else stacked.detach()
            for i, own in enumerate(told.unbind()):
                destination[prefix.replace(EACH, f"qf{i}") + name] = own


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
        said: Tensor = self.get_submodule(EACH)(x.expand(self.count, *x.shape))
        return said.squeeze(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Puts the critics' own tensors together, under the names that torch knows here."""
        for name in [name for name in state_dict if name.startswith(f"{prefix}qf0.")]:
            rest = name[len(f"{prefix}qf0.") :]
            each = [f"{prefix}qf{i}.{rest}" for i in range(self.count)]
            if all(one in state_dict for one in each):
                stacked = torch.stack([state_dict.pop(one) for one in each])
                state_dict[f"{prefix}{EACH}.{rest}"] = stacked
        super()._load_from_state_dict(state_dict, prefix, *others)


def target_of(module: nn.Module) -> nn.Module:
    """A copy of a module that follows it by `follow`, and learns nothing itself.

    Layers such as dropout do in it as in evaluation. What it draws comes from the same generator.
    """
    drawing = (getattr(part, "generator", None) for part in module.modules())
    kept = {id(x): x for x in drawing if isinstance(x, torch.Generator)}
    return copy.deepcopy(module, kept).requires_grad_(False).eval()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Moves the parameters of a target towards those of its original, by a share; 1 copies.

    What else they keep, such as the statistics of batch normalisation, is copied.

    >>> online, target = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> follow(target, online, tau=1.0)
    >>> bool(online.weight == target.weight)
    True
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for ours, theirs in zip(target.buffers(), online.buffers(), strict=True):
        ours.copy_(theirs)
