"""The process in which one library is measured; `side_by_side.py` starts it and tells it what to
do.

It speaks JSON, one line for each order and each answer. A subject is what a function of a
benchmark's module returns: a `timeit.Timer`, run as often as told (`side_by_side.Repeated` among
them), or a callable that takes the number of the round and returns the seconds it measured itself,
with other numbers that belong to them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
import timeit
import traceback
from collections.abc import Callable
from typing import Any

Subject = timeit.Timer | Callable[[int], dict[str, float]]


PACKAGES = (
    "rlox",
    "torch",
    "numpy",
    "gymnasium",
    "stable-baselines3",
    "torchrl",
    "cpprb",
    "envpool",
    "pufferlib",
    "jax",
    "trl",
    "rltools",
    "mkl",
)


def describe() -> dict[str, Any]:
    """What is installed here."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    rlox = importlib.util.find_spec("rlox")
    return {"versions": versions, "rlox": None if rlox is None else rlox.origin}


def set_up(
    subjects: dict[str, Subject], key: str, module: str, function: str, params: dict[str, Any]
) -> dict[str, Any]:
    """Makes a subject; it checks its own results against the reference meanwhile."""
    subjects[key] = getattr(importlib.import_module(module), function)(**params)
    return {}


def calibrate(subjects: dict[str, Subject], key: str, seconds: float) -> dict[str, Any]:
    """How many repetitions take at least `seconds`; warms the subject up besides."""
    timer = subjects[key]
    if not isinstance(timer, timeit.Timer):
        return {"repetitions": 1}
    repetitions, took = 1, timer.timeit(1)
    while took < seconds:
        repetitions = max(
            repetitions + 1, min(10 * repetitions, int(repetitions * 1.3 * seconds / took))
        )
        took = timer.timeit(repetitions)
    return {"repetitions": repetitions, "seconds": took}


def measure(subjects: dict[str, Subject], key: str, repetitions: int, turn: int) -> dict[str, Any]:
    """One block of repetitions: seconds of wall clock and of processor for one of them."""
    subject = subjects[key]
    busy = time.process_time()
    if isinstance(subject, timeit.Timer):
        work = repetitions * getattr(subject, "times", 1)
        numbers = {"seconds": subject.timeit(repetitions) / work}
        numbers["processor"] = (time.process_time() - busy) / work
        return numbers
    return subject(turn)


def forget(subjects: dict[str, Subject]) -> dict[str, Any]:
    """Lets all subjects go."""
    subjects.clear()
    return {}


def main() -> None:
    """Obeys until the orders end."""
    # Libraries print to stdout; the answers have it to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subjects: dict[str, Subject] = {}
    orders: dict[str, Callable[..., dict[str, Any]]] = {
        "describe": describe,
        "set_up": lambda **given: set_up(subjects, **given),
        "calibrate": lambda **given: calibrate(subjects, **given),
        "measure": lambda **given: measure(subjects, **given),
        "forget": lambda: forget(subjects),
    }
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = orders[order.pop("do")](**order)
        except Exception as error:
            traceback.print_exc()
            text = ", ".join(str(error).strip().splitlines()[:2])
            answer = {"error": f"{type(error).__name__}: {text}"}
        answer["used"] = sum(os.times()[:4])  # of its children, too
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
