"""`evaluate_policy`: whole episodes, by Stable-Baselines3's arguments."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.sb3.environments import expect_environment, ready
from rlox.settings import flag, number, shown, whole
from rlox.stepping import Stepper
from rlox.trainer import Trainer


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Plays episodes without learning anything; rewards are the environment's own.

    Episodes are shared out among environments beforehand, so that short ones count no more.

    Args:
        model: Of `rlox.sb3`, or anything whose `predict(obs, deterministic=)` gives actions and a
            state.
        env: As for the models; one already made is reset and not closed. The model may train in it.
        n_eval_episodes: At least 1.
        deterministic: Greedy actions rather than samples.
        render: Must be False: make the environment with render_mode="human" instead.
        callback: Must be None.
        reward_threshold: What the mean must exceed.
        return_episode_rewards: Give returns and lengths of the episodes instead.
        warn: Without effect: there are no wrappers here that count rewards otherwise.

    Returns:
        (mean, standard deviation) of the returns, or (returns, lengths).

    Raises:
        TypeError, ValueError: An argument of another kind, or something that is not done here.
        AssertionError: The mean is not above the threshold.

    >>> from rlox.sb3 import PPO
    >>> model = PPO("MlpPolicy", "CartPole-v1", seed=1)
    >>> returns, lengths = evaluate_policy(model, "CartPole-v1", 3, return_episode_rewards=True)
    >>> returns == lengths, len(returns)
    (True, 3)
    """
    n = whole("n_eval_episodes", n_eval_episodes, 1, fix="ask for one or more")
    deterministic = flag("deterministic", deterministic, fix="pass one of them")
    told = flag("return_episode_rewards", return_episode_rewards, fix="pass one of them")
    flag("warn", warn, fix="pass one of them")
    if reward_threshold is not None:
        reward_threshold = number("reward_threshold", reward_threshold, fix="pass a number")
    if flag("render", render, fix="pass one of them"):
        raise ArgumentError(
            "render", "False", "True", 'make the environment with render_mode="human"'
        )
    if callback is not None:
        raise ArgumentError(
            "callback", "None", shown(callback), "play episodes in a loop of your own"
        )
    if not hasattr(model, "predict"):
        raise ArgumentTypeError("model", "one with predict()", shown(model), "pass the model")
    expect_environment(env)
    envs = ready(env)
    theirs, ours = envs.single_observation_space, getattr(model, "observation_space", None)
    try:
        if ours is not None and theirs.shape != ours.shape:
            raise ArgumentError(
                "env",
                f"observation space {ours}, as the model was made for",
                str(theirs),
                "pass an environment with the same spaces",
            )
        returns, lengths = _play(model, envs, n, deterministic)
    finally:
        _begin_anew(model, env)
        if not isinstance(env, VectorEnv | gym.Env):
            envs.close()
    mean, deviation = float(np.mean(returns)), float(np.std(returns))
    if reward_threshold is not None and mean <= reward_threshold:
        raise AssertionError(
            f"reward_threshold: expected a mean return above {reward_threshold:.2f}, got {mean:.2f}"
        )
    return (returns, lengths) if told else (mean, deviation)


def _begin_anew(model: Any, env: object) -> None:
    """Has the model begin new episodes where these were played in the environments it trains in."""
    trainer = getattr(model, "trainer", None)
    if isinstance(trainer, Trainer) and (env is trainer.env or env is trainer._env):
        learner: Any = trainer.learner
        learner.started = False


def _play(model: Any, envs: Any, episodes: int, deterministic: bool) -> tuple[list[Any], list[Any]]:
    """Returns and lengths, in the order in which episodes end."""
    n = envs.num_envs
    left = np.array([(episodes + i) // n for i in range(n)])
    returns, lengths = list[float](), list[int]()
    sums, steps = np.zeros(n), np.zeros(n, np.int64)
    stepper = Stepper(envs)
    envs.reset()
    stepper.start(None)
    while (left > 0).any():
        seen = stepper.layout.told(stepper.obs)
        actions, _ = model.predict(seen, deterministic=deterministic)
        step = stepper.step(np.asarray(actions))
        made = np.ones(n, np.bool_) if step.valid is None else step.valid
        sums[made] += step.rewards[made]
        steps[made] += 1
        for i in np.flatnonzero((step.terminated | step.truncated) & made):
            if left[i] > 0:
                returns.append(float(sums[i]))
                lengths.append(int(steps[i]))
                left[i] -= 1
            sums[i], steps[i] = 0.0, 0
    return returns, lengths
