"""Layout: conversion of observations of any space to rows of one array, and back."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlox._errors import ArgumentError, ArgumentTypeError, NonFiniteError, one_line
from rlox._rlox import Normalizer
from rlox._types import Array, Obs

# Alignment in bytes of leaves in packed rows: the size of the largest dtype.
_ALIGNED = 8


def is_image(space: gym.Space[Any]) -> bool:
    """Return whether a space has images: uint8 in [0, 255] with two to four axes.

    Two axes are an image without channels, four axes are a stack of images.

    >>> is_image(spaces.Box(0, 255, (84, 84, 3), np.uint8))
    True
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or not 2 <= len(space.shape) <= 4:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


@dataclass(frozen=True)
class Leaf:
    """Part of an observation that is one array: Box, Discrete, MultiDiscrete or MultiBinary."""

    name: str  # "obs", or an expression such as "obs['camera'][0]"
    path: tuple[Any, ...]  # keys and indices, the outermost first
    space: gym.Space[Any]
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"  # uint8, int64 or float32

    @cached_property
    def _start_and_counts(self) -> tuple[Array | np.integer[Any] | int, Array | int]:
        """Smallest integer and number of integers, per component."""
        match self.space:
            case spaces.Discrete() as space:
                return space.start, int(space.n)
            case spaces.MultiDiscrete() as space:
                return space.start, space.nvec
        return 0, 2

    def encode(self, array: npt.ArrayLike) -> Array:
        """Convert values (n, *shape) to `dtype`; integers of a discrete space become zero-based.

        Raises:
            ArgumentError: An integer is outside the space.
        """
        values: Array = np.asarray(array)
        if not isinstance(self.space, spaces.Box):
            start, counts = self._start_and_counts
            values = values - start
            # The negation also catches NaN.
            outside = ~((values >= 0) & (values < counts))
            if outside.any():
                row, *rest = np.argwhere(outside)[0]
                index = tuple(rest)
                low, count = (np.broadcast_to(x, values.shape[1:])[index] for x in (start, counts))
                got = np.asarray(array)[(row, *index)]
                raise ArgumentError(
                    self.name,
                    f"integers in [{low}, {low + count})",
                    str(got),
                    "pass observations of the observation space",
                    row=int(row),
                )
        with np.errstate(over="ignore"):  # callers check for infinity where it is not allowed
            result: Array = values.astype(self.dtype, copy=False)
        return result

    def decode(self, array: Array) -> Array:
        """Convert the result of `encode` to integers of the space; Box values are unchanged."""
        if isinstance(self.space, spaces.Box):
            return array
        result: Array = (array + self._start_and_counts[0]).astype(self.space.dtype)
        return result


