"""Arrays that other code writes to while a call reads them: nothing becomes inconsistent."""

import functools
import itertools
import threading
import time

import numpy as np

import rlox


def meanwhile(call, write):
    """Calls, with another thread that writes all the time."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            write()
            time.sleep(1e-4)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return call()
    finally:
        stop.set()
        thread.join()


# In seconds: some of them end within a call.
DELAYS = [0.001, 0.002, 0.003, 0.004, 0.005, 0.007, 0.009, 0.012, 0.016, 0.02]


def later(delay, call, write):
    """Calls, with another thread that writes once after a while."""
    thread = threading.Thread(target=lambda: (time.sleep(delay), write()))
    thread.start()
    try:
        return call()
    finally:
        thread.join()


def test_any_byte_of_a_mask_but_0_is_true():
    policy, mask = np.full((32, 1 << 20), -1.0, np.float32), np.ones((32, 1 << 20), bool)
    reference = policy - 1
    for delay in DELAYS:
        mask[:] = True
        call = functools.partial(rlox.token_kl, policy, reference, mask, "k1", "mean")
        kl = later(delay, call, lambda: mask.view(np.uint8).fill(3))
        np.testing.assert_array_equal(kl, 1.0)


def test_any_byte_of_a_flag_but_0_is_true():
    rewards, terminated = np.ones((1 << 12, 2048), np.float32), np.ones((1 << 12, 2048), bool)
    values, last = np.zeros_like(rewards), np.zeros(2048, np.float32)
    call = functools.partial(rlox.compute_gae, rewards, values, terminated, last, 0.5, 1.0)
    for delay in DELAYS:
        terminated[:] = True
        advantages, _ = later(delay, call, lambda: terminated.view(np.uint8).fill(254))
        np.testing.assert_array_equal(advantages, 1.0)


def test_a_reset_mask_that_changes_gives_nobody_anothers_stream():
    n = 200_000
    env = rlox.VecEnv(n=n, seed=0, env_id="CartPole-v1")
    env.reset_all()
    mask = np.arange(n) < n // 2

    def flip():
        np.logical_not(mask, out=mask)

    increments = env.get_state()["streams"][:, 2:4].copy()
    for _ in range(4):
        meanwhile(lambda: env.reset(options={"reset_mask": mask}), flip)
        np.testing.assert_array_equal(env.get_state()["streams"][:, 2:4], increments)


def test_a_state_that_changes_is_put_back_whole_or_not_at_all():
    n = 200_000
    env = rlox.VecEnv(n=n, seed=0, env_id="CartPole-v1")
    env.reset_all()
    given = env.get_state()
    refused = 0
    for trial in range(8):
        env.reset_all(seed=99)
        before = env.get_state()
        state = {name: array.copy() for name, array in given.items()}
        wanted = state["states"][n // 2].copy()

        values = itertools.cycle([np.nan, wanted] if trial % 2 else [wanted, np.nan])

        def spoil(row=state["states"][n // 2], values=values):
            row[:] = next(values)

        try:
            meanwhile(lambda state=state: env.set_state(state), spoil)
            expected = given
        except ValueError:
            expected, refused = before, refused + 1
        after = env.get_state()
        for name, array in expected.items():
            np.testing.assert_array_equal(after[name], array, name)
    assert refused > 0
