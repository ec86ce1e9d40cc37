"""Several processes at one checkpoint, and things in its folder that are no files of it."""

import os
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from rlox import CorruptFileError
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.rotation import newest, read_scores
from rlox.trainers import PPOTrainer
from support.runs import small

PIPED = {"stdout": subprocess.PIPE, "text": True}
WRITING = """
import sys, time
import numpy as np
from rlox.checkpoint import write_checkpoint
until, steps = time.monotonic() + 1.5, 0
while time.monotonic() < until:
    steps += 1
    write_checkpoint(sys.argv[1], {"steps": steps}, {"networks": {"w": np.full(2_000, steps)}})
print(steps)
"""


def test_two_writers_and_a_reader_find_whole_checkpoints(tmp_path):
    path = tmp_path / "saved"
    write_checkpoint(path, {"steps": 0}, {"networks": {"w": np.full(2_000, 0)}})
    command = [sys.executable, "-c", WRITING, str(path)]
    read = set()
    with ExitStack() as ends:
        writers = [ends.enter_context(subprocess.Popen(command, **PIPED)) for _ in range(2)]
        while any(writer.poll() is None for writer in writers):
            saved = read_checkpoint(path)
            assert (saved.members["networks"]["w"] == saved.manifest["steps"]).all()
            read.add(saved.manifest["steps"])
        written = [int(writer.communicate()[0]) for writer in writers]
    assert all(writer.returncode == 0 for writer in writers)
    assert len(read) > 2
    assert read_checkpoint(path).manifest["steps"] in written
    assert os.listdir(tmp_path) == ["saved"]


def test_two_trainers_do_not_share_a_run_folder(tmp_path):
    trainer = small(runs_dir=tmp_path)
    trainer.train(32)
    other = PPOTrainer.load(trainer.run.path, runs_dir=None)
    other.run = trainer.run
    steps = other.timesteps
    with trainer.run.held():
        with pytest.raises(BlockingIOError, match="another trainer does; wait for its end"):
            other.train(32)
        assert other.timesteps == steps
    other.train(32)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")
@pytest.mark.parametrize("name", ["networks.safetensors", "manifest.json"])
@pytest.mark.parametrize("kind", ["endless", "pipe", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path, name, kind):
    path = tmp_path / "saved"
    small().save(path)
    (path / name).unlink()
    if kind == "endless":
        (path / name).symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).mkdir()
    with pytest.raises(CorruptFileError, match=name):
        read_checkpoint(path)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"counters": {"timesteps": 1e999}}', "{", "\\0"])
def test_manifests_that_cannot_be_read_are_named(tmp_path, text):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/manifest.json").write_text(text)
    with pytest.raises(CorruptFileError, match="section manifest"):
        read_checkpoint(tmp_path)
    assert newest(tmp_path) == tmp_path / "checkpoint"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a": 1e999, "b": []}', "[1]", '{"a": 1e9999}'])
def test_scores_that_cannot_be_read_are_none(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    assert all(isinstance(score, float) for score in read_scores(tmp_path).values())
