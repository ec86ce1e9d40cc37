"""Where there is no room for a copy of the replay buffer, everything else is kept."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rlox import OutOfMemoryError, restoring
from rlox.checkpoint import write_checkpoint
from rlox.trainers import PPOTrainer, SACTrainer

SMALL = {"learning_starts": 10, "batch_size": 8, "buffer_size": 40, "net_arch": (8,), "num_envs": 2}
BACKENDS = ["native", "torch"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def scarce(monkeypatch):
    """A function of an error: writing a replay buffer, or with `all` anything, raises it."""

    def begin(error, everything=False):
        def writing(path, manifest, members):
            if everything or members["replay"]:
                raise error
            write_checkpoint(path, manifest, members)

        monkeypatch.setattr(restoring, "write_checkpoint", writing)

    return begin


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryError("rows"), r"replay: buffer_size: expected .* got 40, with 40 transit"),
        (FULL, r"replay: \[Errno 28\] No space left on device"),
    ],
)
def test_a_run_ends_with_all_but_the_buffer(scarce, tmp_path, backend, error, why):
    trainer = SACTrainer("Pendulum-v1", 1, backend=backend, runs_dir=tmp_path, **SMALL)
    scarce(error)
    with pytest.warns(UserWarning, match=rf"^{why}.*all but the replay buffer") as warned:
        result = trainer.train(60)
    assert warned[0].filename == __file__
    there = {"checkpoint", "config.json", "curve.png", "metrics.csv", "summary.json"}
    assert {*os.listdir(result["run_dir"])} == there
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert summary["left_out"] == result["left_out"]
    assert summary["timesteps"] == 60
    again = SACTrainer.load(result["run_dir"], runs_dir=None)
    obs = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(again.predict(obs), trainer.predict(obs))
    assert len(again.learner.replay) == 0
    assert len(trainer.learner.replay) == 40


def test_a_run_with_room_leaves_nothing_out(tmp_path):
    trainer = SACTrainer("Pendulum-v1", 1, runs_dir=tmp_path, **SMALL)
    assert trainer.train(60)["left_out"] is None
    assert json.loads((trainer.run.path / "summary.json").read_text())["left_out"] is None


@pytest.mark.parametrize("kind", [SACTrainer, PPOTrainer])
@pytest.mark.parametrize("error", [MemoryError("none"), FULL, PermissionError(13, "not yours")])
def test_where_nothing_can_be_written_the_summary_is(scarce, tmp_path, kind, error):
    small = SMALL if kind is SACTrainer else {"n_steps": 8, "batch_size": 8}
    trainer = kind("Pendulum-v1", 1, runs_dir=tmp_path, **small)
    scarce(error, everything=True)
    with pytest.raises(type(error)):
        trainer.train(20)
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert summary["left_out"] == "all: no checkpoint could be written"
    assert summary["timesteps"] >= 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_without_room_names_the_setting_and_a_smaller_one_works(scarce, tmp_path, backend):
    trainer = SACTrainer("Pendulum-v1", 1, backend=backend, runs_dir=None, **SMALL)
    trainer.train(20)
    scarce(MemoryError("rows"))
    with pytest.raises(MemoryError, match=r"^buffer_size: .* got 40, with 20 .* replay=False$"):
        trainer.save(tmp_path / "saved")
    trainer.save(tmp_path / "saved", replay=False)


class Full:
    """What it stands for, but for a call that finds no room."""

    def __init__(self, inner, call):
        self.inner, self.call = inner, call

    def __getattr__(self, name):
        return self.refuse if name == self.call else getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def refuse(self, *args, **kwargs):
        raise OutOfMemoryError("capacity", "what fits into 1 bytes of free memory", "9", None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transitions_without_room_name_the_setting(backend):
    learner = SACTrainer("Pendulum-v1", 1, backend=backend, runs_dir=None, **SMALL).learner
    if backend == "native":
        learner.policy = Full(learner.policy, "iterate")
    else:
        learner.replay.buffer = Full(learner.replay.buffer, "push_batch")
    with pytest.raises(MemoryError, match=r"^buffer_size: expected what fits"):
        learner.iterate()


LIMITED = """
import os, resource, sys, warnings
import torch
import gymnasium as gym, numpy as np
from rlox.trainers import SACTrainer

class Wide(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (20_000,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(20_000, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(20_000, self.t / 100, np.float32), 0.0, False, self.t == 50, {}

def train(backend):
    how = dict(net_arch=(2,), learning_starts=10**6, buffer_size=1_500, batch_size=8)
    trainer = SACTrainer(Wide, 0, backend=backend, runs_dir=sys.argv[1], **how)
    trainer.learner.iterate()
    np.linalg.inv(np.ones((200, 200)) @ np.ones((200, 200)) + np.eye(200))  # OpenBLAS's memory
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 80 * 2**20, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = trainer.train(1_450)
    assert any("buffer_size" in str(x.message) for x in said), said
    assert result["left_out"].startswith("replay: buffer_size: ")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    assert SACTrainer.load(result["run_dir"], env=Wide, runs_dir=None).timesteps == 1_451
    print("done", flush=True)

for backend in ("native", "torch"):
    child = os.fork()  # a process that has no free memory of the other case
    if child == 0:
        train(backend)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, backend
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_a_limit_of_memory_leaves_the_weights(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == "done\n" * 2, done.stderr[-2000:]
