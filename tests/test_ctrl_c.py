"""Ctrl-C ends long calls within a quarter of a second, and leaves their objects as they were."""

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,  # calls as large as take half a second, on up to 4 GiB
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]

INTERRUPT = """
import os, signal, threading, time
import numpy as np, rlox

def timed(call):
    began = time.perf_counter()
    kept = call()
    return time.perf_counter() - began

for power in range(15, 25):
    call = made(2**power)
    timed(call)
    took = timed(call)
    if took > 0.5:
        break
before = state()

def press(after):
    global pressed
    time.sleep(after)
    pressed = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)

for share in (0.1, 0.3):
    threading.Thread(target=press, args=[took * share]).start()
    try:
        call()
        raise SystemExit(f"was not interrupted, and takes {took}")
    except KeyboardInterrupt:
        print(time.perf_counter() - pressed)
    assert str(state()) == str(before)
"""

CALLS = {
    "making environments": """
def made(n):
    return lambda: rlox._rlox.NativeVectorEnv("CartPole-v1", n, 0)
def state():
    pass
""",
    "get_state": """
def made(n):
    global env
    env = rlox.VecEnv(n, seed=0)
    env.reset()
    return env.get_state
def state():
    return env.get_state()
""",
    "set_state": """
def made(n):
    global env
    env = rlox.VecEnv(n, seed=0)
    env.reset()
    one = env.get_state()
    other = {**one, "episode_returns": np.ones(n)}
    return lambda: [env.set_state(one), env.set_state(other)]
def state():
    return len(np.unique(env.get_state()["episode_returns"]))  # never that of some only
""",
    "strided": """
def made(n):
    x, f = np.zeros((2 * n, 64), np.int64)[:, ::2].T, np.zeros((32, 2 * n), bool)
    last = np.zeros(2 * n)
    return lambda: rlox.compute_lambda_returns(x, x, f, last)
def state():
    pass
""",
    "widened": """
def made(n):
    x = np.zeros((64, n), np.int8)
    return lambda: rlox.token_kl(x, x)
def state():
    pass
""",
    "half precision, in one row": """
def made(n):
    x = np.zeros((1, 16 * n), np.float16)
    return lambda: rlox.token_kl(x, x, reduction="sum")
def state():
    pass
""",
    "pack_sequences": """
def made(n):
    sequences = [np.zeros(300, np.int64)] * n
    return lambda: rlox.pack_sequences(sequences, 1024)
def state():
    pass
""",
    "long sequences": """
def made(n):
    sequences = [np.zeros(n, np.int16)] * 10
    return lambda: rlox.pack_sequences(sequences, 4 * n)
def state():
    pass
""",
    "one long sequence": """
def made(n):
    sequences = [np.zeros(10 * n, np.int64)]
    return lambda: rlox.pack_sequences(sequences, 10 * n)
def state():
    pass
""",
    "pack_lengths": """
def made(n):
    lengths = np.arange(16 * n) % 4093
    return lambda: rlox.pack_lengths(lengths, 4096)
def state():
    pass
""",
    "normalize_obs": """
def made(n):
    normalizer = rlox.Normalizer(1, (64,))
    obs = np.zeros((n, 64), np.float32)
    return lambda: normalizer.normalize_obs(obs)
def state():
    pass
""",
    "steps_into": """
def made(n):
    env, steps = rlox.VecEnv(n, seed=0)._native, 20
    env.reset()
    obs, final_obs = np.zeros((2, steps, n, 4), np.float32)
    rewards, (terminated, truncated) = np.zeros((steps, n)), np.zeros((2, steps, n), bool)
    actions = np.zeros((steps, n), int)
    return lambda: env.steps_into(actions, obs, rewards, terminated, truncated, final_obs)
def state():
    pass
""",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_at_once_and_leaves_its_object_as_it_was(name):
    command = [sys.executable, "-c", CALLS[name] + INTERRUPT]
    # So many that what only one of them did would be short.
    env = {**os.environ, "RLOX_NUM_THREADS": "16"} if name == "making environments" else None
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert max(map(float, done.stdout.split())) < 0.25, done.stdout


LARGE_SEED = """
import signal
import rlox
env = rlox._rlox.NativeVectorEnv("CartPole-v1", 4_000_000, 0)
before = env.rng_states()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
try:
    env.reset(2**70)
except KeyboardInterrupt:
    assert (env.rng_states() == before).all(), "it came after the call"
else:
    raise SystemExit("was not interrupted")
"""


def test_the_streams_of_a_large_seed_are_left_half_made():
    done = subprocess.run([sys.executable, "-c", LARGE_SEED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
