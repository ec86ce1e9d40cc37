"""Whoever is killed while saving, or finds the disk full, leaves a checkpoint that can be read."""

import contextlib
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
from rlox import CorruptFileError
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.trainers import SACTrainer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

SAVING = """
import sys
from rlox.trainers import PPOTrainer
trainer = PPOTrainer.load(sys.argv[1], runs_dir=None)
while True:
    trainer.train(32)
    trainer.save(sys.argv[1])
    print(trainer.timesteps, flush=True)
"""
SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1, "net_arch": (8,)}


def kill_often(path, times):
    """Kills those that save, at random moments, and reads what they leave."""
    chance = random.Random(times)
    trainer = rlox.trainers.PPOTrainer("CartPole-v1", 1, runs_dir=None, **SMALL)
    trainer.save(path)
    for _ in range(times):
        command = [sys.executable, "-c", SAVING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            said = child.stdout.readline()
            assert said, "it ended by itself"
            time.sleep(chance.uniform(0.0, 0.1))
            child.send_signal(signal.SIGKILL)
            told = [int(line) for line in (said + child.stdout.read()).splitlines()]
        saved = read_checkpoint(path)
        # What it said to have saved is there, or what it saved after that.
        assert saved.manifest["counters"]["timesteps"] in (told[-1], told[-1] + 32)
        assert rlox.load(path).predict(np.zeros(4)) in (0, 1)
    left = {file.name for file in path.parent.iterdir()}
    assert left <= {path.name, f".{path.name}.partial", f".{path.name}.previous"}


def test_a_process_killed_at_a_random_moment_leaves_a_whole_checkpoint(tmp_path):
    kill_often(tmp_path / "saved", 5)


@pytest.mark.kills
@pytest.mark.timeout(900)
def test_two_hundred_killed_processes_leave_whole_checkpoints(tmp_path):
    kill_often(tmp_path / "saved", 200)


FULL = """
import resource, sys
import numpy as np
from rlox.checkpoint import write_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    write_checkpoint(sys.argv[1], {"steps": 2}, {"networks": {"w": np.ones(5_000)}})
except OSError as error:
    print(error.errno)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="files are limited as Linux does it")
@pytest.mark.parametrize("room", [0, 1, 1_000, 39_999])
def test_a_process_without_room_leaves_the_former_checkpoint(tmp_path, room):
    write_checkpoint(tmp_path / "saved", {"steps": 1}, {"networks": {"w": np.ones(3)}})
    command = [sys.executable, "-c", FULL, str(tmp_path / "saved"), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr
    assert read_checkpoint(tmp_path / "saved").manifest["steps"] == 1
    assert os.listdir(tmp_path) == ["saved"]


@pytest.fixture
def small_disk(tmp_path):
    """A disk with 2 MiB of room."""
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


def test_a_full_disk_leaves_the_former_checkpoint(small_disk):
    how = {"net_arch": (8,), "buffer_size": 20_000, "num_envs": 2, "learning_starts": 10_000}
    trainer = SACTrainer("Pendulum-v1", 1, runs_dir=small_disk / "runs", **how)
    trainer.train(200)
    path = trainer.run.path / "checkpoint"
    first = read_checkpoint(path).manifest["counters"]["timesteps"]
    trainer.learner.iterate()
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
    with pytest.raises(OSError, match="No space left"):
        trainer.save(path)
    assert read_checkpoint(path).manifest["counters"]["timesteps"] == first
    assert not (path.parent / ".checkpoint.partial").exists()
    filler.unlink()
    trainer.save(path)
    assert read_checkpoint(path).manifest["counters"]["timesteps"] > first


@pytest.mark.kills
@pytest.mark.timeout(900)
def test_every_flipped_bit_of_a_trainers_checkpoint_is_found(tmp_path):
    how = {**SMALL, "net_arch": (2,), "normalize_obs": True}
    trainer = rlox.trainers.PPOTrainer("CartPole-v1", 1, runs_dir=None, **how)
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    for file in sorted((tmp_path / "saved").iterdir()):
        data = file.read_bytes()
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            with pytest.raises(CorruptFileError, match=rf"{file.name}, section \w+: "):
                read_checkpoint(tmp_path / "saved")
        file.write_bytes(data)


def test_a_checkpoint_from_before_environments_told_loads(tmp_path):
    trainer = rlox.trainers.PPOTrainer("CartPole-v1", 1, runs_dir=None, **SMALL)
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    saved = read_checkpoint(tmp_path / "saved")
    about = {k: x for k, x in saved.manifest.items() if k not in ("format", "rlox", "members")}
    assert about.pop("environment") == "exact"
    write_checkpoint(tmp_path / "saved", about, saved.members)
    loaded = rlox.trainers.PPOTrainer.load(tmp_path / "saved", runs_dir=None)
    loaded.train(32)
    about["environment"] = "unknown"
    write_checkpoint(tmp_path / "saved", about, saved.members)
    with pytest.raises(CorruptFileError, match=r"section manifest: .*'unknown' as 'environment'"):
        rlox.trainers.PPOTrainer.load(tmp_path / "saved")
