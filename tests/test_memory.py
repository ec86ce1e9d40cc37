"""Requests beyond the free memory raise MemoryError, change nothing, and work later."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import rlox
from rlox import OutOfMemoryError
from rlox._layout import Layout
from rlox._rlox import available_memory
from rlox._system import check_memory
from rlox.buffers.replay import make_replay_buffer
from rlox.configs import DQNConfig
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer
from support.rejections import Rejection, expect_rejection, rejects

FREE = available_memory()
SCRIPT = Path(__file__).parent / "support" / "memory_limits.py"


@pytest.mark.skipif(FREE is None, reason="the system does not report its free memory")
def test_free_memory_is_reported():
    assert 2**20 < FREE < 2**50


def test_check_memory_rejects_requests_beyond_the_free_memory():
    check_memory("buffer_size", 10, 1000)
    for needed in (2**62, 10**5000):
        rejection = Rejection(check_memory, OutOfMemoryError, "buffer_size")
        expect_rejection(rejection, "buffer_size", 10, needed)


BUFFER, WIDTHS = {"buffer_size": 2**50}, [(10**9,), (10**6, 10**6), (2**62,), (2**31, 2**31)]


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("trainer", "settings"),
    [(DQNTrainer, BUFFER), *((t, {"net_arch": w}) for w in WIDTHS for t in (PPOTrainer, A2CTrainer))],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_networks_and_replay_buffers_larger_than_memory_are_rejected(trainer, settings, backend):
    make = lambda: trainer("CartPole-v1", backend=backend, runs_dir=None, **settings)  # noqa: E731
    expect_rejection(Rejection(make, OutOfMemoryError, next(iter(settings))))


@pytest.mark.parametrize("policy", [None, lambda obs: [0] * len(obs)], ids=["random", "policy"])
def test_collect_n_steps_rejects_steps_larger_than_memory(policy):
    env = rlox.VecEnv(n=2, seed=0)
    n = (2**45 if FREE is None else FREE) // 80  # each array alone would fit
    expect_rejection(Rejection(env.collect_n_steps, OutOfMemoryError, "n"), n, policy)
    assert env.collect_n_steps(3)["obs"].shape == (3, 2, 4)


@pytest.fixture(scope="module")
def run():
    """Run a case of `support/memory_limits.py` in one child process for all cases."""
    children = []

    def run_case(name):
        if not children or children[-1].poll() is not None:
            # Large blocks return to the system when they are freed.
            env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            command = [sys.executable, "-W", "ignore", SCRIPT]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            children.append(subprocess.Popen(command, env=env, text=True, **pipes))
        child = children[-1]
        print(name, file=child.stdin, flush=True)
        answer = child.stdout.readline()
        return ast.literal_eval(answer) if answer else f"the process ended with {child.wait()}"

    yield run_case
    for child in children:
        child.communicate()


DEFAULT = ("state", "collect", "conversions")
SLOW = ("construct", "episodes", "reset", "step", "rollout_buffer", "statistics", "packing")


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
@pytest.mark.parametrize("name", [*DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_failed_allocation_raises_and_changes_nothing(run, name):
    assert run(name) == "ok"


def test_too_large_replay_buffer_names_only_the_setting():
    layout, config = Layout(gym.spaces.Box(-1, 1, (4,))), DQNConfig(buffer_size=10**14)
    with rejects(OutOfMemoryError, "buffer_size") as raised:
        make_replay_buffer(layout, gym.spaces.Discrete(2), config, 1)
    assert raised.value.got.startswith("100000000000000 transitions of ")
    assert "capacity" not in str(raised.value)
