"""A process that is killed during a save or has a full disk leaves a complete checkpoint."""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import rlox
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.trainers import SACTrainer
from support.rejections import rejects
from support.runs import small

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

SAVE_PROGRAM = """
import sys
from rlox.trainers import PPOTrainer
trainer = PPOTrainer.load(sys.argv[1], runs_dir=None)
while True:
    trainer.train(32)
    trainer.save(sys.argv[1])
    print(trainer.timesteps, flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [5, pytest.param(200, marks=pytest.mark.kills)])
def test_processes_killed_while_saving_leave_complete_checkpoints(tmp_path, times):
    path, rng = tmp_path / "saved", random.Random(times)
    small(n_epochs=1, net_arch=(8,)).save(path)
    for _ in range(times):
        command = [sys.executable, "-c", SAVE_PROGRAM, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            first = child.stdout.readline()
            assert first, "the process ended by itself"
            time.sleep(rng.uniform(0.0, 0.1))
            child.send_signal(signal.SIGKILL)
            reported = int((first + child.stdout.read()).splitlines()[-1])
        # The last reported checkpoint or the next one.
        steps = read_checkpoint(path).manifest["counters"]["timesteps"]
        assert steps in (reported, reported + 32)
        assert rlox.load(path).predict(np.zeros(4)) in (0, 1)
    assert {*os.listdir(tmp_path)} <= {"saved", ".saved.partial", ".saved.previous"}


LIMITED_PROGRAM = """
import resource, sys
import numpy as np
from rlox.checkpoint import write_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    write_checkpoint(sys.argv[1], {"steps": 2}, {"networks": {"w": np.ones(5_000)}})
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the size of files")
@pytest.mark.parametrize("limit", [0, 1, 1_000, 39_999])
def test_file_size_limit_leaves_the_previous_checkpoint(tmp_path, limit):
    write_checkpoint(tmp_path / "saved", {"steps": 1}, {"networks": {"w": np.ones(3)}})
    command = [sys.executable, "-c", LIMITED_PROGRAM, str(tmp_path / "saved"), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr
    assert read_checkpoint(tmp_path / "saved").manifest["steps"] == 1
    assert os.listdir(tmp_path) == ["saved"]


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_leaves_the_previous_checkpoint(small_disk):
    settings = {"net_arch": (8,), "buffer_size": 20_000, "num_envs": 2, "learning_starts": 10_000}
    trainer = SACTrainer("Pendulum-v1", 1, runs_dir=small_disk / "runs", **settings)
    trainer.train(200)
    path = trainer.run.path / "checkpoint"
    first = read_checkpoint(path).manifest["counters"]["timesteps"]
    trainer.learner.iterate()
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    with rejects(OSError, "", errno=errno.ENOSPC):
        trainer.save(path)
    assert read_checkpoint(path).manifest["counters"]["timesteps"] == first
    assert not (path.parent / ".checkpoint.partial").exists()
    filler.unlink()
    trainer.save(path)
    assert read_checkpoint(path).manifest["counters"]["timesteps"] > first
