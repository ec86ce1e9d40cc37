"""Small environments with known optimal behaviour."""

import multiprocessing
import os
import signal
import time
from typing import ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox import RolloutBuffer

# Native environments, with constructor arguments that Gymnasium's environments also accept.
NATIVE = {
    "Acrobot-v1": {},
    "CartPole-v1": {"sutton_barto_reward": True},
    "MountainCar-v0": {"goal_velocity": 0.02},
    "MountainCarContinuous-v0": {"goal_velocity": 0.02},
    "Pendulum-v1": {"g": 3.5},
}
IDS = [*NATIVE]


class Guess(gym.Env):
    """Base class of environments that truncate after ten steps; `_reward` rates an action."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = self._reward(action)
        self.steps += 1
        return self._observe(), reward, False, self.steps == 10, {}


class Echo(Guess):
    """Environment with random one-hot observations; the reward is 1 for the index."""

    def __init__(self, n=3, start=0):
        self.observation_space = spaces.Box(0.0, 1.0, (n,))
        self.action_space = spaces.Discrete(n, start=start)

    def _observe(self):
        self.index = int(self.np_random.integers(self.observation_space.shape[0]))
        return np.eye(self.observation_space.shape[0], dtype=np.float32)[self.index]

    def _reward(self, action):
        return float(action == self.index + self.action_space.start)


class Imitate(Guess):
    """Environment that observes a random number; the reward is minus the squared error."""

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def _observe(self):
        self.number = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.number

    def _reward(self, action):
        return -float(((action - self.number) ** 2).sum())


class Answer(Guess):
    """Environment that observes random numbers in [-1, 1], one for each action component.

    The number decides the best value: for integers its index among equal intervals, for a Box its
    position between the bounds. The reward is the share of best components, or minus the mean
    squared distance in half widths.
    """

    def __init__(self, action_space):
        self.action_space = action_space
        k = int(np.prod(action_space.shape or ()))
        self.observation_space = spaces.Box(-1.0, 1.0, (k,))

    def _observe(self):
        numbers = self.np_random.uniform(-1.0, 1.0, self.observation_space.shape)
        self.numbers = numbers.astype(np.float32)
        return self.numbers

    def _reward(self, action):
        space, share = self.action_space, (self.numbers + 1) / 2
        got = np.asarray(action).ravel()
        if isinstance(space, spaces.Box):
            low, high = space.low.ravel(), space.high.ravel()
            wrong = (got - low - share * (high - low)) / ((high - low) / 2)
            return -float((wrong**2).mean())
        counts = np.ravel(getattr(space, "nvec", getattr(space, "n", 2)))
        if isinstance(space, spaces.MultiBinary):
            counts = np.full(got.shape, 2)
        right = np.minimum(share * counts, counts - 1).astype(int)
        right = right + np.ravel(getattr(space, "start", 0))
        return float((got == right).mean())


class Count(gym.Env):
    """Environment that observes 100 times the step number; the episode ends after `limit`."""

    def __init__(self, limit=10, terminate=False, scale=100.0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = spaces.Discrete(2)
        self.limit, self.terminate, self.scale = limit, terminate, scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == self.limit
        obs = np.full(1, self.scale * self.steps, np.float32)
        return obs, 1.0, over and self.terminate, over and not self.terminate, {}


class Sampled(gym.Env):
    """Environment that observes samples of a space, and records the actions."""

    def __init__(self, observation_space, action_space, limit=5):
        self.observation_space, self.action_space = observation_space, action_space
        self.limit, self.actions = limit, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(np.array(action))
        self.steps += 1
        over = self.steps == self.limit
        return self.observation_space.sample(), float(self.steps % 3), over, False, {}


# An id without a native implementation.
gym.register("toy/Echo-v0", entry_point="support.envs:Echo")


def cartpole():
    """Make Gymnasium's CartPole."""
    return gym.make("CartPole-v1")


