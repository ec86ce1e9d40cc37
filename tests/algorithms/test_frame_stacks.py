"""Observations that stack frames: learners store each frame once and learn what they would else."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, vector

from rlox import make_vec
from rlox.algorithms import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from rlox.frames import stacked_frames
from rlox.trainers import DQNTrainer, SACTrainer
from support.envs import BitFlip

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
FRAMES = 4
SMALL = {"learning_starts": 8, "batch_size": 16, "buffer_size": 90, "net_arch": (8,)}


class Flicker(gym.Env):
    """Pictures of few shades, so that some are equal by chance; episodes of 1 to 9 steps."""

    def __init__(self, discrete=True, side=3):
        self.observation_space = gym.spaces.Box(0, 255, (side, side), np.uint8)
        space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-2, 1, (2,))
        self.action_space = space

    def _picture(self):
        return np.full(self.observation_space.shape, self.np_random.integers(3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        return self._picture(), {}

    def step(self, action):
        self.left -= 1
        over, cut = self.left == 0, bool(self.np_random.integers(2))
        reward = float(self.np_random.random() + np.sum(action))
        return self._picture(), reward, over and not cut, over and cut, {}


def stacked(discrete=True, padding="reset", side=3):
    return FrameStackObservation(Flicker(discrete, side), FRAMES, padding_type=padding)


def continuous():
    return stacked(False, "zero")


KINDS = {
    "DQN": (DQN, DQNConfig(**SMALL), stacked),
    "DQN, all options": (
        DQN,
        # What priorities choose goes by where rows are in the ring, so that it is not gone around.
        DQNConfig(**SMALL | {"buffer_size": 1000}, prioritized=True, n_steps=3, num_envs=2),
        stacked,
    ),
    "DQN, normalised": (DQN, DQNConfig(**SMALL, normalize_obs=True, num_envs=3), stacked),
    "SAC": (SAC, SACConfig(**SMALL, num_envs=2, n_steps=2), continuous),
    "TD3": (TD3, TD3Config(**SMALL), continuous),
}


def learner(kind, mode=SAME_STEP, **changes):
    algorithm, config, make = KINDS[kind]
    config = replace(config, **changes)
    env = SyncVectorEnv([make] * config.num_envs, autoreset_mode=mode)
    return algorithm(make_vec(env), config, 3)


def held(one):
    return int(one.replay.buffer.state()["frame_stack"][0])


def same(a, b):
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sampled_and_learned_is_that_of_whole_stacks(kind, mode):
    several = {"num_envs": 1} if mode is NEXT_STEP else {}
    once, whole = (learner(kind, mode, frame_stack=k, **several) for k in (None, 1))
    assert (held(once), held(whole)) == (FRAMES, 1)
    for _ in range(100):  # goes around the ring
        rows = [str(one.iterate()) for one in (once, whole)]
        assert rows[0] == rows[1]
        size = len(once.replay)
        same(*(one.replay.buffer.sample(size, seed=size) for one in (once, whole)))
    assert once.episodes.count > 10
    same(once._networks(), whole._networks())


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_going_on_from_a_state_is_going_on(kind):
    one, other, whole = learner(kind), learner(kind), learner(kind, frame_stack=1)
    for _ in range(50):
        one.iterate()
    state = one.state()
    other.load_state(state)
    for x in (one, other):  # environments of Gymnasium's begin new episodes
        x.started = False
    assert str([one.iterate() for _ in range(9)]) == str([other.iterate() for _ in range(9)])
    same(one.state().replay, other.state().replay)
    before = whole.state().replay
    with pytest.raises(ValueError, match=r'^replay: arrays\["frame_stack"\]: expected 1, got 4'):
        whole.load_state(state)
    same(whole.state().replay, before)


def test_a_stack_of_pictures_takes_the_memory_of_one():
    one = DQN(make_vec(lambda: stacked(side=40), 1), DQNConfig(buffer_size=1000), 1)
    assert one.replay.buffer.nbytes < 1.05 * 1000 * 40 * 40


@pytest.mark.parametrize("algorithm", [DQN, SAC, TD3])
def test_a_nature_cnn_learns_from_stacks_stored_once_what_it_learns_from_whole_ones(algorithm):
    kind, discrete = {DQN: DQNConfig, SAC: SACConfig, TD3: TD3Config}[algorithm], algorithm is DQN
    small = {"learning_starts": 8, "batch_size": 4, "train_freq": 4, "buffer_size": 40}
    learned = []
    for frames in (None, 1):
        env = make_vec(lambda: stacked(discrete, side=36), 1)
        one = algorithm(env, kind(**small, frame_stack=frames), 2)
        for _ in range(14):
            one.iterate()
        assert one.updates == 12
        learned.append(one._networks())
    same(*learned)


def flat():
    return FlattenObservation(stacked())


def around(*kinds):
    """Wrappers around stacks of frames, from within."""

    def make():
        env = stacked()
        for kind in kinds:
            env = kind(env)
        return env

    return make


class Bonus(gym.RewardWrapper):
    def reward(self, reward):
        return reward + 1


class Twice(gym.ActionWrapper):
    """Changes what is observed beside actions: two steps are one."""

    def action(self, action):
        return action

    def step(self, action):
        _, first, *ended, info = super().step(action)
        return (_, first, *ended, info) if any(ended) else super().step(action)


class Known(gym.Wrapper):
    """Leaves observations alone, which cannot be seen."""


HARMLESS = (
    lambda env: wrappers.TimeLimit(env, 20),
    wrappers.RecordEpisodeStatistics,
    wrappers.OrderEnforcing,
    Bonus,
    lambda env: wrappers.ClipReward(env, -1, 1),
    wrappers.NormalizeReward,
    lambda env: wrappers.TransformAction(env, lambda action: action, env.action_space),
)


@pytest.mark.parametrize(
    ("make", "how", "frames"),
    [
        (stacked, {}, 4),
        (stacked, {"vectorization_mode": "async"}, 4),
        (flat, {}, 1),
        (Flicker, {}, 1),
        (BitFlip, {}, 1),
        ("CartPole-v1", {}, 1),
        ("CartPole-v1", {"wrappers": [lambda env: FrameStackObservation(env, 2)]}, 2),
        (around(*HARMLESS), {}, 4),
        (around(*HARMLESS), {"vectorization_mode": "async"}, 4),
        (around(wrappers.NormalizeObservation), {}, 1),
        (around(Bonus, wrappers.NormalizeObservation), {"vectorization_mode": "async"}, 1),
        (around(lambda env: wrappers.MaxAndSkipObservation(env, 2)), {}, 1),
        (around(Twice), {}, 1),
        (around(Known), {}, 1),
        (around(lambda env: FrameStackObservation(env, 3)), {}, 3),
    ],
)
def test_gymnasiums_wrapper_is_recognised(make, how, frames):
    env = make_vec(make, 2, **how)
    assert stacked_frames(env, None) == frames
    env.close()


@pytest.mark.parametrize(
    ("wrapper", "frames"),
    [
        (vector.RecordEpisodeStatistics, FRAMES),
        (lambda env: vector.TransformReward(env, lambda rewards: rewards + 1), FRAMES),
        (vector.NormalizeReward, FRAMES),
        (vector.NormalizeObservation, 1),
        (lambda env: vector.TransformObservation(env, lambda obs: obs), 1),
    ],
)
def test_wrappers_of_vector_environments_are_looked_through(wrapper, frames):
    env = SyncVectorEnv([stacked] * 2, autoreset_mode=NEXT_STEP)
    assert stacked_frames(make_vec(wrapper(env)), None) == frames


def test_stacks_that_are_no_shifts_take_no_more_than_whole_ones():
    sizes = []
    for frames in (None, 1):
        env = make_vec(around(wrappers.NormalizeObservation), 1)
        one = DQN(env, DQNConfig(**SMALL, frame_stack=frames), 1)
        for _ in range(30):  # four steps each
            one.iterate()
        sizes.append(one.replay.buffer.nbytes)
    assert sizes[0] == sizes[1]


def test_other_environments_stacks_are_stored_once_where_they_are_told():
    one = learner("DQN", frame_stack=2)
    assert held(one) == 2
    env = make_vec(flat, 1)  # of 36 numbers, 9 each
    assert held(DQN(env, DQNConfig(**SMALL, frame_stack=4), 1)) == 4


@pytest.mark.parametrize(
    ("make", "frames", "message"),
    [
        (stacked, 3, "^frame_stack: expected 1, or a number .* first axis .*, got 3 for Box"),
        (BitFlip, 2, "^frame_stack: expected 1, or a number .* first axis .*, got 2 for Dict"),
        (stacked, 0, "^frame_stack: expected an integer of at least 1, got 0"),
        (stacked, 2.0, "^frame_stack: expected an integer of at least 1, got 2.0"),
    ],
)
def test_what_is_no_stack_of_so_many_is_refused(make, frames, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DQNTrainer(make, frame_stack=frames, backend="torch", runs_dir=None)


def test_several_environments_that_pause_are_stored_whole():
    with pytest.warns(UserWarning, match="frame_stack: expected 4 frames .* up to 8 times"):
        one = learner("SAC", NEXT_STEP, n_steps=1)
    assert held(one) == 1
    with pytest.raises(ValueError, match=r"^frame_stack: expected None .* NEXT_STEP, got 4"):
        learner("SAC", NEXT_STEP, n_steps=1, frame_stack=4)


def test_stacks_that_are_told_need_torch():
    with pytest.raises(ValueError, match=r"^frame_stack: expected None on the native .*torch"):
        SACTrainer("Pendulum-v1", frame_stack=3, backend="native", runs_dir=None)
    assert SACTrainer("Pendulum-v1", frame_stack=3, runs_dir=None).learner.backend == "torch"
    assert SACTrainer("Pendulum-v1", frame_stack=1, runs_dir=None).learner.backend == "native"
