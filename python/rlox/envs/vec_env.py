"""`VecEnv`: the native vector environments, by the rules of `gymnasium.vector.VectorEnv`."""

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
from rlox._rng import Seed
from rlox._validation import check_int
from rlox.envs._attributes import GymnasiumAttributes
from rlox.envs._autoreset import as_autoreset_mode, final_infos, split_options, to_step_dict
from rlox.envs._collect import check_collection, collect_steps
from rlox.envs._ids import (
    Renderer,
    check_render_mode,
    native_id,
    render_modes,
    source_of,
    vector_metadata,
    vector_spec,
)
from rlox.envs._masks import check_any_allowed, check_has_action_masks, final_mask_infos, mask_infos

Obs = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class VecEnv(GymnasiumAttributes, VectorEnv[Obs, npt.ArrayLike, npt.NDArray[Any]]):
    """`n` native environments stepped together; environment i draws from the seed `seed + i`.

    `env_id` is a native id, with or without the prefix `rlox/`: the same seeds and actions give the
    trajectories of Gymnasium's environment of that id. Others are what `rlox.register_env` gave.

    Args:
        n: How many environments, at least 1.
        seed: For the first reset; None takes entropy from the operating system.
        env_id: Such as "CartPole-v1".
        autoreset_mode: When a finished environment starts anew.
        max_episode_steps: None for the id's own time limit, -1 for none.
        render_mode: None or "rgb_array".
        **env_kwargs: The environment's own: `dt`, `nips`, `torque_noise_max` (Acrobot),
            `sutton_barto_reward` (CartPole), `goal_velocity` (both MountainCars), `g` (Pendulum).

    Raises:
        TypeError, ValueError: Unknown id or argument (near ones are named) or mode; a wrong number.
        MemoryError: `n` environments do not fit into memory; the size asked for is named.
        rlox.ClosedError: From whatever needs the environments, after `close`.

    Example:
        >>> env = VecEnv(n=2, seed=0, env_id="CartPole-v1")
        >>> obs, infos = env.reset()
        >>> obs.shape, obs.dtype
        ((2, 4), dtype('float32'))
        >>> obs, rewards, terminated, truncated, infos = env.step([0, 1])
        >>> rewards
        array([1., 1.])
    """

    _renderer: Renderer | None = None
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
        mode, name = as_autoreset_mode(autoreset_mode), native_id(env_id)
        check_render_mode(render_mode, render_modes(name))
        n = check_int("n", n, 1, fix="say how many to make")
        limit = max_episode_steps
        native = self._kind(source_of(name), n, seed, mode.value, limit, env_kwargs, "n")
        self._native = native
        self._step = native.step
        self._init_kwargs: dict[str, Any] = {
            "env_id": env_id,
            "max_episode_steps": limit,
            **env_kwargs,
        }
        if type(self).step_into is VecEnv.step_into:
            # The native method itself, so that nothing runs between the caller and Rust.
            self.__dict__["step_into"] = native.step_into
        self._same_step = mode is AutoresetMode.SAME_STEP  # asking the metadata takes longer
        self._seeds, self._has_reset = _rng.SeedTracker(seed, n), False
        spec = native.spec()
        self.has_action_masks, self.supports_state = spec["has_action_masks"], spec["restorable"]
        self.num_envs, self.render_mode = native.num_envs, render_mode
        self.single_observation_space = _spaces.from_native(spec["observation"])
        self.single_action_space = _spaces.from_native(spec["action"])
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = vector_metadata(name, mode)
        vector_kwargs = {"num_envs": n, "autoreset_mode": mode.value}
        self.spec = vector_spec(name, limit, render_mode, **vector_kwargs, **env_kwargs)
        self._freeze(env_kwargs)

    def reset(
        self, *, seed: Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Starts episodes in all environments, or where `options["reset_mask"]` is true.

        Args:
            seed: An int s seeds environment i with s + i; a sequence has one seed (None: go on) for
                each environment; None lets all streams go on.
            options: "reset_mask", bool (n,), and the environment's own numbers: "x_init", "y_init"
                (Pendulum), "low", "high" (all others). The dict is not changed.

        Returns:
            The observations of all environments, float32 (n, d), and infos, as `step` has them.

        Raises:
            TypeError: "reset_mask" is not a NumPy array of bools.
            ValueError: A "reset_mask" of another shape or without any True, a wrong number of
                seeds, unknown or senseless options. Nothing has changed then.

        >>> env = VecEnv(n=2)
        >>> bool((env.reset(seed=7)[0] == env.reset(seed=[7, 8])[0]).all())
        True
        """
        _rng.seed_each(seed, self.num_envs)  # checks it, in Gymnasium's words
        mask, numbers = split_options(options, self.num_envs)
        obs = self._native.reset(seed, mask, numbers)
        self._has_reset = True
        self._seeds.record(seed, mask)
        return obs, mask_infos(self._native) if self.has_action_masks else {}

    def step(
        self, actions: npt.ArrayLike
    ) -> tuple[Obs, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """Steps all environments; every array returned is fresh.

        Args:
            actions: One per environment, anything `np.asarray` takes: integers (n,) for Discrete,
                real numbers (n, k) for Box, used as float32.

        Returns:
            obs float32 (n, d), rewards float64 (n,), terminated bool (n,), truncated bool (n,) and
            infos. Where an episode ended in SAME_STEP mode, `infos["final_obs"]`, an object array,
            has the true last observation (None elsewhere), with the mask "_final_obs". Where
            actions are masked, `infos["action_mask"]`, int8 (n, k), says what is allowed at `obs`,
            and `infos["final_info"]["action_mask"]` what was at the last observations of truncated
            episodes (SAME_STEP mode).

        Raises:
            ValueError: Actions of another shape, out of range or not finite; a step before the
                first reset, or of a finished environment in DISABLED mode.
            TypeError: Actions of another kind. After either, nothing has moved.
        """
        obs, rewards, terminated, truncated, final_obs = self._step(actions)
        infos: dict[str, Any] = {}
        final_info = None
        if self.has_action_masks:
            cut = truncated & ~terminated
            infos = mask_infos(self._native, None if self._same_step else cut)
            final_info = final_mask_infos(self._native, cut) if self._same_step else None
        if final_obs is not None:
            infos |= final_infos(terminated | truncated, final_obs, final_info or {})
        return obs, rewards, terminated, truncated, infos

    def step_into(
        self,
        actions: npt.ArrayLike,
        obs: Obs,
        rewards: npt.NDArray[np.float64],
        terminated: Flags,
        truncated: Flags,
        final_obs: Obs | None = None,
    ) -> None:
        """Steps all environments and writes into the caller's arrays; nothing is allocated.

        Args:
            actions: As for `step`.
            obs: float32 (n, d). All arrays are C-contiguous and writeable.
            rewards: float64 (n,).
            terminated: bool (n,).
            truncated: bool (n,).
            final_obs: float32 (n, d). Written in SAME_STEP mode, only where an episode ended.

        Raises:
            TypeError: An array of another dtype.
            ValueError: An array of another shape, and what `step` raises. Nothing has moved then.

        >>> env = VecEnv(n=2, seed=0)
        >>> obs, rewards = env.reset_all(), np.empty(2)
        >>> env.step_into([0, 1], obs, rewards, np.empty(2, bool), np.empty(2, bool))
        >>> rewards
        array([1., 1.])
        """
        self._native.step_into(actions, obs, rewards, terminated, truncated, final_obs)

    def action_masks(self, out: Flags | None = None) -> Flags:
        """Which actions are allowed at the observations returned last, bool (n, k).

        Environments whose episode is over, in other modes than SAME_STEP, allow all.

        Args:
            out: Where to write them, C-contiguous; None: a fresh array.

        Raises:
            TypeError: `out` is of another dtype.
            ValueError: They have no masks (not `has_action_masks`), or allow none; another shape.
        """
        check_has_action_masks(self)
        masks = self._native.action_masks(out)
        check_any_allowed(masks, self.single_action_space)
        return masks

    def final_action_masks(self, ended: Flags) -> Flags:
        """Return the action masks of the last states of episodes that the last step truncated.

        Args:
            ended: (n,) bool: the environments to read, each truncated and not terminated.

        Returns:
            (n, k) bool; no allowed action in rows outside `ended`.

        Raises:
            ValueError: The environments have no masks (not `has_action_masks`).
        """
        check_has_action_masks(self)
        return self._native.final_action_masks() & ended[:, None]

    def reset_all(self, seed: Seed = None) -> Obs:
        """Starts an episode in every environment; the observations, float32 (n, d).

        >>> VecEnv(n=3, env_id="Pendulum-v1").reset_all(seed=1).shape
        (3, 3)
        """
        return self.reset(seed=seed)[0]

    def step_all(self, actions: npt.ArrayLike) -> dict[str, Any]:
        """`step`, as a dict.

        Returns:
            obs float32 (n, d), rewards float64 (n,), terminated and truncated bool (n,), and
            terminal_obs: a list with the true last observation, float32 (d,), where an episode
            ended in this step, None elsewhere.

        >>> env = VecEnv(n=2, seed=0)
        >>> _ = env.reset_all()
        >>> env.step_all([1, 0])["terminal_obs"]
        [None, None]
        """
        return to_step_dict(self._step(actions), self._same_step, self.num_envs)

    def collect_n_steps(
        self, n: int, policy: Callable[[Obs], npt.ArrayLike] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Makes `n` steps from where the environments stand (the first time: from a reset).

        Args:
            n: How many steps, at least 1.
            policy: From observations (N, d), and masks if it has a parameter `action_masks`, to
                actions as `step` takes them. None: random ones, by the last seed given.

        Returns:
            Time-major arrays: obs (n, N, d), the observations acted on; actions (n, N, ...);
            rewards, terminated, truncated, valid (n, N), False where NEXT_STEP only resets;
            last_obs (N, d); final_index int64 (k,): the rows t * N + i that ended an episode;
            final_obs (k, d): their last observations; action_masks (n, N, m), if there are any.

        Raises:
            ValueError: DISABLED mode (NEXT_STEP, unless `supports_state`), `n` below 1; as `step`.
            TypeError, MemoryError: `n` or `policy` of another kind; no room for so many steps.

        >>> VecEnv(n=2, seed=0).collect_n_steps(5)["obs"].shape
        (5, 2, 4)
        """
        n = check_collection(mode := self.metadata["autoreset_mode"], n, policy)
        _ = self._has_reset or self.reset_all()
        mode_and_source = mode, self.action_stream if policy is None else policy
        return collect_steps(self._native, self.single_action_space, n, *mode_and_source)

    def begin_rollout(
        self, buffer: RolloutBuffer, normalizer: Normalizer | None = None, seed: int | None = None
    ) -> None:
        """Puts the first observations of a rollout into `buffer.obs[0]`; see `RolloutEnv`."""
        _rng.seed_each(seed, self.num_envs)
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
        """Stores row `t`, steps, stores what came back; see `RolloutEnv.step_rollout`."""
        self._native.step_rollout(buffer, t, actions, log_probs, values, normalizer)

    def pop_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Returns (sums of raw rewards) and lengths of the episodes that ended since the last call.

        In the order they ended; the newest 16,384 if there were more.

        >>> VecEnv(n=2).pop_episodes()
        (array([], dtype=float64), array([], dtype=int64))
        """
        return self._native.drain_episodes()

    @property
    def dropped_episodes(self) -> int:
        """How many more had ended than the last `pop_episodes` could tell of."""
        return self._native.episodes_dropped

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """What the environments remember, for `set_state` of an equal VecEnv.

        Returns:
            states float64 (n, k), episode_returns float64 (n,), episode_steps int64 (n,), finished
            bool (n,), streams int64 (n, 6): each environment's random stream.

        Raises:
            ValueError: Before the first reset, or of environments that are not `supports_state`.

        >>> env, copy = VecEnv(n=2, seed=0), VecEnv(n=2)
        >>> _ = env.reset_all(), env.step_all([0, 1])
        >>> copy.set_state(env.get_state())
        >>> bool((copy.step_all([0, 0])["obs"] == env.step_all([0, 0])["obs"]).all())
        True
        """
        return self._native.get_state()

    def set_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Puts the environments where `get_state` found them; they go on from there.

        Raises:
            ValueError: An array is missing, of another shape, or makes no sense. Nothing has
                changed then.
        """
        self._native.set_state(state)
        self._has_reset = True

    @property
    def action_stream(self) -> np.random.Generator:
        """The stream that uniformly random actions come from; the last seed given decides it."""
        return self._seeds.action_stream

    @property  # type: ignore[misc]  # read-only, as SyncVectorEnv
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # and one each
        """Each environment's random stream where it stands, as NumPy generators (copies)."""
        return tuple(map(_rng.to_numpy, self._native.rng_states()))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # one each
        """The seed each stream was last given; -1 for entropy from the operating system."""
        return tuple(-1 if seed is None else seed for seed in self._seeds.seeds)

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """A frame (height, width, 3) uint8 of every environment, by Gymnasium's renderer.

        Raises:
            ValueError: Before the first reset.
            gymnasium.error.DependencyNotInstalled: pygame is missing.
        """
        if self._native.closed:
            raise ClosedError("VecEnv", "an open object", "a closed one", "make a new one")
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the VecEnv with 'rgb_array'.")
            return None
        states = self._native.states()
        self._renderer = self._renderer or Renderer(self._native.env_id, self.render_mode)
        return self._renderer.draw_all(states)

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the environments; what `close` calls, once."""
        # Gymnasium before 1.4 closes also what could not be made.
        if hasattr(self, "_native"):
            self._native.close()
        if self._renderer is not None:
            self._renderer.close()
