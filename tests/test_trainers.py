"""Trainers: what they take, what they leave, what they give back."""

import json
import os

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from torch import nn

import rlox
from rlox._rlox import network_backends
from rlox.policies import MlpPolicy
from rlox.trainers import PPOTrainer
from support.envs import Count, Echo, Imitate

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}


def small(env="CartPole-v1", seed=1, **kwargs):
    return PPOTrainer(env=env, seed=seed, **{"runs_dir": None, **SMALL, **kwargs})


def weights(trainer):
    return trainer.learner.state().networks


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_run_makes_at_least_the_steps_asked_for_and_says_how_many():
    trainer = small()
    assert trainer.train(total_timesteps=100)["timesteps"] == 128
    assert trainer.train(total_timesteps=1)["timesteps"] == 160
    assert trainer.timesteps == 160


def test_mean_reward_is_that_of_the_last_hundred_episodes():
    result = small(env=Count).train(1)
    assert (result["mean_reward"], result["mean_length"], result["episodes"]) == (10.0, 10.0, 2)
    assert np.isnan(small(env=lambda: Count(limit=50)).train(1)["mean_reward"])


def test_settings_come_from_arguments_then_rl_zoo3_then_defaults():
    trainer = PPOTrainer(env="CartPole-v1", seed=0, gamma=0.9, runs_dir=None)
    assert (trainer.config.gamma, trainer.sources["gamma"]) == (0.9, "argument")
    assert (trainer.config.n_steps, trainer.sources["n_steps"]) == (32, "rl-zoo3")
    assert (trainer.config.vf_coef, trainer.sources["vf_coef"]) == (0.5, "default")
    prefixed = PPOTrainer(env="rlox/CartPole-v1", seed=0, runs_dir=None)
    assert prefixed.config.n_steps == 32
    assert PPOTrainer(env=Count, seed=0, runs_dir=None).config.n_steps == 2048


