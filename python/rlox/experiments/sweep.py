"""A sweep: trials that Optuna asks for and processes train, kept in a file."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from rlox._errors import ArgumentError, ArgumentTypeError, one_line
from rlox._files import locked
from rlox._optional import load_extra
from rlox._processes import Pool
from rlox._registry import ALGORITHMS
from rlox._system import threads as cpus
from rlox._validation import check_bool, check_int, check_path, check_str, resolve_seed, short_repr
from rlox.experiments._jobs import TrialJob, TrialResult
from rlox.experiments.space import Space
from rlox.noise import ActionNoise
from rlox.presets import preset

_PLAN, _INDEX, _ERROR = "plan", "index", "error"


@dataclass(frozen=True)
class Plan:
    """What every trial of a sweep has in common; a study is of one plan."""

    algorithm: str
    env: str
    space: Space
    total_timesteps: int
    eval_every: int
    eval_episodes: int = 10
    seed: int | None = None  # of the first trial, others count on; None: any, or the study's
    startup_trials: int = 5  # with random settings, and not pruned
    prune: bool = True  # end a trial whose evaluation is below the median of the others
    backend: str = "auto"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # the same in all trials

    def __post_init__(self) -> None:
        for name in ("total_timesteps", "eval_every", "eval_episodes"):
            check_int(name, getattr(self, name), 1)
        check_int("startup_trials", self.startup_trials, 0)
        check_bool("prune", self.prune)
        if self.seed is not None:
            resolve_seed(self.seed)
        if self.eval_every > self.total_timesteps:
            raise ArgumentError(
                "eval_every",
                f"at most total_timesteps = {self.total_timesteps}",
                str(self.eval_every),
                "lower it",
            )
        if not self.space:
            raise ArgumentError("space", "settings to search", "none", "fix fewer of them")

    def to_dict(self) -> dict[str, Any]:
        """What JSON holds of it, beside the seed."""
        space = {name: asdict(item) for name, item in self.space.items()}
        data: dict[str, Any] = json.loads(json.dumps({**asdict(self), "space": space}))
        del data["seed"]
        return data

    def fit_batch_size(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return settings whose minibatch is at most as large as a rollout."""
        all_settings = {"num_envs": 1, **preset(self.algorithm, self.env), **settings}
        size = all_settings.get("batch_size")
        if self.algorithm != "ppo" or not isinstance(size, int):
            return settings
        rollout = all_settings["num_envs"] * all_settings.get("n_steps", 2048)
        return {**settings, "batch_size": rollout} if size > rollout else settings

    def make_job(self, seed: int, settings: dict[str, Any], runs_dir: str | None) -> TrialJob:
        """Return the run of a trial."""
        arguments = {"backend": self.backend, "runs_dir": runs_dir, "env_kwargs": self.env_kwargs}
        return TrialJob(
            ALGORITHMS[self.algorithm].load_trainer(),
            self.env,
            seed,
            self.total_timesteps,
            arguments={**arguments, **self.settings, **settings},
            eval_every=self.eval_every,
            eval_episodes=self.eval_episodes,
        )


