"""Arguments of `make_vec`, to make equal environments here or in another process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from rlox.rollout import RolloutEnv
from rlox.vec_env import VecEnv

Mode = Literal["sync", "async", "vector_entry_point"]
EnvWrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


@dataclass(frozen=True)
class Recipe:
    """Checked arguments of `make_vec`, but for the number of environments and the seed.

    >>> from rlox import make_vec
    >>> recipe = recipe_of(make_vec("CartPole-v1", 2, vectorization_mode="sync"))
    >>> recipe.make(3, seed=0).num_envs
    3
    """

    env: Any
    vectorization_mode: Mode | None = None
    wrappers: Sequence[EnvWrapper] = ()
    autoreset_mode: AutoresetMode | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, num_envs: int, seed: int | None) -> RolloutEnv:
        """Make a number of environments, the first of which is reset with `seed`."""
        from rlox.vector import make_of

        env: RolloutEnv = make_of(self, num_envs, seed)
        return env


def recipe_of(env: Any) -> Recipe | None:
    """Return the arguments that environments were made with, or None if they are unknown."""
    if type(env) is VecEnv:
        kwargs = dict(env._made)
        mode = env.metadata["autoreset_mode"]
        return Recipe(kwargs.pop("env_id"), autoreset_mode=mode, kwargs=kwargs)
    # Not getattr: vector wrappers forward attributes of the environments that they wrap.
    recipe: Recipe | None = getattr(env, "__dict__", {}).get("recipe")
    return recipe
