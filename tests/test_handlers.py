"""Signal handlers that run in the middle of a call: the call and the process stay whole."""

import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,  # calls of half a second, on up to 2 GiB
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]

# Sizes a call so that it takes half a second, and has `handler` run in the middle of it.
LONG = """
import os, signal, time
import numpy as np, rlox

def arrays(power):
    x, y, z = np.zeros((3, 2**power), np.float32)
    return x, np.zeros(2**power, bool), (y, z)

for power in range(22, 28):
    x, f, out = arrays(power)
    rlox.compute_gae(x, x, f, 0.0, out=out)
    began = time.perf_counter()
    rlox.compute_gae(x, x, f, 0.0, out=out)
    if time.perf_counter() - began > 0.3:
        break

ran = []
def interrupt(handler):
    def once(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        ran.append(True)
        handler()
    signal.signal(signal.SIGALRM, once)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
"""


def run(code):
    command = [sys.executable, "-c", LONG + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arrays_may_be_changed():
    run("""
def change():
    x.dtype = np.uint8
    f.shape = (2, -1)
    out[0].dtype = np.uint8
x[:] = 1.0
interrupt(change)
a, r = rlox.compute_gae(x, x, f, 0.0, gamma=0.5, lam=0.0, out=out)
assert ran and r.dtype == np.float32 and r[0] == 1.5 and r[-1] == 1.0
""")


def test_a_handler_may_make_long_calls_itself():
    run("""
x[:] = 1.0
expected = rlox.compute_gae(x, x, f, 0.0)
def another():
    inner = rlox.compute_gae(x, x, f, 0.0)
    assert all((a == b).all() for a, b in zip(inner, expected))
interrupt(another)
rlox.compute_gae(x, x, f, 0.0, out=out)
assert ran and all((a == b).all() for a, b in zip(out, expected))
""")


def test_a_handler_that_uses_the_calls_own_object_is_refused():
    run("""
said = []
def use():
    try:
        buffer.final_index
    except rlox.ClosedError as error:
        said.append(str(error))
steps, n = 600, 100_000
buffer = rlox.RolloutBuffer(steps, n, (1,), obs_dtype="uint8")
obs, zeros, flags = np.zeros((n, 1), np.uint8), np.zeros(n, np.float32), np.zeros(n, bool)
buffer.begin(obs)
for t in range(steps):
    buffer.record(t, np.zeros(n, np.int64), zeros, zeros, obs, zeros, flags, flags)
buffer.finish(zeros, 0.99, 0.95)
interrupt(use)
buffer.finish(zeros, 0.99, 0.95)
assert ran and "one in the middle of this thread's own call" in said[0]
assert buffer.final_index is not None
""")


def test_a_forked_child_raises_and_the_parent_goes_on():
    run("""
children = []
def fork():
    child = os.fork()
    children.append(child)
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
x.shape = f.shape = (-1, 64)
interrupt(fork)
try:
    rlox.compute_gae(x, x, f, np.zeros(64, np.float32))
except rlox.ClosedError:
    assert children == [0]
if children == [0]:
    os._exit(0)
if children:  # else the call was over sooner
    assert os.waitpid(children[0], 0)[1] == 0
""")
