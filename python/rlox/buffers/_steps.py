"""`StepRecorder`: environments in any autoreset mode, one step at a time, as replay takes it."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox._finite import check_finite_env_array
from rlox._layout import Layout
from rlox.buffers.rollout import make_buffer
from rlox.envs._autoreset import get_autoreset_mode, infos_to_dict, write_final_obs
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


class Step(NamedTuple):
    """What a step of N environments led to, raw."""

    next_obs: Array  # (N, *layout.shape): where an episode ended its last one, before any reset
    rewards: npt.NDArray[np.float64]  # (N,)
    terminated: Flags  # (N,)
    truncated: Flags  # (N,)
    valid: Flags | None  # (N,): False where an environment only reset; None: all made a step
    # (N, n): what is allowed at `next_obs`; nothing where `terminated`, or where it is not known.
    next_masks: Flags | None = None  # None: of environments whose masks do not count


class StepRecorder:
    """Steps environments and tells each step's true next observations.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        masked: Read the action masks of each state.

    >>> from rlox import VecEnv
    >>> stepper = StepRecorder(VecEnv(n=2, env_id="Pendulum-v1"))
    >>> stepper.start(seed=0)
    >>> stepper.step(np.zeros((2, 1), np.float32)).next_obs.shape, stepper.obs.shape
    ((2, 3), (2, 3))
    """

    def __init__(self, env: RolloutEnv, masked: bool = False) -> None:
        any_env: Any = env  # what its mode asks for, `RolloutEnv` does not name
        self.env, self.masked = any_env, masked
        self.layout = Layout(env.single_observation_space)
        self.native = isinstance(env, VecEnv)
        # What is no VecEnv has said, or was told, its mode when it was made ready.
        self.mode = getattr(env, "_mode", None) or get_autoreset_mode(self.env)
        self._row = make_buffer(env, 1)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self.obs = np.empty((0, *self.layout.shape), self.layout.dtype)
        """(N, *layout.shape), raw: what is acted on next; empty before the start."""
        self.masks: Flags | None = None
        """(N, n): what is allowed at `obs`; None before the start, or if not `masked`."""

    def start(self, seed: int | None) -> None:
        """Looks where environments stand; with a seed they are reset before."""
        self.env.begin_rollout(self._row, None, seed)
        self.obs = self._row.obs[0].copy()
        self._ended[:] = False
        if seed is None and self.mode is AutoresetMode.NEXT_STEP:
            ended = self.env.get_state()["finished"] if self.native else self.env._ended
            self._ended[:] = ended
        self.masks = self.env.action_masks() if self.masked else None

    def step(self, actions: Array) -> Step:
        """Sends actions as environments take them; `obs` is then what to act on next.

        Raises:
            ValueError, TypeError, RuntimeError: As the environments' `step` does; a final
                observation that they owe; a number that is not finite, or beyond float32.
        """
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        rows = self.layout.pack(obs)
        if not self.native:
            rows = np.array(rows)  # others may write their next observations into the same memory
            check_finite_env_array("rewards", np.asarray(rewards, np.float64), self.env.steps)
        done, valid, next_obs = terminated | truncated, None, rows
        # Before a reset in DISABLED mode replaces the last states.
        cut, final_masks = truncated & ~terminated, None
        if self.masked and cut.any():
            final_masks = self.env.final_action_masks(cut)
        match self.mode:
            case AutoresetMode.SAME_STEP:
                if done.any():
                    next_obs = rows.copy()
                    step = 0 if self.native else self.env.steps
                    write_final_obs(
                        next_obs, self.layout, infos_to_dict(self.env, infos), done, step
                    )
                    if not self.native:
                        check_finite_env_array("final_obs", next_obs, step)
            case AutoresetMode.NEXT_STEP:
                valid = ~self._ended if self._ended.any() else None
                self._ended = done
            case AutoresetMode.DISABLED:
                if done.any():
                    self.env.begin_rollout(self._row)  # which resets those
                    rows = self._row.obs[0].copy()
        self.obs, next_masks = rows, None
        if self.masked:
            self.masks = self.env.action_masks()
            next_masks = self.masks & ~terminated[:, None]
            if final_masks is not None:
                next_masks[cut] = final_masks[cut]
        return Step(next_obs, rewards, terminated, truncated, valid, next_masks)
