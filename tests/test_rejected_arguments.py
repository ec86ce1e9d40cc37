"""Invalid calls of trainers, presets, checkpoints and loggers are rejected."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
    VecEnv,
    collect_rollout,
    exporting,
    interchange,
    load,
    plotting,
    presets,
)
from rlox.callbacks import ProgressBar, VideoRecordingCallback
from rlox.evaluation import evaluate
from rlox.experiments import Range, Sweep, default_space
from rlox.experiments.sweep import Plan
from rlox.noise import GaussianNoise
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.rejections import Rejection, expect_rejection, rejections, rejects

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
PLAN = Plan("ppo", "CartPole-v1", {"gamma": Range(0.9, 1.0)}, 9, 9)
TENSORBOARD = "torch.utils.tensorboard tensorboard tensorboard.summary.writer.event_file_writer"


class Paths(NamedTuple):
    """Paths of an empty folder and of a PPO checkpoint."""

    path: Path
    saved: Path


class ImageEnv(gym.Env):
    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(2)


class NanRewardEnv(gym.Env):
    """Environment with NaN rewards."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float("nan"), False, False, {}


def small(runs_dir=None):
    return PPOTrainer("CartPole-v1", 1, runs_dir=runs_dir, **SMALL)


def closed_trainer():
    trainer = small()
    trainer.close()
    return trainer


def foreign_file(paths):
    (paths.path / "file").write_text("mine")
    return paths.path / "file"


def foreign_folder(paths):
    (paths.path / "mine").mkdir()
    (paths.path / "mine/work.txt").write_text("mine")
    return paths.path / "mine"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    trainer = small(tmp_path_factory.mktemp("trained"))
    trainer.train(64)
    return trainer.run.path


