"""DQN, SAC and TD3 in environments that tell things in ways of their own, on both backends."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

from rlox.interchange import to_arrow
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer

SMALL = {"batch_size": 8, "buffer_size": 300, "net_arch": (8,), "train_freq": 1, "runs_dir": None}
BOTH = pytest.mark.parametrize("backend", ["native", "torch"])
ALL = pytest.mark.parametrize("algorithm", [DQNTrainer, SACTrainer, TD3Trainer])


class Counting(gym.Env):
    """Observations say which step of which episode it is, rewards which step of all."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))

    def __init__(self, algorithm, limit, terminate=False, vast=None):
        discrete = algorithm is DQNTrainer
        self.action_space = gym.spaces.Discrete(2) if discrete else gym.spaces.Box(-1, 1, (1,))
        self.limit, self.terminate, self.vast = limit, terminate, vast
        self.episode, self.steps = -1, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.float32([self.episode, 0]), {"began": True}

    def step(self, action):
        self.t, self.steps = self.t + 1, self.steps + 1
        over = self.t == self.limit
        obs = np.float32([self.episode, self.t])
        reward = 1e39 if self.steps == self.vast else float(self.t)
        return obs, reward, over and self.terminate, over and not self.terminate, {"t": self.t}


@ALL
@BOTH
def test_last_observations_are_found_in_lists_of_infos(algorithm, backend):
    many = [lambda n=n: Counting(algorithm, n, n == 4) for n in (3, 4)]
    env = DictInfoToList(SyncVectorEnv(many, autoreset_mode=AutoresetMode.SAME_STEP))
    trainer = algorithm(env, 1, num_envs=2, learning_starts=8, backend=backend, **SMALL)
    trainer.train(48)
    one = trainer.learner
    assert (one.timesteps, one.episodes.count) == (48, 8 + 6)
    assert one.updates > 0
    table = to_arrow(one.replay.buffer)
    names = ("obs", "next_obs", "terminated", "truncated")
    obs, following, ended, cut = (np.array(table[name].to_pylist()) for name in names)
    (episode, t), (then, after) = obs.T, following.T
    np.testing.assert_array_equal(then, episode)
    np.testing.assert_array_equal(after, t + 1)
    assert np.bincount(after.astype(int)).tolist() == [0, 14, 14, 14, 6]
    np.testing.assert_array_equal(ended, after == 4)
    assert cut[after == 3].sum() == cut.sum() == 8


@ALL
@BOTH
def test_a_reward_beyond_float32_is_blamed_on_who_gave_it_while_others_only_reset(
    algorithm, backend
):
    about = [(2, None), (9, None), (9, 3)]
    many = [lambda n=n, vast=vast: Counting(algorithm, n, vast=vast) for n, vast in about]
    env = SyncVectorEnv(many, autoreset_mode=AutoresetMode.NEXT_STEP)
    trainer = algorithm(env, 1, num_envs=3, learning_starts=100, backend=backend, **SMALL)
    one = trainer.learner
    for _ in range(2):
        one.iterate()
    assert (one.timesteps, len(one.replay)) == (6, 6)
    words = r"^rewards: expected .*float32.*, got 1e\+39 in environment 2 at step 3; "
    with pytest.raises(ValueError, match=words):
        one.iterate()
    assert (one.timesteps, len(one.replay)) == (6, 6)


class Parts(Counting):
    """As `Counting`, in a Dict with a part of uint8 and one of flags."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (2, 3), np.uint8),
        flags=gym.spaces.MultiBinary(4),
        numbers=Counting.observation_space,
    )

    def _parts(self, obs):
        episode, t = obs.astype(np.uint8)
        flags = (np.arange(4) == t).astype(np.int8)
        return {"image": np.full((2, 3), 10 * episode + t), "flags": flags, "numbers": obs}

    def reset(self, *, seed=None, options=None):
        return self._parts(super().reset()[0]), {}

    def step(self, action):
        obs, *rest = super().step(action)
        return self._parts(obs), *rest


@ALL
def test_dict_observations_with_bytes_and_flags_of_two_environments_are_stored(algorithm):
    trainer = algorithm(
        lambda: Parts(algorithm, 3), 1, num_envs=2, learning_starts=8, backend="torch", **SMALL
    )
    trainer.train(24)
    assert trainer.learner.updates > 0
    batch = trainer.learner.replay.buffer.sample(24, seed=0)
    episode, t = batch["obs"]["numbers"].T.astype(int)
    assert {*t} == {0, 1, 2}
    assert np.array_equal(batch["obs"]["flags"], np.arange(4) == t[:, None])
    assert np.array_equal(batch["next_obs"]["flags"], np.arange(4) == t[:, None] + 1)
    number = np.broadcast_to((10 * episode + t)[:, None, None], (24, 2, 3))
    assert np.array_equal(batch["obs"]["image"], number)
    assert np.array_equal(batch["next_obs"]["image"], number + 1)
