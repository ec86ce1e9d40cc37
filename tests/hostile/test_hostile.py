"""Public callables with arguments of every kind: each call gives a result or a documented error.

The default run passes a few strange arguments to every callable. The runs marked `hostile` pass all
of them, several at once, and use objects in threads and forked processes.
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

from hostile.table import (
    GROUPS,
    LEFT_OUT,
    callables,
    calls,
    classes,
    home,
    methods,
    parameters,
    properties,
    subjects,
)
from rlox._rlox import network_backends

TESTS = Path(__file__).resolve().parents[1]
DEATHS = 5  # after so many the remaining calls are skipped
SHARED = ("objects", "training", "networks")


def run_worker(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "hostile.worker", *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        errors="replace",
    )


def failures(group, folder, examples, seed="-", every=1):
    """Return the wrong results of a group: [callable, argument, description]."""
    (folder / "journal").touch()  # so that the folder is never empty
    found, start = [], 0
    for _ in range(DEATHS):
        done = run_worker(folder, "call", group, "journal", examples, seed, start, every)
        if done.returncode == 0:
            return found + json.loads(done.stdout.splitlines()[-1])
        at, name = (folder / "journal").read_text(errors="replace").split(" ", 1)
        end = "\n".join(done.stderr.splitlines()[-30:])
        found.append([name.strip(), f"ended with {done.returncode}", end])
        start = int(at) + 1
    return found


def report(found):
    return "\n".join(f"{name}({which}): {text}" for name, which, text in found)


def test_every_public_callable_and_parameter_has_a_valid_argument():
    known = {}
    for call in (call for group in GROUPS for call in calls(group)):
        known.setdefault(call.name, set()).update(call.arguments)
    offered = callables()
    met = {home(offered[name]) for name in known}
    new = {name for name, function in offered.items() if home(function) not in met}
    assert new == set(), "add a valid call of them to tests/hostile"
    assert set(known) - set(offered) == set(), "these do not exist"
    for name in known:
        named, more = parameters(offered[name])
        assert named - known[name] == set(), name
        assert more or known[name] <= named, name


def test_every_excluded_callable_exists():
    assert LEFT_OUT - set(callables(all_of_them=True)) == set()


def test_every_class_with_methods_has_an_object_to_share():
    names = [call.name for group in GROUPS for call in calls(group)]
    shared = {name for group in GROUPS for name in subjects(group)}
    with_methods = {name for name, kind in classes().items() if methods(kind)}
    assert with_methods <= {name.partition(".")[0] for name in names}
    assert {name.partition(".")[0] for name in names if "." in name} <= shared


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
def test_some_strange_arguments_give_a_result_or_a_documented_error(group, tmp_path):
    found = failures(group, tmp_path, examples=0, every=40)
    assert not found, report(found)


@pytest.mark.hostile
@pytest.mark.parametrize("group", GROUPS)
def test_strange_arguments_give_a_result_or_a_documented_error(group, tmp_path):
    found = failures(group, tmp_path, examples=3)
    assert not found, report(found)


@pytest.mark.hostile
@pytest.mark.parametrize("backend", network_backends()[1:])
def test_networks_of_other_backends_give_a_result_or_a_documented_error(
    backend, tmp_path, monkeypatch
):
    monkeypatch.setenv("RLOX_TEST_BACKEND", backend)
    found = failures("networks", tmp_path, examples=30)
    assert not found, report(found)


@pytest.mark.hostile
@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_many_strange_arguments_give_a_result_or_a_documented_error(group, tmp_path):
    seed = random.randrange(2**32)
    found = failures(group, tmp_path, examples=500, seed=seed)
    assert not found, f"seed {seed}:\n{report(found)}"


def expect_shareable(group, folder, seed):
    """Check that eight threads and forked processes can use one object of each class."""
    (folder / "journal").touch()
    done = run_worker(folder, "share", group, "journal", seed)
    at = (folder / "journal").read_text(errors="replace").strip()
    assert done.returncode == 0, f"seed {seed}, {at}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found, f"seed {seed}: {found}\n{done.stderr[-3000:]}"


@pytest.mark.hostile
@pytest.mark.parametrize("group", SHARED)
def test_threads_and_forked_processes_share_an_object(group, tmp_path):
    expect_shareable(group, tmp_path, seed=0)


@pytest.mark.hostile
@pytest.mark.slow
@pytest.mark.parametrize("group", SHARED)
def test_threads_and_forked_processes_share_an_object_for_many_seeds(group, tmp_path):
    for _ in range(10):
        expect_shareable(group, tmp_path, seed=random.randrange(2**32))
