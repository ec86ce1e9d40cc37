"""Evaluation of policies by full episodes in Gymnasium environments."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypedDict, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._finite import check_finite_array
from rlox._spaces import to_json
from rlox._types import Obs
from rlox._validation import check_bool, check_int, check_seed, resolve_seed
from rlox.envs._checks import CheckedEnv, check_observations
from rlox.envs._make import EnvMaker, make_single
from rlox.envs._masks import MaskSource
from rlox.learners import EnvLearner
from rlox.learners.base import BaseLearner

__all__ = ["EvaluationResult", "Predictor", "evaluate"]


class EvaluationResult(TypedDict):
    """Result of `evaluate`."""

    mean_reward: float  # mean of `returns`
    std_reward: float  # standard deviation of `returns`
    returns: list[float]  # sum of raw rewards of each episode
    lengths: list[int]  # number of steps of each episode


class Predictor(Protocol):
    """Protocol of objects that `evaluate` accepts: trainers, learners and other policies."""

    def predict(self, obs: npt.NDArray[Any], deterministic: bool = True) -> npt.NDArray[Any]:
        """Return actions (n, ...) in the action space for raw observations (n, ...)."""


@runtime_checkable
class _LearnerOwner(Protocol):
    """Protocol of trainers and other policies whose actions a learner computes."""

    learner: EnvLearner


class SeededPredictor:
    """Learner with a separate, seeded random stream for samples.

    Samples are the same in each evaluation and do not advance the learner's stream.

    Args:
        learner: Learner that computes the actions.
        seed: Seed of the samples, which differ from random numbers of environments with this seed.
        interrupt_requested: Function that `evaluate` calls before each step; True ends the
            evaluation.

    Raises:
        ArgumentTypeError: `seed` is not an integer.
        ArgumentError: `seed` is negative.
    """

    def __init__(self, learner: EnvLearner, seed: int, interrupt_requested: Callable[[], bool] = lambda: False) -> None:
        seed = check_seed(seed)
        self.learner = learner
        self.interrupt_requested = interrupt_requested
        # Environments use the seed without a spawn key, so this stream differs from theirs.
        self._stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))

    def predict(
        self, obs: Obs, deterministic: bool = True, action_masks: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Return actions as `Learner.predict` does, with samples from the seeded stream."""
        return self.learner.predict(obs, deterministic, self._stream, action_masks)


def evaluation_seed(seed: int, *, training: bool = False) -> int:
    """Return the seed of evaluation episodes that is derived from a trainer's seed.

    Args:
        seed: Seed of the trainer.
        training: True for evaluations during training. Their seed differs, so that later
            evaluations of the best checkpoint do not repeat the episodes that selected it.

    >>> evaluation_seed(1) == evaluation_seed(1) != evaluation_seed(2)
    True
    """
    # The learner uses the spawn keys 0, 1, ... of the same seed.
    key = 2**32 - (2 if training else 1)
    stream = np.random.SeedSequence(seed, spawn_key=(key,))
    return int(stream.generate_state(1)[0] >> 1)


