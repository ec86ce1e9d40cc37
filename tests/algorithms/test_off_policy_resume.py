"""Checkpoints of DQN, SAC and TD3: backends, missing replay, interruptions and memory."""

import errno
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlox import ArgumentError, ClosedError, CorruptFileError, OutOfMemoryError, make_vec
from rlox._training import resume as restoring
from rlox.buffers.replay import NativeReplay
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.learners import _native as native_state
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.envs import PointMass, Sampled
from support.masked_envs import Doors
from support.off_policy import BACKENDS, NORMALIZED, RAINBOW, Numbered, assert_learners_equal
from support.refusals import refuses

BOTH = pytest.mark.parametrize("backend", BACKENDS)
SMALL = {"num_envs": 2, "learning_starts": 10, "batch_size": 16, "buffer_size": 90}
SMALL |= {"net_arch": (16,), "train_freq": 4, "gradient_steps": 1, "runs_dir": None}
SELDOM = {"train_freq": 1, "gradient_steps": 1, "utd_ratio": 0.1}


ACTIONS = gym.spaces.Box(-2, 1, (2,), np.float32)
SPACES = {
    "numbers of two axes": gym.spaces.Box(-1, 1, (2, 3), np.float32),
    "bytes": gym.spaces.Box(0, 9, (2,), np.uint8),
    "float64": gym.spaces.Box(-1, 1, (2,), np.float64),
    "an integer": gym.spaces.Discrete(5, start=2),
    "integers": gym.spaces.MultiDiscrete([[3, 4], [2, 5]]),
    "flags": gym.spaces.MultiBinary(3),
}
CASES = {
    "dqn": (DQNTrainer, "CartPole-v1", {"target_update_interval": 7}),
    "dqn, all options": (DQNTrainer, "CartPole-v1", RAINBOW),
    "dqn, masks": (DQNTrainer, Doors, {"action_masks": True}),
    "sac": (SACTrainer, "Pendulum-v1", {"action_noise": OrnsteinUhlenbeckNoise(0.3)}),
    "sac, set": (SACTrainer, "Pendulum-v1", {"ent_coef": 0.2, "utd_ratio": 0.3}),
    "sac, gSDE": (SACTrainer, "Pendulum-v1", {"use_sde": True, "sde_sample_freq": 3}),
    "td3": (TD3Trainer, "Pendulum-v1", NORMALIZED | {"action_noise": GaussianNoise(0.2)}),
    **{f"td3, {n}": (TD3Trainer, lambda s=s: Sampled(s, ACTIONS), {}) for n, s in SPACES.items()},
}


def sac(backend="native", **settings):
    return SACTrainer("Pendulum-v1", 1, backend=backend, **{**SMALL, **settings})


def reloaded(trainer, env, folder, to):
    trainer.save(folder)
    given = {} if isinstance(env, str) else {"env": env}
    return type(trainer).load(folder, backend=to, runs_dir=None, **given)


def assert_same_arrays(one, other):
    np.testing.assert_equal(one, other)
    assert all(array.dtype == other[name].dtype for name, array in one.items())


