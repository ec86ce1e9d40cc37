"""Hyperparameter searches with Optuna; worker processes train the trials."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rlox._errors import ArgumentError, ArgumentTypeError, one_line
from rlox._files import locked
from rlox._optional import load_extra
from rlox._processes import Pool
from rlox._registry import ALGORITHMS
from rlox._system import threads as cpus
from rlox._validation import check_bool, check_int, check_keywords, check_path, check_str, resolve_seed, short_repr
from rlox.configs import PPOConfig
from rlox.experiments._jobs import TrialJob, TrialResult
from rlox.experiments.space import Space
from rlox.noise import ActionNoise
from rlox.presets import preset
from rlox.trainers import load_trainer

_PLAN, _INDEX, _ERROR = "plan", "index", "error"


@dataclass(frozen=True)
class Plan:
    """Arguments that all trials of a sweep share; all trials of a study have the same plan.

    Attributes:
        algorithm: Name of the algorithm.
        env: Id of the environment.
        space: Range or choices of each setting to search.
        total_timesteps: Environment steps per trial.
        eval_every: Environment steps between two evaluations.
        eval_episodes: Episodes per evaluation.
        seed: Seed of trial 0; trial i uses `seed + i`. None: the stored or a random seed.
        startup_trials: Number of trials with random settings, before pruning begins.
        prune: If True, end a trial early if its best evaluation is below the median of the other trials.
        backend: Backend of the trainers.
        env_kwargs: Arguments of the environment.
        settings: Settings that are the same in all trials.

    Raises:
        ArgumentError: A number is out of range, `eval_every` exceeds `total_timesteps`, or the space is empty.
        ArgumentTypeError: A number has a wrong type.
    """

    algorithm: str
    env: str
    space: Space
    total_timesteps: int
    eval_every: int
    eval_episodes: int = 10
    seed: int | None = None
    startup_trials: int = 5
    prune: bool = True
    backend: str = "auto"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low in {"total_timesteps": 1, "eval_every": 1, "eval_episodes": 1, "startup_trials": 0}.items():
            object.__setattr__(self, name, check_int(name, getattr(self, name), low))
        check_bool("prune", self.prune)
        if self.seed is not None:
            resolve_seed(self.seed)
        if self.eval_every > self.total_timesteps:
            raise ArgumentError(
                "eval_every", f"at most total_timesteps = {self.total_timesteps}", str(self.eval_every), "lower it"
            )
        if not self.space:
            raise ArgumentError("space", "settings to search", "none", "fix fewer settings")
        algorithm = check_str("algorithm", self.algorithm, tuple(ALGORITHMS))
        known = [item.name for item in fields(ALGORITHMS[algorithm].config)]
        check_keywords(self.space, known, f"{self.algorithm}'s space")

    def to_dict(self) -> dict[str, Any]:
        """Return the plan without its seed, as JSON values."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del data["seed"]
        return data

    def fit_batch_size(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return settings whose minibatch is at most as large as a rollout."""
        all_settings = {"num_envs": 1, **preset(self.algorithm, self.env), **settings}
        size = all_settings.get("batch_size")
        config = ALGORITHMS[self.algorithm].config
        if not issubclass(config, PPOConfig) or not isinstance(size, int):
            return settings
        envs_per_actor = all_settings["num_envs"] // (all_settings.get("num_actors") or 1)
        rollout = envs_per_actor * all_settings.get("n_steps", config.n_steps)
        return {**settings, "batch_size": rollout} if size > rollout else settings

    def make_job(self, seed: int, settings: dict[str, Any], runs_dir: str | None) -> TrialJob:
        """Return the job of a trial."""
        arguments = {"backend": self.backend, "runs_dir": runs_dir, "env_kwargs": self.env_kwargs}
        return TrialJob(
            load_trainer(ALGORITHMS[self.algorithm]),
            self.env,
            seed,
            self.total_timesteps,
            arguments={**arguments, **self.settings, **settings},
            eval_every=self.eval_every,
            eval_episodes=self.eval_episodes,
        )


class Sweep:
    """Optuna study of a plan; an existing study in the storage is continued.

    With one job at a time, the settings that are tried depend only on the plan and its seed, even
    if the sweep was interrupted and continued.

    Args:
        plan: Arguments that all trials share.
        storage: SQLite file, or URL for SQLAlchemy; None: in memory.
        name: Name of the study; None: "ALGORITHM-ENV".
        runs_dir: Folder of the run folders; None: no run folders.

    Raises:
        ArgumentError: An argument is out of range, or the stored study has another plan.
        ArgumentTypeError: An argument has a wrong type, or a setting of the plan is unknown.
        ModuleNotFoundError: Optuna is not installed.
        OSError: The storage cannot be opened.
    """

    def __init__(
        self,
        plan: Plan,
        storage: str | os.PathLike[str] | None = None,
        name: str | None = None,
        runs_dir: str | os.PathLike[str] | None = "runs",
    ) -> None:
        self._optuna = load_extra("optuna", "sweep", "rlox sweep")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        if not isinstance(plan, Plan):
            raise ArgumentTypeError("plan", "a rlox.experiments.sweep.Plan", short_repr(plan), "pass Plan(...)")
        self.plan = plan
        folder = check_path("runs_dir", runs_dir)
        check_path("storage", storage)
        self._runs_dir = None if folder is None else os.fspath(folder)
        plan.make_job(0, {}, self._runs_dir).make_trainer().close()
        self.name = check_str("name", f"{plan.algorithm}-{plan.env}" if name is None else name)
        self._storage = storage
        pruner = self._optuna.pruners.NopPruner()
        if plan.prune:
            evaluations = plan.total_timesteps // plan.eval_every
            pruner = self._optuna.pruners.MedianPruner(plan.startup_trials, n_warmup_steps=evaluations // 3)
        self.study: Any = self._optuna.create_study(
            storage=_open_storage(self._optuna, storage),
            study_name=self.name,
            direction="maximize",
            load_if_exists=True,
            pruner=pruner,
        )
        self.seed = self._check_plan()

    def _check_plan(self) -> int:
        """Store the plan in the study, or compare it with the stored one; return the seed."""
        saved_plan = self.study.user_attrs.get(_PLAN)
        seed = self.plan.seed
        if saved_plan is None:
            seed = secrets.randbelow(2**31) if seed is None else seed
            self.study.set_user_attr(_PLAN, {**self.plan.to_dict(), "seed": seed})
            return seed
        new_plan = {**self.plan.to_dict(), "seed": saved_plan.get("seed") if seed is None else seed}
        for name, value in new_plan.items():
            if saved_plan.get(name) != value:
                raise ArgumentError(
                    name,
                    f"{saved_plan.get(name)}, the value of study {self.name!r} in {self._storage}",
                    str(value),
                    "pass the stored value, or another --study",
                )
        return int(new_plan["seed"])

    def finished_trials(self) -> list[Any]:
        """Return the Optuna trials that have ended, except interrupted ones."""
        trials = self.study.get_trials(deepcopy=False)
        ended = (trial for trial in trials if trial.state.is_finished())
        # A failed trial without an error was interrupted.
        return [trial for trial in ended if trial.state.name != "FAIL" or trial.user_attrs.get(_ERROR)]

    def best_trial(self) -> Any:
        """Return the Optuna trial with the best score, or None if no trial has a score."""
        scored = [trial for trial in self.finished_trials() if trial.state.name == "COMPLETE"]
        return max(scored, key=lambda trial: trial.value, default=None)

    def run(self, trials: int, jobs: int = 1, on_result: Callable[[Any], object] | None = None) -> None:
        """Train until the study has `trials` finished trials, including failed trials.

        Args:
            trials: Total number of trials, including those of earlier calls.
            jobs: Number of trials at a time, each in a worker process.
            on_result: Called with each Optuna trial that has ended.

        Raises:
            ArgumentError: A number is below 1.
            ArgumentTypeError: A number is not an integer.
            BlockingIOError: Another sweep is training the study.
            KeyboardInterrupt: Ctrl-C ended the sweep. The next call repeats unfinished trials.
        """
        check_int("trials", trials, 1, fix="pass the total number of trials")
        jobs = check_int("jobs", jobs, 1, fix="pass the number of trials at a time")
        with _lock_study(self._storage, self.name):
            self.seed = self._check_plan()  # another process may have stored a plan since
            self._search(trials, jobs, on_result)

    def _search(self, trials: int, jobs: int, on_result: Callable[[Any], object] | None) -> None:
        self._abandon()  # trials that a killed process left running
        done = self.finished_trials()
        missing = trials - len(done)
        used = {trial.user_attrs.get(_INDEX) for trial in done}
        remaining = (i for i in count() if i not in used)
        workers = min(jobs, max(missing, 1))
        with Pool(workers, max(1, cpus() // jobs)) as pool:
            try:
                while missing > 0 or pool.free < workers:
                    while missing > 0 and pool.free:
                        missing -= 1
                        self._begin(pool, next(remaining))
                    for trial, is_result, value, process in pool.wait():
                        if not is_result:
                            step, mean_reward = value
                            trial.report(mean_reward, step)
                            process.send(bool(trial.should_prune()))
                            continue
                        if isinstance(value, BaseException):
                            value = TrialResult(error=one_line(value))
                        self._end(trial, value)
                        if on_result is not None:
                            on_result(self.study.trials[trial.number])
            except BaseException:
                self._abandon()
                raise

    def _abandon(self) -> None:
        """Mark running trials as failed without an error, so that they are repeated."""
        states = self._optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            self.study.tell(trial.number, state=states.FAIL)

    def _begin(self, pool: Pool, index: int) -> None:
        # One stream per trial, so that a continued sweep tries the same settings.
        state = np.random.SeedSequence((self.seed, index)).generate_state(1)
        self.study.sampler = self._optuna.samplers.TPESampler(
            n_startup_trials=self.plan.startup_trials, seed=int(state[0])
        )
        trial = self.study.ask()
        sampled = {name: item.suggest(name, trial) for name, item in self.plan.space.items()}
        settings = self.plan.fit_batch_size({**self.plan.settings, **sampled})
        plain = {n: asdict(x) if isinstance(x, ActionNoise) else x for n, x in settings.items()}
        trial.set_user_attr(_INDEX, index)
        trial.set_user_attr("seed", self.seed + index)
        trial.set_user_attr("settings", plain)
        pool.submit(self.plan.make_job(self.seed + index, settings, self._runs_dir), trial)

    def _end(self, trial: Any, result: TrialResult) -> None:
        states = self._optuna.trial.TrialState
        for name in ("run_dir", "timesteps", _ERROR):
            if (value := getattr(result, name)) is not None:
                trial.set_user_attr(name, value)
        if result.error is not None:
            self.study.tell(trial, state=states.FAIL)
        elif result.score is None:
            self.study.tell(trial, state=states.PRUNED)
        else:
            self.study.tell(trial, result.score)

    def config(self, trial: Any) -> dict[str, Any]:
        """Return the config that repeats a trial, for `rlox train --config`."""
        plan = self.plan
        config: dict[str, Any] = {"algorithm": plan.algorithm, "env": plan.env}
        config |= {"env_kwargs": plan.env_kwargs} if plan.env_kwargs else {}
        config |= {"backend": plan.backend} if plan.backend != "auto" else {}
        config["seed"] = trial.user_attrs["seed"]
        config |= {name: getattr(plan, name) for name in ("total_timesteps", "eval_every", "eval_episodes")}
        return {**config, "settings": trial.user_attrs["settings"]}


def _lock_study(storage: str | os.PathLike[str] | None, study: str) -> AbstractContextManager[None]:
    """Lock a study of an SQLite file against other sweeps, with a lock file next to it."""
    # A lock on the SQLite file itself would release SQLite's own locks when it is closed.
    where = "" if storage is None else os.fspath(storage)
    file = Path(where.removeprefix("sqlite:///").partition("?")[0] if "://" in where else where)
    if not where or not file.is_file():
        return nullcontext()
    name = hashlib.sha256(study.encode(errors="surrogatepass")).hexdigest()[:16]
    lock_file = file.resolve().with_name(f".{file.name}.{name}.lock")
    lock_file.touch()
    busy = f"study {study!r} is being trained by another sweep; wait until it ends, or pass another --study"
    return locked(lock_file, wait=False, busy=busy, owner=where)


def _open_storage(optuna: ModuleType, storage: str | os.PathLike[str] | None) -> object:
    """Open the storage of the study."""
    if storage is None:
        return None
    where = url = os.fspath(storage)
    if "://" not in where:  # the name of the file may contain "?"
        uri = Path(where).absolute().as_uri()
        engine = load_extra("sqlalchemy.engine", "sweep", "rlox sweep")
        url = str(engine.URL.create("sqlite", database=uri, query={"uri": "true"}))
    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:
        raise OSError(
            f"storage: expected a writable SQLite file, got {where!r} ({one_line(error)}); pass another path"
        ) from error
