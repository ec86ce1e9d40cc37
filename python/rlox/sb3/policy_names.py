"""The names of policies that models take, and for which observations."""

from typing import Any

import gymnasium as gym

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.layouts import is_image
from rlox.settings import shown, text


def expect_policy(policy: Any) -> None:
    """A policy is one of their names that there are here.

    Raises:
        TypeError, ValueError: It is not.
    """
    if not isinstance(policy, str):
        raise ArgumentTypeError(
            "policy",
            "'MlpPolicy' or 'CnnPolicy'",
            shown(policy),
            "rlox.trainers take torch modules as policy=",
        )
    if policy.startswith("MultiInput"):
        raise ArgumentError(
            "policy",
            "'MlpPolicy' or 'CnnPolicy'",
            repr(policy),
            "rlox.trainers take Dict observations, with networks that are not quite theirs",
        )
    text("policy", policy, ("MlpPolicy", "CnnPolicy"))


def expect_fitting(policy: str, algorithm: str, space: gym.Space[Any]) -> None:
    """The named policy is what the built-in networks are for these observations.

    Raises:
        ValueError: It is not; the one to name is named.
    """
    pictures, composed = is_image(space), isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    wrong = composed or pictures != (policy == "CnnPolicy")
    if not wrong and (not pictures or algorithm in ("ppo", "a2c", "dqn")):
        return
    fix = "rlox.trainers take such observations" if composed or not wrong else ""
    fix = fix or f"pass {'CnnPolicy' if pictures else 'MlpPolicy'!r}"
    kinds = "pictures (and PPO, A2C or DQN)" if policy == "CnnPolicy" else "one vector of numbers"
    raise ArgumentError("policy", f"observations of {kinds} for {policy!r}", str(space), fix)
