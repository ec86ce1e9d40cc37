"""Where the system grants no memory, calls raise MemoryError, change nothing, and work later."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")

# Makes a call with ever more memory to spare; an allocation that nobody looks after ends it all.
SWEEP = """
import resource
import numpy as np, rlox

def spare(bytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    return pages * resource.getpagesize() + bytes

def sweep(call, most, state, steps=24):
    "Until it is granted: `most` MiB are enough. It must be refused where nothing large is free."
    before, (soft, hard) = state(), resource.getrlimit(resource.RLIMIT_AS)
    for i in range(steps + 1):
        resource.setrlimit(resource.RLIMIT_AS, (spare(i * most * 2**20 // steps), hard))
        taken = [] if i else rest()
        try:
            call()
        except MemoryError:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            assert same(state(), before)
        else:
            assert i, "nothing was asked for"
            return
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    raise AssertionError("was never granted")

def rest():
    "What the allocator still has in large pieces, though the system grants nothing."
    taken, size = [], 2**24
    while size >= 2**15:
        try:
            taken.append(bytearray(size))
        except MemoryError:
            size //= 2
    return taken

def of(*arrays):
    "The state of what only reads these."
    return lambda: [array.copy() for array in arrays]

def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b

N = 200_000
zeros, flags = np.zeros(N), np.zeros(N, bool)
actions = np.zeros(N, int)

def made(n=N, **how):
    env = rlox.VecEnv(n, seed=0, max_episode_steps=2, **how)
    env.reset()
    env.step(actions[:n])
    return env

def full():
    "A rollout all of whose episodes are cut in every step."
    buffer = rlox.RolloutBuffer(3, N, 4)
    buffer.begin(np.zeros((N, 4)))
    for t in range(3):
        record(buffer, t)
    return buffer

def record(buffer, t):
    obs = OBS[t]
    buffer.record(t, actions, zeros, zeros, obs, zeros, flags, ~flags, obs)

OBS = np.arange(12 * N, dtype=np.float32).reshape(3, N, 4)
"""

CALLS = {
    "VecEnv": """
env = made()
sweep(lambda: rlox.VecEnv(N), 60, env.get_state)
""",
    "get_state": """
env = made()
sweep(env.get_state, 80, lambda: env._native.rng_states())
""",
    "set_state": """
env = made()
state = rlox.VecEnv(N, seed=9)
state.reset()
state = state.get_state()
sweep(lambda: env.set_state(state), 80, env.get_state)
assert same(env.get_state(), state)
""",
    "np_random": """
env = made(20_000)
def streams():
    try:
        return env.np_random
    except (SystemError, RuntimeError):  # NumPy's words, and those of Python's locks, for it
        raise MemoryError from None
sweep(streams, 30, env.get_state)
""",
    "drain_episodes": """
env = made()
env.step(actions)
drained = []
sweep(lambda: drained.append(env.drain_episodes()), 2, lambda: len(drained))
assert len(drained[0][0]) == 16_384
assert len(env.drain_episodes()[0]) == 0 and env.episodes_dropped == 0
""",
    "reset": """
env = made()
held = [env.reset() for _ in range(4)]  # or their memory would do for another
sweep(env.reset, 40, env.get_state)
""",
    "reset with seeds": """
env, seeds = made(), [3] * N
sweep(lambda: env.reset(seed=seeds), 24, env.get_state)
env.step(actions)
sweep(lambda: env.reset(seed=2**70), 80, env.get_state)
""",
    "step": """
env = made()
sweep(lambda: env._native.step(actions), 80, env.get_state)
env.step(actions)
sweep(lambda: env.step(actions), 80, env.get_state)
""",
    "step_all": """
for mode in ("SAME_STEP", "NEXT_STEP"):
    env = made(autoreset_mode=mode)
    env.reset()
    env.step(actions)
    sweep(lambda: env.step_all(actions), 80, env.get_state, steps=40)
""",
    "collect_n_steps": """
env = made()
sweep(lambda: env.collect_n_steps(2), 60, env.get_state)
""",
    "a long seed": """
env, seed = made(10), 1 << 8 * 20_000_000
sweep(lambda: rlox.VecEnv(1, seed=seed), 80, env.get_state)
sweep(lambda: env.reset(seed=seed), 80, env.get_state)
sweep(lambda: env._native.reset([seed] * 10), 80, env.get_state)
""",
    "many options": """
env = made(10)
def unknown(call):
    try:
        call()
    except ValueError as error:  # of all these, granted the memory to read them
        assert "remove or rename" in str(error)
many = {f"option {i}": 1.0 for i in range(N)}
sweep(lambda: unknown(lambda: env.reset(options=many)), 120, env.get_state)
how = ("Pendulum-v1", 1, None, None, None, many)
sweep(lambda: unknown(lambda: rlox._rlox.NativeVectorEnv(*how)), 120, env.get_state)
""",
    "extra fields": """
many = {f"field {i}": ((), "bool") for i in range(N)}
sweep(lambda: rlox.RolloutBuffer(1, 1, (1,), extra=many), 240, lambda: len(many), steps=48)
""",
    "collect_rollout": """
env = made()
# Steps before the refused one stay, and each is of all environments.
state = lambda: len(np.unique(env.get_state()["episode_steps"]))
sweep(lambda: rlox.collect_rollout(env, None, 2), 120, state)
""",
    "begin and step a rollout": """
env, buffer = made(), rlox.RolloutBuffer(3, N, 4)
def rollout():
    env.begin_rollout(buffer)
    for t in range(3):
        env.step_rollout(buffer, t, actions, zeros, zeros)
state = lambda: len(np.unique(env.get_state()["episode_steps"]))
sweep(rollout, 40, state)
assert buffer.final_obs.shape[1:] == (4,)
""",
    "record": """
buffer = rlox.RolloutBuffer(3, N, 4)
buffer.begin(np.zeros((N, 4)))
state = lambda: [buffer.next_step, len(buffer.final_index)]
for t in range(3):
    sweep(lambda: record(buffer, t), 24, state)
assert np.array_equal(buffer.final_obs, OBS.reshape(-1, 4))
""",
    "what a rollout ended with": """
buffer = full()
def state():
    try:
        return buffer.advantages.copy()
    except ValueError:
        return buffer.next_step  # not finished
sweep(lambda: [buffer.final_obs, buffer.final_index], 40, state)
values = np.ones(3 * N)
sweep(lambda: buffer.finish(zeros, 0.9, 0.9, values), 8, state)
assert buffer.advantages.any()
""",
    "Normalizer": """
normalizer = rlox.Normalizer(2, (N,))
sweep(lambda: rlox.Normalizer(2, (N,)), 12, normalizer.state)
sweep(normalizer.state, 8, of(normalizer.state()["obs_mean"]))
state = normalizer.state()
state["obs_mean"] += 1
sweep(lambda: normalizer.load_state(state), 12, normalizer.state)
assert normalizer.state()["obs_mean"][3] == 1
""",
    "RunningMeanStd": """
one, other = rlox.RunningMeanStd((N,)), rlox.RunningMeanStd((N,))
row = np.ones((1, N), np.float32)
state = lambda: [one.mean, one.var, one.count, other.mean]
sweep(lambda: one.update(row), 8, state)
sweep(lambda: other.update(row), 8, state)
sweep(lambda: [one.mean, one.var], 8, state)
sweep(lambda: one.merge(other), 8, state)
""",
    "pack_lengths": """
lengths = np.ones(10 * N, int)
sweep(lambda: rlox.pack_lengths(lengths, 4), 80, of(lengths))
sweep(lambda: rlox.pack_lengths(lengths, 1), 120, of(lengths))
sweep(lambda: rlox.pack_lengths([1, 5 * N], 5 * N), 8, of(lengths))
""",
    "pack_sequences": """
sequences = [np.ones(5, int)] * 20_000
sweep(lambda: rlox.pack_sequences(sequences, 11), 60, of(sequences[0]))
""",
    "conversions": """
x = np.ones(10 * N, bool)
sweep(lambda: rlox.compute_gae(x, x, x, 0.0), 60, of(x))
y = np.ones((5 * N, 2), np.int32)[:, 0]
sweep(lambda: rlox.compute_gae(y, y, y, 0.0), 40, of(y))
sweep(lambda: rlox.compute_group_advantages([None, *zeros]), 20, of(zeros))
""",
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_refused_raises_and_works_later(name):
    command = [sys.executable, "-W", "ignore", "-c", SWEEP + CALLS[name]]
    # What is large goes back to the system when it is freed.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


MESSAGES = """
import resource
import rlox

def spare(bytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    return pages * resource.getpagesize() + bytes

axes, zeros, text = (1,) * (20 * 2**20), [0] * (10 * 2**20), "x" * (100 * 2**20)
calls = {
    "shape": lambda: rlox.RunningMeanStd(axes),
    "obs_shape": lambda: rlox.RolloutBuffer(1, 1, axes),
    "gamma": lambda: rlox.compute_returns([1.0], [0], 0.0, gamma=zeros),
    "n_steps": lambda: rlox.RolloutBuffer(zeros, 1, (1,)),
    "env_id": lambda: rlox._rlox.NativeVectorEnv(text, 1),
}
said, hard = [], resource.getrlimit(resource.RLIMIT_AS)[1]
for name, call in calls.items():
    for mib in range(0, 400, 20):
        resource.setrlimit(resource.RLIMIT_AS, (spare(mib * 2**20), hard))
        try:
            call()
        except (ValueError, TypeError, MemoryError) as error:
            said.append(error)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    assert str(said[-1]).startswith(name), said[-1]
    assert len(str(said[-1])) < 400, said[-1]
"""


def test_what_is_wrong_is_said_without_a_copy_of_it():
    done = subprocess.run([sys.executable, "-c", MESSAGES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
