"""Members of checkpoints: the bytes of safetensors, written without a copy of the arrays."""

import errno
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from rlox import ArgumentTypeError
from rlox import checkpoint as members
from rlox.checkpoint import read_checkpoint, write_checkpoint
from support.refusals import Refusal, expect_refusal

SIGNED = ("int8", "int16", "int32", "int64")
DTYPES = ("bool", *SIGNED, *(f"u{t}" for t in SIGNED), "float16", "float32", "float64")
SHAPES = {"a": (3, 5), "b/'ü'\"\\": (), "empty": (0, 4), "z": (2, 1, 3)}


class Subclass(np.ndarray):
    pass


def write_and_read(tmp_path, arrays):
    path = tmp_path / "x.safetensors"
    path.unlink(missing_ok=True)
    entry = members.write_member(path, members.check_member("x", arrays))
    data = path.read_bytes()
    assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return data


@pytest.mark.parametrize("piece", [1, 7, 1 << 24])
def test_members_have_the_bytes_of_safetensors(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(members, "_PIECE", piece)
    rng = np.random.default_rng(7)
    all_arrays = {
        f"{name} {t}": np.array(rng.integers(0, 2, shape)).astype(t)
        for t in DTYPES
        for name, shape in SHAPES.items()
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
    check = Refusal(members.check_member, ArgumentTypeError, "members['x']['w']")
    expect_refusal(check, "x", {"w": np.zeros(2, dtype)})


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
