"""Arguments of `make_vec`, to make equal environments here or in another process."""

from typing import Any, NamedTuple

from rlox.rollout import RolloutEnv
from rlox.vec_env import VecEnv


class Recipe(NamedTuple):
    """Arguments that `make_vec` was called with.

    >>> from rlox import make_vec
    >>> recipe = recipe_of(make_vec("CartPole-v1", 2, vectorization_mode="sync"))
    >>> recipe.make(3, seed=0).num_envs
    3
    """

    env: Any
    how: dict[str, Any]

    def make(self, num_envs: int, seed: int | None) -> RolloutEnv:
        """Make a number of environments, the first of which is reset with `seed`."""
        from rlox.vector import make_vec

        env: RolloutEnv = make_vec(self.env, num_envs, seed=seed, **self.how)
        return env


def recipe_of(env: Any) -> Recipe | None:
    """Return the arguments that environments were made with, or None if they are unknown."""
    if type(env) is VecEnv:
        arguments = dict(env._made)
        mode = env.metadata["autoreset_mode"]
        return Recipe(arguments.pop("env_id"), {"autoreset_mode": mode, **arguments})
    # Not getattr: vector wrappers forward attributes of the environments that they wrap.
    recipe: Recipe | None = getattr(env, "__dict__", {}).get("recipe")
    return recipe
