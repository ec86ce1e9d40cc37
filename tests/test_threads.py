"""Environments and kernels give correct results in several threads and forked processes."""

import copy
import os
import signal
import sys
import time

import gymnasium as gym
import numpy as np
import pytest

from rlox import ClosedError, VecEnv, make_vec
from support.rejections import rejects
from support.thread_runs import join, run_program, run_threads, start_threads

NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
NEEDS_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
BOTH_MODES = pytest.mark.parametrize("mode", ["sync", "async"])
# Gymnasium reports errors of workers as warnings.
pytestmark = pytest.mark.filterwarnings("default::UserWarning")


# Native environments


@pytest.mark.parametrize("n", [2, 256])
def test_threads_step_a_native_environment_one_at_a_time(n):
    """Compare with serial steps. All threads send the same actions, so order cannot matter."""
    env, reference = VecEnv(n, 0), VecEnv(n, 0)
    env.reset(), reference.reset()
    actions = np.arange(n) % 2
    assert run_threads(lambda: [env.step(actions) for _ in range(100)], 8) == []
    for _ in range(800):
        reference.step(actions)
    assert np.array_equal(env.step(actions)[0], reference.step(actions)[0])
    assert env.pop_episodes()[1].tolist() == reference.pop_episodes()[1].tolist()


FORK_PROGRAM = """
    import os, threading
    import numpy as np
    from rlox import ClosedError, VecEnv
    from support.thread_runs import run_in_fork
    env = VecEnv(1024, 0)
    env.reset()
    actions = np.arange(1024) % 2
    for _ in range(10):
        env.step(actions)
    for _ in range(5):
        run_in_fork(lambda: env.step(actions))

    def work():
        while True:
            env.step(actions)

    def step():
        try:
            env.step(actions)
        except ClosedError:
            pass

    threading.Thread(target=work, daemon=True).start()
    for _ in range(5):
        run_in_fork(step)
    os._exit(0)
"""
FORK_INSIDE_A_CALL = """
    import faulthandler, os, signal, threading
    import rlox
    child = []
    signal.signal(signal.SIGALRM, lambda *_: child.append(os.fork()))
    env = rlox.VecEnv(8, 0, "Acrobot-v1")
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    env.collect_n_steps(100_000)  # the handler runs in the middle of this call
    assert child
    if child[0]:
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]))
    faulthandler.dump_traceback_later(20, exit=True)
    done = []
    thread = threading.Thread(target=lambda: done.append(env.collect_n_steps(100_000)))
    thread.start()
    while not done:  # this short call must not block the other call
        env._native.observe()
    os._exit(0)
"""
WAIT_PROGRAM = """
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
EXIT_PROGRAM = """
    import atexit, sys, threading, time
    import numpy as np
    done = threading.Event()
    late = threading.Thread(target=lambda: (done.wait(), call()), daemon=True)
    atexit.register(late.join)  # runs after the exit handlers of rlox
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
    call = eval("lambda: " + sys.argv[1])
    def work():
        while True:
            call()
    for _ in range(8):
        threading.Thread(target=work, daemon=True).start()
    late.start()
    time.sleep(0.1)
