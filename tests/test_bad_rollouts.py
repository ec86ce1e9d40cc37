"""Rollouts with arguments that make no sense: refused by name, and nothing has moved."""

import numpy as np
import pytest

from rlox import Normalizer, RolloutBuffer, VecEnv

N = 3


def cart(**kwargs):
    return VecEnv(N, 0, "CartPole-v1", **kwargs)


def pendulum(**kwargs):
    return VecEnv(N, 0, "Pendulum-v1", **kwargs)


def frozen(array):
    array.flags.writeable = False
    return array


def rollout(env, n=N, **replaced):
    buffer = RolloutBuffer(2, n, (4,))
    env.begin_rollout(buffer)
    said = {"t": 0, "actions": [0] * N, "log_probs": [0.0] * N, "values": [0.0] * N, **replaced}
    env.step_rollout(buffer, **said)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: rollout(cart(), n=4), ValueError, "buffer: .*for 3 env.*for 4 env"),
        (lambda: rollout(pendulum()), ValueError, "buffer: .*observations of 3"),
        (lambda: rollout(cart(), t=1), ValueError, "t: .*0, the next step.*1"),
        (lambda: rollout(cart(), t=-1), ValueError, "t: .*-1"),
        (lambda: rollout(cart(), actions=[0, 0]), ValueError, "actions: "),
        (lambda: rollout(cart(), actions=[0, 0, 2]), ValueError, "actions: .*environment 2"),
        (lambda: rollout(cart(), actions=[0.5] * 3), TypeError, "actions: .*integers"),
        (lambda: rollout(cart(), log_probs=[0.0]), ValueError, "log_probs: .*3.*1"),
        (lambda: rollout(cart(), values=[0.0] * 4), ValueError, "values: .*3.*4"),
        (lambda: rollout(cart(), values="abc"), TypeError, "values: "),
        (lambda: cart().begin_rollout(None), TypeError, "buffer"),
        (
            lambda: cart().begin_rollout(RolloutBuffer(2, N, (4,)), seed=-1),
            ValueError,
            "seed: .*-1",
        ),
        (
            lambda: cart().begin_rollout(RolloutBuffer(2, N, (4,)), Normalizer(N, (3,))),
            ValueError,
            "obs",
        ),
        (
            lambda: cart().begin_rollout(RolloutBuffer(2, N, (4,), obs_dtype="uint8")),
            ValueError,
            "obs dtype: .*F32",
        ),
        (
            lambda: RolloutBuffer(2, N, (4,)).begin(np.zeros((N, 3))),
            ValueError,
            r"obs: .*\[3, 4\].*\[3, 3\]",
        ),
        (
            lambda: RolloutBuffer(2, N, (4,)).begin(np.full((N, 4), np.nan)),
            ValueError,
            "obs: .*finite.*NaN in environment 0",
        ),
        (
            lambda: Normalizer(N, (4,)).normalize_obs(np.zeros((4, N))),
            ValueError,
            r"obs: .*\[4\].*\[4, 3\]",
        ),
        (
            lambda: RolloutBuffer(2, N, (4,)).finish([0.0] * N, 0.9, 0.9),
            ValueError,
            "finish: .*0 of 2",
        ),
        (lambda: RolloutBuffer(2, N, (4,)).field("rewads"), ValueError, "field: .*rewards.*rewads"),
        (lambda: RolloutBuffer(2, N, (4,)).rewads, AttributeError, "rewads"),
    ],
)
def test_wrong_rollouts_are_refused(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_a_refused_rollout_step_has_not_moved_the_environments():
    env, twin = cart(), cart()
    buffers = [RolloutBuffer(2, N, (4,)) for _ in "ab"]
    env.begin_rollout(buffers[0]), twin.begin_rollout(buffers[1])
    zeros = np.zeros(N)
    for wrong in ([0, 0, 2], [0.5] * 3, [0]):
        with pytest.raises((TypeError, ValueError)):
            env.step_rollout(buffers[0], 0, wrong, zeros, zeros)
    for t in range(2):
        env.step_rollout(buffers[0], t, [0, 1, 0], zeros, zeros)
        twin.step_rollout(buffers[1], t, [0, 1, 0], zeros, zeros)
    assert np.array_equal(buffers[0].obs, buffers[1].obs)
    assert np.array_equal(buffers[0].last_obs, buffers[1].last_obs)
