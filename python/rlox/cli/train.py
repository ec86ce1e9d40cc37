"""`rlox train` and `rlox resume`: train a run, several seeds, or continue a run."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._registry import ALGORITHMS
from rlox._training.results import TrainResult
from rlox._training.resume import resume_in
from rlox._training.run import CTRL_C, Callback, Run
from rlox._validation import short_repr
from rlox.callbacks.checkpointing import CheckpointCallback
from rlox.callbacks.evaluation import EvalCallback
from rlox.callbacks.progress import TimingCallback
from rlox.callbacks.stopping import EarlyStoppingCallback
from rlox.callbacks.video import VideoRecordingCallback
from rlox.cli import DONE, FAILED, INTERRUPTED, RunError, UsageError, describe_error, echo, report
from rlox.cli._args import NEEDS, RunOptions, TrainOptions, argument, option, parse_experiment, parse_flags
from rlox.cli.inspect import open_trainer, run_folder
from rlox.experiments.many import RunsFailedError, train_many
from rlox.logger.base import METRIC, Logger, as_loggers
from rlox.scores import score
from rlox.trainers import Trainer, load_trainer

OPTIONS_FILE = "run_options.json"  # in the run folder
_MOST_SEEDS = 100_000


@dataclass
class _ResumeOptions:
    run: str = argument("Run folder or checkpoint.", "RUN")
    total_timesteps: int | None = option("further steps; default: the missing ones", None, "N", 1)
    env: str | None = option("id of the environment; default: as saved", None, "ENV")
    backend: str | None = option("implementation of the networks; default: as saved", None, "NAME")
    device: str | None = option("device of the networks; default: as saved", None, "NAME")
    actors: str | None = option("such as grpc://host:port; default: as saved", None, "PLACE")
    runs_dir: str = option("folder of a new run if RUN is not in a run folder", "runs", "DIR")
    progress: bool = option("show progress on stderr", True)
    json: bool = option("print the result as JSON", False)


@dataclass
class ResumeOptions(RunOptions, _ResumeOptions):
    """Continue a run to its end, or for more steps, with its saved callbacks and loggers."""


def train(argv: Sequence[str]) -> int:
    """Train a run, or a run for each of several seeds."""
    experiment = parse_experiment(TrainOptions, "train", argv)
    options = experiment.options
    arguments = {
        "backend": options.backend,
        "runs_dir": options.runs_dir,
        "env_kwargs": experiment.env_kwargs,
        **experiment.settings,
    }
    if options.seeds is not None:
        return _train_seeds(experiment.algorithm, options, arguments)
    trainer_type = load_trainer(ALGORITHMS[experiment.algorithm])
    with trainer_type(options.env, options.seed, **arguments) as trainer:
        loggers = as_loggers(options.loggers, folder=options.runs_dir is not None)
        return _train(trainer, options, make_callbacks(options), loggers)


def resume(argv: Sequence[str]) -> int:
    """Continue a run in its folder."""
    flags = parse_flags(ResumeOptions, "resume", argv)
    arguments = {name: flags.get(name) for name in ("env", "backend", "device", "actors")}
    with open_trainer(flags["run"], runs_dir=flags.get("runs_dir", "runs"), **arguments) as trainer:
        folder = run_folder(flags["run"], trainer)
        saved = {} if folder is None else _saved_options(folder / OPTIONS_FILE, flags)
        options = ResumeOptions(**{**saved, **flags})
        if options.total_timesteps is None and trainer.timesteps >= trainer.run.budget_end:
            raise ArgumentError(
                "RUN",
                "a run that was stopped",
                f"a run that finished its {trainer.timesteps:,} steps",
                "add --total-timesteps 100_000 for more steps",
            )
        # Errors of the options must be raised before the folder changes.
        callbacks = make_callbacks(options)
        loggers = as_loggers(options.loggers, folder=True)
        if folder is not None:
            resume_in(trainer.run, folder)
        return _train(trainer, options, callbacks, loggers)


def make_callbacks(options: RunOptions) -> list[Callback]:
    """Return the callbacks of a run. Evaluations precede callbacks that read their results.

    >>> [type(x).__name__ for x in make_callbacks(RunOptions(eval_every=1_000, patience=5_000))]
    ['SaveOptions', 'EvalCallback', 'EarlyStoppingCallback']
    """
    callbacks: list[Callback] = [SaveOptions(options)]
    if options.eval_every is not None:
        episodes, reward = options.eval_episodes or 10, options.stop_at_reward
        callbacks.append(EvalCallback(options.eval_every, episodes, reward))
    if options.patience is not None:
        metric = METRIC if options.eval_every is None else "eval/mean_reward"
        callbacks.append(EarlyStoppingCallback(metric, options.patience))
    if options.checkpoint_every is not None:
        callbacks.append(CheckpointCallback(options.checkpoint_every, options.keep_last or 3))
    if options.video_every is not None:
        callbacks.append(VideoRecordingCallback(options.video_every))
    if options.timing:
        callbacks.append(TimingCallback())
    return callbacks


class SaveOptions(Callback):
    """Callback that writes the options of a run to its folder, for `rlox resume`."""

    def __init__(self, options: RunOptions) -> None:
        self._options = {item.name: getattr(options, item.name) for item in fields(RunOptions)}

    def on_train_start(self, run: Run) -> None:
        """Write the file if the run has a folder."""
        if run.folder is not None:
            run.folder.write(OPTIONS_FILE, self._options)


def _saved_options(file: Path, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Read the saved options, without options that have no effect with these flags."""
    try:
        saved = json.loads(file.read_bytes()) if file.exists() else {}
        options = {x.name: saved[x.name] for x in fields(RunOptions) if x.name in saved}
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            str(file), "the options of a run", f"other content ({error})", "remove the file and pass options"
        ) from error
    for name, needed in NEEDS.items():
        if {**options, **flags}.get(needed) is None:
            options.pop(name, None)
    return options


