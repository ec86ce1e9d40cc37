"""`rlox doctor`: report on the installation and the usable CPUs, with fixes for problems."""

import importlib
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np

from rlox._rlox import __version__, env_ids, isa, network_backends, num_threads
from rlox._system import allowed_cpus, quota, threads, vector_units
from rlox._training.run_folder import check_runs_dir, versions
from rlox.cli import columns, report
from rlox.cli._args import option, parse
from rlox.envs.vec_env import VecEnv

_EXTRA = re.compile(r"""^([\w.-]+).*;.*extra *== *["']([\w-]+)["']""")
_LIBRARY_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VARIABLES = ("RLOX_NUM_THREADS", "RLOX_SIMD", *_LIBRARY_THREADS)


@dataclass
class DoctorOptions:
    """Print versions, extras, instruction sets and threads; exit with 1 if there are problems."""

    json: bool = option("print the report as JSON", False)


def doctor(argv: Sequence[str]) -> int:
    """Check the installation, and print the report."""
    options = parse(DoctorOptions, "doctor", argv)
    problems = list(find_problems())
    facts: dict[str, Any] = {
        "versions": {**versions(), "platform": platform.platform(terse=True)},
        "backends": [*network_backends(), *(["torch"] if _installed("torch") else [])],
        "extras": missing_packages(),
        "instruction_sets": vector_units(),
        "dispatch": isa(),
        "threads": {"native": num_threads(), "usable": threads()}
        | {"affinity": allowed_cpus(), "cgroup_quota": quota()},
        "environment": {name: x for name in _VARIABLES if (x := os.environ.get(name))},
    }
    report({**facts, "wrong": problems}, _lines(facts, problems), as_json=options.json)
    return 1 if problems else 0


def _lines(facts: dict[str, Any], problems: list[str]) -> list[str]:
    units, cpus = facts["instruction_sets"], facts["threads"]
    units = "unknown" if units is None else " ".join(units) or "none that rlox uses"
    limits = f"affinity {cpus['affinity']}, control groups {cpus['cgroup_quota']:g}"
    rows = [
        *facts["versions"].items(),
        ("backends", ", ".join(facts["backends"])),
        ("CPU", f"{units}; rlox uses {facts['dispatch']}"),
        ("threads", f"{cpus['usable']} ({limits}); rlox uses {cpus['native']}"),
        *facts["environment"].items(),
    ]
    for name, missing in facts["extras"].items():
        fix = f"lacks {', '.join(missing)}; pip install 'rlox[{name}]'"
        rows.append((f"rlox[{name}]", fix if missing else "installed"))
    return [columns(rows), *(f"wrong: {problem}" for problem in problems), f"{len(problems)} problems"]


def missing_packages() -> dict[str, list[str]]:
    """Return the missing packages of each extra; an empty dict if rlox is not installed."""
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("rlox") or [] if _installed("rlox") else []:
        if (match := _EXTRA.match(line)) and match[2] not in ("dev", "lint", "test"):
            missing = extras.setdefault(match[2], [])
            missing += [] if _installed(match[1]) else [match[1]]
    return extras


def _installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def find_problems() -> Iterator[str]:
    """Yield a text per problem, with its fix."""
    if _installed("rlox") and (version := metadata.version("rlox")) != __version__:
        yield f"rlox: expected extension module {version}, got {__version__}; reinstall rlox"
    counts = {name: os.environ.get(name, "") for name in _LIBRARY_THREADS}
    if _installed("torch"):
        try:
            counts["torch threads"] = str(importlib.import_module("torch").get_num_threads())
        except Exception as error:  # for example a missing shared library
            yield f"torch: expected an importable package, got {error!r}; reinstall torch"
    for name, count in counts.items():
        if count.isdigit() and int(count) > threads():
            fix = f"set OMP_NUM_THREADS={threads()}"
            yield f"{name}: expected at most {threads()}, the usable CPUs, got {count}; {fix}"
    try:
        check_runs_dir("runs")
    except ValueError as error:
        yield str(error)
    for env_id in env_ids():
        if not _equals_gymnasium(env_id):
            fix = "report this with the output of rlox doctor --json"
            yield f"{env_id}: expected Gymnasium's observations, got different ones; {fix}"


def _equals_gymnasium(env_id: str) -> bool:
    """Return whether the first observations of a native environment equal Gymnasium's."""
    with closing(VecEnv(1, 0, env_id)) as native, closing(gym.make(env_id)) as env:
        obs, (expected, _) = native.reset_all(seed=0)[0], env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(10):
            if not np.array_equal(obs, expected):
                return False
            action = env.action_space.sample()
            obs = native.step_all(np.asarray(action)[None])["obs"][0]
            expected = env.step(action)[0]
    return True