def evaluate(
    policy: Predictor,
    env: EnvMaker,
    n_episodes: int = 30,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    num_envs: int = 10,
    env_kwargs: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
) -> EvaluationResult:
    """Evaluate a policy by playing `n_episodes` full episodes.

    The number of episodes of each environment is fixed in advance, and its first episodes count.
    Counting the first `n_episodes` that finish would favor short episodes.

    Args:
        policy: Policy that selects the actions. Trainers and learners with `action_masks=True` get the
            masks of the environments. With `deterministic=False`, samples come from the policy's random
            stream; use `Trainer.evaluate` for reproducible samples.
        env: Id in Gymnasium's registry, `EnvSpec`, or function that returns an environment. An id gives
            Gymnasium's own environment, or the native one if only this has the keywords `env_kwargs`.
        n_episodes: Number of episodes, at least 1.
        seed: Seed of the environments: environment i is reset with `seed + i`. None uses entropy
            from the operating system.
        deterministic: Argument of `policy.predict`.
        num_envs: Largest number of environments that play at the same time.
        env_kwargs: Keywords for creating the environments. Keywords of vector environments, such as
            `vectorization_mode`, are ignored.
        max_episode_steps: Number of steps after which an episode is truncated; None uses only the
            limit of the environment.

    Returns:
        Mean and standard deviation of the returns, and the return and length of each episode. If
        `policy.interrupt_requested()` becomes true, mean and standard deviation are NaN, and the
        returns and lengths include the unfinished episode of each environment.

    Raises:
        ArgumentTypeError: An argument has a wrong type; `env` is an environment object.
        ArgumentError: A number is out of range, `seed` is negative, the id is unknown, or the
            spaces differ from those of the policy.
        NonFiniteError: A reward is NaN or infinite.

    >>> class PushLeft:
    ...     def predict(self, obs, deterministic=True):
    ...         return np.zeros(len(obs), np.int64)
    >>> result = evaluate(PushLeft(), "CartPole-v1", n_episodes=3, seed=0)
    >>> result["returns"]
    [11.0, 10.0, 9.0]
    """
    fix = "pass one or more"
    n_episodes = check_int("n_episodes", n_episodes, 1, fix=fix)
    n = min(check_int("num_envs", num_envs, 1, fix=fix), n_episodes)
    seed = None if seed is None else resolve_seed(seed)
    deterministic = check_bool("deterministic", deterministic)
    if not hasattr(policy, "predict"):
        raise ArgumentTypeError(
            "policy", "an object with predict(obs, deterministic)", type(policy).__name__, "pass a trainer or a learner"
        )
    keywords: Any = {} if env_kwargs is None else env_kwargs
    if not isinstance(keywords, Mapping):
        raise ArgumentTypeError("env_kwargs", "a dict of keywords or None", repr(keywords), "pass a dict")
    if max_episode_steps is not None:
        max_episode_steps = check_int("max_episode_steps", max_episode_steps, 1, fix="pass None for no limit")

    def make(index: int) -> gym.Env[Any, Any]:
        checked = CheckedEnv(make_single(env, keywords), index)
        return checked if max_episode_steps is None else TimeLimit(checked, max_episode_steps)

    envs = SyncVectorEnv([partial(make, i) for i in range(n)], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        episodes, is_complete = _play(policy, envs, n_episodes, seed, deterministic)
    except (LookupError, TypeError, ValueError):
        check_observations(envs)
        raise
    finally:
        envs.close()
    returns = [episode_return for row in episodes for episode_return, _ in row]
    return {
        "mean_reward": float(np.mean(returns)) if is_complete else math.nan,
        "std_reward": float(np.std(returns)) if is_complete else math.nan,
        "returns": returns,
        "lengths": [length for row in episodes for _, length in row],
    }


def _find_learner(policy: object) -> BaseLearner[Any] | None:
    """Return the learner that computes the actions of a policy; None for policies of the caller."""
    learner = policy.learner if isinstance(policy, _LearnerOwner) else policy
    return learner if isinstance(learner, BaseLearner) else None


def _check_spaces(learner: BaseLearner[Any], envs: VectorEnv[Any, Any, Any]) -> None:
    """Check that the environments have the spaces of the learner."""
    spaces = envs.single_observation_space, envs.single_action_space
    for name, policy_space, env_space in zip(("observation", "action"), learner.spaces, spaces, strict=True):
        is_compatible = isinstance(env_space, type(policy_space)) or isinstance(policy_space, type(env_space))
        is_compatible = is_compatible and policy_space.shape == env_space.shape
        # Bounds of observations may differ, but bounds of actions define their meaning.
        if not is_compatible or (name == "action" and to_json(policy_space) != to_json(env_space)):
            expected = f"the {name} space of the policy, {policy_space}"
            raise ArgumentError("env", expected, str(env_space), "pass an environment with the same spaces")


def _play(
    policy: Predictor, envs: VectorEnv[Any, Any, Any], n_episodes: int, seed: int | None, deterministic: bool
) -> tuple[list[list[tuple[float, int]]], bool]:
    """Return (return, length) of the counted episodes by environment, and whether all finished."""
    learner = _find_learner(policy)
    if learner is not None:
        _check_spaces(learner, envs)
    n = envs.num_envs
    wanted = [n_episodes // n + (i < n_episodes % n) for i in range(n)]
    episodes: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    returns = np.zeros(n)
    lengths = np.zeros(n, np.int64)
    steps = 0
    obs, infos = envs.reset(seed=seed)
    source = MaskSource(envs)
    masked = learner is not None and learner.config.action_masks
    interrupt_requested = getattr(policy, "interrupt_requested", bool)
    while any(len(row) < count for row, count in zip(episodes, wanted, strict=True)):
        if interrupt_requested():
            for row, partial_return, length in zip(episodes, returns, lengths, strict=True):
                row.append((float(partial_return), int(length)))
            return episodes, False
        masks: dict[str, Any] = {}
        if masked:
            masks["action_masks"] = source.read(infos, np.zeros(n, np.bool_))
        actions = policy.predict(obs, deterministic, **masks)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        check_finite_array("rewards", np.asarray(rewards, np.float64)[None], steps)
        steps += 1
        returns += rewards
        lengths += 1
        for i in np.flatnonzero(terminated | truncated):
            if len(episodes[i]) < wanted[i]:
                episodes[i].append((float(returns[i]), int(lengths[i])))
            returns[i], lengths[i] = 0.0, 0
    return episodes, True
