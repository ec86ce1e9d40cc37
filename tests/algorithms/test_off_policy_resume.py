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

from rlox import ArgumentError, ArgumentTypeError, ClosedError, CorruptFileError, OutOfMemoryError, make_vec
from rlox._training import run as training_run
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.learners import _native as native_state
from rlox.learners.native_off_policy import NativeReplay
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.envs import PointMass, Sampled
from support.masked_envs import Doors
from support.off_policy import BACKENDS, NORMALIZED, RAINBOW, Numbered, assert_learners_equal
from support.rejections import rejects

BOTH = pytest.mark.parametrize("backend", BACKENDS)
SMALL = {"num_envs": 2, "learning_starts": 10, "batch_size": 16, "buffer_size": 90}
SMALL |= {"net_arch": (16,), "train_freq": 4, "gradient_steps": 1, "runs_dir": None}
RARE_UPDATES = {"train_freq": 1, "gradient_steps": 1, "utd_ratio": 0.1}


ACTIONS = gym.spaces.Box(-2, 1, (2,), np.float32)
SPACES = {
    "two-dimensional Box": gym.spaces.Box(-1, 1, (2, 3), np.float32),
    "uint8": gym.spaces.Box(0, 9, (2,), np.uint8),
    "float64": gym.spaces.Box(-1, 1, (2,), np.float64),
    "Discrete": gym.spaces.Discrete(5, start=2),
    "MultiDiscrete": gym.spaces.MultiDiscrete([[3, 4], [2, 5]]),
    "MultiBinary": gym.spaces.MultiBinary(3),
}
CASES = {
    "dqn": (DQNTrainer, "CartPole-v1", {"target_update_interval": 7}),
    "dqn, all options": (DQNTrainer, "CartPole-v1", RAINBOW),
    "dqn, masks": (DQNTrainer, Doors, {"action_masks": True}),
    "sac": (SACTrainer, "Pendulum-v1", {"action_noise": OrnsteinUhlenbeckNoise(0.3)}),
    "sac, fixed entropy coefficient": (SACTrainer, "Pendulum-v1", {"ent_coef": 0.2, "utd_ratio": 0.3}),
    "sac, gSDE": (SACTrainer, "Pendulum-v1", {"use_sde": True, "sde_sample_freq": 3}),
    "td3": (TD3Trainer, "Pendulum-v1", NORMALIZED | {"action_noise": GaussianNoise(0.2)}),
    **{f"td3, {n}": (TD3Trainer, lambda s=s: Sampled(s, ACTIONS), {}) for n, s in SPACES.items()},
}


def make_sac(backend="native", **settings):
    return SACTrainer("Pendulum-v1", 1, backend=backend, **{**SMALL, **settings})


def save_and_load(trainer, env, folder, backend):
    trainer.save(folder)
    kwargs = {} if isinstance(env, str) else {"env": env}
    return type(trainer).load(folder, backend=backend, runs_dir=None, **kwargs)


def assert_arrays_equal(arrays, expected):
    np.testing.assert_equal(arrays, expected)
    assert all(array.dtype == expected[name].dtype for name, array in arrays.items())


