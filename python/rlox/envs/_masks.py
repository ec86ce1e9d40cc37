"""Action masks: flags of the actions that environments allow."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError, warn_at_most
from rlox._rlox import NativeVectorEnv
from rlox._types import Flags
from rlox._validation import short_repr


def mask_width(space: gym.Space[Any]) -> int:
    """Return the number of flags in a mask: one for each value of each action component.

    >>> mask_width(spaces.Discrete(4)), mask_width(spaces.MultiDiscrete([2, 3]))
    (4, 5)
    """
    return sum(mask_counts(space))


def mask_counts(space: gym.Space[Any]) -> list[int]:
    """Return the number of flags for each component of the action.

    Components of MultiBinary have two flags, for 0 and 1, as in sb3-contrib's MaskablePPO.

    >>> mask_counts(spaces.Discrete(4)), mask_counts(spaces.MultiDiscrete([[2], [3]]))
    ([4], [2, 3])
    >>> mask_counts(spaces.MultiBinary(3))
    [2, 2, 2]
    """
    match space:
        case spaces.Discrete():
            return [int(space.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in space.nvec.ravel()]
        case spaces.MultiBinary():
            return [2] * math.prod(space.shape)
    raise ArgumentError(
        "action_masks",
        "a Discrete, MultiDiscrete or MultiBinary action space",
        str(space),
        "set action_masks=False, or pass no masks",
    )


def check_any_allowed(masks: Flags, space: gym.Space[Any]) -> None:
    """Check that masks (num_envs, n) allow an action in each environment."""
    for part in _parts(masks, space):
        is_empty = ~part.any(axis=1)
        if is_empty.any():
            raise ArgumentError(
                "action_mask",
                "an action that is allowed",
                "none",
                "end the episode when no action is possible",
                env=int(is_empty.argmax()),
            )


def _parts(masks: Flags, space: gym.Space[Any]) -> list[Flags]:
    """Return the flags (n, k) of each component of the action."""
    return np.split(masks, np.cumsum(mask_counts(space))[:-1], axis=1)


def random_allowed(
    space: gym.Space[Any], rng: np.random.Generator, masks: Flags
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Sample allowed actions uniformly.

    Returns:
        Actions (n, ...), int64 and counted from 0, and their log-probabilities (n,), float32.

    >>> actions, log_probs = random_allowed(
    ...     spaces.Discrete(3), np.random.default_rng(0), np.eye(3, dtype=bool)
    ... )
    >>> actions.tolist(), log_probs.tolist()
    ([0, 1, 2], [0.0, 0.0, 0.0])
    """
    components = []
    log_probs = np.zeros(len(masks))
    for part in _parts(masks, space):
        allowed = part.sum(1)
        # Draw k below the number of allowed actions, and take the k-th allowed action.
        components.append((part.cumsum(1) > rng.integers(allowed)[:, None]).argmax(1))
        log_probs -= np.log(allowed)
    actions = np.stack(components, 1).reshape(len(masks), *(space.shape or ()))
    return actions.astype(np.int64), log_probs.astype(np.float32)


def mask_parameter(function: Callable[..., object] | None) -> inspect.Parameter | None:
    """Return the parameter `mask`, `action_mask` or `action_masks` of a function, or None.

    >>> mask_parameter(lambda obs, mask=None: 0).name, mask_parameter(lambda obs: 0)
    ('mask', None)
    """
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters  # type: ignore[arg-type]  # None raises TypeError
    except (TypeError, ValueError):  # some C functions have no signature
        return None
    names = ("mask", "action_mask", "action_masks")
    return next((parameters[name] for name in names if name in parameters), None)


def adapt_to_masks(function: Callable[..., Any]) -> Callable[[Any, Flags | None], Any]:
    """Return a function of observations and masks that calls `function`.

    `function` gets masks only if it has a parameter for masks. In a call without masks, this
    parameter has its default, or None if it has no default.
    """
    parameter = mask_parameter(function)

    def called(obs: object, masks: Flags | None) -> object:
        if parameter is None or (masks is None and parameter.default is not parameter.empty):
            return function(obs)
        return function(obs, **{parameter.name: masks})

    return called


def missing_masks_error(env: object) -> ArgumentError:
    """Return the error for environments without action masks."""
    return ArgumentError(
        "action_masks",
        "environments with infos['action_mask'] or a method action_masks()",
        f"{env} without",
        "add masks in a wrapper, or set action_masks=False",
    )


