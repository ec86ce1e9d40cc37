"""What `ForeignVecEnv` refuses, it refuses before its environments have moved."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

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


class Counted(gym.Env):
    """Counts its steps, of a Box's actions."""

    action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, dtype=np.float32):
        self.observation_space, self.steps = spaces.Box(0, 255, (3,), dtype), 0

    def reset(self, *, seed=None, options=None):
        return self.observation_space.low, {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.low, 0.0, False, False, {}


UNSTORABLE = [
    (
        [[1e300]],
        ValueError,
        r"actions: expected numbers that float32 can hold, got 1e300",
    ),
    (np.array([[0.5]], object), TypeError, "actions: expected an array of real numbers, got dtype"),
]


@pytest.mark.parametrize(("actions", "error", "words"), UNSTORABLE)
def test_actions_that_no_rollout_stores_move_nothing(actions, error, words):
    env, (zero,) = rlox.make_vec(Counted, 1), np.zeros((1, 1), np.float32)
    buffer = RolloutBuffer(2, 1, (3,), (1,), action_dtype="float32")
    env.begin_rollout(buffer)
    with pytest.raises(error, match=words):
        env.step_rollout(buffer, 0, actions, zero, zero)
    assert env.unwrapped.envs[0].unwrapped.steps == 0
    env.step_rollout(buffer, 0, [[True]], zero, zero)
    assert buffer.actions[0].tolist() == [[1.0]]
    assert buffer.actions.dtype == np.float32


def test_actions_of_other_kinds_are_refused_by_integer_spaces_before_a_step():
    env, buffer = begun()
    with pytest.raises(TypeError, match="actions: expected integers, got dtype object"):
        env.step_rollout(buffer, 0, np.array([0, 1], object), ZERO, ZERO)
    assert buffer.next_step == 0


@pytest.mark.parametrize("other", [True, False])
def test_a_buffer_in_which_nothing_was_begun_moves_nothing(other):
    env, (zero,) = rlox.make_vec(Counted, 1), np.zeros((1, 1), np.float32)
    here, there = (RolloutBuffer(2, 1, (3,), (1,), action_dtype="float32") for _ in range(2))
    env.begin_rollout(there) if other else env.reset()
    with pytest.raises(ValueError, match="t: expected a rollout that was begun, got 0; call begin"):
        env.step_rollout(here, 0, [[0.0]], zero, zero)
    assert env.unwrapped.envs[0].unwrapped.steps == 0


def test_buffers_and_normalisers_of_other_dtypes_move_nothing():
    env, (zero,) = rlox.make_vec(lambda: Counted(np.uint8), 1), np.zeros((1, 1), np.float32)
    shapes = {"action_shape": (1,), "action_dtype": "float32"}
    buffer = RolloutBuffer(2, 1, (3,), **shapes, obs_dtype="uint8")
    with pytest.raises(ValueError, match="normalizer: expected F32 observations"):
        env.begin_rollout(buffer, Normalizer(1, (3,)))
    assert env._obs is None
    env.begin_rollout(buffer)
    with pytest.raises(ValueError, match="normalizer: expected F32 observations"):
        env.step_rollout(buffer, 0, [[0.0]], zero, zero, Normalizer(1, (3,)))
    assert env.unwrapped.envs[0].unwrapped.steps == 0
    env.step_rollout(buffer, 0, [[0.0]], zero, zero, Normalizer(1, (3,), obs=False))
    assert buffer.next_step == 1

    floats, resets = rlox.make_vec(Counted, 1), []
    floats.env.reset = lambda **given: resets.append(given)
    with pytest.raises(ValueError, match="buffer: expected rows for float32 observations, got int"):
        floats.begin_rollout(RolloutBuffer(2, 1, (3,), **shapes, obs_dtype="int64"))
    assert not resets


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
