"""`ForeignVecEnv`: any Gymnasium vector environment, made ready for rollouts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rlox import spaces, streams
from rlox._rlox import Normalizer, RolloutBuffer

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
if TYPE_CHECKING:
    Wrapper = VectorWrapper[Array, Any, Array, Any, Array]
else:  # not subscriptable before Gymnasium 1.4
    Wrapper = VectorWrapper


class ForeignVecEnv(Wrapper):
    """A Gymnasium vector environment with what rollouts need.

    Observations are a Box of any rank and dtype (stored as float32); actions are Discrete,
    MultiDiscrete, MultiBinary or Box. `begin_rollout`, `step_rollout` and `drain_episodes` are
    those of `RolloutEnv`; `reset`, `step`, `render` and `close` are the wrapped environment's.

    Args:
        env: In SAME_STEP mode.
        seed: For the first reset, environment i gets `seed + i`; None lets the environment choose.

    Raises:
        TypeError: Not a vector environment, or spaces other than those above.
        ValueError: Another autoreset mode.

    Example:
        >>> same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
        >>> made = gym.make_vec("Acrobot-v1", 2, vectorization_mode="sync", vector_kwargs=same_step)
        >>> env = ForeignVecEnv(made, seed=0)
        >>> buffer = RolloutBuffer(8, 2, (6,))
        >>> env.begin_rollout(buffer)
        >>> env.step_rollout(buffer, 0, actions=[0, 2], log_probs=[0.0, 0.0], values=[0.0, 0.0])
        >>> buffer.rewards[0]
        array([-1., -1.], dtype=float32)
    """

    def __init__(self, env: VectorEnv[Array, Any, Array], seed: int | None = None) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"env: expected autoreset mode SAME_STEP, got {getattr(mode, 'name', mode)}; make "
                "it with gymnasium.make_vec(id, n, vectorization_mode='sync', "
                "vector_kwargs={'autoreset_mode': AutoresetMode.SAME_STEP})"
            )
        if not isinstance(env.single_observation_space, gym.spaces.Box):
            raise TypeError(
                f"observation space: expected Box, got {env.single_observation_space}; flatten "
                "each environment with gymnasium.wrappers.FlattenObservation"
            )
        spaces.action_dtype(env.single_action_space)
        self._seed: int | Sequence[int | None] | None = seed
        self._obs: Array | None = None
        self._steps = 0
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._finished: list[tuple[Array, Array]] = []
        self._action_stream: np.random.Generator | None = None

    @property
    def action_stream(self) -> np.random.Generator:
        """The stream that uniformly random actions come from; the last seed given decides it."""
        if self._action_stream is None:
            self._action_stream = streams.action_stream(self._seed)
        return self._action_stream

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        """The wrapped environment's `reset`; the episodes it cuts are not counted."""
        if seed is not None:
            self._seed, self._action_stream = seed, None
        masked = None if options is None else options.get("reset_mask")
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # Gymnasium's own environments take sequences too
        self._obs = self._checked("observations", np.asarray(obs))
        reset = slice(None) if masked is None else masked
        self._returns[reset], self._lengths[reset] = 0.0, 0
        return obs, infos

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """The wrapped environment's `step`.

        Raises:
            ValueError: Observations or rewards that are not finite, with the environment and step.
        """
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self._steps += 1
        self._obs = self._checked("observations", np.asarray(obs))
        self._returns += self._checked("rewards", np.asarray(rewards, np.float64))
        self._lengths += 1
        done = terminated | truncated
        if done.any():
            self._finished.append((self._returns[done], self._lengths[done]))
            self._returns[done], self._lengths[done] = 0.0, 0
        return obs, rewards, terminated, truncated, infos

    def begin_rollout(
        self,
        buffer: RolloutBuffer,
        normalizer: Normalizer | None = None,
        seed: int | None = None,
    ) -> None:
        """Puts the first observations of a rollout into `buffer.obs[0]`; see `RolloutEnv`."""
        fresh = self._obs is None or seed is not None
        if fresh:
            self.reset(seed=self._seed if seed is None else seed)
        assert self._obs is not None
        buffer.begin(self._obs, fresh, normalizer)

    def step_rollout(
        self,
        buffer: RolloutBuffer,
        t: int,
        actions: npt.ArrayLike,
        log_probs: npt.ArrayLike,
        values: npt.ArrayLike,
        normalizer: Normalizer | None = None,
    ) -> None:
        """Stores row `t`, steps, stores what came back; see `RolloutEnv`.

        Raises:
            ValueError: Also for observations or rewards that are not finite, and for a truncated
                episode without its final observation.
        """
        sent = spaces.sent_actions(self.single_action_space, actions, self.num_envs)
        self._check_turn(buffer, t, log_probs=log_probs, values=values)
        obs, rewards, terminated, truncated, infos = self.step(sent)
        final_obs = None
        cut = truncated & ~terminated
        if cut.any():
            final_obs = self._final_obs(np.asarray(obs), cut, infos)
        said = (actions, log_probs, values)
        flags = (terminated, truncated)
        buffer.record(t, *said, obs, rewards, *flags, final_obs, normalizer)

    def _check_turn(self, buffer: RolloutBuffer, t: int, **said: npt.ArrayLike) -> None:
        """What `RolloutBuffer.record` would refuse, refused before the environments have moved."""
        if t != buffer.next_step or t == buffer.n_steps:
            raise ValueError(
                f"t: expected the next of {buffer.n_steps} steps, {buffer.next_step}, got {t}; "
                "call begin_rollout before a rollout and step with t = 0, 1, ..."
            )
        for name, array in said.items():
            if np.shape(array) != (self.num_envs,):
                raise ValueError(
                    f"{name}: expected shape ({self.num_envs},), got {np.shape(array)}; pass one "
                    "number per environment"
                )

    def _final_obs(self, obs: Array, cut: Flags, infos: dict[str, Any]) -> Array:
        """The true last observations in the rows of `cut`."""
        rows = infos.get("final_obs", [None] * self.num_envs)
        final_obs = np.zeros_like(obs)
        for i in np.flatnonzero(cut):
            if rows[i] is None:
                raise ValueError(
                    f"final_obs: expected the last observation of environment {i}, truncated at "
                    f"step {self._steps}, got None; SAME_STEP environments must report it"
                )
            final_obs[i] = rows[i]
        return self._checked("final observations", final_obs)

    def _checked(self, name: str, array: Array) -> Array:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            at = tuple(np.argwhere(~np.isfinite(array))[0])
            raise ValueError(
                f"{name}: expected finite numbers, got {array[at]} from environment {at[0]} at "
                f"step {self._steps}; look at that environment's dynamics"
            )
        return array

    def drain_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Returns and lengths of the episodes that ended since the last call; see `RolloutEnv`."""
        finished, self._finished = self._finished, []
        returns, lengths = zip(*finished, strict=True) if finished else ((), ())
        return (
            np.concatenate([np.empty(0), *returns]),
            np.concatenate([np.empty(0, np.int64), *lengths]),
        )
