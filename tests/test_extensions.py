"""Additions to rlox: an algorithm, an observation encoder, a logger and a callback."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import rlox
from rlox import ArgumentError, ArgumentTypeError
from rlox._registry import ALGORITHMS, ENCODERS, has_encoder
from rlox.callbacks import Callback
from rlox.cli import main
from rlox.features import register_encoder
from rlox.trainers import PPOTrainer, load_trainer
from support.envs import Echo
from support.reinforce import SPEC
from support.rejections import rejects


@pytest.fixture
def reinforce(monkeypatch):
    """Add the row of REINFORCE to the registry."""
    monkeypatch.setitem(ALGORITHMS, "reinforce", SPEC)


def test_algorithm_of_one_file_and_one_row_learns(reinforce):
    trainer_class = load_trainer(SPEC)
    with trainer_class(Echo, 1, num_envs=4, n_steps=20, gamma=0.0, runs_dir=None) as trainer:
        before = trainer.evaluate(10)["mean_reward"]
        trainer.train(8_000)
        assert trainer.evaluate(10)["mean_reward"] == 10.0 > before


def test_added_algorithm_saves_resumes_and_has_commands(reinforce, tmp_path, capsys):
    assert main(["train", "reinforce", "CartPole-v1", "--total-timesteps", "80", "--seed", "1",
                 "--runs-dir", str(tmp_path), "--json"]) == 0  # fmt: skip
    run = json.loads(capsys.readouterr().out)["run_dir"]
    trainer = load_trainer(SPEC).load(run, runs_dir=None)
    assert (trainer.timesteps, trainer.learner.backend) == (80, "torch")
    policy = rlox.load(run)
    obs = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(policy.predict(obs), trainer.predict(obs))


def test_algorithm_without_a_native_learner_rejects_the_native_backend(reinforce):
    with rejects(ArgumentError, "backend", got="'native'"):
        load_trainer(SPEC)(Echo, 1, backend="native", runs_dir=None)


class Angle(spaces.Box):
    """Angles in radians."""

    def __init__(self):
        super().__init__(-np.pi, np.pi, (1,), np.float32)


class AngleEncoder(nn.Module):
    """Sine and cosine of an angle."""

    features_dim = 2

    def forward(self, obs):
        return torch.cat((obs.sin(), obs.cos()), 1)


class Turn(gym.Env):
    """Reward 1 for choosing the side of a random angle; an episode has 10 steps."""

    observation_space = Angle()
    action_space = spaces.Discrete(2)

    def _observe(self):
        self.angle = self.np_random.uniform(-np.pi, np.pi, 1).astype(np.float32)
        return self.angle

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        reward = float(action == (np.sin(self.angle[0]) > 0))
        self.steps += 1
        return self._observe(), reward, False, self.steps == 10, {}


def test_encoder_of_a_space_type_is_used_and_learns(monkeypatch):
    monkeypatch.setitem(ENCODERS, Angle, None)  # restores the registry after the test
    register_encoder(Angle, lambda space: AngleEncoder())
    settings = {"num_envs": 4, "n_steps": 64, "gamma": 0.0, "learning_rate": 3e-3}
    with PPOTrainer(Turn, 1, runs_dir=None, **settings) as trainer:
        assert trainer.learner.backend == "torch"
        assert trainer.learner.policy.actor[0].in_features == 2
        trainer.train(6_000)
        assert trainer.evaluate(20)["mean_reward"] > 9.0


class LinearEncoder(nn.Linear):
    """Linear features, whose weights come from torch's global generator."""

    def __init__(self, space):
        super().__init__(4, 8)
        self.features_dim = 8


@pytest.fixture
def linear_encoder(monkeypatch):
    """Register `LinearEncoder` for Box spaces."""
    monkeypatch.setitem(ENCODERS, spaces.Box, LinearEncoder)


SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 8}


def test_seed_determines_the_weights_of_an_encoder(linear_encoder):
    state = torch.get_rng_state()
    trainers = [PPOTrainer("CartPole-v1", 1, runs_dir=None, **SMALL) for _ in range(2)]
    first, second = (trainer.learner.policy.actor[0].weight for trainer in trainers)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("part", [spaces.Dict({"x": spaces.Box(0, 1, (4,))}), spaces.Tuple([spaces.Box(0, 1, (4,))])])
def test_encoder_of_a_part_is_found(part, linear_encoder):
    assert has_encoder(part)
    assert not has_encoder(spaces.Tuple([spaces.Discrete(2)]))


def test_checkpoint_of_an_encoder_names_the_missing_encoder(linear_encoder, monkeypatch, tmp_path):
    trainer = PPOTrainer("CartPole-v1", 1, runs_dir=None, **SMALL)
    trainer.save(tmp_path / "saved")
    obs = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(rlox.load(tmp_path / "saved").predict(obs), trainer.predict(obs))
    assert PPOTrainer.load(tmp_path / "saved", runs_dir=None).timesteps == 0
    monkeypatch.delitem(ENCODERS, spaces.Box)
    monkeypatch.setitem(ENCODERS, Angle, LinearEncoder)  # does not apply to the environment
    for load in (rlox.load, PPOTrainer.load):
        with rejects(ArgumentError, "features_extractor"):
            load(tmp_path / "saved")


@pytest.mark.processes
def test_worker_processes_use_registered_encoders(linear_encoder):
    results = rlox.train_many("ppo", "CartPole-v1", [1], 64, processes=True, runs_dir=None, **SMALL)
    expected = PPOTrainer("CartPole-v1", 1, runs_dir=None, **SMALL).train(64)
    assert results[0]["mean_reward"] == expected["mean_reward"]


@pytest.mark.parametrize(
    ("arguments", "argument"), [((LinearEncoder, spaces.Box), "space_type"), ((spaces.Box, None), "encoder")]
)
def test_invalid_encoders_are_rejected(arguments, argument):
    with rejects(ArgumentTypeError, argument):
        register_encoder(*arguments)


class LastRow:
    """Logger that keeps the last row."""

    def start(self, info):
        self.name = f"{info.algorithm} {info.task}"

    def log(self, metrics, step):
        self.row = {**metrics, "step": step}

    def finish(self, result):
        self.result = result


class StopAtStep(Callback):
    """Callback that ends the run after a number of steps."""

    def __init__(self, step):
        self.step = step

    def on_iteration(self, run, metrics):
        metrics["custom/remaining_steps"] = self.step - run.budget_used
        if run.budget_used >= self.step:
            run.stop("enough steps")


def test_logger_and_callback_of_one_class_each_take_part_in_a_run():
    logger = LastRow()
    trainer = PPOTrainer("CartPole-v1", 1, num_envs=2, n_steps=16, batch_size=8, runs_dir=None)
    result = trainer.train(320, callbacks=[StopAtStep(64)], loggers=[logger])
    assert (result["stopped_by"], result["timesteps"]) == ("enough steps", 64)
    assert (logger.name, logger.row["step"]) == ("ppo CartPole-v1", 64)
    assert logger.row["custom/remaining_steps"] == 0
    assert logger.result == result