def mask_infos(native: NativeVectorEnv, cut: Flags | None = None) -> dict[str, Any]:
    """Return infos with the action masks of native environments, int8 as in Gymnasium's Taxi.

    `cut`, bool (num_envs,), is True for environments whose episode was truncated and that are not
    reset yet. Their masks are those of the final states.
    """
    masks = native.action_masks()
    if cut is not None and cut.any():
        masks[cut] = native.final_action_masks()[cut]
    return {"action_mask": masks.view(np.int8), "_action_mask": np.ones(len(masks), np.bool_)}


def final_mask_infos(native: NativeVectorEnv, cut: Flags) -> dict[str, Any]:
    """Return `final_info` of native environments: masks of the last states of episodes in `cut`."""
    if not cut.any():
        return {}
    masks = native.final_action_masks() & cut[:, None]
    return {"action_mask": masks.view(np.int8), "_action_mask": cut}


def as_flags(argument: str, expected: str, values: npt.ArrayLike, env: int | None = None) -> Flags:
    """Convert flags to an array of bool.

    >>> as_flags("mask", "flags of shape (1, 2)", [[1, 0]])
    array([[ True, False]])
    """
    hint = "pass True or False for each action"
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"values that NumPy cannot convert ({error})"
        raise ArgumentError(argument, expected, got, hint, env=env) from error
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(argument, expected, short_repr(values), hint, env=env)
    flags = array.astype(np.bool_)
    if (array != flags).any():
        raise ArgumentError(argument, expected, str(array[array != flags][0]), hint, env=env)
    return flags


def as_masks(values: npt.ArrayLike, space: gym.Space[Any], n: int) -> Flags:
    """Convert a user's masks for `n` observations to bool (n, width)."""
    shape = (n, mask_width(space))
    expected = f"flags of shape {shape}"
    masks = as_flags("action_masks", expected, values)
    masks = masks[None] if masks.ndim == 1 else masks
    if masks.shape != shape:
        raise ArgumentError("action_masks", expected, f"shape {masks.shape}", "pass a flag for each action")
    allowed = np.all([part.any(axis=1) for part in _parts(masks, space)], axis=0)
    if not allowed.all():
        raise ArgumentError(
            "action_masks",
            "an action (of each component) that is allowed in each row",
            "none",
            "allow an action in each row",
            row=int(allowed.argmin()),
        )
    return masks


Infos = dict[str, Any]


