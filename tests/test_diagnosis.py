"""The `diagnosis` folder of a run that NaN or infinity ended."""

import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlox import NonFiniteError
from rlox.checkpoint import read_checkpoint
from rlox.diagnosis import write_diagnosis_on_error
from rlox.finite import refuse_spoiled
from rlox.learner import MEMBERS
from rlox.trainers import DQNTrainer, SACTrainer
from support.envs import Breaking
from support.runs import small

BACKENDS = pytest.mark.parametrize("backend", ["native", "torch"])


class Spoiling(gym.Env):
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
        bad = self.steps == 38
        obs = np.full(2, self.value if bad and self.part == "obs" else 0.5, np.float32)
        reward = self.value if bad and self.part == "reward" else 1.0
        return obs, reward, self.steps % 10 == 0, False, {}


class SpoilingBox(Spoiling):
    action_space = gym.spaces.Box(-1, 1, (1,))


def report(trainer):
    return json.loads((trainer.run.path / "diagnosis/error.json").read_text())


@BACKENDS
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("part", ["obs", "reward"])
def test_values_of_environments_are_located_and_reported(tmp_path, backend, part, value):
    env_kwargs = {"part": part, "value": value}
    trainer = small(lambda: Spoiling(**env_kwargs), backend=backend, runs_dir=tmp_path)
    with pytest.raises(NonFiniteError) as raised:
        trainer.train(1_000)
    folder = trainer.run.path / "diagnosis"
    text = str(raised.value)
    assert text.endswith(f"; see {folder}")
    for words in (part, str(value), "environment 0", "step 3"):
        assert words in text
    found = report(trainer)
    assert found["message"] in text
    assert (found["timesteps"], found["error"]) == (64, "NonFiniteError")
    assert read_checkpoint(folder / "checkpoint").manifest["counters"]["timesteps"] == 64
    assert not (trainer.run.path / "checkpoint").exists()


def test_tensors_that_are_not_finite_are_reported(tmp_path):
    trainer, name = small(backend="torch", runs_dir=tmp_path), "critic.0.weight"

    def spoil(trainer, metrics):
        with torch.no_grad():
            dict(trainer.learner.policy.named_parameters())[name][1, 2] = torch.nan

    with pytest.raises(FloatingPointError, match=r"values: expected finite numbers.*diagnosis"):
        trainer.train(1_000, callbacks=[spoil])
    (tensor,) = report(trainer)["not_finite"]
    expected = {"name": f"networks.{name}", "shape": [64, 4], "count": 1, "first_at": [1, 2]}
    assert tensor == {**expected, "first": "nan"}


@BACKENDS
def test_diverging_losses_are_reported(tmp_path, backend):
    settings = {"num_envs": 1, "learning_starts": 8, "learning_rate": 1e30, "backend": backend}
    trainer = DQNTrainer(lambda: Spoiling("reward", 1e38), 0, runs_dir=tmp_path, **settings)
    with pytest.raises((FloatingPointError, ValueError), match=r"diagnosis$"):
        trainer.train(5_000)
    assert report(trainer)["timesteps"] > 8
    assert not (trainer.run.path / "diagnosis/checkpoint/replay.safetensors").exists()


@BACKENDS
def test_rewards_of_off_policy_methods_are_reported(tmp_path, backend):
    trainer = SACTrainer(SpoilingBox, 0, num_envs=1, backend=backend, runs_dir=tmp_path)
    with pytest.raises(ValueError, match=r"^rewards: .*diagnosis$"):
        trainer.train(100)
    assert report(trainer)["timesteps"] == 37


def block(trainer, metrics):
    (trainer.run.path / "diagnosis").write_text("mine")


@pytest.mark.parametrize("write", [False, True], ids=["no folder", "blocked folder"])
def test_error_is_raised_where_nothing_can_be_reported(tmp_path, write):
    trainer = small(env=Spoiling, runs_dir=tmp_path if write else None)
    with pytest.raises(NonFiniteError, match=r"^rewards: expected finite numbers") as raised:
        trainer.train(1_000, callbacks=[block] if write else [])
    assert "diagnosis" not in str(raised.value)


def test_other_errors_are_not_reported(tmp_path):
    trainer = small(env=Breaking, runs_dir=tmp_path)
    with pytest.raises(ArithmeticError, match="broke"):
        trainer.train(1_000)
    assert not (trainer.run.path / "diagnosis").exists()


def test_diagnosis_is_named_where_an_error_has_no_hint(tmp_path):
    learner = SimpleNamespace(state=lambda replay: SimpleNamespace(**dict.fromkeys(MEMBERS)))
    trainer = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path), timesteps=1, learner=learner, save=lambda *a, **k: None
    )
    with pytest.raises(NonFiniteError) as raised, write_diagnosis_on_error(trainer):
        raise NonFiniteError("obs", "finite numbers", "NaN")
    assert raised.value.hint is None
    assert str(raised.value) == f"obs: expected finite numbers, got NaN; see {tmp_path}/diagnosis"


def test_loss_that_is_not_finite_names_timesteps_of_all_environments():
    with pytest.raises(NonFiniteError) as raised:
        refuse_spoiled({"loss": np.nan}, timesteps=192)
    assert (raised.value.step, raised.value.timesteps) == (None, 192)
