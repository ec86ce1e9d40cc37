"""How long gSDE keeps a matrix, on both backends.

Where the observation never changes and nothing is learned, actions are the same as long as it does.
"""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlox import make_vec
from rlox.algorithms import SAC, SACConfig
from rlox.native_off_policy import NativeSAC

SETTINGS = {
    "use_sde": True,
    "use_sde_at_warmup": True,
    "learning_starts": 1000,
    "buffer_size": 1000,
    "log_std_init": 0.0,
    "net_arch": (8,),
}


class Constant(gym.Env):
    """Always the same observation, five steps an episode; `actions` are those of all steps."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.obs = np.array([0.5, -0.3], np.float32)
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.obs, {}

    def step(self, action):
        self.actions.append(float(action[0]))
        self.steps += 1
        return self.obs, 0.0, False, self.steps == 5, {}


def learner(kind, env, **settings):
    env = make_vec(SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.NEXT_STEP))
    return kind(env, SACConfig(**SETTINGS, **settings), 1)


@pytest.mark.parametrize("kind", [NativeSAC, SAC])
def test_steps_that_only_reset_do_not_count(kind):
    env = Constant()
    one = learner(kind, env, sde_sample_freq=3, train_freq=8)
    for _ in range(5):
        one.iterate()
    lengths = [len(list(same)) for _, same in itertools.groupby(env.actions)]
    assert lengths == [3, 3, 2] * 5


def test_predictions_of_a_native_learner_leave_its_exploration_alone():
    class Asking(Constant):
        def step(self, action):
            stream = np.random.default_rng(self.steps)
            self.said = self.learner.predict(self.obs, deterministic=False, stream=stream)
            return super().step(action)

    alone, asking = Constant(), Asking()
    for env in (alone, asking):
        env.learner = learner(NativeSAC, env, sde_sample_freq=3, train_freq=8)
        for _ in range(3):
            env.learner.iterate()
    assert asking.said.shape == (1,)
    assert asking.actions == alone.actions
