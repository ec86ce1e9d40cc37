"""Layers that built-in policies are made of."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def mlp(
    sizes: Sequence[int], activation: type[nn.Module], head_gain: float, ortho_init: bool
) -> nn.Sequential:
    """Linear layers of these sizes with activations between them.

    With `ortho_init`, weights are orthogonal with gain sqrt(2), the last layer's with `head_gain`,
    and biases 0; without, they start as torch's linear layers do.
    """
    layers: list[nn.Module] = []
    try:
        for width_in, width_out in pairwise(sizes):
            layers += [nn.Linear(width_in, width_out), activation()]
    except (RuntimeError, TypeError) as error:  # torch's ways to say so
        raise MemoryError(f"net_arch: expected layers that fit in memory, got {sizes}") from error
    net = nn.Sequential(*layers[:-1])
    if ortho_init:
        linear = [layer for layer in net if isinstance(layer, nn.Linear)]
        for layer in linear:
            nn.init.orthogonal_(layer.weight, head_gain if layer is linear[-1] else math.sqrt(2))
            nn.init.zeros_(layer.bias)
    return net
