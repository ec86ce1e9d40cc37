"""Stacked frames: replay buffers store each frame once, and learners learn the same."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

from rlox import ArgumentError, ArgumentTypeError, make_vec
from rlox.algorithms import DQN, DQNConfig
from rlox.trainers import DQNTrainer, SACTrainer
from support.envs import BitFlip
from support.off_policy import make_learner, run_iterations
from support.refusals import refuses

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
FRAMES = 4
SMALL = {"learning_starts": 8, "batch_size": 16, "buffer_size": 90, "net_arch": (8,)}


class Flicker(gym.Env):
    """Pictures of three shades; episodes of 1 to 9 steps."""

    def __init__(self, discrete=True, side=3):
        self.observation_space = gym.spaces.Box(0, 255, (side, side), np.uint8)
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-2, 1, (2,))

    def _picture(self):
        return np.full(self.observation_space.shape, self.np_random.integers(3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.remaining = int(self.np_random.integers(1, 10))
        return self._picture(), {}

    def step(self, action):
        self.remaining -= 1
        over, cut = self.remaining == 0, bool(self.np_random.integers(2))
        reward = float(self.np_random.random() + np.sum(action))
        return self._picture(), reward, over and not cut, over and cut, {}


def stacked(discrete=True, padding="reset", side=3):
    return FrameStackObservation(Flicker(discrete, side), FRAMES, padding_type=padding)


def continuous():
    return stacked(False, "zero")


KINDS = {
    "DQN": {},
    # Priorities depend on the positions of rows, so that the ring must not wrap around.
    "DQN, all options": {"buffer_size": 1000, "prioritized": True, "n_steps": 3, "num_envs": 2},
    "DQN, normalised": {"normalize_obs": True, "num_envs": 3},
    "SAC": {"num_envs": 2, "n_steps": 2},
    "TD3": {"action_noise": None},
}


def learner(kind, mode=SAME_STEP, frame_stack=FRAMES, **changes):
    settings = {"num_envs": 1, **SMALL, **KINDS[kind], "frame_stack": frame_stack, **changes}
    make = stacked if kind.startswith("DQN") else continuous
    env = SyncVectorEnv([make] * settings["num_envs"], autoreset_mode=mode)
    return make_learner(kind[:3], "torch", 3, env, **settings)


def stored_frames(one):
    return int(one.replay.buffer.state()["frame_stack"][0])


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_and_learning_equal_those_of_whole_stacks(kind, mode):
    envs = {"num_envs": 1} if mode is NEXT_STEP else {}
    once, whole = (learner(kind, mode, frames, **envs) for frames in (FRAMES, None))
    assert (stored_frames(once), stored_frames(whole)) == (FRAMES, 1)
    for _ in range(100):  # wraps around the ring
        rows = [str(one.iterate()) for one in (once, whole)]
        assert rows[0] == rows[1]
        size = len(once.replay)
        np.testing.assert_equal(
            *(one.replay.buffer.sample(size, seed=size) for one in (once, whole))
        )
    assert once.episodes.count > 10
    np.testing.assert_equal(once._networks(), whole._networks())


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_learners_resume_from_a_state(kind):
    one, other, whole = learner(kind), learner(kind), learner(kind, frame_stack=None)
    run_iterations(one, 50)
    state = one.state()
    other.load_state(state)
    for x in (one, other):  # new episodes
        x.env_initialized = False
    assert str(run_iterations(one, 9)) == str(run_iterations(other, 9))
    np.testing.assert_equal(one.state().replay, other.state().replay)
    before = whole.state().replay
    with refuses(ArgumentError, 'arrays["frame_stack"]', expected="1", section="replay"):
        whole.load_state(state)
    np.testing.assert_equal(whole.state().replay, before)


def test_a_stack_takes_the_memory_of_one_frame():
    config = DQNConfig(buffer_size=1000, frame_stack=FRAMES)
    one = DQN(make_vec(lambda: stacked(side=40), 1), config, 1)
    assert one.replay.buffer.nbytes < 1.05 * 1000 * 40 * 40


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_nature_cnn_learns_the_same_from_frames_stored_once(name):
    settings = {"learning_starts": 8, "batch_size": 4, "train_freq": 4, "buffer_size": 40}
    learned = []
    for frames in (FRAMES, None):
        env = SyncVectorEnv([lambda: stacked(name == "DQN", side=36)])
        one = make_learner(name, "torch", 2, env, frame_stack=frames, **settings)
        run_iterations(one, 14)
        assert one.updates == 12
        learned.append(one._networks())
    np.testing.assert_equal(*learned)


@pytest.mark.parametrize("replay", [True, False])
def test_native_learners_reject_checkpoints_with_stacked_frames(replay, tmp_path):
    def numbers():
        return FrameStackObservation(gym.make("CartPole-v1"), FRAMES)

    settings = {**SMALL, "frame_stack": FRAMES, "runs_dir": None}
    with DQNTrainer(numbers, 1, backend="torch", **settings) as trainer:
        trainer.train(20)
        trainer.save(tmp_path / "saved", replay=replay)
    with refuses(ArgumentError, "frame_stack", "backend", got="4"):
        DQNTrainer.load(tmp_path / "saved", env=numbers, backend="native", runs_dir=None)


def test_frames_may_be_a_part_of_the_first_axis():
    assert stored_frames(learner("DQN", frame_stack=2)) == 2
    env = make_vec(lambda: gym.wrappers.FlattenObservation(stacked()), 1)  # of 36 numbers, 9 each
    assert stored_frames(DQN(env, DQNConfig(**SMALL, frame_stack=4), 1)) == 4


@pytest.mark.parametrize(
    ("env", "frames", "error"),
    [(stacked, 3, ArgumentError), (BitFlip, 2, ArgumentError), (stacked, 2.0, ArgumentTypeError)],
)
def test_other_numbers_of_frames_are_rejected(env, frames, error):
    with refuses(error, "frame_stack"):
        DQNTrainer(env, frame_stack=frames, backend="torch", runs_dir=None)


def test_several_environments_in_next_step_mode_reject_frame_stack():
    assert stored_frames(learner("SAC", NEXT_STEP, None, n_steps=1)) == 1
    with refuses(ArgumentError, "frame_stack", got="4"):
        learner("SAC", NEXT_STEP, n_steps=1)


def test_frame_stack_needs_torch():
    with refuses(ArgumentError, "frame_stack", 'backend="torch"', got="3"):
        SACTrainer("Pendulum-v1", frame_stack=3, backend="native", runs_dir=None)
    assert SACTrainer("Pendulum-v1", frame_stack=3, runs_dir=None).learner.backend == "torch"
    assert SACTrainer("Pendulum-v1", frame_stack=1, runs_dir=None).learner.backend == "native"
