"""Threads that sample from a buffer at the same time, while another thread pushes."""

import contextlib
import os
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import rlox
from support.replay import batch_of, check, transition
from support.thread_runs import join, run_program, run_threads, start_threads


def make_filled(rows=2000):
    buffer = rlox.ReplayBuffer(rows, 40, 1)
    for i in range(rows):
        buffer.push(*transition(i, dim=40))
    return buffer


@pytest.mark.parametrize("name", ["ReplayBuffer", "PrioritizedReplayBuffer", "MmapReplayBuffer"])
def test_samples_without_a_seed_share_the_stream_of_the_buffer(name, tmp_path):
    """Check that four threads draw the samples of a single thread in some order."""
    i, off = np.arange(200.0), np.zeros(200, bool)
    single, shared = (
        rlox.MmapReplayBuffer(10, 200, 1, 1, tmp_path / file, seed=3)
        if name == "MmapReplayBuffer"
        else getattr(rlox, name)(200, 1, 1, seed=3)
        for file in "ab"
    )
    for buffer in (single, shared):
        buffer.push_batch(i[:, None], i[:, None], i[:, None], i, off, off)
    samples = []
    expected = sorted(tuple(single.sample(140)["rewards"]) for _ in range(100))
    work = lambda: samples.extend(tuple(shared.sample(140)["rewards"]) for _ in range(25))  # noqa: E731
    assert run_threads(work, 4) == []
    assert sorted(samples) == expected


def test_seeded_samples_are_equal_in_every_thread():
    buffer = make_filled()
    expected = [buffer.sample(300, seed=seed)["obs"] for seed in range(20)]

    def work():
        for seed in range(20):
            assert np.array_equal(buffer.sample(300, seed=seed)["obs"], expected[seed])
            assert buffer.sample_sequences(3, 5, seed=seed)["obs"].shape == (5, 3, 40)

    assert run_threads(work, 6) == []


@contextlib.contextmanager
def repeat_in_threads(work, count):
    """Repeat `work` in threads, which must not raise."""
    done = threading.Event()

    def repeat():
        while not done.is_set():
            work()

    threads, errors = start_threads(repeat, count)
    try:
        yield
    finally:
        done.set()
        join(threads)
    assert errors == []


def test_writer_is_not_starved_by_readers():
    buffer = make_filled()
    with repeat_in_threads(lambda: check(buffer.sample(2000), dim=40), 6):
        start = time.perf_counter()
        for i in range(2000, 2100):
            buffer.push(*transition(i, dim=40))
        assert time.perf_counter() - start < 30
    assert len(buffer) == 2000
    assert buffer.sample(2000)["obs"].max() >= 2050


def test_reader_is_not_starved_by_writers():
    buffer = make_filled()
    rows = np.repeat(np.arange(20_000, dtype=np.float32), 40).reshape(-1, 40)
    numbers, off = rows[:, 0], np.zeros(20_000, bool)
    batch = rows, rows + 1, -numbers[:, None], 0.5 * numbers, off, off
    with repeat_in_threads(lambda: buffer.push_batch(*batch), 3):
        for _ in range(20):
            check(buffer.sample(500), dim=40)


# A program whose function `interrupt` runs a handler during a long call of sample.
INTERRUPT_SAMPLE = """
import os, signal, sys, threading, time
import numpy as np, rlox
rows, width = 200_000, 64
obs, off = np.zeros((rows, width), np.float32), np.zeros(rows, bool)
column = np.zeros(rows, np.float32)
buffer = rlox.ReplayBuffer(rows, width, 1, seed=0)
buffer.push_batch(obs, obs, column[:, None], column, off, off)
row = np.zeros(width, np.float32), column[:1], 0.0, False, False, np.zeros(width, np.float32)
ran = []
def interrupt(handler):
    def once(*_):
        try:
            buffer.push(*row)
        except rlox.ClosedError as error:
            assert error.got == "an object that this thread's own call is using"
            signal.setitimer(signal.ITIMER_REAL, 0)
            handler()
            ran.append(True)
    signal.signal(signal.SIGALRM, once)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    while not ran:
        buffer.sample(rows)
"""

NEEDS_SIGNALS = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@pytest.mark.processes
@NEEDS_SIGNALS
def test_threads_sample_at_the_same_time():
    code = """
        def handler():
            thread = threading.Thread(target=lambda: buffer.sample(1000), daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive(), "the thread waits for the other sample"
            assert len(buffer) == len(buffer.sample(5, seed=1)["obs"]) + rows - 5
        interrupt(handler)
    """
    run_program(INTERRUPT_SAMPLE + textwrap.dedent(code))


