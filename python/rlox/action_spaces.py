"""Action spaces that algorithms do not do."""

from typing import Any

import gymnasium as gym
import numpy as np

from rlox._errors import ArgumentError


def expect_action_space(space: gym.Space[Any], config: Any) -> None:
    """Refuses action spaces in which there is nothing to do, or not what the settings ask for.

    Raises:
        ValueError: It has no components; gSDE is asked for, and it is no Box.
    """
    if 0 in (space.shape or ()):
        raise ArgumentError(
            "action space", "one component or more", str(space), "leave out the axis that is empty"
        )
    if getattr(config, "use_sde", False) and not isinstance(space, gym.spaces.Box):
        raise ArgumentError("use_sde", "a Box action space", str(space), "set use_sde=False")


def expect_actions_for(algorithm: str, space: gym.Space[Any]) -> None:
    """Refuses actions that an off-policy algorithm does not do.

    Args:
        algorithm: "dqn", which is for Discrete actions, or another one, for a Box of real numbers
            with bounds, which may be equal.
        space: Of one action.

    Raises:
        ValueError: It does not do them; those that do are named.

    >>> expect_actions_for("dqn", gym.spaces.MultiBinary(2))
    Traceback (most recent call last):
    rlox.ArgumentError: action space: expected Discrete for DQN, got MultiBinary(2); use PPO or A2C
    """
    name = algorithm.upper()
    real = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"
    if name == "DQN" and not isinstance(space, gym.spaces.Discrete):
        fix = "SAC, TD3, PPO or A2C" if real else "PPO or A2C"
        raise ArgumentError("action space", f"Discrete for {name}", str(space), f"use {fix}")
    if name == "DQN":
        return
    if not isinstance(space, gym.spaces.Box):
        fix = "DQN, PPO or A2C" if isinstance(space, gym.spaces.Discrete) else "PPO or A2C"
        raise ArgumentError("action space", f"a Box for {name}", str(space), f"use {fix}")
    if not real:
        # Squashed into the bounds, actions hardly ever are what is rounded to the outermost.
        raise ArgumentError(
            "action space", f"a Box of real numbers for {name}", str(space), "use PPO or A2C"
        )
    most = np.finfo(np.float32).max
    if not all((np.abs(side.astype(np.float64)) <= most).all() for side in (space.low, space.high)):
        raise ArgumentError(
            "action space",
            f"finite bounds for {name}, which float32 holds",
            str(space),
            "rescale actions in a wrapper, or use PPO or A2C",
        )
    # Equal ones are allowed: a component of which there is nothing to decide.
    if (above := space.low > space.high).any():
        raise ArgumentError(
            "action space",
            f"low <= high for {name}",
            f"{space.low[above][0]} > {space.high[above][0]}",
            "swap them",
            index=int(np.flatnonzero(above)[0]),
        )
