"""What `ForeignVecEnv` refuses, it refuses before its environments have moved."""

import numpy as np
import pytest

import rlox
from rlox import Normalizer, RolloutBuffer

ZERO = np.zeros(2, np.float32)


def begun():
    env = rlox.make_vec("CartPole-v1", 2, vectorization_mode="sync", seed=1)
    buffer = RolloutBuffer(2, 2, (4,))
    env.begin_rollout(buffer)
    return env, buffer


REFUSED = [
    ({"normalizer": Normalizer(3, (4,))}, ValueError, "normalizer: expected one for 2 env"),
    ({"normalizer": Normalizer(2, (3,))}, ValueError, r"normalizer: .*shape \(4,\)"),
    ({"buffer": "x"}, TypeError, "buffer: expected a rlox.RolloutBuffer, got str"),
    ({"buffer": RolloutBuffer(2, 3, (4,))}, ValueError, "buffer: expected rows"),
    ({"buffer": RolloutBuffer(2, 2, (5,))}, ValueError, "buffer: expected rows"),
    ({"buffer": RolloutBuffer(2, 2, (4,), (2,))}, ValueError, "buffer: expected rows"),
    (
        {"buffer": RolloutBuffer(2, 2, (4,), action_dtype="float32")},
        ValueError,
        "buffer: .*int64 actions .*float32",
    ),
    ({"t": 1}, ValueError, "t: expected the next"),
    ({"actions": [0, 2]}, ValueError, "actions: "),
    ({"actions": [0.0, 1.0]}, TypeError, "actions: "),
    ({"log_probs": ["a", "b"]}, TypeError, "log_probs: expected real numbers"),
    ({"log_probs": [0.0]}, ValueError, r"log_probs: expected shape \(2,\), got \(1,\)"),
    ({"log_probs": [0.0, np.nan]}, ValueError, "log_probs: .*nan from environment 1"),
    ({"values": [[0.0], [0.0]]}, ValueError, r"values: expected shape \(2,\)"),
    ({"values": [np.inf, 0.0]}, ValueError, "values: .*inf from environment 0"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), REFUSED, ids=[w for *_, w in REFUSED])
def test_a_refused_step_can_be_repeated_as_if_it_had_not_been(wrong, error, words):
    right = {"t": 0, "actions": [0, 1], "log_probs": ZERO, "values": ZERO, "normalizer": None}
    (env, buffer), (other, expected) = begun(), begun()
    with pytest.raises(error, match=words):
        env.step_rollout(**{"buffer": buffer, **right, **wrong})
    env.step_rollout(buffer=buffer, **right)
    other.step_rollout(buffer=expected, **right)
    assert np.array_equal(buffer.obs[1], expected.obs[1])
    assert buffer.next_step == 1


class Lists(rlox.vector.ForeignVecEnv):
    """Says ends as lists, as some vector environments do."""

    def __init__(self, env):
        super().__init__(env)
        step = env.step

        def with_lists(actions):
            obs, rewards, terminated, truncated, infos = step(actions)
            return obs, list(rewards), list(terminated), list(truncated), infos

        env.step = with_lists


def test_ends_may_be_lists():
    env, buffer = begun()
    lists = Lists(env.env)
    lists.begin_rollout(buffer, seed=1)
    for t in range(2):
        lists.step_rollout(buffer, t, [0, 1], ZERO, ZERO)
    buffer.finish(ZERO, 0.9, 0.9)
    assert np.isfinite(buffer.advantages).all()
