"""Scores count whole episodes, the same number in each environment."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError
from rlox.evaluation import evaluate
from support.envs import Count, Endless
from support.refusals import refuses
from support.runs import small


class Constant:
    """Return one action and record `deterministic`."""

    def __init__(self, action=0):
        self.action, self.deterministic = action, set()

    def predict(self, obs, deterministic=True):
        self.deterministic.add(deterministic)
        return np.full(len(obs), self.action)


class Slow(Count):
    """Count with episodes ten times as long in every other environment."""

    made = 0

    def __init__(self):
        super().__init__(limit=20 if Slow.made % 2 else 2)
        Slow.made += 1


def test_long_episodes_count_as_often_as_short_ones():
    Slow.made = 0
    result = evaluate(Constant(), Slow, n_episodes=6, num_envs=2)
    assert result["lengths"] == [2, 2, 2, 20, 20, 20]
    assert result["returns"] == [2.0, 2.0, 2.0, 20.0, 20.0, 20.0]
    assert (result["mean_reward"], result["std_reward"]) == (11.0, 9.0)


@pytest.mark.parametrize(("episodes", "envs"), [(1, 10), (7, 3), (5, 5)])
def test_exactly_so_many_episodes_are_played(episodes, envs):
    result = evaluate(Constant(), Count, n_episodes=episodes, num_envs=envs)
    assert result["lengths"] == [10] * episodes


def test_an_episode_is_gymnasiums():
    result = evaluate(Constant(), "CartPole-v1", n_episodes=2, num_envs=2, seed=5)
    for i, got in enumerate(result["returns"]):
        env = gym.make("CartPole-v1")
        env.reset(seed=5 + i)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(0)
            total, over = total + reward, terminated or truncated
        assert got == total


def test_the_policy_is_asked_for_what_was_wanted():
    for deterministic in (True, False):
        policy = Constant()
        evaluate(policy, Count, 1, deterministic=deterministic)
        assert policy.deterministic == {deterministic}


def test_environments_get_their_arguments():
    assert evaluate(Constant(), Count, 1, env_kwargs={"limit": 4})["lengths"] == [4]
    sutton = {"sutton_barto_reward": True}
    assert evaluate(Constant(), "CartPole-v1", 2, env_kwargs=sutton)["mean_reward"] == -1.0


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("n_episodes", True, ArgumentTypeError),
        ("num_envs", None, ArgumentTypeError),
        ("num_envs", -1, ArgumentError),
        ("max_episode_steps", 0, ArgumentError),
        ("max_episode_steps", 1.5, ArgumentTypeError),
        ("seed", -1, ArgumentError),
        ("seed", "abc", ArgumentTypeError),
        ("deterministic", "no", ArgumentError),
        ("env", "CartPoll-v1", ArgumentError),
        ("env", Count(), ArgumentTypeError),
        ("env_kwargs", [1], ArgumentTypeError),
        ("policy", object(), ArgumentTypeError),
    ],
)
def test_invalid_arguments_are_rejected_by_name(argument, value, error):
    arguments = {"policy": Constant(), "env": Count, "n_episodes": 1}
    with refuses(error, argument):
        evaluate(**{**arguments, argument: value})


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1"), Endless])
def test_episodes_end_after_max_episode_steps(env):
    result = evaluate(Constant(1), env, 5, seed=0, num_envs=2, max_episode_steps=7)
    assert result["lengths"] == [7] * 5
    assert result["mean_reward"] == 7.0
    if env is not Endless:  # a larger limit changes nothing
        longer = evaluate(Constant(1), env, 5, seed=0, num_envs=2, max_episode_steps=10**6)
        assert longer == evaluate(Constant(1), env, 5, seed=0, num_envs=2)
        assert max(longer["lengths"]) < 500


def test_the_first_ctrl_c_ends_an_evaluation_of_a_run(monkeypatch):
    monkeypatch.setattr(Endless, "steps", 0)
    monkeypatch.setattr(Endless, "press_at", 20)
    scores = []

    def score(trainer, metrics):
        scores.append(trainer.evaluate(2, env=Endless))

    trainer = small()
    result = trainer.train(320, callbacks=[score])
    assert (result["timesteps"], result["stopped_by"]) == (32, "Ctrl-C")
    (said,) = scores
    assert np.isnan([said["mean_reward"], said["std_reward"]]).all()
    assert said["lengths"] == [10, 10]
    # After the run there is nothing left to be stopped.
    assert trainer.evaluate(2, max_episode_steps=3, env=Endless)["lengths"] == [3, 3]


def test_a_run_that_comes_to_its_end_is_evaluated_to_the_end():
    scores = []

    def score(trainer, metrics):
        trainer.stop("solved")
        scores.append(trainer.evaluate(2)["mean_reward"])

    trainer = small()
    trainer.train(320, callbacks=[score])
    assert scores == [trainer.evaluate(2)["mean_reward"]]
