"""Descriptions of Gymnasium spaces, and conversion and validation of actions.

A rollout stores zero-based Discrete and MultiDiscrete actions and unclipped Box actions. Before an
environment receives them, integers are shifted by the space's `start`, and Box actions are clipped
to the bounds. Actions of an integer Box are rounded to the nearest integer.
"""

import math
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlox._errors import ArgumentError, ArgumentTypeError, NonFiniteError
from rlox._serialize import float_to_json

_F32_MAX = float(np.finfo(np.float32).max)


def from_native(space: dict[str, Any]) -> gym.Space[Any]:
    """Return the Gymnasium space of a native description.

    >>> from_native({"kind": "discrete", "n": 3, "start": 5})
    Discrete(3, start=5)
    """
    match space["kind"]:
        case "discrete":
            return spaces.Discrete(space["n"], start=space["start"])
        case "multi_discrete":
            return spaces.MultiDiscrete(space["nvec"])
        case "multi_binary":
            return spaces.MultiBinary(space["n"])
        case _:
            low, high = (np.reshape(space[side], space["shape"]) for side in ("low", "high"))
            return spaces.Box(low, high, dtype=np.float32)


def to_native(space: gym.Space[Any]) -> dict[str, Any]:
    """Return the native description of an action space, with zero-based integers.

    Raises:
        ArgumentTypeError: The space is not a Discrete, MultiDiscrete, MultiBinary or Box space.

    >>> to_native(spaces.Discrete(3, start=5))
    {'kind': 'discrete', 'n': 3, 'start': 0}
    """
    match space:
        case spaces.Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": 0}
        case spaces.MultiDiscrete():
            return {"kind": "multi_discrete", "nvec": space.nvec.ravel()}
        case spaces.MultiBinary():
            return {"kind": "multi_binary", "n": int(np.prod(space.shape))}
        case spaces.Box():
            low, high = (side.astype(np.float32).ravel() for side in (space.low, space.high))
            return {"kind": "box", "shape": space.shape, "low": low, "high": high}
    action_dtype(space)  # raises ArgumentTypeError
    raise AssertionError


