"""Flags of what surrounds training: loggers, scores, checkpoints, videos, and when to end."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from rlox._errors import ArgumentError
from rlox.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStoppingCallback,
    EvalCallback,
    TimingCallback,
    VideoRecordingCallback,
)
from rlox.cli.mistakes import UsageError, hint
from rlox.cli.saved import json_of
from rlox.cli.usage import given, named
from rlox.logger import NAMES
from rlox.logger.base import twice
from rlox.metrics import METRIC
from rlox.settings import flag, number, whole
from rlox.trainer import Trainer

FILE = "around.json"  # of a run folder
_STEPS = "pass a number of environment steps"


_N: Any = named("N", hint="")


@dataclass
class Around:
    """What happens while it trains; frequencies are steps of all environments together."""

    loggers: Annotated[tuple[str, ...], named("NAME...", hint="")] = ()
    """console csv jsonl tensorboard wandb mlflow"""
    eval_every: Annotated[int | None, _N] = None
    """evaluate every N steps, and keep the best"""
    eval_episodes: Annotated[int | None, _N] = None
    """over so many episodes; else 10"""
    stop_at_reward: Annotated[float | None, named("X", hint="")] = None
    """end where their mean return is this"""
    patience: Annotated[int | None, _N] = None
    """end after N steps without a better mean return"""
    checkpoint_every: Annotated[int | None, _N] = None
    """save a checkpoint every N steps"""
    keep_last: Annotated[int | None, _N] = None
    """so many of the newest are kept; else 3"""
    video_every: Annotated[int | None, _N] = None
    """record an episode every N steps"""
    timing: bool = False
    """log where the time goes"""


# What means nothing without another one.
_NEEDS = {
    "eval_episodes": "eval_every",
    "stop_at_reward": "eval_every",
    "keep_last": "checkpoint_every",
}


def surroundings(asked: Around) -> dict[str, Any]:
    """Callbacks and loggers, as `Trainer.train` takes them.

    Args:
        asked: By flags or a file, which may hold anything.

    Raises:
        UsageError: An unknown logger; a flag that needs another one.
        TypeError, ValueError: What is of another kind or out of range, by its name.
        ModuleNotFoundError: Videos need their extra.

    >>> about = surroundings(Around(loggers=("csv",), eval_every=1_000, patience=5_000))
    >>> [type(one).__name__ for one in about["callbacks"]], about["loggers"]
    (['Keeping', 'EvalCallback', 'EarlyStoppingCallback'], ['csv'])
    """
    for name, needed in _NEEDS.items():
        if getattr(asked, name) is not None and getattr(asked, needed) is None:
            raise UsageError(
                f"{_flag(name)}: expected {_flag(needed)} beside it, got none; add "
                f"{_flag(needed)} 10_000"
            )
    loggers = _loggers(asked.loggers)
    return {"callbacks": [Keeping(asked), *_callbacks(asked)], "loggers": loggers}


class Keeping(Callback):
    """Writes into the run folder what surrounds the run, for when it is resumed.

    Args:
        asked: What does.
    """

    def __init__(self, asked: Around) -> None:
        self._asked = {field.name: getattr(asked, field.name) for field in fields(Around)}

    def on_train_start(self, trainer: Trainer) -> None:
        """Writes it, if there is a run folder."""
        if trainer.run is not None:
            trainer.run.write(FILE, self._asked)


def take_kept(asked: Around, folder: Path, words: Sequence[str]) -> None:
    """Takes over what surrounded a run before, where the command line does not say it.

    Args:
        asked: What the command line says; it is changed.
        folder: The run folder.
        words: Of the command line.

    Raises:
        ValueError: What was kept is damaged.
    """
    file = folder / FILE
    kept = json_of(file)
    if not kept and file.exists():
        raise ArgumentError(
            str(file),
            "what surrounds a run by names",
            "other",
            "remove it, and say by flags what shall go on",
        )
    flags = [field.name for field in fields(Around)]
    left = [x for x in flags if given(x, words) is None and given(f"no_{x}", words) is None]
    for name in left:
        if name in kept:
            setattr(asked, name, kept[name])
    for name in left:  # flags may have ended what it belongs to
        if name in _NEEDS and getattr(asked, _NEEDS[name]) is None:
            setattr(asked, name, None)


def _callbacks(asked: Around) -> list[Callback]:
    """Evaluations come first: what ends the run looks at them."""
    made: list[Callback] = []
    if asked.eval_every is not None:
        episodes = 10 if asked.eval_episodes is None else asked.eval_episodes
        reward = asked.stop_at_reward
        made.append(
            EvalCallback(
                _steps("eval_every", asked.eval_every),
                whole("eval_episodes", episodes, 1, fix="ask for one or more"),
                None if reward is None else number("stop_at_reward", reward, fix="pass a number"),
            )
        )
    if asked.patience is not None:
        metric = METRIC if asked.eval_every is None else "eval/mean_reward"
        made.append(EarlyStoppingCallback(metric, _steps("patience", asked.patience)))
    if asked.checkpoint_every is not None:
        keep = 3 if asked.keep_last is None else asked.keep_last
        kept = whole("keep_last", keep, 1, fix="pass how many to keep")
        made.append(CheckpointCallback(_steps("checkpoint_every", asked.checkpoint_every), kept))
    if asked.video_every is not None:
        made.append(VideoRecordingCallback(_steps("video_every", asked.video_every)))
    if flag("timing", asked.timing, fix="pass one of them"):
        made.append(TimingCallback())
    return made


def _steps(name: str, value: Any) -> int:
    return whole(name, value, 1, fix=_STEPS)


def _loggers(names: Any) -> list[str]:
    if not isinstance(names, list | tuple):
        raise UsageError(
            f"--loggers: expected names ({', '.join(NAMES)}), got {names!r}; write [console, csv]"
        )
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"--loggers: expected names of loggers, got {name!r}; {hint(str(name), NAMES)}"
            )
    if (again := twice(names)) is not None:
        raise UsageError(
            f"--loggers: expected each name once, got {again!r} twice; leave one of them out"
        )
    return list(names)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
