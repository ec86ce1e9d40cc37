"""`MmapReplayBuffer`: rows in memory and in a file, also after damage and killed processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError, ClosedError, NonFiniteError, OutOfMemoryError
from support.refusals import Refusal, expect_refusal, refusals, refuses
from support.replay import assert_equal_batches, batch_of, check, transition
from support.thread_runs import join, start_threads


def open_new(path, hot=5, total=50, rows=0, **keywords):
    buffer = rlox.MmapReplayBuffer(hot, total, 2, 1, path, **keywords)
    if rows:
        buffer.push_batch(*batch_of(range(rows)))
    return buffer


def all_numbers(buffer):
    """Return the numbers of the transitions that 40 large batches have."""
    return set(np.concatenate([check(buffer.sample(len(buffer), seed)) for seed in range(40)]))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replay"


def test_samples_have_the_pushed_parts_and_extras(path):
    parts = {"goal": ((3,), "int64"), "image": ((2, 2), "uint8")}
    extra = {"cost": ((), "float64"), "mask": ((2,), "bool")}
    buffer = rlox.MmapReplayBuffer(2, 10, parts, (), str(path), act_dtype="int64", extra=extra)

    def obs(i):
        return {"goal": [i, i, i], "image": np.full((2, 2), i, np.uint8)}

    for i in range(13):
        extra = {"cost": i / 3, "mask": [i % 2 == 0, True]}
        buffer.push(obs(i), i, 0.5 * i, i % 3 == 0, i % 5 == 0, obs(i + 1), extra=extra)
    assert (len(buffer), buffer.capacity, buffer.hot_capacity) == (10, 10, 2)
    batch = buffer.sample(10, seed=1)
    i = batch["actions"]
    assert i.dtype == np.int64
    assert i.min() >= 3
    for name, number in (("obs", i), ("next_obs", i + 1)):
        assert np.array_equal(batch[name]["goal"], np.repeat(number, 3).reshape(10, 3))
        assert np.array_equal(batch[name]["image"], np.repeat(number, 4).reshape(10, 2, 2))
        assert batch[name]["image"].dtype == np.uint8
    assert np.array_equal(batch["rewards"], np.float32(0.5 * i))
    assert np.array_equal(batch["terminated"], i % 3 == 0)
    assert np.array_equal(batch["truncated"], i % 5 == 0)
    assert np.array_equal(batch["cost"], i / 3)
    assert np.array_equal(batch["mask"], np.stack([i % 2 == 0, np.ones(10, bool)], 1))
    assert buffer.sample(10, seed=2, out=batch)["actions"] is i
    buffer.close()


def test_a_reopened_buffer_continues(path):
    with open_new(path, rows=33, seed=0) as buffer:
        before = buffer.sample(20, seed=7)
        assert buffer.nbytes < 33 * 50
    with rlox.MmapReplayBuffer.open(path, seed=3) as buffer:
        assert (len(buffer), buffer.capacity, buffer.hot_capacity) == (33, 50, 5)
        assert_equal_batches(buffer.sample(20, seed=7), before)
        own = buffer.sample(20)["obs"]
        buffer.push_batch(*batch_of(range(33, 75)))
        assert all_numbers(buffer) <= set(range(25, 75))
    with rlox.MmapReplayBuffer.open(path, hot_capacity=50, seed=3) as buffer:
        assert (len(buffer), buffer.hot_capacity) == (50, 50)
        assert all_numbers(buffer) == set(range(25, 75))
        buffer.verify()
    os.remove(path)
    with open_new(path, rows=33, seed=3) as buffer:
        assert np.array_equal(buffer.sample(20)["obs"], own)


def test_seeds_repeat_and_equal_those_of_a_buffer_in_memory(path):
    memory = rlox.ReplayBuffer(50, 2, 1)
    memory.push_batch(*batch_of(range(50)))
    with open_new(path, rows=50, seed=1) as buffer:
        for seed in (7, 8):
            assert_equal_batches(buffer.sample(20, seed), memory.sample(20, seed))
        rngs = [np.random.default_rng(1) for _ in range(2)]
        assert_equal_batches(*(buffer.sample(20, rng) for rng in rngs))
        assert not np.array_equal(buffer.sample(20)["obs"], buffer.sample(20)["obs"])


def test_a_closed_buffer_raises(path):
    buffer = open_new(path, rows=3)
    assert not buffer.closed
    buffer.close()
    buffer.close()
    assert buffer.closed
    closed = Refusal(buffer.sample, ClosedError, "MmapReplayBuffer", "MmapReplayBuffer.open")
    expect_refusal(closed, 1)
    expect_refusal(closed._replace(call=buffer.push), *transition(3))
    for call in (buffer.flush, buffer.verify, buffer.__len__):
        expect_refusal(closed._replace(call=call))
    with rlox.MmapReplayBuffer.open(path) as again:
        assert len(again) == 3


def test_damaged_record_is_located_and_leaves_out_unchanged(path):
    open_new(path, rows=30).close()
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) - 30 * (8 + 2 * 8 + 4 + 4 + 2 + 4) + 10] ^= 1  # in the first record
    path.write_bytes(damaged)
    memory = rlox.ReplayBuffer(30, 2, 1)
    memory.push_batch(*batch_of(range(30)))
    first = {seed: memory.sample(1, seed)["obs"][0, 0] == 0 for seed in range(1000)}
    bad, good = (next(seed for seed in first if first[seed] == x) for x in (True, False))
    with rlox.MmapReplayBuffer.open(path) as buffer:
        out = buffer.sample(1, good)
        before = {name: array.copy() for name, array in out.items()}
        for call in (lambda: buffer.sample(1, bad, out=out), buffer.verify):
            with refuses(rlox.CorruptFileError, str(path), section="record 0"):
                call()
        assert_equal_batches(out, before)
    path.write_bytes(damaged[:-1])
    with refuses(rlox.CorruptFileError, str(path), section="record 29"):
        rlox.MmapReplayBuffer.open(path)


def test_existing_files_are_not_overwritten(path, tmp_path):
    open_new(path, rows=3).close()
    (tmp_path / "foreign").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("replay", "foreign", "folder"):
        with refuses(FileExistsError, f"{tmp_path / name}: "):
            open_new(tmp_path / name)
    for name in ("foreign", "folder"):
        with refuses(rlox.CorruptFileError, str(tmp_path / name), section="header"):
            rlox.MmapReplayBuffer.open(tmp_path / name)
    with refuses(FileNotFoundError, str(tmp_path / "nowhere")):
        rlox.MmapReplayBuffer.open(tmp_path / "nowhere")
    assert (tmp_path / "foreign").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def new(*sizes, **keywords):
    return lambda path: rlox.MmapReplayBuffer(*sizes, path, **keywords)


@refusals(
    (new(0, 10, 2, 1), ArgumentError, "hot_capacity"),
    (new(11, 10, 2, 1), ArgumentError, "hot_capacity"),
    (new(1 << 50, 1 << 50, 2, 1), OutOfMemoryError, "hot_capacity"),
    (new(1, 1 << 62, 2, 1), ArgumentError, "total_capacity"),
    (new(1.5, 10, 2, 1), ArgumentTypeError, "hot_capacity"),
    (new(1, -1, 2, 1), ArgumentError, "total_capacity"),
    (new(1, 10, 0, 1), ArgumentError, "obs_dim"),
    (new(1, 10, (1 << 40, 1 << 40), 1), OutOfMemoryError, "obs_dim"),
    (new(5, 50, 2, 1, seed=-1), ArgumentError, "seed"),
)
def test_invalid_sizes_are_rejected(refusal, path):
    expect_refusal(refusal, path)
    assert not path.exists()


def test_invalid_paths_are_rejected(tmp_path):
    class Broken:
        def __fspath__(self):
            raise RuntimeError("no")

    for wrong in (None, 3, ["a"], Broken()):
        for call, argument in ((open_new, "cold_path"), (rlox.MmapReplayBuffer.open, "path")):
            expect_refusal(Refusal(call, ArgumentTypeError, argument), wrong)
    for wrong in ("", "a\0b", tmp_path / "no" / "folder", tmp_path / ("x" * 300)):
        with pytest.raises(OSError):  # noqa: PT011 - the message of the system
            open_new(wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        pytest.param("obs", [0.0], ArgumentError, id="shape"),
        pytest.param("obs", [0.0, np.nan], NonFiniteError, id="NaN obs"),
        pytest.param("next_obs", None, ArgumentError, id="no next_obs"),
        pytest.param("action", [np.nan], NonFiniteError, id="NaN action"),
        pytest.param("reward", 1e39, NonFiniteError, id="reward beyond float32"),
        pytest.param("terminated", "x", ArgumentTypeError, id="text"),
    ],
)
def test_invalid_transitions_are_rejected_and_change_nothing(path, name, value, error):
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    with open_new(path, rows=9) as buffer:
        right = dict(zip(names, transition(9), strict=True))
        expect_refusal(Refusal(lambda: buffer.push(**right | {name: value}), error, name))
        assert len(buffer) == 9
        buffer.push(**right)
        assert all_numbers(buffer) == set(range(10))
        expect_refusal(Refusal(buffer.sample, ArgumentError, "batch_size"), 11)


CHILD = """
import sys, rlox
sys.path.insert(0, sys.argv[2])
from support.replay import transition
try:
    buffer = rlox.MmapReplayBuffer.open(sys.argv[1])
