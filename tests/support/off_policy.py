"""Cases of DQN, SAC and TD3 for tests on both backends."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

from rlox import make_vec
from rlox.algorithms import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from rlox.learners.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from support.checkpoints import assert_states_equal
from support.envs import Imitate

BACKENDS = ["native", "torch"]
LEARNERS = {
    "DQN": (DQNConfig, {"native": NativeDQN, "torch": DQN}),
    "SAC": (SACConfig, {"native": NativeSAC, "torch": SAC}),
    "TD3": (TD3Config, {"native": NativeTD3, "torch": TD3}),
}
SMALL = {"learning_starts": 5, "batch_size": 16, "buffer_size": 500, "net_arch": (8,)}
RAINBOW = {"double": True, "dueling": True, "prioritized": True, "n_steps": 3}
GSDE = {"use_sde": True, "sde_sample_freq": 4}
NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
CASES = {
    "DQN": {},
    "DQN, all options": RAINBOW | {"num_envs": 2, "utd_ratio": 0.4},
    "SAC": {},
    "SAC, gSDE": GSDE | {"use_sde_at_warmup": True, "train_freq": 8, "gradient_steps": -1},
    "SAC, normalised": NORMALIZED | {"num_envs": 3, "utd_ratio": 0.4},
    "TD3": {"action_noise": GaussianNoise(0.1)},
    "TD3, correlated noise": {"action_noise": OrnsteinUhlenbeckNoise(0.5), "n_steps": 2},
}


def make_learner(case, backend="torch", seed=0, env=None, policy=None, **changes):
    """Return a learner of a case; `changes` replace settings."""
    algorithm = case[:3]
    config_type, learners = LEARNERS[algorithm]
    config = config_type(**{**SMALL, **CASES.get(case, {}), **changes})
    env = env or ("CartPole-v1" if algorithm == "DQN" else "Pendulum-v1")
    kwargs = {"policy": policy} if backend == "torch" else {"backend": backend}
    make = learners["torch" if backend == "torch" else "native"]
    return make(make_vec(env, config.num_envs), config, seed, **kwargs)


def run_iterations(learner, times=15):
    """Run iterations; return their metrics."""
    return [learner.iterate(i / times) for i in range(times)]


def assert_learners_equal(learner, other):
    """Check that all parts of the states of two learners are equal."""
    state, expected = learner.state(), other.state()
    np.testing.assert_equal(vars(state), vars(expected))
    assert_states_equal(state, expected)


class Numbered(gym.Env):
    """Environment that observes (episode, step); the reward is the step number.

    `sent` has the actions. The reward is 1e39 at step `huge_at`, counted over all episodes.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))

    def __init__(self, action_space=None, limit=3, terminate=False, huge_at=None):
        self.action_space = gym.spaces.Box(-1, 1, (1,)) if action_space is None else action_space
        self.limit, self.terminate, self.huge_at = limit, terminate, huge_at
        self.episode, self.sent = -1, []

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.float32([self.episode, 0]), {}

    def step(self, action):
        self.sent.append(action)
        self.t += 1
        over = self.t == self.limit
        reward = 1e39 if len(self.sent) == self.huge_at else float(self.t)
        obs = np.float32([self.episode, self.t])
        return obs, reward, over and self.terminate, over and not self.terminate, {"t": self.t}


class ImitateDict(Imitate):
    """`Imitate` with a Dict of the number and a random integer."""

    def __init__(self):
        super().__init__()
        inner = self.observation_space
        self.observation_space = gym.spaces.Dict(number=inner, index=gym.spaces.Discrete(3))

    def _observe(self):
        return {"number": super()._observe(), "index": int(self.np_random.integers(3))}


def action_space(algorithm):
    return gym.spaces.Discrete(2) if algorithm == "DQN" else gym.spaces.Box(-1, 1, (1,))


def vector(mode, *envs):
    """Return a vector environment of the given environments."""
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode)
