"""`HindsightReplayBuffer`: goals that were reached stand in for those that were meant."""

import operator
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlox._errors import (
    ArgumentError,
    ArgumentTypeError,
    CorruptFileError,
    NonFiniteError,
    add_file,
    add_section,
    warn,
)
from rlox._layout import Layout
from rlox._rlox import GoalReplayBuffer
from rlox.envs._masks import all_have

Strategy = Literal["future", "final", "episode"]
DType = str | np.dtype[Any] | type[np.generic | bool | int | float]
GoalArrayFunction = Callable[[npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]], npt.ArrayLike]
_DTYPES = {"f32": "float32", "f64": "float64", "i64": "int64", "u8": "uint8", "bool": "bool"}


class HindsightReplayBuffer(GoalReplayBuffer):
    """Replay buffer that also learns from goals it did not mean to reach (HER).

    Of `n_sampled_goal + 1` sampled transitions all but one get a goal that their episode reached in
    place of `desired_goal`, and the reward for it: the first `B * n // (n + 1)` of a batch of B
    (Andrychowicz et al. 2017, "Hindsight Experience Replay"). A goal is one that a next observation
    has as its `achieved_goal`: of the transition itself or a later one of its episode ("future"),
    of the last one ("final"), or of any ("episode"). Transitions of episodes that still run are
    sampled, too; what counts is what they reached until now. Of an episode whose oldest steps are
    gone, those that are stored count.

    It does all else that `rlox.ReplayBuffer` does, but for several steps (n_step), whose rewards
    would depend on what was done for another goal.

    Args:
        capacity, act_dim: As for `rlox.ReplayBuffer`, and so are the other keywords.
        obs_dim: {name: shape} or {name: (shape, dtype)} with the names observation, achieved_goal
            and desired_goal, as Gymnasium-Robotics' goal environments have them.
        compute_reward: Takes achieved goals (n, ...), desired goals (n, ...) and what else is
            stored of those steps, a dict of arrays (n, ...) that is empty without `extra`; gives n
            rewards. It is called once a batch. That of a goal environment is
            `env.unwrapped.compute_reward`.
        compute_terminated: Takes the same and gives n flags, or False for all of them: whether the
            task itself has ended. None leaves the flags as they were, which is right where episodes
            do not end at a goal.
        strategy: "future", "final" or "episode".
        n_sampled_goal: How many transitions with such a goal there are for one without; 0 for none.
        capacity_name: Name of `capacity` in errors, for callers that call the argument otherwise.

    Raises:
        TypeError: compute_reward or compute_terminated is nothing that can be called.
        ValueError: No goals in obs_dim, goals of different shapes, another strategy.

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

    compute_reward: GoalArrayFunction
    compute_terminated: GoalArrayFunction | None

    def __new__(
        cls,
        capacity: int,
        obs_dim: Mapping[str, Any],
        act_dim: int | tuple[int, ...],
        *,
        compute_reward: GoalArrayFunction,
        compute_terminated: GoalArrayFunction | None = None,
        strategy: Strategy = "future",
        n_sampled_goal: int = 4,
        num_envs: int = 1,
        obs_dtype: DType = "float32",
        act_dtype: DType = "float32",
        extra: Mapping[str, Any] | None = None,
        seed: int | np.random.Generator | None = None,
        capacity_name: str = "capacity",
    ) -> "HindsightReplayBuffer":
        """Return the core's buffer, with the functions of the goals."""
        _check_callable("compute_reward", compute_reward)
        if compute_terminated is not None:
            _check_callable("compute_terminated", compute_terminated)
        new = super().__new__(
            cls,
            capacity,
            _sizes(obs_dim),
            act_dim,
            _require("strategy", strategy),
            _require("n_sampled_goal", n_sampled_goal),
            num_envs=num_envs,
            obs_dtype=obs_dtype,
            act_dtype=act_dtype,
            extra=extra,
            seed=seed,
            capacity_name=capacity_name,  # type: ignore[call-arg]  # not in the documented signature
        )
        buffer = cast(HindsightReplayBuffer, new)
        buffer.compute_reward = compute_reward
        buffer.compute_terminated = compute_terminated
        buffer._n_sampled_goal = operator.index(n_sampled_goal)
        buffer._extra = tuple(extra or ())
        return buffer

    _n_sampled_goal: int
    _extra: tuple[str, ...]

    def sample(
        self,
        batch_size: int,
        seed: int | np.random.Generator | None = None,
        *,
        out: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Samples transitions, each as likely as another, with replacement.

        Args:
            batch_size: B, at most as many as are stored.
            seed: Decides the choice of transitions and goals; None for the buffer's own stream.
            out: A dict that an earlier sample of B transitions gave, to be overwritten.

        Returns:
            What `rlox.ReplayBuffer.sample` gives. The first `B * n_sampled_goal //
            (n_sampled_goal + 1)` have another goal in `obs` and `next_obs`, and its reward.

        Raises:
            ValueError: As `rlox.ReplayBuffer.sample`; what compute_reward or compute_terminated
                gave is no row of n finite numbers that float32 holds, or n flags. `out` has been
                written to then.
            RuntimeError: One of the two raised something, which is its cause. As above.
        """
        batch = super().sample(batch_size, seed, out=out)
        count = len(batch["rewards"]) * self._n_sampled_goal // (self._n_sampled_goal + 1)
        if count:
            next_obs = batch["next_obs"]
            achieved = _to_read(next_obs["achieved_goal"], count)
            desired = _to_read(next_obs["desired_goal"], count)
            info = {name: _to_read(batch[name], count) for name in self._extra}
            with _name_errors("compute_reward", achieved, info):
                values = self.compute_reward(achieved, desired, info)
            rewards = _to_rewards(values, count)
            if self.compute_terminated is not None:
                with _name_errors("compute_terminated", achieved, info):
                    values = self.compute_terminated(achieved, desired, info)
                batch["terminated"][:count] = _to_flags(values, count)
            batch["rewards"][:count] = rewards
        return batch

    @staticmethod
    def load(  # type: ignore[override]
        path: str | os.PathLike[str],
        compute_reward: GoalArrayFunction,
        compute_terminated: GoalArrayFunction | None = None,
    ) -> "HindsightReplayBuffer":
        """Reads what `save` wrote: a buffer that goes on exactly as that one.

        Args:
            path: Where the folder is.
            compute_reward, compute_terminated: Those of the saved buffer: files hold no code.

        Raises:
            rlox.CorruptFileError: Anything in it is damaged, missing or not a buffer's.
            ValueError: It is a buffer of another class, or a newer rlox wrote it.
            FileNotFoundError: Nothing is there.
        """
        from rlox.checkpoint import read_checkpoint  # with all that learners need

        checkpoint = read_checkpoint(path)
        spec = checkpoint.manifest.get("replay")
        if not isinstance(spec, dict) or spec.get("sampler") != "hindsight":
            raise ArgumentError(
                "path",
                "a HindsightReplayBuffer",
                f"something else at {path}",
                "load it as what it was",
            )
        try:
            buffer = HindsightReplayBuffer(
                spec["capacity"],
                {
                    part["name"].removeprefix("obs."): (
                        tuple(part["shape"]),
                        _DTYPES[part["dtype"]],
                    )
                    for part in spec["obs"]
                },
                tuple(spec["actions"]["shape"]),
                compute_reward=compute_reward,
                compute_terminated=compute_terminated,
                strategy=spec["strategy"],
                n_sampled_goal=spec["n_sampled_goal"],
                num_envs=spec["num_envs"],
                act_dtype=_DTYPES[spec["actions"]["dtype"]],
                extra={
                    part["name"]: (tuple(part["shape"]), _DTYPES[part["dtype"]])
                    for part in spec["extra"]
                }
                or None,
            )
            buffer.load_state(checkpoint.members.get("replay", {}))
        except (KeyError, AttributeError, ValueError) as error:
            raise add_file(add_section(error, "replay"), path, CorruptFileError) from error
        return buffer


def _sizes(obs_dim: Any) -> Any:
    """A dict of any mapping; what else it is, the core refuses."""
    return dict(obs_dim) if isinstance(obs_dim, Mapping) else obs_dim


def _require(name: str, value: Any) -> Any:
    """A value, where the core takes None for its default."""
    if value is None:
        raise ArgumentTypeError(name, "a value", "None", "leave it out for the default")
    return value


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise ArgumentTypeError(
            name,
            "a function of achieved goals, desired goals and info",
            repr(value),
            f"pass env.unwrapped.{name}",
        )


@contextmanager
def _name_errors(name: str, goals: npt.NDArray[Any], info: dict[str, Any]) -> Iterator[None]:
    """Says of what a function raises which one it was; but for MemoryError, which says enough."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        keys = f"those keys: {', '.join(info)}" if info else "no keys"
        raise RuntimeError(
            f"{name}: expected values for goals {goals.shape} and an info with {keys}, got "
            f"{error!r}; compute them from these, for all goals at once"
        ) from error


def _to_read(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The first rows, which nobody can write to by mistake."""
    view = rows[:count]
    view.flags.writeable = False
    return view


def _to_rewards(values: Any, count: int) -> npt.NDArray[np.float32]:
    """The rewards of so many transitions, as they are stored."""
    row = _to_row("compute_reward", values, count)
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        rewards = row.astype(np.float32)
    _check_finite("compute_reward", row, rewards)
    return rewards


def _to_flags(values: Any, count: int) -> npt.NDArray[np.bool_]:
    """Whether the task has ended in so many transitions."""
    name = "compute_terminated"
    if np.ndim(values) == 0 and isinstance(values, bool | np.bool_ | np.ndarray):
        # Gymnasium-Robotics' tasks that never end say so of all of them at once.
        if not values:
            return np.zeros(count, np.bool_)
        raise ArgumentError(
            name,
            f"{count} flags, or False for all",
            f"{values} for all",
            "compare goals along the last axis alone, or leave it out",
        )
    row = _to_row(name, values, count)
    _check_finite(name, row, row)
    return np.asarray(row != 0)


def _to_row(name: str, values: Any, count: int) -> npt.NDArray[Any]:
    """What a function gave for so many transitions."""
    try:
        row = np.asarray(values)
        if row.dtype.kind not in "biuf":
            # Unsafe casts would leave imaginary parts out.
            casting: Any = "safe" if row.dtype.kind == "c" else "unsafe"
            row = row.astype(np.float64, casting=casting)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            name, f"{count} numbers", type(values).__name__, "give an array"
        ) from error
    if row.shape not in ((count,), (count, 1)):
        raise ArgumentError(
            name,
            f"shape ({count},)",
            str(row.shape),
            "it is called with all goals of a batch at once",
        )
    return row.reshape(count)


def _check_finite(name: str, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
    if not np.isfinite(stored).all():
        at = int(np.flatnonzero(~np.isfinite(stored))[0])
        beyond = f", beyond {stored.dtype}" if np.isfinite(values[at]) else ""
        raise NonFiniteError(
            name,
            "finite numbers",
            f"{values[at]}{beyond}",
            "find out where it comes from",
            row=at,
        )


GoalFunction = Callable[[Any, Any, dict[str, Any]], Any]


class GoalFunctions(NamedTuple):
    """Functions of achieved goals, desired goals and info, each with many rows."""

    compute_reward: GoalFunction
    compute_terminated: GoalFunction | None  # None: other goals end no episode


def goal_functions(env: Any) -> GoalFunctions:
    """Those of vector environments, or of the first single one of them.

    They are called in this process, wherever environments are: for those of an `AsyncVectorEnv` one
    more is made here, and closed when they are gone. Each is tried with two goals and an info that
    is {}, as minibatches have it. A `compute_terminated` that does not give a flag for each, as
    those of Gymnasium-Robotics do not, is left out: flags then stay as they were recorded, as in
    Stable-Baselines3.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.

    Raises:
        ValueError: They have no `compute_reward`, one for single goals, or one that fails as it
            would with any goals; observations have no goals, or two of different kinds.

    Warns:
        UserWarning: `compute_terminated` failed, and is left out; `compute_reward` failed as it may
            only have done because the environment was not reset.
    """
    inner = env.unwrapped
    probe_envs: list[Any] = []
    reward = _find_function(inner, "compute_reward", probe_envs)
    if reward is None:
        raise ArgumentError(
            "her",
            "environments with a method compute_reward(achieved_goal, desired_goal, info), as "
            "Gymnasium-Robotics' have it",
            f"{env} without",
            "add one, or leave her out",
        )
    terminated = _find_function(inner, "compute_terminated", probe_envs)
    goals = _two_goals(env.single_observation_space)
    shape = _shape_for(reward, goals)
    if isinstance(shape, Exception):
        _raise_or_warn(shape, goals.shape)
    elif shape not in _EACH:
        raise ArgumentError(
            "her",
            "a compute_reward that gives a reward for each of many goals",
            f"shape {shape} for two, {goals.shape}",
            "compute along the last axis alone",
        )
    flags = None if terminated is None else _shape_for(terminated, goals)
    if isinstance(flags, Exception):
        warn(
            f"her: compute_terminated failed for goals {goals.shape} with {flags!r}; flags stay as "
            "they are recorded"
        )
    return GoalFunctions(reward, terminated if flags in _EACH else None)


# Shapes of what is given for two goals, if it is something for each.
_EACH = ((2,), (2, 1))
# Errors that a reset cannot cure. A TypeError may come from an attribute that reset() sets.
_PERMANENT = (LookupError, ValueError, NameError, NotImplementedError)


def _two_goals(space: Any) -> npt.NDArray[Any]:
    """Return two equal goals of an observation space, as they are stored."""
    names = ("observation", "achieved_goal", "desired_goal")
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
    if not {*names} <= {*parts}:
        raise ArgumentError(
            "her",
            "Dict observations with observation, achieved_goal and desired_goal",
            str(", ".join(parts) or space),
            "add what is missing in a wrapper, or leave her out",
        )
    leaves = {leaf.path: leaf for leaf in Layout(space).leaves}
    if nested := [path[0] for path in leaves if len(path) > 1]:
        raise ArgumentError(
            "her",
            f"one array as {nested[0]}",
            str(parts[nested[0]]),
            "flatten it in a wrapper, or leave her out",
        )
    achieved, desired = (leaves[name,] for name in names[1:])
    if (achieved.shape, achieved.dtype) != (desired.shape, desired.dtype):
        raise ArgumentError(
            "her",
            "an achieved_goal and a desired_goal of one shape and dtype, as one is put in the "
            "other's place",
            f"{achieved.space} and {desired.space}",
            "give both one",
        )
    return np.zeros((2, *desired.shape), desired.dtype)


def _shape_for(function: GoalFunction, goals: npt.NDArray[Any]) -> tuple[int, ...] | Exception:
    """The shape of what is given for goals, or what is raised."""
    try:
        return np.shape(function(goals.copy(), goals.copy(), {}))
    except Exception as error:
        return error


def _raise_or_warn(error: Exception, shape: tuple[int, ...]) -> None:
    """Refuses a `compute_reward` that fails for goals, or warns of it.

    It may have failed because the environment was not reset, which its error does not tell: then
    the first minibatch fails.
    """
    failed = f"{error!r} for goals of shape {shape} and the info {{}}"
    if isinstance(error, _PERMANENT):
        raise ArgumentError(
            "her",
            "a compute_reward of many goals at once, and of an empty info, as infos are not stored",
            failed,
            "compute rewards along the last axis, from goals alone",
        ) from error
    warn(
        f"her: expected a compute_reward that can do with any goals, got {failed}; if it only "
        "needs an environment that was reset, all is well: else the first minibatch fails"
    )


def _find_function(inner: Any, name: str, probe_envs: list[Any]) -> GoalFunction | None:
    """A function of the innermost environments; `made` has what was made to ask it, if any was."""
    if callable(method := getattr(inner, name, None)):
        return method  # type: ignore[no-any-return]  # the caller's own
    if not all_have(inner, name):
        return None
    if isinstance(inner, SyncVectorEnv):
        return inner.envs[0].get_wrapper_attr(name)  # type: ignore[no-any-return]  # so is this
    if not isinstance(inner, AsyncVectorEnv):
        return lambda *goals: inner.call(name, *goals)[0]
    # Asked by `call`, every worker would compute the whole batch.
    if not probe_envs:
        probe_envs.append(inner.env_fns[0]())
        weakref.finalize(inner, probe_envs[0].close)
    return probe_envs[0].get_wrapper_attr(name)  # type: ignore[no-any-return]  # and this