@pytest.mark.parametrize("saved", ["native", "torch"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:environment:UserWarning")  # new episodes
def test_a_checkpoint_moves_to_the_other_backend_and_back(case, saved, tmp_path):
    kind, env, settings = CASES[case]
    asked = "torch" if saved == "native" else "native"
    one = kind(env, 1, backend=saved, **{**SMALL, **settings})
    one.train(120)
    two = reloaded(one, env, tmp_path / "two", asked)
    back = reloaded(two, env, tmp_path / "back", saved)
    assert [x.learner.backend for x in (one, two, back)] == [saved, asked, saved]
    assert one.config == two.config == back.config
    there, again, first = (x.learner.state() for x in (two, back, one))
    for part in ("networks", "optimizer", "normalizer", "environment"):
        assert_same_arrays(getattr(there, part), getattr(first, part))
    for x in (again, first):
        x.replay.pop("stream", None)
    assert_same_arrays(again.replay, first.replay)
    assert len(two.learner.replay) == len(one.learner.replay) > 30
    for x in (there, again):
        for name in ("timesteps", "updates", "episodes", "progress"):
            assert x.counters[name] == first.counters[name]
        np.testing.assert_allclose(x.counters["noise"], first.counters["noise"], rtol=1e-6)
        for name in ("resets", "iterations", "predictions", "minibatches"):
            assert x.streams[name] == first.streams[name]
    space = one.env.single_observation_space
    space.seed(0)
    seen = [one.learner.replay.buffer.sample(8, 1)["obs"]] if isinstance(env, str) else []
    for obs in (*seen, np.stack([space.sample() for _ in range(8)])):
        np.testing.assert_allclose(two.predict(obs), one.predict(obs), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(back.predict(obs), one.predict(obs))
    assert two.train(20)["timesteps"] >= 140
    assert two.learner.updates > one.learner.updates


@pytest.mark.parametrize("saved", ["native", "torch"])
@pytest.mark.parametrize("kind", [DQNTrainer, SACTrainer, TD3Trainer])
def test_the_last_losses_are_reported_on_the_other_backend(kind, saved, tmp_path):
    env = "CartPole-v1" if kind is DQNTrainer else "Pendulum-v1"
    one = kind(env, 1, backend=saved, **SMALL | SELDOM)
    said = {}
    one.train(40, callbacks=[lambda _, metrics: said.update(metrics)])
    two = reloaded(one, env, tmp_path / "two", "torch" if saved == "native" else "native")
    again = two.learner.iterate()  # a fifth of a minibatch is due: nothing is learned
    assert again["train/n_updates"] == said["train/n_updates"]
    for name, value in said.items():
        if ("loss" in name or "ent_coef" in name) and not np.isnan(value):
            assert again[name] == pytest.approx(value)


def test_a_checkpoint_from_before_the_first_step_moves_to_the_other_backend(tmp_path):
    one = DQNTrainer("CartPole-v1", 1, backend="native", **SMALL)
    two = reloaded(one, "CartPole-v1", tmp_path / "two", "torch")
    assert (two.timesteps, len(two.learner.replay)) == (0, 0)
    back = reloaded(two, "CartPole-v1", tmp_path / "back", "native")
    assert back.train(60)["timesteps"] >= 60


def test_native_streams_of_environments_are_independent(tmp_path):
    one = sac("torch")
    streams = reloaded(one, "Pendulum-v1", tmp_path / "two", "native").learner.state().streams
    apart = [streams[name]["state"]["state"] for name in ("actions.0", "actions.1", "learning")]
    assert len({*apart, streams["minibatches"]["state"]["state"]}) == 4


def test_settings_of_torch_are_rejected_on_the_native_backend(tmp_path):
    one = sac("torch", activation="elu")
    with refuses(ArgumentError, "activation", 'pass backend="torch"'):
        reloaded(one, "Pendulum-v1", tmp_path / "saved", "native")


SOME = {name: CASES[name] for name in ("dqn", "dqn, all options", "sac", "td3")}


@BOTH
@pytest.mark.parametrize("case", SOME)
def test_a_checkpoint_without_replay_continues_with_an_empty_buffer(case, backend, tmp_path):
    kind, env, settings = SOME[case]
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


@BOTH
@pytest.mark.parametrize("case", SOME)
def test_a_checkpoint_has_the_replay_buffer_by_default_and_continues(case, backend, tmp_path):
    kind, env, settings = SOME[case]
    one = kind(env, 3, backend=backend, **{**SMALL, **settings})
    one.train(64)
    one.save(tmp_path / "saved")
    assert "replay" not in json.loads((tmp_path / "saved" / "manifest.json").read_text())
    two = kind.load(tmp_path / "saved", runs_dir=None)
    assert len(two.learner.replay) == len(one.learner.replay) > 60
    results = [each.train(32) for each in (one, two)]
    assert results[0]["timesteps"] == results[1]["timesteps"] == 96
    assert_learners_equal(one.learner, two.learner)
    assert one.evaluate(2)["returns"] == two.evaluate(2)["returns"]


@BOTH
def test_a_state_without_replay_empties_the_buffer(backend):
    one = TD3Trainer("Pendulum-v1", 1, backend=backend, **SMALL).learner
    for _ in range(10):
        one.iterate()
    one.load_state(one.state(replay=False))
    assert len(one.replay) == 0
    one.iterate()
    assert len(one.replay) == 8


@pytest.mark.filterwarnings("ignore:environment:UserWarning")
def test_hindsight_continues_with_an_empty_buffer(tmp_path):
    one = SACTrainer(PointMass, 1, her="future", **SMALL)
    one.train(50)
    one.save(tmp_path / "saved", replay=False)
    two = SACTrainer.load(tmp_path / "saved", env=PointMass, runs_dir=None)
    with pytest.warns(UserWarning, match="^replay: "):
        two.train(50)
    assert two.learner.updates == one.learner.updates + 7


def test_a_missing_member_is_rejected(tmp_path):
    one = sac()
    one.train(20)
    one.save(tmp_path / "saved")
    read = read_checkpoint(tmp_path / "saved")
    about = {k: v for k, v in read.manifest.items() if k not in ("format", "rlox", "members")}
    members = {k: v for k, v in read.members.items() if k != "replay"}
    write_checkpoint(tmp_path / "other", about, members)
    missing = 'replay, arrays["capacity"]'
    with refuses(CorruptFileError, str(tmp_path / "other"), section=missing):
        SACTrainer.load(tmp_path / "other", runs_dir=None)
    write_checkpoint(tmp_path / "third", {**about, "replay": 0}, members)
    manifest = str(tmp_path / "third" / "manifest.json")
    with refuses(CorruptFileError, manifest, section="manifest", got="0 for the key 'replay'"):
        SACTrainer.load(tmp_path / "third", runs_dir=None)


def test_replay_is_ignored_by_algorithms_without_a_buffer(tmp_path):
    one = PPOTrainer("CartPole-v1", 1, n_steps=8, batch_size=8, runs_dir=None)
    one.save(tmp_path / "saved", replay=False)
    PPOTrainer.load(tmp_path / "saved", runs_dir=None).train(8)
    with refuses(ArgumentError, "replay", got="'no'"):
        one.save(tmp_path / "other", replay="no")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("case", SOME)
def test_transitions_are_counted_without_a_copy(case, mode, monkeypatch):
    kind, env, settings = SOME[case]
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
    made.close()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
@BOTH
def test_a_rejected_state_does_not_move_environments(backend, failure, monkeypatch):
    one, other = sac(backend), sac(backend)
    one.train(30)
    early = one.learner.state()
    other.train(30)
    for trainer in (one, other):
        trainer.train(30)
    with monkeypatch.context() as patch:
        refuse = mock.Mock(side_effect=failure)
        if backend == "torch":
            patch.setattr(one.learner.replay, "load_state", refuse)
        else:
            usual = native_state.check_part
            check = lambda part, *rest: (refuse if part == "replay" else usual)(part, *rest)  # noqa: E731
            patch.setattr(native_state, "check_part", check)
        with pytest.raises(failure):
            one.learner.load_state(early)
    for trainer in (one, other):
        trainer.train(30)
    np.testing.assert_equal(one.learner.replay.state(), other.learner.replay.state())


@BOTH
def test_predictions_of_another_thread_do_not_change_the_run(backend):
    def actions(predicting):
        trainer, done, errors = sac(backend), threading.Event(), []
        stream = np.random.default_rng(0)

        def predict():
            while not done.wait(0.001):  # else each operation of training waits for the GIL
                try:
                    trainer.learner.predict(np.zeros(3, np.float32), False, stream)
                except ClosedError as error:  # noqa: PERF203
                    errors.append(error.argument)

        thread = threading.Thread(target=predict if predicting else done.wait)
        thread.start()
        try:
            trainer.train(200)
        finally:
            done.set()
            thread.join()
        assert {*errors} <= {"learner"}
        return trainer.learner.replay.state()["step.actions"]

    np.testing.assert_array_equal(actions(False), actions(True))


class Stopping(Numbered):
    """Call `stopper` in step 25, which is in the middle of an iteration."""

    stopper = staticmethod(lambda: None)

    def step(self, action):
        if len(self.sent) == 24:
            self.stopper()
        return super().step(action)


@pytest.mark.parametrize(
    ("settings", "updates"), [({"gradient_steps": -1}, 65), ({"utd_ratio": 0.5}, 32)]
)
@BOTH
def test_minibatches_of_a_stopped_iteration_are_made_up(backend, settings, updates):
    env, other = (Stopping(gym.spaces.Discrete(2), limit=10) for _ in "ab")
    small = {"batch_size": 4, "buffer_size": 100, "net_arch": (8,)}
    about = {"learning_starts": 0, "train_freq": 10} | small | settings
    trainer = DQNTrainer(env, seed=1, backend=backend, runs_dir=None, **about)
    env.stopper = trainer.stop
    assert trainer.train(60)["timesteps"] == 25
    state = trainer.learner.state()
    trainer.train()
    assert (trainer.timesteps, trainer.learner.updates) == (65, updates)
    # What is owed is in the state, too.
    again = DQNTrainer(other, seed=1, backend=backend, runs_dir=None, **about)
    again.learner.load_state(state)
    again.train(40)
    assert (again.timesteps, again.learner.updates) == (65, updates)


@BOTH
def test_an_empty_buffer_that_is_saved_again_is_reported(backend, tmp_path):
    trainer = sac(backend)
    trainer.train(30)
    trainer.save(tmp_path / "without", replay=False)
    SACTrainer.load(tmp_path / "without", runs_dir=None).save(tmp_path / "again")
    with pytest.warns(UserWarning, match="replay: expected what was remembered"):
        SACTrainer.load(tmp_path / "again", runs_dir=None).train(2)


def test_a_rejected_state_does_not_reset_environments_without_states():
    env = make_vec(lambda: gym.make("Pendulum-v1"), 1)
    trainer = SACTrainer(env, 1, backend="torch", **{**SMALL, "num_envs": 1})
    trainer.train(30)
    state = trainer.learner.state()
    state.replay = state.replay | {"capacity": np.array([7])}
    with refuses(ArgumentError, 'arrays["capacity"]', section="replay"):
        trainer.learner.load_state(state)
    assert trainer.learner.env_initialized


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def scarce(monkeypatch):
    """Return a function: writing a replay buffer, or anything, raises the given error."""

    def begin(error, everything=False):
        def writing(path, manifest, members):
            if everything or members["replay"]:
                raise error
            write_checkpoint(path, manifest, members)

        monkeypatch.setattr(restoring, "write_checkpoint", writing)

    return begin


@BOTH
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryError("rows"), r"replay: buffer_size: expected .* got 40, with 40 transit"),
        (FULL, r"replay: \[Errno 28\] No space left on device"),
    ],
)
def test_a_run_saves_all_but_a_buffer_that_cannot_be_written(scarce, tmp_path, backend, error, why):
    trainer = sac(backend, runs_dir=tmp_path, buffer_size=40)
    scarce(error)
    with pytest.warns(UserWarning, match=rf"^{why}.*all but the replay buffer") as warned:
        result = trainer.train(60)
    assert warned[0].filename == __file__
    there = {"checkpoint", "config.json", "curve.png", "metrics.csv", "summary.json"}
    assert {*os.listdir(result["run_dir"])} == there
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert summary["checkpoint_warning"] == result["checkpoint_warning"]
    assert summary["timesteps"] == 64
    again = SACTrainer.load(result["run_dir"], runs_dir=None)
    obs = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(again.predict(obs), trainer.predict(obs))
    assert len(again.learner.replay) == 0
    assert len(trainer.learner.replay) == 40


