"""The replay buffer beside the learner: looked at on both backends, and left out of checkpoints."""

import json
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlox import CorruptFileError
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.trainers import DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from rlox.transitions import NativeReplay
from support.envs import PointMass

SMALL = {"learning_starts": 10, "batch_size": 16, "buffer_size": 90, "net_arch": (16,)}
SMALL |= {"num_envs": 2, "train_freq": 4, "gradient_steps": 1, "runs_dir": None}
RAINBOW = {"prioritized": True, "n_steps": 3, "train_freq": 1}
CASES = {
    "dqn": (DQNTrainer, "CartPole-v1", {}),
    "dqn, all options": (DQNTrainer, "CartPole-v1", RAINBOW),
    "sac": (SACTrainer, "Pendulum-v1", {"n_steps": 2}),
    "td3": (TD3Trainer, "Pendulum-v1", {"normalize_obs": True}),
}
BACKENDS = ["native", "torch"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_without_replay_predicts_and_learns_from_what_comes(case, backend, tmp_path):
    kind, env, settings = CASES[case]
    one = kind(env, 1, backend=backend, **{**SMALL, **settings})
    one.train(100)
    one.save(tmp_path / "saved", replay=False)
    checkpoint = read_checkpoint(tmp_path / "saved")
    assert checkpoint.manifest["replay"] is False
    assert "replay" not in checkpoint.members
    assert not (tmp_path / "saved" / "replay.safetensors").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two = kind.load(tmp_path / "saved", runs_dir=None)
        obs = one.learner.replay.buffer.sample(8, 1)["obs"]
        np.testing.assert_array_equal(two.predict(obs), one.predict(obs))
        assert one.evaluate(1)["returns"] == two.evaluate(1)["returns"]
    assert len(two.learner.replay) == 0
    assert (two.timesteps, two.learner.updates) == (one.timesteps, one.learner.updates)
    with pytest.warns(UserWarning, match=r"^replay: .* with an empty replay buffer") as warned:
        two.train(8)
    assert warned[0].filename == __file__
    assert len(two.learner.replay) == two.timesteps - one.timesteps
    assert two.learner.updates > one.learner.updates
    two.train(8)  # which does not warn again


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_usual_checkpoint_has_it_and_says_nothing(backend, tmp_path):
    one = SACTrainer("Pendulum-v1", 1, backend=backend, **SMALL)
    one.train(40)
    one.save(tmp_path / "saved")
    assert "replay" not in json.loads((tmp_path / "saved" / "manifest.json").read_text())
    two = SACTrainer.load(tmp_path / "saved", runs_dir=None)
    assert len(two.learner.replay) == 40
    two.train(4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_goes_back_to_a_state_without_replay_forgets(backend):
    one = TD3Trainer("Pendulum-v1", 1, backend=backend, **SMALL).learner
    for _ in range(10):
        one.iterate()
    one.load_state(one.state(replay=False))
    assert len(one.replay) == 0
    one.iterate()
    assert len(one.replay) == 8


@pytest.mark.filterwarnings("ignore:environment:UserWarning")
def test_goals_in_hindsight_begin_in_the_middle_of_episodes(tmp_path):
    one = SACTrainer(PointMass, 1, her="future", **SMALL)
    one.train(50)
    one.save(tmp_path / "saved", replay=False)
    two = SACTrainer.load(tmp_path / "saved", env=PointMass, runs_dir=None)
    with pytest.warns(UserWarning, match="^replay: "):
        two.train(50)
    assert two.learner.updates == one.learner.updates + 7


def test_a_member_that_is_missing_is_not_left_out(tmp_path):
    one = SACTrainer("Pendulum-v1", 1, **SMALL)
    one.train(20)
    one.save(tmp_path / "saved")
    read = read_checkpoint(tmp_path / "saved")
    about = {k: v for k, v in read.manifest.items() if k not in ("format", "rlox", "members")}
    members = {k: v for k, v in read.members.items() if k != "replay"}
    write_checkpoint(tmp_path / "other", about, members)
    with pytest.raises(CorruptFileError, match="section replay"):
        SACTrainer.load(tmp_path / "other", runs_dir=None)
    write_checkpoint(tmp_path / "third", {**about, "replay": 0}, members)
    with pytest.raises(CorruptFileError, match=r"section manifest: .*0 as 'replay'"):
        SACTrainer.load(tmp_path / "third", runs_dir=None)


def test_algorithms_without_a_buffer_leave_nothing_out(tmp_path):
    one = PPOTrainer("CartPole-v1", 1, n_steps=8, batch_size=8, runs_dir=None)
    one.train(8)
    one.save(tmp_path / "saved", replay=False)
    two = PPOTrainer.load(tmp_path / "saved", runs_dir=None)
    two.train(8)
    with pytest.raises(ValueError, match=r"^replay: expected True or False, got 'no'"):
        one.save(tmp_path / "other", replay="no")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("case", CASES)
def test_what_is_remembered_is_looked_at_alike_on_both(case):
    kind, env, settings = CASES[case]
    looks = []
    for backend in BACKENDS:
        learner = kind(env, 1, backend=backend, **{**SMALL, **settings}).learner
        assert len(learner.replay) == 0
        while learner.timesteps < 120:
            learner.iterate()
        replay = learner.replay
        assert len(replay) == len(replay.buffer) == 90
        batch = replay.buffer.sample(16, 1)
        looks.append({name: (x.shape, x.dtype) for name, x in batch.items()})
        assert (type(replay.buffer).__name__, replay.buffer.capacity) == (
            "PrioritizedReplayBuffer" if "prioritized" in settings else "ReplayBuffer",
            90,
        )
    assert looks[0] == looks[1]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("case", CASES)
def test_what_is_remembered_is_counted_without_a_copy(case, mode, tmp_path, monkeypatch):
    kind, env, settings = CASES[case]
    if mode is AutoresetMode.NEXT_STEP:
        settings = {**settings, "n_steps": 1}
    made = gym.make_vec(env, 2, "sync", vector_kwargs={"autoreset_mode": mode})
    one = kind(made, 1, backend="native", **{**SMALL, **settings, "buffer_size": 91})
    state, stored = NativeReplay.state, []
    monkeypatch.setattr(NativeReplay, "state", lambda self: pytest.fail("a copy"))

    def count(trainer):
        stored.append(len(trainer.learner.replay))
        assert stored[-1] == len(state(trainer.learner.replay)["step.rewards"])

    count(one)
    for _ in range(4):
        one.train(30)
        count(one)
    assert stored[0] == 0
    assert stored[-1] in (90, 91)
    monkeypatch.setattr(NativeReplay, "state", state)
    one.save(tmp_path / "whole")
    one.save(tmp_path / "small", replay=False)
    for name in ("whole", "small"):
        two = kind.load(tmp_path / name, env=made, runs_dir=None)
        count(two)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            two.train(10)
        count(two)
    made.close()
