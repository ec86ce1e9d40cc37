"""State of a run: learner, budget, folder, callbacks and the reason why the run ends.

Trainers own a `Run`. The loop, callbacks, loggers, checkpoints and resume work on the run, so they
serve learners with and without environments.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

from rlox import _spaces
from rlox._errors import ArgumentError, OutOfMemoryError, warn
from rlox._registry import AlgorithmSpec
from rlox._training.callback_states import CALLBACKS_KEY, CallbackStates, get_callback_states
from rlox._training.run_folder import RunFolder, versions
from rlox._types import Arrays
from rlox._validation import check_bool, check_int, check_str, resolve_seed
from rlox.checkpoint import write_checkpoint
from rlox.envs._make import EnvMaker, EnvSource, make_single
from rlox.evaluation import EvaluationResult, SeededPredictor, evaluate, evaluation_seed
from rlox.learners import MEMBERS, EnvLearner, Learner, LearnerState
from rlox.logger.base import RunInfo
from rlox.noise import ActionNoise, noise_to_dict

# Reasons of a stop after which `train()` continues the run; other reasons end the run.
CTRL_C = "Ctrl-C"
STOP = "stop()"
# Members that each rank of a run of several processes has.
RANK_MEMBERS = ("environment", "replay")


class Callback:
    """Base class of callbacks; subclasses override the methods that they need.

    `run.stop(reason)` ends the run, and `run.save(path)` writes a checkpoint.

    >>> class Best(Callback):
    ...     score = float("-inf")
    ...
    ...     def on_iteration(self, run, metrics):
    ...         self.score = max(self.score, metrics["rollout/ep_rew_mean"])
    """

    def on_train_start(self, run: "Run") -> None:
        """Prepare for a call of `train`, after the loggers have started."""

    def on_iteration(self, run: "Run", metrics: dict[str, float]) -> None:
        """Handle the end of an iteration, before the loggers get the row of metrics.

        The method may add numbers to the row under new names.
        """

    def on_row_logged(self, run: "Run", metrics: dict[str, float]) -> None:
        """Handle the complete row, after the loggers; checkpoints that belong to it go here."""

    def on_train_end(self, run: "Run") -> None:
        """Clean up after the run has been saved, also after an error.

        Callbacks that started end in reverse order, even if one of them raises an error.
        """

    def state(self) -> dict[str, Any]:
        """Return numbers and None by name, which checkpoints of the run store."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`, after `on_train_start`."""


