"""Gymnasium spaces of native environments; actions as rollouts store and environments want them.

A rollout stores Discrete and MultiDiscrete actions counted from 0 and Box actions unclipped; an
environment gets the space's `start` added and Box actions clipped to the bounds, those of an
integer Box rounded to the nearest.
"""

import math
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rlox._errors import ArgumentError, ArgumentTypeError, NonFiniteError


def from_native(space: dict[str, Any]) -> gym.Space[Any]:
    """The Gymnasium space of a native description.

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
    """The native description of an action space whose integers count from 0.

    Raises:
        TypeError: The space is none of Discrete, MultiDiscrete, MultiBinary and Box.

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
    action_dtype(space)  # which refuses it
    raise AssertionError


def to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a description of a space as a JSON value. Equal spaces have equal descriptions.

    Bounds and counts that are equal for all components are one number, others are a flat list.
    Infinite bounds are "inf" and "-inf".

    Raises:
        TypeError: The space is none of Discrete, MultiDiscrete, MultiBinary, Box, Dict and Tuple.

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
                "change it in a wrapper",
            )
    if not isinstance(space, spaces.Discrete):
        fields["shape"] = list(space.shape)
    return {"type": type(space).__name__, **fields, "dtype": str(space.dtype)}


def _to_list(array: npt.NDArray[Any]) -> object:
    if array.size > 0 and (array == array.flat[0]).all():
        array = array.flat[:1]
    numbers = [x if math.isfinite(x) else str(x) for x in array.ravel().tolist()]
    return numbers[0] if len(numbers) == 1 else numbers


