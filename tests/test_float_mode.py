"""How a thread rounds floats holds for the whole of its calls, whichever threads share them."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

# Numbers so small that they count as 0 where the caller says so.
FLUSHED = """
import hashlib, os
import numpy as np, rlox, torch

small = np.full(1 << 18, 1e-40, np.float32)
zeros, flags = np.zeros_like(small), np.zeros(small.shape, bool)

def results():
    yield rlox.token_kl(small, zeros, estimator="k1")
    yield rlox.policy_ratios(small, zeros)
    grid = small.reshape(256, -1)
    last = grid[0] * 2
    yield from rlox.compute_gae(grid, grid, flags.reshape(grid.shape), last, 0.5, 0.5)

for threads in "12":
    if os.fork():
        assert os.wait()[1] == 0
        continue
    os.environ["RLOX_NUM_THREADS"] = threads
    digest = hashlib.sha256()
    for flush in (False, True, False, True):  # the threads' own is that of one of these
        assert torch.set_flush_denormal(flush)
        for _ in range(3):
            for array in results():
                digest.update(array.tobytes())
                print(flush, (array == 0).sum(), array.size)
    print(digest.hexdigest(), flush=True)
    os._exit(0)
"""


def test_results_with_flushed_denormals_do_not_depend_on_the_number_of_threads():
    command = [sys.executable, "-c", FLUSHED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    lines = done.stdout.splitlines()
    one, two = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    said = [line.split() for line in one[:-1]]
    # The mode does make a difference: all of it, and none where it is off.
    assert {(flush, gone == size) for flush, gone, size in said[::4]} == {
        ("False", False),
        ("True", True),
    }
    assert one == two
