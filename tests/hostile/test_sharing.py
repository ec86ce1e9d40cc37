"""One object of each public class in eight threads and in forked processes: it works or raises."""

import json
import os
import random
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")
if sys.platform != "linux":
    pytest.skip("memory is limited as Linux does it", allow_module_level=True)

from hostile.surface import classes, methods
from hostile.table import GROUPS, calls, subjects


def test_every_class_with_methods_has_an_object_to_share():
    called = {call.name.partition(".")[0] for group in GROUPS for call in calls(group)}
    shared = {name for group in GROUPS for name in subjects(group)}
    with_methods = {name for name, kind in classes().items() if methods(kind)}
    assert with_methods <= called
    needed = {call.name.partition(".")[0] for g in GROUPS for call in calls(g) if "." in call.name}
    assert needed <= shared


def check(group, folder, seed):
    (folder / "journal").touch()
    done = subprocess.run(
        [sys.executable, "-m", "hostile.sharing", group, "journal", str(seed)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        errors="replace",
    )
    at = (folder / "journal").read_text(errors="replace").strip()
    assert done.returncode == 0, f"seed {seed}, {at}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found, f"seed {seed}: {found}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("group", ["objects", "training", "networks"])
def test_eight_threads_and_forks_share_an_object(group, tmp_path):
    check(group, tmp_path, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["objects", "training", "networks"])
def test_eight_threads_and_forks_share_an_object_whatever_they_do(group, tmp_path):
    for _ in range(10):
        check(group, tmp_path, seed=random.randrange(2**32))