@pytest.mark.processes
@NEEDS_SIGNALS
def test_push_waits_for_a_sample_and_later_samples_wait_for_the_push():
    code = """
        threads = []
        def handler():
            for work in (lambda: buffer.push(*row), lambda: buffer.sample(1000, seed=1)):
                threads.append(threading.Thread(target=work, daemon=True))
                threads[-1].start()
                threads[-1].join(0.2)
            # The sample waits for the push, else many readers would starve the push.
            # Threads without signal handlers wait without the GIL.
            sys.setswitchinterval(60)
            for _ in range(5):
                until = time.perf_counter() + 0.12
                while time.perf_counter() < until:
                    pass
                time.sleep(0.013)
            sys.setswitchinterval(0.005)
            assert threads[0].is_alive() and threads[1].is_alive()
            buffer.sample(5)  # the reading thread does not wait for itself
        interrupt(handler)
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
    """
    run_program(INTERRUPT_SAMPLE + textwrap.dedent(code))


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_reads_or_raises():
    """Check children that are forked while threads of the parent sample and push."""
    code = """
        import os, threading, time
        import numpy as np, rlox
        buffer = rlox.ReplayBuffer(20_000, 40, 1)
        rows, off = np.zeros((20_000, 40), np.float32), np.zeros(20_000, bool)
        column = rows[:, 0]
        push = lambda: buffer.push_batch(rows, rows, column[:, None], column, off, off)
        push()
        def work(call):
            while True:
                call()
                time.sleep(0.003)  # without a pause, every fork would be during a push
        for call in (push, lambda: buffer.sample(5000), lambda: buffer.sample(5000)):
            threading.Thread(target=work, args=(call,), daemon=True).start()
        results = []
        for _ in range(20):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                outcomes = []
                for call in (lambda: buffer.sample(10), push):
                    try:
                        call()
                        outcomes.append("done")
                    except rlox.ClosedError as error:
                        assert "parent process" in error.got, error
                        outcomes.append("rejected")
                os.write(write, " ".join(outcomes).encode())
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            results.append(os.read(read, 1000).decode())
        assert all(len(result.split()) == 2 for result in results), results
        assert any(result.startswith("done") for result in results), results
        os._exit(0)
    """
    run_program(code)


def test_readers_of_a_closed_buffer_raise(tmp_path):
    buffer = rlox.MmapReplayBuffer(10, 1000, 2, 1, tmp_path / "replay")
    buffer.push_batch(*batch_of(range(1000)))

    def read():
        while True:
            buffer.sample(100)

    threads, errors = start_threads(read, 4)
    time.sleep(0.05)
    buffer.close()
    join(threads)
    assert [type(error) for error in errors] == [rlox.ClosedError] * 4
    assert buffer.closed


def test_threads_may_close_a_buffer_at_the_same_time(tmp_path):
    for turn in range(50):
        buffer = rlox.MmapReplayBuffer(100, 1000, 2, 1, tmp_path / f"replay{turn}")
        buffer.push(*transition(1))
        barrier = threading.Barrier(4)
        work = lambda barrier=barrier, buffer=buffer: (barrier.wait(), buffer.close())  # noqa: E731
        assert run_threads(work, 4) == []
        assert buffer.closed


@pytest.mark.processes
def test_signal_handler_of_a_waiting_thread_may_wait_for_later_threads():
    program = """
        import signal, threading, time
        import numpy as np
        import rlox

        rows = 2_000_000
        buffer = rlox.ReplayBuffer(rows, 8, 1, seed=0)
        obs, action = np.zeros((rows, 8), np.float32), np.zeros((rows, 1), np.float32)
        reward, off = np.zeros(rows, np.float32), np.zeros(rows, bool)
        push = lambda: buffer.push_batch(obs, obs, action, reward, off, off)
        push()
        reader = threading.Thread(target=lambda: buffer.sample(64), daemon=True)
        results = []

        def handler(*_):
            reader.start()
            reader.join(20)
            results.append(reader.is_alive())

        signal.signal(signal.SIGALRM, handler)
        for _ in range(20):
            writer = threading.Thread(target=push)
            writer.start()
            while not writer.is_alive():
                pass
            if not results and reader.ident is None:
                signal.setitimer(signal.ITIMER_REAL, 0.03)
            buffer.sample(64)
            writer.join()
        assert results == [False], results
    """
    run_program(program)