def test_an_unknown_setting_is_told_near_ones():
    message = r"PPOTrainer has no setting 'learning_rat'; did you mean 'learning_rate'"
    with pytest.raises(TypeError, match=message):
        PPOTrainer(env="CartPole-v1", learning_rat=1e-3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env": "CartPoll-v1"}, ValueError, "did you mean 'CartPole-v1'"),
        ({"env": 3}, TypeError, "env: expected an id"),
        ({"seed": -1}, ValueError, "seed: expected"),
        ({"seed": "abc"}, TypeError, "seed: expected"),
        ({"seed": [1]}, TypeError, "seed: expected"),
        ({"seed": float("nan")}, TypeError, "seed: expected"),
        ({"seed": True}, TypeError, "seed: expected"),
        ({"sde_sample_freq": 0}, ValueError, "sde_sample_freq: expected -1 or an integer"),
        ({"device": 3}, TypeError, "device: expected a str"),
        ({"device": "meta"}, ValueError, "device: expected one that torch can use here"),
        ({"net_arch": (2**62,)}, MemoryError, "net_arch: expected what fits"),
        ({"n_steps": 2**62}, MemoryError, "n_steps"),
        ({"env_kwargs": [1]}, TypeError, "env_kwargs: expected a dict"),
        ({"env_kwargs": {"f": print}}, TypeError, r"env_kwargs\['f'\]: expected what JSON can"),
        ({"env_kwargs": {"num_envs": 3}}, TypeError, "env_kwargs: expected no 'num_envs'"),
        ({"runs_dir": 3}, TypeError, "runs_dir: expected a folder"),
        ({"runs_dir": __file__}, ValueError, "runs_dir: expected a folder"),
        ({"policy": "MlpPolicy"}, TypeError, "policy: expected a torch module, a function"),
        ({"n_steps": -1}, ValueError, "n_steps: expected"),
        ({"policy": nn.Linear(1, 1)}, TypeError, "policy: expected a torch module with"),
        ({"policy": MlpPolicy, "net_arch": (8,)}, TypeError, "net_arch: expected no settings"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        PPOTrainer(**{"env": "CartPole-v1", "runs_dir": None, **arguments})


@pytest.mark.parametrize("total", [0, -5, None])
def test_steps_that_make_no_sense_are_refused(total):
    with pytest.raises(ValueError, match="total_timesteps: expected an integer of at least 1"):
        small().train(total)


@pytest.mark.parametrize("total", ["100", True, [1], 1.5, 1e5, float("nan")])
def test_steps_that_are_no_number_are_refused_before_anything_is_made(tmp_path, total):
    trainer = small(runs_dir=tmp_path)
    with pytest.raises(TypeError, match="total_timesteps: expected an integer of at least 1"):
        trainer.train(total)
    assert os.listdir(tmp_path) == []
    assert trainer.timesteps == trainer.target_timesteps == 0


def test_numpys_numbers_are_settings_and_arguments_like_others(tmp_path):
    kwargs = {"g": np.float32(5.0)}
    trainer = small(
        "Pendulum-v1", np.int64(3), n_steps=np.int64(8), env_kwargs=kwargs, runs_dir=tmp_path
    )
    result = trainer.train(np.int64(1))
    config = json.loads((trainer.run.path / "config.json").read_text())
    assert (config["seed"], config["settings"]["n_steps"]) == (3, 8)
    assert config["env_kwargs"] == {"g": 5.0}
    assert PPOTrainer.load(trainer.run.path / "checkpoint").timesteps == result["timesteps"] == 16


@pytest.mark.parametrize(
    "env",
    [
        "toy/Echo-v0",
        Echo,
        lambda: Echo(n=2),
        lambda: gym.make_vec(
            "CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
        ),
        lambda: rlox.VecEnv(2, env_id="Pendulum-v1"),
    ],
    ids=["Gymnasium's id", "class", "function", "Gymnasium's vector", "native vector"],
)
def test_any_environment_can_be_trained_on(env, request):
    if "vector" in request.node.callspec.id:
        env = env()
    assert small(env=env).train(1)["timesteps"] == 32


def test_environments_get_their_arguments():
    trainer = small(env="Pendulum-v1", env_kwargs={"g": 1.0})
    assert trainer.evaluate(2) != small(env="Pendulum-v1").evaluate(2)
    assert small(env=Count, env_kwargs={"limit": 3}).train(1)["mean_length"] == 3.0


def test_predictions_are_actions():
    trainer = small(env=lambda: Echo(n=3, start=5))
    one, batch = np.eye(3, dtype=np.float32)[0], np.eye(3)
    assert trainer.predict(one) in gym.spaces.Discrete(3, start=5)
    assert trainer.predict(batch).shape == (3,)
    samples = trainer.predict(np.repeat(batch, 50, axis=0), deterministic=False)
    assert set(samples.tolist()) == {5, 6, 7}

    wide = small(env=Imitate, log_std_init=3.0)
    samples = wide.predict(np.zeros((50, 1)), deterministic=False)
    assert samples.dtype == np.float32
    assert (np.abs(samples) <= 1).all()
    assert wide.predict(np.zeros(1)).shape == (1,)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"obs: expected one observation of shape .4,?. or a batch.* shape .3,?.;"),
        (np.zeros((2, 2, 4)), r"got shape .2, 2, 4.;"),
        (0.0, r"got shape (\(\)|\[\]);"),
        ([np.nan, 0, 0, 0], "obs: expected finite numbers"),
        ("abc", "obs: expected an array of real numbers, got dtype"),
        ([[0.0] * 4, [0.0]], "obs: expected an array.*, got .*list"),
        (np.array([0, 0, 0, None]), "obs: expected an array of real numbers, got dtype object"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "torch", *network_backends()[1:]])
def test_observations_that_are_none_are_refused(obs, message, backend):
    with pytest.raises((ValueError, TypeError), match=message):
        small(backend=backend).predict(obs)


def test_evaluation_is_the_same_each_time_and_disturbs_nothing():
    trainer, other = small(), small()
    first = trainer.evaluate(5)
    assert trainer.evaluate(5) == first
    assert trainer.evaluate(5, seed=99) != first
    trainer.train(100, callbacks=[lambda trainer, metrics: trainer.evaluate(1)])
    other.train(100)
    assert equal(weights(trainer), weights(other))


