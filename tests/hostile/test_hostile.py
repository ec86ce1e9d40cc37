"""Public callables with arguments of every kind return a result or raise a documented error.

The default run passes a few unusual arguments to each callable. Tests marked `hostile` pass all
unusual arguments, several at once, and share objects between threads and forked processes.
"""

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
if sys.platform != "linux":
    pytest.skip("limits of memory need Linux", allow_module_level=True)

import rlox
from hostile.table import (
    GROUPS,
    NOT_CALLED,
    PUBLIC,
    base_method,
    callables,
    calls,
    classes,
    fnmatchcase,
    is_called,
    methods,
    parameters,
    properties,
    subjects,
)
from rlox._rlox import network_backends

TESTS = Path(__file__).resolve().parents[1]
MAX_CRASHES = 5  # the remaining calls are skipped after this many crashes
SHARED_GROUPS = ("objects", "training", "networks")


def all_calls():
    return [call for group in GROUPS for call in calls(group)]


def run_worker(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "hostile.worker", *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        errors="replace",
    )


def check_calls(group, folder, examples, seed="-", every=1):
    """Make all calls of a group, and continue after a call that ends the process."""
    (folder / "journal").touch()  # relative paths refer to a folder with a file
    failures, start = [], 0
    for _ in range(MAX_CRASHES):
        done = run_worker(folder, "call", group, "journal", examples, seed, start, every)
        if done.returncode == 0:
            failures += json.loads(done.stdout.splitlines()[-1])
            break
        at, name = (folder / "journal").read_text(errors="replace").split(" ", 1)
        end = "\n".join(done.stderr.splitlines()[-30:])
        failures.append([name.strip(), f"ended with {done.returncode}", end])
        start = int(at) + 1
    lines = [f"{name}({form}): {text}" for name, form, text in failures]
    assert not lines, "\n".join([f"seed {seed}", *lines])


def check_sharing(group, folder, seed, *names):
    """Use an object of each class in eight threads and in forked processes."""
    (folder / "journal").touch()
    done = run_worker(folder, "share", group, "journal", seed, *names)
    at = (folder / "journal").read_text(errors="replace").strip()
    assert done.returncode == 0, f"seed {seed}, {at}\n{done.stderr[-3000:]}"
    failures = json.loads(done.stdout.splitlines()[-1])
    assert not failures, f"seed {seed}: {failures}\n{done.stderr[-3000:]}"


def test_every_public_callable_and_parameter_has_a_valid_argument():
    functions, passed = callables(), {}
    for call in all_calls():
        passed.setdefault(call.name, set()).update(call.arguments)
    assert set(passed) - set(functions) == set(), "unknown callables"
    called = {base_method(functions[name]) for name in passed}
    missing = {name for name, x in functions.items() if is_called(name) and base_method(x) not in called}
    assert missing == set(), "add valid calls to tests/hostile"
    for name, arguments in passed.items():
        named, more = parameters(functions[name])
        assert set(named) - arguments == set(), name
        assert more or arguments <= set(named), name


def test_every_excluded_callable_exists():
    patterns = {pattern for names in NOT_CALLED.values() for pattern in names.split()}
    assert {x for x in patterns if not any(fnmatchcase(n, x) for n in callables())} == set()


# Packages whose names are called through other modules or whose errors other tests check.
TESTED_ELSEWHERE = (
    *("rlox.cli", "rlox.configs", "rlox.experiments", "rlox.exporting", "rlox.features", "rlox.inference"),
    *("rlox.learners", "rlox.logger", "rlox.noise", "rlox.plotting", "rlox.presets", "rlox.sb3", "rlox.scores"),
)


def test_every_module_with_public_names_is_called_or_excluded():
    package = Path(rlox.__file__).parent
    roots = [name for name in (*PUBLIC, *TESTED_ELSEWHERE) if name != "rlox"]
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if "._" in name or "\n__all__" not in file.read_text():
            continue
        assert name == "rlox" or any(f"{name}.".startswith(f"{root}.") for root in roots), name


def test_every_class_with_methods_has_an_object_to_share():
    shared = {name for group in GROUPS for name in subjects(group)}
    with_methods = {name for name, cls in classes().items() if methods(cls)}
    assert with_methods <= {call.name.partition(".")[0] for call in all_calls()}
    assert {call.name.partition(".")[0] for call in all_calls() if "." in call.name} <= shared


@pytest.mark.parametrize("group", GROUPS)
def test_properties_are_read_only(group):
    for name, subject in subjects(group).items():
        thing = subject.make(0)
        for attribute in properties(classes()[name]) if name in classes() else ():
            with suppress(ValueError):  # not computed yet
                getattr(thing, attribute)
            with pytest.raises(AttributeError):
                setattr(thing, attribute, 3)


@pytest.mark.parametrize("group", GROUPS)
def test_some_unusual_arguments_give_a_result_or_a_documented_error(group, tmp_path):
    check_calls(group, tmp_path, examples=0, every=40)


@pytest.mark.parametrize("name", ["VecEnv", "ReplayBuffer"])
def test_threads_and_a_forked_process_share_one_object(name, tmp_path):
    check_sharing("objects", tmp_path, 0, name)


@pytest.mark.hostile
@pytest.mark.parametrize("group", GROUPS)
def test_unusual_arguments_give_a_result_or_a_documented_error(group, tmp_path):
    check_calls(group, tmp_path, examples=3)


@pytest.mark.hostile
@pytest.mark.parametrize("backend", network_backends()[1:])
def test_networks_of_other_backends_give_a_result_or_a_documented_error(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("RLOX_TEST_BACKEND", backend)
    check_calls("networks", tmp_path, examples=30)


@pytest.mark.hostile
@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_many_unusual_arguments_give_a_result_or_a_documented_error(group, tmp_path):
    check_calls(group, tmp_path, examples=500, seed=random.randrange(2**32))


@pytest.mark.hostile
@pytest.mark.parametrize("group", SHARED_GROUPS)
def test_threads_and_forked_processes_share_an_object_of_each_class(group, tmp_path):
    check_sharing(group, tmp_path, 0)


@pytest.mark.hostile
@pytest.mark.slow
@pytest.mark.parametrize("group", SHARED_GROUPS)
def test_threads_and_forked_processes_share_objects_for_many_seeds(group, tmp_path):
    for _ in range(10):
        check_sharing(group, tmp_path, random.randrange(2**32))
