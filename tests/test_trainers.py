"""Trainers: arguments, results, evaluation and closing."""

import json
import os
import sys

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

import rlox
from rlox import ArgumentError, ArgumentTypeError, CorruptFileError, NonFiniteError, OutOfMemoryError, checkpoint
from rlox._rlox import network_backends
from rlox.policies import MlpPolicy
from rlox.trainers import DQNTrainer, PPOTrainer, Trainer
from support.envs import Count, Echo, Imitate
from support.rejections import rejects
from support.runs import small


def test_train_makes_at_least_total_timesteps_and_returns_the_count():
    trainer = small()
    assert trainer.train(total_timesteps=100)["timesteps"] == 128
    assert trainer.train(total_timesteps=1)["timesteps"] == 160
    assert trainer.timesteps == 160


def test_mean_reward_averages_the_last_hundred_episodes():
    result = small(env=Count).train(1)
    assert (result["mean_reward"], result["mean_length"], result["episodes"]) == (10.0, 10.0, 2)
    assert np.isnan(small(env=lambda: Count(limit=50)).train(1)["mean_reward"])


def test_settings_come_from_arguments_then_rl_zoo3_then_defaults():
    trainer = PPOTrainer(env="CartPole-v1", seed=0, gamma=0.9, runs_dir=None)
    assert (trainer.config.gamma, trainer.config_sources["gamma"]) == (0.9, "argument")
    assert (trainer.config.n_steps, trainer.config_sources["n_steps"]) == (32, "rl-zoo3")
    assert (trainer.config.vf_coef, trainer.config_sources["vf_coef"]) == (0.5, "default")
    prefixed = PPOTrainer(env="rlox/CartPole-v1", seed=0, runs_dir=None)
    assert prefixed.config.n_steps == 32
    assert PPOTrainer(env=Count, seed=0, runs_dir=None).config.n_steps == 2048


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"seed": "abc"}, ArgumentTypeError),
        ({"seed": True}, ArgumentTypeError),
        ({"sde_sample_freq": 0}, ArgumentError),
        ({"device": 3}, ArgumentTypeError),
        ({"device": "meta"}, ArgumentError),
        ({"net_arch": (2**62,)}, OutOfMemoryError),
        ({"n_steps": 2**62}, OutOfMemoryError),
        ({"n_steps": -1}, ArgumentError),
        ({"runs_dir": 3}, ArgumentTypeError),
        ({"policy": "MlpPolicy"}, ArgumentTypeError),
        ({"policy": nn.Linear(1, 1)}, ArgumentTypeError),
        ({"net_arch": (8,), "policy": MlpPolicy}, ArgumentTypeError),
    ],
    ids=str,
)
def test_trainers_reject_invalid_arguments(arguments, error):
    with rejects(error, next(iter(arguments))):
        PPOTrainer(**{"env": "CartPole-v1", "runs_dir": None, **arguments})


@pytest.mark.parametrize("total", [0, None, "100", True, 1e5, float("nan")])
def test_train_rejects_invalid_total_timesteps_before_creating_a_run_folder(tmp_path, total):
    trainer = small(runs_dir=tmp_path)
    with rejects(ArgumentTypeError if total else ArgumentError, "total_timesteps"):
        trainer.train(total)
    assert os.listdir(tmp_path) == []
    assert trainer.timesteps == trainer.run.budget_end == 0


def test_trainers_accept_numpy_numbers(tmp_path):
    kwargs = {"g": np.float32(5.0)}
    trainer = small("Pendulum-v1", np.int64(3), n_steps=np.int64(8), env_kwargs=kwargs, runs_dir=tmp_path)
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
        gym.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": "SameStep"}),
        rlox.VecEnv(2, env_id="Pendulum-v1"),
    ],
    ids=["Gymnasium's id", "class", "function", "Gymnasium's vector", "native vector"],
)
def test_trainers_accept_any_kind_of_environment(env):
    with small(env=env) as trainer:
        assert trainer.train(1)["timesteps"] == 32
    if isinstance(env, gym.vector.VectorEnv):  # environments that were passed stay open
        assert not env.closed


def test_predict_returns_actions_of_the_space():
    trainer = small(env=lambda: Echo(n=3, start=5))
    single, batch = np.eye(3, dtype=np.float32)[0], np.eye(3)
    assert trainer.predict(single) in gym.spaces.Discrete(3, start=5)
    assert trainer.predict(batch).shape == (3,)
    samples = trainer.predict(np.repeat(batch, 50, axis=0), deterministic=False)
    assert set(samples.tolist()) == {5, 6, 7}

    wide = small(env=Imitate, log_std_init=3.0)
    samples = wide.predict(np.zeros((50, 1)), deterministic=False)
    assert samples.dtype == np.float32
    assert (np.abs(samples) <= 1).all()
    assert wide.predict(np.zeros(1)).shape == (1,)


