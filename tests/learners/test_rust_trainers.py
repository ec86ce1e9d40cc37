"""DQN, SAC and TD3 of the trainers in Rust alone are those of Python's native backend, bit for bit.

A test of the crate `rlox-nn` trains in Rust, on this machine: others round otherwise.
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


def fixtures():
    path = ROOT / "crates/rlox-nn/tests/fixtures/make_checkpoint.py"
    spec = importlib.util.spec_from_file_location("made", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where both have written their halves and wholes of the same runs."""
    folder, made = tmp_path_factory.mktemp("compared"), fixtures()
    for name, (make, env_id, config) in made.OFF_POLICY.items():
        learner = make(make_vec(env_id, 2), config, seed=1)
        for part, until in (("half", 300), ("whole", 600)):
            made.train(learner, until, 600)
            made.save(learner, env_id, 600, folder / f"python-{name}-{part}")
    which = ["test", "--release", "--quiet", "-p", "rlox-nn", "--test", "it"]
    name = "checkpoint::python::trains_for_python"
    command = ["cargo", *which, "--", "--ignored", "--exact", name]
    environment = os.environ | {"RLOX_COMPARE": str(folder)}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, timeout=900)
    return folder


def expect_equal(one, other):
    """Two checkpoints hold the same."""
    for key in ("algorithm", "backend", "env", "seed", "spaces", "run", "streams", "counters"):
        assert one.manifest[key] == other.manifest[key], key
    assert one.members.keys() == other.members.keys()
    for member, arrays in one.members.items():
        assert arrays.keys() == other.members[member].keys()
        for name, array in arrays.items():
            assert array.dtype == other.members[member][name].dtype
            assert array.tobytes() == other.members[member][name].tobytes(), f"{member}: {name}"


@pytest.mark.parametrize("part", ["half", "whole"])
@pytest.mark.parametrize("name", TRAINERS)
def test_a_run_in_rust_is_the_run_in_python(folder, name, part):
    rust = read_checkpoint(folder / f"rust-{name}-{part}")
    python = read_checkpoint(folder / f"python-{name}-{part}")
    expect_equal(rust, python)
    ours, theirs = (each.manifest["settings"] for each in (rust, python))
    common = ours.keys() & theirs.keys()
    assert {name: ours[name] for name in common} == {name: theirs[name] for name in common}
    assert len(common) > 15


@pytest.mark.parametrize("name", TRAINERS)
def test_rust_goes_on_with_what_python_saved(folder, name):
    resumed = read_checkpoint(folder / f"rust-{name}-resumed")
    expect_equal(resumed, read_checkpoint(folder / f"python-{name}-whole"))


@pytest.mark.parametrize("name", TRAINERS)
def test_python_goes_on_with_what_rust_saved(folder, name, tmp_path):
    trainer = TRAINERS[name].load(folder / f"rust-{name}-half", runs_dir=None)
    trainer.train()
    trainer.save(tmp_path / "resumed")
    expect_equal(
        read_checkpoint(tmp_path / "resumed"), read_checkpoint(folder / f"rust-{name}-whole")
    )


@pytest.mark.parametrize("name", TRAINERS)
def test_what_rust_saved_predicts_the_same(folder, name):
    rust, python = (
        TRAINERS[name].load(folder / path, runs_dir=None)
        for path in (f"rust-{name}-whole", f"rust-{name}-resumed")
    )
    obs = np.random.default_rng(0).uniform(-1, 1, (64, rust.env.single_observation_space.shape[0]))
    obs = obs.astype(np.float32)
    for deterministic in (True, False):
        np.testing.assert_array_equal(
            rust.predict(obs, deterministic), python.predict(obs, deterministic)
        )
