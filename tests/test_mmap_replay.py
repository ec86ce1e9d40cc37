"""`MmapReplayBuffer`: rows in memory and in a file, also after damage and killed processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlox
from support.replay import (
    assert_threads_see_whole_transitions,
    batch_of,
    drawn,
    transition,
)


def made(path, hot=5, total=50, rows=0, **keywords):
    buffer = rlox.MmapReplayBuffer(hot, total, 2, 1, path, **keywords)
    for i in range(rows):
        buffer.push(*transition(i))
    return buffer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replay"


def test_samples_have_the_pushed_parts_and_extras(path):
    buffer = rlox.MmapReplayBuffer(
        2,
        10,
        {"goal": ((3,), "int64"), "image": ((2, 2), "uint8")},
        (),
        str(path),
        act_dtype="int64",
        extra={"cost": ((), "float64"), "mask": ((2,), "bool")},
    )

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
    for name, at in (("obs", i), ("next_obs", i + 1)):
        assert np.array_equal(batch[name]["goal"], np.repeat(at, 3).reshape(10, 3))
        assert np.array_equal(batch[name]["image"], np.repeat(at, 4).reshape(10, 2, 2))
        assert batch[name]["image"].dtype == np.uint8
    assert np.array_equal(batch["rewards"], np.float32(0.5 * i))
    assert np.array_equal(batch["terminated"], i % 3 == 0)
    assert np.array_equal(batch["truncated"], i % 5 == 0)
    assert np.array_equal(batch["cost"], i / 3)
    assert np.array_equal(batch["mask"], np.stack([i % 2 == 0, np.ones(10, bool)], 1))
    again = {name: array for name, array in batch.items() if name != "obs"}
    assert buffer.sample(10, seed=2, out={**again, "obs": batch["obs"]})["actions"] is i
    buffer.close()


def test_a_reopened_buffer_continues(path):
    with made(path, rows=33, seed=0) as buffer:
        before = buffer.sample(20, seed=7)
        assert buffer.nbytes < 33 * 50
    with rlox.MmapReplayBuffer.open(path, seed=3) as buffer:
        assert (len(buffer), buffer.capacity, buffer.hot_capacity) == (33, 50, 5)
        for name, array in buffer.sample(20, seed=7).items():
            assert np.array_equal(array, before[name])
        own = buffer.sample(20)["obs"]
        buffer.push_batch(*batch_of(range(33, 75)))
        assert drawn(buffer) <= set(range(25, 75))
    with rlox.MmapReplayBuffer.open(path, hot_capacity=50, seed=3) as buffer:
        assert (len(buffer), buffer.hot_capacity) == (50, 50)
        assert drawn(buffer) == set(range(25, 75))
        buffer.verify()
    os.remove(path)
    with made(path, rows=33, seed=3) as buffer:
        assert np.array_equal(buffer.sample(20)["obs"], own)


def test_seeds_repeat_and_equal_those_of_a_buffer_in_memory(path):
    with made(path, rows=50, seed=1) as buffer:
        one, two = (buffer.sample(20, 7)["obs"].tolist() for _ in range(2))
        assert one == two != buffer.sample(20, 8)["obs"].tolist()
        rng = [np.random.default_rng(1) for _ in range(2)]
        assert np.array_equal(buffer.sample(20, rng[0])["obs"], buffer.sample(20, rng[1])["obs"])
        assert buffer.sample(20)["obs"].tolist() != buffer.sample(20)["obs"].tolist()
        # The same numbers as a buffer that is all in memory draws.
        memory = rlox.ReplayBuffer(50, 2, 1)
        memory.push_batch(*batch_of(range(50)))
        assert np.array_equal(memory.sample(20, 7)["obs"], np.float32(one))


def test_a_closed_buffer_raises(path):
    buffer = made(path, rows=3)
    assert not buffer.closed
    buffer.close()
    buffer.close()
    assert buffer.closed
    calls = [
        lambda: buffer.sample(1),
        lambda: buffer.push(*transition(3)),
        buffer.flush,
        buffer.verify,
        lambda: len(buffer),
    ]
    for call in calls:
        with pytest.raises(rlox.ClosedError, match=r"MmapReplayBuffer: .* MmapReplayBuffer\.open"):
            call()
    with rlox.MmapReplayBuffer.open(path) as again:
        assert len(again) == 3


def test_damage_is_detected_and_located(path):
    with made(path, rows=30):
        pass
    whole = path.read_bytes()
    record = 8 + 2 * 8 + 4 + 4 + 2 + 4
    rng = np.random.default_rng(0)
    for at in [*rng.integers(0, len(whole), 300).tolist(), 0, 20, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with (
            pytest.raises(rlox.CorruptFileError, match=f"{path}, section "),
            rlox.MmapReplayBuffer.open(path) as buffer,
        ):
            buffer.verify()
    for cut in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(rlox.CorruptFileError, match=r"section .*the file's end"):
            rlox.MmapReplayBuffer.open(path)
    damaged = bytearray(whole)
    damaged[len(whole) - 30 * record + 10] ^= 1
    path.write_bytes(damaged)
    with rlox.MmapReplayBuffer.open(path) as buffer:
        # The first record is the damaged one.
        whole = rlox.ReplayBuffer(30, 2, 1)
        whole.push_batch(*batch_of(range(30)))
        bad = next(seed for seed in range(1000) if whole.sample(1, seed)["obs"][0, 0] == 0)
        good = next(seed for seed in range(1000) if whole.sample(1, seed)["obs"][0, 0] != 0)
        out = buffer.sample(1, good)
        before = {name: array.copy() for name, array in out.items()}
        with pytest.raises(rlox.CorruptFileError, match="section record 0: expected what rlox"):
            buffer.sample(1, bad, out=out)
        assert all(np.array_equal(out[name], array) for name, array in before.items())


def test_existing_files_are_not_overwritten(path, tmp_path):
    made(path, rows=3).close()
    (tmp_path / "foreign").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("foreign")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("replay", "foreign", "folder", "link", "dangling"):
        with pytest.raises(FileExistsError, match=f"{name}: expected nothing there"):
            made(tmp_path / name)
    for name in ("foreign", "folder", "link"):
        with pytest.raises(rlox.CorruptFileError, match=f"{name}, section header"):
            rlox.MmapReplayBuffer.open(tmp_path / name)
    for name in ("nowhere", "dangling"):
        with pytest.raises(FileNotFoundError, match=name):
            rlox.MmapReplayBuffer.open(tmp_path / name)
    assert (tmp_path / "foreign").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 5
    with rlox.MmapReplayBuffer.open(path) as buffer:
        assert len(buffer) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((0, 10, 2, 1), ValueError, "hot_capacity: expected at least 1"),
        ((1, 0, 2, 1), ValueError, "total_capacity: expected at least 1"),
        ((11, 10, 2, 1), ValueError, "hot_capacity: expected at most total_capacity = 10"),
        ((1 << 50, 1 << 50, 2, 1), MemoryError, r"hot_capacity: .* bytes \("),
        ((1, 1 << 62, 2, 1), ValueError, "total_capacity: expected a file of less than"),
        ((1.5, 10, 2, 1), TypeError, "hot_capacity: expected an integer"),
        ((1, -1, 2, 1), ValueError, "total_capacity: expected at least 1, got -1"),
        ((1, 10, 0, 1), ValueError, "obs: expected a row with elements"),
        ((1, 10, (1 << 40, 1 << 40), 1), MemoryError, "expected rows that fit into memory"),
    ],
)
def test_invalid_sizes_are_rejected(path, arguments, error, said):
    with pytest.raises(error, match=said):
        rlox.MmapReplayBuffer(*arguments, path)
    assert not path.exists()


def test_invalid_paths_are_rejected(tmp_path):
    class Broken:
        def __fspath__(self):
            raise RuntimeError("no")

    for wrong in (None, 3, ["a"], Broken()):
        with pytest.raises(TypeError, match=r"cold_path: expected a str or an os\.PathLike"):
            made(wrong)
        with pytest.raises(TypeError, match=r"path: expected a str or an os\.PathLike"):
            rlox.MmapReplayBuffer.open(wrong)
    for wrong in ("", "a\0b", tmp_path / "no" / "folder", tmp_path / ("x" * 300)):
        with pytest.raises(OSError):  # noqa: PT011 - the system's own words
            made(wrong)
    with pytest.raises(ValueError, match="seed: expected"):
        made(tmp_path / "replay", seed=-1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("replaced", "error", "said"),
    [
        ({"obs": [0.0]}, ValueError, r"obs: expected shape \[2\], got \[1\]"),
        ({"obs": [0.0, np.nan]}, ValueError, "obs: expected finite numbers, got NaN in row 0"),
        ({"next_obs": [np.inf, 0.0]}, ValueError, "next_obs: expected finite numbers"),
        ({"next_obs": None}, ValueError, "next_obs: expected the observation after each row, got"),
        ({"action": [np.nan]}, ValueError, "action: expected finite numbers, got NaN"),
        ({"reward": 1e39}, ValueError, "reward: expected finite numbers, got inf"),
        ({"terminated": "x"}, TypeError, "terminated: expected"),
    ],
)
def test_invalid_transitions_are_rejected_and_change_nothing(path, replaced, error, said):
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    with made(path, rows=9) as buffer:
        right = dict(zip(names, transition(9), strict=True))
        with pytest.raises(error, match=said):
            buffer.push(**right | replaced)
        assert len(buffer) == 9
        buffer.push(**right)
        assert drawn(buffer) == set(range(10))
        for count in (0, 11, 1 << 62):
            with pytest.raises(ValueError, match="batch_size: expected 1 to 10"):
                buffer.sample(count)


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
    command = [sys.executable, "-c", CHILD, str(path), str(Path(__file__).parent)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_only_one_process_opens_a_file_until_it_ends_or_is_killed(path):
    buffer = made(path, rows=10)
    with pytest.raises(rlox.ClosedError, match="expected a file that no buffer has open"):
        rlox.MmapReplayBuffer.open(path)
    with child(path) as refused:
        assert "expected a file that no buffer has open" in refused.stdout.readline()
        assert refused.wait() == 3
    buffer.close()
    with child(path) as running:
        assert running.stdout.readline() == "flushed\n"
        with pytest.raises(rlox.ClosedError, match=str(path)):
            rlox.MmapReplayBuffer.open(path)
        running.kill()
    with rlox.MmapReplayBuffer.open(path) as buffer:
        buffer.verify()
        assert drawn(buffer) == set(range(30))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_change_the_file(path):
    with made(path, rows=9) as buffer:
        told, tell = os.pipe()
        if (pid := os.fork()) == 0:
            said = b"nothing"
            try:
                buffer.flush()
            except rlox.ClosedError as error:
                said = str(error).encode()
            finally:
                os.write(tell, said)
                del buffer
                os._exit(0)
        os.waitpid(pid, 0)
        assert b"one that was forked from it" in os.read(told, 1000)
        buffer.push(*transition(9))
        # The child's end has not let the lock go.
        with pytest.raises(rlox.ClosedError):
            rlox.MmapReplayBuffer.open(path)
        assert drawn(buffer) == set(range(10))
        buffer.verify()


def test_threads_see_whole_transitions(path):
    with made(path, hot=100, total=2000, rows=300, seed=0) as buffer:
        assert_threads_see_whole_transitions(buffer, range(300, 3000), 128)
        buffer.flush()
        buffer.verify()


def test_memory_of_large_samples_is_released(tmp_path):
    with rlox.MmapReplayBuffer(10, 1000, 10_000, 1, tmp_path / "replay", seed=0) as buffer:
        rows = np.zeros((1000, 10_000), np.float32)
        off = np.zeros(1000, bool)
        buffer.push_batch(rows, rows, rows[:, :1], rows[:, 0], off, off)
        before = buffer.nbytes
        for _ in range(3):
            buffer.sample(1000)  # 80 MB
        assert buffer.nbytes - before < 1 << 20
        buffer.sample(32)  # 2.6 MB, which the next one uses again
        assert 2_560_000 < buffer.nbytes - before < 8 << 20


@pytest.mark.parametrize("place", [0, 1])
def test_reading_does_not_change_a_damaged_file(tmp_path, place):
    path = tmp_path / "replay"
    with rlox.MmapReplayBuffer(5, 50, 2, 1, path) as buffer:
        for i in range(30):
            buffer.push(*transition(i))
    damaged = bytearray(path.read_bytes())
    records = 30 * (8 + 2 * 8 + 4 + 4 + 2 + 4)
    damaged[len(damaged) - records - 1024 + 512 * place] ^= 1
    path.write_bytes(damaged)
    with rlox.MmapReplayBuffer.open(path) as buffer:
        assert len(buffer) == 30
        with pytest.raises(rlox.CorruptFileError, match="section commit"):
            buffer.verify()
    assert path.read_bytes() == damaged
    with rlox.MmapReplayBuffer.open(path) as buffer:
        buffer.flush()
        buffer.verify()


def test_states_are_references_to_the_file(tmp_path):
    def pushed(name, count):
        buffer = rlox.MmapReplayBuffer(3, 6, 2, 1, tmp_path / name, seed=0)
        for i in range(count):
            buffer.push(*transition(i))
        return buffer

    with pushed("a", 5) as buffer, pushed("b", 9) as other:
        state = buffer.state()
        assert bytes(state["path"]) == bytes(tmp_path / "a")
        assert state["pushed"].tolist() == [5]
        drawn = [buffer.sample(4)["obs"] for _ in range(3)]
        buffer.load_state(state)
        again = [buffer.sample(4)["obs"] for _ in range(3)]
        assert np.array_equal(drawn, again)
        for wrong, said in [
            ({**state, "pushed": np.int64([6])}, "expected at most 5, as the file has, got 6"),
            ({**state, "id": state["id"] + 1}, "expected that of .*, got that of another file"),
            ({**state, "more": np.ones(1)}, "expected no such array"),
            ({"stream": state["stream"]}, "expected an array, got none"),
            ({}, "expected an array, got none"),
        ]:
            with pytest.raises(ValueError, match=r"arrays\[.*\]: " + said):
                buffer.load_state(wrong)
        with pytest.raises(ValueError, match="got that of another file"):
            other.load_state(state)
        # Transitions that were pushed since are dropped, as in other buffers.
        for i in range(5, 7):
            buffer.push(*transition(i))
        buffer.load_state(state)
        assert len(buffer) == 5
        assert np.array_equal([buffer.sample(4)["obs"] for _ in range(3)], drawn)
    (tmp_path / "a").rename(tmp_path / "moved")
    with rlox.MmapReplayBuffer.open(tmp_path / "moved") as buffer:
        buffer.load_state(state)
        assert np.array_equal(buffer.sample(4)["obs"], drawn[0])
    with pytest.raises(rlox.ClosedError):
        buffer.state()


def test_states_of_overwritten_transitions_are_rejected(tmp_path):
    with rlox.MmapReplayBuffer(3, 6, 2, 1, tmp_path / "a", seed=0) as buffer:
        rows = np.zeros((120_000, 2), np.float32)
        off = np.zeros(120_000, bool)
        for i in range(6):
            buffer.push(*transition(i))
        state = buffer.state()
        buffer.push_batch(rows, rows, rows[:, :1], rows[:, 0], off, off)
        drawn = buffer.sample(4, seed=1)["obs"]
        # What the file has room for beside 6 transitions is less than that.
        with pytest.raises(
            ValueError, match="older rows were overwritten since, got 6; keep a copy"
        ):
            buffer.load_state(state)
        assert np.array_equal(buffer.sample(4, seed=1)["obs"], drawn)