def to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a description of a space as a JSON value. Equal spaces have equal descriptions.

    Bounds and counts are one number if all components are equal, otherwise a flat list. Infinite
    bounds are "inf" and "-inf".

    Raises:
        ArgumentTypeError: The space, or a part of it, is not a Discrete, MultiDiscrete,
            MultiBinary, Box, Dict or Tuple space.

    >>> to_json(spaces.Discrete(3, start=5))
    {'type': 'Discrete', 'n': 3, 'start': 5, 'dtype': 'int64'}
    >>> to_json(spaces.Box(-1.0, np.array([0.5, np.inf], np.float32)))
    {'type': 'Box', 'low': -1.0, 'high': [0.5, 'inf'], 'shape': [2], 'dtype': 'float32'}
    """
    fields: dict[str, Any]
    match space:
        case spaces.Discrete():
            fields = {"n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            fields = {"nvec": _to_list(space.nvec), "start": _to_list(space.start)}
        case spaces.MultiBinary():
            fields = {}
        case spaces.Box():
            fields = {"low": _to_list(space.low), "high": _to_list(space.high)}
        case spaces.Dict():
            return {"type": "Dict", "spaces": [[k, to_json(x)] for k, x in space.spaces.items()]}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [to_json(x) for x in space.spaces]}
        case _:
            raise ArgumentTypeError(
                "space",
                "Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple",
                type(space).__name__,
                "change the space in a wrapper",
            )
    if not isinstance(space, spaces.Discrete):
        fields["shape"] = list(space.shape)
    return {"type": type(space).__name__, **fields, "dtype": str(space.dtype)}


def _to_list(array: npt.NDArray[Any]) -> object:
    if array.size > 0 and (array == array.flat[0]).all():
        array = array.flat[:1]
    numbers = [float_to_json(x) for x in array.ravel().tolist()]
    return numbers[0] if len(numbers) == 1 else numbers


def from_json(description: object) -> gym.Space[Any]:
    """Return the space that `to_json` described.

    Raises:
        ArgumentError: The value does not describe a space.

    >>> from_json({"type": "Discrete", "n": 3, "start": 5, "dtype": "int64"})
    Discrete(3, start=5)
    """
    try:
        return _from_json(description)
    except (LookupError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ArgumentError(
            "spaces", "a description of a space", f"{description!r:.200} ({error})", "use a checkpoint that rlox wrote"
        ) from error


def _from_json(description: Any) -> gym.Space[Any]:
    kind = description["type"]
    if kind == "Dict":
        return spaces.Dict([(key, _from_json(x)) for key, x in description["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([_from_json(x) for x in description["spaces"]])
    dtype: Any = np.dtype(description["dtype"]).type
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"], dtype=dtype)
    shape = tuple(description["shape"])
    if math.prod(shape) > 2**31:
        raise ValueError(f"shape {shape} is too large")

    def array(name: str) -> npt.NDArray[Any]:
        value = description[name]
        if not isinstance(value, list):
            return np.full(shape, dtype(value))
        return np.array([dtype(x) for x in value], dtype).reshape(shape)

    if kind == "MultiBinary":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(array("nvec"), dtype=dtype, start=array("start"))
    if kind == "Box":
        return spaces.Box(array("low"), array("high"), dtype=dtype)
    raise ValueError(f"unknown type {kind!r}")


def get_action_counts(space: gym.Space[Any]) -> npt.NDArray[np.int64] | None:
    """Return the number of values of each component of an integer action; None for Box."""
    match space:
        case spaces.Discrete():
            return np.asarray(space.n, dtype=np.int64)
        case spaces.MultiDiscrete():
            return np.asarray(space.nvec, dtype=np.int64)
        case spaces.MultiBinary():
            return np.full(space.shape, 2, dtype=np.int64)
        case spaces.Box():
            return None
    raise ArgumentTypeError(
        "action space",
        "Discrete, MultiDiscrete, MultiBinary or Box",
        str(space),
        "convert the actions with gymnasium.wrappers.TransformAction",
    )


def action_dtype(space: gym.Space[Any]) -> Literal["int64", "float32"]:
    """Return the dtype in which a rollout stores actions of a space: "int64" or "float32".

    Raises:
        ArgumentTypeError: The space is not a Discrete, MultiDiscrete, MultiBinary or Box space.

    >>> action_dtype(spaces.Discrete(2)), action_dtype(spaces.Box(-1, 1, (3,)))
    ('int64', 'float32')
    """
    return "float32" if get_action_counts(space) is None else "int64"


def check_action_shape(space: gym.Space[Any], values: npt.ArrayLike, num_envs: int) -> npt.NDArray[Any]:
    """Convert actions to an array of one action per environment; check only the shape."""
    shape = (num_envs, *(space.shape or ()))
    try:
        actions = np.asarray(values)
    except ValueError as error:
        raise ArgumentError(
            "actions", f"shape {shape}", f"{type(values).__name__} ({error})", "pass one action per environment"
        ) from error
    if actions.shape != shape:
        raise ArgumentError("actions", f"shape {shape}", str(actions.shape), "pass one action per environment")
    return actions


def to_env_actions(space: gym.Space[Any], stored: npt.ArrayLike, num_envs: int) -> npt.NDArray[Any]:
    """Convert stored actions (num_envs, ...) to actions of the space, in the space's dtype.

    Raises:
        ArgumentError: The shape is wrong, or an integer action is out of range.
        NonFiniteError: A Box action is NaN or infinite.
        ArgumentTypeError: Actions of an integer space are not integers, or actions are not numbers.

    >>> to_env_actions(spaces.Discrete(3, start=5), [0, 2], num_envs=2)
    array([5, 7])
    >>> to_env_actions(spaces.Box(0, 1, (1,)), [[-3.0]], num_envs=1)
    array([[0.]], dtype=float32)
    """
    actions = check_action_shape(space, stored, num_envs)
    counts = get_action_counts(space)
    if counts is None:
        assert isinstance(space, spaces.Box)
        actions = _to_real(actions)
        _check_valid(~np.isfinite(actions), actions, "finite numbers")
        return _clip(space, actions)
    _check_integers(actions)
    limits = str(counts) if np.ndim(counts) == 0 else f"{np.ravel(counts).tolist()} for the components"
    _check_valid((actions < 0) | (actions >= counts), actions, f"integers of at least 0 and below {limits}")
    # NumPy promotes uint64 + int64 to float64, so convert the checked actions to int64 first.
    env_actions: npt.NDArray[Any] = (actions.astype(np.int64) + _start(space)).astype(space.dtype)
    return env_actions


def _start(space: gym.Space[Any]) -> npt.NDArray[Any] | np.integer[Any] | int:
    """Return the smallest value of each component of an integer action."""
    return space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0


def _check_integers(actions: npt.NDArray[Any]) -> None:
    if actions.dtype.kind not in "iu":
        raise ArgumentTypeError("actions", "integers", f"dtype {actions.dtype}", "convert them to int64 first")


def _to_real(actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if actions.dtype.kind in "biuf":
        return actions
    got = f"dtype {actions.dtype}"
    if actions.dtype.kind == "O":
        try:
            return actions.astype(np.float64)
        except (TypeError, ValueError) as error:
            got = str(error)
    raise ArgumentTypeError("actions", "real numbers", got, "pass an array of real numbers")


def _clip(space: spaces.Box, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Clip actions to the bounds, in the space's dtype; round them for an integer or bool Box.

    Truncation instead of rounding would make 0 twice as likely, and the bounds hard to reach.
    """
    dtype = np.dtype(space.dtype)
    numbers = actions
    if dtype.kind in "iu":
        # Clip integers as integers, because float64 cannot represent all integers above 2**53.
        numbers = _saturate(actions, dtype)
    elif dtype.kind == "b":
        numbers = np.rint(actions.astype(np.float64))
    elif dtype.kind == "f" and not np.can_cast(actions.dtype, dtype):
        float_dtype: Any = dtype
        largest = float(np.finfo(float_dtype).max)
        numbers = np.clip(actions, -largest, largest)  # larger numbers would become infinite
    clipped: npt.NDArray[Any] = np.clip(numbers, space.low, space.high).astype(dtype)
    return clipped


