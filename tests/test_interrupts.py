"""Ctrl-C stops a run once and raises twice. Long calls end quickly and leave consistent objects."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlox
from rlox._concurrency import stop_on_interrupt
from rlox._rlox import network_backends
from support import interrupt_cases
from support.interrupt_cases import CALLS, HANDLERS, ONCE, PROMISED, SLOW, TRAINING, lateness
from support.interrupt_cases import machine_lateness as machine
from support.thread_runs import run_threads

pytestmark = [pytest.mark.serial, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]
SMOKE = ["token_kl", "RunningMeanStd.update", "learn by train"]


def run_cases(names, shares=(), limit=100, **variables):
    """Run cases one after the other in a child process and return their errors."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, interrupt_cases.__file__, json.dumps([*names]), json.dumps([*shares])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: error for name, error in json.loads(done.stdout).items() if error}


def test_first_interrupt_stops_and_second_raises():
    stopped = []
    previous = signal.getsignal(signal.SIGINT)

    def interrupt_twice():
        with stop_on_interrupt(lambda: stopped.append(True)):
            signal.raise_signal(signal.SIGINT)
            assert stopped == [True]
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert stopped == [True]
    assert signal.getsignal(signal.SIGINT) is previous


def test_ignored_interrupts_stay_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_interrupt(pytest.fail):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_other_threads_do_not_change_signal_handlers():
    def run():
        with stop_on_interrupt(pytest.fail):
            pass

    assert run_threads(run) == []


def test_interrupts_end_calls_and_training_in_time():
    errors = run_cases([*SMOKE, "held"])
    assert "seconds after Ctrl-C" in errors.pop("held")  # control case
    assert errors == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interrupts_end_all_calls_in_time():
    assert run_cases(CALLS, limit=400) == {}
    assert run_cases(ONCE, limit=400) == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_interrupts_at_any_progress_end_calls_in_time():
    shares = [0.05, 0.2, 0.45, 0.7]
    assert run_cases([*CALLS, *SLOW], shares, limit=3000, RLOX_NUM_THREADS="2") == {}
    # With 16 threads, the part that a single thread executes is short.
    assert run_cases(["making environments"], [0.1, 0.3], RLOX_NUM_THREADS="16") == {}


@pytest.mark.slow
@pytest.mark.parametrize("backend", network_backends())
def test_interrupts_end_training_on_every_backend(backend):
    assert run_cases(TRAINING, [backend]) == {}


@pytest.mark.slow
def test_signal_handlers_during_a_call_leave_consistent_objects():
    assert run_cases(HANDLERS) == {}


@pytest.mark.slow
def test_interrupted_reset_changes_nothing():
    env = rlox._rlox.NativeVectorEnv("CartPole-v1", 4_000_000, 0)
    before = env.rng_states()
    assert lateness(lambda: env.reset(2**70), 0.01) is not None
    assert np.array_equal(env.rng_states(), before)


def columns(rows, width):
    """Return transitions whose values all equal the row number."""
    column, no_flags = np.arange(rows, dtype=np.float32), np.zeros(rows, bool)
    obs = np.repeat(column, width).reshape(-1, width)
    return obs, obs, column[:, None], column, no_flags, no_flags


@pytest.mark.slow
def test_interrupted_load_state_loads_all_or_nothing():
    rows = 6_000_000
    buffer = rlox.ReplayBuffer(rows, 8, 1, seed=0)
    buffer.push_batch(*columns(rows, 8))
    state, tries = buffer.state(), []
    for after in (0.05, 0.2, 0.4, 0.6):
        slack, late = machine(), lateness(lambda: buffer.load_state(state), after)
        tries.append((0.0 if late is None else late, slack, machine()))
        assert len(buffer) in (0, rows)
        buffer.push([7.0] * 8, [7.0], 7.0, False, True, [8.0] * 8)
        buffer.load_state(state)
        assert len(buffer) == rows
    assert all(late - max(slack) < PROMISED for late, *slack in tries), tries


@pytest.mark.slow
@pytest.mark.parametrize("hot", [500, 1_000_000])
def test_interrupted_push_to_a_file_stores_complete_blocks(tmp_path, hot):
    rows = 1_000_000
    path, tries, arrays = tmp_path / "replay", [], columns(rows, 64)
    for after in (0.05, 0.1, 0.2):
        buffer = rlox.MmapReplayBuffer(hot, 40 * rows, 64, 1, path)

        def push(buffer=buffer):
            while True:
                buffer.push_batch(*arrays)

        slack, late = machine(), lateness(push, after)
        tries.append((late, slack, machine()))
        stored = len(buffer)
        assert stored % rows % hot == 0
        if stored:
            numbers = buffer.sample(min(stored, 10_000))["obs"]
            assert (numbers == numbers[:, :1]).all()
            assert numbers.max() < rows
        buffer.push([7.0] * 64, [7.0], 7.0, False, True, [8.0] * 64)
        buffer.close()
        with rlox.MmapReplayBuffer.open(path) as reopened:
            assert len(reopened) == stored + 1
            reopened.verify()
        path.unlink()
    assert min(late - max(slack) for late, *slack in tries) < PROMISED, tries


def test_interrupted_push_stores_the_first_rows_with_their_priorities():
    rows = 4_000_000
    arrays, buffer = columns(rows, 1), rlox.PrioritizedReplayBuffer(rows, 1, 1)
    if lateness(lambda: buffer.push_batch(*arrays), 0.1) is None:
        pytest.skip("the push ended earlier")
    stored = len(buffer)
    assert stored < rows
    if stored:
        batch = buffer.sample(stored)
        assert batch["indices"].max() < stored
        assert np.array_equal(batch["obs"][:, 0], batch["indices"])
        buffer.update_priorities(batch["indices"], batch["weights"])
    buffer.push([1.0], [2.0], 3.0, True, False, [4.0])
    assert len(buffer) == stored + 1


def test_repr_works_in_a_signal_handler_during_a_push():
    texts, rows = [], 4_000_000
    buffer = rlox.ReplayBuffer(rows, 1, 1)
    previous = signal.signal(signal.SIGALRM, lambda *_: texts.append(repr(buffer)))
    arrays = columns(rows, 1)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        buffer.push_batch(*arrays)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert texts
    assert all(text.startswith("ReplayBuffer(") and "obs=" in text for text in texts)
    assert f"len={rows}" in repr(buffer)
