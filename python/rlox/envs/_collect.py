"""Collection of steps from native environments into arrays, for `VecEnv.collect_n_steps`."""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox import _spaces
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import NativeVectorEnv
from rlox._spaces import random_actions
from rlox._system import check_memory
from rlox._types import Array, Flags
from rlox._validation import check_int
from rlox.envs._masks import adapt_to_masks, random_allowed

# Function from observations, and optionally action masks, to actions.
Policy = Callable[..., npt.ArrayLike]


def check_collection(mode: AutoresetMode, supports_state: bool, n: int, policy: object) -> int:
    """Check the arguments of `VecEnv.collect_n_steps`, and return `n` as a plain int."""
    if mode is AutoresetMode.DISABLED or (mode is AutoresetMode.NEXT_STEP and not supports_state):
        raise ArgumentError(
            "autoreset_mode",
            "SAME_STEP, or NEXT_STEP for environments with get_state()",
            mode.name,
            "create the environments with rlox.VecEnv or rlox.make_vec and autoreset_mode='SameStep'",
        )
    if policy is not None and not callable(policy):
        raise ArgumentTypeError(
            "policy", "a function of observations or None", type(policy).__name__, "pass a callable"
        )
    return check_int("n", n, 1, fix="pass the number of steps")


class Steps:
    """Arrays for the results of `n` steps of N native environments, and methods that fill them.

    Args:
        native: Environments in SAME_STEP or NEXT_STEP mode after the first reset.
        space: Action space of one environment.
        n: Number of steps.
    """

    def __init__(self, native: NativeVectorEnv, space: gym.Space[Any], n: int) -> None:
        self.native = native
        self.space = space
        first_obs = native.observe()
        num_envs, dim = first_obs.shape
        batch_shape = (n, num_envs)
        action_shape = space.shape or ()
        action_dtype = np.dtype(_spaces.action_dtype(space))
        width = native.action_masks().shape[1] if native.spec()["has_action_masks"] else 0
        bytes_per_step = 8 * dim + 11 + width + math.prod(action_shape) * action_dtype.itemsize
        check_memory("n", n, n * num_envs * bytes_per_step)
        self.obs = np.empty((n + 1, num_envs, dim), np.float32)
        self.obs[0] = first_obs
        self.final = np.empty((*batch_shape, dim), np.float32)
        self.rewards = np.empty(batch_shape)
        self.terminated = np.empty(batch_shape, np.bool_)
        self.truncated = np.empty(batch_shape, np.bool_)
        self.actions = np.empty((*batch_shape, *action_shape), action_dtype)
        self.masks = np.empty((*batch_shape, width), np.bool_) if width else None

    def _results(self, steps: int | slice) -> tuple[Array, ...]:
        flags = self.terminated[steps], self.truncated[steps]
        return self.obs[1:][steps], self.rewards[steps], *flags, self.final[steps]

    def draw(self, stream: np.random.Generator) -> None:
        """Make all steps with uniformly random actions."""
        if self.masks is not None:
            self.choose(lambda _, mask: self._sample_allowed(stream, mask))
            return
        n, num_envs = self.rewards.shape
        # One native call makes many steps; between two calls, Python can handle Ctrl-C.
        chunk = max(1, 1_000_000 // num_envs)
        for t in range(0, n, chunk):
            rows = slice(t, min(t + chunk, n))
            actions = random_actions(self.space, stream, ((rows.stop - t) * num_envs,))
            env_actions = _spaces.to_env_actions(self.space, actions, len(actions))
            self.actions[rows] = env_actions.reshape(-1, *self.actions.shape[1:])
            self.native.steps_into(self.actions[rows], *self._results(rows))

    def _sample_allowed(self, stream: np.random.Generator, mask: Flags) -> Array:
        actions, _ = random_allowed(self.space, stream, mask)
        return _spaces.to_env_actions(self.space, actions, len(actions))

    def choose(self, policy: Policy) -> None:
        """Make all steps with the actions that `policy` returns."""
        act = adapt_to_masks(policy)
        for t, action in enumerate(self.actions):
            mask = None if self.masks is None else self.native.action_masks(self.masks[t])
            actions = act(self.obs[t], mask)
            self.native.step_into(actions, *self._results(t))
            action[...] = actions

    def to_dict(self, ended: Flags | None) -> dict[str, Array]:
        """Return the arrays as a dict.

        Args:
            ended: bool (N,), in autoreset mode NEXT_STEP: True for environments whose episode was
                over before the first step, which therefore only reset them. None in other modes.
        """
        done = self.terminated | self.truncated
        valid = np.ones_like(done)
        final_rows = self.final
        if ended is not None:
            valid[0] = ~ended
            valid[1:] = ~done[:-1]
            final_rows = self.obs[1:]
        final_index = np.flatnonzero(done)
        return {
            "obs": self.obs[:-1],
            "actions": self.actions,
            "rewards": self.rewards,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "valid": valid,
            "last_obs": self.obs[-1],
            "final_index": final_index,
            "final_obs": final_rows.reshape(-1, final_rows.shape[2])[final_index],
            **({} if self.masks is None else {"action_masks": self.masks}),
        }
