"""A row of the table of mistakes, and what mistakes are made with."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox.trainers import PPOTrainer

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
GAE = (np.ones(2), np.zeros(2), np.zeros(2, bool), 0.0)
BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


class Here(NamedTuple):
    """Where mistakes are made: an empty folder, a checkpoint and a run of PPO on CartPole."""

    path: Path
    saved: Path
    run: Path


class Mistake(NamedTuple):
    """What somebody did, and what of the message says what is wrong with it."""

    did: str
    error: type[Exception]
    argument: str
    expected: str
    got: str
    fix: str
    make: Callable[[Here], Any] | None = None


class Pictures(gym.Env):
    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = TWO


class Broken(gym.Env):
    """Its rewards are NaN."""

    observation_space, action_space = BOX, TWO

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float("nan"), False, False, {}


def small(here, runs_dir=None):
    return PPOTrainer("CartPole-v1", 1, runs_dir=runs_dir, **SMALL)


def closed(here):
    trainer = small(here)
    trainer.close()
    return trainer


def reset(env):
    env.reset(seed=1)
    return env


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


def without(names, what, *args, **keywords):
    """Calls something where modules cannot be imported."""
    with mock.patch.dict(sys.modules, dict.fromkeys(names.split())):
        return what(*args, **keywords)
