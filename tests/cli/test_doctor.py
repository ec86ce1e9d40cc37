"""`rlox doctor`: what it tells of a healthy installation, and what of others."""

import os
import subprocess
import sys

import pytest

import rlox as package
from rlox import _rlox, machine
from rlox.cli import doctor


@pytest.fixture
def quick(monkeypatch):
    """Without another process that imports the package."""
    monkeypatch.setattr(doctor, "_import", lambda: iter(()))
    monkeypatch.setattr(doctor, "_torch", lambda: iter(()))
    for name in (*doctor._OWN, *doctor._LIBRARIES):
        monkeypatch.delenv(name, raising=False)


def test_a_healthy_installation_is_told_as_that(rlox, quick):
    said = rlox("doctor")
    assert (said.code, said.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert lines["rlox"] == package.__version__
    assert lines["backends"].startswith("native")
    assert lines["CPU"].endswith(f"; rlox uses {_rlox.isa()}")
    assert lines["threads"].startswith(str(machine.threads()))
    assert lines["threads"].endswith(f"; rlox uses {_rlox.num_threads()}")
    assert lines["nothing"] == "is wrong"


def test_all_of_it_as_json(rlox, quick):
    told = rlox("doctor", "--json").json
    assert told["wrong"] == []
    assert told["versions"]["python"]
    assert told["threads"]["usable"] == machine.threads()
    assert told["threads"]["native"] == _rlox.num_threads()
    assert told["dispatch"] == _rlox.isa()


@pytest.mark.parametrize("name", ["portable", "PORTABLE "])
def test_native_code_says_what_it_runs_on(name):
    program = "from rlox import _rlox; print(_rlox.isa(), _rlox.num_threads())"
    asked = {**os.environ, "RLOX_SIMD": name, "RLOX_NUM_THREADS": "3"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=asked, capture_output=True, check=True
    )
    assert said.stdout.split() == [b"portable", b"3"]


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (-11, "", "an interpreter that was killed by signal 11"),
        (-4, "a warning\n", "an interpreter that was killed by signal 4"),
        (1, "Traceback\nImportError: no\n", "ImportError: no"),
        (3, "", "exit code 3"),
    ],
)
def test_how_an_import_dies_is_told(code, said, told, monkeypatch):
    ended = subprocess.CompletedProcess([], code, "", said)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **how: ended)
    assert [*doctor._import()] == [f"import rlox: expected no error, got {told}; install it anew"]


def test_warnings_of_the_import_are_what_is_wrong(rlox, monkeypatch):
    monkeypatch.setattr(doctor, "_torch", lambda: iter(()))
    monkeypatch.setenv("RLOX_SIMD", "sse")
    said = rlox("doctor")
    assert said.code == 1
    assert 'wrong: RLOX_SIMD: expected portable, avx2 or avx512, got "sse"; correct or' in said.out
    assert said.out.endswith("1 wrong\n")


def test_more_threads_than_cpus_are_wrong(rlox, quick, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "9999")
    said = rlox("doctor")
    assert said.code == 1
    assert "wrong: OMP_NUM_THREADS: expected at most " in said.out


def test_a_folder_that_cannot_be_written_is_wrong(rlox, quick, tmp_path):
    (tmp_path / "runs").write_text("in the way")
    said = rlox("doctor")
    assert said.code == 1
    assert "wrong: runs_dir: expected a folder" in said.out


def test_another_version_of_the_extension_is_wrong(rlox, quick, monkeypatch):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")
    assert "expected the extension of version 0.0.1, got" in rlox("doctor").out


def test_numbers_that_are_not_gymnasiums_are_wrong(rlox, quick, monkeypatch):
    real = package.VecEnv.reset_all
    monkeypatch.setattr(package.VecEnv, "reset_all", lambda self, seed: real(self, seed) + 1)
    said = rlox("doctor")
    assert said.out.count("expected Gymnasium's observations, got others") == 5


def test_what_an_extra_lacks_is_told_with_its_command(monkeypatch, rlox, quick):
    required = ["numpy>=2", 'no-such-package>=1; extra == "plot"', "mypy; extra == 'lint'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: required)
    assert doctor.extras() == {"plot": ["no-such-package"]}
    said = rlox("doctor")
    assert said.code == 0
    assert "lacks no-such-package; pip install 'rlox[plot]'" in said.out


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
