"""How environments were made, so that others are made alike, here or in another process."""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlox.rollout import RolloutEnv
from rlox.vec_env import VecEnv


class Recipe(NamedTuple):
    """What `make_vec` was called with.

    >>> from rlox import make_vec
    >>> recipe = recipe_of(make_vec(lambda: gym.make("CartPole-v1"), 2))
    >>> recipe.make(3, seed=0).num_envs
    3
    """

    env: Any
    how: dict[str, Any]

    def make(self, num_envs: int, seed: int | None) -> RolloutEnv:
        """So many environments, the first of which is reset with `seed`."""
        from rlox.vector import make_vec

        made: RolloutEnv = make_vec(self.env, num_envs, seed=seed, **self.how)
        return made


_recipes: "WeakKeyDictionary[object, Recipe]" = WeakKeyDictionary()


def remember(made: object, env: object, how: dict[str, Any]) -> None:
    """Notes what `make_vec` made of what, unless that was made already."""
    if not isinstance(env, gym.Env | VectorEnv):
        _recipes[made] = Recipe(env, how)


def recipe_of(env: object) -> Recipe | None:
    """How environments were made; None where that is not known."""
    if type(env) is VecEnv:
        mode = env.metadata["autoreset_mode"]
        made = dict(env._made)
        return Recipe(made.pop("env_id"), {"autoreset_mode": mode, **made})
    return _recipes.get(env)
