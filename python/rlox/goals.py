"""What goal environments say of goals that were not theirs: rewards, and whether all ends."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

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
    more is made here, and closed when they are gone.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.

    Raises:
        ValueError: They have no `compute_reward`.
    """
    inner, made = env.unwrapped, list[Any]()
    reward = _function(inner, "compute_reward", made)
    if reward is None:
        raise ValueError(
            "her: expected environments with a method compute_reward(achieved_goal, desired_goal, "
            f"info), as Gymnasium-Robotics' have it, got {env} without; add one, or leave her out"
        )
    return GoalFunctions(reward, _function(inner, "compute_terminated", made))


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
