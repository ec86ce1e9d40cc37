"""`evaluate_policy`, and checks of the environments that models accept."""

import dataclasses
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._validation import check_bool, check_float, check_int, short_repr
from rlox.buffers._steps import StepRecorder
from rlox.envs._make import EnvLike, get_env_name, make_vec
from rlox.envs.gymnasium import GymVecEnv
from rlox.envs.vec_env import VecEnv
from rlox.trainers import Trainer


class Predictor(Protocol):
    """Protocol of objects that `evaluate_policy` accepts: models, and others with `predict`."""

    def predict(self, observation: Any, /, *, deterministic: bool) -> tuple[npt.ArrayLike, object]:
        """Return actions for a batch of observations, and a state."""


def check_environment(env: object) -> None:
    """Check that `env` is not a vector environment of Stable-Baselines3, whose API differs."""
    cls = env if isinstance(env, type) else type(env)
    if any(base.__module__.startswith("stable_baselines3.common.vec_env") for base in cls.__mro__):
        raise ArgumentTypeError(
            "env",
            "an id, a gymnasium.Env or a vector environment of rlox or Gymnasium",
            f"Stable-Baselines3's {cls.__name__}",
            "pass rlox.make_vec(id, num_envs=8) or a vector environment of Gymnasium, and use the "
            "settings normalize_obs and normalize_reward of rlox.trainers",
        )


def env_id_of(env: object) -> str | None:
    """Return the id from which an equal environment can be created, or None.

    >>> env_id_of(gym.make("CartPole-v1"))
    'CartPole-v1'
    >>> env_id_of(gym.make("CartPole-v1", sutton_barto_reward=True)) is None
    True
    """
    spec = getattr(env, "spec", None)
    without = {"render_mode"}
    if spec is None or spec.id not in gym.registry:
        return None
    if isinstance(env, gym.Env):
        inner = env
        while isinstance(inner, gym.Wrapper):
            if type(inner) not in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
                return None
            inner = inner.env
    elif type(env) is VecEnv and spec.kwargs.get("autoreset_mode") == "SameStep":
        without = {"num_envs", "autoreset_mode"}
    else:
        return None
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in without}
    plain = dataclasses.replace(spec, kwargs=kwargs)
    return get_env_name(spec) if plain == gym.spec(spec.id) else None


def evaluate_policy(
    model: Predictor,
    env: EnvLike,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    *,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Run evaluation episodes without training, and return statistics of the returns.

    Returns are sums of the environment's own rewards. The number of episodes of each environment is
    fixed in advance, so that short episodes do not bias the mean.

    Args:
        model: Model of `rlox.sb3`, or an object whose `predict(obs, deterministic=)` returns actions and a state.
        env: As for the models. An existing environment is reset and not closed. The model may
            train in the same environment.
        n_eval_episodes: Number of episodes, at least 1.
        deterministic: Use greedy actions instead of samples.
        reward_threshold: Value that the mean return must exceed; None: no threshold.
        return_episode_rewards: Return the returns and lengths of the episodes.
        warn: Ignored; exists for compatibility.

    Returns:
        (mean, standard deviation) of the returns, or (returns, lengths).

    Raises:
        ArgumentTypeError, ArgumentError: An argument is invalid or not supported.
        AssertionError: The mean return is not above `reward_threshold`.

    >>> from rlox.sb3 import PPO
    >>> model = PPO("MlpPolicy", "CartPole-v1", seed=1)
    >>> returns, lengths = evaluate_policy(model, "CartPole-v1", 3, return_episode_rewards=True)
    >>> returns == lengths, len(returns)
    (True, 3)
    """
    n = check_int("n_eval_episodes", n_eval_episodes, 1, fix="pass one or more")
    deterministic = check_bool("deterministic", deterministic)
    return_episodes = check_bool("return_episode_rewards", return_episode_rewards)
    if reward_threshold is not None:
        reward_threshold = check_float("reward_threshold", reward_threshold, fix="pass a number")
    if not hasattr(model, "predict"):
        got = short_repr(model)
        raise ArgumentTypeError("model", "a model with predict()", got, "pass the model")
    check_environment(env)
    envs = make_vec(env, None)
    space, expected = envs.single_observation_space, getattr(model, "observation_space", None)
    try:
        if expected is not None and space.shape != expected.shape:
            raise ArgumentError(
                "env",
                f"an environment with the model's observation space {expected}",
                str(space),
                "pass an environment with the same spaces",
            )
        returns, lengths = _play(model, envs, n, deterministic)
    finally:
        _restart_episodes(model, env)
        if not isinstance(env, VectorEnv | gym.Env):
            envs.close()
    mean, std = float(np.mean(returns)), float(np.std(returns))
    if reward_threshold is not None and mean <= reward_threshold:
        raise AssertionError(f"reward_threshold: expected a mean return above {reward_threshold:.2f}, got {mean:.2f}")
    return (returns, lengths) if return_episodes else (mean, std)


def _restart_episodes(model: object, env: object) -> None:
    """Make training start new episodes if the model trains in the evaluated environments."""
    trainer = getattr(model, "_trainer", None)
    if isinstance(trainer, Trainer):
        source = trainer.run.env_source
        if env is trainer.env or (source is not None and env is source.env):
            trainer.learner.restart_episodes()


def _play(
    model: Predictor, envs: VecEnv | GymVecEnv, episodes: int, deterministic: bool
) -> tuple[list[float], list[int]]:
    """Return the returns and lengths, in the order in which the episodes end."""
    n = envs.num_envs
    remaining = np.array([(episodes + i) // n for i in range(n)])
    returns, lengths = list[float](), list[int]()
    sums, steps = np.zeros(n), np.zeros(n, np.int64)
    stepper = StepRecorder(envs)
    envs.reset()
    stepper.start(None)
    while (remaining > 0).any():
        obs = stepper.layout.decode(stepper.obs)
        actions, _ = model.predict(obs, deterministic=deterministic)
        step = stepper.step(np.asarray(actions))
        valid = np.ones(n, np.bool_) if step.valid is None else step.valid
        sums[valid] += step.rewards[valid]
        steps[valid] += 1
        for i in np.flatnonzero((step.terminated | step.truncated) & valid):
            if remaining[i] > 0:
                returns.append(float(sums[i]))
                lengths.append(int(steps[i]))
                remaining[i] -= 1
            sums[i], steps[i] = 0.0, 0
    return returns, lengths
