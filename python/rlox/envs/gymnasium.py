"""`GymVecEnv`: adapter that makes any Gymnasium vector environment usable for rollouts."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from rlox import _rng, _spaces
from rlox._concurrency import CallGuard, synchronized
from rlox._errors import ArgumentError, ClosedError
from rlox._finite import check_finite_env_array
from rlox._layout import Layout
from rlox._rlox import Normalizer, RolloutBuffer, check_normalizer, check_step
from rlox._serialize import from_arrays, to_arrays
from rlox._types import Array, Arrays, Flags, Obs
from rlox.envs import _state
from rlox.envs._autoreset import check_resets, get_autoreset_mode, infos_to_dict, split_options, write_final_obs
from rlox.envs._checks import CheckedEnv, check_observations, check_results, check_vector_interface
from rlox.envs._masks import MaskSource, merge_mask_infos
from rlox.envs._rollout_env import check_storage

T = TypeVar("T")
if TYPE_CHECKING:
    Wrapper = VectorWrapper[Array, Any, Array, Any, Array]
else:  # not subscriptable before Gymnasium 1.4
    Wrapper = VectorWrapper


class GymVecEnv(Wrapper):
    """Wrapper that adds the methods of `RolloutEnv` to a Gymnasium vector environment.

    Observation spaces are Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple; action spaces
    are Discrete, MultiDiscrete, MultiBinary and Box. The wrapper checks actions and results of the
    wrapped environment. Methods can be called from several threads: a call waits until the calls of
    other threads have returned.

    Args:
        env: The vector environment. `env.metadata["autoreset_mode"]` defines its mode; without
            this entry, NEXT_STEP is assumed with a warning, as in Gymnasium's wrappers. In
            DISABLED mode, the environment must support `options["reset_mask"]` in `reset`.
        seed: Seed of the first reset; environment i gets `seed + i`. Default: the environment
            chooses seeds.

    Raises:
        ArgumentTypeError: A space is not supported.
        ArgumentError: `env` lacks an attribute of vector environments, or the metadata contains an
            unknown autoreset mode.

    Example:
        >>> import gymnasium as gym
        >>> same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
        >>> envs = gym.make_vec("Acrobot-v1", 2, vectorization_mode="sync", vector_kwargs=same_step)
        >>> env = GymVecEnv(envs, seed=0)
        >>> buffer = RolloutBuffer(8, 2, (6,))
        >>> env.begin_rollout(buffer)
        >>> env.step_rollout(buffer, 0, actions=[0, 2], log_probs=[0.0, 0.0], values=[0.0, 0.0])
        >>> buffer.rewards[0]
        array([-1., -1.], dtype=float32)
    """

    supports_state = True
    dropped_episodes = 0
    """Always 0, because `pop_episodes` returns all episodes."""

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
        # Environments that wait for a reset; in NEXT_STEP mode, their next step resets them.
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._finished: list[tuple[Array, Array]] = []
        self.unrestorable_reason: str | None = None  # why the last `get_state` returned nothing

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """Autoreset mode of the environments."""
        return self._mode

    @property
    def action_stream(self) -> np.random.Generator:
        """Random generator of uniformly random actions, seeded by the last seed."""
        return self._seeds.action_stream

    @synchronized
    def reset(self, *, seed: _rng.Seed = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset the wrapped environment; `pop_episodes` does not report interrupted episodes.

        Args:
            seed: An int s seeds environment i with s + i. A sequence has a seed or None for each
                environment. Default: the environment chooses.
            options: Options of the wrapped environment. "reset_mask", bool (num_envs,), selects the
                environments to reset. The dict is not changed.

        Raises:
            ArgumentError, ArgumentTypeError: A seed or "reset_mask" is not valid, as in
                `VecEnv.reset`, or an observation does not match its space.
            NonFiniteError, ClosedError, RuntimeError: See `step`.
        """
        self._check_open()
        seeds = _rng.seed_each(seed, self.num_envs)
        env_seed = seeds.start if isinstance(seeds, range) else seeds
        mask, _ = split_options(options, self.num_envs)
        # Pass a copy, because Gymnasium's environments remove the mask from the dict.
        env_options = None if options is None else dict(options)
        reset_envs = partial(self.env.reset, seed=env_seed, options=env_options)  # type: ignore[arg-type]  # lists, too
        results = self._guarded(lambda: self._with_checks(reset_envs))
        obs, infos = check_results(self, "reset", results)
        self._seeds.record(seed)
        self._obs = self._pack_obs(obs)
        reset = slice(None) if mask is None else mask
        new_infos = self._masks.note(infos_to_dict(self.env, infos))
        self._infos = new_infos if mask is None else merge_mask_infos(self._infos, new_infos, mask)
        self._returns[reset] = 0.0
        self._lengths[reset] = 0
        self._ended[reset] = False
        return obs, infos

    @synchronized
    def step(self, actions: npt.ArrayLike) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step the wrapped environment.

        Args:
            actions: Actions (num_envs, ...) of the action space. All are checked before the
                environments step.

        Returns:
            Observations, rewards, terminated, truncated and infos of the wrapped environment.

        Raises:
            ArgumentError: The environments have not been reset, actions have a wrong shape or are
                out of range, observations do not match their space, or the environment does not
                follow its autoreset mode.
            ArgumentTypeError: Actions have a wrong dtype, or infos are not dicts.
            NonFiniteError: An action, an observation or a reward is NaN or infinite.
            ClosedError: The environment is closed, is called from its own `step` or `reset`, or
                was created before this process was forked.
            RuntimeError: A worker process of an asynchronous environment has died.

        Errors that the environment's own code raises are not changed.
        """
        self._check_open()
        if self._obs is None:
            raise ArgumentError("step", "environments that have been reset", "a call before reset", "call reset first")
        # In NEXT_STEP mode, an environment that only resets ignores its action.
        idle = self._ended if self._mode is AutoresetMode.NEXT_STEP else None
        actions = _spaces.check_actions(self.single_action_space, actions, self.num_envs, idle)
        step_envs = partial(self.env.step, actions)
        results = self._guarded(lambda: self._with_checks(step_envs))
        obs, rewards, terminated, truncated, infos = check_results(self, "step", results)
        terminated = np.asarray(terminated, np.bool_)
        truncated = np.asarray(truncated, np.bool_)
        self._steps += 1
        self._obs = self._pack_obs(obs)
        self._infos = self._masks.note(infos_to_dict(self.env, infos))
        raw_rewards = np.asarray(rewards, np.float64)
        # Rewards may be normalized before the conversion to float32.
        check_finite_env_array("rewards", raw_rewards, self._steps, wide=True)
        done = terminated | truncated
        if self._mode is AutoresetMode.NEXT_STEP and self._ended.any():
            check_resets(self.env, self._ended, raw_rewards, done, self._steps)
        # A step that only resets belongs to no episode, even if wrappers change its reward.
        self._returns += np.where(self._ended, 0.0, raw_rewards)
        self._lengths += ~self._ended
        if done.any():
            self._finished.append((self._returns[done], self._lengths[done]))
            self._returns[done] = 0.0
            self._lengths[done] = 0
        if self._mode is not AutoresetMode.SAME_STEP:
            self._ended = done
        return obs, rewards, terminated, truncated, infos

    def _with_checks(self, call: Callable[[], T]) -> T:
        """Call a method of the vector environment, and check the results of each environment."""
        inner = self.unwrapped
        if not isinstance(inner, SyncVectorEnv):
            return call()
        envs = inner.envs
        if [check.env for check in self._checks] != envs:
            self._checks = [CheckedEnv(env, i) for i, env in enumerate(envs)]
        # Replaced only during the call, so that users see their own environments in `envs`.
        inner.envs = [*self._checks]
        try:
            return call()
        finally:
            inner.envs = envs

    @property
    def has_action_masks(self) -> bool:
        """True if the environments report action masks now, or have reported masks before.

        Raises:
            ClosedError, RuntimeError: See `step`.
        """
        with self._guard:
            self._check_open()
            return self._guarded(lambda: self._masks.has_masks(self._infos))

    @synchronized
    def action_masks(self) -> Flags:
        """Return the action masks for the current observations, bool (num_envs, n).

        The masks come from `infos["action_mask"]` or a method `action_masks` of the environments.
        Environments that only reset in the next step allow every action.

        Raises:
            ArgumentError: The environments have never reported masks, a mask is not valid, or an
                environment allows no action.
            ArgumentTypeError: The elements of a mask are neither bools nor numbers.
            ClosedError, RuntimeError: See `step`.
        """
        self._check_open()
        return self._guarded(lambda: self._masks.read(self._infos, self._ended))

    @synchronized
    def final_action_masks(self, ended: Flags) -> Flags:
        """Return the action masks of the last states of episodes that the last step ended.

        In modes other than SAME_STEP, call this method before the environments are reset.

        Args:
            ended: bool (num_envs,), True for the environments to read.

        Returns:
            bool (num_envs, n). Rows outside `ended` and rows without a reported mask are all False.

        Raises:
            ArgumentError: A mask has a wrong shape, or a number other than 0 and 1.
            ArgumentTypeError: The elements of a mask are neither bools nor numbers.
            ClosedError, RuntimeError: See `step`.

        Warns:
            UserWarning: An environment in `ended` reports no allowed action. Each object warns once.
        """
        self._check_open()
        same_step = self._mode is AutoresetMode.SAME_STEP
        return self._guarded(lambda: self._masks.read_final(self._infos, ended, same_step))

    @property
    def steps(self) -> int:
        """Number of steps of each environment, which errors report."""
        return self._steps

    def _current(self) -> Array:
        """Return the current observations."""
        assert self._obs is not None
        return self._obs

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("env", None, "is closed", "create a new one")

    @synchronized
    def render(self) -> tuple[Any, ...] | None:
        """Return the frames of the wrapped environment."""
        self._check_open()
        return self._guarded(self.env.render)

    def close(self, **kwargs: object) -> None:
        """Close the wrapped environment after calls of other threads have returned.

        If an earlier call failed, worker processes are terminated. In a forked child process, the
        environment is only marked as closed.

        Args:
            **kwargs: Arguments of the wrapped environment's `close`. `terminate=True` terminates
                worker processes at once, which also ends calls of other threads.
        """
        inner = self.unwrapped
        if self._guard.inherited:
            self._closed = inner.closed = True  # worker processes belong to the parent
            return
        if kwargs.get("terminate"):
            _state.terminate(inner)
        with self._guard:
            self._closed = True
            # A signal handler may call `close` in the middle of a step.
            forced = bool(kwargs.get("terminate")) or self._failed or self._guard.in_call
            self.env.close(**kwargs | _state.make_close_kwargs(inner, forced))

    def _guarded(self, call: Callable[[], T]) -> T:
        """Call the wrapped environment, and record whether the call failed."""
        if self._guard.in_call:
            raise ClosedError("env", None, "was called again from inside its own step() or reset()", None)
        self._guard.in_call = True
        try:
            return call()
        except BaseException as error:
            self._failed = True
            if self._closed and isinstance(error, Exception):
                raise ClosedError("env", None, "was closed during the call", None) from error
            if isinstance(error, EOFError | ConnectionError):
                raise RuntimeError(
                    "env: expected running worker processes, got a worker that died at step "
                    f"{self._steps + 1}; read the worker's output, and check the free memory"
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
        """Write the first observations of a rollout into `buffer.obs[0]`; see `RolloutEnv`."""
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
        """Step the environments, and store the transition in row `t`; see `RolloutEnv`.

        Raises:
            ArgumentError: An argument does not fit the rollout, a truncated episode has no final
                observation, or the environment does not follow its autoreset mode.
            ArgumentTypeError: An array has a wrong dtype.
            NonFiniteError: An argument, an observation or a reward is NaN or infinite.
            ClosedError, RuntimeError: See `step`.
        """
        n = self.num_envs
        actions = _spaces.check_action_shape(self.single_action_space, actions, n)
        env_actions = _spaces.to_env_actions(self.single_action_space, actions, n)
        check_storage(self, self.layout, buffer, normalizer)
        check_step(buffer, t, actions, log_probs, values, normalizer)
        _, rewards, terminated, truncated, _ = self.step(env_actions)
        obs = self._current()
        final_obs = None
        if self._mode is AutoresetMode.SAME_STEP:
            cut = truncated & ~terminated
            if cut.any():
                final_obs = np.zeros_like(obs)
                write_final_obs(final_obs, self.layout, self._infos, cut, self._steps)
                check_finite_env_array("final_obs", final_obs, self._steps)
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
        """Reset the environments whose episode is over, and return all observations."""
        mask = self._ended.copy()
        self.reset(options={"reset_mask": mask})
        after = self._current()
        if not np.array_equal(after[~mask], before[~mask]):
            raise ArgumentError(
                "env",
                "a reset of the environments in options['reset_mask'] only (autoreset mode DISABLED)",
                "changed observations of other environments",
                "create the environment with another autoreset mode",
            )
        return after

    def _pack_obs(self, obs: Obs) -> Array:
        """Check observations, and pack them into rows of a rollout buffer."""
        for leaf, part in self.layout.iter_leaves(obs):
            check_finite_env_array(leaf.name, np.asarray(part), self._steps)
        try:
            return self.layout.pack(obs)
        except ArgumentError as error:
            error.env, error.row = error.row, None
            raise

    @synchronized
    def pop_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the episodes that ended since the last call; see `RolloutEnv`."""
        finished = self._finished
        self._finished = []
        returns, lengths = zip(*finished, strict=True) if finished else ((), ())
        counts = np.concatenate([np.empty(0, np.int64), *lengths])
        return np.concatenate([np.empty(0), *returns]), counts

    @synchronized
    def get_state(self) -> dict[str, Array]:
        """Return the state of the environments for an exact resume.

        Returns:
            Arrays for `set_state`. Empty if the state cannot be saved; `unrestorable_reason` then
            has the reason.

        Raises:
            ClosedError: See `step`.
        """
        self._check_open()
        inner: Any = self.env  # a SyncVectorEnv or an AsyncVectorEnv, see `_unsupported`
        self.unrestorable_reason = _unsupported(self)
        if self.unrestorable_reason:
            return {}
        snapshots = _get_each_state(inner)
        self.unrestorable_reason = next((x for x in snapshots if isinstance(x, str)), None)
        if self.unrestorable_reason:
            return {}
        state = {
            "layers": _all_layers(inner),
            "snapshots": snapshots,
            "rows": self._obs,
            "observations": [*inner._env_obs] if type(inner) is SyncVectorEnv else None,
            "masks": {name: [*self._infos[name]] for name in ("action_mask", "_action_mask") if name in self._infos},
            "has_masks": self._masks.has_reported,
            "ended": self._ended,
            "returns": self._returns,
            "lengths": self._lengths,
            "steps": self._steps,
        }
        return to_arrays(state)

    @synchronized
    def set_state(self, state: dict[str, Array]) -> bool:
        """Restore the state from `get_state` of equal environments.

        Returns:
            True if the state was restored. Otherwise, `unrestorable_reason` has the reason, such as
            a state of environments of other classes.

        Raises:
            ArgumentError: The arrays are damaged. The environments are not changed.
        """
        inner: Any = self.env
        saved = from_arrays(state)
        if not isinstance(saved, dict) or "layers" not in saved:
            raise ArgumentError("state", _EXPECTED, "other data", _FIX)
        self.unrestorable_reason = _unsupported(self)
        if self.unrestorable_reason is None and saved["layers"] != _all_layers(inner):
            self.unrestorable_reason = "the state is of other environments"
        if self.unrestorable_reason:
            return False
        if wrong := _mismatch(self, saved):
            raise ArgumentError("state", _EXPECTED, "other data", _FIX, section=wrong)
        before = [] if self._obs is None else _get_each_state(inner)
        if reason := _set_each_state(inner, saved["snapshots"]):
            if before and not any(isinstance(snapshot, str) for snapshot in before):
                _set_each_state(inner, before)
            got = f"a state that cannot be restored ({reason})"
            raise ArgumentError("state", _EXPECTED, got, "restore the state of the same environments")
        self._obs = saved["rows"]
        self._ended = saved["ended"]
        self._returns = saved["returns"]
        self._lengths = saved["lengths"]
        self._steps = saved["steps"]
        self._infos = dict(saved["masks"])
        self._finished = []
        self._masks.has_reported = saved["has_masks"]
        if type(inner) is SyncVectorEnv:
            inner._env_obs = list(saved["observations"])
            inner._autoreset_envs = saved["ended"].copy()
        return True