def _saturate(actions: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Round numbers to an integer dtype, and clip them to its range."""
    smallest = np.iinfo(dtype).min
    largest = np.iinfo(dtype).max
    match actions.dtype.kind:
        case "f":
            numbers = np.rint(actions.astype(np.promote_types(actions.dtype, np.float64)))
            # Compare with powers of two or 0, which floats represent exactly, unlike `largest`.
            under, over = numbers < float(smallest), numbers >= float(largest + 1)
            inside = np.where(under | over, 0, numbers).astype(dtype)
            saturated = np.where(over, dtype.type(largest), inside)
            return np.where(under, dtype.type(smallest), saturated)
        case "i":
            wide = actions.astype(np.int64)
            return np.clip(wide, smallest, min(largest, 2**63 - 1)).astype(dtype)
    return np.minimum(actions.astype(np.uint64), np.uint64(largest)).astype(dtype)


def check_actions(
    space: gym.Space[Any], actions: npt.ArrayLike, num_envs: int, ignored: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[Any]:
    """Convert a batch of the space's actions to an array, and check the values.

    Box actions outside the bounds are accepted.

    Args:
        space: Space of one action.
        actions: One action per environment, (num_envs, ...).
        num_envs: Number of environments.
        ignored: Mask (num_envs,) of the environments whose actions may have any value.

    Raises:
        ArgumentError: The shape is wrong, or an integer action is out of range.
        NonFiniteError: A Box action is NaN or infinite.
        ArgumentTypeError: Actions of an integer space are not integers, or actions are not numbers.

    >>> check_actions(spaces.Discrete(3, start=5), [5, 7], num_envs=2)
    array([5, 7])
    """
    array = check_action_shape(space, actions, num_envs)
    counts = get_action_counts(space)
    start = _start(space)
    if counts is None:
        bad = ~np.isfinite(_to_real(array))
    else:
        _check_integers(array)
        if array.dtype == np.uint64:  # larger integers would wrap around in int64
            _check_valid(array > np.uint64(2**63 - 1), array, "integers below 2**63")
        indices = array.astype(np.int64) - start
        bad = (indices < 0) | (indices >= counts)
    if ignored is not None:
        bad[ignored] = False
    if bad.any():
        inside = "finite numbers" if counts is None else f"integers in [{start}, {start + counts})"
        _check_valid(bad, array, inside)
    return array.astype(space.dtype) if array.dtype.kind == "u" else array


def to_zero_based(space: gym.Space[Any], actions: npt.ArrayLike, num_envs: int) -> npt.ArrayLike:
    """Convert integer actions of the space to the zero-based integers that a rollout stores.

    If the space has no `start` or all starts are 0, actions are returned unchecked.

    Raises:
        ArgumentError: The shape is wrong, or an integer action is out of range.
        ArgumentTypeError: Actions are not integers.

    >>> to_zero_based(spaces.Discrete(3, start=5), [5, 7], num_envs=2)
    array([0, 2])
    """
    start = _start(space)
    if not np.any(start):
        return actions
    indices: npt.NDArray[Any] = check_actions(space, actions, num_envs).astype(np.int64) - start
    return indices


def _check_valid(bad: npt.NDArray[np.bool_], actions: npt.NDArray[Any], expected: str) -> None:
    if bad.any():
        index = tuple(np.argwhere(bad)[0])
        cls = ArgumentError if actions.dtype.kind in "iu" else NonFiniteError
        fix = "keep actions inside the action space"
        raise cls("actions", expected, str(actions[index]), fix, env=int(index[0]))


def check_action_space(space: gym.Space[Any], use_sde: bool) -> None:
    """Check that an action space has components, and that gSDE is used only with a Box space.

    Raises:
        ArgumentError: The space has no components, or `use_sde` is set and the space is not a Box.
    """
    if 0 in (space.shape or ()):
        raise ArgumentError("action space", "at least one component", str(space), "remove the axis of size 0")
    if use_sde and not isinstance(space, spaces.Box):
        raise ArgumentError("use_sde", "a Box action space", str(space), "set use_sde=False")


def check_supported_actions(algorithm: str, supported: str, space: gym.Space[Any]) -> None:
    """Check that an off-policy algorithm supports an action space.

    Args:
        algorithm: Name of the algorithm.
        supported: "discrete" for Discrete spaces, or "box" for a floating-point Box with finite
            bounds. The bounds of a component may be equal.
        space: Space of one action.

    Raises:
        ArgumentError: The algorithm does not support the space; the hint names algorithms that do.

    >>> check_supported_actions("dqn", "discrete", gym.spaces.MultiBinary(2))
    Traceback (most recent call last):
    rlox.ArgumentError: action space: expected Discrete for DQN, got MultiBinary(2); use PPO or A2C
    """
    name = algorithm.upper()
    if supported == "discrete":
        if not isinstance(space, spaces.Discrete):
            is_real = isinstance(space, spaces.Box) and space.dtype.kind == "f"
            fix = "use SAC, TD3, PPO or A2C" if is_real else "use PPO or A2C"
            raise ArgumentError("action space", f"Discrete for {name}", str(space), fix)
        return
    # In an integer Box, tanh-squashed actions are almost never close enough to a bound to round to it.
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        fix = "use DQN, PPO or A2C" if isinstance(space, spaces.Discrete) else "use PPO or A2C"
        raise ArgumentError("action space", f"a Box of real numbers for {name}", str(space), fix)
    if not all((np.abs(side.astype(np.float64)) <= _F32_MAX).all() for side in (space.low, space.high)):
        raise ArgumentError(
            "action space",
            f"finite bounds in the range of float32 for {name}",
            str(space),
            "rescale actions in a wrapper, or use PPO or A2C",
        )
    # Equal bounds are allowed: such a component is constant.
    if (above := space.low > space.high).any():
        raise ArgumentError(
            "action space",
            f"low <= high for {name}",
            f"{space.low[above][0]} > {space.high[above][0]}",
            "swap the bounds",
            index=int(np.flatnonzero(above)[0]),
        )


def random_actions(space: gym.Space[Any], rng: np.random.Generator, batch_shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Sample uniform actions in the form that a rollout stores, int64 or float32.

    For an integer Box, actions are integers from `low` to `high`, both included, rounded to
    float32. The bounds of a floating-point Box are clipped to the range of float32.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary or Box space.
        rng: Generator of the samples.
        batch_shape: Leading axes of the result, which has the shape (*batch_shape, *space.shape).

    Raises:
        ArgumentError: A Box has infinite bounds.

    >>> random_actions(spaces.Discrete(1, start=9), np.random.default_rng(0), (2, 3)).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    shape = (*batch_shape, *(space.shape or ()))
    counts = get_action_counts(space)
    if counts is not None:
        return rng.integers(counts, size=shape)
    low, high = _finite_bounds(space)
    if low.dtype.kind in "iub":
        wide: Any = np.uint64 if low.dtype.kind == "u" else np.int64
        bounds = low.astype(wide), high.astype(wide)
        return rng.integers(*bounds, shape, wide, endpoint=True).astype(np.float32)
    return np.clip(rng.uniform(low, high, shape), low, high).astype(np.float32)


def uniform_log_prob(space: gym.Space[Any]) -> float:
    """Return the log-probability, or log-density for a floating-point Box, of a random action.

    The distribution is that of `random_actions`. Box components with equal bounds contribute 0.

    >>> round(uniform_log_prob(spaces.MultiDiscrete([2, 5])), 4)
    -2.3026
    >>> uniform_log_prob(spaces.Box(0, np.array([1, 0], np.float32)))
    -0.0
    """
    counts = get_action_counts(space)
    if counts is not None:
        return -float(np.log(counts).sum())
    low, high = _finite_bounds(space)
    width = high.astype(np.float64) - low.astype(np.float64) + (low.dtype.kind in "iub")
    return -float(np.log(width[width > 0]).sum())


def _finite_bounds(space: gym.Space[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    assert isinstance(space, spaces.Box)
    if not space.is_bounded():
        raise ArgumentError(
            "policy", "an action space with finite bounds for random actions", str(space), "pass a policy"
        )
    if space.low.dtype.kind == "f":
        low, high = (np.clip(side.astype(np.float64), -_F32_MAX, _F32_MAX) for side in (space.low, space.high))
        return low, high
    return space.low, space.high
