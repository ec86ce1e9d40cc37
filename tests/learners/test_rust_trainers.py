"""DQN, SAC and TD3 trainers in Rust equal Python's native backend, bit for bit.

A test of the crate `rlox-nn` trains in Rust on this machine. Rounding depends on the machine.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rlox.checkpoint import read_checkpoint
from rlox.envs import make_vec
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer

ROOT = Path(__file__).parents[2]
TRAINERS = {"dqn": DQNTrainer, "sac": SACTrainer, "td3": TD3Trainer}
pytestmark = [
    pytest.mark.build,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("cargo") is None, reason="trains in Rust"),
]


def load_fixture_module():
    path = ROOT / "crates/rlox-nn/tests/fixtures/make_checkpoint.py"
    spec = importlib.util.spec_from_file_location("make_checkpoint", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the half-way and final checkpoints of the same runs from Rust and Python."""
    folder, fixture = tmp_path_factory.mktemp("compared"), load_fixture_module()
    for name, (make, env_id, config) in fixture.OFF_POLICY.items():
        learner = make(make_vec(env_id, 2), config, seed=1)
        for part, until in (("half", 300), ("whole", 600)):
            fixture.train(learner, until, 600)
            fixture.save(learner, env_id, 600, folder / f"python-{name}-{part}")
    args = ["test", "--release", "--quiet", "-p", "rlox-nn", "--test", "it"]
    name = "checkpoint::python::trains_for_python"
    command = ["cargo", *args, "--", "--ignored", "--exact", name]
    environment = os.environ | {"RLOX_COMPARE": str(folder)}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, timeout=900)
    return folder


def assert_equal_checkpoints(actual, expected):
    """Check that two checkpoints are equal."""
    for key in ("algorithm", "backend", "env", "seed", "spaces", "run", "streams", "counters"):
        assert actual.manifest[key] == expected.manifest[key], key
    assert actual.members.keys() == expected.members.keys()
    for member, arrays in actual.members.items():
        assert arrays.keys() == expected.members[member].keys()
        for name, array in arrays.items():
            assert array.dtype == expected.members[member][name].dtype
            assert array.tobytes() == expected.members[member][name].tobytes(), f"{member}: {name}"


@pytest.mark.parametrize("part", ["half", "whole"])
@pytest.mark.parametrize("name", TRAINERS)
def test_runs_in_rust_and_python_have_equal_checkpoints(folder, name, part):
    rust = read_checkpoint(folder / f"rust-{name}-{part}")
    python = read_checkpoint(folder / f"python-{name}-{part}")
    assert_equal_checkpoints(rust, python)
    rust_settings, python_settings = (each.manifest["settings"] for each in (rust, python))
    common = rust_settings.keys() & python_settings.keys()
    assert {name: rust_settings[name] for name in common} == {name: python_settings[name] for name in common}
    assert len(common) > 15


@pytest.mark.parametrize("name", TRAINERS)
def test_rust_resumes_checkpoints_of_python(folder, name):
    resumed = read_checkpoint(folder / f"rust-{name}-resumed")
    assert_equal_checkpoints(resumed, read_checkpoint(folder / f"python-{name}-whole"))


@pytest.mark.parametrize("name", TRAINERS)
def test_python_resumes_checkpoints_of_rust(folder, name, tmp_path):
    trainer = TRAINERS[name].load(folder / f"rust-{name}-half", runs_dir=None)
    trainer.train()
    trainer.save(tmp_path / "resumed")
    assert_equal_checkpoints(read_checkpoint(tmp_path / "resumed"), read_checkpoint(folder / f"rust-{name}-whole"))


@pytest.mark.parametrize("name", TRAINERS)
def test_checkpoints_of_rust_predict_equally(folder, name):
    rust, python = (
        TRAINERS[name].load(folder / path, runs_dir=None) for path in (f"rust-{name}-whole", f"rust-{name}-resumed")
    )
    obs = np.random.default_rng(0).uniform(-1, 1, (64, rust.env.single_observation_space.shape[0]))
    obs = obs.astype(np.float32)
    for deterministic in (True, False):
        np.testing.assert_array_equal(rust.predict(obs, deterministic), python.predict(obs, deterministic))
