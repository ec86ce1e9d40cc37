"""Steps of native environments without a buffer: the body of `VecEnv.collect_n_steps`."""

import math
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
from rlox._validation import check_int
from rlox.envs._masks import Flags, adapt_to_masks, random_allowed

Array = npt.NDArray[Any]


def check_collection(mode: AutoresetMode, n: int, policy: object) -> int:
    """The number of steps, refused unless positive, as are DISABLED mode and kinds of policies."""
    if mode is AutoresetMode.DISABLED:
        raise ArgumentError(
            "autoreset_mode",
            "SAME_STEP or NEXT_STEP",
            str(mode.name),
            "make the environments by rlox.VecEnv, or rlox.make_vec, with "
            "autoreset_mode='SameStep'",
        )
    if policy is not None and not callable(policy):
        raise ArgumentTypeError(
            "policy", "a function of observations or None", type(policy).__name__, "pass a callable"
        )
    return check_int("n", n, 1, fix="pass how many steps to make")


def collect_steps(
    native: NativeVectorEnv, space: gym.Space[Any], n: int, mode: AutoresetMode, choose: Any
) -> dict[str, Array]:
    """`n` steps from where environments stand, by a policy or with a stream's random actions."""
    ended, steps = ended_before(native, mode), Steps(native, space, n)
    steps.draw(choose) if isinstance(choose, np.random.Generator) else steps.choose(choose)
    return steps.to_dict(ended, mode)


def ended_before(native: NativeVectorEnv, mode: AutoresetMode) -> Flags:
    """Whose next step only resets, (N,): in NEXT_STEP mode, where an episode is over.

    Raises:
        ValueError: The environments do not tell.
    """
    if mode is not AutoresetMode.NEXT_STEP:
        return np.zeros(native.num_envs, np.bool_)
    if not native.spec()["restorable"]:
        raise ArgumentError(
            "autoreset_mode",
            "SAME_STEP of environments that do not tell their state",
            "NEXT_STEP",
            "make them by rlox.VecEnv, or rlox.make_vec, with autoreset_mode='SameStep'",
        )
    return native.get_state()["finished"]


class Steps:
    """The arrays that `n` steps of native environments fill, and how they are made.

    Args:
        native: Environments in SAME_STEP or NEXT_STEP mode that have been reset.
        space: Of one action.
        n: How many steps.
    """

    def __init__(self, native: NativeVectorEnv, space: gym.Space[Any], n: int) -> None:
        self.native, self.space = native, space
        start = native.observe()
        num_envs, dim = start.shape
        lead = (n, num_envs)
        kind, shape = np.dtype(_spaces.action_dtype(space)), space.shape or ()
        width = native.action_masks().shape[1] if native.spec()["has_action_masks"] else 0
        bytes_each = 8 * dim + 11 + width + math.prod(shape) * kind.itemsize
        check_memory("n", n, n * num_envs * bytes_each)
        self.obs = np.empty((n + 1, num_envs, dim), np.float32)
        self.obs[0] = start
        self.final = np.empty((*lead, dim), np.float32)
        self.rewards = np.empty(lead)
        self.terminated, self.truncated = np.empty(lead, np.bool_), np.empty(lead, np.bool_)
        self.actions = np.empty((*lead, *shape), kind)
        self.masks = np.empty((*lead, width), np.bool_) if width else None

    def _results(self, steps: Any) -> tuple[Array, ...]:
        flags = self.terminated[steps], self.truncated[steps]
        return self.obs[1:][steps], self.rewards[steps], *flags, self.final[steps]

    def draw(self, stream: np.random.Generator) -> None:
        """Steps with uniformly random actions."""
        if self.masks is not None:
            self.choose(lambda _, mask: self._sample_allowed(stream, mask))
            return
        n, num_envs = self.rewards.shape
        # One call for all steps, but that Ctrl-C is looked for now and then.
        some = max(1, 1_000_000 // num_envs)
        for t in range(0, n, some):
            now = slice(t, min(t + some, n))
            chosen = random_actions(self.space, stream, ((now.stop - t) * num_envs,))
            sent = _spaces.to_env_actions(self.space, chosen, len(chosen))
            self.actions[now] = sent.reshape(-1, *self.actions.shape[1:])
            self.native.steps_into(self.actions[now], *self._results(now))

    def _sample_allowed(self, stream: np.random.Generator, mask: Flags) -> Array:
        actions, _ = random_allowed(self.space, stream, mask)
        return _spaces.to_env_actions(self.space, actions, len(actions))

    def choose(self, policy: Any) -> None:
        """Steps with the actions that a function of observations, and masks, decides on."""
        act = adapt_to_masks(policy)
        for t, action in enumerate(self.actions):
            mask = None if self.masks is None else self.native.action_masks(self.masks[t])
            actions = act(self.obs[t], mask)
            self.native.step_into(actions, *self._results(t))
            action[...] = actions

    def to_dict(self, ended: Flags, mode: AutoresetMode) -> dict[str, Array]:
        """All as a dict; `ended`: whose first step only reset."""
        done = self.terminated | self.truncated
        valid = np.ones_like(done)
        if mode is AutoresetMode.NEXT_STEP:
            valid[0], valid[1:] = ~ended, ~done[:-1]
        at = np.flatnonzero(done)
        finals = self.final if mode is AutoresetMode.SAME_STEP else self.obs[1:]
        return {
            "obs": self.obs[:-1],
            "actions": self.actions,
            "rewards": self.rewards,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "valid": valid,
            "last_obs": self.obs[-1],
            "final_index": at,
            "final_obs": finals.reshape(-1, finals.shape[2])[at],
            **({} if self.masks is None else {"action_masks": self.masks}),
        }