@pytest.mark.parametrize("kind", [SACTrainer, PPOTrainer])
@pytest.mark.parametrize("error", [MemoryError("none"), FULL, PermissionError(13, "not yours")])
def test_the_summary_is_written_when_no_checkpoint_can_be(scarce, tmp_path, kind, error):
    small = SMALL if kind is SACTrainer else {"n_steps": 8, "batch_size": 8}
    trainer = kind("Pendulum-v1", 1, **{**small, "runs_dir": tmp_path})
    scarce(error, everything=True)
    with pytest.raises(type(error)):
        trainer.train(20)
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert summary["checkpoint_warning"] == "all: no checkpoint could be written"
    assert summary["timesteps"] >= 20


@BOTH
def test_a_save_without_memory_names_the_setting_and_a_smaller_one_works(scarce, tmp_path, backend):
    trainer = sac(backend)
    trainer.train(20)
    scarce(MemoryError("rows"))
    with refuses(OutOfMemoryError, "buffer_size", "replay=False", got="90, with 24 transitions"):
        trainer.save(tmp_path / "saved")
    trainer.save(tmp_path / "saved", replay=False)


LIMITED = """
import os, resource, sys, warnings
import gymnasium as gym, numpy as np, torch
from rlox.trainers import SACTrainer
from support.envs import Sampled

wide = lambda: Sampled(gym.spaces.Box(-1, 1, (20_000,)), gym.spaces.Box(-1, 1, (1,)), 50)

def train(backend):
    how = dict(net_arch=(2,), learning_starts=10**6, buffer_size=1_500, batch_size=8)
    trainer = SACTrainer(wide, 0, backend=backend, runs_dir=sys.argv[1], **how)
    trainer.learner.iterate()
    np.linalg.inv(np.ones((200, 200)) @ np.ones((200, 200)) + np.eye(200))  # OpenBLAS's memory
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 80 * 2**20, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = trainer.train(1_450)
    assert any("buffer_size" in str(x.message) for x in said), said
    assert result["checkpoint_warning"].startswith("replay: buffer_size: ")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    assert SACTrainer.load(result["run_dir"], env=wide, runs_dir=None).timesteps == 1_451
    print("done", flush=True)

for backend in ("native", "torch"):
    child = os.fork()  # a process that has no free memory of the other case
    if child == 0:
        train(backend)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, backend
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_weights_are_saved_under_a_memory_limit(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tests)
    assert done.stdout == "done\n" * 2, done.stderr[-2000:]