_EXPECTED = "the saved state of environments"
_FIX = "pass the result of get_state()"


def _mismatch(env: GymVecEnv, state: dict[str, Any]) -> str | None:
    """Return the name of the first entry with a wrong type, shape or dtype, or None."""
    n = env.num_envs

    def has_form(name: str, shape: tuple[int, ...], dtype: Any) -> bool:
        array = np.asarray(state.get(name))
        return array.shape == shape and array.dtype == dtype

    fits = {
        "rows": has_form("rows", (n, *env.layout.shape), env.layout.dtype),
        "ended": has_form("ended", (n,), np.bool_),
        "returns": has_form("returns", (n,), np.float64),
        "lengths": has_form("lengths", (n,), np.int64),
        "snapshots": isinstance(state.get("snapshots"), list) and len(state["snapshots"]) == n,
        "observations": len(state.get("observations") or ()) == n or type(env.env) is not SyncVectorEnv,
        "masks": isinstance(state.get("masks"), dict),
        "has_masks": type(state.get("has_masks")) is bool,
        "steps": type(state.get("steps")) is int,
    }
    return next((name for name, is_fit in fits.items() if not is_fit), None)


def _unsupported(env: GymVecEnv) -> str | None:
    """Return the reason why a vector environment's state cannot be saved, or None."""
    inner = env.env
    if type(inner) is SyncVectorEnv:
        return None
    if type(inner) is not AsyncVectorEnv:
        return f"the state of a {type(inner).__name__} cannot be saved"
    if env._mode is not AutoresetMode.SAME_STEP:
        return f"in autoreset mode {env._mode.name}, only worker processes have the state"
    if not all(inner.call("has_wrapper_attr", "rlox_get_state")):
        return "the state of worker processes that rlox.make_vec did not start cannot be saved"
    return None


def _all_layers(inner: Any) -> list[list[str]]:
    """Return the class names of each environment and its wrappers."""
    if type(inner) is AsyncVectorEnv:
        return [*inner.call("rlox_layers")]
    return [_state.layers(env) for env in inner.envs]


def _get_each_state(inner: Any) -> list[Any]:
    """Return the state of each single environment, or the reason why it cannot be saved."""
    if type(inner) is AsyncVectorEnv:
        return [*inner.call("rlox_get_state")]
    return [_state.get_state(env) for env in inner.envs]


def _set_each_state(inner: Any, snapshots: list[Arrays]) -> str | None:
    """Restore each single environment; return the reason of the first failure, or None."""
    if type(inner) is AsyncVectorEnv:
        reasons = _state.call_each(inner, "rlox_set_state", snapshots)
    else:
        reasons = [_state.set_state(env, arrays) for env, arrays in zip(inner.envs, snapshots, strict=True)]
    return next(filter(None, reasons), None)
