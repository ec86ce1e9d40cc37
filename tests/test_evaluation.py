"""Scores count whole episodes, the same number in each environment."""

import signal

import gymnasium as gym
import numpy as np
import pytest

from rlox.evaluation import evaluate
from support.envs import Count
from support.runs import small


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


class Endless(gym.Env):
    """Never ends; presses Ctrl-C at a step."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)
    made, press_at = 0, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        kind = type(self)
        kind.made += 1
        if kind.made == kind.press_at:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(4, np.float32), 1.0, False, False, {}


class Right:
    def predict(self, obs, deterministic=True):
        return np.ones(len(obs), np.int64)


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1"), Endless])
def test_episodes_end_at_the_latest_where_they_are_told_to(env):
    result = evaluate(Right(), env, 5, seed=0, num_envs=2, max_episode_steps=7)
    assert result["lengths"] == [7] * 5
    assert result["mean_reward"] == 7.0
    if env is not Endless:  # nothing is made longer
        longer = evaluate(Right(), env, 5, seed=0, num_envs=2, max_episode_steps=10**6)
        assert longer == evaluate(Right(), env, 5, seed=0, num_envs=2)
        assert max(longer["lengths"]) < 500
    for wrong, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="max_episode_steps: expected an integer of at least 1"):
            evaluate(Right(), env, 5, max_episode_steps=wrong)


def test_the_first_ctrl_c_ends_an_evaluation_of_a_run(monkeypatch):
    monkeypatch.setattr(Endless, "made", 0)
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
