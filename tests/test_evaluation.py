"""`evaluate` plays complete episodes, the same number in each environment."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError
from rlox.evaluation import evaluate
from support.envs import Count, Endless
from support.masked_envs import Doors
from support.rejections import rejects
from support.runs import small


class Constant:
    """Return one action and record `deterministic`."""

    def __init__(self, action=0):
        self.action, self.deterministic = action, set()

    def predict(self, obs, deterministic=True):
        self.deterministic.add(deterministic)
        return np.full(len(obs), self.action)


class UnequalEpisodes(Count):
    """Count with episodes ten times as long in every other environment."""

    instances = 0

    def __init__(self):
        super().__init__(limit=20 if UnequalEpisodes.instances % 2 else 2)
        UnequalEpisodes.instances += 1


def test_long_episodes_count_as_often_as_short_ones():
    UnequalEpisodes.instances = 0
    result = evaluate(Constant(), UnequalEpisodes, n_episodes=6, num_envs=2)
    assert result["lengths"] == [2, 2, 2, 20, 20, 20]
    assert result["returns"] == [2.0, 2.0, 2.0, 20.0, 20.0, 20.0]
    assert (result["mean_reward"], result["std_reward"]) == (11.0, 9.0)


@pytest.mark.parametrize(("episodes", "envs"), [(1, 10), (7, 3), (5, 5)])
def test_evaluate_plays_exactly_n_episodes(episodes, envs):
    result = evaluate(Constant(), Count, n_episodes=episodes, num_envs=envs)
    assert result["lengths"] == [10] * episodes


def test_episode_return_equals_gymnasiums():
    result = evaluate(Constant(), "CartPole-v1", n_episodes=2, num_envs=2, seed=5)
    for i, got in enumerate(result["returns"]):
        env = gym.make("CartPole-v1")
        env.reset(seed=5 + i)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(0)
            total, over = total + reward, terminated or truncated
        assert got == total


def test_evaluate_passes_deterministic_to_the_policy():
    for deterministic in (True, False):
        policy = Constant()
        evaluate(policy, Count, 1, deterministic=deterministic)
        assert policy.deterministic == {deterministic}


def test_evaluate_passes_env_kwargs_to_the_environment():
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
        ("deterministic", "no", ArgumentTypeError),
        ("env", "CartPoll-v1", ArgumentError),
        ("env", Count(), ArgumentTypeError),
        ("env_kwargs", [1], ArgumentTypeError),
        ("policy", object(), ArgumentTypeError),
    ],
)
def test_evaluate_rejects_invalid_arguments(argument, value, error):
    arguments = {"policy": Constant(), "env": Count, "n_episodes": 1}
    with rejects(error, argument):
        evaluate(**{**arguments, argument: value})


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_action_masks_and_spaces_are_those_of_the_learner_of_any_policy(backend, tmp_path):
    trainer = small(env=Doors, action_masks=True, backend=backend)  # locked doors raise
    trainer.save(tmp_path / "saved")
    for policy in (trainer, trainer.learner, rlox.load(tmp_path / "saved")):
        assert evaluate(policy, Doors, 2, seed=0) == trainer.evaluate(2, seed=0)
        with rejects(ArgumentError, "env"):
            evaluate(policy, lambda: gym.wrappers.TransformAction(Doors(), abs, gym.spaces.Discrete(6)), 1)


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1"), Endless])
def test_evaluate_truncates_episodes_after_max_episode_steps(env):
    result = evaluate(Constant(1), env, 5, seed=0, num_envs=2, max_episode_steps=7)
    assert result["lengths"] == [7] * 5
    assert result["mean_reward"] == 7.0
    if env is not Endless:  # a larger limit changes nothing
        longer = evaluate(Constant(1), env, 5, seed=0, num_envs=2, max_episode_steps=10**6)
        assert longer == evaluate(Constant(1), env, 5, seed=0, num_envs=2)
        assert max(longer["lengths"]) < 500


def test_first_ctrl_c_stops_an_evaluation_inside_a_run(monkeypatch):
    monkeypatch.setattr(Endless, "steps", 0)
    monkeypatch.setattr(Endless, "press_at", 20)
    scores = []

    def score(run, metrics):
        scores.append(run.evaluate(2, env=Endless))

    trainer = small()
    result = trainer.train(320, callbacks=[score])
    assert (result["timesteps"], result["stopped_by"]) == (32, "Ctrl-C")
    (score_at_interrupt,) = scores
    assert np.isnan([score_at_interrupt["mean_reward"], score_at_interrupt["std_reward"]]).all()
    assert score_at_interrupt["lengths"] == [10, 10]
    # After the run, no interrupt is pending.
    assert trainer.evaluate(2, max_episode_steps=3, env=Endless)["lengths"] == [3, 3]


def test_evaluation_after_a_stop_request_plays_full_episodes():
    scores = []

    def score(run, metrics):
        run.stop("solved")
        scores.append(run.evaluate(2)["mean_reward"])

    trainer = small()
    trainer.train(320, callbacks=[score])
    assert scores == [trainer.evaluate(2)["mean_reward"]]
