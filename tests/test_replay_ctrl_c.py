"""Ctrl-C ends long calls of replay buffers, which stay as they were or take whole transitions."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rlox
from pressing import PROMISED, lateness, machines
from test_ctrl_c import interrupt

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

FILLED = """
rows = 3_000_000
column, off = np.arange(rows, dtype=np.float32), np.zeros(rows, bool)
obs = np.repeat(column, 4).reshape(-1, 4)
def fill(buffer):
    buffer.push_batch(obs, obs, column[:, None], column, off, off)
    return buffer
"""
STREAM = """
def state():
    return len(buffer), buffer.state()["stream"].tolist()  # which the call would have drawn from
"""

CALLS = {
    "image stacks": """
stacks, zeros, off = np.zeros((2001, 4, 84, 84), np.uint8), np.zeros(2000), np.zeros(2000, bool)
shape, kinds = (4, 84, 84), {"obs_dtype": "uint8", "frame_stack": 4}
buffer = rlox.ReplayBuffer(40_000, shape, (), **kinds, seed=0)
for _ in range(20):
    buffer.push_batch(stacks[:-1], stacks[1:], zeros, zeros, off, off, in_order=True)
def made(n):
    return lambda: buffer.sample(min(n, 40_000))
""",
    "many small ones": FILLED
    + """
buffer = fill(rlox.ReplayBuffer(rows, 4, 1, seed=0))
def made(n):
    repeated = n // rows + 1
    return lambda: [buffer.sample(min(n, rows), seed=0) for _ in range(repeated)]
""",
    "by priority": FILLED
    + """
buffer = fill(rlox.PrioritizedReplayBuffer(rows, 4, 1, seed=0))
def made(n):
    return lambda: buffer.sample(min(n, rows), beta=0.7)
def state():
    return buffer.beta, buffer.state()["stream"].tolist()
""",
    "from a file": """
import os, tempfile
folder = tempfile.mkdtemp()
rows = 1_000_000
column, off = np.arange(rows, dtype=np.float32), np.zeros(rows, bool)
buffer = rlox.MmapReplayBuffer(1000, rows, 1, 1, os.path.join(folder, "replay"), seed=0)
buffer.push_batch(column[:, None], column[:, None], column[:, None], column, off, off)
os.remove(os.path.join(folder, "replay"))
os.rmdir(folder)
def made(n):
    return lambda: buffer.sample(min(n, rows))
""",
}


# Each in one piece until all is there.
ONCE = {
    "one long sequence": """
buffer = rlox.ReplayBuffer(1000, 1, 1, seed=0)
for i in range(1000):
    buffer.push([i], [0.0], 0.0, False, False, [i + 1])
def made(n):
    return lambda: buffer.sample_sequences(1, n)
""",
    "a state": FILLED
    + """
buffer = fill(rlox.ReplayBuffer(rows, 4, 1, seed=0))
def made(n):
    return lambda: [buffer.state() for _ in range(n // rows + 1)]
def state():
    return len(buffer)
""",
    "a state to be refused": FILLED
    + """
buffer = rlox.ReplayBuffer(10, 4, 1, seed=0)
more = fill(rlox.ReplayBuffer(rows, 4, 1, seed=0)).state()
def made(n):
    def refused():
        for _ in range(n // rows + 1):
            try:
                buffer.load_state(more)
            except ValueError:
                pass
    return refused
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_what_takes_long_in_one_piece_ends_at_once(name):
    code = ONCE[name]
    interrupt(code if "def state" in code else code + STREAM)


@pytest.mark.slow
def test_taking_a_state_ends_at_once_and_leaves_what_was_there_or_nothing():
    rows = 6_000_000
    column, off = np.arange(rows, dtype=np.float32), np.zeros(rows, bool)
    obs = np.repeat(column, 8).reshape(-1, 8)
    buffer = rlox.ReplayBuffer(rows, 8, 1, seed=0)
    buffer.push_batch(obs, obs, column[:, None], column, off, off)
    state, tries = buffer.state(), []
    for after in (0.05, 0.2, 0.4, 0.6):
        slack, late = machines(), lateness(lambda: buffer.load_state(state), after)
        tries.append((0.0 if late is None else late, slack, machines()))
        assert len(buffer) in (0, rows)
        buffer.push([7.0] * 8, [7.0], 7.0, False, True, [8.0] * 8)
        buffer.load_state(state)
        assert len(buffer) == rows
    assert all(late - max(slack) < PROMISED for late, *slack in tries), tries


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_sample_ends_at_once_and_draws_nothing(name):
    code = CALLS[name]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.getenv("PYTHONPATH")])])
    interrupt(code if "def state" in code else code + STREAM, PYTHONPATH=paths)


