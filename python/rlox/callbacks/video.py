"""Videos of the policy during a run. Needs the extra `rlox[video]`."""

import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym

from rlox._errors import ArgumentTypeError
from rlox._optional import load_extra
from rlox._timing import EveryNSteps
from rlox._training.run import Callback, Run
from rlox._validation import check_bool, check_int, check_path, check_str
from rlox.callbacks.base import folder_for, warn_on_write_error
from rlox.checkpoint import step_name
from rlox.envs._make import EnvMaker, check_env_maker, get_env_name, supports_keyword
from rlox.evaluation import SeededPredictor, evaluate, evaluation_seed

FORMATS = ("mp4", "gif")


class VideoRecordingCallback(Callback):
    """Callback that records an episode every `every` environment steps.

    Videos have names such as `videos/step-000100000.mp4`. The episode is played in a separate
    environment and recorded by Gymnasium's `RecordVideo`, so training is the same as without the
    callback. Each episode starts from the same seed.

    Args:
        every: Training steps between two videos, summed over all environments.
        format: "mp4" or "gif".
        deterministic: If True, take greedy actions, else samples.
        max_frames: Maximum number of steps of the episode.
        env: Environment to record, as an id, an `EnvSpec` or a function that takes `render_mode`;
            None: the training environment.
        path: Folder of the videos; None: `videos` in the run folder.

    Raises:
        ArgumentError: An argument is out of range. At the start of training: `env` is None and the trainer was created
            from existing environments, or the run has no folder and `path` is None.
        ArgumentTypeError: An argument has a wrong type. At the start of training: the function
            that makes the environment does not take `render_mode`.
        ModuleNotFoundError: MoviePy is not installed.

    Warns:
        UserWarning: A video could not be written.
    """

    def __init__(
        self,
        every: int,
        format: str = "mp4",  # noqa: A002  # the usual name of this argument
        deterministic: bool = True,
        max_frames: int = 1_000,
        env: EnvMaker | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self._every = EveryNSteps(every)
        self.format = check_str("format", format, FORMATS)
        self._deterministic = check_bool("deterministic", deterministic)
        self._frames = check_int("max_frames", max_frames, 1, fix="pass a number of frames")
        self._env = None if env is None else check_env_maker(env)
        self._path = check_path("path", path)
        self._folder = Path()
        load_extra("moviepy", "video", "VideoRecordingCallback")
        self.last: Path | None = None
        """Path of the newest video; None before the first one."""

    def on_train_start(self, run: Run) -> None:
        """Choose the folder, and check that the environment can be rendered."""
        maker = run.env_maker(self._env)
        if callable(maker) and not supports_keyword(maker, "render_mode"):
            raise ArgumentTypeError(
                "env",
                "an id, or a function that takes render_mode",
                f"{get_env_name(maker)} without this parameter",
                "pass such a function or an id as env=",
            )
        run.make_env(self._env, render_mode="rgb_array").close()
        self._folder = folder_for(run, self._path, "videos", "videos")
        self._every.start(run.budget_used)

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Record an episode if a video is due."""
        if self._every.ready(run.budget_used) and not run.interrupt_requested():
            with warn_on_write_error(run, "video", self._every.steps):
                self._record(run)

    def _record(self, run: Run) -> None:
        """Record an episode, and set `last` unless Ctrl-C ended the episode."""
        name = step_name(run.budget_used)
        partial = self._folder / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        seed = evaluation_seed(run.seed, training=True)

        def recorded() -> gym.Env[Any, Any]:
            return _Recorder(run.make_env(self._env, render_mode="rgb_array"), str(partial), self.format)

        try:
            evaluate(
                SeededPredictor(run.env_learner, seed, run.interrupt_requested),
                recorded,
                1,
                seed=seed,
                deterministic=self._deterministic,
                num_envs=1,
                max_episode_steps=self._frames,
            )
            if not run.interrupt_requested():
                (written,) = partial.glob(f"*.{self.format}")
                self.last = written.replace(self._folder / f"{name}.{self.format}")
        finally:
            shutil.rmtree(partial, ignore_errors=True)


class _Recorder(gym.wrappers.RecordVideo[Any, Any]):
    """Gymnasium's recorder, for the first episode, with GIF as a second format."""

    def __init__(self, env: gym.Env[Any, Any], folder: str, kind: str) -> None:
        # If no `video_length` is passed, the recording ends at the first reset after the episode.
        super().__init__(env, folder, episode_trigger=lambda episode: episode == 0, gc_trigger=None)
        self._kind = kind

    def stop_recording(self) -> None:
        """Write the frames to the file."""
        if self._kind == "gif" and self.recorded_frames:
            name = os.path.join(self.video_folder, f"{self._video_name}.gif")
            clips = load_extra("moviepy", "video", "VideoRecordingCallback")
            clip = clips.ImageSequenceClip(self.recorded_frames, fps=self.frames_per_sec)
            clip.write_gif(name, logger=None)
            self.recorded_frames, self.recording, self._video_name = [], False, None
        else:
            super().stop_recording()  # type: ignore[no-untyped-call]  # not typed in Gymnasium