@dataclass(kw_only=True, eq=False)
class Run:
    """State of a run.

    The unit of the budget is the learner's `budget_unit`, such as "timesteps".

    Attributes:
        spec: Specification of the algorithm.
        learner: Learner that the run trains.
        config: Settings of the whole run.
        seed: Seed from which all random streams derive.
        task: Name of the environment or the data, for titles and folders.
        env_source: Environment as passed to the trainer; None for learners without environments.
        config_sources: Origin of each setting, such as "default" or "argument".
        has_custom_policy: True if the caller passed a policy, which checkpoints do not contain.
        has_custom_features: True if the caller passed a features extractor, or registered an encoder.
        runs_dir: Folder in which `train` creates the run folder; None: no run folder.
        folder: Run folder; None before `train`, or without `runs_dir`.
        budget_start: Budget used before the current run; schedules start there.
        budget_end: Budget at which the run ends.
        iterations: Number of iterations.
        callbacks: Callbacks of the current call of `train`, or of the last one.
        callback_states: States from a checkpoint that no callback has restored yet.
        lacks_replay: True if a loaded checkpoint had no replay buffer; False after an iteration.
        new_episodes_reason: Reason why environments of a checkpoint were not restored; None after
            an iteration.
        stop_reason: Reason of the first `stop` since `train` was called; None: no stop.
        is_training: True while `train` is running.
    """

    spec: AlgorithmSpec
    learner: Learner
    config: Any
    seed: int
    task: str
    env_source: EnvSource | None = None
    config_sources: dict[str, str] = field(default_factory=dict)
    has_custom_policy: bool = False
    has_custom_features: bool = False
    runs_dir: Path | None = None
    folder: RunFolder | None = None
    budget_start: int = 0
    budget_end: int = 0
    iterations: int = 0
    callbacks: list[Callback] = field(default_factory=list)
    callback_states: CallbackStates = field(default_factory=list)
    lacks_replay: bool = False
    new_episodes_reason: str | None = None
    stop_reason: str | None = None
    is_training: bool = False

    @property
    def budget_used(self) -> int:
        """Budget used so far, over all calls of `train`."""
        return self.learner.budget_used

    @property
    def path(self) -> Path | None:
        """Path of the run folder; None if there is no run folder."""
        return None if self.folder is None else self.folder.path

    @property
    def env_learner(self) -> EnvLearner:
        """Learner of a run with environments.

        Raises:
            ArgumentError: The run has no environments.
        """
        self._require_env_source()
        return cast("EnvLearner", self.learner)

    def _require_env_source(self) -> EnvSource:
        if self.env_source is None:
            got = f"a run of {self.spec.name} without environments"
            raise ArgumentError("env", "a run with environments", got, "remove the evaluation")
        return self.env_source

    def check_total(self, total: int | None) -> int | None:
        """Return the budget that the next call of `train` may use in addition.

        Args:
            total: Budget; None: up to the end of an interrupted or loaded run.

        Raises:
            ArgumentTypeError: `total` is not an integer.
            ArgumentError: `total` is below 1, or None although no run can be continued.
        """
        name = f"total_{self.learner.budget_unit}"
        fix = f"pass the number of {self.learner.budget_unit}"
        if total is None:
            if self.budget_used < self.budget_end:
                return None
            expected = "an integer of at least 1, because there is no run to continue"
            raise ArgumentError(name, expected, "None", fix)
        return check_int(name, total, 1, fix=fix)

    def plan(self, total: int | None, start: int | None = None) -> None:
        """Set the budget of the next call of `train`; see `check_total`.

        Args:
            total: Budget to use in addition; None: up to the end of an interrupted or loaded run.
            start: Budget at which schedules start; None: the budget used so far.
        """
        total = self.check_total(total)
        if total is None:
            return
        self.budget_start = self.budget_used if start is None else start
        self.budget_end = self.budget_used + total

    def stop(self, reason: str | None = None) -> None:
        """End `train` after the current step; see `rlox.trainers.Trainer.stop`."""
        checked = STOP if reason is None else check_str("reason", reason)
        if not checked:
            raise ArgumentError("reason", "a text", "an empty text", "pass None to interrupt the run")
        self.stop_reason = self.stop_reason or checked
        self.learner.stop_requested = True

    @property
    def stopped_by(self) -> str | None:
        """Reason of the stop; "stop()" if the learner was stopped without a reason; else None."""
        return self.stop_reason or (STOP if self.learner.stop_requested else None)

    def interrupt_requested(self) -> bool:
        """Return whether `train` is about to return because of Ctrl-C or `stop()`."""
        return self.is_training and self.stopped_by in (CTRL_C, STOP)

    def make_folder(self) -> None:
        """Create the run folder with `config.json`, if there is a `runs_dir` and no folder yet.

        Raises:
            OSError: The folder cannot be created.
        """
        if self.folder is None and self.runs_dir is not None:
            folder = RunFolder.make(self.runs_dir, self.task, self.spec.name, self.seed)
            folder.write("config.json", self.describe())
            self.folder = folder

    def evaluate(
        self,
        n_episodes: int = 30,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        env: EnvMaker | None = None,
        max_episode_steps: int | None = None,
    ) -> EvaluationResult:
        """Evaluate the policy; see `rlox.trainers.Trainer.evaluate`."""
        seed = evaluation_seed(self.seed) if seed is None else resolve_seed(seed)
        return evaluate(
            SeededPredictor(self.env_learner, seed, self.interrupt_requested),
            partial(self.make_env, env),
            n_episodes,
            seed=seed,
            deterministic=deterministic,
            max_episode_steps=max_episode_steps,
        )

    def env_maker(self, env: EnvMaker | None = None) -> EnvMaker:
        """Return `env`, or the id, spec or function of the training environment.

        Raises:
            ArgumentError: `env` is None, and the run has no function that creates environments; or
                the learner has no environments.
        """
        source = self._require_env_source()
        maker = source.maker if env is None else env
        if maker is None:
            raise ArgumentError(
                "env",
                "an id or a function, because the trainer was created with environment objects",
                "None",
                "pass env=",
            )
        return maker

    def make_env(self, env: EnvMaker | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
        """Create an environment for evaluations; None: one equal to those of the training.

        Args:
            env: As for `env_maker`.
            **kwargs: Keywords in addition to those of the training environment.

        Raises:
            ArgumentTypeError, ArgumentError: As for `env_maker` and `make_single`.
        """
        source_kwargs = self._require_env_source().kwargs if env is None else {}
        return make_single(self.env_maker(env), source_kwargs | kwargs)

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """Write a checkpoint; see `rlox.trainers.Trainer.save`."""
        check_bool("replay", replay)
        try:
            if self.folder is not None:
                # A run that resumes from the checkpoint has all rows up to it. Rows that cannot be
                # written now are written later.
                with suppress(OSError):
                    self.folder.metrics.flush()
            state = self.learner.state(replay)
            write_checkpoint(path, self._manifest(state), _make_members(state))
        except MemoryError as error:
            buffer = getattr(self.learner, "replay", None)
            if not replay or not buffer:
                raise
            raise OutOfMemoryError(
                "buffer_size",
                "a replay buffer of which a copy fits into memory beside it",
                f"{self.config.buffer_size:,}, with {len(buffer):,} transitions",
                "lower buffer_size, or save with replay=False",
            ) from error

    def warn_about_restore(self) -> None:
        """Warn about the parts of a checkpoint that were not restored, before the first iteration."""
        if self.lacks_replay:
            warn("checkpoint has no replay buffer (it was saved with replay=False); training resumes with an empty one")
        if self.new_episodes_reason is not None:
            warn(f"environments could not be restored: {self.new_episodes_reason}; training resumes with new episodes")

    def describe(self) -> dict[str, Any]:
        """Return JSON values that describe the run, for `config.json`, checkpoints and loggers."""
        env: dict[str, Any] = {}
        if self.env_source is not None:
            spaces = zip(("observation", "action"), self.env_learner.spaces, strict=True)
            env = {
                "env": self.env_source.id,
                "env_kwargs": self.env_source.json_kwargs,
                "custom_policy": self.has_custom_policy,
                "custom_features": self.has_custom_features,
                "spaces": {name: _spaces.to_json(space) for name, space in spaces},
            }
        return {
            "algorithm": self.spec.name,
            "backend": self.learner.backend,
            "seed": self.seed,
            "settings": config_to_dict(self.config),
            "sources": self.config_sources,
            **env,
            "versions": versions(),
        }

    def has_written(self, manifest: Mapping[str, Any]) -> bool:
        """Return whether the checkpoint of a manifest is of this run, or of the run that it continues."""
        own = json.loads(json.dumps(self.describe()))  # with lists instead of tuples, as in files
        return _identity(own) == _identity(manifest)

    def info(self) -> RunInfo:
        """Return the description for loggers."""
        return RunInfo(
            algorithm=self.spec.name,
            task=self.task,
            seed=self.seed,
            budget_unit=self.learner.budget_unit,
            budget_used=self.budget_used,
            path=self.path,
            description=self.describe(),
        )

    def _manifest(self, state: LearnerState) -> dict[str, Any]:
        """Return the manifest of a checkpoint.

        `replay` is False if the replay buffer is missing. `env_state` is "saved" or "missing"; with
        "missing", `env_state_reason` gives the reason, and environments start new episodes.
        """
        optional: dict[str, Any] = {}
        if state.replay is None or self.lacks_replay:
            optional["replay"] = False
        if self.env_source is not None:
            optional["env_state"] = "saved"
        reason = state.unrestorable_reason or self.new_episodes_reason
        if reason is not None:
            optional |= {"env_state": "missing", "env_state_reason": reason}
        if state.ranks:
            optional["ranks"] = [{"counters": x.counters, "streams": x.streams} for x in state.ranks]
        return {
            **self.describe(),
            "run": {"unit": self.learner.budget_unit, "start": self.budget_start, "target": self.budget_end},
            "counters": state.counters,
            "streams": state.streams,
            "iterations": self.iterations,
            CALLBACKS_KEY: [*get_callback_states(self.callbacks), *self.callback_states],
            **optional,
        }


def _identity(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a description that a resumed run does not change."""
    settings = {n: x for n, x in description.get("settings", {}).items() if n not in ("device", "actors")}
    return {"settings": settings, **{n: description.get(n) for n in ("algorithm", "seed", "spaces")}}


def _make_members(state: LearnerState) -> dict[str, Arrays]:
    """Return the arrays of a checkpoint; ranks other than the first have members of their own."""
    members = {name: getattr(state, name) or {} for name in MEMBERS}
    for k, rank_state in enumerate(state.ranks[1:], 1):
        members |= {f"rank{k}_{name}": getattr(rank_state, name) or {} for name in RANK_MEMBERS}
    return members


def config_to_dict(config: Any) -> dict[str, Any]:
    """Return settings as JSON values, under names that trainers in Rust share."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    noise = {n: noise_to_dict(x) for n, x in values.items() if isinstance(x, ActionNoise)}
    return asdict(config) | noise
