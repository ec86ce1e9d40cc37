"""Checkpoints of the trainers in Rust alone: learners on the native backend go on with them.

`cargo test -p rlox-nn --test checkpoint_python -- --ignored` writes the fixture `rust-half`;
`make_checkpoint.py` beside it writes the others.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from rlox import make_vec
from rlox.checkpoint import read_checkpoint
from rlox.learner import MEMBERS, LearnerState
from rlox.trainers import PPOTrainer

FIXTURES = Path(__file__).parents[1] / "crates/rlox-nn/tests/fixtures"


def test_a_native_learner_goes_on_with_a_checkpoint_from_rust():
    from rlox.native import NativePPO

    spec = importlib.util.spec_from_file_location("made", FIXTURES / "make_checkpoint.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    saved = read_checkpoint(FIXTURES / "checkpoint/rust-half")
    whole = read_checkpoint(FIXTURES / "checkpoint/python-whole")
    learner = NativePPO(make_vec("Pendulum-v1", 3), made.CONFIG, seed=2)
    arrays = {member: saved.members[member] for member in MEMBERS}
    learner.load_state(
        LearnerState(
            **arrays, counters=saved.manifest["counters"], streams=saved.manifest["streams"]
        )
    )
    for iteration in range(14, 28):
        learner.iterate(iteration / 28)
    assert learner.state().counters["timesteps"] == whole.manifest["counters"]["timesteps"]
    for name, tensor in learner.policy.tensors().items():
        np.testing.assert_allclose(tensor, whole.members["networks"][name], atol=1e-3)


def test_what_rust_says_of_a_trainer_is_what_python_says():
    rust = read_checkpoint(FIXTURES / "checkpoint/rust-half").manifest
    python = read_checkpoint(FIXTURES / "checkpoint/python-half").manifest
    for key in ("algorithm", "backend", "env", "seed", "spaces", "run", "streams"):
        assert rust[key] == python[key], key
    assert rust["counters"]["episodes"]["count"] == python["counters"]["episodes"]["count"]
    common = {*rust["settings"]} & {*python["settings"]}
    assert {name: rust["settings"][name] for name in common} == {
        name: python["settings"][name] for name in common
    }
    assert {*rust["settings"]} - common == {
        *("optimizer", "optimizer_eps", "beta1", "beta2"),
        *("clip_obs", "clip_reward", "normalize_epsilon"),
    }


def test_a_trainer_says_what_a_checkpoint_from_rust_lacks():
    with pytest.raises(ValueError, match="got one of a trainer in Rust"):
        PPOTrainer.load(FIXTURES / "checkpoint/rust-half")
