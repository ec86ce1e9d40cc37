"""`HindsightReplayBuffer`: goals that were reached stand in for those that were meant."""

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from rlox._errors import (
    ArgumentError,
    ArgumentTypeError,
    CorruptFileError,
    NonFiniteError,
    in_file,
    in_section,
)
from rlox._rlox import GoalReplayBuffer

Strategy = Literal["future", "final", "episode"]
DType = str | np.dtype[Any] | type[np.generic | bool | int | float]
OfGoals = Callable[[npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]], npt.ArrayLike]
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

    compute_reward: OfGoals
    compute_terminated: OfGoals | None

    def __new__(
        cls,
        capacity: int,
        obs_dim: Mapping[str, Any],
        act_dim: int | tuple[int, ...],
        *,
        compute_reward: OfGoals,
        compute_terminated: OfGoals | None = None,
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
        _expect_callable("compute_reward", compute_reward)
        if compute_terminated is not None:
            _expect_callable("compute_terminated", compute_terminated)
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
        made = cast(HindsightReplayBuffer, new)
        made.compute_reward = compute_reward
        made.compute_terminated = compute_terminated
        made._sampled = operator.index(n_sampled_goal)
        made._extra = tuple(extra or ())
        return made

    _sampled: int
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
        count = len(batch["rewards"]) * self._sampled // (self._sampled + 1)
        if count:
            following = batch["next_obs"]
            achieved = _to_read(following["achieved_goal"], count)
            desired = _to_read(following["desired_goal"], count)
            info = {name: _to_read(batch[name], count) for name in self._extra}
            with _naming("compute_reward", achieved, info):
                given = self.compute_reward(achieved, desired, info)
            rewards = _rewards(given, count)
            if self.compute_terminated is not None:
                with _naming("compute_terminated", achieved, info):
                    given = self.compute_terminated(achieved, desired, info)
                batch["terminated"][:count] = _flags(given, count)
            batch["rewards"][:count] = rewards
        return batch

    @staticmethod
    def load(  # type: ignore[override]
        path: str | os.PathLike[str],
        compute_reward: OfGoals,
        compute_terminated: OfGoals | None = None,
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
        about = checkpoint.manifest.get("replay")
        if not isinstance(about, dict) or about.get("sampler") != "hindsight":
            raise ArgumentError(
                "path",
                "a HindsightReplayBuffer",
                f"something else at {path}",
                "load it as what it was",
            )
        try:
            buffer = HindsightReplayBuffer(
                about["capacity"],
                {
                    part["name"].removeprefix("obs."): (
                        tuple(part["shape"]),
                        _DTYPES[part["dtype"]],
                    )
                    for part in about["obs"]
                },
                tuple(about["actions"]["shape"]),
                compute_reward=compute_reward,
                compute_terminated=compute_terminated,
                strategy=about["strategy"],
                n_sampled_goal=about["n_sampled_goal"],
                num_envs=about["num_envs"],
                act_dtype=_DTYPES[about["actions"]["dtype"]],
                extra={
                    part["name"]: (tuple(part["shape"]), _DTYPES[part["dtype"]])
                    for part in about["extra"]
                }
                or None,
            )
            buffer.load_state(checkpoint.members.get("replay", {}))
        except (KeyError, AttributeError, ValueError) as error:
            raise in_file(in_section(error, "replay"), path, CorruptFileError) from error
        return buffer


def _sizes(obs_dim: Any) -> Any:
    """A dict of any mapping; what else it is, the core refuses."""
    return dict(obs_dim) if isinstance(obs_dim, Mapping) else obs_dim


def _require(name: str, value: Any) -> Any:
    """A value, where the core takes None for its default."""
    if value is None:
        raise ArgumentTypeError(name, "a value", "None", "leave it out for the default")
    return value


def _expect_callable(name: str, given: object) -> None:
    if not callable(given):
        raise ArgumentTypeError(
            name,
            "a function of achieved goals, desired goals and info",
            repr(given),
            f"pass env.unwrapped.{name}",
        )


@contextmanager
def _naming(name: str, goals: npt.NDArray[Any], info: dict[str, Any]) -> Iterator[None]:
    """Says of what a function raises which one it was; but for MemoryError, which says enough."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        told = f"those keys: {', '.join(info)}" if info else "no keys"
        raise RuntimeError(
            f"{name}: expected values for goals {goals.shape} and an info with {told}, got "
            f"{error!r}; compute them from these, for all goals at once"
        ) from error


def _to_read(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The first rows, which nobody can write to by mistake."""
    view = rows[:count]
    view.flags.writeable = False
    return view


def _rewards(given: Any, count: int) -> npt.NDArray[np.float32]:
    """The rewards of so many transitions, as they are stored."""
    row = _row("compute_reward", given, count)
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        rewards = row.astype(np.float32)
    _refuse_infinite("compute_reward", row, rewards)
    return rewards


def _flags(given: Any, count: int) -> npt.NDArray[np.bool_]:
    """Whether the task has ended in so many transitions."""
    name = "compute_terminated"
    if np.ndim(given) == 0 and isinstance(given, bool | np.bool_ | np.ndarray):
        # Gymnasium-Robotics' tasks that never end say so of all of them at once.
        if not given:
            return np.zeros(count, np.bool_)
        raise ArgumentError(
            name,
            f"{count} flags, or False for all",
            f"{given} for all",
            "compare goals along the last axis alone, or leave it out",
        )
    row = _row(name, given, count)
    _refuse_infinite(name, row, row)
    return np.asarray(row != 0)


def _row(name: str, given: Any, count: int) -> npt.NDArray[Any]:
    """What a function gave for so many transitions."""
    try:
        row = np.asarray(given)
        if row.dtype.kind not in "biuf":
            # Unsafe casts would leave imaginary parts out.
            how: Any = "safe" if row.dtype.kind == "c" else "unsafe"
            row = row.astype(np.float64, casting=how)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            name, f"{count} numbers", type(given).__name__, "give an array"
        ) from error
    if row.shape not in ((count,), (count, 1)):
        raise ArgumentError(
            name,
            f"shape ({count},)",
            str(row.shape),
            "it is called with all goals of a batch at once",
        )
    return row.reshape(count)


def _refuse_infinite(name: str, given: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
    if not np.isfinite(stored).all():
        at = int(np.flatnonzero(~np.isfinite(stored))[0])
        beyond = f", beyond {stored.dtype}" if np.isfinite(given[at]) else ""
        raise NonFiniteError(
            name,
            "finite numbers",
            f"{given[at]}{beyond}",
            "find out where it comes from",
            row=at,
        )