"""


@NEEDS_FORK
def test_forked_child_steps_native_environments_or_raises():
    run_program(FORK_PROGRAM)


@NEEDS_FORK
@pytest.mark.processes
def test_child_forked_inside_a_call_works():
    run_program(FORK_INSIDE_A_CALL)


@NEEDS_POSIX
@pytest.mark.processes
@pytest.mark.serial
def test_ctrl_c_interrupts_a_call_that_waits_for_another():
    assert float(run_program(WAIT_PROGRAM)) < 0.25


EXIT_CALLS = {
    "step": "env.step(actions)",
    "arrays": "rlox.compute_gae(numbers, numbers, numbers > 0.9, 0.0)",
    "lists": "rlox.compute_gae(*[numbers[:200].tolist()] * 2, [0] * 200, [0.0])",
    "objects": "rlox.compute_gae(Slow(), Slow(), Slow(), 0.0)",
    "dtypes": "rlox.compute_gae(np.ones(64, '>f8'), np.ones(64, 'f2'), np.zeros(64, '>f4'), 0.0)",
}


@pytest.mark.parametrize(
    "call", [x if x == "step" else pytest.param(x, marks=pytest.mark.processes) for x in EXIT_CALLS]
)
def test_interpreter_exits_cleanly_while_threads_call_rlox(call):
    for _ in range(1 if call == "step" else 4):
        run_program(EXIT_PROGRAM, EXIT_CALLS[call])


# Kernels


KERNEL_PROGRAM = """
import hashlib, numpy as np, rlox
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for shape in [(64, 5000), (3000, 93), (400_000,), (300_000, 1)]:
    for dtype in "f4", "f8":
        r, v, f = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
        terminated, truncated = (rng.random(shape) < 0.1 for _ in range(2))
        ends = dict(terminated=terminated, truncated=truncated, final_values=f)
        last = rng.standard_normal(shape[1:]).astype(dtype)[()]
        results = [
            *rlox.compute_gae(r, v, None, last, **ends),
            *rlox.compute_gae(r, v, terminated.astype(dtype), last),
            *rlox.compute_vtrace(f / 9, r, v, None, last, 0.99, **ends),
            rlox.compute_lambda_returns(r, v, None, last, **ends),
            rlox.token_kl(-abs(r), -abs(v), estimator="k3"),
            rlox.policy_ratios(r / 9, v / 9),
        ]
        if len(shape) == 2:
            flat = {name: array.ravel() for name, array in ends.items()}
            rows = np.zeros(shape[0], dtype)
            results += rlox.compute_gae_batched(r.ravel(), v.ravel(), None, rows, shape[1], **flat)
            results += [rlox.token_kl(-abs(r), -abs(v), reduction="sum")]
            results += [rlox.policy_ratios(r / 9, v / 9, level="sequence")]
        for result in results:
            digest.update(np.ascontiguousarray(result).tobytes())
"""
KERNEL_FORK_PROGRAM = """
import os, signal
in_parent = digest.hexdigest()
child = os.fork()
if child == 0:
    signal.alarm(60)  # a child that hangs is killed
SHAPES
if child == 0:
    os._exit(digest.hexdigest() != in_parent)
