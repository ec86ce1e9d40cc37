"""Members of checkpoints: the format's own bytes, written from where arrays lie."""

import errno
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from rlox import members
from rlox.checkpoint import read_checkpoint, write_checkpoint

SIGNED = ("int8", "int16", "int32", "int64")
DTYPES = ("bool", *SIGNED, *(f"u{t}" for t in SIGNED), "float16", "float32", "float64")
SHAPES = {"a": (3, 5), "b/'ü'\"\\": (), "empty": (0, 4), "z": (2, 1, 3)}


class Own(np.ndarray):
    """Arrays of somebody's own class."""


def some(dtype, shape):
    rng = np.random.default_rng(7)
    return np.array(rng.integers(0, 2, shape)).astype(dtype)


def written(tmp_path, arrays):
    path = tmp_path / "x.safetensors"
    path.unlink(missing_ok=True)
    about = members.write_member(path, members.checked_member("x", arrays))
    data = path.read_bytes()
    assert about == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return data


@pytest.mark.parametrize("piece", [1, 7, 1 << 24])
def test_the_bytes_are_those_of_safetensors(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(members, "_PIECE", piece)
    every = {f"{name} {t}": some(t, shape) for t in DTYPES for name, shape in SHAPES.items()}
    for arrays in (every, {"w": np.arange(3.0)}, {"one": np.array(True)}):
        assert written(tmp_path, arrays) == safetensors.numpy.save(arrays)


@pytest.mark.parametrize(
    "turn",
    [
        lambda x: x.T,
        lambda x: x[:, ::-2],
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(">f4"),
        lambda x: x.view(Own),
    ],
)
def test_other_strides_and_bytes_become_the_formats(tmp_path, turn):
    array = turn(np.arange(12, dtype=np.float32).reshape(3, 4))
    plain = np.ascontiguousarray(np.asarray(array), np.float32)
    assert written(tmp_path, {"w": array}) == safetensors.numpy.save({"w": plain})


def test_what_is_none_of_numbers_is_refused():
    for wrong in (np.zeros(2, complex), np.zeros(2, "U3"), np.zeros(2, np.longdouble)):
        with pytest.raises(TypeError, match=r"members\['x'\]\['w'\]: expected an array of numbers"):
            members.checked_member("x", {"w": wrong})


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), MemoryError(), KeyboardInterrupt])
def test_what_cannot_be_written_leaves_no_part_of_it(tmp_path, monkeypatch, error):
    write_checkpoint(tmp_path / "saved", {"steps": 1}, {"networks": {"w": np.ones(3)}})

    def failing(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(type(error) if isinstance(error, Exception) else error):
            write_checkpoint(tmp_path / "saved", {"steps": 2}, {"networks": {"w": np.ones(3)}})
    assert os.listdir(tmp_path) == ["saved"]
    assert read_checkpoint(tmp_path / "saved").manifest["steps"] == 1


SCARCE = """
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


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_arrays_are_written_without_a_copy_of_them():
    command = [sys.executable, "-c", SCARCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr
