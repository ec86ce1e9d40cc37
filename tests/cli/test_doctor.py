"""`rlox doctor`: reports of a valid installation and of problems."""

import os
import subprocess
import sys

import pytest

import rlox as package
from rlox import _rlox
from rlox import _system as machine
from rlox.cli import doctor


@pytest.fixture(autouse=True)
def torch_with_one_thread(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    for name in doctor._VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_valid_installation_has_no_problems(rlox):
    result = rlox("doctor")
    assert (result.code, result.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert lines["rlox"] == package.__version__
    assert lines["backends"].startswith("native")
    assert lines["CPU"].endswith(f"; rlox uses {_rlox.isa()}")
    assert lines["threads"].startswith(str(machine.threads()))
    assert lines["threads"].endswith(f"; rlox uses {_rlox.num_threads()}")
    assert lines["0"] == "problems"
    report = rlox("doctor", "--json").json
    assert (report["wrong"], report["dispatch"]) == ([], _rlox.isa())
    assert report["versions"]["python"]
    assert report["threads"]["usable"] == machine.threads()
    assert report["threads"]["native"] == _rlox.num_threads()


@pytest.mark.parametrize("name", ["portable", "PORTABLE "])
def test_environment_variables_set_instruction_set_and_threads(name):
    program = "from rlox import _rlox; print(_rlox.isa(), _rlox.num_threads())"
    env = {**os.environ, "RLOX_SIMD": name, "RLOX_NUM_THREADS": "3"}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True)
    assert run.stdout.split() == [b"portable", b"3"]


RESET_ALL = package.VecEnv.reset_all


@pytest.mark.parametrize(
    ("target", "value", "problem", "count"),
    [
        ("torch.get_num_threads", lambda: 9999, "torch threads: expected at most", 1),
        ("rlox.cli.doctor.metadata.version", lambda name: "0.0.1", "rlox: expected extension module", 1),
        (
            "rlox.VecEnv.reset_all",
            lambda self, seed: RESET_ALL(self, seed) + 1,
            *(": expected Gymnasium's observations", 5),
        ),
        ("torch", None, "torch: expected an importable package", 1),
        ("OMP_NUM_THREADS", "9999", "OMP_NUM_THREADS: expected at most", 1),
        ("runs", "a file", "runs_dir: expected a folder", 1),
    ],
)
def test_problems_are_reported(target, value, problem, count, rlox, monkeypatch, tmp_path):
    if target == "torch":
        monkeypatch.setitem(sys.modules, target, value)
    elif target == "runs":
        (tmp_path / target).write_text(value)
    elif "." in target:
        monkeypatch.setattr(target, value)
    else:
        monkeypatch.setenv(target, value)
    result = rlox("doctor")
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[-1] == f"{count} problems"
    assert sum(line.startswith("wrong: ") and problem in line for line in lines) == count


def test_missing_packages_of_an_extra_are_reported(monkeypatch, rlox):
    required = ["numpy>=2", 'no-such-package>=1; extra == "plot"', "mypy; extra == 'lint'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: required)
    assert doctor.missing_packages() == {"plot": ["no-such-package"]}
    result = rlox("doctor")
    assert result.code == 0
    assert "lacks no-such-package; pip install 'rlox[plot]'" in result.out


@pytest.mark.parametrize(
    ("group", "files", "threads"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.5),
        (
            "5:memory:/\n4:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            3.0,
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_control_groups_limit_threads(group, files, threads, tmp_path):
    for name, content in {"group": group, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert machine.quota(tmp_path, tmp_path / "group") == threads


def test_affinity_limits_threads_without_control_groups(tmp_path):
    assert machine.quota(tmp_path, tmp_path / "none") == float("inf")
    if hasattr(os, "sched_getaffinity"):
        assert machine.allowed_cpus() == len(os.sched_getaffinity(0))
