"""Scores: full episodes in Gymnasium's own environments."""

from collections.abc import Callable
from typing import Any, Protocol, TypedDict

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv


class Predictor(Protocol):
    """What can be evaluated: a trainer, a learner, or anything else that decides on actions."""

    def predict(self, obs: npt.NDArray[Any], deterministic: bool = True) -> npt.NDArray[Any]:
        """Actions (n, ...) as the environment takes them, for raw observations (n, ...)."""


class EvaluationResult(TypedDict):
    """What `evaluate` gives."""

    mean_reward: float  # mean of `returns`
    std_reward: float  # standard deviation of `returns`
    returns: list[float]  # the sum of raw rewards of each episode
    lengths: list[int]  # the steps of each episode


def evaluate(
    policy: Predictor,
    env: str | Callable[[], gym.Env[Any, Any]],
    n_episodes: int = 30,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    num_envs: int = 10,
    env_kwargs: dict[str, Any] | None = None,
) -> EvaluationResult:
    """Plays `n_episodes` full episodes.

    Episodes are shared out among the environments beforehand: environment i counts its first ones
    and no others. Taking the first `n_episodes` to finish would prefer short episodes.

    Args:
        policy: Decides on actions.
        env: An id in Gymnasium's registry, or a function that makes an environment.
        n_episodes: At least 1.
        seed: Environment i gets `seed + i`; None takes entropy from the operating system.
        deterministic: Passed to `policy.predict`.
        num_envs: How many environments play at once, at most.
        env_kwargs: Passed to what makes the environments.

    Raises:
        ValueError: `n_episodes` or `num_envs` below 1.

    >>> class Left:
    ...     def predict(self, obs, deterministic=True):
    ...         return np.zeros(len(obs), np.int64)
    >>> result = evaluate(Left(), "CartPole-v1", n_episodes=3, seed=0)
    >>> result["returns"]
    [11.0, 10.0, 9.0]
    """
    for name, value in (("n_episodes", n_episodes), ("num_envs", num_envs)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}; ask for one or more")
    n = min(num_envs, n_episodes)
    envs = _make(env, n, env_kwargs or {})
    try:
        episodes = _play(policy, envs, n_episodes, seed, deterministic)
    finally:
        envs.close()
    returns, lengths = ([episode[k] for row in episodes for episode in row] for k in (0, 1))
    return {
        "mean_reward": float(np.mean(returns)),
        "std_reward": float(np.std(returns)),
        "returns": returns,
        "lengths": [int(length) for length in lengths],
    }


def _make(
    env: str | Callable[..., gym.Env[Any, Any]], n: int, env_kwargs: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    same_step = AutoresetMode.SAME_STEP
    if callable(env):
        make = env
        return SyncVectorEnv([lambda: make(**env_kwargs)] * n, autoreset_mode=same_step)
    vector_kwargs = {"autoreset_mode": same_step}
    return gym.make_vec(env, n, "sync", vector_kwargs=vector_kwargs, **env_kwargs)


def _play(
    policy: Predictor,
    envs: VectorEnv[Any, Any, Any],
    n_episodes: int,
    seed: int | None,
    deterministic: bool,
) -> list[list[tuple[float, int]]]:
    """(return, length) of each environment's first episodes."""
    n = envs.num_envs
    wanted = [n_episodes // n + (i < n_episodes % n) for i in range(n)]
    episodes: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    returns, lengths = np.zeros(n), np.zeros(n, np.int64)
    obs, _ = envs.reset(seed=seed)
    while any(len(row) < count for row, count in zip(episodes, wanted, strict=True)):
        actions = policy.predict(obs, deterministic)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards
        lengths += 1
        for i in np.flatnonzero(terminated | truncated):
            if len(episodes[i]) < wanted[i]:
                episodes[i].append((float(returns[i]), int(lengths[i])))
            returns[i], lengths[i] = 0.0, 0
    return episodes
