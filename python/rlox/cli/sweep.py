"""`rlox sweep`: search for settings, and print the best as a config file for `rlox train`."""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlox._errors import ArgumentError
from rlox._registry import ALGORITHMS
from rlox._validation import check_int, replaced_settings
from rlox.cli import UsageError, echo, report
from rlox.cli._args import Experiment, Options, argument, option, parse_experiment, read_config
from rlox.experiments.space import as_space, default_space
from rlox.experiments.sweep import Plan, Sweep
from rlox.learners._backends import Backend
from rlox.presets import preset


@dataclass
class SweepOptions(Options):
    """Search for good settings. Settings set here are the same in all trials."""

    env: str | None = argument("Id of the environment; pass its arguments as --env-kwargs.NAME VALUE", "ENV", None)
    config: str | None = option("YAML file of the options and common settings", None, "FILE")
    space: str | None = option("YAML file of the search space; default: by algorithm", None, "FILE")
    trials: int = option("total number of trials, earlier ones included", 20, low=1)
    jobs: int = option("number of trials at a time, in processes", 1, low=1)
    total_timesteps: int | None = option("steps of each trial", None, "N", 1)
    eval_every: int | None = option("steps between evaluations; default: a tenth of all", None, "N", 1)
    eval_episodes: int = option("episodes per evaluation", 10, low=1)
    prune: bool = option("end trials below the median of the others", True)
    startup_trials: int = option("number of random trials before pruning begins", 5)
    storage: str = option("SQLite file of the trials", "sweep.db")
    study: str | None = option("name in the storage; default: ALGORITHM-ENV", None, "NAME")
    seed: int | None = option("seed of the first trial; trial i uses seed + i", None, "N")
    backend: Backend = option("implementation of the networks", "auto")
    runs_dir: str | None = option("folder for the run folders; None: write no files", "runs", "DIR")
    progress: bool = option("report each trial on stderr", True)
    json: bool = option("print all trials as JSON", False)


def sweep(argv: Sequence[str]) -> int:
    """Run the trials, and print the best settings."""
    experiment = parse_experiment(SweepOptions, "sweep", argv)
    options = experiment.options
    # If Ctrl-C interrupts a query, SQLAlchemy logs a traceback and raises the interrupt.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    study = Sweep(_plan(experiment), options.storage, options.study, options.runs_dir)
    try:
        study.run(options.trials, options.jobs, partial(_report_trial, study) if options.progress else None)
    except KeyboardInterrupt:
        n_trials = len(study.finished_trials())
        interrupted = f"interrupted after {n_trials} trials, which are stored in {options.storage}"
        echo(f"{interrupted}; the same command continues the sweep", to=sys.stderr)
        raise
    return _report_best(study, as_json=options.json)


def _plan(experiment: Experiment) -> Plan:
    options, algorithm, fixed = experiment.options, experiment.algorithm, experiment.settings
    every = max(options.total_timesteps // 10, 1) if options.eval_every is None else options.eval_every
    settings = {"num_envs": 1, **preset(algorithm, options.env), **fixed}
    num_envs = check_int("num_envs", settings["num_envs"], 1)
    if options.space is None:
        space = default_space(algorithm, num_envs, every)
    else:
        try:
            config_type = ALGORITHMS[algorithm].config
            space = as_space(read_config(options.space, "--space"), algorithm, config_type)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--space: {error}") from error
    excluded = {*fixed, *replaced_settings(fixed)}
    return Plan(
        algorithm,
        options.env,
        {name: values for name, values in space.items() if name not in excluded},
        total_timesteps=options.total_timesteps,
        eval_every=every,
        eval_episodes=options.eval_episodes,
        seed=options.seed,
        startup_trials=options.startup_trials,
        prune=options.prune,
        backend=options.backend,
        env_kwargs=experiment.env_kwargs,
        settings=fixed,
    )


def _report_trial(study: Sweep, trial: Any) -> None:
    attrs, best = trial.user_attrs, study.best_trial()
    outcomes = {"COMPLETE": f"mean reward {trial.value or 0.0:.2f}", "PRUNED": "pruned"}
    outcome = outcomes.get(trial.state.name, f"failed: {attrs.get('error')}")
    best_text = "" if best is None else f"; best {best.value:.2f} of trial {best.number}"
    echo(f"trial {trial.number}: {outcome} in {attrs['timesteps']:,} steps{best_text}", to=sys.stderr)


def _report_best(study: Sweep, *, as_json: bool) -> int:
    """Print the best settings as YAML, or all trials as JSON."""
    trials, best = study.finished_trials(), study.best_trial()
    if best is None:
        errors = [x.user_attrs["error"] for x in trials if "error" in x.user_attrs]
        raise ArgumentError(
            "score",
            "a trial with a score",
            f"{len(trials)} trials without (last error: {(errors[-1] if errors else 'none')})",
            "change the space or the settings, and pass another --study",
        )
    config = study.config(best)
    rows = [{"number": x.number, "state": x.state.name.lower(), "score": x.value, **x.user_attrs} for x in trials]
    content = {"study": study.name, "best": {"score": best.value, **config}, "trials": rows}
    settings = config.pop("settings")
    lines = [f"# mean reward {best.value:.2f}: trial {best.number}, the best of {len(trials)}"]
    lines += [f"{name}: {json.dumps(value)}" for name, value in config.items()]
    lines += ["settings:" if settings else "settings: {}"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in settings.items()]
    return report(content, lines, as_json=as_json)
