"""Scores while a run goes on."""

import math
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlox._errors import ArgumentError
from rlox._timing import EveryNSteps
from rlox._training.hooks import Callback
from rlox._validation import check_bool, check_float, check_int, check_path
from rlox.callbacks.base import folder_for, warn_on_write_error
from rlox.callbacks.checkpointing import note_score, read_scores
from rlox.checkpoint import BEST, FOLDER
from rlox.evaluation import check_env_maker, evaluation_seed, get_env_maker

if TYPE_CHECKING:
    from rlox.trainers import Maker, Trainer


class EvalCallback(Callback):
    """Plays full episodes in environments of its own, every so many environment steps.

    The row gets `eval/mean_reward`, `eval/std_reward` and `eval/mean_ep_length`. Each time the same
    episodes are played, so scores can be compared, and training goes on as without; they are others
    than those of `Trainer.evaluate`, by whose score the best can be judged. Where there is
    a run folder, the trainer with the best mean reward is in its `checkpoints/best`, without a
    replay buffer; a run that is resumed remembers how good that one was.

    Args:
        every: Environment steps of training between two evaluations, all environments together.
        n_episodes: How many are played.
        reward_threshold: A mean reward at which the run ends; None: it does not.
        deterministic: Greedy actions rather than samples.
        env: Another environment, an id or a function; None: the one trained on.
        save_best: Whether the best is saved; None: where there is a run folder or a path.
        path: The folder it lies in; None: `checkpoints` in the run folder.

    Raises:
        TypeError, ValueError: An argument of another kind or out of range. At the start of
            training: the trainer was given environments already made, so `env` is needed; the best
            shall be saved, and there is neither a run folder nor a path.

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
        env: "Maker | None" = None,
        save_best: bool | None = None,
        path: "str | os.PathLike[str] | None" = None,
    ) -> None:
        self._every = EveryNSteps(every)
        self._n = check_int("n_episodes", n_episodes, 1, fix="ask for one or more")
        threshold = reward_threshold
        if threshold is not None:
            threshold = check_float("reward_threshold", threshold, fix="pass a number, or None")
        self.reward_threshold = threshold
        self._deterministic = check_bool("deterministic", deterministic)
        self._env = None if env is None else check_env_maker(env)
        fix = "pass True, False or None"
        self._save = None if save_best is None else check_bool("save_best", save_best, fix=fix)
        self._path = check_path("path", path)
        if save_best is False and self._path is not None:
            raise ArgumentError(
                "path", "None beside save_best=False", repr(os.fspath(self._path)), "leave one out"
            )
        self._folder: Path | None = None
        self._trainer: Callable[[], Any] = lambda: None
        self.best_mean_reward = -math.inf
        self._better = False
        self.last: Any = None  # what `Trainer.evaluate` gave last

    def on_train_start(self, trainer: "Trainer") -> None:
        """Counts from here, and looks how good the best of the run was."""
        get_env_maker(trainer, self._env)
        self._every.start(trainer.timesteps)
        if self._trainer() is not trainer:
            self._trainer, self.best_mean_reward = weakref.ref(trainer), -math.inf
        self._folder = None
        there = self._path is not None or trainer.run is not None
        if self._save or (self._save is None and there):
            self._folder = folder_for(trainer, self._path, FOLDER, "the best")
            saved_score = read_scores(self._folder).get(BEST, -math.inf)
            self.best_mean_reward = max(self.best_mean_reward, saved_score)

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Evaluates where it is time to."""
        if not self._every.ready(trainer.timesteps):
            return
        seed = evaluation_seed(trainer.seed, training=True)
        score = trainer.evaluate(
            self._n, seed=seed, deterministic=self._deterministic, env=self._env
        )
        self.last = score
        mean = score["mean_reward"]
        metrics["eval/mean_reward"] = mean
        metrics["eval/std_reward"] = score["std_reward"]
        metrics["eval/mean_ep_length"] = float(np.mean(score["lengths"]))
        if mean > self.best_mean_reward:
            self.best_mean_reward, self._better = mean, True
        if self.reward_threshold is not None and mean >= self.reward_threshold:
            trainer.stop(
                f"EvalCallback: mean reward {mean:.6g} reached reward_threshold "
                f"{self.reward_threshold:.6g}"
            )

    def on_row_logged(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Saves the best so far."""
        better, self._better = self._better, False
        if better and self._folder is not None:
            with warn_on_write_error(trainer, "checkpoint of the best", self._every.steps):
                trainer.save(self._folder / BEST, replay=False)
                note_score(self._folder, BEST, self.best_mean_reward)

    def state(self) -> dict[str, float]:
        """How good the best was."""
        return {"best_mean_reward": self.best_mean_reward}

    def load_state(self, state: dict[str, float]) -> None:
        """Goes on from there."""
        self.best_mean_reward = state["best_mean_reward"]
