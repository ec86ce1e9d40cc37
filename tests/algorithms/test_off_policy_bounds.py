"""Bounds of actions that SAC and TD3 take, equal ones for one, and those that they refuse."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import make_vec
from rlox.action_spaces import expect_actions_for
from rlox.algorithms import SAC, TD3, SACConfig, TD3Config
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer

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


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("backend", ["auto", "native", "torch"])
@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_boxes_of_integers_are_refused_by_name(trainer, backend, dtype):
    space = gym.spaces.Box(0, 1, (2,), dtype)
    words = (
        rf"^action space: expected a Box of real numbers for {trainer.__name__[:3]}, got Box.*; "
    )
    with pytest.raises(ValueError, match=words + "use PPO or A2C$"):
        trainer(lambda: Taking(space), 1, backend=backend, runs_dir=None)


def test_dqn_names_those_that_take_boxes_of_integers():
    space = gym.spaces.Box(0, 3, (2,), np.int64)
    with pytest.raises(ValueError, match=r"expected Discrete for DQN, got Box.*; use PPO or A2C$"):
        DQNTrainer(lambda: Taking(space), 1, runs_dir=None)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("trainer", [PPOTrainer, A2CTrainer])
def test_who_is_named_for_boxes_of_integers_sends_all_of_them(trainer, backend):
    env = Taking(gym.spaces.Box(-1, 1, (2,), np.int32))
    made = trainer(lambda: env, 1, backend=backend, n_steps=200, num_envs=1, runs_dir=None)
    made.train(200)
    counts = np.unique(env.sent, return_counts=True)
    assert counts[0].tolist() == [-1, 0, 1]
    # Of normal numbers 0.38 are within half of 0, and 0.31 beyond on each side.
    assert (counts[1] > 0.2 * 400).all()


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
