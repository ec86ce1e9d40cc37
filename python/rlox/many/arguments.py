"""What `train_many` takes: looked at before anything is trained."""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.callbacks import as_callbacks
from rlox.keywords import hint
from rlox.logger import as_loggers
from rlox.many._jobs import TrainJob
from rlox.settings import plain_seed, shown
from rlox.trainer import Trainer
from rlox.trainers import TRAINERS


def known_trainer(algorithm: Any) -> type[Trainer]:
    """The trainer of an algorithm, by its name or as it is."""
    if isinstance(algorithm, type) and issubclass(algorithm, Trainer) and algorithm is not Trainer:
        return algorithm
    if isinstance(algorithm, str):
        if algorithm.lower() in TRAINERS:
            return TRAINERS[algorithm.lower()]
        raise ArgumentError(
            "algorithm", "a trainer's name", repr(algorithm), hint(algorithm, TRAINERS)
        )
    raise ArgumentTypeError(
        "algorithm",
        f"a name ({', '.join(TRAINERS)}) or a trainer's class",
        shown(algorithm),
        "pass 'ppo'",
    )


def checked_seeds(seeds: Any) -> list[int]:
    """Seeds as plain integers, each once."""
    if isinstance(seeds, str | bytes | Mapping) or not isinstance(seeds, Iterable):
        raise ArgumentTypeError("seeds", "integers", shown(seeds), "pass range(10)")
    given = list(seeds)
    for wrong in (one for one in given if not _is_seed(one)):
        integer = isinstance(wrong, int) and not isinstance(wrong, bool)
        kind = ArgumentError if integer else ArgumentTypeError
        got = f"{shown(wrong)} among them"
        raise kind("seeds", "integers of at least 0", got, "pass range(10)")
    found = [int(seed) for seed in given]
    if not found:
        raise ArgumentError("seeds", "at least one", "none", "pass range(10)")
    twice = next((seed for seed in found if found.count(seed) > 1), None)
    if twice is not None:
        raise ArgumentError("seeds", "each once", f"{twice} twice", "leave one out")
    return found


def _is_seed(seed: Any) -> bool:
    try:
        return plain_seed(seed) >= 0
    except (TypeError, ValueError):
        return False


def checked_variants(settings: Any, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The dicts of `settings`, an empty one without; seeds and the like are in none of them."""
    if "seed" in common:
        raise ArgumentTypeError(
            "seed", "the seeds of all runs", f"one, {shown(common['seed'])}", "pass seeds="
        )
    if settings is None:
        return [{}]
    if isinstance(settings, str | Mapping) or not isinstance(settings, Sequence):
        raise ArgumentTypeError(
            "settings", "a list of dicts", shown(settings), "pass [{'gamma': 0.98}]"
        )
    if not settings:
        raise ArgumentError("settings", "at least one dict", "none", "pass None for one run")
    for number, variant in enumerate(settings):
        if not isinstance(variant, Mapping) or not all(isinstance(n, str) for n in variant):
            raise ArgumentTypeError(
                f"settings[{number}]",
                "a dict of settings by name",
                shown(variant),
                "pass {'gamma': 0.98}",
            )
        for name in ("seed", "env", "backend", "runs_dir"):
            if name in variant:
                raise ArgumentTypeError(
                    f"settings[{number}]",
                    "settings of the algorithm",
                    repr(name),
                    f"pass {('seeds' if name == 'seed' else name)} to train_many",
                )
    return [dict(variant) for variant in settings]


def expect_shareable(env: Any) -> None:
    """Refuses environments that are made already."""
    if isinstance(env, VectorEnv | gym.Env):
        raise ArgumentError(
            "env",
            "an id, a spec or a function that makes an environment, as each run has its own",
            shown(env),
            "pass lambda: ...",
        )


def expect_callbacks(callbacks: Any) -> None:
    """Refuses what does not make callbacks; calls it once."""
    if callbacks is None:
        return
    if not callable(callbacks):
        raise ArgumentTypeError(
            "callbacks",
            "a function that makes a run's callbacks",
            shown(callbacks),
            "pass lambda: [EvalCallback(10_000)]",
        )
    as_callbacks(callbacks())


def expect_loggers(loggers: Any, *, folder: bool) -> None:
    """Refuses what names no loggers, and those whose packages are missing."""
    names = [loggers] if isinstance(loggers, str) else loggers
    if isinstance(names, Sequence) and not all(isinstance(name, str) for name in names):
        other = next(name for name in names if not isinstance(name, str))
        raise ArgumentTypeError(
            "loggers", "names, as each run has its own", shown(other), "pass 'jsonl'"
        )
    as_loggers(loggers, folder=folder)


def expect_pickled(job: TrainJob, prefix: str) -> None:
    """Refuses what other processes cannot be sent."""
    try:
        pickle.dumps(job)
    except Exception as error:
        raise ArgumentTypeError(
            f"{prefix}processes",
            "an env, callbacks and settings that processes can be sent, which are functions of a "
            "module's own",
            f"some that cannot ({error})",
            "name them with def at the top of a module",
        ) from error
