"""`rlox doctor`: reports of a healthy installation and of problems."""

import os
import subprocess
import sys

import pytest

import rlox as package
from rlox import _rlox, machine
from rlox.cli import doctor


@pytest.fixture(autouse=True)
def torch_with_one_thread(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    for name in doctor._VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_healthy_installation_has_no_problems(rlox):
    result = rlox("doctor")
    assert (result.code, result.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert lines["rlox"] == package.__version__
    assert lines["backends"].startswith("native")
    assert lines["CPU"].endswith(f"; rlox uses {_rlox.isa()}")
    assert lines["threads"].startswith(str(machine.threads()))
    assert lines["threads"].endswith(f"; rlox uses {_rlox.num_threads()}")
    assert lines["0"] == "problems"


def test_report_as_json(rlox):
    report = rlox("doctor", "--json").json
    assert report["wrong"] == []
    assert report["versions"]["python"]
    assert report["threads"]["usable"] == machine.threads()
    assert report["threads"]["native"] == _rlox.num_threads()
    assert report["dispatch"] == _rlox.isa()


@pytest.mark.parametrize("name", ["portable", "PORTABLE "])
def test_environment_variables_choose_instruction_set_and_threads(name):
    program = "from rlox import _rlox; print(_rlox.isa(), _rlox.num_threads())"
    env = {**os.environ, "RLOX_SIMD": name, "RLOX_NUM_THREADS": "3"}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True)
    assert run.stdout.split() == [b"portable", b"3"]


def break_torch(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)


def add_threads_to_torch(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.get_num_threads", lambda: 9999)


def set_too_many_threads(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "9999")


def block_the_folder(monkeypatch, tmp_path):
    (tmp_path / "runs").write_text("in the way")


def change_the_version(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")


def change_observations(monkeypatch, tmp_path):
    reset_all = package.VecEnv.reset_all
    monkeypatch.setattr(package.VecEnv, "reset_all", lambda self, seed: reset_all(self, seed) + 1)


@pytest.mark.parametrize(
    ("cause", "problem", "count"),
    [
        (break_torch, "torch: expected to import it", 1),
        (add_threads_to_torch, "torch threads: expected at most", 1),
        (set_too_many_threads, "OMP_NUM_THREADS: expected at most", 1),
        (block_the_folder, "runs_dir: expected a folder", 1),
        (change_the_version, "rlox: expected extension 0.0.1", 1),
        (change_observations, ": expected Gymnasium's observations", 5),
    ],
)
def test_problem_is_reported(cause, problem, count, rlox, monkeypatch, tmp_path):
    cause(monkeypatch, tmp_path)
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


def test_control_groups_of_version_2_limit_threads(tmp_path):
    group = tmp_path / "group"
    group.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert machine.quota(tmp_path, group) == 1.5


def test_control_groups_of_version_1_limit_threads(tmp_path):
    group = tmp_path / "group"
    group.write_text("5:memory:/\n4:cpu,cpuacct:/x\n")
    inner = tmp_path / "cpu,cpuacct" / "x"
    inner.mkdir(parents=True)
    (inner / "cpu.cfs_quota_us").write_text("300000\n")
    (inner / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.quota(tmp_path, group) == 3.0


def test_without_control_groups_the_affinity_counts(tmp_path):
    assert machine.quota(tmp_path, tmp_path / "none") == float("inf")
    if hasattr(os, "sched_getaffinity"):
        assert machine.allowed_cpus() == len(os.sched_getaffinity(0))
