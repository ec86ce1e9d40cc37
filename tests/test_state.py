"""`get_state` and `set_state` of native environments: one moment, all rows or none."""

import threading

import numpy as np
import pytest

from rlox import VecEnv

NAN, INF = float("nan"), float("inf")
N = 70


def changed(array, row, number):
    array = array.copy()
    array[row] = number
    return array


NONSENSE = [
    ("states", NAN, "states: .*NaN as number 0 in environment {row}"),
    ("states", INF, "states: .*inf as number 0 in environment {row}"),
    ("states", 1e300, "states: .*finite in f32.*in environment {row}"),
    ("episode_returns", NAN, "episode_returns: .*NaN in environment {row}"),
    ("episode_returns", -INF, "episode_returns: .*-inf in environment {row}"),
    ("streams", 0, "streams: .*odd inc, got 0"),
]
# Only environments of this mode cannot be finished.
ENDED = ("finished", True, "finished: .*same step.*environment {row}")
CASES = [("NextStep", *case) for case in NONSENSE] + [("SameStep", *c) for c in [*NONSENSE, ENDED]]


@pytest.mark.parametrize("n", [N, 2])  # lanes, and copies
@pytest.mark.parametrize(("mode", "name", "number", "words"), CASES)
def test_one_row_that_makes_no_sense_leaves_all_of_them_as_they_were(n, mode, name, number, words):
    env = VecEnv(n, 0, autoreset_mode=mode)
    env.reset()
    other = env.get_state()
    env.step(np.ones(n, int))
    before = env.get_state()
    bad = other | {name: changed(other[name], n - 1, number)}
    with pytest.raises(ValueError, match=words.format(row=n - 1)):
        env.set_state(bad)
    for key, array in env.get_state().items():
        assert np.array_equal(array, before[key]), key
    env.set_state(other)


@pytest.mark.parametrize(
    ("column", "number", "words"),
    [
        (3, 2, "streams: .*odd inc"),
        (4, 2, "streams: .*0 or 1 and 32 bits.*2 and"),
        (5, 2**32, "streams: .*0 or 1 and 32 bits.*4294967296"),
        (5, -1, "streams: .*0 or 1 and 32 bits.*-1"),
    ],
)
def test_words_that_no_stream_has_are_refused(column, number, words):
    env = VecEnv(N, 0)
    env.reset()
    good = env.get_state()
    with pytest.raises(ValueError, match=words):
        env.set_state(good | {"streams": changed(good["streams"], (N - 1, column), number)})


def test_a_pendulums_last_torque_may_be_unknown_and_nothing_else():
    env = VecEnv(2, 0, "Pendulum-v1")
    env.reset()
    good = env.get_state()
    assert np.isnan(good["states"][:, 2]).all()
    env.set_state(good)
    for column, number in [(0, NAN), (1, NAN), (2, INF)]:
        with pytest.raises(ValueError, match=f"states: .*as number {column} in environment 1"):
            env.set_state(good | {"states": changed(good["states"], (1, column), number)})


def test_a_state_taken_while_another_thread_steps_is_of_one_moment():
    """Steps and states belong together: after k equal steps there is one state."""
    n, actions = 512, np.ones((512, 1), np.float32)
    make = lambda: VecEnv(n, 0, "Pendulum-v1", max_episode_steps=-1)  # noqa: E731
    env, stop = make(), threading.Event()
    env.reset()

    def step():
        while not stop.is_set():
            env.step(actions)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        taken = [env.get_state() for _ in range(200)]
    finally:
        stop.set()
        thread.join()
    twin, steps = make(), 0
    twin.reset()
    for state in taken:
        for _ in range(int(state["episode_steps"][0]) - steps):
            twin.step(actions)
            steps += 1
        expected = twin.get_state()
        assert all(np.array_equal(state[k], expected[k], equal_nan=k == "states") for k in state)