class Breaking(gym.Env):
    """Environment that raises, sleeps or kills the process in step 20."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, fault="raise"):
        self.fault, self.steps = fault, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 20:
            if self.fault == "raise":
                raise ArithmeticError("the environment broke")
            if self.fault == "sleep":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Slow(Echo):
    """Environment whose constructor takes 1000 s in a child process."""

    def __init__(self):
        super().__init__()
        if multiprocessing.parent_process() is not None:
            time.sleep(1000)


class Counter(gym.Env):
    """Environment that observes the step number, and records the actions."""

    def __init__(
        self,
        action_space=None,
        shape=(1,),
        dtype=np.float32,
        terminate_at=0,
        truncate_at=0,
        nan_obs_at=None,
        huge_obs_at=None,
        reward=None,
    ):
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.observation_space = spaces.Box(0, 250, shape, dtype)
        self.terminate_at, self.truncate_at = terminate_at, truncate_at
        self.nan_obs_at, self.huge_obs_at, self.reward = nan_obs_at, huge_obs_at, reward
        self.actions = []

    def _obs(self):
        value = np.nan if self.at == self.nan_obs_at else self.at
        value = -1e300 if self.at == self.huge_obs_at else value
        return np.full(self.observation_space.shape, value, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self.at += 1
        reward = float(self.at) if self.reward is None else self.reward
        terminated, truncated = self.at == self.terminate_at, self.at == self.truncate_at
        return self._obs(), reward, terminated, truncated, {}


def fill(env, n_steps, actions=None, normalizer=None, seed=None):
    """Return a rollout buffer filled with `actions`, or zeros."""
    space = env.single_action_space
    dtype = "float32" if isinstance(space, spaces.Box) else "int64"
    n = env.num_envs
    shape = env.single_observation_space.shape
    buffer = RolloutBuffer(n_steps, n, shape, space.shape, action_dtype=dtype)
    env.begin_rollout(buffer, normalizer, seed)
    zeros = np.zeros(n)
    for t in range(n_steps):
        row = np.zeros((n, *space.shape), dtype) if actions is None else actions[t]
        env.step_rollout(buffer, t, row, zeros, zeros, normalizer)
    return buffer


class Goal(gym.Env):
    """Base class of goal environments: the reward is 0 at the goal and -1 elsewhere."""

    terminates_at_goal = False

    def __init__(self, box, action_space, length):
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, box))
        self.action_space, self.length = action_space, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = self._draw()
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self._move(action)
        self.steps += 1
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        terminated = self.terminates_at_goal and reward == 0
        return obs, reward, terminated, self.steps >= self.length, {"is_success": reward == 0}

    def _obs(self):
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}


class BitFlip(Goal):
    """Environment of n bits that are flipped one by one until they equal the goal (HER paper).

    A random episode reaches the goal with probability of about 2**-n.
    """

    def __init__(self, n=10, terminates_at_goal=False):
        super().__init__(spaces.Box(0, 1, (n,), np.float32), spaces.Discrete(n), n)
        self.terminates_at_goal = terminates_at_goal

    def _draw(self):
        return self.np_random.integers(0, 2, (2, self.length)).astype(np.float32)

    def _move(self, action):
        self.at[action] = 1 - self.at[action]

    def compute_reward(self, achieved_goal, desired_goal, info):
        return np.where((achieved_goal == desired_goal).all(-1), 0.0, -1.0)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.terminates_at_goal & (achieved_goal == desired_goal).all(-1)


class PointMass(Goal):
    """Environment whose actions move a point in [-1, 1]^6 to within 0.3 of a goal."""

    def __init__(self):
        box = spaces.Box(-1, 1, (6,), np.float32)
        super().__init__(box, box, 20)

    def _draw(self):
        return self.np_random.uniform(-1, 1, (2, 6)).astype(np.float32)

    def _move(self, action):
        move = 0.3 * np.clip(np.asarray(action, np.float32), -1, 1)
        self.at = np.clip(self.at + move, -1, 1).astype(np.float32)

    def compute_reward(self, achieved_goal, desired_goal, info):
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return np.where(distance <= 0.3, 0.0, -1.0)


class Endless(gym.Env):
    """Environment without an end that counts all steps and sends SIGINT in step `press_at`."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Discrete(2)
    steps, press_at = 0, None

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        Endless.steps += 1
        if Endless.steps == Endless.press_at:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)


class Samples(gym.Env):
    """Environment that observes samples of a space, and truncates every fourth step."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(np.array(action).tolist())
        return self.observation_space.sample(), 1.0, False, len(self.actions) % 4 == 0, {}