def _train(trainer: Trainer, options: Any, callbacks: Sequence[Callback], loggers: Sequence[Logger]) -> int:
    try:
        result = trainer.train(
            options.total_timesteps, progress_bar=options.progress, callbacks=callbacks, loggers=loggers
        )
    except (ArgumentError, ArgumentTypeError) as error:
        raise RunError from error
    _report_run(trainer, result, as_json=options.json)
    return INTERRUPTED if result["stopped_by"] == CTRL_C else DONE


def _report_run(trainer: Trainer, result: TrainResult, *, as_json: bool) -> None:
    info = {
        "algorithm": trainer.spec.name,
        "env": trainer.run.task,
        "seed": trainer.seed,
        "backend": trainer.learner.backend,
    }
    episodes, folder = result["episodes"], result["run_dir"]
    mean = f"mean return {result['mean_reward']:.2f} over the last {min(episodes, 100)} of {episodes:,} episodes"
    lines = [
        "{algorithm} {env}, seed {seed}, {backend}".format(**info),
        f"{result['timesteps']:,} steps in total; this call took {result['seconds']:.1f} s, with "
        f"{result['sps']:,.0f} steps/s",
        mean if episodes else "no finished episode",
    ]
    if folder is not None:
        lines.append(f"run folder {folder}")
    if result["interrupted"]:
        lines.append("interrupted" + (f"; continue with: rlox resume {folder}" if folder else ""))
    elif result["stopped_by"] is not None:
        lines.append(f"stopped by {result['stopped_by']}")
    report({**info, **result}, lines, as_json=as_json)


def parse_seeds(value: Any) -> list[int]:
    """Return seeds from a list, an integer, or a text of numbers and inclusive ranges.

    >>> parse_seeds("0-3,7"), parse_seeds([4, 5])
    ([0, 1, 2, 3, 7], [4, 5])
    """
    if not isinstance(value, str):
        return list(value) if isinstance(value, list | tuple) else [value]
    seeds: list[int] = []
    for part in value.replace(" ", "").split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if bounds is None or int(bounds[2] or bounds[1]) - int(bounds[1]) not in range(_MOST_SEEDS):
            raise UsageError(
                f"--seeds: expected numbers and ranges, got {short_repr(value)}; write --seeds 0-9 or --seeds 0,3,7"
            )
        seeds += range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1)
    return seeds


def _train_seeds(algorithm: str, options: Any, arguments: dict[str, Any]) -> int:
    """Train a run for each seed, and report each run and the score of all runs."""
    if options.seed is not None:
        raise UsageError("--seeds: expected no --seed with --seeds, got both; remove one of them")
    seeds = parse_seeds(options.seeds)
    arguments |= {"callbacks": partial(make_callbacks, options), "loggers": list(options.loggers)}
    if options.progress or not options.json:
        to = sys.stderr if options.json else sys.stdout
        arguments["on_result"] = lambda index, outcome: _report_seed(seeds[index], outcome, to)
    outcomes: list[Any]
    try:
        outcomes = [*train_many(algorithm, options.env, seeds, options.total_timesteps, **arguments)]
    except RunsFailedError as error:
        outcomes = [error.errors.get(i, result) for i, result in enumerate(error.results)]
    _report_seeds({"algorithm": algorithm, "env": options.env}, seeds, outcomes, options.json)
    results = [x for x in outcomes if not isinstance(x, BaseException)]
    if any(result["stopped_by"] == CTRL_C for result in results):
        return INTERRUPTED
    return DONE if len(results) == len(seeds) else FAILED


def _report_seed(seed: int, outcome: TrainResult | BaseException, to: Any) -> None:
    if isinstance(outcome, BaseException):
        echo(f"seed {seed}: failed: {describe_error(outcome)}", to=sys.stderr)
        return
    mean = outcome["mean_reward"]
    reward = "no episode finished" if math.isnan(mean) else f"mean return {mean:.2f}"
    folder = "" if outcome["run_dir"] is None else f", {outcome['run_dir']}"
    steps = f"{outcome['timesteps']:,} steps in {outcome['seconds']:.1f} s"
    echo(f"seed {seed}: {reward}, {steps}{folder}", to=to)


def _report_seeds(info: dict[str, Any], seeds: list[int], outcomes: list[Any], as_json: bool) -> None:
    results = [x for x in outcomes if not isinstance(x, BaseException)]
    means = [x["mean_reward"] for x in results if not math.isnan(x["mean_reward"])]
    runs = [
        {"seed": seed, **({"error": describe_error(x)} if isinstance(x, BaseException) else x)}
        for seed, x in zip(seeds, outcomes, strict=True)
    ]
    failed, interrupted = len(outcomes) - len(results), sum(x["interrupted"] for x in results)
    notes = f", {failed} failed" if failed else ""
    notes += f", {interrupted} interrupted" if interrupted else ""
    lines = [f"{info['algorithm']} {info['env']}: {len(outcomes)} runs{notes}"]
    total: dict[str, Any] | None = None
    if means:
        total = {**score(means)}
        total["runs"] = total.pop("episodes")
        low, high = total["iqm_interval"]
        lines.append(
            f"mean return {total['mean']:.2f} +- {total['std']:.2f}, interquartile mean "
            f"{total['iqm']:.2f} [{low:.2f}, {high:.2f}] of {len(means)} runs (last 100 episodes)"
        )
    report({**info, "runs": runs, "mean_reward": total}, lines, as_json=as_json)
