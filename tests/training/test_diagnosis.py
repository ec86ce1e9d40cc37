"""Diagnosis folder of a run that NaN or infinity ended."""

import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlox import NonFiniteError
from rlox._finite import check_finite
from rlox._training.diagnosis import write_diagnosis_on_error
from rlox.checkpoint import read_checkpoint
from rlox.learners import MEMBERS
from rlox.trainers import DQNTrainer, SACTrainer
from support.envs import Breaking
from support.rejections import rejects
from support.runs import small

BACKENDS = pytest.mark.parametrize("backend", ["native", "torch"])


class NonFiniteEnv(gym.Env):
    """Return a value in the observation or as the reward of step 38."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, part="reward", value=np.nan):
        self.part, self.value, self.steps = part, value, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        is_non_finite = self.steps == 38
        obs = np.full(2, self.value if is_non_finite and self.part == "obs" else 0.5, np.float32)
        reward = self.value if is_non_finite and self.part == "reward" else 1.0
        return obs, reward, self.steps % 10 == 0, False, {}


class NonFiniteBoxEnv(NonFiniteEnv):
    action_space = gym.spaces.Box(-1, 1, (1,))


def read_report(trainer):
    return json.loads((trainer.run.path / "diagnosis/error.json").read_text())


@BACKENDS
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("part", ["obs", "reward"])
def test_non_finite_values_of_environments_are_located_and_reported(tmp_path, backend, part, value):
    env_kwargs = {"part": part, "value": value}
    trainer = small(lambda: NonFiniteEnv(**env_kwargs), backend=backend, runs_dir=tmp_path)
    argument = {"obs": "obs", "reward": "rewards"}[part]
    with rejects(NonFiniteError, argument, got=str(value), env=0, step=38) as raised:
        trainer.train(1_000)
    folder = trainer.run.path / "diagnosis"
    assert raised.value.diagnosis == str(folder)
    report = read_report(trainer)
    raised.value.diagnosis = None
    assert report["message"] == str(raised.value)
    assert (report["timesteps"], report["error"]) == (64, "NonFiniteError")
    assert (report["argument"], report["env"], report["step"]) == (argument, 0, 38)
    assert read_checkpoint(folder / "checkpoint").manifest["counters"]["timesteps"] == 64
    assert not (trainer.run.path / "checkpoint").exists()


def test_non_finite_tensors_are_reported(tmp_path):
    trainer, name = small(backend="torch", runs_dir=tmp_path), "critic.0.weight"

    def set_nan(run, metrics):
        with torch.no_grad():
            dict(run.learner.policy.named_parameters())[name][1, 2] = torch.nan

    with rejects(NonFiniteError, "values", got="nan", env=0, step=16) as raised:
        trainer.train(1_000, callbacks=[set_nan])
    assert raised.value.diagnosis == str(trainer.run.path / "diagnosis")
    (tensor,) = read_report(trainer)["not_finite"]
    expected = {"name": f"networks.{name}", "shape": [64, 4], "count": 1, "first_at": [1, 2]}
    assert tensor == {**expected, "first": "nan"}


@BACKENDS
def test_diverging_losses_are_reported(tmp_path, backend):
    settings = {"num_envs": 1, "learning_starts": 8, "learning_rate": 1e30, "backend": backend}
    trainer = DQNTrainer(lambda: NonFiniteEnv("reward", 1e38), 0, runs_dir=tmp_path, **settings)
    with pytest.raises(NonFiniteError) as raised:
        trainer.train(5_000)
    assert raised.value.diagnosis == str(trainer.run.path / "diagnosis")
    assert read_report(trainer)["timesteps"] > 8
    assert not (trainer.run.path / "diagnosis/checkpoint/replay.safetensors").exists()


@BACKENDS
def test_non_finite_rewards_of_off_policy_algorithms_are_reported(tmp_path, backend):
    trainer = SACTrainer(NonFiniteBoxEnv, 0, num_envs=1, backend=backend, runs_dir=tmp_path)
    with rejects(NonFiniteError, "rewards", got="nan", env=0, step=38) as raised:
        trainer.train(100)
    assert raised.value.diagnosis == str(trainer.run.path / "diagnosis")
    assert read_report(trainer)["timesteps"] == 37


def block_folder(run, metrics):
    (run.path / "diagnosis").write_text("mine")


@pytest.mark.parametrize("write", [False, True], ids=["no folder", "blocked folder"])
def test_error_is_raised_without_a_writable_diagnosis_folder(tmp_path, write):
    trainer = small(env=NonFiniteEnv, runs_dir=tmp_path if write else None)
    with rejects(NonFiniteError, "rewards", diagnosis=None):
        trainer.train(1_000, callbacks=[block_folder] if write else [])


def test_other_errors_are_not_reported(tmp_path):
    trainer = small(env=Breaking, runs_dir=tmp_path)
    with pytest.raises(ArithmeticError, match="broke"):
        trainer.train(1_000)
    assert not (trainer.run.path / "diagnosis").exists()


def test_error_without_hint_names_the_diagnosis_folder(tmp_path):
    learner = SimpleNamespace(state=lambda replay: SimpleNamespace(**dict.fromkeys(MEMBERS)))
    run = SimpleNamespace(path=tmp_path, budget_used=1, learner=learner, save=lambda *a, **k: None)
    folder = str(tmp_path / "diagnosis")
    error = NonFiniteError("obs", "finite numbers", "NaN")
    with rejects(NonFiniteError, "obs", None, diagnosis=folder), write_diagnosis_on_error(run):
        raise error
    assert str(error).endswith(f"; see {folder}")


def test_non_finite_loss_error_has_timesteps_of_all_environments():
    with rejects(NonFiniteError, "loss", got="nan", step=None, timesteps=192):
        check_finite({"loss": np.nan}, timesteps=192)
