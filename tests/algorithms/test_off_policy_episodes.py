"""Iterations of whole episodes, as `train_freq=(1, "episode")` asks for, on both backends."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlox.configs import DQNConfig, SACConfig
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer

SMALL = {"learning_starts": 0, "batch_size": 8, "buffer_size": 200, "net_arch": (8,)}


class Longer(gym.Env):
    """Episodes of 2, 3, 4, 2, 3, 4 ... steps, cut or ended by turns."""

    def __init__(self, discrete=False):
        self.observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
        box = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2) if discrete else box
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == 2 + self.episode % 3
        cut = over and self.episode % 2 == 0
        return np.full(2, self.t, np.float32), 1.0, over and not cut, cut, {}


def maker(mode):
    def make(discrete=False):
        return gym.vector.SyncVectorEnv([lambda: Longer(discrete)], autoreset_mode=mode)

    return make


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("trainer", [DQNTrainer, SACTrainer, TD3Trainer])
def test_an_iteration_has_whole_episodes_and_as_many_minibatches_as_steps(trainer, mode, backend):
    env = maker(mode)(trainer is DQNTrainer)
    how = {"train_freq": (1, "episode"), "gradient_steps": -1, "backend": backend, **SMALL}
    one, told = trainer(env, 1, runs_dir=None, **how).learner, []
    for _ in range(4):
        one.iterate()
        told.append((one.timesteps, one.updates, one.episodes.count))
    assert told == [(2, 2, 1), (5, 5, 2), (9, 9, 3), (11, 11, 4)]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_several_episodes_and_a_set_count_of_minibatches(backend):
    how = {"train_freq": [2, "episode"], "gradient_steps": 3, "backend": backend, **SMALL}
    one = SACTrainer(maker(AutoresetMode.SAME_STEP)(), 1, runs_dir=None, **how).learner
    for _ in range(2):
        one.iterate()
    assert (one.timesteps, one.updates, one.episodes.count) == (11, 6, 4)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_native_environments_are_played_to_the_end_and_a_run_goes_on(backend, tmp_path):
    how = {"train_freq": (1, "episode"), "backend": backend, "runs_dir": None, **SMALL}
    one = DQNTrainer("CartPole-v1", 1, **how)
    for _ in range(5):
        before = one.learner.episodes.count
        one.learner.iterate()
        assert one.learner.episodes.count == before + 1
    one.save(tmp_path / "saved")
    two = DQNTrainer.load(tmp_path / "saved", runs_dir=None)
    assert two.config == one.config
    told = [x.learner.iterate() for x in (one, two)]
    assert str(told[0]) == str(told[1])


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_stopping_ends_an_episode_too(backend):
    how = {"train_freq": (1, "episode"), "backend": backend, **SMALL}
    env = maker(AutoresetMode.SAME_STEP)()
    one = SACTrainer(env, 1, runs_dir=None, **how).learner
    one.iterate()
    step = one.stepper.step

    def last(actions):
        one.stopping = True
        return step(actions)

    one.stepper.step = last
    one.iterate()
    assert (one.timesteps, one.episodes.count) == (3, 1)


def test_a_count_of_steps_is_what_it_says():
    assert DQNConfig(train_freq=(4, "step")).train_freq == 4
    assert DQNConfig(train_freq=[1, "episode"]).train_freq == (1, "episode")
    assert DQNConfig().train_freq == 4


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((1, "epoch"), ValueError),
        ((0, "episode"), ValueError),
        ((1.0, "episode"), ValueError),
        ((1,), ValueError),
        ((1, "step", 2), ValueError),
        ("episode", TypeError),
        (0, ValueError),
    ],
)
def test_other_frequencies_are_refused(given, error):
    with pytest.raises(error, match=r"^train_freq: expected an integer of at least 1"):
        SACConfig(train_freq=given)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_episodes_of_several_environments_are_refused(backend):
    words = r"^train_freq: expected steps beside num_envs = 2, .*; pass an integer, or num_envs=1$"
    with pytest.raises(ValueError, match=words):
        SACTrainer(
            "Pendulum-v1", 1, num_envs=2, train_freq=(1, "episode"), backend=backend, runs_dir=None
        )
