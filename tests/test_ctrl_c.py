"""Ctrl-C ends long calls within a quarter of a second, and leaves their objects as they were."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

# Calls whose object has nothing to be changed.
STATELESS = """
def state():
    pass
"""

CALLS = {
    "making environments": """
def made(n):
    return lambda: rlox._rlox.NativeVectorEnv("CartPole-v1", n, 0)
""",
    "a reset of copies": """
def made(n):
    noise = {"torque_noise_max": 0.1}  # which no lanes have
    env = rlox._rlox.NativeVectorEnv("Acrobot-v1", n, 0, None, None, noise)
    return env.reset
""",
    "compute_gae of integers": """
def made(n):
    x, f = np.zeros((2 * n, 64), np.int64)[:, ::2].T, np.zeros((32, 2 * n), bool)
    last = np.zeros(2 * n)
    return lambda: rlox.compute_lambda_returns(x, x, f, last)
""",
    "orthogonal weights": """
from rlox.configs import PPOConfig
from rlox.native import NativePPO
def made(n):
    width = int(40 * n ** (1 / 3))  # the time goes with its cube
    env, config = rlox.make_vec("CartPole-v1", 1), PPOConfig(net_arch=(width, width))
    return lambda: NativePPO(env, config, seed=1)
""",
    "token_kl": """
def made(n):
    x = np.zeros((64, n), np.float32)
    return lambda: rlox.token_kl(x, x)
""",
    "pack_sequences": """
def made(n):
    sequences = [np.zeros(300, np.int64)] * n
    return lambda: rlox.pack_sequences(sequences, 1024)
""",
    "pack_lengths into a long row": """
def made(n):
    return lambda: rlox.pack_lengths([n], n)
""",
    "RunningMeanStd.update": """
statistics = rlox.RunningMeanStd(())
def made(n):
    global statistics
    statistics, rows = rlox.RunningMeanStd(()), np.arange(n, dtype=np.float64)
    return lambda: statistics.update(rows)
def state():
    return statistics.mean, statistics.var, statistics.count
""",
    "weighted rewards": """
def made(n):
    rewards = np.zeros((n, 2))
    return lambda: rlox.compute_batch_group_advantages(rewards, 1, weights=[1.0, 1.0])
""",
    "a long seed": """
def made(n):
    seed = 1 << 8 * n
    return lambda: rlox.VecEnv(2, seed=seed)
""",
    "extra fields": """
def made(n):
    extra = {f"field {i}": ((), "bool") for i in range(n)}
    return lambda: rlox.RolloutBuffer(1, 1, (1,), extra=extra)
""",
}

# Those that are long to make, take up to 6 GiB, or do much the same as one above.
SLOW = {
    "get_state": """
def made(n):
    global env
    env = rlox.VecEnv(n, seed=0)
    env.reset()
    return env.get_state
def state():
    return env._native.observe()
""",
    "reset": """
def made(n):
    global env
    env = rlox.VecEnv(n, seed=0, env_id="Acrobot-v1")
    env.reset()
    return lambda: env._native.reset(5)
