"""Process that measures one library. `side_by_side.py` starts this process and sends requests.

Requests and answers are JSON, one line each. A subject is the result of a function of a benchmark's
module: a `timeit.Timer`, which runs as often as requested, or a callable. A callable gets the
number of the round and returns the seconds that it measured, with other numbers.
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
    """Return the installed versions."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    rlox = importlib.util.find_spec("rlox")
    return {"versions": versions, "rlox": None if rlox is None else rlox.origin}


def set_up(
    subjects: dict[str, Subject], key: str, module: str, function: str, params: dict[str, Any]
) -> dict[str, Any]:
    """Create a subject, which checks its results against the reference."""
    subjects[key] = getattr(importlib.import_module(module), function)(**params)
    return {}


def calibrate(subjects: dict[str, Subject], key: str, seconds: float) -> dict[str, Any]:
    """Return the number of repetitions that take at least `seconds`, after warming up."""
    timer = subjects[key]
    if not isinstance(timer, timeit.Timer):
        return {"repetitions": 1}
    repetitions, took = 1, timer.timeit(1)
    while took < seconds:
        repetitions = max(repetitions + 1, min(10 * repetitions, int(repetitions * 1.3 * seconds / took)))
        took = timer.timeit(repetitions)
    return {"repetitions": repetitions, "seconds": took}


def measure(subjects: dict[str, Subject], key: str, repetitions: int, turn: int) -> dict[str, Any]:
    """Run one block of repetitions and return the clock and processor seconds of one repetition."""
    subject = subjects[key]
    busy = time.process_time()
    if isinstance(subject, timeit.Timer):
        work = repetitions * getattr(subject, "times", 1)
        numbers = {"seconds": subject.timeit(repetitions) / work}
        numbers["processor"] = (time.process_time() - busy) / work
        return numbers
    return subject(turn)


def forget(subjects: dict[str, Subject]) -> dict[str, Any]:
    """Delete all subjects."""
    subjects.clear()
    return {}


def main() -> None:
    """Answer requests until the input ends."""
    # Libraries print to stdout, so answers get a separate file descriptor.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subjects: dict[str, Subject] = {}
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "describe": describe,
        "set_up": lambda **kwargs: set_up(subjects, **kwargs),
        "calibrate": lambda **kwargs: calibrate(subjects, **kwargs),
        "measure": lambda **kwargs: measure(subjects, **kwargs),
        "forget": lambda: forget(subjects),
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = commands[request.pop("do")](**request)
        except Exception as error:
            traceback.print_exc()
            message = ", ".join(str(error).strip().splitlines()[:2])
            answer = {"error": f"{type(error).__name__}: {message}"}
        answer["used"] = sum(os.times()[:4])  # including child processes
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
