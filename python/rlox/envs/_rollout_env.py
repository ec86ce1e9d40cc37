"""Checks of what a step of a rollout stores, before environments move."""

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import _spaces
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._rlox import Normalizer, RolloutBuffer
from rlox._validation import check_int


class RolloutEnv(Protocol):
    """What rollouts need of N environments: `VecEnv` and `GymVecEnv` have it."""

    @property
    def num_envs(self) -> int:
        """How many environments there are."""

    @property
    def single_observation_space(self) -> gym.Space[Any]:
        """The observation space of one environment."""

    @property
    def single_action_space(self) -> gym.Space[Any]:
        """The action space of one environment."""

    @property
    def action_stream(self) -> np.random.Generator:
        """The stream that uniformly random actions come from."""

    def begin_rollout(
        self, buffer: RolloutBuffer, normalizer: Normalizer | None = None, seed: int | None = None
    ) -> None:
        """Puts the first observations of a rollout into `buffer.obs[0]`.

        The first time, or where a seed is given, they come from a reset, else from where the
        environments stand. With a normaliser they are normalised (and counted, after a reset).

        Raises:
            ValueError: A buffer made for other environments.
        """

    def step_rollout(
        self,
        buffer: RolloutBuffer,
        t: int,
        actions: npt.ArrayLike,
        log_probs: npt.ArrayLike,
        values: npt.ArrayLike,
        normalizer: Normalizer | None = None,
    ) -> None:
        """Stores row `t` of what a policy said, steps with its actions, stores what came back.

        In NEXT_STEP mode, an environment whose episode ended in the row before ignores its action
        and only resets: `buffer.valid` is False there. In DISABLED mode, environments whose
        episodes end are reset at once, so that the rollout is that of SAME_STEP.

        Args:
            buffer: Made for these environments; `begin_rollout` was called with it.
            t: 0, 1, ... in order.
            actions: (N, ...). Box actions are stored as they are and clipped to the bounds for the
                environment; Discrete ones count from 0, the space's start is added.
            log_probs: float32 (N,).
            values: float32 (N,).
            normalizer: Normalises the observations and rewards that are stored.

        Raises:
            ValueError: Not the next `t`, wrong shapes, actions out of range or not finite.
            TypeError: Actions of another kind.
        """

    def pop_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Returns (sums of raw rewards) and lengths of the episodes ended since the last call."""


def check_storage(env: RolloutEnv, layout: Layout, buffer: Any, normalizer: Any) -> None:
    """Check that a buffer and a normaliser were made for such environments."""
    if not isinstance(buffer, RolloutBuffer):
        fix = "pass rlox.RolloutBuffer(n_steps, num_envs, obs_shape)"
        raise ArgumentTypeError("buffer", "a rlox.RolloutBuffer", type(buffer).__name__, fix)
    if normalizer is not None and not isinstance(normalizer, Normalizer):
        raise ArgumentTypeError(
            "normalizer",
            "a rlox.Normalizer or None",
            type(normalizer).__name__,
            "pass rlox.Normalizer(...) or None",
        )
    acts, n = env.single_action_space, buffer.num_envs
    there = [(n, *field.shape[2:]) for field in (buffer.obs, buffer.actions)]
    wanted = [(env.num_envs, *shape) for shape in (layout.shape, acts.shape or ())]
    kinds = str(buffer.actions.dtype), _spaces.action_dtype(acts)
    if there != wanted or kinds[0] != kinds[1]:
        raise ArgumentError(
            "buffer",
            f"rows of observations and {kinds[1]} actions of shapes {wanted}",
            f"{there} and {kinds[0]}",
            "make one for this environment",
        )
    holds = buffer.obs.dtype
    if layout.dtype.kind == "f" != holds.kind:
        raise ArgumentError(
            "buffer",
            f"rows for {layout.dtype} observations",
            str(holds),
            f"make one with obs_dtype={str(layout.dtype)!r}",
        )
    shape = (env.num_envs, layout.shape)
    if normalizer is not None and (normalizer.num_envs, normalizer.obs_shape) != shape:
        raise ArgumentError(
            "normalizer",
            f"one for {shape[0]} environments with observations of shape {shape[1]}",
            f"one for {normalizer.num_envs} with {normalizer.obs_shape}",
            "make another",
        )


def to_float_array(name: str, values: npt.ArrayLike, num_envs: int) -> npt.NDArray[np.float32]:
    """Return an array with one number for each environment.

    >>> to_float_array("values", [1, 0.5], num_envs=2)
    array([1. , 0.5], dtype=float32)
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufO":  # before a cast that warns of complex numbers
            raise _not_real(name, values)
        with np.errstate(over="ignore"):  # who takes no infinities says so
            converted = array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise _not_real(name, values) from error
    if converted.shape != (num_envs,):
        raise ArgumentError(
            name, f"shape ({num_envs},)", str(converted.shape), "pass one number per environment"
        )
    return converted


def _not_real(name: str, values: object) -> ArgumentTypeError:
    return ArgumentTypeError(name, "real numbers", repr(values), "pass one number per environment")


def check_step_index(buffer: RolloutBuffer, t: Any) -> int:
    """Check that step `t` is the next one of the rollout, and return it as a plain int."""
    fix = "call begin_rollout before a rollout and step with t = 0, 1, ..."
    plain = check_int("t", t, 0, fix=fix)
    if plain != buffer.next_step or plain == buffer.n_steps:
        raise ArgumentError(
            "t", f"the next of {buffer.n_steps} steps, {buffer.next_step}", str(t), fix
        )
    return plain
