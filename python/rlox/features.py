"""Feature extractors: modules that map observations to one vector each."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import has_parts, is_image
from rlox._nn.networks import init_orthogonal, make_layer
from rlox._nn.runtime import TensorObs, evaluating, zeros
from rlox._registry import ENCODERS, find_encoder
from rlox._validation import check_int, short_repr

__all__ = ["Combined", "FeaturesExtractor", "Flatten", "NatureCNN", "register_encoder"]

# Function from an observation space to a module with an attribute `features_dim`.
FeaturesExtractor: TypeAlias = Callable[[gym.Space[Any]], nn.Module]
# Smallest height and width for which the convolutions of `NatureCNN` have an output.
_SMALLEST = 36


class Flatten(nn.Module):
    """Flattened observations: Discrete and MultiDiscrete one-hot, images scaled to [0, 1].

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary space.

    >>> Flatten(spaces.MultiDiscrete([2, 3]))(torch.tensor([[1, 0]]))
    tensor([[0., 1., 1., 0., 0.]])
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.counts: list[int] = []
        match space:
            case spaces.Discrete():
                self.counts = [int(space.n)]
            case spaces.MultiDiscrete():
                self.counts = space.nvec.ravel().tolist()
        self.scale = 255.0 if is_image(space) else 1.0
        self.features_dim = sum(self.counts) or math.prod(space.shape or ())

    def forward(self, obs: Tensor) -> Tensor:
        """Map observations (N, *shape) to float32 features (N, features_dim)."""
        rows = obs if obs.dim() == 2 else obs.reshape(len(obs), -1)
        if self.counts:
            columns = zip(rows.unbind(1), self.counts, strict=True)
            return torch.cat([F.one_hot(column, n) for column, n in columns], 1).float()
        return rows if rows.dtype == torch.float32 else rows.float() / self.scale