assert digest.hexdigest() == in_parent
assert os.waitpid(child, 0)[1] == 0
""".replace("SHAPES", KERNEL_PROGRAM)


@NEEDS_FORK
@pytest.mark.processes
def test_results_do_not_depend_on_thread_count_or_fork():
    code = KERNEL_PROGRAM + "print(digest.hexdigest())"
    digests = [run_program(code, RLOX_NUM_THREADS=str(threads)) for threads in (1, 2, 5)]
    assert len(digests[0].strip()) == 64
    assert digests == [digests[0]] * 3
    run_program(KERNEL_PROGRAM + KERNEL_FORK_PROGRAM, RLOX_NUM_THREADS="2")


# Environments of Gymnasium


class Slow(gym.Env):
    """Environment that counts its steps and sleeps in each step."""

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
        self.steps = before + 1  # concurrent steps would count as one
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}

    def action_masks(self):
        return [True, False]


@BOTH_MODES
def test_threads_step_a_gymnasium_environment_one_at_a_time(mode):
    env = make_vec(Slow, 2, vectorization_mode=mode, pause=0.001)
    env.reset()
    assert run_threads(lambda: [env.step([0, 1]) for _ in range(20)], 8) == []
    assert env.step([0, 1])[0].tolist() == [[161.0], [161.0]]
    calls = [lambda: env.step([0, 1]), lambda: env.reset(seed=3), lambda: env.has_action_masks, env.pop_episodes]
    assert run_threads(lambda: [calls[i % 4]() for i in range(40)], 8) == []
    env.close()


def all_workers_exited(env):
    return not any(worker.is_alive() for worker in env.unwrapped.processes)


@pytest.mark.parametrize("mode", ["sync", "async", "native"])
def test_close_waits_for_a_step_and_ends_other_threads(mode):
    native = mode == "native"
    env = VecEnv(512, 0) if native else make_vec(Slow, 2, vectorization_mode=mode)
    env.reset()

    def work():
        while True:
            env.step(np.arange(env.num_envs) % 2)

    threads, errors = start_threads(work, 4)
    time.sleep(0.1)
    env.close()
    join(threads)
    assert [type(error) for error in errors] == [ClosedError] * 4
    if mode == "async":
        assert all_workers_exited(env)
    if not native:
        for call in (lambda: env.has_action_masks, env.action_masks):
            with pytest.raises(ClosedError):
                call()


def test_close_with_terminate_does_not_wait_for_a_step():
    env = make_vec(Slow, 2, vectorization_mode="async", pause=0.0)
    env.reset()
    env.step([0, 1])
    env.unwrapped.set_attr("pause", [0.0, 1000.0])
    threads, errors = start_threads(lambda: env.step([0, 1]))
    time.sleep(0.2)
    start = time.monotonic()
    env.close(terminate=True)
    assert time.monotonic() - start < 10
    join(threads)
    assert [type(error) for error in errors] == [RuntimeError]
    assert all_workers_exited(env)


@pytest.mark.parametrize("name", ["has_action_masks", "action_masks", None])
def test_environments_with_dead_workers_raise_and_can_be_closed(name):
    env = make_vec(Slow, 2, vectorization_mode="async")
    env.reset()
    env.unwrapped.processes[0].kill()
    env.unwrapped.processes[0].join()
    if name is not None:
        with rejects(RuntimeError, "env: ", "died at step 1"):
            getattr(env, name)()
    env.close()
    assert all_workers_exited(env)


@NEEDS_POSIX
@pytest.mark.serial
@pytest.mark.parametrize("kwargs", [{"terminate": True}, {}])
def test_signal_handler_can_close_during_a_step(kwargs):
    env = make_vec(Slow, 2, vectorization_mode="async", pause=20.0)
    env.reset()
    before = signal.signal(signal.SIGALRM, lambda *_: env.close(**kwargs))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(ClosedError):
            env.step([0, 1])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert env.unwrapped.closed
    assert all_workers_exited(env)


def test_reentrant_calls_are_rejected():
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
        with rejects(ClosedError, "env", None, expected=None):
            env.step([0, 0])
        env.reset()
        assert env.step([0, 0])[0].tolist() == [[1.0], [1.0]]


def test_environments_and_their_copies_have_separate_locks():
    env, other = (make_vec(Slow, 1, pause=0.0) for _ in "ab")
    env.reset(), other.reset()
    duplicate = copy.deepcopy(env)
    with env._guard:
        for free in (other, duplicate):
            assert run_threads(lambda free=free: (free.has_action_masks, free.step([0]))) == []


FORK_DURING_A_STEP = """
    import threading, time
    from rlox import ClosedError, make_vec
    from test_threads import Slow
    from support.thread_runs import run_in_fork

    def use():
        calls = [lambda: env.step([0, 1]), lambda: env.has_action_masks]
        calls += [env.action_masks, env.reset]
        for call in calls:
            try:
                call()
            except ClosedError as error:
                assert error.argument == "env"
            else:
                raise AssertionError("a call of the child succeeded")
        env.close()

    for mode in ("sync", "async"):
        env = make_vec(Slow, 2, vectorization_mode=mode)
        env.reset()
        stop = threading.Event()
        def work():
            while not stop.is_set():
                env.step([0, 1])
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.05)
        run_in_fork(use)
        stop.set()
        thread.join()
        before = env.step([0, 1])[0]
        assert (env.step([0, 1])[0] == before + 1).all()
        env.close()
"""


@NEEDS_FORK
@pytest.mark.processes
def test_forked_child_cannot_use_environments_of_its_parent():
    run_program(FORK_DURING_A_STEP)
