"""Who uses environments elsewhere, and what they ask of a rollout before they move."""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlox import spaces
from rlox._rlox import Normalizer, RolloutBuffer
from rlox.layouts import Layout
from rlox.rollout import RolloutEnv
from rlox.settings import whole

P = ParamSpec("P")
R = TypeVar("R")


class Turns:
    """A lock for one thread at a time, which may take it again. A forked child has it to itself.

    >>> turns = Turns()
    >>> with turns.lock, turns.lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.lock, self._process = threading.RLock(), os.getpid()
        _ALL.add(self)

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return os.getpid() != self._process

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        """A copy is of something else, which nobody uses yet."""
        return Turns, ()


_ALL: weakref.WeakSet[Turns] = weakref.WeakSet()


def _renew() -> None:
    # The threads that had the locks are not in a forked child.
    for turns in _ALL:
        turns.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class _TakesTurns(Protocol):
    _turns: Turns


S = TypeVar("S", bound=_TakesTurns)


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that waits until no other thread is in one of the same object."""

    @functools.wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._turns.lock:
            return method(self, *args, **kwargs)

    return waiting


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
