"""Threads that share large work: the same numbers however many, after a fork too, and Ctrl-C."""

import os
import subprocess
import sys

import pytest

SHAPES = """
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


FORK = """
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
""".replace("SHAPES", SHAPES)

INTERRUPT = """
import os, signal, threading, time
import numpy as np, rlox

calls = {
    "compute_gae": lambda x, f: rlox.compute_gae(x, x, f, 0.0, out=(y, z)),
    "columns": lambda x, f: rlox.compute_gae(*(a.reshape(-1, 64) for a in (x, x, f)), zeros),
    "compute_returns": lambda x, f: rlox.compute_returns(x, f, 0.0),
    "compute_vtrace": lambda x, f: rlox.compute_vtrace(x, x, x, f, 0.0, 0.99),
    "token_kl": lambda x, f: rlox.token_kl(x, x),
    "policy_ratios": lambda x, f: rlox.policy_ratios(x, x),
    "policy_ratio_stats": lambda x, f: rlox.policy_ratio_stats(x, x),
}
call = calls[NAME]
zeros = np.zeros(64, np.float32)
for power in range(20, 29):
    x, y, z = np.zeros((3, 2**power), np.float32)
    f = np.zeros(2**power, bool)
    call(x, f)
    began = time.perf_counter()
    call(x, f)
    took = time.perf_counter() - began
    if took > 0.5:
        break
def press():
    global pressed
    time.sleep(0.1)
    pressed = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    call(x, f)
    print("was not interrupted, and takes", took)
except KeyboardInterrupt:
    print(time.perf_counter() - pressed)
"""


def run(code, threads=2):
    env = {**os.environ, "RLOX_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=100)


def test_results_do_not_depend_on_the_number_of_threads():
    digests = [run(SHAPES + "print(digest.hexdigest())", threads).stdout for threads in (1, 2, 5)]
    assert len(digests[0].strip()) == 64
    assert digests == [digests[0]] * 3


def test_a_forked_child_has_threads_of_its_own():
    run(SHAPES + FORK)


def test_a_number_of_threads_that_is_none_is_reported():
    said = run("import rlox; rlox.compute_gae([1.0], [1.0], [0], 0.0)", "many").stderr
    assert 'RLOX_NUM_THREADS: expected a number from 1 to 1024, got "many"' in said


@pytest.mark.slow  # as large as makes a call take half a second: up to 6 GiB
@pytest.mark.parametrize(
    "name",
    [
        "compute_gae",
        "columns",
        "compute_returns",
        "compute_vtrace",
        "token_kl",
        "policy_ratios",
        "policy_ratio_stats",
    ],
)
def test_ctrl_c_ends_a_long_call_at_once(name):
    delay = run(INTERRUPT.replace("NAME", repr(name))).stdout.strip()
    assert float(delay) < 0.25, delay
