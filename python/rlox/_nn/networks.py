"""Layers and MLPs of the built-in policies."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlox._system import check_memory

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def make_layer(layer_type: type[Layer], *sizes: int, generator: torch.Generator | None, **kwargs: int) -> Layer:
    """Create a linear or convolutional layer with torch's default initialization.

    The weights come from `generator`, because other threads may draw from torch's global generator.

    Args:
        layer_type: `nn.Linear` or `nn.Conv2d`.
        *sizes: Positional arguments of the layer.
        generator: Generator of the weights; None: torch's global generator.
        **kwargs: Keyword arguments of the layer.

    >>> first = make_layer(nn.Linear, 2, 3, generator=torch.Generator().manual_seed(0))
    >>> second = make_layer(nn.Linear, 2, 3, generator=torch.Generator().manual_seed(0))
    >>> bool((first.weight == second.weight).all())
    True
    """
    # Skips the default initialization; `nn.utils.skip_init` would import much more of torch.
    blank: Any = type(layer_type.__name__, (layer_type,), {"reset_parameters": lambda self: None})
    module: Layer = blank(*sizes, **kwargs)
    module.__class__ = layer_type
    # Weights and biases are uniform in [-bound, bound], bound = 1 / sqrt(inputs per unit).
    inputs = math.prod(module.weight.shape[1:])
    if module.weight.numel() > 0:  # torch warns for empty weights
        nn.init.kaiming_uniform_(module.weight, math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(inputs) if inputs > 0 else 0.0
    assert module.bias is not None
    nn.init.uniform_(module.bias, -bound, bound, generator=generator)
    return module


def init_orthogonal(module: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator | None) -> None:
    """Initialize weights orthogonally and biases with 0, in place."""
    nn.init.orthogonal_(module.weight, gain, generator)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def mlp(
    sizes: Sequence[int],
    activation: type[nn.Module],
    head_gain: float,
    ortho_init: bool,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Create an MLP: linear layers with activations between them.

    Args:
        sizes: Number of inputs, sizes of the hidden layers, and number of outputs.
        activation: Class of the activation.
        head_gain: Gain of the last layer with `ortho_init`; other layers have the gain sqrt(2).
        ortho_init: Initialize weights orthogonally and biases with 0. If False, as torch does.
        generator: Generator of the weights; None: torch's global generator.

    Raises:
        OutOfMemoryError: The weights, gradients and optimizer state do not fit into memory.
    """
    # Each weight needs 16 bytes: weight, gradient and two running means of Adam, in float32.
    needed = 16 * sum((width_in + 1) * width_out for width_in, width_out in pairwise(sizes))
    check_memory("net_arch", list(sizes[1:-1]), needed)
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [make_layer(nn.Linear, width_in, width_out, generator=generator), activation()]
    net = nn.Sequential(*layers[:-1])
    if ortho_init:
        linear = [part for part in net if isinstance(part, nn.Linear)]
        for part in linear:
            init_orthogonal(part, head_gain if part is linear[-1] else math.sqrt(2), generator)
    return net


def fuse_mlps(first: nn.Module, second: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """Return a function that computes two MLPs in one pass, without gradients, or None.

    Both networks must come from `mlp`, without hooks, and have the same hidden layers and
    activation; otherwise the result is None. Joint computation takes half the time for small
    layers. The function has copies of the hidden weights, so create it again after an update.

    >>> nets = [mlp([3, 8, 8, n], nn.Tanh, 1.0, ortho_init=True) for n in (2, 1)]
    >>> obs = torch.ones(5, 3)
    >>> all(torch.allclose(a, n(obs), atol=1e-6) for a, n in zip(fuse_mlps(*nets)(obs), nets))
    True
    """
    first_parts, second_parts = _plain(first), _plain(second)
    if first_parts is None or second_parts is None:
        return None
    (first_layers, activation), (second_layers, second_activation) = first_parts, second_parts
    shapes = [[layer.weight.shape for layer in net[:-1]] for net in (first_layers, second_layers)]
    if len(first_layers) < 2 or shapes[0] != shapes[1] or type(activation) is not type(second_activation):
        return None
    with torch.no_grad():
        weight = torch.cat([first_layers[0].weight, second_layers[0].weight]).T.contiguous()
        bias = torch.cat([first_layers[0].bias, second_layers[0].bias])
        middle = [
            (torch.stack([a.bias, b.bias])[:, None], torch.stack([a.weight.T, b.weight.T]))
            for a, b in zip(first_layers[1:-1], second_layers[1:-1], strict=True)
        ]

    @torch.no_grad()
    def run(obs: Tensor) -> tuple[Tensor, Tensor]:
        latent = activation(torch.addmm(bias, obs, weight))
        latent = latent.view(len(obs), 2, -1).transpose(0, 1)
        for biases, weights in middle:
            latent = activation(torch.baddbmm(biases, latent, weights))
        heads = zip(latent, (first_layers[-1], second_layers[-1]), strict=True)
        out, other = (F.linear(x, head.weight, head.bias) for x, head in heads)
        return out, other

    return run


def _plain(net: nn.Module) -> tuple[list[nn.Linear], nn.Module] | None:
    """Return linear layers and activation of an unmodified result of `mlp`, else None."""
    layers = list(net) if type(net) is nn.Sequential else []
    linear, between = layers[::2], layers[1::2]
    watched = any(part._forward_hooks or part._forward_pre_hooks for part in (net, *layers))
    right = all(type(x) is nn.Linear and isinstance(x.bias, Tensor) for x in linear)
    right = right and len(linear) == len(between) + 1
    kinds = {type(layer) for layer in between}
    if watched or not right or len(kinds) != 1 or not kinds < {*ACTIVATIONS.values()}:
        return None
    return [layer for layer in linear if isinstance(layer, nn.Linear)], between[0]