@pytest.mark.slow
@pytest.mark.parametrize("hot", [500, 1_000_000])
def test_a_push_to_a_file_ends_at_once_and_takes_whole_pieces(tmp_path, hot):
    """Of transitions that tell their number, the first ones are there, also in the file."""
    rows = 1_000_000
    column, off = np.arange(rows, dtype=np.float32), np.zeros(rows, bool)
    path, tries = tmp_path / "replay", []
    for after in (0.05, 0.1, 0.2):
        buffer = rlox.MmapReplayBuffer(hot, 40 * rows, 64, 1, path)
        obs = np.broadcast_to(column[:, None], (rows, 64))
        arrays = np.ascontiguousarray(obs), obs, column[:, None], column, off, off

        def push(buffer=buffer, arrays=arrays):
            while True:
                buffer.push_batch(*arrays)

        slack, late = machines(), lateness(push, after)
        tries.append((late, slack, machines()))
        stored = len(buffer)
        assert stored % rows % hot == 0
        if stored:
            numbers = buffer.sample(min(stored, 10_000))["obs"]
            assert (numbers == numbers[:, :1]).all()
            assert numbers.max() < rows
        buffer.push([7.0] * 64, [7.0], 7.0, False, True, [8.0] * 64)
        buffer.close()
        with rlox.MmapReplayBuffer.open(path) as again:
            assert len(again) == stored + 1
            again.verify()
        path.unlink()
    assert min(late - max(slack) for late, *slack in tries) < PROMISED, tries


def test_a_push_that_is_stopped_stores_what_came_before(tmp_path):
    """Some rows of one call may be there: the first ones, each whole, with their priorities."""
    rows = 4_000_000
    column, off = np.arange(rows, dtype=np.float32), np.zeros(rows, bool)
    buffer = rlox.PrioritizedReplayBuffer(rows, 1, 1)
    arrays = column[:, None], column[:, None], column[:, None], column, off, off
    began = time.perf_counter()
    late = lateness(lambda: buffer.push_batch(*arrays), 0.1)
    if late is None:
        pytest.skip(f"over in {time.perf_counter() - began} s")
    stored = len(buffer)
    assert stored < rows
    if stored:
        batch = buffer.sample(stored)
        assert batch["indices"].max() < stored
        assert np.array_equal(batch["obs"][:, 0], batch["indices"])
        buffer.update_priorities(batch["indices"], batch["weights"])
    buffer.push([1.0], [2.0], 3.0, True, False, [4.0])
    assert len(buffer) == stored + 1


def test_a_buffer_is_shown_in_a_handler_in_the_middle_of_a_push():
    shown = []

    def show(*_):
        shown.append(repr(buffer))

    rows = 4_000_000
    buffer = rlox.ReplayBuffer(rows, 1, 1)
    zeros, no = np.zeros((rows, 1), np.float32), np.zeros(rows, np.bool_)
    usual = signal.signal(signal.SIGALRM, show)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        buffer.push_batch(zeros, zeros, zeros, zeros[:, 0], no, no)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    assert shown
    assert all(text.startswith("ReplayBuffer(") and "obs=" in text for text in shown)
    assert f"len={rows}" in repr(buffer)
