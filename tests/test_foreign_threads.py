"""Threads and forked processes on one `ForeignVecEnv`: it works or raises, and never hangs."""

import copy
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlox import ClosedError, make_vec

pytestmark = pytest.mark.filterwarnings("default::UserWarning")


class Slow(gym.Env):
    """Counts its steps, each of which takes a hundredth of a second."""

    observation_space = gym.spaces.Box(0, np.inf, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, pause=0.01):
        self.pause = pause

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        before = self.steps
        time.sleep(self.pause)
        self.steps = before + 1  # two at a time would count as one
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}

    def action_masks(self):
        return [True, False]


def in_threads(work, count=8):
    errors = []

    def guarded():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, errors


def join(threads):
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_eight_threads_step_one_after_the_other(how):
    env = make_vec(Slow, 2, vectorization_mode=how, pause=0.001)
    env.reset()
    threads, errors = in_threads(lambda: [env.step([0, 1]) for _ in range(20)])
    join(threads)
    assert errors == []
    assert env.step([0, 1])[0].tolist() == [[161.0], [161.0]]
    env.close()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_closing_waits_for_a_step_and_ends_the_others_with_an_error(how):
    env = make_vec(Slow, 2, vectorization_mode=how)
    env.reset()

    def work():
        while True:
            env.step([0, 1])

    threads, errors = in_threads(work, 4)
    time.sleep(0.1)
    env.close()
    join(threads)
    assert [type(error) for error in errors] == [ClosedError] * 4
    if how == "async":
        assert not any(worker.is_alive() for worker in env.unwrapped.processes)


def test_closing_with_terminate_does_not_wait_for_a_step_that_never_ends():
    env = make_vec(Slow, 2, vectorization_mode="async", pause=0.0)
    env.reset()
    env.step([0, 1])
    env.unwrapped.set_attr("pause", [0.0, 1000.0])
    threads, errors = in_threads(lambda: env.step([0, 1]), 1)
    time.sleep(0.2)
    start = time.monotonic()
    env.close(terminate=True)
    assert time.monotonic() - start < 10
    join(threads)
    assert [type(error) for error in errors] == [RuntimeError]
    assert not any(worker.is_alive() for worker in env.unwrapped.processes)


def test_dead_workers_are_told_of_and_can_be_closed():
    for name in ("tells_masks", "action_masks", None):
        env = make_vec(Slow, 2, vectorization_mode="async")
        env.reset()
        env.unwrapped.processes[0].kill()
        env.unwrapped.processes[0].join()
        if name is not None:
            with pytest.raises(RuntimeError, match=r"env: expected living worker processes"):
                getattr(env, name)()
        env.close()
        assert not any(worker.is_alive() for worker in env.unwrapped.processes)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_closed_environments_say_nothing_of_masks(how):
    env = make_vec(Slow, 2, vectorization_mode=how)
    env.reset()
    assert env.tells_masks
    env.close()
    for ask in (lambda: env.tells_masks, env.action_masks):
        with pytest.raises(ClosedError):
            ask()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of POSIX")
@pytest.mark.parametrize("how", [{"terminate": True}, {}])
def test_a_signal_handler_may_close_in_the_middle_of_a_step(how):
    env = make_vec(Slow, 2, vectorization_mode="async", pause=20.0)
    env.reset()
    before = signal.signal(signal.SIGALRM, lambda *_: env.close(**how))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(ClosedError, match="closed in a call"):
            env.step([0, 1])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert env.unwrapped.closed
    assert not any(worker.is_alive() for worker in env.unwrapped.processes)


def test_a_step_within_a_step_is_refused_as_native_ones_are():
    class Inner(Slow):
        def step(self, action):
            if within:
                within.pop()()
            return super().step(action)

    env = make_vec(Inner, 2, pause=0.0)
    calls = [lambda: env.step([0, 0]), env.reset, env.render, env.action_masks]
    for call in calls:
        env.reset()
        within = [call]
        with pytest.raises(ClosedError, match="the middle of this thread's own call"):
            env.step([0, 0])
        env.reset()
        assert env.step([0, 0])[0].tolist() == [[1.0], [1.0]]


def test_asking_one_environment_does_not_wait_for_another():
    asking, go_on = threading.Event(), threading.Event()

    class Waits(SyncVectorEnv):
        def call(self, name, *args, **kwargs):
            asking.set()
            assert go_on.wait(60)
            return super().call(name, *args, **kwargs)

    slow, other = make_vec(Waits([Slow])), make_vec(Slow, 1)
    slow.reset()
    other.reset()
    threads, errors = in_threads(lambda: slow.tells_masks, 1)
    assert asking.wait(60)
    quick, more = in_threads(lambda: other.tells_masks, 1)
    join(quick)
    go_on.set()
    join(threads)
    assert [*errors, *more] == []


def test_a_copy_is_no_ones_yet():
    env = make_vec(Slow, 1, pause=0.0)
    env.reset()
    twin = copy.deepcopy(env)
    with env._turns.lock:
        threads, errors = in_threads(lambda: twin.step([0]), 1)
        join(threads)
    assert errors == []


PROGRAM = """
    import os, sys, threading, time
    import numpy as np
    from rlox import make_vec
    from test_foreign_threads import Slow

    env = make_vec(Slow, 2, vectorization_mode={how!r})
    env.reset()
    stop = threading.Event()
    def work():
        while not stop.is_set():
            env.step([0, 1])
    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        calls = [lambda: env.step([0, 1]), lambda: env.tells_masks, env.action_masks]
        for call in calls * 20:
            try:
                call()
                said = "answered"
            except RuntimeError as error:
                said = str(error)
            print(said, flush=True)
        env.close()
        os._exit(0)  # of its own accord, multiprocessing would end the workers of the parent
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    thread.join()
    before = env.step([0, 1])[0]
    assert (env.step([0, 1])[0] == before + 1).all()
    env.close()
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("how", "words"), [("sync", "answered"), ("async", "env: expected the process that made")]
)
def test_a_child_forked_during_a_step_does_not_wait_for_ever(how, words):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM.format(how=how))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *said, last = done.stdout.splitlines()
    assert len(said) == 60
    assert all(line.startswith(words) for line in said)
    assert last == "done"


def test_eight_threads_of_an_asynchronous_environment_do_everything_at_once():
    env = make_vec("CartPole-v1", 2, seed=0, vectorization_mode="async")
    assert isinstance(env.unwrapped, AsyncVectorEnv)
    env.reset()
    calls = [
        lambda: env.step([0, 1]),
        lambda: env.reset(seed=3),
        lambda: env.tells_masks,
        env.drain_episodes,
    ]

    def work():
        for i in range(40):
            calls[i % 4]()

    threads, errors = in_threads(work)
    join(threads)
    assert errors == []
    env.close()
