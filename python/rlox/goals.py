"""What goal environments say of goals that were not theirs: rewards, and whether all ends."""

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlox.mask_source import all_have

OfGoals = Callable[[Any, Any, dict[str, Any]], Any]


class GoalFunctions(NamedTuple):
    """Functions of achieved goals, desired goals and info, each with many rows."""

    compute_reward: OfGoals
    compute_terminated: OfGoals | None  # None: other goals end no episode


def goal_functions(env: Any) -> GoalFunctions:
    """Those of vector environments, or of the first single one of them.

    They are called in this process, wherever environments are: for those of an `AsyncVectorEnv` one
    more is made here, and closed when they are gone. Each is tried with two goals. A
    `compute_terminated` that does not give a flag for each, as those of Gymnasium-Robotics do not,
    is left out: flags then stay as they were recorded, as in Stable-Baselines3.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.

    Raises:
        ValueError: They have no `compute_reward`, or one for single goals.

    Warns:
        UserWarning: `compute_terminated` failed, and is left out.
    """
    inner, made = env.unwrapped, list[Any]()
    reward = _function(inner, "compute_reward", made)
    if reward is None:
        raise ValueError(
            "her: expected environments with a method compute_reward(achieved_goal, desired_goal, "
            f"info), as Gymnasium-Robotics' have it, got {env} without; add one, or leave her out"
        )
    ended = _function(inner, "compute_terminated", made)
    goals = _two_goals(env.single_observation_space)
    if goals is None:  # which the buffer refuses
        return GoalFunctions(reward, ended)
    shape = _shape_for(reward, goals)
    if not isinstance(shape, Exception) and shape not in _EACH:
        raise ValueError(
            f"her: expected a compute_reward that gives a reward for each of many goals, got shape "
            f"{shape} for two, {goals.shape}; compute along the last axis alone"
        )
    flags = None if ended is None else _shape_for(ended, goals)
    if isinstance(flags, Exception):
        warnings.warn(
            f"her: compute_terminated failed for goals {goals.shape} with {flags!r}; flags stay as "
            "they are recorded",
            stacklevel=2,
        )
    return GoalFunctions(reward, ended if flags in _EACH else None)


# Shapes of what is given for two goals, if it is something for each.
_EACH = ((2,), (2, 1))


def _two_goals(space: Any) -> npt.NDArray[Any] | None:
    """Two equal goals; None if observations have none."""
    goal = space.get("desired_goal") if isinstance(space, spaces.Dict) else None
    return np.zeros((2, *goal.shape), goal.dtype) if isinstance(goal, spaces.Box) else None


def _shape_for(function: OfGoals, goals: npt.NDArray[Any]) -> tuple[int, ...] | Exception:
    """The shape of what is given for goals, or what is raised.

    Environments that have not been reset may raise; what they raise then the first minibatch says.
    """
    try:
        return np.shape(function(goals.copy(), goals.copy(), {}))
    except Exception as error:
        return error


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