class NatureCNN(nn.Module):
    """Convolutional network of Mnih et al. 2015 (doi:10.1038/nature14236) with a linear layer.

    Args:
        space: Box space of images with height and width of at least 36: (H, W), (C, H, W), (H, W,
            C), or a stack (K, ...) of images with channels. The last axis is C if it is shorter
            than the third to last, else C comes first. A stack is treated as K * C channels.
        features_dim: Number of features.
        ortho_init: Initialize weights orthogonally with gain sqrt(2), and biases with 0.
        generator: Generator of the weights; None: torch's global generator.

    Raises:
        ArgumentError: The images are too small, or `features_dim` is below 1.

    >>> NatureCNN(spaces.Box(0, 255, (84, 84, 4), np.uint8))(torch.zeros(2, 84, 84, 4)).shape
    torch.Size([2, 512])
    """

    def __init__(
        self,
        space: gym.Space[Any],
        features_dim: int = 512,
        ortho_init: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.features_dim = check_int("features_dim", features_dim, 1)
        shape = tuple(space.shape or ())
        if not 2 <= len(shape) <= 4 or min(_sides(shape)) < _SMALLEST:
            raise ArgumentError(
                "observation space",
                f"images of at least {_SMALLEST} x {_SMALLEST} pixels",
                str(space),
                "resize or flatten the images in a wrapper",
            )
        self.channels_last = _channels_last(shape)
        channels = math.prod(shape) // math.prod(_sides(shape))
        self.scale = 255.0 if space.dtype == np.uint8 else 1.0
        self.convolutions = nn.Sequential(
            make_layer(nn.Conv2d, channels, 32, kernel_size=8, stride=4, generator=generator),
            nn.ReLU(),
            make_layer(nn.Conv2d, 32, 64, kernel_size=4, stride=2, generator=generator),
            nn.ReLU(),
            make_layer(nn.Conv2d, 64, 64, kernel_size=3, stride=1, generator=generator),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            width = self.convolutions(self._planes(torch.zeros(1, *shape))).shape[1]
        self.head = nn.Sequential(make_layer(nn.Linear, width, features_dim, generator=generator), nn.ReLU())
        if ortho_init:
            for part in (*self.convolutions, *self.head):
                if isinstance(part, nn.Conv2d | nn.Linear):
                    init_orthogonal(part, math.sqrt(2), generator)

    def _planes(self, obs: Tensor) -> Tensor:
        planes = obs.movedim(-1, -3) if self.channels_last else obs
        planes = planes.unsqueeze(1) if planes.dim() == 3 else planes.flatten(1, -3)
        # float32 images have been normalized.
        return planes if planes.dtype == torch.float32 else planes.float() / self.scale

    def forward(self, obs: Tensor) -> Tensor:
        """Map uint8 or normalized float32 images (N, *shape) to features (N, features_dim)."""
        features: Tensor = self.head(self.convolutions(self._planes(obs)))
        return features


class Combined(nn.Module):
    """Concatenated features of the parts of a Dict or Tuple space; empty parts have no features.

    A `NatureCNN` has 256 features here, as in Stable-Baselines3.

    Args:
        space: Dict or Tuple space, possibly nested.
        ortho_init: As for `NatureCNN`.
        generator: As for `NatureCNN`.
    """

    def __init__(
        self, space: gym.Space[Any], ortho_init: bool = True, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        assert isinstance(space, spaces.Dict | spaces.Tuple)
        every: Iterable[tuple[str | int, gym.Space[Any]]]
        every = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        items = [(key, part) for key, part in every if has_parts(part)]
        self.keys = [key for key, _ in items]
        parts: list[Any] = [make_features(part, ortho_init, 256, generator) for _, part in items]
        self.parts = nn.ModuleList(parts)
        self.features_dim = sum(part.features_dim for part in parts)

    def forward(self, obs: TensorObs) -> Tensor:
        """Map a dict or tuple of tensors (N, ...) to features (N, features_dim)."""
        parts = zip(self.keys, self.parts, strict=True)
        return torch.cat([part(obs[key]) for key, part in parts], 1)  # type: ignore[index]  # a dict or tuple


def register_encoder(space_type: type[gym.Space[Any]], encoder: FeaturesExtractor) -> None:
    """Register a custom module that encodes observations of a type of spaces (torch backend).

    The encoder also applies to parts of Dict and Tuple spaces. A process must register
    the encoder before it loads a checkpoint that uses the encoder.

    Args:
        space_type: Subclass of a space that rlox supports, such as `gymnasium.spaces.Box`.
        encoder: Function from such a space to a module that maps observations (N, *shape) to
            features (N, features_dim), with an attribute `features_dim`.

    Raises:
        ArgumentTypeError: `space_type` is not a class of spaces, or `encoder` is not callable.
    """
    cls: object = space_type
    if not (isinstance(cls, type) and issubclass(cls, gym.Space)):
        got = short_repr(space_type)
        raise ArgumentTypeError("space_type", "a subclass of gymnasium.Space", got, "pass for example spaces.Box")
    function: object = encoder
    if not callable(function):
        expected = "a function from a space to a torch module"
        raise ArgumentTypeError("encoder", expected, short_repr(encoder), "see rlox.features.NatureCNN")
    ENCODERS[space_type] = encoder


def make_features(
    space: gym.Space[Any], ortho_init: bool = True, cnn_features: int = 512, generator: torch.Generator | None = None
) -> nn.Module:
    """Create the features module of a space: its encoder, `Combined`, `NatureCNN` or `Flatten`."""
    if (encoder := find_encoder(space)) is not None:
        return make_custom_features(encoder, space)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return Combined(space, ortho_init, generator)
    shape: Sequence[int] = space.shape or ()
    if is_image(space) and min(_sides(shape)) >= _SMALLEST:
        return NatureCNN(space, cnn_features, ortho_init, generator)
    return Flatten(space)


def _sides(shape: Sequence[int]) -> Sequence[int]:
    """Return height and width of an image.

    >>> _sides((84, 96, 3)), _sides((4, 84, 84)), _sides((5, 84, 96, 3)), _sides((84, 96))
    ((84, 96), (84, 84), (84, 96), (84, 96))
    """
    return shape[-3:-1] if _channels_last(shape) else shape[-2:]


def _channels_last(shape: Sequence[int]) -> bool:
    return len(shape) > 2 and shape[-1] < shape[-3]


def make_custom_features(make: object, space: gym.Space[Any]) -> nn.Module:
    """Create custom features, and check the module's output for two observations.

    Raises:
        ArgumentError: The output shape is not (n, features_dim).
        ArgumentTypeError: `make` does not return a torch module with an int `features_dim` >= 1.
    """
    module: object = make(space) if callable(make) else None
    width = getattr(module, "features_dim", None)
    if not isinstance(module, nn.Module) or type(width) is not int or width < 1:
        raise ArgumentTypeError(
            "features_extractor",
            "a function from the observation space to a torch module with an int features_dim",
            repr(make),
            "see rlox.features.NatureCNN",
        )
    with torch.no_grad(), evaluating(module):
        features = module(zeros(space, module))
    shape = tuple(getattr(features, "shape", ()))
    if shape != (2, width):
        raise ArgumentError(
            "features_extractor",
            f"outputs of shape (n, features_dim) = (2, {width}) for two observations",
            f"shape {shape}",
            "correct features_dim or the output of the module",
        )
    return module


def features_for(
    space: gym.Space[Any], make: FeaturesExtractor | None, generator: torch.Generator | None, ortho_init: bool = False
) -> nn.Module:
    """Create custom features, or the default features with torch's or orthogonal initialization."""
    if make is not None:
        return make_custom_features(make, space)
    return make_features(space, ortho_init, generator=generator)
