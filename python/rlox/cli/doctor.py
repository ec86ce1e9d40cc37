"""`rlox doctor`: what is installed, what the machine has, and what to do about what is wrong."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np

import rlox
from rlox.cli.output import columns, say, say_json
from rlox.cli.usage import parse
from rlox.logger import expect_root, versions
from rlox.machine import allowed_cpus, quota, threads, vector_units

_EXTRA = re.compile(r"""^([\w.-]+).*;.*extra *== *["']([\w-]+)["']""")
# Threads of libraries that are loaded beside rlox.
_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OWN = ("RLOX_NUM_THREADS", "RLOX_SIMD")
_NOT_EXTRAS = ("dev", "lint", "test")


@dataclass
class Doctor:
    """Print versions, features, instruction sets and threads, and what to do about what is wrong.

    The exit code is 1 if something is.
    """

    json: bool = False  # print all that as JSON


def run(words: Sequence[str]) -> int:
    """Examines, and tells."""
    asked = parse(Doctor, "doctor", words)
    found: dict[str, Any] = {
        "versions": {**versions(), "platform": platform.platform(terse=True)},
        "backends": [*rlox._rlox.network_backends(), *(["torch"] if _has("torch") else [])],
        "extras": extras(),
        "instruction_sets": vector_units(),
        "dispatch": rlox._rlox.isa(),
        "threads": {
            "native": rlox._rlox.num_threads(),
            "usable": threads(),
            "affinity": allowed_cpus(),
            "cgroup_quota": quota(),
        },
        "environment": {name: x for name in (*_OWN, *_LIBRARIES) if (x := os.environ.get(name))},
    }
    wrong = list(complaints())
    if asked.json:
        say_json({**found, "wrong": wrong})
    else:
        _tell(found, wrong)
    return 1 if wrong else 0


def _tell(found: dict[str, Any], wrong: list[str]) -> None:
    limit = found["threads"]["cgroup_quota"]
    granted = "no limit" if limit == float("inf") else f"{limit:g} CPUs"
    units = found["instruction_sets"]
    rows = list(found["versions"].items())
    rows.append(("backends", ", ".join(found["backends"])))
    has = "unknown" if units is None else " ".join(units) or "none of those used"
    rows.append(("CPU", f"{has}; rlox uses {found['dispatch']}"))
    rows.append(
        (
            "threads",
            f"{found['threads']['usable']} (affinity {found['threads']['affinity']}, "
            f"control groups {granted}); rlox uses {found['threads']['native']}",
        )
    )
    rows += [(name, value) for name, value in found["environment"].items()]
    for name, lacking in found["extras"].items():
        fix = f"lacks {', '.join(lacking)}; pip install 'rlox[{name}]'"
        rows.append((f"rlox[{name}]", fix if lacking else "installed"))
    say(columns([(str(name), str(value)) for name, value in rows]))
    for one in wrong:
        say(f"wrong: {one}")
    say("nothing is wrong" if not wrong else f"{len(wrong)} wrong")


def extras() -> dict[str, list[str]]:
    """The packages that each extra lacks; none where it is installed.

    Empty where rlox is used without being installed.
    """
    try:
        required = metadata.requires("rlox") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for line in required:
        match = _EXTRA.match(line)
        if match and match[2] not in _NOT_EXTRAS:
            lacking = found.setdefault(match[2], [])
            if match[1] != "rlox" and not _has(match[1]):
                lacking.append(match[1])
    return found


def _has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def complaints() -> Iterator[str]:
    """What is wrong, each with what to do about it."""
    yield from _installed()
    yield from _import()
    yield from _torch()
    yield from _numbers()
    try:
        expect_root("runs")
    except ValueError as error:
        yield str(error)
    for name in _LIBRARIES:
        asked = os.environ.get(name, "")
        if asked.isdigit() and int(asked) > threads():
            yield (
                f"{name}: expected at most {threads()}, the CPUs this process may use, got "
                f"{asked}; threads that wait for each other make training slower, unset it"
            )


def _installed() -> Iterator[str]:
    try:
        told = metadata.version("rlox")
    except metadata.PackageNotFoundError:
        return
    if told != rlox.__version__:
        yield (
            f"rlox: expected the extension of version {told}, got {rlox.__version__}; "
            "install it anew: pip install --force-reinstall rlox"
        )


def _import() -> Iterator[str]:
    """What importing warns of: wrong environment variables, slow builds."""
    program = [sys.executable, "-W", "always", "-c", "import rlox"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        _, warned, text = line.partition("Warning: ")
        if warned and "rlox" in text.lower():
            yield text
    if done.returncode < 0:
        yield (
            f"import rlox: expected no error, got an interpreter that was killed by signal "
            f"{-done.returncode}; install it anew"
        )
    elif done.returncode > 0:
        said = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        yield f"import rlox: expected no error, got {said[-1]}; install it anew"


def _torch() -> Iterator[str]:
    if not _has("torch"):
        return
    try:
        import torch
    except Exception as error:  # of libraries it does not find, for one
        yield (
            f"torch: expected what can be imported, got {type(error).__name__} ({error}); install "
            "it anew: pip install --force-reinstall torch"
        )
        return
    if torch.get_num_threads() > threads():
        yield (
            f"torch: expected at most {threads()} threads, the CPUs this process may use, got "
            f"{torch.get_num_threads()}; set OMP_NUM_THREADS={threads()}"
        )


def _numbers() -> Iterator[str]:
    """A few steps of each native environment that Gymnasium has, beside its own."""
    for env_id in rlox._rlox.env_ids():
        with (
            closing(rlox.VecEnv(1, 0, env_id)) as ours,
            closing(gym.make(env_id)) as theirs,
        ):
            obs, (expected, _) = ours.reset_all(seed=0)[0], theirs.reset(seed=0)
            theirs.action_space.seed(0)
            for _ in range(10):
                if not np.array_equal(obs, expected):
                    yield (
                        f"{env_id}: expected Gymnasium's observations, got others; report it with "
                        "what rlox doctor --json prints"
                    )
                    break
                action = theirs.action_space.sample()
                obs = ours.step_all(np.asarray(action)[None])["obs"][0]
                expected = theirs.step(action)[0]
