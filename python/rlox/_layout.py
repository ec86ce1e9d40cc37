"""`Layout`: how rollouts hold observations of any space, and how policies get them back."""

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

Array = npt.NDArray[Any]
# Where a leaf begins in packed rows: at a multiple of the largest item's size.
_ALIGNED = 8


def is_image(space: gym.Space[Any]) -> bool:
    """Whether observations are pictures: uint8 in [0, 255], two to four axes.

    Two are a picture without channels, four a stack of pictures.

    >>> is_image(spaces.Box(0, 255, (84, 84, 3), np.uint8))
    True
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    if not 2 <= len(space.shape) <= 4:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


@dataclass(frozen=True)
class Leaf:
    """A part of an observation that is one array: Box, Discrete, MultiDiscrete or MultiBinary."""

    name: str  # "obs", or the way to it: "obs['camera'][0]"
    path: tuple[Any, ...]  # keys and indices, from the outermost
    space: gym.Space[Any]
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"  # uint8, int64 or float32

    @cached_property
    def _start_and_counts(self) -> tuple[Array | int, Array | int]:
        """The least of the integers, and how many there are."""
        space: Any = self.space
        start = getattr(space, "start", 0)
        match space:
            case spaces.Discrete():
                return start, int(space.n)
            case spaces.MultiDiscrete():
                return start, space.nvec
        return start, 2

    def encode(self, array: npt.ArrayLike) -> Array:
        """(n, *shape) as rollouts hold it: integers count from 0, numbers are float32.

        Raises:
            ValueError: Integers that are not in the space.
        """
        values: Array = np.asarray(array)
        if not isinstance(self.space, spaces.Box):
            start, counts = self._start_and_counts
            values = values - start
            # Also what is no number is not inside.
            outside = ~((values >= 0) & (values < counts))
            if outside.any():
                row, *rest = np.argwhere(outside)[0]
                at = tuple(rest)
                low, many = (np.broadcast_to(x, values.shape[1:])[at] for x in (start, counts))
                got = np.asarray(array)[(row, *at)]
                raise ArgumentError(
                    self.name,
                    f"integers in [{low}, {low + many})",
                    str(got),
                    "pass observations of the observation space",
                    row=int(row),
                )
        with np.errstate(over="ignore"):  # who takes no infinities says so
            result: Array = values.astype(self.dtype, copy=False)
        return result

    def decode(self, array: Array) -> Array:
        """What `stored` gave, with integers as the space counts them, in its dtype."""
        if isinstance(self.space, spaces.Box):
            return array
        result: Array = (array + self._start_and_counts[0]).astype(self.space.dtype)
        return result


class Layout:
    """Rows of one shape and dtype that hold observations of a space.

    A Box of uint8 stays uint8, of other numbers it is float32. Discrete and MultiDiscrete are
    int64, counted from 0; MultiBinary is uint8. Dict and Tuple, nested or not, are packed: the
    bytes of their parts, one behind another, from which `unpack` makes views.

    Args:
        space: Of one observation.

    Raises:
        TypeError: The space, or a part of it, is none of those.
        ValueError: It has no parts.

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
            raise ArgumentError(
                "observation space", "one with parts", str(space), "give it something to see"
            )
        self.packed = isinstance(space, spaces.Dict | spaces.Tuple)
        self._starts = [0]
        for leaf in self.leaves:
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            self._starts.append(self._starts[-1] + -(-size // _ALIGNED) * _ALIGNED)
        only = None if self.packed else self.leaves[0]
        self.shape: tuple[int, ...] = (self._starts[-1],) if only is None else only.shape
        self.dtype = np.dtype(np.uint8) if only is None else only.dtype

    def iter_leaves(self, obs: Any) -> Iterator[tuple[Leaf, Any]]:
        """Each leaf, and what `obs` has for it.

        Raises:
            ValueError: It has nothing.
        """
        return ((leaf, _get_leaf(obs, leaf)) for leaf in self.leaves)

    def parts(self, obs: Any) -> list[Array]:
        """The arrays of a batch, (n, ...) each, in the order of `leaves`, as rollouts hold them.

        Raises:
            ValueError: One is missing or has another shape.
        """
        return [leaf.encode(value) for leaf, value in self.iter_leaves(obs)]

    def pack(self, obs: Any) -> Array:
        """A batch as environments and users have it, as rows (n, *shape)."""
        return self.join(self.parts(obs))

    def row(self, obs: Any) -> Array:
        """A single observation, (*shape)."""
        parts = [leaf.encode(np.asarray(value)[None]) for leaf, value in self.iter_leaves(obs)]
        return np.asarray(self.join(parts)[0])

    def join(self, parts: list[Array]) -> Array:
        """What `parts` gave, as rows."""
        if not self.packed:
            return parts[0]
        rows: Array = np.zeros((len(parts[0]), *self.shape), np.uint8)
        for leaf, start, part in zip(self.leaves, self._starts, parts, strict=False):
            size = math.prod(leaf.shape)
            flat = np.ascontiguousarray(part).reshape(len(part), size).view(np.uint8)
            rows[:, start : start + size * leaf.dtype.itemsize] = flat
        return rows

    def unpack(
        self, rows: Any, dtype_of: Callable[["np.dtype[Any]"], Any] = lambda dtype: dtype
    ) -> Any:
        """Observations as a policy takes them: the rows, or dicts and tuples of views of them.

        Args:
            rows: (..., *shape), of NumPy or of torch.
            dtype_of: What the rows' library calls a dtype.
        """
        return _nest(self.space, self._views(rows, dtype_of)) if self.packed else rows

    def decode(self, rows: Array) -> Any:
        """Rows of NumPy as `unpack` gives them, but with integers as the spaces count them.

        >>> Layout(spaces.Discrete(3, start=5)).decode(np.array([0, 2]))
        array([5, 7])
        """
        if not self.packed:
            return self.leaves[0].decode(rows)
        views = self._views(rows, lambda dtype: dtype)
        decoded_leaves = (leaf.decode(view) for leaf, view in zip(self.leaves, views, strict=True))
        return _nest(self.space, decoded_leaves)

    def _views(self, rows: Any, dtype_of: Callable[["np.dtype[Any]"], Any]) -> Iterator[Any]:
        """The parts of packed rows, in the order of `leaves`."""
        for leaf, start in zip(self.leaves, self._starts, strict=False):
            end = start + math.prod(leaf.shape) * leaf.dtype.itemsize
            view = rows[..., start:end].view(dtype_of(leaf.dtype))
            yield view.reshape(*rows.shape[:-1], *leaf.shape)


def has_parts(space: gym.Space[Any]) -> bool:
    """Whether there is anything in an observation: a Dict or Tuple may be empty.

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
            kind = np.uint8 if space.dtype == np.uint8 else np.float32
            yield Leaf(name, path, space, space.shape, np.dtype(kind))
        case spaces.Discrete() | spaces.MultiDiscrete():
            yield Leaf(name, path, space, tuple(space.shape or ()), np.dtype(np.int64))
        case spaces.MultiBinary():
            yield Leaf(name, path, space, tuple(space.shape), np.dtype(np.uint8))
        case _:
            raise ArgumentTypeError(
                "observation space",
                "Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them",
                str(space),
                "change it in a wrapper",
                section=name if path else None,
            )


def _get_leaf(obs: Any, leaf: Leaf) -> Any:
    for key in leaf.path:
        if isinstance(obs, Mapping):
            is_present = key in obs
        else:
            is_present = isinstance(obs, tuple | list) and type(key) is int and key < len(obs)
        if not is_present:
            raise ArgumentError(
                leaf.name,
                "it in the observation",
                f"a {type(obs).__name__} without it",
                "pass observations of the observation space",
            )
        obs = obs[key]
    return obs


def _nest(space: gym.Space[Any], views: Iterator[Any]) -> Any:
    match space:
        case spaces.Dict():
            return {key: _nest(part, views) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_nest(part, views) for part in space.spaces)
    return next(views)


def as_batch(
    obs: Any, layout: Layout, normalizer: Normalizer | None = None
) -> tuple[npt.NDArray[Any], bool]:
    """Observations as rows of a layout, and whether there was a single one.

    Args:
        obs: One observation or a batch, raw; where the layout is of a Dict or Tuple, the parts of a
            batch have one more dimension in front, all of them.
        layout: Of the observation space.
        normalizer: Normalises with the statistics it has; they do not change.

    Returns:
        (n, *layout.shape), and True if `obs` was one observation.

    Raises:
        TypeError: No array of real numbers.
        ValueError: Another shape, numbers that are not finite in float32, or outside of uint8.

    >>> from gymnasium import spaces
    >>> as_batch([1.0, 2.0], Layout(spaces.Box(-9, 9, (2,))))
    (array([[1., 2.]], dtype=float32), True)
    """
    pair = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
    if pair and not isinstance(layout.space, spaces.Tuple):
        raise ArgumentTypeError(
            "obs",
            "observations",
            "a pair of them and their infos, as reset() gives",
            "pass obs of obs, infos = env.reset()",
        )
    parts, singles = [], []
    for leaf, value in layout.iter_leaves(obs):
        name, raw = leaf.name, _real_numbers(leaf.name, value)
        single = raw.shape == leaf.shape
        rows = raw[None] if single else raw
        if rows.shape[1:] != leaf.shape or rows.ndim == 0:
            raise ArgumentError(
                name,
                f"one observation of shape {leaf.shape} or a batch with one more dimension in "
                "front",
                f"shape {raw.shape}",
                "reshape it",
            )
        if not np.isfinite(rows).all():
            raise NonFiniteError(name, "finite numbers", "NaN or infinity", "look at their source")
        parts.append(_to_leaf_dtype(name, leaf, rows))
        singles.append((single, len(rows)))
    if len(set(singles)) != 1:
        raise ArgumentError(
            "obs",
            "parts of as many observations",
            str([n for _, n in singles]),
            "give all of them a batch dimension, or none",
        )
    rows = layout.join(parts)
    if normalizer is not None and normalizer.normalizes_obs:
        rows = normalizer.normalize_obs(rows)
    return rows, singles[0][0]


def _to_leaf_dtype(name: str, leaf: Leaf, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Numbers in the dtype that rollouts hold them in."""
    if leaf.dtype == np.float32:
        return rows
    low, high = (0, 255) if leaf.dtype == np.uint8 else (-(2**62), 2**62)
    if (rows != np.round(rows)).any() or (rows < low).any() or (rows > high).any():
        raise ArgumentError(
            name, f"{leaf.dtype} numbers", "others", f"pass observations of {leaf.space}"
        )
    return leaf.encode(rows.astype(leaf.dtype))


def _real_numbers(name: str, obs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """A float32 copy. Numbers too large for float32 become infinite."""
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            name,
            "an array of real numbers",
            f"{type(obs).__name__} that NumPy cannot make one of ({one_line(error)})",
            "give all rows the same length, and copy tensors to the CPU with .detach().cpu()",
        ) from error
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(
            name, "an array of real numbers", f"dtype {array.dtype}", "convert it to float32"
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
