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
from support.rejections import rejects

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
FRAMES = 4
SMALL = {"learning_starts": 8, "batch_size": 16, "buffer_size": 90, "net_arch": (8,)}


class Flicker(gym.Env):
    """Environment with images of three shades, and episodes of 1 to 9 steps."""

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


def make_stacked(discrete=True, padding="reset", side=3):
    return FrameStackObservation(Flicker(discrete, side), FRAMES, padding_type=padding)


def make_continuous():
    return make_stacked(False, "zero")


CASES = {
    "DQN": {},
    # Priorities depend on row positions, so the ring buffer must not wrap around.
    "DQN, all options": {"buffer_size": 1000, "prioritized": True, "n_steps": 3, "num_envs": 2},
    "DQN, normalised": {"normalize_obs": True, "num_envs": 3},
    "SAC": {"num_envs": 2, "n_steps": 2},
    "TD3": {"action_noise": None},
}


def make_case_learner(case, mode=SAME_STEP, frame_stack=FRAMES, **changes):
    settings = {"num_envs": 1, **SMALL, **CASES[case], "frame_stack": frame_stack, **changes}
    make_env = make_stacked if case.startswith("DQN") else make_continuous
    env = SyncVectorEnv([make_env] * settings["num_envs"], autoreset_mode=mode)
    return make_learner(case[:3], "torch", 3, env, **settings)


def stored_frames(learner):
    return int(learner.replay.buffer.state()["frame_stack"][0])


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("case", CASES)
def test_samples_and_learning_equal_unstacked_storage(case, mode):
    envs = {"num_envs": 1} if mode is NEXT_STEP else {}
    learners = [make_case_learner(case, mode, frames, **envs) for frames in (FRAMES, None)]
    assert [stored_frames(x) for x in learners] == [FRAMES, 1]
    for _ in range(100):  # the ring buffer wraps around
        rows = [str(x.iterate()) for x in learners]
        assert rows[0] == rows[1]
        size = len(learners[0].replay)
        np.testing.assert_equal(*(x.replay.buffer.sample(size, seed=size) for x in learners))
    assert learners[0].episodes.count > 10
    np.testing.assert_equal(*(x._networks() for x in learners))


@pytest.mark.parametrize("case", ["DQN", "SAC"])
def test_learners_resume_from_a_state(case):
    learner, other = make_case_learner(case), make_case_learner(case)
    unstacked = make_case_learner(case, frame_stack=None)
    run_iterations(learner, 50)
    state = learner.state()
    other.load_state(state)
    for x in (learner, other):  # new episodes
        x.env_initialized = False
    assert str(run_iterations(learner, 9)) == str(run_iterations(other, 9))
    np.testing.assert_equal(learner.state().replay, other.state().replay)
    before = unstacked.state().replay
    with rejects(ArgumentError, 'arrays["frame_stack"]', expected="1", section="replay"):
        unstacked.load_state(state)
    np.testing.assert_equal(unstacked.state().replay, before)


def test_a_stack_uses_the_memory_of_one_frame():
    config = DQNConfig(buffer_size=1000, frame_stack=FRAMES)
    learner = DQN(make_vec(lambda: make_stacked(side=40), 1), config, 1)
    assert learner.replay.buffer.nbytes < 1.05 * 1000 * 40 * 40


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_nature_cnn_learns_the_same_from_frames_stored_once(name):
    settings = {"learning_starts": 8, "batch_size": 4, "train_freq": 4, "buffer_size": 40}
    networks = []
    for frames in (FRAMES, None):
        env = SyncVectorEnv([lambda: make_stacked(name == "DQN", side=36)])
        learner = make_learner(name, "torch", 2, env, frame_stack=frames, **settings)
        run_iterations(learner, 14)
        assert learner.updates == 12
        networks.append(learner._networks())
    np.testing.assert_equal(*networks)


@pytest.mark.parametrize("replay", [True, False])
def test_native_learners_reject_checkpoints_with_stacked_frames(replay, tmp_path):
    def make_env():
        return FrameStackObservation(gym.make("CartPole-v1"), FRAMES)

    settings = {**SMALL, "frame_stack": FRAMES, "runs_dir": None}
    with DQNTrainer(make_env, 1, backend="torch", **settings) as trainer:
        trainer.train(20)
        trainer.save(tmp_path / "saved", replay=replay)
    with rejects(ArgumentError, "frame_stack", "backend", got="4"):
        DQNTrainer.load(tmp_path / "saved", env=make_env, backend="native", runs_dir=None)


def test_frames_may_share_the_first_axis():
    assert stored_frames(make_case_learner("DQN", frame_stack=2)) == 2
    env = make_vec(lambda: gym.wrappers.FlattenObservation(make_stacked()), 1)  # 36 numbers, 9 per frame
    assert stored_frames(DQN(env, DQNConfig(**SMALL, frame_stack=4), 1)) == 4


@pytest.mark.parametrize(
    ("env", "frames", "error"),
    [(make_stacked, 3, ArgumentError), (BitFlip, 2, ArgumentError), (make_stacked, 2.0, ArgumentTypeError)],
)
def test_invalid_numbers_of_frames_are_rejected(env, frames, error):
    with rejects(error, "frame_stack"):
        DQNTrainer(env, frame_stack=frames, backend="torch", runs_dir=None)


def test_several_environments_in_next_step_mode_reject_frame_stack():
    assert stored_frames(make_case_learner("SAC", NEXT_STEP, None, n_steps=1)) == 1
    with rejects(ArgumentError, "frame_stack", got="4"):
        make_case_learner("SAC", NEXT_STEP, n_steps=1)


def test_frame_stack_needs_torch():
    with rejects(ArgumentError, "frame_stack", 'backend="torch"', got="3"):
        SACTrainer("Pendulum-v1", frame_stack=3, backend="native", runs_dir=None)
    assert SACTrainer("Pendulum-v1", frame_stack=3, runs_dir=None).learner.backend == "torch"
    assert SACTrainer("Pendulum-v1", frame_stack=1, runs_dir=None).learner.backend == "native"