def test_sampled_evaluation_is_the_same_each_time_and_disturbs_nothing():
    trainer, other = small(), small()
    first = trainer.evaluate(5, deterministic=False)
    assert trainer.evaluate(5, deterministic=False) == first
    assert trainer.evaluate(5, seed=99, deterministic=False) != first
    seeded = trainer.evaluate(5, seed=99, deterministic=False)
    assert trainer.evaluate(5, seed=np.int64(99), deterministic=False) == seeded
    assert seeded != trainer.evaluate(5, seed=99)
    assert trainer.learner.state().streams == other.learner.state().streams
    sample = lambda trainer, metrics: trainer.evaluate(1, deterministic=False)  # noqa: E731
    trainer.train(100, callbacks=[sample])
    other.train(100)
    assert equal(weights(trainer), weights(other))
    obs = np.zeros((20, 4))
    samples = [one.predict(obs, deterministic=False) for one in (trainer, other)]
    np.testing.assert_array_equal(*samples)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n_episodes": "x"}, TypeError),
        ({"n_episodes": 1.5}, TypeError),
        ({"n_episodes": True}, TypeError),
        ({"seed": "x"}, TypeError),
        ({"seed": -1}, ValueError),
        ({"env": 0}, TypeError),
        ({"env": "CartPoll-v1"}, ValueError),
    ],
)
def test_what_cannot_be_evaluated_is_named(arguments, error):
    with pytest.raises(error, match=f"{next(iter(arguments))}: expected"):
        small().evaluate(**arguments)


def test_evaluation_needs_to_know_an_environment():
    made = small(env=rlox.VecEnv(2))
    with pytest.raises(ValueError, match="env: expected an id or a function"):
        made.evaluate(1)
    assert len(made.evaluate(2, env="CartPole-v1")["returns"]) == 2


def test_a_closed_trainer_keeps_what_was_learned(tmp_path):
    with small() as trainer:
        trainer.train(64)
        obs = np.zeros((3, 4))
        before = trainer.predict(obs)
    trainer.close()  # twice is allowed
    assert trainer.env.closed
    np.testing.assert_array_equal(trainer.predict(obs), before)
    assert len(trainer.evaluate(2)["returns"]) == 2
    trainer.save(tmp_path / "saved")
    assert PPOTrainer.load(tmp_path / "saved", runs_dir=None).timesteps == 64
    with pytest.raises(rlox.ClosedError, match="trainer: expected an open one"):
        trainer.train(64)


def test_environments_that_were_given_stay_open():
    given = rlox.VecEnv(2)
    with small(env=given):
        pass
    assert not given.closed
    assert given.reset_all(seed=0).shape == (2, 4)


def test_environments_that_were_made_are_closed_also_when_the_rest_fails(monkeypatch):
    closed = []

    class Watched(Echo):
        def close(self):
            closed.append(self)

    with pytest.raises(ValueError, match="use_sde"):
        small(env=Watched, use_sde=True)
    assert len(closed) == 2
    with small(env=Watched):
        pass
    assert len(closed) == 4


def test_episodes_of_an_iteration_that_was_cut_short_are_in_the_state():
    trainer = small(env=Count, n_steps=64, backend="torch")
    trainer.train(1)
    ended = trainer.learner.episodes.count
    env, steps = trainer.env, []
    step = env.step_rollout

    def stop_after_25(*args):
        step(*args)
        steps.append(1)
        if len(steps) == 25:
            trainer.stop()

    env.step_rollout = stop_after_25
    result = trainer.train(64)
    assert result["interrupted"]
    assert trainer.timesteps == 128  # those 25 do not count
    assert trainer.learner.state().counters["episodes"]["count"] == ended + 2 * 2
    assert result["episodes"] == ended + 2 * 2
    trainer.learner.stopping = False
    trainer.learner.collect()  # 153 steps now
    assert trainer.learner.state().counters["episodes"]["count"] == 2 * 15
