"""One object in several threads, and in a forked process: it works or raises, and never hangs."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from rlox import ClosedError, VecEnv


def test_eight_threads_on_one_object_step_it_one_after_the_other():
    """All send the same actions, so that the order cannot matter."""
    for n in (2, 256):
        env, alone = VecEnv(n, 0), VecEnv(n, 0)
        env.reset(), alone.reset()
        actions, errors = np.arange(n) % 2, []

        def work(env=env, actions=actions, errors=errors):
            try:
                for _ in range(100):
                    env.step(actions)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []
        for _ in range(800):
            alone.step(actions)
        assert np.array_equal(env.step(actions)[0], alone.step(actions)[0])
        assert env.drain_episodes()[1].tolist() == alone.drain_episodes()[1].tolist()


def test_closing_while_others_step_ends_them_with_an_error():
    env = VecEnv(512, 0)
    env.reset()
    outcomes, begun = [], threading.Barrier(5)

    def work():
        begun.wait()
        try:
            while True:
                env.step(np.zeros(512, int))
        except ClosedError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    env.close()
    for thread in threads:
        thread.join(timeout=60)
    assert len(outcomes) == 4


def test_threads_writing_into_the_same_arrays_are_refused_or_take_turns():
    env = VecEnv(512, 0)
    obs = env.reset_all()
    flags = np.zeros(512, bool), np.zeros(512, bool)
    outcomes = []

    def step():
        try:
            return env.step_into(np.zeros(512, int), obs, np.zeros(512), *flags)
        except ValueError as error:
            return error

    def work():
        outcomes.extend(step() for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(outcomes) == 400
    assert all(got is None or isinstance(got, ValueError) for got in outcomes)
    assert None in outcomes


FORK = """
    import os, threading
    import numpy as np
    from rlox import VecEnv
    env = VecEnv(1024, 0)
    env.reset()
    actions = np.arange(1024) % 2
    for _ in range(10):
        env.step(actions)
    if BUSY:
        def work():
            while True:
                env.step(actions)
        threading.Thread(target=work, daemon=True).start()
    for _ in range(5):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                env.step(actions)
                told = b"stepped"
            except ValueError as error:
                told = repr(error).encode()
            os.write(write, told)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(os.read(read, 1000).decode(), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "stepping"])
def test_a_forked_child_works_or_raises(busy):
    code = textwrap.dedent(FORK).replace("BUSY", str(busy))
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told = done.stdout.split("\n")[:5]
    allowed = ("stepped", "ClosedError") if busy else ("stepped",)
    assert all(line.startswith(allowed) for line in told), told


FORK_INSIDE = """
    import faulthandler, os, signal, threading
    import numpy as np, rlox
    child = []
    def fork(*_):
        child.append(os.fork())
    signal.signal(signal.SIGALRM, fork)
    env = rlox.VecEnv(8, 0, "Acrobot-v1")
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    env.collect_n_steps(100_000)  # the handler runs in the middle of it
    assert child
    if child[0]:
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]))
    faulthandler.dump_traceback_later(20, exit=True)
    done = []
    thread = threading.Thread(target=lambda: done.append(env.collect_n_steps(100_000)))
    thread.start()
    while not done:  # a short call, which must not keep the other one from its end
        env._native.observe()
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_inside_a_call_works():
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK_INSIDE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


WAITING = """
    import os, signal, threading, time
    import numpy as np, rlox
    env = rlox._rlox.NativeVectorEnv("Acrobot-v1", 64, 0)
    env.reset()
    steps = 60_000, 64
    obs, flags = np.empty((2, *steps, 6), np.float32), np.empty((2, *steps), bool)
    many = np.zeros(steps, int), obs[0], np.empty(steps), *flags, obs[1]
    threading.Thread(target=env.steps_into, args=many, daemon=True).start()
    time.sleep(0.1)
    def press():
        global pressed
        time.sleep(0.1)
        pressed = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=press).start()
    try:
        env.step(np.zeros(64, int))
        print("did not wait")
    except KeyboardInterrupt:
        print(time.perf_counter() - pressed)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_reaches_a_call_that_waits_for_another():
    command = [sys.executable, "-c", textwrap.dedent(WAITING)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 0.25


EXIT = """
    import atexit, threading, time
    import numpy as np
    done = threading.Event()
    late = threading.Thread(target=lambda: (done.wait(), call()), daemon=True)
    atexit.register(late.join)  # runs after what importing rlox may have registered
    atexit.register(done.set)
    import rlox
    env = rlox.VecEnv(1024, 0)
    env.reset()
    actions = np.arange(1024) % 2
    numbers = np.linspace(0, 1, 20_000)
    class Slow:
        def __array__(self, dtype=None, copy=None):
            sum(range(1000))
            return np.ones(64)
    def call():
        CALL
    def work():
        while True:
            call()
    for _ in range(8):
        threading.Thread(target=work, daemon=True).start()
    late.start()
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "call",
    [
        "env.step(actions)",
        "rlox.compute_gae(numbers, numbers, numbers > 0.9, 0.0)",
        "rlox.compute_gae(numbers.astype('f4'), numbers, numbers > 0.9, 0.0)",
        "rlox.compute_gae(numbers[:200].tolist(), numbers[:200].tolist(), [0] * 200, [0.0])",
        "rlox.compute_gae(Slow(), Slow(), Slow(), 0.0)",
        "rlox.compute_gae(np.ones(64, '>f8'), np.ones(64, 'f2'), np.zeros(64, '>f4'), 0.0)",
    ],
)
def test_the_interpreter_exits_cleanly_under_threads_that_still_call(call):
    code = textwrap.dedent(EXIT).replace("CALL", call)
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
