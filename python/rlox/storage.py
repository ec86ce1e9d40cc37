"""What a step of a rollout stores, and in what: checked before environments move."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rlox import spaces
from rlox._rlox import Normalizer, RolloutBuffer
from rlox.layouts import Layout
from rlox.rollout import RolloutEnv
from rlox.settings import whole


def expect_storage(env: RolloutEnv, layout: Layout, buffer: Any, normalizer: Any) -> None:
    """Refuses what was made for other environments.

    Raises:
        TypeError: No buffer or normaliser.
        ValueError: One for other environments.
    """
    if not isinstance(buffer, RolloutBuffer):
        raise TypeError(
            f"buffer: expected a rlox.RolloutBuffer, got {type(buffer).__name__}; pass one"
        )
    if normalizer is not None and not isinstance(normalizer, Normalizer):
        raise TypeError(
            "normalizer: expected a rlox.Normalizer or None, got "
            f"{type(normalizer).__name__}; pass one of them"
        )
    acts, n = env.single_action_space, buffer.num_envs
    there = [(n, *field.shape[2:]) for field in (buffer.obs, buffer.actions)]
    wanted = [(env.num_envs, *shape) for shape in (layout.shape, acts.shape or ())]
    kinds = str(buffer.actions.dtype), spaces.action_dtype(acts)
    if there != wanted or kinds[0] != kinds[1]:
        raise ValueError(
            f"buffer: expected rows of observations and {kinds[1]} actions of shapes {wanted}, "
            f"got {there} and {kinds[0]}; make one for this environment"
        )
    holds = buffer.obs.dtype
    if layout.dtype.kind == "f" != holds.kind:
        raise ValueError(
            f"buffer: expected rows for {layout.dtype} observations, got {holds}; make one with "
            f"obs_dtype={str(layout.dtype)!r}"
        )
    shape = (env.num_envs, layout.shape)
    if normalizer is not None and (normalizer.num_envs, normalizer.obs_shape) != shape:
        raise ValueError(
            f"normalizer: expected one for {shape[0]} environments with observations of shape "
            f"{shape[1]}, got one for {normalizer.num_envs} with {normalizer.obs_shape}; make "
            "another"
        )


def numbers(name: str, given: npt.ArrayLike, num_envs: int) -> npt.NDArray[np.float32]:
    """One number for each environment.

    Raises:
        TypeError: They are none.
        ValueError: There are more or fewer.

    >>> numbers("values", [1, 0.5], num_envs=2)
    array([1. , 0.5], dtype=float32)
    """
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "biufO":
            raise TypeError(f"dtype {array.dtype}")
        with np.errstate(over="ignore"):  # who takes no infinities says so
            array = array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected real numbers, got {given!r}; pass one per environment"
        ) from error
    if array.shape != (num_envs,):
        raise ValueError(
            f"{name}: expected shape ({num_envs},), got {array.shape}; pass one number per "
            "environment"
        )
    return array


def expect_turn(buffer: RolloutBuffer, t: Any) -> int:
    """The step that is due, as a plain int.

    Raises:
        TypeError: It is no number.
        ValueError: It is another one than that which is due.
    """
    fix = "call begin_rollout before a rollout and step with t = 0, 1, ..."
    plain = whole("t", t, 0, fix=fix)
    if plain != buffer.next_step or plain == buffer.n_steps:
        raise ValueError(
            f"t: expected the next of {buffer.n_steps} steps, {buffer.next_step}, got {t}; {fix}"
        )
    return plain
