"""What goal environments say of goals that were not theirs: rewards, and whether all ends."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gymnasium.vector import SyncVectorEnv

from rlox.mask_source import all_have

OfGoals = Callable[[Any, Any, dict[str, Any]], Any]


class GoalFunctions(NamedTuple):
    """Functions of achieved goals, desired goals and info, each with many rows."""

    compute_reward: OfGoals
    compute_terminated: OfGoals | None  # None: other goals end no episode


def goal_functions(env: Any) -> GoalFunctions:
    """Those of vector environments, or of the first single one of them.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.

    Raises:
        ValueError: They have no `compute_reward`.
    """
    reward = _function(env, "compute_reward")
    if reward is None:
        raise ValueError(
            "her: expected environments with a method compute_reward(achieved_goal, desired_goal, "
            f"info), as Gymnasium-Robotics' have it, got {env} without; add one, or leave her out"
        )
    return GoalFunctions(reward, _function(env, "compute_terminated"))


def _function(env: Any, name: str) -> OfGoals | None:
    inner = env.unwrapped
    if callable(method := getattr(inner, name, None)):
        return method  # type: ignore[no-any-return]  # the caller's own
    if not all_have(inner, name):
        return None
    if isinstance(inner, SyncVectorEnv):
        return inner.envs[0].get_wrapper_attr(name)  # type: ignore[no-any-return]  # so is this
    return lambda *goals: inner.call(name, *goals)[0]
