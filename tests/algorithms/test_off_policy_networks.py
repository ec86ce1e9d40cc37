"""Networks of DQN, SAC and TD3: targets, built-in sizes, and what becomes of NaN in them."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlox import make_vec
from rlox.algorithms import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from rlox.native_off_policy import NativeSAC, NativeTD3
from support.envs import Imitate

SMALL = {"learning_starts": 0, "batch_size": 8, "buffer_size": 200}


class Dropping(nn.Sequential):
    """A Q-network with dropout."""

    def __init__(self, *spaces):
        super().__init__(nn.Linear(4, 32), nn.Dropout(), nn.Linear(32, 2))


class Noisy(nn.Module):
    """A Q-network that draws something whenever it is asked."""

    def __init__(self, *spaces):
        super().__init__()
        self.net, self.generator = nn.Linear(4, 2), None

    def forward(self, obs):
        values = self.net(obs)
        return values + torch.empty_like(values).normal_(generator=self.generator)


def dqn(policy, seed=1, **settings):
    return DQN(make_vec("CartPole-v1", 1), DQNConfig(**SMALL, **settings), seed, policy)


def test_target_networks_drop_nothing():
    one = dqn(Dropping)
    for _ in range(5):
        one.iterate()
    obs = torch.ones(3, 4)
    assert torch.equal(one.target(obs), one.target(obs))
    assert not torch.equal(one.policy(obs), one.policy(obs))


def test_what_target_networks_draw_comes_from_the_learners_generator():
    one, other = dqn(Noisy), dqn(Noisy, 2)
    assert one.target.generator is one.policy.generator is one.generator
    for _ in range(5):
        one.iterate()
    for _ in range(3):
        other.iterate()
    other.load_state(one.state())
    assert str([one.iterate() for _ in range(5)]) == str([other.iterate() for _ in range(5)])


class Seen(Imitate):
    """`Imitate` that is seen as a picture."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)

    def _observe(self):
        shade = np.uint8(127 * (1 + super()._observe()[0]))
        return np.full((3, 36, 36), shade, np.uint8)


def test_layers_behind_pictures_are_stable_baselines3s():
    sac, td3 = SAC(make_vec(Seen, 1), SACConfig(), 1), TD3(make_vec(Seen, 1), TD3Config(), 1)
    assert sac._networks()["actor.2.weight"].shape == (256, 256)
    names = td3._networks()
    assert names["actor.2.weight"].shape == names["critic.qf0.2.weight"].shape == (256, 256)
    own = TD3(make_vec(Seen, 1), TD3Config(net_arch=(7,)), 1)
    assert own._networks()["actor.2.weight"].shape == (1, 7)


@pytest.mark.parametrize("prioritized", [False, True])
def test_nan_ends_an_iteration_by_its_name_where_looking_would_wait(prioritized):
    one = dqn(None, prioritized=prioritized)
    for _ in range(4):
        one.iterate()
    with torch.no_grad():
        next(one.policy.parameters())[0, 0] = np.nan
    one.device = SimpleNamespace(type="cuda")  # on which nothing is looked at before the end
    with pytest.raises(FloatingPointError, match=r"^loss: expected finite numbers, got nan"):
        one.learn(2, 1e-3, 0.0)


@pytest.mark.parametrize("algorithm", [SAC, TD3, NativeSAC, NativeTD3])
def test_bounds_beyond_float32_are_refused(algorithm):
    class Vast(Imitate):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.Box(-1e300, 1e300, (1,), np.float64)

    config = SACConfig() if algorithm in (SAC, NativeSAC) else TD3Config()
    with pytest.raises(
        ValueError, match=r"^action space: expected finite bounds for .*, which float32 holds, got"
    ):
        algorithm(make_vec(Vast, 1), config, 1)
