"""Interface of environments for rollouts, and checks of the arguments of its methods."""

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from rlox import _spaces
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._rlox import Normalizer, RolloutBuffer
from rlox._types import Array, Arrays, Flags


class RolloutEnv(Protocol):
    """Interface of N environments for rollouts, implemented by `VecEnv` and `GymVecEnv`."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""

    @property
    def single_observation_space(self) -> gym.Space[Any]:
        """Observation space of one environment."""

    @property
    def single_action_space(self) -> gym.Space[Any]:
        """Action space of one environment."""

    @property
    def action_stream(self) -> np.random.Generator:
        """Random generator of uniformly random actions."""

    @property
    def unwrapped(self) -> VectorEnv[Any, Any, Any]:
        """Innermost vector environment."""

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """Autoreset mode of the environments."""

    @property
    def closed(self) -> bool:
        """True if the environments are closed."""

    @property
    def has_action_masks(self) -> bool:
        """True if the environments report action masks now, or have reported masks before."""

    @property
    def supports_state(self) -> bool:
        """True if `get_state` may return a state."""

    @property
    def unrestorable_reason(self) -> str | None:
        """Reason why the last `get_state` returned nothing, or None."""

    @property
    def dropped_episodes(self) -> int:
        """Number of older episodes that the last `pop_episodes` did not return."""

    def step(self, actions: npt.ArrayLike) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step the environments, as `gymnasium.vector.VectorEnv.step`."""

    def action_masks(self) -> Flags:
        """Return the action masks for the current observations, (N, n)."""

    def final_action_masks(self, ended: Flags) -> Flags:
        """Return the action masks of the last states of episodes that the last step ended."""

    def get_state(self) -> Arrays:
        """Return the state for an exact resume; empty if the state cannot be saved."""

    def set_state(self, state: Arrays) -> bool | None:
        """Restore the state from `get_state`; return False if the environments do not support it."""

    def close(self) -> None:
        """Close the environments."""

    def begin_rollout(
        self, buffer: RolloutBuffer, normalizer: Normalizer | None = None, seed: int | None = None
    ) -> None:
        """Write the first observations of a rollout into `buffer.obs[0]`.

        The call resets the environments if they have not been reset before or a seed is passed.
        Otherwise, the rollout starts from the current observations.

        Args:
            buffer: A buffer for these environments.
            normalizer: Normalizes the observations. The observations of a reset also update its
                statistics. Default: no normalization.
            seed: Seed of the reset; environment i gets `seed + i`. Default: no new seed.

        Raises:
            ArgumentError: The buffer or the normalizer does not fit the environments.
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
        """Step the environments, and store the transition in row `t` of a buffer.

        In autoreset mode NEXT_STEP, the step after the end of an episode ignores the action and
        only resets the environment; `buffer.valid` is False for this step. In DISABLED mode, this
        method resets environments as soon as their episode ends, as in SAME_STEP mode.

        Args:
            buffer: The buffer of the last `begin_rollout`.
            t: Index of the step: 0, 1, ... in order.
            actions: (N, ...). Box actions are stored unchanged, and clipped to the bounds for the
                environment. Discrete actions count from 0; the environment gets them plus
                the start of the space.
            log_probs: float32 (N,), log-probabilities of the actions.
            values: float32 (N,), value estimates of the observations.
            normalizer: Normalizes the stored observations and rewards. Default: no normalization.

        Raises:
            ArgumentError: `t` is not the next step, a shape is wrong, or an action is out of range.
            ArgumentTypeError: An array has a wrong dtype.
            NonFiniteError: An array has a NaN or an infinity.
        """

    def pop_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the episodes that ended since the last call.

        Returns:
            Sums of raw rewards, float64, and lengths in steps, int64.
        """


def check_rollout_env(env: object) -> None:
    """Check that `env` is made for rollouts.

    Raises:
        ArgumentTypeError: `env` has no `step_rollout`.
    """
    if not hasattr(env, "step_rollout"):
        raise ArgumentTypeError("env", "a VecEnv or a GymVecEnv", type(env).__name__, "pass rlox.make_vec(env)")


def check_storage(env: RolloutEnv, layout: Layout, buffer: object, normalizer: object) -> None:
    """Check the types of a buffer and a normalizer, and that they fit the environments."""
    if not isinstance(buffer, RolloutBuffer):
        fix = "pass rlox.RolloutBuffer(n_steps, num_envs, obs_shape)"
        raise ArgumentTypeError("buffer", "a rlox.RolloutBuffer", type(buffer).__name__, fix)
    if normalizer is not None and not isinstance(normalizer, Normalizer):
        raise ArgumentTypeError(
            "normalizer", "a rlox.Normalizer or None", type(normalizer).__name__, "pass rlox.Normalizer(...) or None"
        )
    action_space = env.single_action_space
    shapes = [(buffer.num_envs, *field.shape[2:]) for field in (buffer.obs, buffer.actions)]
    env_shapes = [(env.num_envs, *shape) for shape in (layout.shape, action_space.shape or ())]
    dtype = str(buffer.actions.dtype)
    env_dtype = _spaces.action_dtype(action_space)
    if shapes != env_shapes or dtype != env_dtype:
        raise ArgumentError(
            "buffer",
            f"rows of observations and {env_dtype} actions of shapes {env_shapes}",
            f"shapes {shapes} and {dtype} actions",
            "create a buffer for this environment",
        )
    obs_dtype = buffer.obs.dtype
    if layout.dtype.kind == "f" != obs_dtype.kind:
        raise ArgumentError(
            "buffer",
            f"rows for {layout.dtype} observations",
            f"rows of dtype {obs_dtype}",
            f"create a buffer with obs_dtype={str(layout.dtype)!r}",
        )
    shape = (env.num_envs, layout.shape)
    if normalizer is not None and (normalizer.num_envs, normalizer.obs_shape) != shape:
        raise ArgumentError(
            "normalizer",
            f"{shape[0]} environments with observations of shape {shape[1]}",
            f"{normalizer.num_envs} environments with shape {normalizer.obs_shape}",
            "create a normalizer for this environment",
        )