except rlox.ClosedError as error:
    print(error, flush=True)
    raise SystemExit(3)
for i in range(len(buffer), len(buffer) + 20):
    buffer.push(*transition(i))
buffer.flush()
print("flushed", flush=True)
sys.stdin.read()
"""


def child(path):
    command = [sys.executable, "-c", CHILD, str(path), str(Path(__file__).parents[1])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_only_one_process_opens_a_file_until_it_ends_or_is_killed(path):
    buffer = open_new(path, rows=10)
    with refuses(ClosedError, str(path), expected="a file that no buffer has open"):
        rlox.MmapReplayBuffer.open(path)
    with child(path) as refused:
        assert "expected a file that no buffer has open" in refused.stdout.readline()
        assert refused.wait() == 3
    buffer.close()
    with child(path) as running:
        assert running.stdout.readline() == "flushed\n"
        with refuses(ClosedError, str(path)):
            rlox.MmapReplayBuffer.open(path)
        running.kill()
    with rlox.MmapReplayBuffer.open(path) as buffer:
        buffer.verify()
        assert all_numbers(buffer) == set(range(30))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_change_the_file(path):
    with open_new(path, rows=9) as buffer:
        if (pid := os.fork()) == 0:
            status = 0
            try:
                buffer.flush()
            except ClosedError:
                status = 3
            finally:
                del buffer
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        buffer.push(*transition(9))
        # The lock is held after the child has ended.
        with pytest.raises(ClosedError):
            rlox.MmapReplayBuffer.open(path)
        assert all_numbers(buffer) == set(range(10))
        buffer.verify()


def test_threads_see_whole_transitions(path):
    done = threading.Event()
    with open_new(path, hot=100, total=2000, rows=300, seed=0) as buffer:

        def read():
            while not done.is_set():
                check(buffer.sample(128))

        threads, errors = start_threads(read, 4)
        for i in range(300, 3000):
            buffer.push(*transition(i))
        done.set()
        join(threads)
        assert not errors
        assert len(buffer) == 2000
        buffer.flush()
        buffer.verify()


def test_memory_of_large_samples_is_released(path):
    with rlox.MmapReplayBuffer(10, 1000, 10_000, 1, path, seed=0) as buffer:
        rows, off = np.zeros((1000, 10_000), np.float32), np.zeros(1000, bool)
        buffer.push_batch(rows, rows, rows[:, :1], rows[:, 0], off, off)
        before = buffer.nbytes
        for _ in range(3):
            buffer.sample(1000)  # 80 MB
        assert buffer.nbytes - before < 1 << 20
        buffer.sample(32)  # 2.6 MB, which the next sample uses again
        assert 2_560_000 < buffer.nbytes - before < 8 << 20


def test_states_are_references_to_the_file(path, tmp_path):
    def draw(buffer, count=3):
        return [buffer.sample(4)["obs"].tolist() for _ in range(count)]

    with open_new(path, 3, 6, rows=5, seed=0) as buffer:
        state = buffer.state()
        assert bytes(state["path"]) == bytes(path)
        assert state["pushed"].tolist() == [5]
        expected = draw(buffer)
        buffer.load_state(state)
        assert draw(buffer) == expected
        for name, change in {
            "pushed": {"pushed": np.int64([6])},
            "id": {"id": state["id"] + 1},
            "more": {"more": np.ones(1)},
            "stream": {"stream": None},
        }.items():
            load = Refusal(buffer.load_state, ArgumentError, f'arrays["{name}"]')
            expect_refusal(load, state | change)
        # Transitions pushed after the state are dropped, as in other buffers.
        buffer.push_batch(*batch_of(range(5, 7)))
        buffer.load_state(state)
        assert len(buffer) == 5
        assert draw(buffer) == expected
    path.rename(tmp_path / "moved")
    with rlox.MmapReplayBuffer.open(tmp_path / "moved") as buffer:
        buffer.load_state(state)
        assert draw(buffer, 1) == expected[:1]
    with pytest.raises(ClosedError):
        buffer.state()