class Layout:
    """Format of an array whose rows store observations of a space.

    A Box of uint8 is stored as uint8, any other Box as float32. Discrete and MultiDiscrete are
    stored as zero-based int64, MultiBinary as uint8. Dict and Tuple, nested or not, are packed: a
    row is the concatenated bytes of their parts, and `unpack` returns views of the parts.

    Args:
        space: Space of one observation.

    Raises:
        ArgumentTypeError: The space, or a part of it, has an unsupported type.
        ArgumentError: The space has no parts.

    >>> camera = spaces.Box(0, 255, (2, 2, 3), np.uint8)
    >>> layout = Layout(spaces.Dict({"camera": camera, "side": spaces.Discrete(3)}))
    >>> layout.shape, layout.dtype
    ((24,), dtype('uint8'))
    >>> rows = layout.pack({"camera": np.ones((5, 2, 2, 3), np.uint8), "side": np.arange(5) % 3})
    >>> layout.unpack(rows)["side"]
    array([0, 1, 2, 0, 1])
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.leaves = list(_leaves(space, "obs", ()))
        if not self.leaves:
            raise ArgumentError("observation space", "a space with parts", str(space), "add a part to the space")
        self.packed = isinstance(space, spaces.Dict | spaces.Tuple)
        self._starts = [0]
        for leaf in self.leaves:
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            self._starts.append(self._starts[-1] + -(-size // _ALIGNED) * _ALIGNED)
        self.shape: tuple[int, ...] = (self._starts[-1],) if self.packed else self.leaves[0].shape
        self.dtype = np.dtype(np.uint8) if self.packed else self.leaves[0].dtype

    def iter_leaves(self, obs: Obs) -> Iterator[tuple[Leaf, npt.ArrayLike]]:
        """Return pairs of each leaf and its value in `obs`.

        Raises:
            ArgumentError: `obs` has no value for a leaf.
        """
        return ((leaf, _get_leaf(obs, leaf)) for leaf in self.leaves)

    def pack(self, obs: Obs) -> Array:
        """Convert a batch of observations to rows (n, *shape).

        Raises:
            ArgumentError: A leaf is missing, or an integer is outside its space.
        """
        return self.join([leaf.encode(value) for leaf, value in self.iter_leaves(obs)])

    def row(self, obs: Obs) -> Array:
        """Convert one observation to a row (*shape)."""
        parts = [leaf.encode(np.asarray(value)[None]) for leaf, value in self.iter_leaves(obs)]
        return np.asarray(self.join(parts)[0])

    def join(self, parts: list[Array]) -> Array:
        """Join encoded arrays (n, ...), in the order of `leaves`, to rows (n, *shape)."""
        if not self.packed:
            return parts[0]
        rows: Array = np.zeros((len(parts[0]), *self.shape), np.uint8)
        for leaf, start, part in zip(self.leaves, self._starts, parts, strict=False):
            size = math.prod(leaf.shape)
            flat = np.ascontiguousarray(part).reshape(len(part), size).view(np.uint8)
            rows[:, start : start + size * leaf.dtype.itemsize] = flat
        return rows

    def unpack(self, rows: Any, dtype_of: Callable[["np.dtype[Any]"], Any] = lambda dtype: dtype) -> Any:
        """Return rows as the policy's input: nested dicts and tuples of views if packed.

        Args:
            rows: NumPy array or torch tensor, (..., *shape).
            dtype_of: Function from a NumPy dtype to the dtype of the rows' library.
        """
        return _nest(self.space, self._views(rows, dtype_of)) if self.packed else rows

    def decode(self, rows: Array) -> Obs:
        """Return NumPy rows as observations of the space; unlike `unpack`, decode integers.

        >>> Layout(spaces.Discrete(3, start=5)).decode(np.array([0, 2]))
        array([5, 7])
        """
        if not self.packed:
            return self.leaves[0].decode(rows)
        views = self._views(rows, lambda dtype: dtype)
        obs: Obs = _nest(self.space, map(Leaf.decode, self.leaves, views))
        return obs

    def _views(self, rows: Any, dtype_of: Callable[["np.dtype[Any]"], Any]) -> Iterator[Any]:
        """Yield views of the parts of packed rows, in the order of `leaves`."""
        for leaf, start in zip(self.leaves, self._starts, strict=False):
            end = start + math.prod(leaf.shape) * leaf.dtype.itemsize
            view = rows[..., start:end].view(dtype_of(leaf.dtype))
            yield view.reshape(*rows.shape[:-1], *leaf.shape)


def has_parts(space: gym.Space[Any]) -> bool:
    """Return whether a space has at least one leaf: a Dict or Tuple may be empty.

    >>> has_parts(spaces.Dict(a=spaces.Tuple(()))), has_parts(spaces.Dict(a=spaces.Discrete(2)))
    (False, True)
    """
    return any(True for _ in _leaves(space, "obs", ()))


def _leaves(space: gym.Space[Any], name: str, path: tuple[Any, ...]) -> Iterator[Leaf]:
    match space:
        case spaces.Dict():
            for key, part in space.spaces.items():
                yield from _leaves(part, f"{name}[{key!r}]", (*path, key))
        case spaces.Tuple():
            for i, part in enumerate(space.spaces):
                yield from _leaves(part, f"{name}[{i}]", (*path, i))
        case spaces.Box():
            stored = np.uint8 if space.dtype == np.uint8 else np.float32
            yield Leaf(name, path, space, space.shape, np.dtype(stored))
        case spaces.Discrete() | spaces.MultiDiscrete():
            yield Leaf(name, path, space, tuple(space.shape or ()), np.dtype(np.int64))
        case spaces.MultiBinary():
            yield Leaf(name, path, space, tuple(space.shape), np.dtype(np.uint8))
        case _:
            raise ArgumentTypeError(
                "observation space",
                "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these",
                str(space),
                "change the space in a wrapper",
                section=name if path else None,
            )


def _get_leaf(obs: Any, leaf: Leaf) -> npt.ArrayLike:
    for key in leaf.path:
        if isinstance(obs, Mapping):
            is_present = key in obs
        else:
            is_present = isinstance(obs, tuple | list) and type(key) is int and key < len(obs)
        if not is_present:
            raise ArgumentError(
                leaf.name,
                "a value in the observation",
                f"a {type(obs).__name__} without this entry",
                "pass observations of the observation space",
            )
        obs = obs[key]
    value: npt.ArrayLike = obs
    return value


def _nest(space: gym.Space[Any], views: Iterator[Any]) -> Any:
    match space:
        case spaces.Dict():
            return {key: _nest(part, views) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_nest(part, views) for part in space.spaces)
    return next(views)


def as_batch(obs: Obs, layout: Layout, normalizer: Normalizer | None = None) -> tuple[npt.NDArray[Any], bool]:
    """Convert observations to rows of a layout; also return whether `obs` is one observation.

    Args:
        obs: Raw observation, or a batch of them. In a batch of Dict or Tuple observations, each
            part has an additional first dimension.
        layout: Layout of the observation space.
        normalizer: Normalizer to apply; its statistics do not change.

    Returns:
        Rows (n, *layout.shape), and True if `obs` is one observation.

    Raises:
        ArgumentTypeError: `obs` is not an array of real numbers.
        ArgumentError: The shape differs, parts have different batch sizes, or numbers are not
            integers in the space.
        NonFiniteError: A number is NaN, infinite or outside the range of float32.

    >>> from gymnasium import spaces
    >>> as_batch([1.0, 2.0], Layout(spaces.Box(-9, 9, (2,))))
    (array([[1., 2.]], dtype=float32), True)
    """
    pair = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
    if pair and not isinstance(layout.space, spaces.Tuple):
        got = "a pair of observations and infos, as reset() returns"
        raise ArgumentTypeError("obs", "observations", got, "pass obs of obs, infos = env.reset()")
    parts = []
    singles = []
    for leaf, value in layout.iter_leaves(obs):
        raw = _real_numbers(leaf.name, value)
        single = raw.shape == leaf.shape
        rows = raw[None] if single else raw
        if rows.shape[1:] != leaf.shape or rows.ndim == 0:
            raise ArgumentError(
                leaf.name,
                f"one observation of shape {leaf.shape} or a batch with an additional first dimension",
                f"shape {raw.shape}",
                "reshape the array",
            )
        if not np.isfinite(rows).all():
            hint = "check the source of the observations"
            raise NonFiniteError(leaf.name, "finite numbers", "NaN or infinity", hint)
        parts.append(_to_leaf_dtype(leaf, rows))
        singles.append((single, len(rows)))
    if len(set(singles)) != 1:
        fix = "give all parts the same batch dimension, or none"
        raise ArgumentError("obs", "parts with equal batch sizes", str([n for _, n in singles]), fix)
    rows = layout.join(parts)
    if normalizer is not None and normalizer.normalizes_obs:
        rows = normalizer.normalize_obs(rows)
    return rows, singles[0][0]


def _to_leaf_dtype(leaf: Leaf, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Convert float32 numbers to the dtype of a leaf."""
    if leaf.dtype == np.float32:
        return rows
    low, high = (0, 255) if leaf.dtype == np.uint8 else (-(2**62), 2**62)
    if (rows != np.round(rows)).any() or (rows < low).any() or (rows > high).any():
        raise ArgumentError(leaf.name, f"{leaf.dtype} numbers", "other numbers", f"pass observations of {leaf.space}")
    return leaf.encode(rows.astype(leaf.dtype))


def _real_numbers(name: str, obs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return a float32 copy; numbers outside the range of float32 become infinite."""
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            name,
            "an array of real numbers",
            f"a {type(obs).__name__} that NumPy cannot convert ({one_line(error)})",
            "give all rows the same length, and copy tensors to the CPU with .detach().cpu()",
        ) from error
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(name, "an array of real numbers", f"dtype {array.dtype}", "convert it to float32")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