def from_json(description: Any) -> gym.Space[Any]:
    """Return the space that `to_json` described.

    Raises:
        ValueError: The value does not describe a space.

    >>> from_json({"type": "Discrete", "n": 3, "start": 5, "dtype": "int64"})
    Discrete(3, start=5)
    """
    try:
        return _from_json(description)
    except (LookupError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ArgumentError(
            "spaces",
            "a description of a space",
            f"{description!r:.200} ({error})",
            "use a checkpoint that rlox wrote",
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
    """How many values each component of an integer action has; None for Box."""
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
        "flatten it with gymnasium.wrappers.TransformAction",
    )


def action_dtype(space: gym.Space[Any]) -> Literal["int64", "float32"]:
    """The dtype in which a rollout stores actions of this space: "int64" or "float32".

    Raises:
        TypeError: The space is none of Discrete, MultiDiscrete, MultiBinary and Box.

    >>> action_dtype(spaces.Discrete(2)), action_dtype(spaces.Box(-1, 1, (3,)))
    ('int64', 'float32')
    """
    return "float32" if get_action_counts(space) is None else "int64"


def check_action_shape(
    space: gym.Space[Any], values: npt.ArrayLike, num_envs: int
) -> npt.NDArray[Any]:
    """An array with one action for each environment, whatever is in it."""
    shape = (num_envs, *(space.shape or ()))
    try:
        actions = np.asarray(values)
    except ValueError as error:
        raise ArgumentError(
            "actions",
            f"shape {shape}",
            f"{type(values).__name__} ({error})",
            "pass one action per environment",
        ) from error
    if actions.shape != shape:
        raise ArgumentError(
            "actions", f"shape {shape}", str(actions.shape), "pass one action per environment"
        )
    return actions


def to_env_actions(space: gym.Space[Any], stored: npt.ArrayLike, num_envs: int) -> npt.NDArray[Any]:
    """Stored actions, (num_envs, ...), as the environment wants them, in the space's dtype.

    Raises:
        ValueError: Wrong shape, a Box action that is not finite, an integer action out of range.
        TypeError: Fractional actions for an integer space.

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
    _check_valid((actions < 0) | (actions >= counts), actions, f"integers in [0, {counts})")
    # Checked to be small, they are int64 now: beside uint64 the start would make them float64.
    env_actions: npt.NDArray[Any] = (actions.astype(np.int64) + _start(space)).astype(space.dtype)
    return env_actions


def _start(space: gym.Space[Any]) -> Any:
    """What the values of each component of an integer action are counted from."""
    return getattr(space, "start", 0)


def _check_integers(actions: npt.NDArray[Any]) -> None:
    if actions.dtype.kind not in "iu":
        raise ArgumentTypeError(
            "actions", "integers", f"dtype {actions.dtype}", "convert them to int64 first"
        )


def _to_real(actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if actions.dtype.kind in "biuf":
        return actions
    got = f"dtype {actions.dtype}"
    if actions.dtype.kind == "O":
        try:
            return actions.astype(np.float64)
        except (TypeError, ValueError) as error:
            got = str(error)
    raise ArgumentTypeError("actions", "real numbers", got, "pass an array of them")


def _clip(space: spaces.Box, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Inside the bounds, in the space's dtype: where it has no fractions, the nearest integers.

    Cut off, they would make 0 twice as likely as others, and the bounds hard to reach.
    """
    dtype = np.dtype(space.dtype)
    plain = actions
    if dtype.kind in "iu":
        # Integers are clipped as integers: float64 has not all of those beyond 2**53.
        plain = _saturate(actions, dtype)
    elif dtype.kind == "b":
        plain = np.rint(actions.astype(np.float64))
    elif dtype.kind == "f" and not np.can_cast(actions.dtype, dtype):
        kind: Any = dtype
        most = float(np.finfo(kind).max)
        plain = np.clip(actions, -most, most)  # beyond, they would become infinite
    clipped: npt.NDArray[Any] = np.clip(plain, space.low, space.high).astype(dtype)
    return clipped


def _saturate(actions: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Numbers as integers of a dtype; those beyond it become its smallest and largest."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    match actions.dtype.kind:
        case "f":
            numbers = np.rint(actions.astype(np.promote_types(actions.dtype, np.float64)))
            # A power of two or 0 each, which floats have; `most` they may not have.
            under, over = numbers < float(least), numbers >= float(most + 1)
            plain = np.where(under | over, 0, numbers).astype(dtype)
            return np.where(under, dtype.type(least), np.where(over, dtype.type(most), plain))
        case "i":
            wide = actions.astype(np.int64)
            return np.clip(wide, least, min(most, 2**63 - 1)).astype(dtype)
    return np.minimum(actions.astype(np.uint64), np.uint64(most)).astype(dtype)


def check_actions(
    space: gym.Space[Any],
    actions: npt.ArrayLike,
    num_envs: int,
    ignored: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[Any]:
    """A batch of actions as environments take them, as an array; all else is refused.

    Args:
        space: Of one action.
        actions: (num_envs, ...).
        num_envs: How many environments.
        ignored: (num_envs,): whose action is not used, so that it may be any number.

    Raises:
        ValueError: Wrong shape, a Box action that is not finite, an integer action out of range.
        TypeError: Fractional actions for an integer space.

    >>> check_actions(spaces.Discrete(3, start=5), [5, 7], num_envs=2)
    array([5, 7])
    """
    array, counts = check_action_shape(space, actions, num_envs), get_action_counts(space)
    start = _start(space)
    if counts is None:
        bad = ~np.isfinite(_to_real(array))
    else:
        _check_integers(array)
        if array.dtype == np.uint64:  # which would wrap around
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
    """Actions as environments take them, as a rollout stores them: integers counted from 0.

    Raises:
        ValueError, TypeError: As `check_actions`, where something has to be counted.

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
        at = tuple(np.argwhere(bad)[0])
        cls = ArgumentError if actions.dtype.kind in "iu" else NonFiniteError
        fix = "keep actions inside the action space"
        raise cls("actions", expected, str(actions[at]), fix, env=int(at[0]))


def check_action_space(space: gym.Space[Any], config: Any) -> None:
    """Refuses action spaces in which there is nothing to do, or not what the settings ask for.

    Raises:
        ValueError: It has no components; gSDE is asked for, and it is no Box.
    """
    if 0 in (space.shape or ()):
        raise ArgumentError(
            "action space", "one component or more", str(space), "leave out the axis that is empty"
        )
    if getattr(config, "use_sde", False) and not isinstance(space, gym.spaces.Box):
        raise ArgumentError("use_sde", "a Box action space", str(space), "set use_sde=False")


def check_supported_actions(algorithm: str, supported: str, space: gym.Space[Any]) -> None:
    """Refuses actions that an off-policy algorithm does not do.

    Args:
        algorithm: Name of the algorithm.
        supported: "discrete", or "box": a Box of real numbers with bounds, which may be equal.
        space: Space of one action.

    Raises:
        ValueError: It does not do them; those that do are named.

    >>> check_supported_actions("dqn", "discrete", gym.spaces.MultiBinary(2))
    Traceback (most recent call last):
    rlox.ArgumentError: action space: expected Discrete for DQN, got MultiBinary(2); use PPO or A2C
    """
    name = algorithm.upper()
    real = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"
    if supported == "discrete":
        if not isinstance(space, gym.spaces.Discrete):
            fix = "SAC, TD3, PPO or A2C" if real else "PPO or A2C"
            raise ArgumentError("action space", f"Discrete for {name}", str(space), f"use {fix}")
        return
    if not isinstance(space, gym.spaces.Box):
        fix = "DQN, PPO or A2C" if isinstance(space, gym.spaces.Discrete) else "PPO or A2C"
        raise ArgumentError("action space", f"a Box for {name}", str(space), f"use {fix}")
    if not real:
        # Squashed into the bounds, actions hardly ever are what is rounded to the outermost.
        raise ArgumentError(
            "action space", f"a Box of real numbers for {name}", str(space), "use PPO or A2C"
        )
    most = np.finfo(np.float32).max
    if not all((np.abs(side.astype(np.float64)) <= most).all() for side in (space.low, space.high)):
        raise ArgumentError(
            "action space",
            f"finite bounds for {name}, which float32 holds",
            str(space),
            "rescale actions in a wrapper, or use PPO or A2C",
        )
    # Equal ones are allowed: a component of which there is nothing to decide.
    if (above := space.low > space.high).any():
        raise ArgumentError(
            "action space",
            f"low <= high for {name}",
            f"{space.low[above][0]} > {space.high[above][0]}",
            "swap them",
            index=int(np.flatnonzero(above)[0]),
        )


_MOST = float(np.finfo(np.float32).max)


def random_actions(
    space: gym.Space[Any], rng: np.random.Generator, batch_shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Uniform actions as a rollout stores them, shape (*lead, *space.shape), int64 or float32.

    Those of an integer Box are its integers, bounds included, as near as float32 comes to them;
    those of a Box of real numbers are as far from 0 as float32 holds them.

    Raises:
        ValueError: A Box without finite bounds, be it of integers, has no uniform distribution.

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
    """The log-probability (of real ones: log-density) of each of the uniform `random_actions`.

    Components of a Box that can have only one value are certain.

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
            "policy",
            "an action space with finite bounds for random actions",
            str(space),
            "pass a policy",
        )
    if space.low.dtype.kind == "f":
        low, high = (
            np.clip(side.astype(np.float64), -_MOST, _MOST) for side in (space.low, space.high)
        )
        return low, high
    return space.low, space.high
