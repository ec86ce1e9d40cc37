"""Calls of trainers, presets, checkpoints and the SB3 facade that are rejected."""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlox import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CorruptFileError,
    NonFiniteError,
    exporting,
    interchange,
    load,
    plotting,
    presets,
    sb3,
)
from rlox.callbacks import ProgressBar, VideoRecordingCallback
from rlox.noise import GaussianNoise
from rlox.sweep import Plan, Range, Sweep
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.refusals import expect_refusal, refusals

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
PLAN = Plan("ppo", "CartPole-v1", {"gamma": Range(0.9, 1.0)}, 9, 9)
TENSORBOARD = "torch.utils.tensorboard tensorboard tensorboard.summary.writer.event_file_writer"


class Here(NamedTuple):
    """An empty folder, and a checkpoint of PPO on CartPole."""

    path: Path
    saved: Path


class Pictures(gym.Env):
    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(2)


class Broken(gym.Env):
    """Returns NaN rewards."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float("nan"), False, False, {}


def small(runs_dir=None):
    return PPOTrainer("CartPole-v1", 1, runs_dir=runs_dir, **SMALL)


def closed():
    trainer = small()
    trainer.close()
    return trainer


def file(here):
    (here.path / "file").write_text("mine")
    return here.path / "file"


def folder(here):
    (here.path / "mine").mkdir()
    (here.path / "mine/work.txt").write_text("mine")
    return here.path / "mine"


def damaged(here):
    copy = shutil.copytree(here.saved, here.path / "damaged")
    networks = copy / "networks.safetensors"
    networks.write_bytes(networks.read_bytes()[:-1])
    return copy


def without(names, call, *args, **keywords):
    """Call a function while modules cannot be imported."""
    with mock.patch.dict(sys.modules, dict.fromkeys(names.split())):
        return call(*args, **keywords)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    trainer = small(tmp_path_factory.mktemp("trained"))
    trainer.train(64)
    return trainer.run.path


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, trained / "checkpoint")


@refusals(
    (
        "unknown setting",
        lambda here: PPOTrainer("CartPole-v1", gama=0.9),
        ArgumentTypeError,
        "PPOTrainer",
        "did you mean 'gamma'?",
    ),
    (
        "setting of Stable-Baselines3",
        lambda here: PPOTrainer("CartPole-v1", policy_kwargs={"net_arch": [64]}),
        ArgumentTypeError,
        "PPOTrainer",
    ),
    (
        "setting of another algorithm",
        lambda here: PPOTrainer("CartPole-v1", buffer_size=10000),
        ArgumentTypeError,
        "PPOTrainer",
    ),
    (
        "constructor with total_timesteps",
        lambda here: PPOTrainer("CartPole-v1", total_timesteps=1000),
        ArgumentTypeError,
        "PPOTrainer",
    ),
    ("train with gamma", lambda here: small().train(64, gamma=0.9), TypeError, "gamma"),
    (
        "n_steps=128.0",
        lambda here: PPOTrainer("CartPole-v1", n_steps=128.0),
        ArgumentTypeError,
        "n_steps",
        "pass 128",
    ),
    ("train(1e5)", lambda here: small().train(100000.0), ArgumentTypeError, "total_timesteps"),
    ("train(0)", lambda here: small().train(0), ArgumentError, "total_timesteps"),
    ("train() of a new trainer", lambda here: small().train(), ArgumentError, "total_timesteps"),
    (
        "learning_rate='3e-4'",
        lambda here: PPOTrainer("CartPole-v1", learning_rate="3e-4"),
        ArgumentTypeError,
        "learning_rate",
    ),
    ("gamma=1.5", lambda here: PPOTrainer("CartPole-v1", gamma=1.5), ArgumentError, "gamma"),
    (
        "learning_rate=nan",
        lambda here: PPOTrainer("CartPole-v1", learning_rate=float("nan")),
        ArgumentError,
        "learning_rate",
    ),
    (
        "learning_rate=-1e-3",
        lambda here: A2CTrainer("CartPole-v1", learning_rate=-0.001),
        ArgumentError,
        "learning_rate",
    ),
    (
        "batch_size above the rollout",
        lambda here: PPOTrainer("CartPole-v1", num_envs=2, n_steps=8, batch_size=64),
        ArgumentError,
        "batch_size",
    ),
    (
        "batch_size above buffer_size",
        lambda here: DQNTrainer("CartPole-v1", buffer_size=50, batch_size=64),
        ArgumentError,
        "batch_size",
    ),
    (
        "normalize_obs='yes'",
        lambda here: PPOTrainer("CartPole-v1", normalize_obs="yes"),
        ArgumentError,
        "normalize_obs",
    ),
    (
        "activation='sigmoid'",
        lambda here: PPOTrainer("CartPole-v1", activation="sigmoid"),
        ArgumentError,
        "activation",
    ),
    (
        "lr_schedule='cosine'",
        lambda here: PPOTrainer("CartPole-v1", lr_schedule="cosine"),
        ArgumentError,
        "lr_schedule",
    ),
    (
        "net_arch=(64, 0)",
        lambda here: PPOTrainer("CartPole-v1", net_arch=(64, 0)),
        ArgumentError,
        "net_arch",
    ),
    (
        "utd_ratio and gradient_steps",
        lambda here: SACTrainer("Pendulum-v1", utd_ratio=0.5, gradient_steps=2),
        ArgumentError,
        "utd_ratio",
    ),
    (
        "train_freq in episodes",
        lambda here: TD3Trainer("Pendulum-v1", num_envs=2, train_freq=(1, "episode")),
        ArgumentError,
        "train_freq",
    ),
    (
        "her and n_steps=3",
        lambda here: SACTrainer("Pendulum-v1", her="future", n_steps=3),
        ArgumentError,
        "n_steps",
    ),
    (
        "use_sde_at_warmup alone",
        lambda here: SACTrainer("Pendulum-v1", use_sde_at_warmup=True),
        ArgumentError,
        "use_sde_at_warmup",
        "set use_sde=True",
    ),
    ("seed=-1", lambda here: PPOTrainer("CartPole-v1", seed=-1), ArgumentError, "seed"),
    ("seed=1.0", lambda here: PPOTrainer("CartPole-v1", seed=1.0), ArgumentTypeError, "seed"),
    (
        "backend='jax'",
        lambda here: PPOTrainer("CartPole-v1", backend="jax"),
        ArgumentError,
        "backend",
    ),
    (
        "native on cuda",
        lambda here: PPOTrainer("CartPole-v1", backend="native", device="cuda"),
        ArgumentError,
        "device",
        'pass backend="torch"',
    ),
    (
        "GaussianNoise(-0.1)",
        lambda here: TD3Trainer("Pendulum-v1", action_noise=GaussianNoise(-0.1)),
        ArgumentError,
        "sigma",
    ),
    (
        "action_noise=0.1",
        lambda here: TD3Trainer("Pendulum-v1", action_noise=0.1),
        ArgumentTypeError,
        "action_noise",
    ),
    (
        "unknown env id",
        lambda here: PPOTrainer("CartPol-v1"),
        ArgumentError,
        "env",
        "did you mean 'CartPole-v1'",
    ),
    (
        "arguments of Stable-Baselines3",
        lambda here: PPOTrainer("MlpPolicy", "CartPole-v1"),
        ArgumentTypeError,
        "seed",
    ),
    (
        "unknown env_kwargs",
        lambda here: PPOTrainer("Pendulum-v1", env_kwargs={"gravity": 9.8}),
        ArgumentError,
        "env arguments",
    ),
    (
        "g='moon'",
        lambda here: PPOTrainer("Pendulum-v1", env_kwargs={"g": "moon"}),
        ArgumentTypeError,
        "g",
    ),
    (
        "num_envs in env_kwargs",
        lambda here: PPOTrainer("Pendulum-v1", env_kwargs={"num_envs": 4}),
        ArgumentTypeError,
        "env_kwargs",
    ),
    (
        "env_kwargs=[1]",
        lambda here: PPOTrainer("Pendulum-v1", env_kwargs=[1]),
        ArgumentTypeError,
        "env_kwargs",
    ),
    (
        "object in env_kwargs",
        lambda here: PPOTrainer("Pendulum-v1", env_kwargs={"g": object()}),
        ArgumentTypeError,
        "env_kwargs['g']",
    ),
    (
        "DQN with Box actions",
        lambda here: DQNTrainer("Pendulum-v1", runs_dir=None),
        ArgumentError,
        "action space",
        "use SAC, TD3, PPO or A2C",
    ),
    (
        "SAC with Discrete actions",
        lambda here: SACTrainer("CartPole-v1", runs_dir=None),
        ArgumentError,
        "action space",
        "use DQN, PPO or A2C",
    ),
    (
        "native with images",
        lambda here: PPOTrainer(Pictures, backend="native", runs_dir=None),
        ArgumentError,
        "observation space",
        'pass backend="torch"',
    ),
    ("env=3", lambda here: PPOTrainer(3), ArgumentTypeError, "env"),
    (
        "NaN reward",
        lambda here: PPOTrainer(Broken, runs_dir=None, **SMALL).train(64),
        NonFiniteError,
        "rewards",
    ),
    (
        "sb3: unknown keyword",
        lambda here: sb3.PPO("MlpPolicy", "CartPole-v1", gama=0.9),
        ArgumentTypeError,
        "PPO",
        "did you mean 'gamma'?",
    ),
    (
        "sb3: unknown policy",
        lambda here: sb3.PPO("MlpLstmPolicy", "CartPole-v1"),
        ArgumentError,
        "policy",
    ),
    (
        "sb3: unknown policy_kwargs",
        lambda here: sb3.PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_ach": [8]}),
        ArgumentTypeError,
        "policy_kwargs",
        "did you mean 'net_arch'?",
    ),
    (
        "sb3: missing model",
        lambda here: sb3.PPO.load(here.path / "nowhere"),
        FileNotFoundError,
        "path",
    ),
    (
        "unknown preset",
        lambda here: presets.show("ppo", "CartPole"),
        ArgumentError,
        "env_id",
        "did you mean 'CartPole-v1'?",
    ),
    (
        "unknown algorithm",
        lambda here: presets.show("pp", "CartPole-v1"),
        ArgumentError,
        "algorithm",
        "did you mean 'ppo'?",
    ),
    ("load: missing folder", lambda here: load(here.path / "nowhere"), FileNotFoundError, "path"),
    ("load: empty folder", lambda here: load(here.path), FileNotFoundError, "path"),
    ("load: file", lambda here: load(file(here)), FileNotFoundError, "path"),
    ("load(3)", lambda here: load(3), ArgumentTypeError, "path"),
    ("load with env", lambda here: load(here.saved, env="CartPole-v1"), TypeError, "env"),
    (
        "load: damaged file",
        lambda here: load(damaged(here)),
        CorruptFileError,
        "networks.safetensors",
    ),
    ("load: other algorithm", lambda here: A2CTrainer.load(here.saved), ArgumentError, "path"),
    (
        "load: other environment",
        lambda here: PPOTrainer.load(here.saved, env="Pendulum-v1", runs_dir=None),
        ArgumentError,
        "path",
    ),
    (
        "load: unknown backend",
        lambda here: load(here.saved, backend="jax"),
        ArgumentError,
        "backend",
    ),
    (
        "predict: wrong shape",
        lambda here: load(here.saved).predict([0.0] * 3),
        ArgumentError,
        "obs",
    ),
    (
        "predict: NaN",
        lambda here: load(here.saved).predict([float("nan")] * 4),
        NonFiniteError,
        "obs",
    ),
    ("predict: text", lambda here: load(here.saved).predict("left"), ArgumentTypeError, "obs"),
    (
        "predict: unknown keyword",
        lambda here: load(here.saved).predict([0.0] * 4, determinstic=True),
        TypeError,
        "determinstic",
    ),
    (
        "save_safetensors(3)",
        lambda here: exporting.save_safetensors(3, here.path / "a"),
        ArgumentTypeError,
        "policy",
    ),
    ("save over other files", lambda here: small().save(folder(here)), FileExistsError, "path"),
    ("save below a file", lambda here: small().save(file(here) / "saved"), FileExistsError, "path"),
    (
        "runs_dir below a file",
        lambda here: PPOTrainer("CartPole-v1", runs_dir=file(here) / "runs"),
        ArgumentError,
        "runs_dir",
    ),
    (
        "runs_dir in /proc",
        lambda here: small(runs_dir="/proc/self/runs").train(64),
        ArgumentError,
        "runs_dir",
    ),
    ("train after close", lambda here: closed().train(64), ClosedError, "trainer"),
)
def test_trainer_rejects_invalid_calls(refusal, here):
    expect_refusal(refusal, here)


@refusals(
    (
        "torch backend",
        lambda here: without("torch", PPOTrainer, "CartPole-v1", backend="torch", runs_dir=None),
        ModuleNotFoundError,
        "torch",
        "pip install 'rlox[torch]'",
    ),
    (
        "torch tensors",
        lambda here: without("torch", exporting.state_dict, small()),
        ModuleNotFoundError,
        "torch",
        "pip install 'rlox[torch]'",
    ),
    (
        "onnx",
        lambda here: without("onnx", exporting.save_onnx, small(), here.path / "a.onnx"),
        ModuleNotFoundError,
        "save_onnx",
        "pip install 'rlox[onnx]'",
    ),
    (
        "rich",
        lambda here: without("rich.console", ProgressBar),
        ModuleNotFoundError,
        "ProgressBar",
        "pip install 'rlox[progress]'",
    ),
    (
        "matplotlib",
        lambda here: without("matplotlib.figure", plotting._figure),
        ModuleNotFoundError,
        "matplotlib",
        "pip install 'rlox[plot]'",
    ),
    (
        "tensorboard",
        lambda here: without(TENSORBOARD, small(here.path).train, 64, loggers=["tensorboard"]),
        ModuleNotFoundError,
        "TensorBoardLogger",
        "pip install 'rlox[tensorboard]'",
    ),
    (
        "wandb",
        lambda here: without("wandb", small(here.path).train, 64, loggers=["wandb"]),
        ModuleNotFoundError,
        "WandbLogger",
        "pip install 'rlox[wandb]'",
    ),
    (
        "mlflow",
        lambda here: without("mlflow", small(here.path).train, 64, loggers=["mlflow"]),
        ModuleNotFoundError,
        "MLflowLogger",
        "pip install 'rlox[mlflow]'",
    ),
    (
        "moviepy",
        lambda here: without("moviepy", VideoRecordingCallback, 100),
        ModuleNotFoundError,
        "VideoRecordingCallback",
        "pip install 'rlox[video]'",
    ),
    (
        "pyarrow",
        lambda here: without("pyarrow", interchange._library, "pyarrow", "arrow"),
        ImportError,
        "pyarrow",
        "pip install 'rlox[arrow]'",
    ),
    (
        "minari",
        lambda here: without("minari", interchange._library, "minari", "minari"),
        ImportError,
        "minari",
        "pip install 'rlox[minari]'",
    ),
    (
        "optuna",
        lambda here: without("optuna", Sweep, PLAN),
        ModuleNotFoundError,
        "rlox sweep",
        "pip install 'rlox[sweep]'",
    ),
)
def test_missing_package_is_named_with_its_extra(refusal, here):
    expect_refusal(refusal, here)


def test_error_of_a_callback_ends_the_run_after_saving(tmp_path):
    def broken(trainer, metrics):
        raise ZeroDivisionError("mine")

    trainer = small(tmp_path / "runs")
    with pytest.raises(ZeroDivisionError, match=r"^mine$") as raised:
        trainer.train(640, callbacks=[broken])
    assert raised.traceback[-1].name == "broken"
    assert PPOTrainer.load(trainer.run.path, runs_dir=None).timesteps == trainer.timesteps == 32
    assert (trainer.run.path / "summary.json").is_file()