@pytest.mark.parametrize(
    "obs",
    [np.zeros(3), np.zeros((2, 2, 4)), 0.0, [np.nan, 0, 0, 0], "abc", [[0.0] * 4, [0.0]]],
    ids=["width", "rank", "scalar", "NaN", "text", "ragged"],
)
@pytest.mark.parametrize("backend", [*network_backends(), "torch"])
def test_predict_rejects_invalid_observations(obs, backend):
    with pytest.raises((ArgumentError, ArgumentTypeError, NonFiniteError)) as raised:
        small(backend=backend).predict(obs)
    assert raised.value.argument == "obs"


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_is_repeatable_and_changes_nothing(deterministic):
    trainer, other = small(), small()
    options = {"deterministic": deterministic}
    first = trainer.evaluate(5, **options)
    assert trainer.evaluate(5, **options) == first
    seeded = trainer.evaluate(5, seed=99, **options)
    assert trainer.evaluate(5, seed=np.int64(99), **options) == seeded != first
    assert seeded != trainer.evaluate(5, seed=99, deterministic=not deterministic)
    assert trainer.learner.state().streams == other.learner.state().streams
    trainer.train(100, callbacks=[lambda run, metrics: run.evaluate(1, **options)])
    other.train(100)
    np.testing.assert_equal(*(each.learner.state().networks for each in (trainer, other)))
    obs = np.zeros((20, 4))
    np.testing.assert_array_equal(*(each.predict(obs, **options) for each in (trainer, other)))


def test_evaluate_requires_an_environment_that_can_be_created():
    trainer = small(env=rlox.VecEnv(2))
    with rejects(ArgumentError, "env", "pass env=", got="None"):
        trainer.evaluate(1)
    assert len(trainer.evaluate(2, env="CartPole-v1")["returns"]) == 2


def test_closed_trainer_can_predict_evaluate_and_save(tmp_path):
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


def test_trainer_closes_created_environments_also_after_an_error(monkeypatch):
    closed = []

    class CloseRecorder(Echo):
        def close(self):
            closed.append(self)

    with rejects(ArgumentError, "use_sde", "set use_sde=False"):
        small(env=CloseRecorder, use_sde=True)
    assert len(closed) == 2
    with small(env=CloseRecorder):
        pass
    assert len(closed) == 4


def test_state_includes_episodes_of_an_interrupted_iteration():
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
    assert trainer.timesteps == 128  # the 25 steps do not count
    assert trainer.learner.state().counters["episodes"]["count"] == ended + 2 * 2
    assert result["episodes"] == ended + 2 * 2
    trainer.learner.stop_requested = False
    trainer.learner.collect()  # 153 steps in total
    assert trainer.learner.state().counters["episodes"]["count"] == 2 * 15


def test_loading_a_checkpoint_imports_no_module(tmp_path, monkeypatch):
    module = tmp_path / "third_party.py"
    module.write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('ThirdParty-v0', CartPoleEnv, max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"num_envs": 4, "n_steps": 16, "runs_dir": None, "backend": "torch"}
    trainer = PPOTrainer("third_party:ThirdParty-v0", 1, **settings)
    trainer.save(tmp_path / "saved")
    assert PPOTrainer.load(tmp_path / "saved", runs_dir=None).run.env_source.id == "ThirdParty-v0"

    saved = checkpoint.read_checkpoint(tmp_path / "saved")
    checkpoint.write_checkpoint(
        tmp_path / "crafted", {**saved.manifest, "env": "third_party:ThirdParty-v0"}, saved.members
    )
    del sys.modules["third_party"], gym.registry["ThirdParty-v0"]
    file = str(tmp_path / "crafted" / "manifest.json")
    with rejects(CorruptFileError, file, section="manifest"):
        PPOTrainer.load(tmp_path / "crafted")
    with rejects(ArgumentError, "env", "import its module", got="'ThirdParty-v0'"):
        PPOTrainer.load(tmp_path / "saved")
    assert "third_party" not in sys.modules


def test_load_uses_the_saved_env_kwargs_unless_the_environment_is_another_one(tmp_path):
    def make(g=10.0):
        return gym.make("Pendulum-v1", g=g)

    def gravity(**arguments):
        return PPOTrainer.load(tmp_path / "saved", runs_dir=None, **arguments).env.unwrapped.envs[0].unwrapped.g

    settings = {"env_kwargs": {"g": 1.0}, "runs_dir": None, "num_envs": 1}
    PPOTrainer(make, 1, **settings).save(tmp_path / "saved")
    assert (gravity(env=make), gravity(env=make, env_kwargs={"g": 2.0}), gravity(env=make())) == (1.0, 2.0, 10.0)
    settings["env_kwargs"]["vectorization_mode"] = "sync"
    PPOTrainer("Pendulum-v1", 1, **settings).save(tmp_path / "saved")
    assert (gravity(), gravity(env=make)) == (1.0, 10.0)
    assert gravity(env_kwargs={"g": 3.0, "vectorization_mode": "sync"}) == 3.0


def test_the_base_class_loads_checkpoints_of_all_algorithms_and_has_no_trainers_of_its_own(tmp_path):
    with rejects(ArgumentTypeError, "Trainer"):
        Trainer("CartPole-v1")
    for cls in (PPOTrainer, DQNTrainer):
        cls("CartPole-v1", 1, runs_dir=None, num_envs=1).save(tmp_path / "saved")
        assert type(Trainer.load(tmp_path / "saved", runs_dir=None)) is cls
    checkpoint.write_checkpoint(tmp_path / "other", {"algorithm": ["ppo"]}, {})
    with rejects(ArgumentError, str(tmp_path / "other"), got="a checkpoint of ['ppo']"):
        Trainer.load(tmp_path / "other")