@pytest.mark.parametrize("saved", ["native", "torch"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:environments could not be restored:UserWarning")  # new episodes
def test_a_checkpoint_is_loaded_on_the_other_backend_and_back(case, saved, tmp_path):
    cls, env, settings = CASES[case]
    other = "torch" if saved == "native" else "native"
    trainer = cls(env, 1, backend=saved, **{**SMALL, **settings})
    trainer.train(120)
    converted = save_and_load(trainer, env, tmp_path / "converted", other)
    back = save_and_load(converted, env, tmp_path / "back", saved)
    assert [x.learner.backend for x in (trainer, converted, back)] == [saved, other, saved]
    assert trainer.config == converted.config == back.config
    converted_state, state, expected = (x.learner.state() for x in (converted, back, trainer))
    for part in ("networks", "optimizer", "normalizer", "environment"):
        assert_arrays_equal(getattr(converted_state, part), getattr(expected, part))
    for x in (state, expected):
        x.replay.pop("stream", None)
    assert_arrays_equal(state.replay, expected.replay)
    assert len(converted.learner.replay) == len(trainer.learner.replay) > 30
    for x in (converted_state, state):
        for name in ("timesteps", "updates", "episodes", "progress"):
            assert x.counters[name] == expected.counters[name]
        np.testing.assert_allclose(x.counters["noise"], expected.counters["noise"], rtol=1e-6)
        for name in ("resets", "iterations", "predictions", "minibatches"):
            assert x.streams[name] == expected.streams[name]
    space = trainer.env.single_observation_space
    space.seed(0)
    stored = [trainer.learner.replay.buffer.sample(8, 1)["obs"]] if isinstance(env, str) else []
    for obs in (*stored, np.stack([space.sample() for _ in range(8)])):
        actions = trainer.predict(obs)
        np.testing.assert_allclose(converted.predict(obs), actions, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(back.predict(obs), actions)
    assert converted.train(20)["timesteps"] >= 140
    assert converted.learner.updates > trainer.learner.updates


@pytest.mark.parametrize("saved", ["native", "torch"])
@pytest.mark.parametrize("cls", [DQNTrainer, SACTrainer, TD3Trainer])
def test_the_last_losses_are_reported_after_loading_on_the_other_backend(cls, saved, tmp_path):
    env = "CartPole-v1" if cls is DQNTrainer else "Pendulum-v1"
    other = "torch" if saved == "native" else "native"
    trainer = cls(env, 1, backend=saved, **SMALL | RARE_UPDATES)
    expected = {}
    trainer.train(40, callbacks=[lambda _, metrics: expected.update(metrics)])
    loaded = save_and_load(trainer, env, tmp_path / "saved", other)
    metrics = loaded.learner.iterate()  # too few steps for an update
    assert metrics["train/n_updates"] == expected["train/n_updates"]
    for name, value in expected.items():
        if ("loss" in name or "ent_coef" in name) and not np.isnan(value):
            assert metrics[name] == pytest.approx(value)


def test_a_checkpoint_before_the_first_step_is_loaded_on_the_other_backend(tmp_path):
    trainer = DQNTrainer("CartPole-v1", 1, backend="native", **SMALL)
    converted = save_and_load(trainer, "CartPole-v1", tmp_path / "two", "torch")
    assert (converted.timesteps, len(converted.learner.replay)) == (0, 0)
    back = save_and_load(converted, "CartPole-v1", tmp_path / "back", "native")
    assert back.train(60)["timesteps"] >= 60


def test_native_streams_of_environments_are_independent(tmp_path):
    loaded = save_and_load(make_sac("torch"), "Pendulum-v1", tmp_path / "saved", "native")
    streams = loaded.learner.state().streams
    names = ("actions.0", "actions.1", "learning", "minibatches")
    assert len({streams[name]["state"]["state"] for name in names}) == 4


def test_native_backend_rejects_checkpoints_with_settings_of_torch(tmp_path):
    trainer = make_sac("torch", activation="elu")
    with rejects(ArgumentError, "activation", 'pass backend="torch"'):
        save_and_load(trainer, "Pendulum-v1", tmp_path / "saved", "native")


SOME_CASES = {name: CASES[name] for name in ("dqn", "dqn, all options", "sac", "td3")}


@BOTH
@pytest.mark.parametrize("case", SOME_CASES)
def test_a_checkpoint_without_replay_continues_with_an_empty_buffer(case, backend, tmp_path):
    cls, env, settings = SOME_CASES[case]
    trainer = cls(env, 1, backend=backend, **{**SMALL, **settings})
    trainer.train(100)
    trainer.save(tmp_path / "saved", replay=False)
    checkpoint = read_checkpoint(tmp_path / "saved")
    assert checkpoint.manifest["replay"] is False
    assert "replay" not in checkpoint.members
    assert not (tmp_path / "saved" / "replay.safetensors").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cls.load(tmp_path / "saved", runs_dir=None)
        obs = trainer.learner.replay.buffer.sample(8, 1)["obs"]
        np.testing.assert_array_equal(loaded.predict(obs), trainer.predict(obs))
        assert trainer.evaluate(1)["returns"] == loaded.evaluate(1)["returns"]
    assert len(loaded.learner.replay) == 0
    assert (loaded.timesteps, loaded.learner.updates) == (trainer.timesteps, trainer.learner.updates)
    with pytest.warns(UserWarning, match="^checkpoint has no replay buffer.*resumes with an empty one") as record:
        loaded.train(8)
    assert record[0].filename == __file__
    assert len(loaded.learner.replay) == loaded.timesteps - trainer.timesteps
    assert loaded.learner.updates > trainer.learner.updates
    loaded.train(8)  # the warning is not repeated


@BOTH
@pytest.mark.parametrize("case", SOME_CASES)
def test_a_checkpoint_has_the_replay_buffer_by_default(case, backend, tmp_path):
    cls, env, settings = SOME_CASES[case]
    trainer = cls(env, 3, backend=backend, **{**SMALL, **settings})
    trainer.train(64)
    trainer.save(tmp_path / "saved")
    assert "replay" not in json.loads((tmp_path / "saved" / "manifest.json").read_text())
    loaded = cls.load(tmp_path / "saved", runs_dir=None)
    assert len(loaded.learner.replay) == len(trainer.learner.replay) > 60
    results = [x.train(32) for x in (trainer, loaded)]
    assert results[0]["timesteps"] == results[1]["timesteps"] == 96
    assert_learners_equal(trainer.learner, loaded.learner)
    assert trainer.evaluate(2)["returns"] == loaded.evaluate(2)["returns"]


@BOTH
def test_a_state_without_replay_empties_the_buffer(backend):
    learner = TD3Trainer("Pendulum-v1", 1, backend=backend, **SMALL).learner
    for _ in range(10):
        learner.iterate()
    learner.load_state(learner.state(replay=False))
    assert len(learner.replay) == 0
    learner.iterate()
    assert len(learner.replay) == 8


@pytest.mark.filterwarnings("ignore:environments could not be restored:UserWarning")
def test_hindsight_continues_with_an_empty_buffer(tmp_path):
    trainer = SACTrainer(PointMass, 1, her="future", **SMALL)
    trainer.train(50)
    trainer.save(tmp_path / "saved", replay=False)
    loaded = SACTrainer.load(tmp_path / "saved", env=PointMass, runs_dir=None)
    with pytest.warns(UserWarning, match="^checkpoint has no replay buffer"):
        loaded.train(50)
    assert loaded.learner.updates == trainer.learner.updates + 7


def test_a_missing_member_is_rejected(tmp_path):
    trainer = make_sac()
    trainer.train(20)
    trainer.save(tmp_path / "saved")
    saved = read_checkpoint(tmp_path / "saved")
    manifest = {k: v for k, v in saved.manifest.items() if k not in ("format", "rlox", "members")}
    members = {k: v for k, v in saved.members.items() if k != "replay"}
    write_checkpoint(tmp_path / "other", manifest, members)
    missing = 'replay, arrays["capacity"]'
    with rejects(CorruptFileError, str(tmp_path / "other"), section=missing):
        SACTrainer.load(tmp_path / "other", runs_dir=None)
    write_checkpoint(tmp_path / "third", {**manifest, "replay": 0}, members)
    path = str(tmp_path / "third" / "manifest.json")
    with rejects(CorruptFileError, path, section="manifest", got="0 for the key 'replay'"):
        SACTrainer.load(tmp_path / "third", runs_dir=None)


def test_algorithms_without_a_buffer_ignore_replay(tmp_path):
    trainer = PPOTrainer("CartPole-v1", 1, n_steps=8, batch_size=8, runs_dir=None)
    trainer.save(tmp_path / "saved", replay=False)
    PPOTrainer.load(tmp_path / "saved", runs_dir=None).train(8)
    with rejects(ArgumentTypeError, "replay", got="'no'"):
        trainer.save(tmp_path / "other", replay="no")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("case", SOME_CASES)
def test_transitions_are_counted_without_a_copy(case, mode, monkeypatch):
    cls, env, settings = SOME_CASES[case]
    if mode is AutoresetMode.NEXT_STEP:
        settings = {**settings, "n_steps": 1}
    env = gym.make_vec(env, 2, "sync", vector_kwargs={"autoreset_mode": mode})
    trainer = cls(env, 1, backend="native", **{**SMALL, **settings, "buffer_size": 91})
    state, stored = NativeReplay.state, []
    monkeypatch.setattr(NativeReplay, "state", lambda self: pytest.fail("state() was called"))

    def count(trainer):
        stored.append(len(trainer.learner.replay))
        assert stored[-1] == len(state(trainer.learner.replay)["step.rewards"])

    count(trainer)
    for _ in range(4):
        trainer.train(30)
        count(trainer)
    assert stored[0] == 0
    assert stored[-1] in (90, 91)
    env.close()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
@BOTH
def test_a_rejected_state_does_not_change_the_run(backend, failure, monkeypatch):
    trainer, twin = make_sac(backend), make_sac(backend)
    trainer.train(30)
    state = trainer.learner.state()
    twin.train(30)
    for x in (trainer, twin):
        x.train(30)
    with monkeypatch.context() as patch:
        fail = mock.Mock(side_effect=failure)
        if backend == "torch":
            patch.setattr(trainer.learner.replay, "load_state", fail)
        else:
            original = native_state.check_part
            check = lambda part, *rest: (fail if part == "replay" else original)(part, *rest)  # noqa: E731
            patch.setattr(native_state, "check_part", check)
        with pytest.raises(failure):
            trainer.learner.load_state(state)
    for x in (trainer, twin):
        x.train(30)
    np.testing.assert_equal(trainer.learner.replay.state(), twin.learner.replay.state())


@BOTH
def test_predictions_of_another_thread_do_not_change_the_run(backend):
    def train(predict_in_thread):
        trainer, done, errors = make_sac(backend), threading.Event(), []
        stream = np.random.default_rng(0)

        def predict():
            while not done.wait(0.001):  # without a pause, training waits for the GIL
                try:
                    trainer.learner.predict(np.zeros(3, np.float32), False, stream)
                except ClosedError as error:  # noqa: PERF203
                    errors.append(error.argument)

        thread = threading.Thread(target=predict if predict_in_thread else done.wait)
        thread.start()
        try:
            trainer.train(200)
        finally:
            done.set()
            thread.join()
        assert {*errors} <= {"learner"}
        return trainer.learner.replay.state()["step.actions"]

    np.testing.assert_array_equal(train(False), train(True))


class CallInStep25(Numbered):
    """`Numbered` that calls `callback` in step 25, in the middle of an iteration."""

    callback = staticmethod(lambda: None)

    def step(self, action):
        if len(self.sent) == 24:
            self.callback()
        return super().step(action)


@pytest.mark.parametrize(("settings", "updates"), [({"gradient_steps": -1}, 65), ({"utd_ratio": 0.5}, 32)])
@BOTH
def test_training_continues_with_pending_minibatches_of_a_stopped_iteration(backend, settings, updates):
    env, other = (CallInStep25(gym.spaces.Discrete(2), limit=10) for _ in "ab")
    small = {"batch_size": 4, "buffer_size": 100, "net_arch": (8,)}
    settings = {"learning_starts": 0, "train_freq": 10} | small | settings
    trainer = DQNTrainer(env, seed=1, backend=backend, runs_dir=None, **settings)
    env.callback = trainer.stop
    assert trainer.train(60)["timesteps"] == 25
    state = trainer.learner.state()
    trainer.train()
    assert (trainer.timesteps, trainer.learner.updates) == (65, updates)
    # The state includes pending minibatches.
    loaded = DQNTrainer(other, seed=1, backend=backend, runs_dir=None, **settings)
    loaded.learner.load_state(state)
    loaded.train(40)
    assert (loaded.timesteps, loaded.learner.updates) == (65, updates)


@BOTH
def test_saving_a_run_without_replay_again_keeps_the_warning(backend, tmp_path):
    trainer = make_sac(backend)
    trainer.train(30)
    trainer.save(tmp_path / "without", replay=False)
    SACTrainer.load(tmp_path / "without", runs_dir=None).save(tmp_path / "again")
    with pytest.warns(UserWarning, match="checkpoint has no replay buffer"):
        SACTrainer.load(tmp_path / "again", runs_dir=None).train(2)


def test_a_rejected_state_does_not_reset_environments_without_states():
    env = make_vec(lambda: gym.make("Pendulum-v1"), 1)
    trainer = SACTrainer(env, 1, backend="torch", **{**SMALL, "num_envs": 1})
    trainer.train(30)
    state = trainer.learner.state()
    state.replay = state.replay | {"capacity": np.array([7])}
    with rejects(ArgumentError, 'arrays["capacity"]', section="replay"):
        trainer.learner.load_state(state)
    assert trainer.learner.env_initialized


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def fail_writes(monkeypatch):
    """Return a function that makes writes of replay buffers, or of all members, raise an error."""

    def fail_with(error, everything=False):
        def write(path, manifest, members):
            if everything or members["replay"]:
                raise error
            write_checkpoint(path, manifest, members)

        monkeypatch.setattr(training_run, "write_checkpoint", write)

    return fail_with


@BOTH
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("rows"), r"replay: buffer_size: expected .* got 40, with 40 transit"),
        (FULL, r"replay: \[Errno 28\] No space left on device"),
    ],
)
def test_a_run_saves_all_but_an_unwritable_buffer(fail_writes, tmp_path, backend, error, message):
    trainer = make_sac(backend, runs_dir=tmp_path, buffer_size=40)
    fail_writes(error)
    with pytest.warns(UserWarning, match=rf"^{message}.*checkpoint lacks the replay buffer") as record:
        result = trainer.train(60)
    assert record[0].filename == __file__
    names = {"checkpoint", "config.json", "curve.png", "metrics.csv", "summary.json"}
    assert {*os.listdir(result["run_dir"])} == names
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert summary["checkpoint_warning"] == result["checkpoint_warning"]
    assert summary["timesteps"] == 64
    loaded = SACTrainer.load(result["run_dir"], runs_dir=None)
    obs = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(loaded.predict(obs), trainer.predict(obs))
    assert len(loaded.learner.replay) == 0
    assert len(trainer.learner.replay) == 40


