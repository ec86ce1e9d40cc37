"""Everything public, with arguments of every wrong kind: a right answer or a clear refusal."""

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
    pytest.skip("memory is limited as Linux does it", allow_module_level=True)

from hostile.surface import (
    INNER,
    LEFT_OUT,
    callables,
    classes,
    home,
    modules,
    parameters,
    properties,
)
from hostile.table import GROUPS, calls, subjects
from rlox._rlox import network_backends

TESTS = Path(__file__).resolve().parents[1]
DEATHS = 5  # after so many the rest is left


def strays(group, folder, examples, seed=None):
    """What goes wrong in a group: [callable, which argument, what]."""
    (folder / "journal").touch()  # so that the folder is never empty
    found, start = [], 0
    for _ in range(DEATHS):
        command = [sys.executable, "-m", "hostile.worker", group, "journal", str(examples)]
        done = subprocess.run(
            [*command, "-" if seed is None else str(seed), str(start)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode == 0:
            return found + json.loads(done.stdout.splitlines()[-1])
        at, said = (folder / "journal").read_text(errors="replace").split(" ", 1)
        end = "\n".join(done.stderr.splitlines()[-30:])
        found.append([said.strip(), f"ended with {done.returncode}", end])
        start = int(at) + 1
    return found


def told(found):
    return "\n".join(f"{name}({which}): {what}" for name, which, what in found)


def test_every_public_callable_and_each_of_its_parameters_has_a_right_argument():
    known = {}
    for call in (call for group in GROUPS for call in calls(group)):
        known.setdefault(call.name, set()).update(call.arguments)
    offered = callables()
    met = {home(offered[name]) for name in known}
    new = {name for name, function in offered.items() if home(function) not in met}
    assert new == set(), "say in tests/hostile how they are called right"
    assert set(known) - set(offered) == set(), "they are not offered any more"
    for name in known:
        named, more = parameters(offered[name])
        assert named - known[name] == set(), name
        assert more or known[name] <= named, name


def test_what_is_left_out_exists():
    assert set(INNER) <= set(modules())
    everything = callables(all_of_them=True)
    assert {name for name in LEFT_OUT if name not in everything} == set()


@pytest.mark.parametrize("group", GROUPS)
def test_properties_are_read_and_not_written(group):
    for name, subject in subjects(group).items():
        thing = subject.make(0)
        for attribute in properties(classes()[name]) if name in classes() else ():
            with suppress(ValueError):  # what is computed later is refused until then
                getattr(thing, attribute)
            with pytest.raises(AttributeError):
                setattr(thing, attribute, 3)


@pytest.mark.parametrize("group", GROUPS)
def test_strange_arguments_give_a_right_answer_or_a_clear_refusal(group, tmp_path):
    found = strays(group, tmp_path, examples=3)
    assert not found, told(found)


@pytest.mark.parametrize("backend", network_backends()[1:])
def test_networks_of_other_backends_answer_or_refuse_alike(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("RLOX_TEST_BACKEND", backend)
    found = strays("networks", tmp_path, examples=30)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_many_strange_arguments_at_once_do_no_harm(group, tmp_path):
    seed = random.randrange(2**32)
    found = strays(group, tmp_path, examples=500, seed=seed)
    assert not found, f"seed {seed}:\n{told(found)}"