def state():
    return env._native.observe(), env._native.rng_states()
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
    "widened": """
def made(n):
    x = np.zeros((64, n), np.int8)
    return lambda: rlox.token_kl(x, x)
""",
    "half precision, in one row": """
def made(n):
    x = np.zeros((1, 16 * n), np.float16)
    return lambda: rlox.token_kl(x, x, reduction="sum")
""",
    "half": """
def made(n):
    x = np.zeros(64 * n, np.float16)
    return lambda: rlox.token_kl(x, x, estimator="k1", reduction="sum")
""",
    "rows of nothing": """
def made(n):
    x = np.empty((n, 0), np.float32)
    return lambda: rlox.compute_batch_token_kl_f32(x, x, 0)
""",
    "long sequences": """
def made(n):
    sequences = [np.zeros(n, np.int16)] * 10
    return lambda: rlox.pack_sequences(sequences, 4 * n)
""",
    "one long sequence": """
def made(n):
    sequences = [np.zeros(10 * n, np.int64)]
    return lambda: rlox.pack_sequences(sequences, 10 * n)
""",
    "pack_lengths": """
def made(n):
    lengths = np.arange(16 * n) % 4093
    return lambda: rlox.pack_lengths(lengths, 4096)
""",
    "normalize_obs": """
def made(n):
    normalizer = rlox.Normalizer(1, (64,))
    obs = np.zeros((n, 64), np.float32)
    return lambda: normalizer.normalize_obs(obs)
""",
    "update_obs": """
def made(n):
    global normalizer
    normalizer, obs = rlox.Normalizer(1, (1,)), np.zeros((n, 1), np.float32)
    return lambda: normalizer.update_obs(obs)
def state():
    return normalizer.state()
""",
    "groups of two": """
def made(n):
    rewards = np.arange(2 * n, dtype=float)
    return lambda: rlox.compute_batch_group_advantages(rewards, 2)
""",
    "groups of which some are missing": """
def made(n):
    rewards = np.arange(2 * n, dtype=float)
    rewards[5] = np.nan
    return lambda: rlox.compute_batch_group_advantages(rewards, 2, scale="batch")
""",
    "one group of nothing": """
def made(n):
    rewards = np.full(n, np.nan)
    return lambda: rlox.compute_group_advantages(rewards)
""",
    "truncated without final values": """
def made(n):
    x, f = np.zeros(n, np.float32), np.zeros(n, bool)
    return lambda: rlox.compute_gae(x, x, None, 0.0, terminated=f, truncated=f)
""",
    "flags of floats": """
def made(n):
    x = np.zeros(n, np.float32)
    return lambda: rlox.compute_gae(x, x, x, 0.0)
""",
    "copies of environments": """
def made(n):
    noise = {"torque_noise_max": 0.1}  # which no lanes have
    return lambda: rlox._rlox.NativeVectorEnv("Acrobot-v1", n, 0, None, None, noise)
""",
    "a reset with a long seed": """
def made(n):
    global env
    env, seed = rlox.VecEnv(2, seed=0), 1 << 8 * n
    env.reset()
    return lambda: env._native.reset(seed)
def state():
    return env._native.rng_states()
""",
    "steps_into": """
def made(n):
    env, steps = rlox.VecEnv(n, seed=0)._native, 20
    env.reset()
    obs, final_obs = np.zeros((2, steps, n, 4), np.float32)
    rewards, (terminated, truncated) = np.zeros((steps, n)), np.zeros((2, steps, n), bool)
    actions = np.zeros((steps, n), int)
    return lambda: env.steps_into(actions, obs, rewards, terminated, truncated, final_obs)
""",
}


def interrupt(code, shares=None, **around):
    """In a process of its own, which is ended if it hangs."""
    script = f"import numpy as np, rlox\n{STATELESS}{code}\nimport pressing\n"
    command = [sys.executable, "-c", f"{script}pressing.check(made, state, {shares})"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **around}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_at_once_and_leaves_its_object_as_it_was(name):
    interrupt(CALLS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CALLS, *SLOW])
def test_a_call_ends_at_once_whenever_it_is_interrupted(name):
    interrupt({**CALLS, **SLOW}[name], shares=[0.05, 0.2, 0.45, 0.7])


@pytest.mark.slow
def test_many_threads_that_make_environments_end_at_once():
    # So many that what only one of them did would be short.
    interrupt(CALLS["making environments"], shares=[0.1, 0.3], RLOX_NUM_THREADS="16")


def test_lateness_is_noticed_while_the_gil_is_held():
    held = """
def made(n):
    return lambda: sum(range(n))  # never looks
"""
    with pytest.raises(AssertionError, match="seconds after Ctrl-C"):
        interrupt(held)


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


@pytest.mark.slow
def test_the_streams_of_a_large_seed_are_left_half_made():
    done = subprocess.run([sys.executable, "-c", LARGE_SEED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