@pytest.mark.parametrize("cls", [SACTrainer, PPOTrainer])
@pytest.mark.parametrize("error", [MemoryError("none"), FULL, PermissionError(13, "not yours")])
def test_the_summary_is_written_if_the_checkpoint_fails(fail_writes, tmp_path, cls, error):
    small = SMALL if cls is SACTrainer else {"n_steps": 8, "batch_size": 8}
    trainer = cls("Pendulum-v1", 1, **{**small, "runs_dir": tmp_path})
    fail_writes(error, everything=True)
    with pytest.raises(type(error)):
        trainer.train(20)
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert summary["checkpoint_warning"] == "all: no checkpoint could be written"
    assert summary["timesteps"] >= 20


@BOTH
def test_save_without_memory_for_the_replay_buffer_names_buffer_size(fail_writes, tmp_path, backend):
    trainer = make_sac(backend)
    trainer.train(20)
    fail_writes(MemoryError("rows"))
    with rejects(OutOfMemoryError, "buffer_size", "replay=False", got="90, with 24 transitions"):
        trainer.save(tmp_path / "saved")
    trainer.save(tmp_path / "saved", replay=False)


LIMITED = """
import os, resource, sys, warnings
import gymnasium as gym, numpy as np, torch
from rlox.trainers import SACTrainer
from support.envs import Sampled

make_env = lambda: Sampled(gym.spaces.Box(-1, 1, (20_000,)), gym.spaces.Box(-1, 1, (1,)), 50)

def train(backend):
    settings = dict(net_arch=(2,), learning_starts=10**6, buffer_size=1_500, batch_size=8)
    trainer = SACTrainer(make_env, 0, backend=backend, runs_dir=sys.argv[1], **settings)
    trainer.learner.iterate()
    np.linalg.inv(np.ones((200, 200)) @ np.ones((200, 200)) + np.eye(200))  # warm up OpenBLAS
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 80 * 2**20, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = trainer.train(1_450)
    assert any("buffer_size" in str(x.message) for x in caught), caught
    assert result["checkpoint_warning"].startswith("replay: buffer_size: ")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    assert SACTrainer.load(result["run_dir"], env=make_env, runs_dir=None).timesteps == 1_451
    print("done", flush=True)

for backend in ("native", "torch"):
    child = os.fork()  # each case starts without free memory of the other case
    if child == 0:
        train(backend)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, backend
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit needs Linux")
def test_weights_are_saved_under_a_memory_limit(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    tests = Path(__file__).parents[1]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tests)
    assert result.stdout == "done\n" * 2, result.stderr[-2000:]
