"""Evaluation during a run."""

import math
import os
from pathlib import Path

import numpy as np

from rlox._errors import ArgumentError, CorruptFileError
from rlox._timing import EveryNSteps
from rlox._training.run import Callback, Run
from rlox._validation import check_bool, check_float, check_int, check_path
from rlox.callbacks.base import LastRun, folder_for, warn_on_write_error
from rlox.callbacks.checkpointing import note_score, read_scores
from rlox.checkpoint import BEST, FOLDER, read_checkpoint
from rlox.envs._make import EnvMaker, check_env_maker
from rlox.evaluation import EvaluationResult, evaluation_seed


class EvalCallback(Callback):
    """Callback that evaluates the policy over full episodes every `every` environment steps.

    Rows get `eval/mean_reward`, `eval/std_reward` and `eval/mean_ep_length`. Evaluations have their
    own environments and random streams, so training is the same as without them. Each evaluation
    plays the same episodes, so scores are comparable. `Trainer.evaluate` plays other episodes by
    default, so its score of the best checkpoint is not biased by the selection.

    The run with the highest mean reward is saved as `checkpoints/best` in the run folder,
    without the replay buffer. A resumed run continues with the best mean reward so far.

    Args:
        every: Training steps between two evaluations, summed over all environments.
        n_episodes: Number of episodes per evaluation.
        reward_threshold: Mean reward that ends the run; None: no threshold.
        deterministic: If True, take greedy actions, else samples.
        env: Environment to evaluate in, as an id, an `EnvSpec` or a function; None: the training environment.
        save_best: If True, save the best checkpoint; None: only with a run folder or `path`.
        path: Folder of the checkpoint `best`; None: `checkpoints` in the run folder.

    Raises:
        ArgumentError: An argument is out of range, or `path` is set with `save_best=False`. At the
            start of training: `env` is None and the trainer was created from existing
            environments, `env` cannot be created, `save_best` is True without a run folder and `path`,
            or `path` has the best checkpoint of another run.
        ArgumentTypeError: An argument has a wrong type. At the start of training: `env` does not create a
            single environment.

    Warns:
        UserWarning: The checkpoint could not be written.

    >>> from rlox.trainers import PPOTrainer
    >>> callback = EvalCallback(every=1_000, n_episodes=5)
    >>> trainer = PPOTrainer("CartPole-v1", seed=1, runs_dir=None)
    >>> result = trainer.train(2_000, callbacks=[callback])
    >>> len(callback.last["returns"]), callback.best_mean_reward >= callback.last["mean_reward"]
    (5, True)
    """

    def __init__(
        self,
        every: int,
        n_episodes: int = 10,
        reward_threshold: float | None = None,
        deterministic: bool = True,
        env: EnvMaker | None = None,
        save_best: bool | None = None,
        path: "str | os.PathLike[str] | None" = None,
    ) -> None:
        self._every = EveryNSteps(every)
        self._n = check_int("n_episodes", n_episodes, 1, fix="pass one or more")
        if reward_threshold is not None:
            reward_threshold = check_float("reward_threshold", reward_threshold, fix="pass a number, or None")
        self.reward_threshold = reward_threshold
        self._deterministic = check_bool("deterministic", deterministic)
        self._env = None if env is None else check_env_maker(env)
        fix = "pass True, False or None"
        self._save = None if save_best is None else check_bool("save_best", save_best, fix=fix)
        self._path = check_path("path", path)
        if save_best is False and self._path is not None:
            raise ArgumentError(
                "path", "None with save_best=False", repr(os.fspath(self._path)), "remove one of the two arguments"
            )
        self._folder: Path | None = None
        self._last_run = LastRun()
        self.best_mean_reward = -math.inf
        """Highest mean reward so far; -inf before the first evaluation."""
        self._better = False
        self.last: EvaluationResult | None = None
        """Result of the last evaluation; None before the first one."""

    def on_train_start(self, run: Run) -> None:
        """Start counting steps, and read the score of the saved checkpoint."""
        run.make_env(self._env).close()  # raises if evaluations are not possible
        folder, saved_score = None, -math.inf
        has_folder = self._path is not None or run.path is not None
        if self._save or (self._save is None and has_folder):
            folder = folder_for(run, self._path, FOLDER, "the best checkpoint")
            saved_score = _read_best_score(run, folder)
        self._every.start(run.budget_used)
        if self._last_run.replace(run):
            self.best_mean_reward = -math.inf
            self.last = None
            self._better = False
        self._folder = folder
        if folder is not None:
            # After an error of another callback, the checkpoint of the best score was not saved.
            self.best_mean_reward = saved_score if self._better else max(self.best_mean_reward, saved_score)
        self._better = False

    def on_iteration(self, run: Run, metrics: dict[str, float]) -> None:
        """Evaluate if an evaluation is due, and stop the run at the threshold."""
        if not self._every.ready(run.budget_used):
            return
        seed = evaluation_seed(run.seed, training=True)
        score = run.evaluate(self._n, seed=seed, deterministic=self._deterministic, env=self._env)
        self.last = score
        mean = score["mean_reward"]
        metrics |= {"eval/mean_reward": mean, "eval/std_reward": score["std_reward"]}
        metrics["eval/mean_ep_length"] = float(np.mean(score["lengths"]))
        if mean > self.best_mean_reward:
            self.best_mean_reward = mean
            self._better = True
        if self.reward_threshold is not None and mean >= self.reward_threshold:
            run.stop(f"EvalCallback: mean reward {mean:.6g} reached reward_threshold {self.reward_threshold:.6g}")

    def on_row_logged(self, run: Run, metrics: dict[str, float]) -> None:
        """Save a checkpoint if the last evaluation was the best so far."""
        better, self._better = self._better, False
        if better and self._folder is not None:
            with warn_on_write_error(run, "best checkpoint", self._every.steps):
                run.save(self._folder / BEST, replay=False)
                note_score(self._folder, BEST, self.best_mean_reward)

    def state(self) -> dict[str, float]:
        """Return the best mean reward."""
        return {"best_mean_reward": self.best_mean_reward}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore the best mean reward, unless the saved checkpoint has a higher score."""
        self.best_mean_reward = max(self.best_mean_reward, state["best_mean_reward"])


def _read_best_score(run: Run, folder: Path) -> float:
    """Return the score of the best checkpoint in a folder; -inf without a readable one.

    Raises:
        ArgumentError: The checkpoint is of another run.
    """
    path = folder / BEST
    try:
        manifest = read_checkpoint(path).manifest
    except (FileNotFoundError, CorruptFileError):
        return -math.inf
    if not run.has_written(manifest):
        expected = "a folder without the best checkpoint of another run"
        raise ArgumentError("path", expected, str(path), "pass another folder as path")
    return read_scores(folder).get(BEST, -math.inf)
