"""`VideoRecordingCallback`: videos of episodes during training."""

import os

import gymnasium as gym
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError
from rlox.callbacks import VideoRecordingCallback
from rlox.callbacks.video import _Recorder
from rlox.evaluation import evaluation_seed
from rlox.trainers import PPOTrainer
from support.checkpoints import assert_networks_equal
from support.envs import Endless, cartpole
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
    # moviepy does not close the pipes if ffmpeg has already exited.
    ffmpeg.stdout.close()
    ffmpeg.stderr.close()
    ffmpeg.wait()
    return shapes


@pytest.mark.services
@pytest.mark.parametrize("file_format", ["mp4", "gif"])
def test_an_episode_is_recorded_at_the_configured_interval(moviepy, tmp_path, file_format):
    trainer = small(runs_dir=tmp_path)
    callback = VideoRecordingCallback(every=64, format=file_format)
    trainer.train(128, callbacks=[callback])
    videos = trainer.run.path / "videos"
    assert sorted(os.listdir(videos)) == [f"step-000000064.{file_format}", f"step-000000128.{file_format}"]
    assert callback.last == videos / f"step-000000128.{file_format}"
    frames = frames_of(moviepy, callback.last)
    length = trainer.evaluate(1)["lengths"][0]
    assert abs(len(frames) - length) <= 2  # codecs and frame rates round
    assert {*frames} == {(400, 600, 3)}


@pytest.mark.services
def test_recordings_do_not_change_training(moviepy, tmp_path):
    runs = []
    for callbacks in ([], [VideoRecordingCallback(every=32, path=tmp_path, max_frames=5)]):
        trainer = small()
        trainer.train(64, callbacks=callbacks)
        runs.append(trainer)
    assert_networks_equal(*runs)
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.services
def test_the_episode_stops_after_max_frames(moviepy, tmp_path, monkeypatch):
    monkeypatch.setattr(Endless, "steps", 0)
    callback = VideoRecordingCallback(every=32, path=tmp_path, max_frames=10, env=Endless)
    small().train(32, callbacks=[callback])
    assert Endless.steps == 10
    assert abs(len(frames_of(moviepy, callback.last)) - 10) <= 2


@pytest.mark.services
@pytest.mark.parametrize("max_frames", [1_000, 5])
def test_videos_have_a_frame_of_the_reset_and_of_each_step(moviepy, tmp_path, monkeypatch, max_frames):
    frames = []
    write = _Recorder.stop_recording
    monkeypatch.setattr(
        _Recorder, "stop_recording", lambda self: (frames.append(len(self.recorded_frames)), write(self))
    )
    trainer = small()
    trainer.train(32, callbacks=[VideoRecordingCallback(every=32, path=tmp_path, max_frames=max_frames)])
    (steps,) = trainer.evaluate(1, seed=evaluation_seed(1, training=True), max_episode_steps=max_frames)["lengths"]
    assert frames == [steps + 1]


@pytest.mark.services
def test_ctrl_c_stops_the_recording(moviepy, tmp_path, monkeypatch):
    monkeypatch.setattr(Endless, "steps", 0)
    monkeypatch.setattr(Endless, "press_at", 20)
    callback = VideoRecordingCallback(every=32, path=tmp_path, max_frames=10**9, env=Endless)
    result = small().train(320, callbacks=[callback])
    assert (result["timesteps"], result["stopped_by"]) == (32, "Ctrl-C")
    assert (Endless.steps, callback.last, os.listdir(tmp_path)) == (20, None, [])


@pytest.mark.services
def test_functions_must_accept_a_render_mode(moviepy, tmp_path):
    trainer = small(env=cartpole)
    with pytest.raises(ArgumentTypeError) as raised:
        trainer.train(64, callbacks=[VideoRecordingCallback(10_000, path=tmp_path)])
    assert (raised.value.argument, trainer.timesteps) == ("env", 0)
    for env, video_env in (
        (lambda **keywords: gym.make("CartPole-v1", **keywords), None),
        (cartpole, "CartPole-v1"),
        (gym.make_vec("CartPole-v1", 2).spec, None),
    ):
        callback = VideoRecordingCallback(32, path=tmp_path, max_frames=5, env=video_env)
        small(env=env).train(32, callbacks=[callback])
        assert callback.last.exists()


@pytest.mark.services
@pytest.mark.parametrize(
    ("env", "env_kwargs"),
    [
        ("CartPole-v1", {"render_mode": "rgb_array"}),
        (lambda **keywords: gym.make("CartPole-v1", **keywords), {"vectorization_mode": "sync"}),
    ],
    ids=["render mode", "vectorization mode"],
)
def test_videos_ignore_the_render_mode_and_the_vectorization_mode_of_training(moviepy, tmp_path, env, env_kwargs):
    callback = VideoRecordingCallback(32, path=tmp_path, max_frames=5)
    small(env=env, env_kwargs=env_kwargs).train(32, callbacks=[callback])
    assert callback.last.exists()


@pytest.mark.services
@pytest.mark.parametrize(
    ("env", "folder", "argument"),
    [("CartPole-v1", False, "path"), (rlox.VecEnv(n=2, env_id="CartPole-v1"), True, "env")],
    ids=["no folder", "existing environments"],
)
def test_missing_folder_or_environment_is_reported_at_the_start(moviepy, tmp_path, env, folder, argument):
    trainer = PPOTrainer(env, 0, runs_dir=tmp_path if folder else None)
    with pytest.raises(ArgumentError) as raised:
        trainer.train(32, callbacks=[VideoRecordingCallback(every=32)])
    assert (raised.value.argument, trainer.timesteps) == (argument, 0)


@pytest.mark.services
def test_a_video_that_cannot_be_written_warns_and_training_continues(moviepy, tmp_path):
    (tmp_path / "file").write_text("a file")
    trainer = small(runs_dir=tmp_path)
    with pytest.warns(UserWarning, match="the video after 64 steps was not written"):
        trainer.train(64, callbacks=[VideoRecordingCallback(64, path=tmp_path / "file")])
    assert trainer.timesteps == 64