@pytest.fixture
def paths(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Paths(tmp_path, run_folder / "checkpoint")


def make_ppo(**settings):
    return PPOTrainer("CartPole-v1", **settings)


def make_pendulum(**keywords):
    return PPOTrainer("Pendulum-v1", env_kwargs=keywords)


@rejections(
    (lambda paths: make_ppo(gama=0.9), ArgumentTypeError, "gama", "did you mean 'gamma'?"),
    (lambda paths: make_ppo(run_dir="x"), ArgumentTypeError, "run_dir", "did you mean 'runs_dir'?"),
    (lambda paths: make_ppo(policy_kwargs={"net_arch": [64]}), ArgumentTypeError, "policy_kwargs"),
    (lambda paths: make_ppo(buffer_size=10000), ArgumentTypeError, "buffer_size"),
    (lambda paths: make_ppo(total_timesteps=1000), ArgumentTypeError, "total_timesteps", "train()"),
    (lambda paths: make_ppo(callbacks=[]), ArgumentTypeError, "callbacks", "train()"),
    (lambda paths: make_ppo(gamma=1.5), ArgumentError, "gamma"),
    (lambda paths: A2CTrainer("CartPole-v1", n_steps=8.0), ArgumentTypeError, "n_steps", "pass 8"),
    (lambda paths: small().train(64, gamma=0.9), TypeError, "'gamma'"),
    (lambda paths: evaluate(small(), "CartPole-v1", timesteps=3), TypeError, "'timesteps'"),
    (lambda paths: collect_rollout(VecEnv(2), None, 4, steps=3), TypeError, "'steps'"),
    (lambda paths: small().train(100000.0), ArgumentTypeError, "total_timesteps"),
    (lambda paths: small().train(0), ArgumentError, "total_timesteps"),
    (lambda paths: small().train(), ArgumentError, "total_timesteps"),
    (lambda paths: make_ppo(num_envs=2, n_steps=8, batch_size=64), ArgumentError, "batch_size"),
    (lambda paths: SACTrainer("Pendulum-v1", utd_ratio=0.5, gradient_steps=2), *(ArgumentError, "utd_ratio")),
    (lambda paths: TD3Trainer("Pendulum-v1", num_envs=2, train_freq=(1, "episode")), *(ArgumentError, "train_freq")),
    (lambda paths: SACTrainer("Pendulum-v1", her="future", n_steps=3), *(ArgumentError, "n_steps")),
    (
        lambda paths: SACTrainer("Pendulum-v1", use_sde_at_warmup=True),
        *(ArgumentError, "use_sde_at_warmup", "set use_sde=True"),
    ),
    (lambda paths: make_ppo(seed=-1), ArgumentError, "seed"),
    (lambda paths: make_ppo(backend="jax"), ArgumentError, "backend"),
    (lambda paths: make_ppo(backend="native", device="cuda"), *(ArgumentError, "device", 'pass backend="torch"')),
    (lambda paths: TD3Trainer("Pendulum-v1", action_noise=GaussianNoise(-0.1)), *(ArgumentError, "sigma")),
    (lambda paths: TD3Trainer("Pendulum-v1", action_noise=0.1), *(ArgumentTypeError, "action_noise")),
    (lambda paths: PPOTrainer("CartPol-v1"), ArgumentError, "env", "did you mean 'CartPole-v1'"),
    (lambda paths: PPOTrainer(3), ArgumentTypeError, "env"),
    (lambda paths: PPOTrainer("CartPole-v1", gamma=3), ArgumentError, "gamma", "pass at most 1"),
    (lambda paths: PPOTrainer("CartPole-v1", n_steps=0), ArgumentError, "n_steps", "pass 1 or more"),
    (lambda paths: PPOTrainer("CartPole-v1", n_steps="8"), ArgumentTypeError, "n_steps", "integer"),
    (lambda paths: PPOTrainer("CartPole-v1", net_arch=8), ArgumentTypeError, "net_arch", "(64, 64)"),
    (
        lambda paths: PPOTrainer("CartPole-v1", lr_schedule="lineer"),
        *(ArgumentError, "lr_schedule", "did you mean 'linear'?"),
    ),
    (lambda paths: Range(0.99, 0.9), ArgumentError, "range", "swap the bounds"),
    (lambda paths: Range("low", 1), ArgumentTypeError, "range, low"),
    (lambda paths: replace(PLAN, algorithm="pp"), ArgumentError, "algorithm", "did you mean 'ppo'?"),
    (lambda paths: replace(PLAN, space={"gama": Range(0, 1)}), ArgumentTypeError, "gama", "gamma"),
    (lambda paths: Sweep({}), ArgumentTypeError, "plan", "pass Plan"),
    (lambda paths: Sweep(PLAN, runs_dir=3), ArgumentTypeError, "runs_dir", "pathlib.Path"),
    (lambda paths: default_space("pp"), ArgumentError, "algorithm", "did you mean 'ppo'?"),
    (lambda paths: PPOTrainer("MlpPolicy", "CartPole-v1"), ArgumentTypeError, "seed"),
    (lambda paths: make_pendulum(gravity=9.8), ArgumentError, "env_kwargs"),
    (lambda paths: make_pendulum(g="moon"), ArgumentTypeError, "g"),
    (lambda paths: make_pendulum(num_envs=4), ArgumentTypeError, "env_kwargs"),
    (lambda paths: make_pendulum(g=object()), ArgumentTypeError, "env_kwargs['g']"),
    (
        lambda paths: DQNTrainer("Pendulum-v1", runs_dir=None),
        *(ArgumentError, "action space", "use SAC, TD3, PPO or A2C"),
    ),
    (lambda paths: SACTrainer("CartPole-v1", runs_dir=None), *(ArgumentError, "action space", "use DQN, PPO or A2C")),
    (
        lambda paths: PPOTrainer(ImageEnv, backend="native", runs_dir=None),
        *(ArgumentError, "observation space", 'pass backend="torch"'),
    ),
    (lambda paths: PPOTrainer(NanRewardEnv, runs_dir=None, **SMALL).train(64), *(NonFiniteError, "rewards")),
    (lambda paths: presets.show("ppo", "CartPole"), *(ArgumentError, "env_id", "did you mean 'CartPole-v1'?")),
    (lambda paths: presets.show("pp", "CartPole-v1"), *(ArgumentError, "algorithm", "did you mean 'ppo'?")),
    (lambda paths: load(paths.path / "nowhere"), FileNotFoundError, "path"),
    (lambda paths: load(paths.path), FileNotFoundError, "path"),
    (lambda paths: load(foreign_file(paths)), FileNotFoundError, "path"),
    (lambda paths: load(3), ArgumentTypeError, "path"),
    (lambda paths: load(paths.saved, env="CartPole-v1"), TypeError, "'env'"),
    (lambda paths: A2CTrainer.load(paths.saved), ArgumentError, "path"),
    (lambda paths: PPOTrainer.load(paths.saved, env="Pendulum-v1"), ArgumentError, "env"),
    (lambda paths: load(paths.saved, backend="jax"), ArgumentError, "backend"),
    (lambda paths: load(paths.saved).predict([0.0] * 3), ArgumentError, "obs"),
    (lambda paths: load(paths.saved).predict([float("nan")] * 4), NonFiniteError, "obs"),
    (lambda paths: load(paths.saved).predict("left"), ArgumentTypeError, "obs"),
    (lambda paths: load(paths.saved).predict([0.0] * 4, greedy=True), TypeError, "'greedy'"),
    (lambda paths: exporting.save_safetensors(3, paths.path / "a"), ArgumentTypeError, "policy"),
    (lambda paths: exporting.state_dict("saved"), ArgumentTypeError, "policy"),
    (lambda paths: small().save(foreign_folder(paths)), FileExistsError, "path"),
    (lambda paths: small().save(foreign_file(paths) / "saved"), FileExistsError, "path"),
    (lambda paths: make_ppo(runs_dir=foreign_file(paths) / "runs"), ArgumentError, "runs_dir"),
    (lambda paths: small(runs_dir="/proc/self/runs").train(64), ArgumentError, "runs_dir"),
    (lambda paths: closed_trainer().train(64), ClosedError, "trainer"),
)
def test_trainer_rejects_invalid_calls(rejection, paths):
    expect_rejection(rejection, paths)


def test_errors_of_env_kwargs_have_their_section():
    with rejects(ArgumentTypeError, "g", section="env_kwargs", got="'moon'"):
        make_pendulum(g="moon")


def test_damaged_file_of_a_checkpoint_is_named(paths):
    networks = shutil.copytree(paths.saved, paths.path / "damaged") / "networks.safetensors"
    networks.write_bytes(networks.read_bytes()[:-1])
    expect_rejection(Rejection(load, CorruptFileError, str(networks)), networks.parent)


def train_with(logger, paths):
    small(paths.path).train(64, loggers=[logger])


# Missing modules, call, text of the error, name of the extra.
MISSING = (
    ("torch", lambda paths: make_ppo(backend="torch", runs_dir=None), "torch", "torch"),
    ("torch", lambda paths: exporting.state_dict(small()), "torch", "torch"),
    ("onnx", lambda paths: exporting.save_onnx(small(), "a.onnx"), "save_onnx", "onnx"),
    ("rich.console", lambda paths: ProgressBar(), "ProgressBar", "progress"),
    ("matplotlib.figure", lambda paths: plotting._figure(), "matplotlib", "plot"),
    (TENSORBOARD, lambda paths: train_with("tensorboard", paths), "TensorBoardLogger", "tensorboard"),
    ("wandb", lambda paths: train_with("wandb", paths), "WandbLogger", "wandb"),
    ("mlflow", lambda paths: train_with("mlflow", paths), "MLflowLogger", "mlflow"),
    ("moviepy", lambda paths: VideoRecordingCallback(100), "VideoRecordingCallback", "video"),
    ("pyarrow", lambda paths: interchange.to_arrow(None), "to_arrow", "arrow"),
    ("pyarrow", lambda paths: interchange.from_arrow(None), "from_arrow", "arrow"),
    ("minari", lambda paths: interchange.from_minari("any"), "from_minari", "minari"),
    ("optuna", lambda paths: Sweep(PLAN), "rlox sweep", "sweep"),
)


@pytest.mark.parametrize(
    ("modules", "call", "text", "extra"), MISSING, ids=[f"{i}-{row[3]}" for i, row in enumerate(MISSING)]
)
def test_missing_package_is_named_with_its_extra(modules, call, text, extra, paths, monkeypatch):
    for name in modules.split():
        monkeypatch.setitem(sys.modules, name, None)
    with rejects(ModuleNotFoundError, text, f"pip install 'rlox[{extra}]'"):
        call(paths)


def test_error_of_a_callback_is_raised_after_the_run_is_saved(tmp_path):
    def broken(run, metrics):
        raise ZeroDivisionError("mine")

    trainer = small(tmp_path / "runs")
    with pytest.raises(ZeroDivisionError, match=r"^mine$") as raised:
        trainer.train(640, callbacks=[broken])
    assert raised.traceback[-1].name == "broken"
    assert PPOTrainer.load(trainer.run.path, runs_dir=None).timesteps == trainer.timesteps == 32
    assert (trainer.run.path / "summary.json").is_file()