class MaskSource:
    """Reader of the action masks of a vector environment.

    Environments report masks in `infos["action_mask"]`, as Gymnasium's Taxi does. The alternative
    is a method `action_masks` of the vector environment, which returns (num_envs, k), or of each
    single environment, which returns (k,). If an environment's infos lack a mask, every action is
    allowed. For the last state of an episode, however, a missing mask counts as unknown; see
    `read_final`.

    Args:
        env: The vector environment.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.has_reported = False  # whether infos have ever had a mask
        self._warned = False

    def note(self, infos: Infos) -> Infos:
        """Record whether the infos of `reset` or `step` have masks, and return the infos."""
        self.has_reported = self.has_reported or _has_mask(infos)
        return infos

    def has_masks(self, infos: Infos) -> bool:
        """Return whether the environments report masks now, or have reported masks before."""
        self.note(infos)
        return self.has_reported or self._method is not None

    @cached_property
    def _method(self) -> Callable[[], Any] | None:
        """Method `action_masks` of the environments, or None."""
        return _find_masks_method(self.env)

    def read(self, infos: Infos, ended: Flags) -> Flags:
        """Return the action masks after a reset or step, bool (num_envs, k).

        Args:
            infos: The infos of `reset` or `step`.
            ended: bool (num_envs,), True where the episode is over and the next step only resets.
                These environments allow every action.

        Raises:
            ArgumentError: The environments have never reported masks, a mask has a wrong shape or a
                number other than 0 and 1, or an environment allows no action.
            ArgumentTypeError: The elements of a mask are neither bools nor numbers.
        """
        space = self.env.single_action_space
        if not self.has_masks(infos):
            raise missing_masks_error(self.env)
        masks, reported = self._read_masks(infos, self._method, np.ones_like(ended))
        masks[ended | ~reported] = True
        check_any_allowed(masks, space)
        return masks

    def read_final(self, infos: Infos, ended: Flags, same_step: bool) -> Flags:
        """Return the action masks of the last states of episodes that a step ended.

        Args:
            infos: The infos of `step`.
            ended: bool (num_envs,), True for the environments to read.
            same_step: True in SAME_STEP mode, where the step has reset the environments and the
                masks are in `infos["final_info"]`. Else they are in `infos` or from the method.

        Returns:
            bool (num_envs, k). Rows outside `ended` and rows without a reported mask are all False.

        Raises:
            ArgumentError: A mask has a wrong shape, or a number other than 0 and 1.
            ArgumentTypeError: The elements of a mask are neither bools nor numbers.

        Warns:
            UserWarning: An environment in `ended` reports no allowed action. Each
                `MaskSource` warns once.
        """
        method = None if same_step else self._method
        final = infos.get("final_info") if same_step else infos
        masks, _ = self._read_masks(final if isinstance(final, dict) else {}, method, ended)
        unknown = ended & ~masks.any(axis=1)
        if unknown.any() and not self._warned:
            self._warned = True
            warn_at_most(
                "action_mask: expected a mask with an allowed action for the last state of a truncated episode, "
                f"got none from environment {unknown.argmax()} of {self.env}; return infos['action_mask'] also from "
                "the step that ends an episode, or terminate the episode if no action is possible. Minibatches leave "
                "out transitions without this mask"
            )
        return masks

    def _read_masks(self, infos: Infos, method: Callable[[], Any] | None, wanted: Flags) -> tuple[Flags, Flags]:
        """Return masks (num_envs, k) of `wanted` environments, and flags of those that report one."""
        width = mask_width(self.env.single_action_space)
        if _has_mask(infos):
            return _stack_masks(infos["action_mask"], wanted & infos.get("_action_mask", True), width)
        if method is not None:
            return _stack_masks(method(), wanted, width)
        return np.zeros((len(wanted), width), np.bool_), np.zeros_like(wanted)


def merge_mask_infos(before: Infos, infos: Infos, reset: Flags) -> Infos:
    """Return the infos of a partial reset; environments that were not reset keep their masks."""
    if not _has_mask(before):
        return infos
    masks = [*before["action_mask"]]  # arrays, lists, or tuples of them
    reported = ~reset & before.get("_action_mask", True)
    if _has_mask(infos):
        for i in np.flatnonzero(reset):
            masks[i] = infos["action_mask"][i]
        reported = reported | (reset & infos.get("_action_mask", True))
    return {**infos, "action_mask": masks, "_action_mask": reported}


def _has_mask(infos: Infos) -> bool:
    """Return whether the infos have a mask that is not None."""
    masks = infos.get("action_mask")
    return masks is not None and any(mask is not None for mask in masks)


def _find_masks_method(env: Any) -> Callable[[], Any] | None:
    """Return the method `action_masks`, or a function that calls this method of each environment."""
    inner = env.unwrapped
    while True:
        # Environments of rlox always have the method, and an attribute that tells whether it works.
        if getattr(env, "has_action_masks", True):
            method: Callable[[], Any] | None = getattr(env, "action_masks", None)
            if callable(method):
                return method
        if env is inner:
            break
        env = env.env
    return (lambda: inner.call("action_masks")) if all_have(inner, "action_masks") else None


def all_have(env: Any, name: str) -> bool:
    """Return whether each environment of an unwrapped vector environment has an attribute."""
    try:
        # A worker process would exit if it were asked for a missing attribute.
        return all(env.call("has_wrapper_attr", name))
    except (AttributeError, NotImplementedError, TypeError):
        return False


def _stack_masks(values: Any, selected: Flags, width: int) -> tuple[Flags, Flags]:
    """Return masks (n, width), which are False outside `selected`, and the rows with a mask.

    The mask of an environment is an array, or a sequence of arrays for the action components.
    """
    n = len(selected)
    masks = np.zeros((n, width), np.bool_)
    reported = selected.copy()
    fix = "return a mask of this shape from the environment"
    if selected.any() and len(values) != n:
        expected = f"shape {(n, width)}, a row for each environment"
        raise ArgumentError("action_mask", expected, f"{len(values)} rows", fix)
    for i in np.flatnonzero(selected):
        if values[i] is None:
            reported[i] = False
            continue
        parts = values[i] if isinstance(values[i], (tuple, list)) else (values[i],)
        flags = np.concatenate([np.ravel(part) for part in parts])
        if flags.shape != (width,):
            expected = f"shape {(n, width)}, a flag for each action"
            raise ArgumentError("action_mask", expected, str((n, *flags.shape)), fix)
        # Reject other numbers, such as log-probabilities, which a conversion to bool would accept.
        masks[i] = as_flags("action_mask", "flags, each 0 or 1", flags, env=int(i))
    return masks, reported
