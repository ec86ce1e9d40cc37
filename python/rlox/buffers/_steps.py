"""Transitions of environments in any autoreset mode, as replay buffers store them."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox._finite import check_finite_env_array
from rlox._layout import Layout
from rlox._types import Array, Flags
from rlox.buffers.rollout import make_buffer
from rlox.envs._autoreset import infos_to_dict, write_final_obs
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.gymnasium import GymVecEnv
from rlox.envs.vec_env import VecEnv


class Step(NamedTuple):
    """Result of one step of N environments, without normalization."""

    next_obs: Array  # (N, *layout.shape): true next observations, before any reset
    rewards: npt.NDArray[np.float64]  # (N,)
    terminated: Flags  # (N,)
    truncated: Flags  # (N,)
    valid: Flags | None  # (N,): False where an environment only reset; None: all True
    # (N, n): actions allowed at `next_obs`, all False where `terminated` or not reported.
    next_masks: Flags | None = None  # None: action masks are not read


class StepRecorder:
    """Stepper of environments that returns the true next observation of every transition.

    Args:
        env: A `VecEnv` or `GymVecEnv`, see `rlox.make_vec`.
        masked: Read the action masks of every state.

    >>> from rlox import VecEnv
    >>> stepper = StepRecorder(VecEnv(n=2, env_id="Pendulum-v1"))
    >>> stepper.start(seed=0)
    >>> stepper.step(np.zeros((2, 1), np.float32)).next_obs.shape, stepper.obs.shape
    ((2, 3), (2, 3))
    """

    def __init__(self, env: RolloutEnv, masked: bool = False) -> None:
        self.env = env
        self.masked = masked
        self.layout = Layout(env.single_observation_space)
        self.native = isinstance(env, VecEnv)
        self.mode = env.autoreset_mode
        self._row = make_buffer(env, 1)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self.obs = np.empty((0, *self.layout.shape), self.layout.dtype)
        """(N, *layout.shape): current observations, not normalized; empty before `start`."""
        self.masks: Flags | None = None
        """(N, n): actions allowed at `obs`; None before `start` or if not `masked`."""

    def start(self, seed: int | None) -> None:
        """Read the current observations; reset first if `seed` is set or there has been no reset."""
        self.env.begin_rollout(self._row, None, seed)
        self.obs = self._row.obs[0].copy()
        self._ended[:] = False
        if seed is None and self.mode is AutoresetMode.NEXT_STEP:
            if isinstance(self.env, GymVecEnv):
                self._ended[:] = self.env._ended
            else:
                self._ended[:] = self.env.get_state()["finished"]
        self.masks = self.env.action_masks() if self.masked else None

    @property
    def _steps(self) -> int:
        """Steps of each environment so far, for errors; 0 for native environments."""
        return self.env.steps if isinstance(self.env, GymVecEnv) else 0

    def step(self, actions: Array) -> Step:
        """Step all environments and set `obs` and `masks` for the next action.

        Args:
            actions: (N, ...), in the form that `env.step` accepts.

        Raises:
            ArgumentError: As `env.step`, or a SAME_STEP environment reports no final observation.
            ArgumentTypeError, ClosedError, RuntimeError: As `env.step`.
            NonFiniteError: An observation or a reward is not finite, or too large for float32.
        """
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        rows = self.layout.pack(obs)
        if not self.native:
            rows = np.array(rows)  # Gymnasium environments may reuse the memory
            check_finite_env_array("rewards", np.asarray(rewards, np.float64), self._steps)
        done, valid, next_obs = terminated | truncated, None, rows
        # Read masks first: in DISABLED mode, the reset below replaces the last states.
        cut, final_masks = truncated & ~terminated, None
        if self.masked and cut.any():
            final_masks = self.env.final_action_masks(cut)
        match self.mode:
            case AutoresetMode.SAME_STEP:
                if done.any():
                    next_obs = rows.copy()
                    step = self._steps
                    infos = infos_to_dict(self.env.unwrapped, infos)
                    write_final_obs(next_obs, self.layout, infos, done, step)
                    if not self.native:
                        check_finite_env_array("final_obs", next_obs, step)
            case AutoresetMode.NEXT_STEP:
                valid = ~self._ended if self._ended.any() else None
                self._ended = done
            case AutoresetMode.DISABLED:
                if done.any():
                    self.env.begin_rollout(self._row)  # resets the finished environments
                    rows = self._row.obs[0].copy()
        self.obs, next_masks = rows, None
        if self.masked:
            self.masks = self.env.action_masks()
            next_masks = self.masks & ~terminated[:, None]
            if final_masks is not None:
                next_masks[cut] = final_masks[cut]
        return Step(next_obs, rewards, terminated, truncated, valid, next_masks)
