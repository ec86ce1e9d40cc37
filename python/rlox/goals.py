"""What goal environments say of goals that were not theirs: rewards, and whether all ends."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlox._errors import ArgumentError
from rlox.layouts import Layout
from rlox.mask_source import all_have
from rlox.warning import warn

OfGoals = Callable[[Any, Any, dict[str, Any]], Any]


class GoalFunctions(NamedTuple):
    """Functions of achieved goals, desired goals and info, each with many rows."""

    compute_reward: OfGoals
    compute_terminated: OfGoals | None  # None: other goals end no episode


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
    made: list[Any] = []
    reward = _function(inner, "compute_reward", made)
    if reward is None:
        raise ArgumentError(
            "her",
            "environments with a method compute_reward(achieved_goal, desired_goal, info), as "
            "Gymnasium-Robotics' have it",
            f"{env} without",
            "add one, or leave her out",
        )
    ended = _function(inner, "compute_terminated", made)
    goals = _two_goals(env.single_observation_space)
    shape = _shape_for(reward, goals)
    if isinstance(shape, Exception):
        _refuse_failed(shape, goals.shape)
    elif shape not in _EACH:
        raise ArgumentError(
            "her",
            "a compute_reward that gives a reward for each of many goals",
            f"shape {shape} for two, {goals.shape}",
            "compute along the last axis alone",
        )
    flags = None if ended is None else _shape_for(ended, goals)
    if isinstance(flags, Exception):
        warn(
            f"her: compute_terminated failed for goals {goals.shape} with {flags!r}; flags stay as "
            "they are recorded"
        )
    return GoalFunctions(reward, ended if flags in _EACH else None)


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


def _shape_for(function: OfGoals, goals: npt.NDArray[Any]) -> tuple[int, ...] | Exception:
    """The shape of what is given for goals, or what is raised."""
    try:
        return np.shape(function(goals.copy(), goals.copy(), {}))
    except Exception as error:
        return error


def _refuse_failed(error: Exception, shape: tuple[int, ...]) -> None:
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


def _function(inner: Any, name: str, made: list[Any]) -> OfGoals | None:
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
    if not made:
        made.append(inner.env_fns[0]())
        weakref.finalize(inner, made[0].close)
    return made[0].get_wrapper_attr(name)  # type: ignore[no-any-return]  # and this
