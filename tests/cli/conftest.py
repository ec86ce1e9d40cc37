"""Fixtures of the command-line tests."""

import shutil

import pytest

from rlox.cli import main
from support.cli_runs import SMALL, Result


@pytest.fixture
def rlox(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Run folder of PPO on CartPole, 64 steps."""
    root = tmp_path_factory.mktemp("trained")
    words = ["train", "ppo", "CartPole-v1", "--total-timesteps", "64", "--seed", "3"]
    assert main([*words, *SMALL, "--runs-dir", str(root), "--no-progress"]) == 0
    (folder,) = (root / "CartPole-v1" / "ppo").iterdir()
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    """Copy of that run folder, which a test may change."""
    return shutil.copytree(trained, tmp_path / "copied")
