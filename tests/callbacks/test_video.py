"""Videos while a run goes on."""

import os
import signal
import sys
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.callbacks import VideoRecordingCallback
from rlox.trainers import PPOTrainer
from support.runs import small

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def moviepy():
    pytest.importorskip("pygame", reason="the extra rlox[classic-control] is not installed")
    return pytest.importorskip("moviepy", reason="the extra rlox[video] is not installed")


def frames_of(moviepy, path):
    with moviepy.VideoFileClip(str(path)) as clip:
        ffmpeg = clip.reader.proc
        shapes = [frame.shape for frame in clip.iter_frames()]
    # moviepy leaves them open where ffmpeg has ended by itself.
    ffmpeg.stdout.close()
    ffmpeg.stderr.close()
    ffmpeg.wait()
    return shapes


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_an_episode_is_recorded_every_so_many_steps(moviepy, tmp_path, kind):
    trainer = small(runs_dir=tmp_path)
    callback = VideoRecordingCallback(every=64, format=kind)
    trainer.train(128, callbacks=[callback])
    videos = trainer.run.path / "videos"
    assert sorted(os.listdir(videos)) == [f"step-000000064.{kind}", f"step-000000128.{kind}"]
    assert callback.last == videos / f"step-000000128.{kind}"
    frames = frames_of(moviepy, callback.last)
    length = trainer.evaluate(1)["lengths"][0]
    assert abs(len(frames) - length) <= 2  # codecs and frame rates round
    assert {*frames} == {(400, 600, 3)}


def test_training_goes_on_as_without(moviepy, tmp_path):
    runs = []
    for callbacks in ([], [VideoRecordingCallback(every=32, path=tmp_path, max_frames=5)]):
        trainer = small()
        trainer.train(64, callbacks=callbacks)
        runs.append(trainer.learner.state().networks)
    for name, array in runs[0].items():
        np.testing.assert_array_equal(array, runs[1][name])
    assert len(os.listdir(tmp_path)) == 2


def test_what_is_long_is_cut_off(moviepy, tmp_path):
    trainer = PPOTrainer("Pendulum-v1", 1, num_envs=1, n_steps=32, batch_size=32, runs_dir=None)
    callback = VideoRecordingCallback(every=32, path=tmp_path, max_frames=12)
    trainer.train(32, callbacks=[callback])
    assert abs(len(frames_of(moviepy, callback.last)) - 12) <= 2


class Endless(gym.Env):
    """Never ends, counts its steps, and presses Ctrl-C when it is told to."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)
    made = 0
    press_at = None

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        kind = type(self)
        kind.made += 1
        if kind.made == kind.press_at:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(4, np.float32), 1.0, False, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)


def test_the_episode_ends_with_the_film(moviepy, tmp_path, monkeypatch):
    monkeypatch.setattr(Endless, "made", 0)
    callback = VideoRecordingCallback(every=32, path=tmp_path, max_frames=10, env=Endless)
    small().train(32, callbacks=[callback])
    assert Endless.made == 10
    assert abs(len(frames_of(moviepy, callback.last)) - 10) <= 2


def test_ctrl_c_ends_the_recording(moviepy, tmp_path, monkeypatch):
    monkeypatch.setattr(Endless, "made", 0)
    monkeypatch.setattr(Endless, "press_at", 20)
    callback = VideoRecordingCallback(every=32, path=tmp_path, max_frames=10**9, env=Endless)
    result = small().train(320, callbacks=[callback])
    assert (result["timesteps"], result["stopped_by"]) == (32, "Ctrl-C")
    assert (Endless.made, callback.last, os.listdir(tmp_path)) == (20, None, [])


def test_functions_take_a_render_mode(moviepy, tmp_path):
    def make(**keywords):
        return gym.make("CartPole-v1", **keywords)

    def deaf():
        return gym.make("CartPole-v1")

    callback = VideoRecordingCallback(every=32, path=tmp_path, max_frames=5)
    small(env=make).train(32, callbacks=[callback])
    assert callback.last.exists()
    with pytest.raises(TypeError, match="env: expected an id, or a function that takes render_mod"):
        small(env=deaf).train(32, callbacks=[VideoRecordingCallback(every=32, path=tmp_path)])
    callback = VideoRecordingCallback(every=32, path=tmp_path, env="CartPole-v1", max_frames=5)
    small(env=deaf).train(32, callbacks=[callback])


def test_what_cannot_be_recorded_is_said_at_the_start(moviepy, tmp_path):
    with pytest.raises(ValueError, match="path: expected where videos shall lie"):
        small().train(32, callbacks=[VideoRecordingCallback(every=32)])
    trainer = PPOTrainer(rlox.VecEnv(n=2, env_id="CartPole-v1"), 0, runs_dir=tmp_path)
    with pytest.raises(ValueError, match="env: expected an id or a function"):
        trainer.train(32, callbacks=[VideoRecordingCallback(every=32)])


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        VideoRecordingCallback(every=32)
    assert "pip install 'rlox[video]'" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"every": 0}, ValueError, "every: expected an integer of at least 1"),
        ({"every": 9, "format": "avi"}, ValueError, "format: expected 'mp4' or 'gif', got 'avi'"),
        ({"every": 9, "max_frames": 0}, ValueError, "max_frames: expected an integer of at least"),
        ({"every": 9, "deterministic": 3}, ValueError, "deterministic: expected True or False"),
        ({"every": 9, "env": 3}, TypeError, "env: expected an id or a function"),
        ({"every": 9, "path": 3}, TypeError, "path: expected a path or None"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        VideoRecordingCallback(**arguments)


def test_a_spec_of_many_environments_is_recorded(moviepy, tmp_path):
    made = gym.make_vec("CartPole-v1", 2).spec
    trainer = small(env=made, runs_dir=tmp_path)
    videos = VideoRecordingCallback(32, max_frames=3)
    trainer.train(64, callbacks=[videos])
    assert videos.last is not None


def test_what_cannot_be_recorded_is_told_before_training(moviepy, tmp_path):
    trainer = small(env=lambda: gym.make("CartPole-v1"), runs_dir=tmp_path)
    with pytest.raises(TypeError, match="env: expected an id, or a function that takes render_mod"):
        trainer.train(64, callbacks=[VideoRecordingCallback(10_000)])
    assert trainer.timesteps == 0


def test_a_video_that_cannot_be_written_ends_no_run(moviepy, tmp_path):
    (tmp_path / "taken").write_text("a file")
    trainer = small(runs_dir=tmp_path)
    with pytest.warns(UserWarning, match="no video after 64 steps"):
        trainer.train(64, callbacks=[VideoRecordingCallback(64, path=tmp_path / "taken")])
    assert trainer.timesteps == 64
