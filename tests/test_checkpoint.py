"""Checkpoints are written atomically, and reading detects any damage."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
import safetensors.numpy

from rlox import ArgumentError, ArgumentTypeError, CorruptFileError, checkpoint
from rlox._training.resume import resume_in
from rlox.callbacks.checkpointing import read_scores
from rlox.checkpoint import newest, read_checkpoint, write_checkpoint
from rlox.trainers import PPOTrainer
from support.rejections import Rejection, expect_rejection, rejects
from support.runs import small

MEMBERS = {
    "networks": {"actor.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "optimizer": {},
    "normalizer": {"obs_mean": np.array([1.5]), "count": np.array(3.0)},
}


@pytest.fixture
def saved(tmp_path):
    write_checkpoint(tmp_path / "saved", {"algorithm": "ppo", "steps": 5}, MEMBERS)
    return tmp_path / "saved"


def steps_in(path):
    return read_checkpoint(path).manifest["steps"]


def assert_corrupt(path, file, section=None):
    """Check that reading names the damaged file and its section. None accepts any section."""
    with pytest.raises(CorruptFileError) as raised:
        read_checkpoint(path)
    assert os.path.basename(raised.value.argument) == file
    assert raised.value.section
    assert section in (None, raised.value.section)


def test_checkpoint_is_read_as_it_was_written(saved):
    read = read_checkpoint(saved)
    assert (read.manifest["algorithm"], read.manifest["steps"]) == ("ppo", 5)
    assert sorted(read.members) == ["networks", "normalizer"]
    for name, arrays in read.members.items():
        np.testing.assert_equal(arrays, MEMBERS[name])
        assert all(array.dtype == MEMBERS[name][key].dtype for key, array in arrays.items())


def test_new_checkpoint_replaces_an_existing_checkpoint_or_an_empty_folder(saved):
    (saved.parent / "empty").mkdir()
    for path in (saved, saved.parent / "empty"):
        write_checkpoint(path, {"steps": 6}, MEMBERS)
        assert steps_in(path) == 6
        files = ["manifest.json", "networks.safetensors", "normalizer.safetensors"]
        assert sorted(os.listdir(path)) == files
    assert sorted(os.listdir(saved.parent)) == ["empty", "saved"]


def save_trainer(path):
    """Save a trainer after one iteration."""
    trainer = small(normalize_obs=True, net_arch=(2,))
    trainer.train(32)
    trainer.save(path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_checkpoint(path, {}, {"networks": {"w": np.ones(2)}}),
        pytest.param(save_trainer, marks=pytest.mark.kills),
    ],
    ids=["arrays", "trainer"],
)
def test_every_flipped_bit_is_found(write, tmp_path):
    write(tmp_path / "saved")
    for file in sorted((tmp_path / "saved").iterdir()):
        data = file.read_bytes()
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            assert_corrupt(tmp_path / "saved", file.name)
        file.write_bytes(data)
    read_checkpoint(tmp_path / "saved")


def test_every_truncation_is_found(saved):
    for file in sorted(saved.iterdir()):
        data = file.read_bytes()
        for damaged in (*(data[:length] for length in range(len(data))), data + b"\n"):
            file.write_bytes(damaged)
            assert_corrupt(saved, file.name)
        file.write_bytes(data)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")
@pytest.mark.parametrize(("file", "section"), [("manifest.json", "manifest"), ("networks.safetensors", "networks")])
@pytest.mark.parametrize("kind", ["missing", "endless", "pipe", "folder"])
def test_missing_file_is_named_and_special_files_are_not_read(saved, file, section, kind):
    path = saved / file
    path.unlink()
    if kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    assert_corrupt(saved, file, section)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"counters": {"timesteps": 1e999}}', "{", "\\0"])
def test_unreadable_manifest_is_named(tmp_path, text):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/manifest.json").write_text(text)
    assert_corrupt(tmp_path, "manifest.json", "manifest")
    assert newest(tmp_path) == tmp_path / "checkpoint"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a": 1e999, "b": []}', "[1]"])
def test_read_scores_ignores_unreadable_files(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    assert all(isinstance(score, float) for score in read_scores(tmp_path).values())


def forge(saved, change):
    """Change a manifest and update its checksum."""
    manifest = json.loads((saved / "manifest.json").read_bytes())
    del manifest["sha256"]
    change(manifest)
    digest = hashlib.sha256(checkpoint._to_canonical_json(manifest)).hexdigest()
    (saved / "manifest.json").write_bytes(checkpoint._to_canonical_json({**manifest, "sha256": digest}))


@pytest.mark.parametrize("name", ["../networks", "/etc/passwd", "..", "", "A", "a" * 99])
def test_member_names_cannot_leave_the_folder(saved, name):
    with rejects(ArgumentError, "members"):
        write_checkpoint(saved.parent / "other", {}, {name: {"x": np.zeros(1)}})
    forge(saved, lambda manifest: manifest["members"].update({name: {"bytes": 1, "sha256": ""}}))
    assert_corrupt(saved, "manifest.json", "members")


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("manifest", lambda manifest: manifest.pop("members")),
        ("manifest", lambda manifest: manifest.update(members=[])),
        ("members", lambda manifest: manifest["members"].update(networks=3)),
        ("members", lambda manifest: manifest["members"]["networks"].pop("bytes")),
        ("members", lambda manifest: manifest["members"]["networks"].update(sha256=None)),
    ],
    ids=["missing", "list", "number", "no size", "no digest"],
)
def test_damaged_list_of_members_is_named(saved, section, change):
    forge(saved, change)
    assert_corrupt(saved, "manifest.json", section)


def test_later_format_is_rejected_with_its_version(saved):
    forge(saved, lambda manifest: manifest.update(format=99, rlox="9.0.0"))
    with pytest.raises(ArgumentError) as raised:
        read_checkpoint(saved)
    error = raised.value
    assert (error.expected, error.got) == ("format 2", "99, written by rlox 9.0.0")


def test_pickle_instead_of_a_member_is_rejected(saved):
    data = b"\x80\x04cos\nsystem\n."
    (saved / "networks.safetensors").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(saved, lambda manifest: manifest["members"].update(networks=entry))
    assert_corrupt(saved, "networks.safetensors", "networks")


def test_manifest_that_json_cannot_encode_changes_nothing(saved):
    for bad in (float("nan"), object()):
        with pytest.raises((TypeError, ValueError)):
            write_checkpoint(saved, {"steps": bad}, MEMBERS)
    assert steps_in(saved) == 5


@pytest.mark.parametrize("call", range(20))
def test_interrupted_write_leaves_the_old_or_the_new_checkpoint(saved, monkeypatch, call):
    calls = 0

    def failing(function):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > call:  # later calls fail too, as after a kill
                raise LookupError
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        for module, name in ((os, "fsync"), (shutil, "rmtree")):
            patch.setattr(module, name, failing(getattr(module, name)))
        for name in ("rename", "mkdir"):
            patch.setattr(checkpoint.Path, name, failing(getattr(checkpoint.Path, name)))
        with contextlib.suppress(LookupError):
            write_checkpoint(saved, {"steps": 6}, MEMBERS)
    assert steps_in(saved) in (5, 6)
    write_checkpoint(saved, {"steps": 7}, MEMBERS)
    assert steps_in(saved) == 7
    assert os.listdir(saved.parent) == ["saved"]


LOW_MEMORY_PROGRAM = """
import resource, sys, tempfile
import numpy as np
from rlox.checkpoint import read_checkpoint, write_checkpoint

