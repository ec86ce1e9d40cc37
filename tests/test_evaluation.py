"""Scores count whole episodes, the same number in each environment."""

import gymnasium as gym
import numpy as np
import pytest

from rlox.evaluation import evaluate
from toy_envs import Count


class Still:
    """Does nothing; remembers whether it was asked to be greedy."""

    def __init__(self, action=0):
        self.action, self.greedy = action, set()

    def predict(self, obs, deterministic=True):
        self.greedy.add(deterministic)
        return np.full(len(obs), self.action)


class Slow(Count):
    """Every other environment has episodes ten times as long."""

    made = 0

    def __init__(self):
        super().__init__(limit=20 if Slow.made % 2 else 2)
        Slow.made += 1


def test_long_episodes_count_as_often_as_short_ones():
    Slow.made = 0
    result = evaluate(Still(), Slow, n_episodes=6, num_envs=2)
    assert result["lengths"] == [2, 2, 2, 20, 20, 20]
    assert result["returns"] == [2.0, 2.0, 2.0, 20.0, 20.0, 20.0]
    assert (result["mean_reward"], result["std_reward"]) == (11.0, 9.0)


@pytest.mark.parametrize(("episodes", "envs"), [(1, 10), (7, 3), (5, 5)])
def test_exactly_so_many_episodes_are_played(episodes, envs):
    result = evaluate(Still(), Count, n_episodes=episodes, num_envs=envs)
    assert result["lengths"] == [10] * episodes


def test_an_episode_is_gymnasiums():
    result = evaluate(Still(), "CartPole-v1", n_episodes=2, num_envs=2, seed=5)
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
        policy = Still()
        evaluate(policy, Count, 1, deterministic=deterministic)
        assert policy.greedy == {deterministic}


def test_environments_get_their_arguments():
    assert evaluate(Still(), Count, 1, env_kwargs={"limit": 4})["lengths"] == [4]
    sutton = {"sutton_barto_reward": True}
    assert evaluate(Still(), "CartPole-v1", 2, env_kwargs=sutton)["mean_reward"] == -1.0


@pytest.mark.parametrize("wrong", [{"n_episodes": 0}, {"num_envs": -1}])
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected an integer of at least 1"):
        evaluate(Still(), Count, **{"n_episodes": 1, **wrong})


class Unable:
    pass


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_episodes": "x"}, TypeError, "n_episodes: expected an integer of at least 1, got 'x'"),
        ({"n_episodes": 1.5}, TypeError, "n_episodes: expected an integer of at least 1, got 1.5"),
        ({"n_episodes": True}, TypeError, "n_episodes: expected an integer"),
        ({"num_envs": None}, TypeError, "num_envs: expected an integer"),
        ({"seed": -1}, ValueError, "seed: expected None or an integer of at least 0, got -1"),
        ({"seed": "abc"}, TypeError, "seed: expected None or an integer"),
        ({"seed": float("nan")}, TypeError, "seed: expected None or an integer"),
        ({"deterministic": "no"}, ValueError, "deterministic: expected True or False, got 'no'"),
        ({"env": "CartPoll-v1"}, ValueError, "env: expected an id in Gymnasium's registry"),
        ({"env": 3}, TypeError, "env: expected an id or a function .*, got int"),
        ({"env": Count()}, TypeError, "env: expected an id or a function .*, got Count"),
        ({"env_kwargs": [1]}, TypeError, "env_kwargs: expected a dict of keywords"),
        ({"policy": Unable()}, TypeError, "policy: expected an object with predict"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        evaluate(**{"policy": Still(), "env": Count, "n_episodes": 1, **arguments})
