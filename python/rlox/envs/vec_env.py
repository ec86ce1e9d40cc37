"""`VecEnv`: native vector environments with the interface of `gymnasium.vector.VectorEnv`."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlox import _rng, _spaces
from rlox._errors import ClosedError
from rlox._rlox import NativeVectorEnv, Normalizer, RolloutBuffer
from rlox._rng import Seed, seed_each
from rlox._types import Flags, Floats
from rlox._validation import check_int
from rlox.envs import _ids
from rlox.envs._attributes import GymnasiumAttributes
from rlox.envs._autoreset import as_autoreset_mode, fill_rows, split_options
from rlox.envs._collect import Steps, check_collection
from rlox.envs._masks import check_any_allowed, final_mask_infos, mask_infos, missing_masks_error


class VecEnv(GymnasiumAttributes, VectorEnv[Floats, npt.ArrayLike, npt.NDArray[Any]]):
    """Vector of `n` native environments that step together.

    With the same seeds and actions, trajectories are equal to those of Gymnasium's environment of
    the same id. After `close`, methods that need the environments raise `ClosedError`.

    Args:
        n: Number of environments, at least 1. Default: 1.
        seed: Seed of the first reset; environment i gets `seed + i`. Default: a seed from the
            operating system.
        env_id: A native id with or without the prefix `rlox/`, or an id from `rlox.register_env`.
            Default: "CartPole-v1".
        autoreset_mode: Time of the reset after the end of an episode: a member, value or name of
            `AutoresetMode`. Default: SAME_STEP.
        max_episode_steps: Time limit; -1 for none. Default: the time limit of the id.
        render_mode: None or "rgb_array". Default: None.
        **env_kwargs: Arguments of the environment: `dt`, `nips`, `torque_noise_max` (Acrobot),
            `sutton_barto_reward` (CartPole), `goal_velocity` (both MountainCars), `g` (Pendulum).

    Raises:
        ArgumentError: The id, the mode or an argument is unknown, or a number is out of range.
        ArgumentTypeError: An argument has a wrong type.
        OutOfMemoryError: The environments need more memory than is free.

    Example:
        >>> env = VecEnv(n=2, seed=0, env_id="CartPole-v1")
        >>> obs, infos = env.reset()
        >>> obs.shape, obs.dtype
        ((2, 4), dtype('float32'))
        >>> obs, rewards, terminated, truncated, infos = env.step([0, 1])
        >>> rewards
        array([1., 1.])
    """

    unrestorable_reason: str | None = None
    """Always None; see `RolloutEnv`."""
    _renderer: _ids.Renderer | None = None
    _kind: Callable[..., NativeVectorEnv] = NativeVectorEnv

    def __init__(
        self,
        n: int = 1,
        seed: int | None = None,
        env_id: str = "CartPole-v1",
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **env_kwargs: float,
    ) -> None:
        mode = as_autoreset_mode(autoreset_mode)
        name = _ids.native_id(env_id)
        _ids.check_render_mode(render_mode, _ids.render_modes(name))
        n = check_int("n", n, 1, fix="pass the number of environments")
        source = _ids.PLUGINS.get(name, name)
        native = self._kind(source, n, seed, mode.value, max_episode_steps, env_kwargs, "n")
        self._native = native
        self._step = native.step
        self._init_kwargs: dict[str, Any] = {"env_id": env_id, "max_episode_steps": max_episode_steps, **env_kwargs}
        if type(self).step_into is VecEnv.step_into:
            # Without a Python method in between, a call takes less time.
            self.__dict__["step_into"] = native.step_into
        self._same_step = mode is AutoresetMode.SAME_STEP  # faster than reading the metadata
        self._seeds = _rng.SeedTracker(seed, n)
        self._has_reset = False
        spec = native.spec()
        self.has_action_masks = spec["has_action_masks"]
        self.supports_state = spec["supports_state"]
        self.num_envs = native.num_envs
        self.render_mode = render_mode
        self.single_observation_space = _spaces.from_native(spec["observation"])
        self.single_action_space = _spaces.from_native(spec["action"])
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        fps = _ids.frames_per_second(name)
        self.metadata = {"render_modes": _ids.render_modes(name), "render_fps": fps, "autoreset_mode": mode}
        vector_kwargs: dict[str, Any] = {"num_envs": n, "autoreset_mode": mode.value, **env_kwargs}
        self.spec = _ids.vector_spec(name, max_episode_steps, render_mode, **vector_kwargs)
        self._freeze(env_kwargs)

    def reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start episodes in all environments, or only where `options["reset_mask"]` is True.

        Args:
            seed: An int s seeds environment i with s + i. A sequence has a seed or None for each
                environment. Random streams without a seed continue. Default: no seeds.
            options: "reset_mask", bool (n,), and numbers for the environment: "x_init" and "y_init"
                (Pendulum), or "low" and "high" (all others). The dict is not changed.

        Returns:
            The observations of all environments, float32 (n, d), and infos as in `step`.

        Raises:
            ArgumentError: A seed is negative, the number of seeds is wrong, "reset_mask" has
                another shape or no True, or an option is unknown or out of range. The environments
                are not changed.
            ArgumentTypeError: A seed is not an int, or "reset_mask" is not a NumPy array of bool.

        >>> env = VecEnv(n=2)
        >>> bool((env.reset(seed=7)[0] == env.reset(seed=[7, 8])[0]).all())
        True
        """
        mask, numbers = split_options(options, self.num_envs)
        seed_each(seed, self.num_envs)  # rejects invalid seeds before environments change
        obs = self._native.reset(seed, mask, numbers)
        self._has_reset = True
        self._seeds.record(seed, mask)
        return obs, mask_infos(self._native) if self.has_action_masks else {}

    def step(self, actions: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """Step all environments, and return new arrays.

        Args:
            actions: Array-like with an action per environment: integers (n,) for Discrete, real
                numbers (n, k) for Box, which are converted to float32.

        Returns:
            obs float32 (n, d), rewards float64 (n,), terminated bool (n,), truncated bool (n,) and
            infos. If an episode ended in SAME_STEP mode, `infos["final_obs"]` is an object array:
            the final observation where an episode ended, else None. `infos["_final_obs"]`, bool
            (n,), is True where an episode ended. With action masks, `infos["action_mask"]`, int8
            (n, k), has the masks for `obs`. In SAME_STEP mode, `infos["final_info"]["action_mask"]`
            has the masks of the last observations of truncated episodes.

        Raises:
            ArgumentError: Actions have a wrong shape or are out of range, the environments have not
                been reset, or, in DISABLED mode, an episode is over.
            ArgumentTypeError: Actions have a wrong dtype.
            NonFiniteError: An action has a NaN or an infinity.

        After an error, the environments are not changed.
        """
        obs, rewards, terminated, truncated, final_obs = self._step(actions)
        infos: dict[str, Any] = {}
        final_info: dict[str, Any] = {}
        if self.has_action_masks:
            cut = truncated & ~terminated
            infos = mask_infos(self._native, None if self._same_step else cut)
            if self._same_step:
                final_info = final_mask_infos(self._native, cut)
        if final_obs is not None:
            done = terminated | truncated
            objects = np.empty(self.num_envs, dtype=object)
            infos |= {"final_obs": fill_rows(objects, done, final_obs), "_final_obs": done}
            infos |= {"final_info": final_info, "_final_info": done.copy()}
        return obs, rewards, terminated, truncated, infos

    def step_into(
        self,
        actions: npt.ArrayLike,
        obs: Floats,
        rewards: npt.NDArray[np.float64],
        terminated: Flags,
        truncated: Flags,
        final_obs: Floats | None = None,
    ) -> None:
        """Step all environments, and write the results into C-contiguous, writeable arrays.

        Args:
            actions: Actions, as for `step`.
            obs: float32 (n, d).
            rewards: float64 (n,).
            terminated: bool (n,).
            truncated: bool (n,).
            final_obs: float32 (n, d). In SAME_STEP mode, only the rows of environments whose
                episode ended are written. Default: final observations are dropped.

        Raises:
            ArgumentTypeError: An array has a wrong dtype.
            ArgumentError: An array has a wrong shape, is not contiguous or is read-only; also the
                errors of `step`. The environments are not changed.

        >>> env = VecEnv(n=2, seed=0)
        >>> obs, rewards = env.reset_all(), np.empty(2)
        >>> env.step_into([0, 1], obs, rewards, np.empty(2, bool), np.empty(2, bool))
        >>> rewards
        array([1., 1.])
        """
        self._native.step_into(actions, obs, rewards, terminated, truncated, final_obs)

    def action_masks(self, out: Flags | None = None) -> Flags:
        """Return the action masks for the last observations, bool (n, k).

        In modes other than SAME_STEP, environments whose episode is over allow every action.

        Args:
            out: C-contiguous array for the result. Default: a new array.

        Raises:
            ArgumentTypeError: `out` has a wrong dtype.
            ArgumentError: `has_action_masks` is False, an environment allows no action, or `out`
                has a wrong shape.
        """
        if not self.has_action_masks:
            raise missing_masks_error(self)
        masks = self._native.action_masks(out)
        check_any_allowed(masks, self.single_action_space)
        return masks

    def final_action_masks(self, ended: Flags) -> Flags:
        """Return the action masks of the last states of episodes that the last step truncated.

        Args:
            ended: bool (n,), True for the environments to read. Their episode must have been
                truncated and not terminated.

        Returns:
            bool (n, k). Rows outside `ended` are all False.

        Raises:
            ArgumentError: `has_action_masks` is False.
        """
        if not self.has_action_masks:
            raise missing_masks_error(self)
        return self._native.final_action_masks() & ended[:, None]

    def reset_all(self, seed: Seed = None) -> Floats:
        """Start an episode in every environment, and return the observations, float32 (n, d).

        >>> VecEnv(n=3, env_id="Pendulum-v1").reset_all(seed=1).shape
        (3, 3)
        """
        return self.reset(seed=seed)[0]

    def step_all(self, actions: npt.ArrayLike) -> dict[str, Any]:
        """Step all environments, and return the results as a dict.

        Returns:
            obs float32 (n, d), rewards float64 (n,), terminated bool (n,), truncated bool (n,), and
            terminal_obs, a list. An entry of this list is the final observation, float32 (d,), of
            an episode that ended in this step, or None.

        >>> env = VecEnv(n=2, seed=0)
        >>> _ = env.reset_all()
        >>> env.step_all([1, 0])["terminal_obs"]
        [None, None]
        """
        obs, rewards, terminated, truncated, final_obs = self._step(actions)
        final_rows = obs if final_obs is None else final_obs
        last = fill_rows([None] * self.num_envs, terminated | truncated, final_rows)
        return {"obs": obs, "rewards": rewards, "terminated": terminated, "truncated": truncated, "terminal_obs": last}

    def collect_n_steps(
        self, n: int, policy: Callable[[Floats], npt.ArrayLike] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Make `n` steps from the current states, after a reset if there has been none.

        Args:
            n: Number of steps, at least 1.
            policy: Function of observations (N, d), and of masks if it has a parameter
                `action_masks`, that returns actions as for `step`. Default: uniformly random
                actions, seeded by the last seed.

        Returns:
            Time-major arrays: obs (n, N, d), the observations before the actions; actions
            (n, N, ...); rewards, terminated and truncated (n, N); valid (n, N), False for steps in
            NEXT_STEP mode that only reset; last_obs (N, d); final_index int64 (k,), the numbers
            t * N + i where step t ended an episode of environment i; final_obs (k, d), the final
            observations of these episodes; action_masks (n, N, m), if the environments have masks.

        Raises:
            ArgumentError: `n` is below 1, the mode is DISABLED, or the mode is NEXT_STEP and
                `supports_state` is False; also the errors of `step`.
            ArgumentTypeError: `n` is not an int, or `policy` is not callable.
            OutOfMemoryError: The arrays need more memory than is free.

        >>> VecEnv(n=2, seed=0).collect_n_steps(5)["obs"].shape
        (5, 2, 4)
        """
        mode = self.autoreset_mode
        n = check_collection(mode, self.supports_state, n, policy)
        if not self._has_reset:
            self.reset_all()
        ended = self._native.get_state()["finished"] if mode is AutoresetMode.NEXT_STEP else None
        steps = Steps(self._native, self.single_action_space, n)
        if policy is None:
            steps.draw(self.action_stream)
        else:
            steps.choose(policy)
        return steps.to_dict(ended)

    def begin_rollout(
        self, buffer: RolloutBuffer, normalizer: Normalizer | None = None, seed: int | None = None
    ) -> None:
        """Write the first observations of a rollout into `buffer.obs[0]`; see `RolloutEnv`."""
        seed_each(seed, self.num_envs)  # rejects invalid seeds before environments change
        self._native.begin_rollout(buffer, normalizer, seed)
        self._has_reset = True
        self._seeds.record(seed)

    def step_rollout(
        self,
        buffer: RolloutBuffer,
        t: int,
        actions: npt.ArrayLike,
        log_probs: npt.ArrayLike,
        values: npt.ArrayLike,
        normalizer: Normalizer | None = None,
    ) -> None:
        """Step the environments, and store the transition in row `t`; see `RolloutEnv`."""
        self._native.step_rollout(buffer, t, actions, log_probs, values, normalizer)

    def pop_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the episodes that ended since the last call, at most the newest 16,384.

        Returns:
            Sums of raw rewards, float64, and lengths in steps, int64, in the order of the ends.

        >>> VecEnv(n=2).pop_episodes()
        (array([], dtype=float64), array([], dtype=int64))
        """
        return self._native.pop_episodes()

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """Autoreset mode of the environments."""
        mode: AutoresetMode = self.metadata["autoreset_mode"]
        return mode

    @property
    def dropped_episodes(self) -> int:
        """Number of older episodes that the last `pop_episodes` did not return."""
        return self._native.dropped_episodes

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state of the environments, for `set_state` of an equal `VecEnv`.

        Returns:
            states float64 (n, k), episode_returns float64 (n,), episode_steps int64 (n,), finished
            bool (n,), and streams int64 (n, 6), the states of the random streams.

        Raises:
            ArgumentError: The environments have not been reset, or `supports_state` is False.

        >>> env, copy = VecEnv(n=2, seed=0), VecEnv(n=2)
        >>> _ = env.reset_all(), env.step_all([0, 1])
        >>> copy.set_state(env.get_state())
        >>> bool((copy.step_all([0, 0])["obs"] == env.step_all([0, 0])["obs"]).all())
        True
        """
        return self._native.get_state()

    def set_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Restore the state from `get_state`.

        Raises:
            ArgumentError: An array is missing, has a wrong shape or has an invalid value. The
                environments are not changed.
            ArgumentTypeError: `state` is not a dict, or an array has a wrong dtype.
            NonFiniteError: A state or a return is NaN or infinite.
        """
        self._native.set_state(state)
        self._has_reset = True

    @property
    def action_stream(self) -> np.random.Generator:
        """Random generator of uniformly random actions, seeded by the last seed."""
        return self._seeds.action_stream

    @property  # type: ignore[misc]  # read-only, as SyncVectorEnv
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the random streams of all environments, as NumPy generators."""
        return tuple(map(_rng.to_numpy, self._native.rng_states()))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Last seed of each environment; -1 for a seed from the operating system."""
        return tuple(-1 if seed is None else seed for seed in self._seeds.seeds)

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """Return a frame, uint8 (height, width, 3), of every environment; None without a mode.

        Raises:
            ArgumentError: The environments have not been reset.
            ClosedError: The environments are closed.
            gymnasium.error.DependencyNotInstalled: pygame is not installed.
        """
        if self._native.closed:
            raise ClosedError("VecEnv", "an open object", "a closed one", "make a new one")
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode; pass render_mode='rgb_array'.")
            return None
        states = self._native.states()
        self._renderer = self._renderer or _ids.Renderer(self._native.env_id, self.render_mode)
        return tuple(map(self._renderer.draw, states))

    def close_extras(self, **kwargs: object) -> None:
        """Free the environments; Gymnasium's `close` calls this method once."""
        # Gymnasium before 1.4 also closes environments whose constructor failed.
        if hasattr(self, "_native"):
            self._native.close()
        if self._renderer is not None:
            self._renderer.close()