# Arrays with strides that files do not have are copied.
members = {"networks": {"w": np.ones((2_000, 2_000), np.float32).T}}
folder = tempfile.mkdtemp()
write_checkpoint(folder + "/read", {}, members)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
calls = (
    lambda: write_checkpoint(folder + "/written", {}, members),
    lambda: read_checkpoint(folder + "/read"),
)
for call in calls:
    for mebibytes in (4, 18, 24, 200):
        resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, resource.RLIM_INFINITY))
        try:
            call()
            print("done")
        except MemoryError:
            print("MemoryError")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
def test_checkpoints_raise_memory_errors_under_a_memory_limit():
    done = subprocess.run([sys.executable, "-c", LOW_MEMORY_PROGRAM], capture_output=True, text=True)
    written = ["MemoryError", "done", "done", "done"]
    assert done.stdout.split() == [*written, *["MemoryError"] * 3, "done"], done.stderr


WRITER_PROGRAM = """
import sys, time
import numpy as np
from rlox.checkpoint import write_checkpoint
until, steps = time.monotonic() + 1.5, 0
while time.monotonic() < until:
    steps += 1
    write_checkpoint(sys.argv[1], {"steps": steps}, {"networks": {"w": np.full(2_000, steps)}})
print(steps)
"""


def test_concurrent_writers_and_a_reader_find_complete_checkpoints(tmp_path):
    path = tmp_path / "saved"
    write_checkpoint(path, {"steps": 0}, {"networks": {"w": np.full(2_000, 0)}})
    command = [sys.executable, "-c", WRITER_PROGRAM, str(path)]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    read = set()
    with ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(2)]
        while any(writer.poll() is None for writer in writers):
            saved = read_checkpoint(path)
            assert (saved.members["networks"]["w"] == saved.manifest["steps"]).all()
            read.add(saved.manifest["steps"])
        written = [int(writer.communicate()[0]) for writer in writers]
    assert all(writer.returncode == 0 for writer in writers)
    assert len(read) > 2
    assert steps_in(path) in written
    assert os.listdir(tmp_path) == ["saved"]


