"""Checkpoints: whole or not at all, and every damage is seen."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from rlox import CorruptFileError, checkpoint
from rlox.checkpoint import read_checkpoint, write_checkpoint

MEMBERS = {
    "networks": {"actor.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "optimizer": {},
    "normalizer": {"obs_mean": np.array([1.5]), "count": np.array(3.0)},
}


@pytest.fixture
def saved(tmp_path):
    write_checkpoint(tmp_path / "saved", {"algorithm": "ppo", "steps": 5}, MEMBERS)
    return tmp_path / "saved"


def test_what_is_written_is_read(saved):
    read = read_checkpoint(saved)
    assert (read.manifest["algorithm"], read.manifest["steps"]) == ("ppo", 5)
    assert sorted(read.members) == ["networks", "normalizer"]
    for name, arrays in read.members.items():
        assert sorted(arrays) == sorted(MEMBERS[name])
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, MEMBERS[name][key])
            assert array.dtype == MEMBERS[name][key].dtype


def test_nothing_but_the_checkpoint_is_left(saved):
    write_checkpoint(saved, {"steps": 6}, MEMBERS)
    assert os.listdir(saved.parent) == ["saved"]
    assert sorted(os.listdir(saved)) == [
        "manifest.json",
        "networks.safetensors",
        "normalizer.safetensors",
    ]
    assert read_checkpoint(saved).manifest["steps"] == 6


def test_every_flipped_bit_is_found(tmp_path):
    saved = tmp_path / "saved"
    write_checkpoint(saved, {}, {"networks": {"w": np.ones(2)}})
    for file in sorted(saved.iterdir()):
        data = file.read_bytes()
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            with pytest.raises(CorruptFileError, match=f"{file.name}, section"):
                read_checkpoint(saved)
        file.write_bytes(data)
    read_checkpoint(saved)


def test_every_truncation_is_found(saved):
    for file in sorted(saved.iterdir()):
        data = file.read_bytes()
        for length in range(len(data)):
            file.write_bytes(data[:length])
            with pytest.raises(CorruptFileError, match=file.name):
                read_checkpoint(saved)
        file.write_bytes(data + b"\n")
        with pytest.raises(CorruptFileError, match=file.name):
            read_checkpoint(saved)
        file.write_bytes(data)


@pytest.mark.parametrize("file", ["manifest.json", "networks.safetensors"])
def test_a_missing_file_is_named(saved, file):
    (saved / file).unlink()
    with pytest.raises(CorruptFileError, match=f"{file}, section .* no such file"):
        read_checkpoint(saved)


def test_a_path_with_nothing_there_is_not_a_damaged_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere")


def test_an_empty_folder_is_no_checkpoint_and_becomes_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="is empty"):
        read_checkpoint(tmp_path)
    (tmp_path / "made").mkdir()
    write_checkpoint(tmp_path / "made", {"steps": 1}, MEMBERS)
    assert read_checkpoint(tmp_path / "made").manifest["steps"] == 1


@pytest.mark.parametrize("name", ["checkpoint", ".checkpoint.previous"])
def test_a_run_folder_stands_for_its_checkpoint(saved, tmp_path, name):
    (tmp_path / "run").mkdir()
    saved.rename(tmp_path / "run" / name)
    assert read_checkpoint(tmp_path / "run").manifest["steps"] == 5


def forge(saved, change):
    """A manifest that somebody changed and signed again."""
    manifest = json.loads((saved / "manifest.json").read_bytes())
    del manifest["sha256"]
    change(manifest)
    digest = checkpoint.hashlib.sha256(checkpoint._canonical(manifest)).hexdigest()
    (saved / "manifest.json").write_bytes(checkpoint._canonical({**manifest, "sha256": digest}))


@pytest.mark.parametrize("name", ["../networks", "/etc/passwd", "a/b", "..", "", "A", "a" * 99])
def test_member_names_cannot_leave_the_folder(saved, name):
    with pytest.raises(ValueError, match="members: expected names of"):
        write_checkpoint(saved.parent / "other", {}, {name: {"x": np.zeros(1)}})
    forge(saved, lambda manifest: manifest["members"].update({name: {"bytes": 1, "sha256": ""}}))
    with pytest.raises(CorruptFileError, match="section members"):
        read_checkpoint(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("members"),
        lambda manifest: manifest.update(members=[]),
        lambda manifest: manifest["members"].update(networks=3),
        lambda manifest: manifest["members"]["networks"].pop("bytes"),
        lambda manifest: manifest["members"]["networks"].update(sha256=None),
    ],
)
def test_a_list_of_members_that_is_none_is_named(saved, change):
    forge(saved, change)
    with pytest.raises(CorruptFileError, match=r"manifest\.json, section (manifest|members): "):
        read_checkpoint(saved)


def test_a_format_from_the_future_is_refused_with_its_version(saved):
    forge(saved, lambda manifest: manifest.update(format=99, rlox="9.0.0"))
    with pytest.raises(ValueError, match=r"expected format 1, got 99, written by rlox 9\.0\.0"):
        read_checkpoint(saved)


def test_a_member_that_is_no_safetensors_is_refused(saved):
    data = b"\x80\x04cos\nsystem\n."  # a pickle
    (saved / "networks.safetensors").write_bytes(data)
    about = {"bytes": len(data), "sha256": checkpoint.hashlib.sha256(data).hexdigest()}
    forge(saved, lambda manifest: manifest["members"].update(networks=about))
    with pytest.raises(CorruptFileError, match=r"networks\.safetensors, section networks"):
        read_checkpoint(saved)


@pytest.mark.parametrize(
    "make", [lambda p: p.write_text("mine"), lambda p: (p / "x").mkdir(parents=True)]
)
def test_what_is_not_a_checkpoint_is_not_overwritten(tmp_path, make):
    make(tmp_path / "mine")
    with pytest.raises(FileExistsError, match="expected a checkpoint, an empty folder or nothing"):
        write_checkpoint(tmp_path / "mine", {}, MEMBERS)


def test_a_manifest_that_json_cannot_hold_changes_nothing(saved):
    for bad in (float("nan"), object()):
        with pytest.raises((TypeError, ValueError)):
            write_checkpoint(saved, {"steps": bad}, MEMBERS)
    assert read_checkpoint(saved).manifest["steps"] == 5


class PowerCutError(Exception):
    pass


@pytest.mark.parametrize("call", range(20))
def test_an_end_at_any_call_leaves_the_old_or_the_new_checkpoint(saved, monkeypatch, call):
    calls = 0

    def failing(function):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > call:  # nothing happens any more, as after a kill
                raise PowerCutError
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        for module, name in ((os, "fsync"), (shutil, "rmtree")):
            patch.setattr(module, name, failing(getattr(module, name)))
        for name in ("rename", "mkdir"):
            patch.setattr(checkpoint.Path, name, failing(getattr(checkpoint.Path, name)))
        with contextlib.suppress(PowerCutError):
            write_checkpoint(saved, {"steps": 6}, MEMBERS)
    assert read_checkpoint(saved).manifest["steps"] in (5, 6)
    write_checkpoint(saved, {"steps": 7}, MEMBERS)
    assert read_checkpoint(saved).manifest["steps"] == 7
    assert os.listdir(saved.parent) == ["saved"]


@pytest.mark.parametrize("turn", [lambda x: x[::-1], lambda x: x.T, lambda x: x[:, ::2]])
def test_arrays_of_any_strides_are_written_as_the_elements_that_they_show(turn, tmp_path):
    array = turn(np.arange(12.0).reshape(3, 4))
    write_checkpoint(tmp_path / "a", {}, {"networks": {"w": array}})
    read = read_checkpoint(tmp_path / "a").members["networks"]["w"]
    assert np.array_equal(read, array)


REFUSED = """
import resource, sys, tempfile
import numpy as np
from rlox.checkpoint import write_checkpoint

# Arrays of other strides than files have are copied.
members = {"networks": {"w": np.ones((2_000, 2_000), np.float32).T}}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for mebibytes in (4, 200):
    resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, resource.RLIM_INFINITY))
    try:
        write_checkpoint(tempfile.mkdtemp() + "/saved", {}, members)
        print("done")
    except MemoryError:
        print("MemoryError")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_write_checkpoint_raises_where_memory_is_refused():
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True)
    assert done.stdout.split() == ["MemoryError", "done"], done.stderr
