"""Hindsight experience replay: relabel transitions with goals that their episode reached."""

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError, CorruptFileError, NonFiniteError, add_file, add_section, warn
from rlox._layout import Layout
from rlox._rlox import GoalReplayBuffer
from rlox._types import BUFFER_DTYPES, Array
from rlox._validation import check_int, check_str
from rlox.envs._masks import all_have
from rlox.envs._rollout_env import RolloutEnv

Strategy = Literal["future", "final", "episode"]
DType = str | np.dtype[Any] | type[np.generic | bool | int | float]
GoalFunction = Callable[[Array, Array, dict[str, Any]], npt.ArrayLike]


class HindsightReplayBuffer(GoalReplayBuffer):
    """Replay buffer with relabelled goals (HER).

    In a batch of B transitions, the first `B * n // (n + 1)` are relabelled, with
    `n = n_sampled_goal` (Andrychowicz et al. 2017, "Hindsight Experience Replay"). A goal that the
    episode reached replaces `desired_goal`, and the reward is computed for that goal. The goal is
    the `achieved_goal` of a next observation in the stored part of the episode. Transitions of
    running episodes are sampled, too.

    n-step returns and frame stacks are not supported. All other features are those of
    `rlox.ReplayBuffer`.

    Args:
        capacity, act_dim: As for `rlox.ReplayBuffer`. So are the keywords that are not listed here.
        obs_dim: {name: shape} or {name: (shape, dtype)} with the names observation, achieved_goal
            and desired_goal, as in Gymnasium-Robotics.
        compute_reward: Function of achieved goals (n, ...), desired goals (n, ...) and a dict of
            the `extra` fields (n, ...) that returns n rewards. The buffer calls it once per batch.
            Goal environments provide it as `env.unwrapped.compute_reward`.
        compute_terminated: Function of the same arguments that returns n flags, True where the task
            ends, or False for all. None keeps the recorded flags, for tasks that do not end at a
            goal.
        strategy: Transition of the episode whose achieved goal is used: the same or a later one
            ("future"), the last one ("final") or any ("episode"), drawn at random.
        n_sampled_goal: Relabelled transitions per real transition; 0 disables relabelling.
        capacity_name: Name of `capacity` in errors, for callers that use another name.

    Raises:
        ArgumentError: `obs_dim` lacks a goal, the goals differ in shape or dtype, or `strategy` or
            `n_sampled_goal` is invalid.
        ArgumentTypeError: `compute_reward` or `compute_terminated` is not callable.

    >>> buffer = HindsightReplayBuffer(
    ...     100,
    ...     {"observation": 1, "achieved_goal": 1, "desired_goal": 1},
    ...     1,
    ...     compute_reward=lambda achieved, desired, info: -1.0 * (achieved != desired).any(1),
    ...     strategy="final",
    ... )
    >>> for t in range(3):
    ...     obs, following = (
    ...         {"observation": [i], "achieved_goal": [i], "desired_goal": [9]} for i in (t, t + 1)
    ...     )
    ...     buffer.push(obs, [0.0], -1.0, False, t == 2, following)
    >>> batch = buffer.sample(3, seed=1)
    >>> batch["obs"]["desired_goal"][:, 0].tolist()
    [3.0, 3.0, 9.0]
    """

    compute_reward: GoalFunction
    compute_terminated: GoalFunction | None

    def __new__(
        cls,
        capacity: int,
        obs_dim: Mapping[str, Any],
        act_dim: int | tuple[int, ...],
        *,
        compute_reward: GoalFunction,
        compute_terminated: GoalFunction | None = None,
        strategy: Strategy = "future",
        n_sampled_goal: int = 4,
        num_envs: int = 1,
        obs_dtype: DType = "float32",
        act_dtype: DType = "float32",
        extra: Mapping[str, Any] | None = None,
        seed: int | np.random.Generator | None = None,
        capacity_name: str = "capacity",
    ) -> "HindsightReplayBuffer":
        """Create the buffer and attach the goal functions."""
        _check_callable("compute_reward", compute_reward)
        if compute_terminated is not None:
            _check_callable("compute_terminated", compute_terminated)
        n_sampled_goal = check_int("n_sampled_goal", n_sampled_goal, 0)
        sizes: Any = obs_dim  # the core converts only a dict, and rejects other objects
        new = super().__new__(
            cls,
            capacity,
            dict(sizes) if isinstance(sizes, Mapping) else sizes,
            act_dim,
            check_str("strategy", strategy, get_args(Strategy)),
            n_sampled_goal,
            num_envs=num_envs,
            obs_dtype=obs_dtype,
            act_dtype=act_dtype,
            extra=extra,
            seed=seed,
            capacity_name=capacity_name,  # type: ignore[call-arg]  # not in the public signature
        )
        buffer = cast(HindsightReplayBuffer, new)
        buffer.compute_reward = compute_reward
        buffer.compute_terminated = compute_terminated
        buffer._n_sampled_goal = n_sampled_goal
        buffer._extra = tuple(extra or ())
        return buffer

    _n_sampled_goal: int
    _extra: tuple[str, ...]

    def sample(
        self, batch_size: int, seed: int | np.random.Generator | None = None, *, out: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Sample transitions uniformly with replacement.

        Args:
            batch_size: B, at most the number of stored transitions.
            seed: Seed or generator for transitions and goals; None: the buffer's own stream.
            out: Result of an earlier call with the same `batch_size`, which is overwritten.

        Returns:
            The dict of `rlox.ReplayBuffer.sample`. The first `B * n_sampled_goal //
            (n_sampled_goal + 1)` rows have another goal in `obs` and `next_obs`, and its reward.

        Raises:
            ArgumentError: As `rlox.ReplayBuffer.sample`, or a goal function returned something
                else than n numbers or n flags.
            NonFiniteError: A goal function returned a number that is not finite in float32.
            RuntimeError: A goal function raised an error, which is the `__cause__`. Errors of goal
                functions may leave `out` partly written.
        """
        batch = super().sample(batch_size, seed, out=out)
        count = len(batch["rewards"]) * self._n_sampled_goal // (self._n_sampled_goal + 1)
        if count:
            next_obs = batch["next_obs"]
            achieved = _to_read(next_obs["achieved_goal"], count)
            desired = _to_read(next_obs["desired_goal"], count)
            info = {name: _to_read(batch[name], count) for name in self._extra}
            values = _call("compute_reward", self.compute_reward, achieved, desired, info)
            rewards = _to_rewards(values, count)
            if self.compute_terminated is not None:
                values = _call("compute_terminated", self.compute_terminated, achieved, desired, info)
                batch["terminated"][:count] = _to_flags(values, count)
            batch["rewards"][:count] = rewards
        return batch

    @staticmethod
    def load(  # type: ignore[override]
        path: str | os.PathLike[str],
        compute_reward: GoalFunction,
        compute_terminated: GoalFunction | None = None,
    ) -> "HindsightReplayBuffer":
        """Load a buffer that `save` wrote, with its random stream.

        Args:
            path: Folder of the saved buffer.
            compute_reward: As for the class. Files contain no code, so pass the same function.
            compute_terminated: As for the class; pass the same function.

        Raises:
            ArgumentError: The buffer is of another class, or a newer rlox wrote it.
            ArgumentTypeError: A function is not callable.
            CorruptFileError: A file is damaged or missing, or the folder is not a saved buffer.
            FileNotFoundError: `path` does not exist.
        """
        from rlox.checkpoint import read_checkpoint  # imports the modules of all learners

        checkpoint = read_checkpoint(path)
        spec = checkpoint.manifest.get("replay")
        if not isinstance(spec, dict) or spec.get("sampler") != "hindsight":
            raise ArgumentError(
                "path", "a saved HindsightReplayBuffer", f"another object at {path}", "load it with its own class"
            )

        def form(part: dict[str, Any]) -> tuple[tuple[int, ...], str]:
            return tuple(part["shape"]), BUFFER_DTYPES[part["dtype"]]

        try:
            act_shape, act_dtype = form(spec["actions"])
            buffer = HindsightReplayBuffer(
                spec["capacity"],
                {part["name"].removeprefix("obs."): form(part) for part in spec["obs"]},
                act_shape,
                compute_reward=compute_reward,
                compute_terminated=compute_terminated,
                strategy=spec["strategy"],
                n_sampled_goal=spec["n_sampled_goal"],
                num_envs=spec["num_envs"],
                act_dtype=act_dtype,
                extra={part["name"]: form(part) for part in spec["extra"]} or None,
            )
            buffer.load_state(checkpoint.members.get("replay", {}))
        except (KeyError, AttributeError, ValueError) as error:
            raise add_file(add_section(error, "replay"), path, CorruptFileError) from error
        return buffer


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise ArgumentTypeError(
            name, "a function of achieved_goal, desired_goal and info", repr(value), f"pass env.unwrapped.{name}"
        )


def _call(name: str, function: GoalFunction, goals: Array, desired: Array, info: dict[str, Any]) -> npt.ArrayLike:
    """Call a goal function; its errors except MemoryError become a RuntimeError with its name."""
    try:
        return function(goals, desired, info)
    except MemoryError:
        raise
    except Exception as error:
        keys = f"the keys {', '.join(info)}" if info else "no keys"
        raise RuntimeError(
            f"{name} failed for goals of shape {goals.shape} and an info with {keys}: {error!r}; "
            "compute the values of all goals at once, from these arguments only"
        ) from error


def _to_read(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return a read-only view of the first `count` rows."""
    view = rows[:count]
    view.flags.writeable = False
    return view


def _to_rewards(values: npt.ArrayLike, count: int) -> npt.NDArray[np.float32]:
    """Return the rewards of `count` transitions in float32."""
    row = _to_row("compute_reward", values, count)
    with np.errstate(over="ignore"):  # infinite values are rejected below
        rewards = row.astype(np.float32)
    _check_finite("compute_reward", row, rewards)
    return rewards


def _to_flags(values: npt.ArrayLike, count: int) -> npt.NDArray[np.bool_]:
    """Return the termination flags of `count` transitions."""
    name = "compute_terminated"
    if np.ndim(values) == 0 and isinstance(values, bool | np.bool_ | np.ndarray):
        # Tasks of Gymnasium-Robotics that never end return a single False.
        if not values:
            return np.zeros(count, np.bool_)
        raise ArgumentError(
            name,
            f"{count} flags, or a single False",
            f"a single {values}",
            "compare goals along the last axis only, or omit compute_terminated",
        )
    row = _to_row(name, values, count)
    _check_finite(name, row, row)
    return np.asarray(row != 0)


def _to_row(name: str, values: npt.ArrayLike, count: int) -> npt.NDArray[Any]:
    """Return the result of a function for `count` transitions as a numeric array (count,)."""
    try:
        row = np.asarray(values)
        if row.dtype.kind not in "biuf":
            # An unsafe cast would drop imaginary parts.
            casting: Literal["safe", "unsafe"] = "safe" if row.dtype.kind == "c" else "unsafe"
            row = row.astype(np.float64, casting=casting)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(name, f"an array of {count} numbers", type(values).__name__, "return an array") from error
    if row.shape not in ((count,), (count, 1)):
        raise ArgumentError(name, f"shape ({count},)", str(row.shape), "return one number for each goal of the batch")
    return row.reshape(count)


def _check_finite(name: str, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
    """Check that `stored`, the values after a conversion, are finite; errors show `values`."""
    if not np.isfinite(stored).all():
        row = int(np.argmin(np.isfinite(stored)))
        fix = f"make {name} return finite numbers"
        raise NonFiniteError(name, f"finite numbers of {stored.dtype}", str(values[row]), fix, row=row)


class GoalFunctions(NamedTuple):
    """Functions of achieved goals (n, ...), desired goals (n, ...) and info."""

    compute_reward: GoalFunction
    compute_terminated: GoalFunction | None  # None: keep the recorded flags


def goal_functions(env: RolloutEnv) -> GoalFunctions:
    """Return the goal functions of a vector env, or of its first environment.

    The functions run in this process. For an `AsyncVectorEnv`, one more environment is created here
    and closed when the vector env is garbage-collected. Each function is tried with two goals and
    an empty info. A `compute_terminated` that does not return one flag per goal is ignored, as in
    Stable-Baselines3; an example is that of Gymnasium-Robotics. Then recorded flags are kept.

    Args:
        env: A `VecEnv` or `GymVecEnv`, see `rlox.make_vec`.

    Raises:
        ArgumentError: `env` has no `compute_reward`; `compute_reward` fails for a batch of goals or
            returns a single reward; or observations have no goals, or goals of different spaces.

    Warns:
        UserWarning: `compute_terminated` failed and is ignored, or `compute_reward` failed with an
            error that may not occur after a reset of the environment.
    """
    inner = env.unwrapped
    probe_envs: list[gym.Env[Any, Any]] = []
    reward = _find_function(inner, "compute_reward", probe_envs)
    if reward is None:
        raise ArgumentError(
            "her",
            "an environment with compute_reward(achieved_goal, desired_goal, info)",
            str(env),
            "implement it or remove her",
        )
    terminated = _find_function(inner, "compute_terminated", probe_envs)
    goals = _two_goals(env.single_observation_space)
    shapes = ((2,), (2, 1))  # of results with one value per goal
    try:
        shape = np.shape(reward(goals.copy(), goals.copy(), {}))
    except _PERMANENT as error:
        raise ArgumentError(
            "her",
            "a compute_reward for a batch of goals and an empty info, as infos are not stored",
            f"{error!r} for goals of shape {goals.shape}",
            "compute rewards along the last axis, from the goals only",
        ) from error
    except Exception as error:
        warn(
            f"her: compute_reward failed with {error!r} for goals of shape {goals.shape} and an empty info; ignore "
            "this warning if compute_reward needs a reset environment, else the first minibatch fails"
        )
    else:
        if shape not in shapes:
            raise ArgumentError(
                "her",
                "a compute_reward that returns one reward per goal",
                f"shape {shape} for goals of shape {goals.shape}",
                "compute along the last axis only",
            )
    if terminated is not None:
        try:
            if np.shape(terminated(goals.copy(), goals.copy(), {})) not in shapes:
                terminated = None
        except Exception as error:
            warn(
                f"her: compute_terminated failed for goals of shape {goals.shape} with {error!r}; the recorded flags "
                "stay as they are"
            )
            terminated = None
    return GoalFunctions(reward, terminated)


# Errors that a reset does not remove. A TypeError may be due to an attribute that reset() sets.
_PERMANENT = (LookupError, ValueError, NameError, NotImplementedError)


def _two_goals(space: gym.Space[Any]) -> npt.NDArray[Any]:
    """Return two goals of zeros, in the shape and dtype of the replay buffer."""
    names = ("observation", "achieved_goal", "desired_goal")
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
    if not {*names} <= {*parts}:
        raise ArgumentError(
            "her",
            "a Dict observation space with observation, achieved_goal and desired_goal",
            str(", ".join(parts) or space),
            "add the missing keys in a wrapper, or remove her",
        )
    leaves = {leaf.path: leaf for leaf in Layout(space).leaves}
    if nested := [path[0] for path in leaves if len(path) > 1]:
        raise ArgumentError(
            "her", f"a single array as {nested[0]}", str(parts[nested[0]]), "flatten it in a wrapper, or remove her"
        )
    achieved, desired = (leaves[name,] for name in names[1:])
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise ArgumentError(
            "her",
            "achieved_goal and desired_goal of the same shape and dtype",
            f"{achieved.space} and {desired.space}",
            "use the same space for both goals",
        )
    return np.zeros((2, *desired.shape), desired.dtype)


def _find_function(inner: Any, name: str, probe_envs: list[gym.Env[Any, Any]]) -> GoalFunction | None:
    """Return a method of the innermost environments; `probe_envs` caches a new environment for it."""
    if callable(method := getattr(inner, name, None)):
        return method  # type: ignore[no-any-return]  # Any
    if not all_have(inner, name):
        return None
    if isinstance(inner, SyncVectorEnv):
        return inner.envs[0].get_wrapper_attr(name)  # type: ignore[no-any-return]  # Any
    if not isinstance(inner, AsyncVectorEnv):
        return lambda *goals: inner.call(name, *goals)[0]
    # With `call`, every worker process would compute the full batch.
    if not probe_envs:
        probe_envs.append(inner.env_fns[0]())
        weakref.finalize(inner, probe_envs[0].close)
    return probe_envs[0].get_wrapper_attr(name)  # type: ignore[no-any-return]  # Any