def test_two_trainers_do_not_share_a_run_folder(tmp_path):
    trainer = small(runs_dir=tmp_path)
    trainer.train(32)
    other = PPOTrainer.load(trainer.run.path, runs_dir=None)
    resume_in(other.run, trainer.run.path)
    steps = other.timesteps
    with trainer.run.folder.lock():
        with rejects(BlockingIOError, "run: ", filename=str(trainer.run.path)):
            other.train(32)
        assert other.timesteps == steps
    other.train(32)


SIGNED = ("int8", "int16", "int32", "int64")
DTYPES = ("bool", *SIGNED, *(f"u{t}" for t in SIGNED), "float16", "float32", "float64")
SHAPES = {"a": (3, 5), "b/'ü'\"\\": (), "empty": (0, 4), "z": (2, 1, 3)}


class Subclass(np.ndarray):
    pass


def write_and_read(tmp_path, arrays):
    path = tmp_path / "x.safetensors"
    path.unlink(missing_ok=True)
    entry = checkpoint.write_member(path, checkpoint.check_member("x", arrays))
    data = path.read_bytes()
    assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return data


@pytest.mark.parametrize("piece", [1, 7, 1 << 24])
def test_members_have_the_bytes_of_safetensors(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(checkpoint, "_PIECE", piece)
    rng = np.random.default_rng(7)
    all_arrays = {
        f"{name} {t}": np.array(rng.integers(0, 2, shape)).astype(t) for t in DTYPES for name, shape in SHAPES.items()
    }
    for arrays in (all_arrays, {"w": np.arange(3.0)}, {"one": np.array(True)}):
        assert write_and_read(tmp_path, arrays) == safetensors.numpy.save(arrays)


def test_members_convert_strides_and_byte_orders(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (x.T, x[:, ::-2], np.asfortranarray(x), x.astype(">f4"), x.view(Subclass)):
        plain = np.ascontiguousarray(np.asarray(array), np.float32)
        assert write_and_read(tmp_path, {"w": array}) == safetensors.numpy.save({"w": plain})


@pytest.mark.parametrize("dtype", [complex, "U3", np.longdouble], ids=str)
def test_members_reject_unsupported_dtypes(dtype):
    check = Rejection(checkpoint.check_member, ArgumentTypeError, "members['x']['w']")
    expect_rejection(check, "x", {"w": np.zeros(2, dtype)})


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), MemoryError(), KeyboardInterrupt])
def test_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch, error):
    write_checkpoint(tmp_path / "saved", {"steps": 1}, {"networks": {"w": np.ones(3)}})

    def failing(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(type(error) if isinstance(error, Exception) else error):
            write_checkpoint(tmp_path / "saved", {"steps": 2}, {"networks": {"w": np.ones(3)}})
    assert os.listdir(tmp_path) == ["saved"]
    assert read_checkpoint(tmp_path / "saved").manifest["steps"] == 1


WITHOUT_COPY_PROGRAM = """
import resource, tempfile
import numpy as np
from rlox.checkpoint import write_checkpoint

arrays = {"rows": np.ones((5_000, 2_000), np.float32), "flags": np.ones(10_000_000, bool)}
with tempfile.TemporaryDirectory() as folder:
    write_checkpoint(f"{folder}/first", {}, {"networks": {"w": np.ones(3)}})
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 6 * 2**20,) * 2)
    write_checkpoint(f"{folder}/second", {}, {"replay": arrays})
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
def test_members_are_written_without_a_copy():
    command = [sys.executable, "-c", WITHOUT_COPY_PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr
