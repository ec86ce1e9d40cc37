"""Calls with little memory, which must raise MemoryError and change no state.

A child process of `test_memory.py` runs this file. The process reads names of `case_*` from
standard input and writes "ok" or a traceback for each.
"""

import contextlib
import resource
import sys
import traceback

import numpy as np

import rlox

N = 100_000
ZEROS, FLAGS, ACTIONS = np.zeros(N), np.zeros(N, bool), np.zeros(N, int)
OBS = np.arange(12 * N, dtype=np.float32).reshape(3, N, 4)


@contextlib.contextmanager
def limit_memory(size):
    """Limit the address space to `size` bytes more than the process uses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sweep(call, max_mib, state, steps=24):
    """Call with 0 to `max_mib` MiB until the call succeeds; the first call must fail."""
    before = state()
    for i in range(steps + 1):
        with limit_memory(i * max_mib * 2**20 // steps):
            blocks = [] if i else fill_free_blocks()
            try:
                call()
            except MemoryError:
                succeeded = False
            else:
                succeeded = True
        del blocks
        if succeeded:
            assert i, "the call asked for no memory"
            return
        assert same(state(), before)
    raise AssertionError("the call never succeeded")


def fill_free_blocks():
    """Allocate the large blocks that the allocator has free."""
    blocks, size = [], 2**24
    while size >= 2**15:
        with contextlib.suppress(MemoryError):
            blocks.append(bytearray(size))
            continue
        size //= 2
    return blocks


def same(a, b):
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


def copies(*arrays):
    return lambda: [array.copy() for array in arrays]


def make_env(n=N, **kwargs):
    env = rlox.VecEnv(n, seed=0, max_episode_steps=2, **kwargs)
    env.reset()
    env.step(ACTIONS[:n])
    return env


def case_construct():
    sweep(lambda: rlox.VecEnv(N), 60, make_env().get_state)
    many = {f"field {i}": ((), "bool") for i in range(N)}
    sweep(lambda: rlox.RolloutBuffer(1, 1, (1,), extra=many), 240, lambda: len(many), steps=48)


def case_state():
    env, other = make_env(), rlox.VecEnv(N, seed=9)
    sweep(env.get_state, 80, lambda: env._native.rng_states())
    other.reset()
    state = other.get_state()
    sweep(lambda: env.set_state(state), 80, env.get_state)
    assert same(env.get_state(), state)


def case_episodes():
    env, episodes = make_env(), []
    env.step(ACTIONS)
    sweep(lambda: episodes.append(env.pop_episodes()), 2, lambda: len(episodes))
    assert len(episodes[0][0]) == 16_384
    assert len(env.pop_episodes()[0]) == 0
    assert env.dropped_episodes == 0


def case_reset():
    env, seeds = make_env(), [3] * N
    held = [env.reset() for _ in range(4)]  # else the next call reuses their memory
    sweep(env.reset, 40, env.get_state)
    del held
    sweep(lambda: env.reset(seed=seeds), 24, env.get_state)
    env.step(ACTIONS)
    sweep(lambda: env.reset(seed=2**70), 80, env.get_state)


def case_step():
    env = make_env()
    sweep(lambda: env._native.step(ACTIONS), 80, env.get_state)
    for mode in ("SAME_STEP", "NEXT_STEP"):
        env = make_env(autoreset_mode=mode)
        env.reset()
        env.step(ACTIONS)
        sweep(lambda env=env: env.step_all(ACTIONS), 80, env.get_state, steps=40)


def case_collect():
    env, buffer = make_env(), rlox.RolloutBuffer(3, N, 4)
    sweep(lambda: env.collect_n_steps(2), 60, env.get_state)

    def state():
        """Return 1 if all environments have made the same number of steps."""
        return len(np.unique(env.get_state()["episode_steps"]))

    def rollout():
        env.begin_rollout(buffer)
        for t in range(3):
            env.step_rollout(buffer, t, ACTIONS, ZEROS, ZEROS)

    sweep(lambda: rlox.collect_rollout(env, None, 2), 120, state)
    sweep(rollout, 40, state)
    assert buffer.final_obs.shape[1:] == (4,)


def case_rollout_buffer():
    buffer = rlox.RolloutBuffer(3, N, 4)
    buffer.begin(np.zeros((N, 4)))
    state = lambda: [buffer.next_step, len(buffer.final_index)]  # noqa: E731
    for t in range(3):
        row = (t, ACTIONS, ZEROS, ZEROS, OBS[t], ZEROS, FLAGS, ~FLAGS, OBS[t])
        sweep(lambda row=row: buffer.record(*row), 24, state)
    assert np.array_equal(buffer.final_obs, OBS.reshape(-1, 4))
    sweep(lambda: [buffer.final_obs, buffer.final_index], 40, state)
    values = np.ones(3 * N)
    sweep(lambda: buffer.finish(ZEROS, 0.9, 0.9, values), 8, state)
    assert buffer.advantages.any()


def case_statistics():
    normalizer = rlox.Normalizer(2, (N,))
    sweep(lambda: rlox.Normalizer(2, (N,)), 12, normalizer.state)
    sweep(normalizer.state, 8, copies(normalizer.state()["obs_mean"]))
    changed = normalizer.state()
    changed["obs_mean"] += 1
    sweep(lambda: normalizer.load_state(changed), 12, normalizer.state)
    assert normalizer.state()["obs_mean"][3] == 1
    first, second = rlox.RunningMeanStd((N,)), rlox.RunningMeanStd((N,))
    row = np.ones((1, N), np.float32)
    for call in (lambda: first.update(row), lambda: second.update(row), lambda: first.merge(second)):
        sweep(call, 8, lambda: [first.mean, first.var, first.count, second.mean])


def case_packing():
    lengths, sequences = np.ones(10 * N, int), [np.ones(5, int)] * 20_000
    sweep(lambda: rlox.pack_lengths(lengths, 4), 80, copies(lengths))
    sweep(lambda: rlox.pack_lengths(lengths, 1), 120, copies(lengths))
    sweep(lambda: rlox.pack_lengths([1, 5 * N], 5 * N), 8, copies(lengths))
    sweep(lambda: rlox.pack_sequences(sequences, 11), 60, copies(sequences[0]))


def case_conversions():
    x, y = np.ones(10 * N, bool), np.ones((5 * N, 2), np.int32)[:, 0]
    sweep(lambda: rlox.compute_gae(x, x, x, 0.0), 60, copies(x))
    sweep(lambda: rlox.compute_gae(y, y, y, 0.0), 40, copies(y))
    sweep(lambda: rlox.compute_group_advantages([None, *ZEROS]), 20, copies(ZEROS))


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            globals()[f"case_{line.strip()}"]()
            answer = "ok"
        except BaseException:
            answer = traceback.format_exc()
        print(repr(answer), flush=True)
