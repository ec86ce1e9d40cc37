"""Calls of trainers, presets, checkpoints and the SB3 facade that are rejected."""

import shutil
import sys
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
from rlox.callbacks import FunctionCallback, ProgressBar, VideoRecordingCallback
from rlox.evaluation import evaluate
from rlox.experiments import Plan, Range, Sweep, default_space
from rlox.noise import GaussianNoise
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.refusals import Refusal, expect_refusal, refusals, refuses

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


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    trainer = small(tmp_path_factory.mktemp("trained"))
    trainer.train(64)
    return trainer.run.path


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, trained / "checkpoint")


def ppo(**settings):
    return PPOTrainer("CartPole-v1", **settings)


def swing(**keywords):
    return PPOTrainer("Pendulum-v1", env_kwargs=keywords)


@refusals(
    (lambda here: ppo(gama=0.9), ArgumentTypeError, "gama", "did you mean 'gamma'?"),
    (lambda here: ppo(run_dir="x"), ArgumentTypeError, "run_dir", "did you mean 'runs_dir'?"),
    (lambda here: ppo(policy_kwargs={"net_arch": [64]}), ArgumentTypeError, "policy_kwargs"),
    (lambda here: ppo(buffer_size=10000), ArgumentTypeError, "buffer_size"),
    (lambda here: ppo(total_timesteps=1000), ArgumentTypeError, "total_timesteps", "train()"),
    (lambda here: ppo(callbacks=[]), ArgumentTypeError, "callbacks", "train()"),
    (lambda here: ppo(gamma=1.5), ArgumentError, "gamma"),
    (lambda here: A2CTrainer("CartPole-v1", n_steps=8.0), ArgumentTypeError, "n_steps", "pass 8"),
    (lambda here: small().train(64, gamma=0.9), TypeError, "'gamma'"),
    (lambda here: evaluate(small(), "CartPole-v1", timesteps=3), TypeError, "'timesteps'"),
    (lambda here: collect_rollout(VecEnv(2), None, 4, steps=3), TypeError, "'steps'"),
    (lambda here: small().train(100000.0), ArgumentTypeError, "total_timesteps"),
    (lambda here: small().train(0), ArgumentError, "total_timesteps"),
    (lambda here: small().train(), ArgumentError, "total_timesteps"),
    (lambda here: ppo(num_envs=2, n_steps=8, batch_size=64), ArgumentError, "batch_size"),
    (
        lambda here: SACTrainer("Pendulum-v1", utd_ratio=0.5, gradient_steps=2),
        *(ArgumentError, "utd_ratio"),
    ),
    (
        lambda here: TD3Trainer("Pendulum-v1", num_envs=2, train_freq=(1, "episode")),
        *(ArgumentError, "train_freq"),
    ),
    (
        lambda here: SACTrainer("Pendulum-v1", her="future", n_steps=3),
        *(ArgumentError, "n_steps"),
    ),
    (
        lambda here: SACTrainer("Pendulum-v1", use_sde_at_warmup=True),
        *(ArgumentError, "use_sde_at_warmup", "set use_sde=True"),
    ),
    (lambda here: ppo(seed=-1), ArgumentError, "seed"),
    (lambda here: ppo(backend="jax"), ArgumentError, "backend"),
    (
        lambda here: ppo(backend="native", device="cuda"),
        *(ArgumentError, "device", 'pass backend="torch"'),
    ),
    (
        lambda here: TD3Trainer("Pendulum-v1", action_noise=GaussianNoise(-0.1)),
        *(ArgumentError, "sigma"),
    ),
    (
        lambda here: TD3Trainer("Pendulum-v1", action_noise=0.1),
        *(ArgumentTypeError, "action_noise"),
    ),
    (lambda here: PPOTrainer("CartPol-v1"), ArgumentError, "env", "did you mean 'CartPole-v1'"),
    (lambda here: PPOTrainer(3), ArgumentTypeError, "env"),
    (lambda here: PPOTrainer("CartPole-v1", gamma=3), ArgumentError, "gamma", "pass at most 1"),
    (lambda here: PPOTrainer("CartPole-v1", n_steps=0), ArgumentError, "n_steps", "pass 1 or more"),
    (lambda here: PPOTrainer("CartPole-v1", n_steps="8"), ArgumentTypeError, "n_steps", "integer"),
    (lambda here: PPOTrainer("CartPole-v1", net_arch=8), ArgumentError, "net_arch", "(64, 64)"),
    (
        lambda here: PPOTrainer("CartPole-v1", lr_schedule="lineer"),
        *(ArgumentError, "lr_schedule", "did you mean 'linear'?"),
    ),
    (lambda here: Sweep({}), ArgumentTypeError, "plan", "pass Plan"),
    (lambda here: Sweep(PLAN, runs_dir=3), ArgumentTypeError, "runs_dir", "pathlib.Path"),
    (lambda here: default_space("pp"), ArgumentError, "algorithm", "did you mean 'ppo'?"),
    (lambda here: FunctionCallback(3), ArgumentTypeError, "function", "pass a function"),
    (lambda here: PPOTrainer("MlpPolicy", "CartPole-v1"), ArgumentTypeError, "seed"),
    (lambda here: swing(gravity=9.8), ArgumentError, "env_kwargs"),
    (lambda here: swing(g="moon"), ArgumentTypeError, "g"),
    (lambda here: swing(num_envs=4), ArgumentTypeError, "env_kwargs"),
    (lambda here: swing(g=object()), ArgumentTypeError, "env_kwargs['g']"),
    (
        lambda here: DQNTrainer("Pendulum-v1", runs_dir=None),
        *(ArgumentError, "action space", "use SAC, TD3, PPO or A2C"),
    ),
    (
        lambda here: SACTrainer("CartPole-v1", runs_dir=None),
        *(ArgumentError, "action space", "use DQN, PPO or A2C"),
    ),
    (
        lambda here: PPOTrainer(Pictures, backend="native", runs_dir=None),
        *(ArgumentError, "observation space", 'pass backend="torch"'),
    ),
    (
        lambda here: PPOTrainer(Broken, runs_dir=None, **SMALL).train(64),
        *(NonFiniteError, "rewards"),
    ),
    (
        lambda here: presets.show("ppo", "CartPole"),
        *(ArgumentError, "env_id", "did you mean 'CartPole-v1'?"),
    ),
    (
        lambda here: presets.show("pp", "CartPole-v1"),
        *(ArgumentError, "algorithm", "did you mean 'ppo'?"),
    ),
    (lambda here: load(here.path / "nowhere"), FileNotFoundError, "path"),
    (lambda here: load(here.path), FileNotFoundError, "path"),
    (lambda here: load(file(here)), FileNotFoundError, "path"),
    (lambda here: load(3), ArgumentTypeError, "path"),
    (lambda here: load(here.saved, env="CartPole-v1"), TypeError, "'env'"),
    (lambda here: A2CTrainer.load(here.saved), ArgumentError, "path"),
    (lambda here: PPOTrainer.load(here.saved, env="Pendulum-v1"), ArgumentError, "env"),
    (lambda here: load(here.saved, backend="jax"), ArgumentError, "backend"),
    (lambda here: load(here.saved).predict([0.0] * 3), ArgumentError, "obs"),
    (lambda here: load(here.saved).predict([float("nan")] * 4), NonFiniteError, "obs"),
    (lambda here: load(here.saved).predict("left"), ArgumentTypeError, "obs"),
    (lambda here: load(here.saved).predict([0.0] * 4, greedy=True), TypeError, "'greedy'"),
    (lambda here: exporting.save_safetensors(3, here.path / "a"), ArgumentTypeError, "policy"),
    (lambda here: exporting.state_dict("saved"), ArgumentTypeError, "policy"),
    (lambda here: small().save(folder(here)), FileExistsError, "path"),
    (lambda here: small().save(file(here) / "saved"), FileExistsError, "path"),
    (lambda here: ppo(runs_dir=file(here) / "runs"), ArgumentError, "runs_dir"),
    (lambda here: small(runs_dir="/proc/self/runs").train(64), ArgumentError, "runs_dir"),
    (lambda here: closed().train(64), ClosedError, "trainer"),
)
def test_trainer_rejects_invalid_calls(refusal, here):
    expect_refusal(refusal, here)


def test_argument_of_the_environment_has_the_section_env_kwargs():
    with refuses(ArgumentTypeError, "g", section="env_kwargs", got="'moon'"):
        swing(g="moon")


def test_damaged_file_of_a_checkpoint_is_named(here):
    networks = shutil.copytree(here.saved, here.path / "damaged") / "networks.safetensors"
    networks.write_bytes(networks.read_bytes()[:-1])
    expect_refusal(Refusal(load, CorruptFileError, str(networks)), networks.parent)


def start(logger, here):
    small(here.path).train(64, loggers=[logger])


# Missing modules, call, text of the error, extra.
MISSING = (
    ("torch", lambda here: ppo(backend="torch", runs_dir=None), "torch", "torch"),
    ("torch", lambda here: exporting.state_dict(small()), "torch", "torch"),
    ("onnx", lambda here: exporting.save_onnx(small(), "a.onnx"), "save_onnx", "onnx"),
    ("rich.console", lambda here: ProgressBar(), "ProgressBar", "progress"),
    ("matplotlib.figure", lambda here: plotting._figure(), "matplotlib", "plot"),
    (TENSORBOARD, lambda here: start("tensorboard", here), "TensorBoardLogger", "tensorboard"),
    ("wandb", lambda here: start("wandb", here), "WandbLogger", "wandb"),
    ("mlflow", lambda here: start("mlflow", here), "MLflowLogger", "mlflow"),
    ("moviepy", lambda here: VideoRecordingCallback(100), "VideoRecordingCallback", "video"),
    ("pyarrow", lambda here: interchange.to_arrow(None), "to_arrow", "arrow"),
    ("pyarrow", lambda here: interchange.from_arrow(None), "from_arrow", "arrow"),
    ("minari", lambda here: interchange.from_minari("any"), "from_minari", "minari"),
    ("optuna", lambda here: Sweep(PLAN), "rlox sweep", "sweep"),
)


@pytest.mark.parametrize(
    ("modules", "call", "text", "extra"),
    MISSING,
    ids=[f"{i}-{row[3]}" for i, row in enumerate(MISSING)],
)
def test_missing_package_is_named_with_its_extra(modules, call, text, extra, here, monkeypatch):
    for name in modules.split():
        monkeypatch.setitem(sys.modules, name, None)
    with refuses(ModuleNotFoundError, text, f"pip install 'rlox[{extra}]'"):
        call(here)


def test_error_of_a_callback_ends_the_run_after_saving(tmp_path):
    def broken(trainer, metrics):
        raise ZeroDivisionError("mine")

    trainer = small(tmp_path / "runs")
    with pytest.raises(ZeroDivisionError, match=r"^mine$") as raised:
        trainer.train(640, callbacks=[broken])
    assert raised.traceback[-1].name == "broken"
    assert PPOTrainer.load(trainer.run.path, runs_dir=None).timesteps == trainer.timesteps == 32
    assert (trainer.run.path / "summary.json").is_file()
