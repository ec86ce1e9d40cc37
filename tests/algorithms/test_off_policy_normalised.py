"""What learners on torch normalise by, in each autoreset mode."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlox import make_vec
from rlox.algorithms import TD3, TD3Config


class Telling(gym.Env):
    """Observations say which step of which episode it is, rewards which step. Three steps."""

    def __init__(self, terminate=False):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = gym.spaces.Box(-1, 1, (1,))
        self.terminate, self.episode = terminate, -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == 3
        obs = np.array([self.episode, self.t], np.float32)
        return obs, float(self.t), over and self.terminate, over and not self.terminate, {}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("terminate", [False, True])
def test_statistics_are_those_of_what_is_acted_on_and_of_returns(mode, num_envs, terminate):
    env = SyncVectorEnv([lambda: Telling(terminate)] * num_envs, autoreset_mode=mode)
    config = TD3Config(
        num_envs=num_envs,
        learning_starts=8,
        net_arch=(4,),
        normalize_obs=True,
        normalize_reward=True,
    )
    one = TD3(make_vec(env), config, 1)
    while one.timesteps < 12 * num_envs:
        one.iterate()
    assert one.episodes.count == 4 * num_envs
    got = one.normalizer.state()
    seen = [(episode, t) for episode in range(4) for t in range(3)]
    if mode is not AutoresetMode.NEXT_STEP:
        seen.append((4, 0))  # which that mode resets to in its next step
    np.testing.assert_allclose(got["obs_mean"], np.mean(seen, 0), rtol=1e-3)
    np.testing.assert_allclose(got["obs_var"], np.var(seen, 0), rtol=1e-3)
    returns = [1.0, 1.0 * 0.99 + 2, (1.0 * 0.99 + 2) * 0.99 + 3]
    np.testing.assert_allclose(got["return_var"], np.var(returns), rtol=1e-3)
