"""Trainers of what an `EnvSpec` describes: settings by its id, episodes as it says."""

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

import rlox
from rlox.evaluation import evaluate
from rlox.trainers import A2CTrainer, PPOTrainer
from toy_envs import Count


@pytest.mark.parametrize("trainer", [PPOTrainer, A2CTrainer])
def test_a_spec_has_the_settings_of_its_id_and_is_what_episodes_are_of(trainer):
    short = gym.make("CartPole-v1", max_episode_steps=7).spec
    made, plain = (trainer(env, 0, runs_dir=None) for env in (short, "CartPole-v1"))
    assert made.config == plain.config
    assert made.sources == plain.sources
    assert made.evaluate(2)["lengths"] == [7, 7]
    full = plain.evaluate(2)
    assert made.evaluate(2, env=gym.spec("CartPole-v1")) == full
    assert plain.evaluate(2, env=short)["lengths"] == [7, 7]
    assert evaluate(plain, short, 2)["lengths"] == [7, 7]


def test_what_a_spec_says_of_vectors_is_for_training_alone():
    spec = rlox.VecEnv(n=3, env_id="Pendulum-v1", max_episode_steps=9, g=9.5).spec
    made = A2CTrainer(spec, 0, runs_dir=None)
    assert (made.config.num_envs, made.sources["num_envs"]) == (3, "env")
    assert made.sources["gamma"] == "rl-zoo3"
    assert made.evaluate(4)["lengths"] == [9] * 4
    vectors = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", max_episode_steps=5).spec
    made = A2CTrainer(vectors, 0, runs_dir=None)
    assert made.config.num_envs == 2
    assert made.evaluate(2)["lengths"] == [5, 5]


def test_a_spec_of_ones_own_may_have_wrappers_and_keywords():
    spec = EnvSpec("Own-v0", entry_point=Count, kwargs={"limit": 6})
    spec.kwargs["wrappers"] = [lambda env: gym.wrappers.TransformReward(env, lambda r: 3 * r)]
    made = A2CTrainer(spec, 0, runs_dir=None)
    made.train(20)
    assert made.evaluate(2)["returns"] == [18.0, 18.0]
    other = A2CTrainer(spec, 0, env_kwargs={"limit": 4}, runs_dir=None)
    assert other.evaluate(1)["returns"] == [12.0]


def test_what_makes_no_environment_is_refused():
    made = A2CTrainer(gym.spec("CartPole-v1"), 0, runs_dir=None)
    with pytest.raises(ValueError, match="vectorization_mode: expected one that 'No-v0' has"):
        made.evaluate(1, env=EnvSpec("No-v0"))
    with pytest.raises(TypeError, match=r"env: expected an id or a function .*, got int"):
        evaluate(made, 3)