class Sweep:
    """A study of a plan, in a file of Optuna's; one that is there already goes on.

    With one job, what is tried depends on nothing but the plan and its seed, also where the sweep
    was interrupted and went on.

    Args:
        plan: What trials have in common.
        storage: The SQLite file, or a URL as SQLAlchemy has them; None: in memory.
        name: Of the study; None: the algorithm and the environment.
        runs_dir: Where run folders are made; None: nowhere.

    Raises:
        ModuleNotFoundError: Optuna is not installed.
        TypeError, ValueError: What no trainer of the plan would take; a study of another plan.
        OSError: The file cannot be written.
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
            raise ArgumentTypeError(
                "plan", "a rlox.experiments.sweep.Plan", short_repr(plan), "pass Plan(...)"
            )
        self.plan, folder = plan, check_path("runs_dir", runs_dir)
        check_path("storage", storage)
        self._runs_dir = None if folder is None else os.fspath(folder)
        plan.make_job(0, {}, self._runs_dir).make_trainer().close()
        self.name = check_str("name", f"{plan.algorithm}-{plan.env}" if name is None else name)
        self._storage = storage
        self.study: Any = self._optuna.create_study(
            storage=_open_storage(self._optuna, storage),
            study_name=self.name,
            direction="maximize",
            load_if_exists=True,
            pruner=self._pruner(),
        )
        self.seed = self._check_plan()

    def _pruner(self) -> Any:
        if not self.plan.prune:
            return self._optuna.pruners.NopPruner()
        evaluations = self.plan.total_timesteps // self.plan.eval_every
        first = self.plan.startup_trials
        return self._optuna.pruners.MedianPruner(first, n_warmup_steps=evaluations // 3)

    def _check_plan(self) -> int:
        """Keeps the plan in the study, or compares it with that which is there; gives the seed."""
        saved_plan, seed = self.study.user_attrs.get(_PLAN), self.plan.seed
        if saved_plan is None:
            seed = secrets.randbelow(2**31) if seed is None else seed
            self.study.set_user_attr(_PLAN, {**self.plan.to_dict(), "seed": seed})
            return seed
        new_plan = {**self.plan.to_dict(), "seed": saved_plan.get("seed") if seed is None else seed}
        for name, value in new_plan.items():
            if saved_plan.get(name) != value:
                raise ArgumentError(
                    name,
                    f"{saved_plan.get(name)}, as study {self.name!r} in {self._storage} has it",
                    str(value),
                    "pass that, or another --study",
                )
        return int(new_plan["seed"])

    def finished_trials(self) -> list[Any]:
        """Optuna's trials that have ended, but for those that Ctrl-C ended."""
        trials = self.study.get_trials(deepcopy=False)
        ended = (trial for trial in trials if trial.state.is_finished())
        # Those that failed on their own say of what.
        return [
            trial for trial in ended if trial.state.name != "FAIL" or trial.user_attrs.get(_ERROR)
        ]

    def best_trial(self) -> Any:
        """Optuna's trial with the best score; None where none has one."""
        scored = [trial for trial in self.finished_trials() if trial.state.name == "COMPLETE"]
        return max(scored, key=lambda trial: trial.value, default=None)

    def run(
        self, trials: int, jobs: int = 1, on_result: Callable[[Any], object] | None = None
    ) -> None:
        """Trains until the study has so many trials. One that fails is one of them.

        Args:
            trials: All together, those of before included.
            jobs: How many at once, in processes of their own.
            tell: Called with each of Optuna's trials that has ended.

        Raises:
            BlockingIOError: Another sweep trains the study now.
            KeyboardInterrupt: Ctrl-C; trials that were going on are repeated by the next call.
        """
        check_int("trials", trials, 1, fix="pass how many the study shall have")
        jobs = check_int("jobs", jobs, 1, fix="pass how many at once")
        with _lock_study(self._storage, self.name):
            self.seed = self._check_plan()  # nobody else began another one meanwhile
            self._search(trials, jobs, on_result)

    def _search(self, trials: int, jobs: int, on_result: Callable[[Any], object] | None) -> None:
        self._abandon()  # what a process left that was killed
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
                            trial.report(value.mean, value.step)
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
        """Ends trials that nobody trains, wherever Ctrl-C or an error came; they are no results."""
        states = self._optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            self.study.tell(trial.number, state=states.FAIL)

    def _begin(self, pool: Pool, index: int) -> None:
        # A stream of its own for each trial, so that a sweep that goes on tries the same.
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
        """What repeats a trial, as `rlox train --config` takes it."""
        plan = self.plan
        config: dict[str, Any] = {"algorithm": plan.algorithm, "env": plan.env}
        config |= {"env_kwargs": plan.env_kwargs} if plan.env_kwargs else {}
        config |= {"backend": plan.backend} if plan.backend != "auto" else {}
        config |= {"seed": trial.user_attrs["seed"]}
        names = ("total_timesteps", "eval_every", "eval_episodes")
        config |= {name: getattr(plan, name) for name in names}
        return {**config, "settings": trial.user_attrs["settings"]}


@contextmanager
def _lock_study(storage: str | os.PathLike[str] | None, study: str) -> Iterator[None]:
    """Lock a study of an SQLite file against other sweeps, by a file beside it."""
    # Closing the SQLite file here would release locks that SQLite has on it.
    where = "" if storage is None else os.fspath(storage)
    file = Path(where.removeprefix("sqlite:///").partition("?")[0] if "://" in where else where)
    with ExitStack() as stack:
        if where and file.is_file():
            name = hashlib.sha256(study.encode(errors="surrogatepass")).hexdigest()[:16]
            lock_file = file.resolve().with_name(f".{file.name}.{name}.lock")
            lock_file.touch()
            try:
                stack.enter_context(locked(lock_file, wait=False))
            except BlockingIOError as error:
                raise BlockingIOError(
                    error.errno,
                    f"storage: expected a study that no other sweep trains now, got {study!r}, "
                    "which one does; wait for its end, or pass another --study",
                    where,
                ) from error
        yield


def _url(file: Path) -> str:
    """The URL of an SQLite file of any name, "?" in it included, in all versions of SQLAlchemy."""
    cls = load_extra("sqlalchemy.engine", "sweep", "rlox sweep").URL
    uri = file.absolute().as_uri()
    return str(cls.create("sqlite", database=uri, query={"uri": "true"}))


def _open_storage(optuna: Any, storage: str | os.PathLike[str] | None) -> Any:
    """Open the storage of Optuna."""
    if storage is None:
        return None
    where = os.fspath(storage)
    url = where if "://" in where else _url(Path(where))
    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:
        raise OSError(
            f"storage: expected an SQLite file that can be written, got {where!r} "
            f"({one_line(error)}); pass another path"
        ) from error
