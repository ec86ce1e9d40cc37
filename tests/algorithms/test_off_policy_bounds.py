"""Bounds of actions that SAC and TD3 take, equal ones for one, and those that they refuse."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import make_vec
from rlox.algorithms import SAC, TD3, SACConfig, TD3Config
from rlox.base_learner import expect_actions_for
from rlox.trainers import SACTrainer, TD3Trainer

SMALL = {"learning_starts": 5, "batch_size": 16, "buffer_size": 500, "net_arch": (8,)}


class Taking(gym.Env):
    """Takes actions of a space, and those alone."""

    def __init__(self, action_space):
        self.action_space, self.sent = action_space, []
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.sent.append(action)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_a_component_with_equal_bounds_is_sent_as_it_must_be(algorithm):
    space = gym.spaces.Box(np.float32([0.3, -1]), np.float32([0.3, 1]))
    config = {SAC: SACConfig, TD3: TD3Config}[algorithm](**SMALL)
    env = Taking(space)
    one = algorithm(make_vec(lambda: env), config, 1)
    for _ in range(15):
        one.iterate()
    assert one.updates == 10
    sent = np.array([*env.sent, *one.predict(np.zeros((9, 3), np.float32))])
    np.testing.assert_array_equal(sent[:, 0], np.float32(0.3))
    assert len(np.unique(sent[:, 1])) > 9


@pytest.mark.parametrize(("low", "high"), [([-1, -np.inf], [1, 1]), ([-1, -1], [1, np.inf])])
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_bounds_without_end_are_refused_by_name(trainer, backend, low, high):
    space = gym.spaces.Box(np.float32(low), np.float32(high))
    with pytest.raises(ValueError, match=r"^action space: expected finite bounds for"):
        trainer(lambda: Taking(space), 1, backend=backend, runs_dir=None, **SMALL)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ([-1, np.nan], [1, 1], "finite bounds for SAC"),
        ([[-1], [2]], [[1], [1]], r"low <= high for SAC, got 2.0 > 1.0 in component 1; swap them$"),
    ],
)
def test_bounds_that_gymnasium_lets_nobody_have_are_refused(low, high, words):
    space = gym.spaces.Box(-1, 1, np.shape(low))
    space.low[:], space.high[:] = low, high
    with pytest.raises(ValueError, match=f"^action space: expected {words}"):
        expect_actions_for("sac", space)
