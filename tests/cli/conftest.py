"""Fixtures of the command-line tests."""

import shutil

import pytest

from rlox.cli import main
from support.cli_runs import SMALL, Result


@pytest.fixture
def rlox(capsys, tmp_path, monkeypatch):
    """Return a function that runs a command in an empty folder and returns a `Result`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the run folder of PPO after 64 steps on CartPole."""
    root = tmp_path_factory.mktemp("trained")
    arguments = ["train", "ppo", "CartPole-v1", "--total-timesteps", "64", "--seed", "3"]
    assert main([*arguments, *SMALL, "--runs-dir", str(root), "--no-progress"]) == 0
    (folder,) = (root / "CartPole-v1" / "ppo").iterdir()
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    """Return a copy of the run folder that the test may change."""
    return shutil.copytree(trained, tmp_path / "copied")
