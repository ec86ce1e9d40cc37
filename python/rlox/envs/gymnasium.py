"""`GymVecEnv`: any Gymnasium vector environment, made ready for rollouts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from rlox import _rng, _spaces
from rlox._concurrency import CallGuard, synchronized
from rlox._errors import ArgumentError, ClosedError
from rlox._finite import check_finite_env_array
from rlox._layout import Layout
from rlox._rlox import Normalizer, RolloutBuffer, check_normalizer, check_step
from rlox.envs import _state
from rlox.envs._autoreset import (
    check_resets,
    get_autoreset_mode,
    infos_to_dict,
    split_options,
    write_final_obs,
)
from rlox.envs._checks import (
    CheckedEnv,
    check_observations,
    check_results,
    check_vector_interface,
)
from rlox.envs._masks import MaskSource, merge_mask_infos
from rlox.envs._rollout_env import check_step_index, check_storage, to_float_array

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
if TYPE_CHECKING:
    Wrapper = VectorWrapper[Array, Any, Array, Any, Array]
else:  # not subscriptable before Gymnasium 1.4
    Wrapper = VectorWrapper


class GymVecEnv(Wrapper):
    """A Gymnasium vector environment with what rollouts need.

    Observations are of any space that `rlox._layout.Layout` holds; actions are Discrete,
    MultiDiscrete, MultiBinary or Box. `begin_rollout`, `step_rollout` and `pop_episodes` are
    those of `RolloutEnv`; `reset`, `step`, `render` and `close` are the wrapped environment's.
    Threads take turns: a call waits for those of others to end, that of `close` included.

    Args:
        env: In the autoreset mode that `metadata["autoreset_mode"]` names. Without one it is taken
            to be in NEXT_STEP mode, with a warning, as Gymnasium's own wrappers do. In DISABLED
            mode it must reset by `options["reset_mask"]`.
        seed: For the first reset, environment i gets `seed + i`; None lets the environment choose.

    Raises:
        TypeError: Not a vector environment, or spaces other than those above.
        ValueError: The metadata names no autoreset mode of Gymnasium's.

    Example:
        >>> import gymnasium as gym
        >>> same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
        >>> made = gym.make_vec("Acrobot-v1", 2, vectorization_mode="sync", vector_kwargs=same_step)
        >>> env = GymVecEnv(made, seed=0)
        >>> buffer = RolloutBuffer(8, 2, (6,))
        >>> env.begin_rollout(buffer)
        >>> env.step_rollout(buffer, 0, actions=[0, 2], log_probs=[0.0, 0.0], values=[0.0, 0.0])
        >>> buffer.rewards[0]
        array([-1., -1.], dtype=float32)
    """

    supports_state = True

    def __init__(self, env: VectorEnv[Array, Any, Array], seed: int | None = None) -> None:
        super().__init__(env)
        check_vector_interface(env)
        self._guard = CallGuard()
        self._mode = get_autoreset_mode(env)
        self.layout = Layout(env.single_observation_space)
        _spaces.action_dtype(env.single_action_space)
        self._seeds = _rng.SeedTracker(seed, env.num_envs)
        self._obs: Array | None = None
        self._infos: dict[str, Any] = {}
        self._steps = 0
        self._failed = False
        self._closed = False
        self._masks = MaskSource(env)
        self._checks: list[CheckedEnv] = []
        # Whose episode is over and not reset yet: what NEXT_STEP environments do by themselves.
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._finished: list[tuple[Array, Array]] = []
        self.unrestorable_reason: str | None = None  # why the last `get_state` gave nothing

    @property
    def action_stream(self) -> np.random.Generator:
        """The stream that uniformly random actions come from; the last seed given decides it."""
        return self._seeds.action_stream

    @synchronized
    def reset(
        self, *, seed: _rng.Seed = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """The wrapped environment's `reset`; the episodes it cuts are not counted.

        Raises:
            TypeError, ValueError: Seeds or `options["reset_mask"]` that `VecEnv.reset` refuses.
        """
        self._check_open()
        each = _rng.seed_each(seed, self.num_envs)
        sent = each.start if isinstance(each, range) else each
        masked, _ = split_options(options, self.num_envs)
        # Gymnasium's take the mask out of the dict they get.
        options_copy = None if options is None else dict(options)
        results = self._guarded(self._with_checks, self.env.reset, seed=sent, options=options_copy)
        obs, infos = check_results(self, "reset", results)
        self._seeds.record(seed)
        self._obs = self._pack_obs(obs)
        reset = slice(None) if masked is None else masked
        new_infos = self._masks.note(infos_to_dict(self.env, infos))
        self._infos = (
            new_infos if masked is None else merge_mask_infos(self._infos, new_infos, masked)
        )
        self._returns[reset], self._lengths[reset], self._ended[reset] = 0.0, 0, False
        return obs, infos

    @synchronized
    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """The wrapped environment's `step`.

        Raises:
            rlox.ClosedError: After `close`, from within a call, or in a process that was forked
                from the one that made the environment.
            TypeError: Actions of another kind; nothing has moved then.
            ValueError: A call before the first reset; actions of another shape, out of range or not
                finite, before anything has moved; observations or rewards that are not finite, with
                the environment and step; one that does not reset as its autoreset mode says.
            RuntimeError: A worker process of an asynchronous environment has died. What one raises
                is raised here.
        """
        self._check_open()
        if self._obs is None:
            raise ArgumentError(
                "step", "environments that have been reset", "a call before", "reset first"
            )
        # In NEXT_STEP mode, an environment that only resets ignores its action.
        idle = self._ended if self._mode is AutoresetMode.NEXT_STEP else None
        actions = _spaces.check_actions(self.single_action_space, actions, self.num_envs, idle)
        results = self._guarded(self._with_checks, self.env.step, actions)
        obs, rewards, terminated, truncated, infos = check_results(self, "step", results)
        terminated = np.asarray(terminated, np.bool_)
        truncated = np.asarray(truncated, np.bool_)
        self._steps += 1
        self._obs = self._pack_obs(obs)
        self._infos = self._masks.note(infos_to_dict(self.env, infos))
        gained = self._require_finite("rewards", np.asarray(rewards, np.float64))
        done = terminated | truncated
        if self._mode is AutoresetMode.NEXT_STEP and self._ended.any():
            check_resets(self.env, self._ended, gained, done, self._steps)
        # A step that only resets is none of the episode's, whatever wrappers make of its reward.
        self._returns += np.where(self._ended, 0.0, gained)
        self._lengths += ~self._ended
        if done.any():
            self._finished.append((self._returns[done], self._lengths[done]))
            self._returns[done], self._lengths[done] = 0.0, 0
        if self._mode is not AutoresetMode.SAME_STEP:
            self._ended = done
        return obs, rewards, terminated, truncated, infos

    def _with_checks(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of a vector environment whose environments' results are checked."""
        inner: Any = self.unwrapped
        if not isinstance(inner, SyncVectorEnv):
            return call(*args, **kwargs)
        envs = inner.envs
        if [check.env for check in self._checks] != envs:
            self._checks = [CheckedEnv(env, i) for i, env in enumerate(envs)]
        # Only for the call: environments stay accessible to the caller as they are.
        inner.envs = [*self._checks]
        try:
            return call(*args, **kwargs)
        finally:
            inner.envs = envs

    @property
    def action_mask_support(self) -> bool:
        """Whether the environments say, or ever said, which actions are allowed.

        Raises:
            rlox.ClosedError, RuntimeError: As `step`.
        """
        with self._guard:
            self._check_open()
            return bool(self._guarded(self._masks.has_masks, self._infos))

    @synchronized
    def action_masks(self) -> Flags:
        """Which actions are allowed where the environments stand, (num_envs, n); see `MaskSource`.

        Raises:
            ValueError: The environments never said, or allow none.
            rlox.ClosedError, RuntimeError: As `step`.
        """
        self._check_open()
        masks: Flags = self._guarded(self._masks.read, self._infos, self._ended)
        return masks

    @synchronized
    def final_action_masks(self, ended: Flags) -> Flags:
        """Return the action masks of the last states of episodes that the last step ended.

        In other modes than SAME_STEP, call this before the environments are reset.

        Args:
            ended: (num_envs,) bool: the environments to read.

        Returns:
            (num_envs, n) bool. Rows without an allowed action: not in `ended`, or not reported by
            the environment; the first missing report of a run is warned of.

        Raises:
            ValueError: A mask has another shape or holds no flags.
            rlox.ClosedError, RuntimeError: As `step`.
        """
        self._check_open()
        same_step = self._mode is AutoresetMode.SAME_STEP
        masks: Flags = self._guarded(self._masks.read_final, self._infos, ended, same_step)
        return masks

    @property
    def steps(self) -> int:
        """Steps that each environment made, which errors tell."""
        return self._steps

    def _current(self) -> Array:
        """Where the environments stand."""
        assert self._obs is not None
        return self._obs

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("env", None, "is closed", "create a new one")

    @synchronized
    def render(self) -> Any:
        """What the wrapped environment draws."""
        self._check_open()
        return self._guarded(self.env.render)

    def close(self, **kwargs: Any) -> None:
        """Closes the wrapped environment; after a failure, workers are ended without waiting.

        A call in another thread ends first, with `terminate=True` because its workers have ended.
        """
        inner = self.unwrapped
        if self._guard.inherited:
            self._closed = inner.closed = True  # worker processes belong to the parent
            return
        if kwargs.get("terminate"):
            _state.terminate(inner)
        with self._guard:
            self._closed = True
            # A signal handler may close in the middle of a step.
            forced = kwargs.get("terminate") or self._failed or self._guard.in_call
            self.env.close(**kwargs | _state.make_close_kwargs(inner, forced))

    def _guarded(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped environment, and note whether it failed."""
        if self._guard.in_call:
            raise ClosedError(
                "env", None, "was called again from inside its own step() or reset()", None
            )
        self._guard.in_call = True
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            self._failed = True
            if self._closed and isinstance(error, Exception):
                raise ClosedError("env", "an open one", "one closed in a call", None) from error
            if isinstance(error, EOFError | ConnectionError):
                raise RuntimeError(
                    f"env: expected living worker processes, got one that died at step "
                    f"{self._steps + 1}; look at its output, and whether memory ran out"
                ) from error
            if isinstance(error, LookupError | TypeError | ValueError):
                check_observations(self.unwrapped)
            raise
        finally:
            self._guard.in_call = False

    @synchronized
    def begin_rollout(
        self, buffer: RolloutBuffer, normalizer: Normalizer | None = None, seed: int | None = None
    ) -> None:
        """Puts the first observations of a rollout into `buffer.obs[0]`; see `RolloutEnv`."""
        check_storage(self, self.layout, buffer, normalizer)
        check_normalizer(buffer, normalizer)
        is_new = self._obs is None or seed is not None
        if is_new:
            self.reset(seed=self._seeds.last if seed is None else seed)
        elif self._mode is AutoresetMode.DISABLED and self._ended.any():
            self._restart(self._current().copy())
        ended = self._ended if self._mode is AutoresetMode.NEXT_STEP else None
        buffer.begin(self._current(), is_new, normalizer, ended)

    @synchronized
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
            ValueError: Also for observations or rewards that are not finite, for a truncated
                episode without its final observation, and for environments that do not reset as
                their autoreset mode says.
            RuntimeError: As `step`.
        """
        n = self.num_envs
        actions = _spaces.check_action_shape(self.single_action_space, actions, n)
        sent = _spaces.to_env_actions(self.single_action_space, actions, n)
        check_storage(self, self.layout, buffer, normalizer)
        t = check_step_index(buffer, t)
        log_probs = self._require_finite("log_probs", to_float_array("log_probs", log_probs, n))
        values = self._require_finite("values", to_float_array("values", values, n))
        check_step(buffer, t, actions, log_probs, values, normalizer)
        _, rewards, terminated, truncated, _ = self.step(sent)
        obs = self._current()
        final_obs = None
        if self._mode is AutoresetMode.SAME_STEP:
            cut = truncated & ~terminated
            if cut.any():
                final_obs = self._final_obs(obs, cut)
        elif self._mode is AutoresetMode.DISABLED and self._ended.any():
            final_obs = obs.copy()
            obs = self._restart(final_obs)
        buffer.record(
            t,
            actions,
            log_probs,
            values,
            next_obs=obs,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_obs=final_obs,
            normalizer=normalizer,
        )

    def _restart(self, before: Array) -> Array:
        """Starts new episodes where one is over; the observations after it."""
        mask = self._ended.copy()
        self.reset(options={"reset_mask": mask})
        after = self._current()
        if not np.array_equal(after[~mask], before[~mask]):
            raise ArgumentError(
                "env",
                "that in autoreset mode DISABLED, reset(options={'reset_mask': mask}) resets the "
                "chosen environments and leaves the rest",
                "other observations of the rest",
                "make it with another autoreset mode",
            )
        return after

    def _final_obs(self, obs: Array, cut: Flags) -> Array:
        """The true last observations in the rows of `cut`."""
        final_obs = np.zeros_like(obs)
        write_final_obs(final_obs, self.layout, self._infos, cut, self._steps)
        return self._require_finite("final_obs", final_obs)

    def _pack_obs(self, obs: Any) -> Array:
        """Observations as rollouts hold them."""
        for leaf, part in self.layout.iter_leaves(obs):
            self._require_finite(leaf.name, np.asarray(part))
        try:
            return self.layout.pack(obs)
        except ArgumentError as error:
            error.env, error.row = error.row, None
            raise

    def _require_finite(self, name: str, array: Array) -> Array:
        # Rewards may be normalised before they become float32.
        check_finite_env_array(name, array, self._steps, wide=name == "rewards")
        return array

    @synchronized
    def pop_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Returns and lengths of the episodes that ended since the last call; see `RolloutEnv`."""
        finished = self._finished
        self._finished = []
        returns, lengths = zip(*finished, strict=True) if finished else ((), ())
        counts = np.concatenate([np.empty(0, np.int64), *lengths])
        return np.concatenate([np.empty(0), *returns]), counts

    @synchronized
    def get_state(self) -> dict[str, Array]:
        """What the environments remember, see `rlox.envs._state`; empty if they cannot tell."""
        self._check_open()
        return _state.get_env_state(self)

    @synchronized
    def set_state(self, state: dict[str, Array]) -> bool:
        """Goes back to what `get_state` gave, see `rlox.envs._state`; False for that of others."""
        return _state.set_env_state(self, state)
