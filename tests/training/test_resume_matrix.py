"""A run that is killed and resumed in a new process equals an uninterrupted run exactly."""

import json
import os
import signal
import subprocess
import sys

import pytest

from rlox import ArgumentError
from rlox._training.metrics_files import remove_rows_after
from support import resume_runs
from support.rejections import rejects

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
# The default tests kill these runs. `make test-kills` kills all runs.
QUICK = {("ppo", "native"), ("sac", "torch")}
MATRIX = [
    pytest.param(name, backend, marks=() if (name, backend) in QUICK else pytest.mark.kills)
    for name in resume_runs.SETTINGS
    for backend in ("native", "torch")
]


def run_process(*args):
    """Return the exit code and the error output of a new process."""
    command = [sys.executable, resume_runs.__file__, *map(str, args)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stderr[-2000:]


def check_resumed_run(algorithm, backend, folder):
    """Check that the resumed run in `folder` equals an uninterrupted run."""
    code, stderr = run_process("resumed", algorithm, backend, folder / "stopped")
    assert code == 0, stderr
    uninterrupted = resume_runs.make_trainer(algorithm, backend, folder / "whole")
    uninterrupted.train(resume_runs.TOTAL)
    expected = json.loads(json.dumps(resume_runs.digest(uninterrupted)))
    got = json.loads((folder / "stopped" / "digest.json").read_text())
    for part in expected:
        assert got[part] == expected[part], part
    rows = resume_runs.table(uninterrupted.run.path)
    assert len(rows) > 2
    assert resume_runs.table(resume_runs.run_of(folder / "stopped")) == rows


@pytest.mark.parametrize(("algorithm", "backend"), MATRIX)
def test_killed_run_resumes_exactly(tmp_path, algorithm, backend):
    code, stderr = run_process("killed", algorithm, backend, tmp_path / "stopped")
    assert code == -signal.SIGKILL, stderr
    check_resumed_run(algorithm, backend, tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_run_stopped_by_ctrl_c_resumes_exactly(tmp_path, algorithm):
    code, stderr = run_process("interrupted", algorithm, "native", tmp_path / "stopped")
    assert code == 0, stderr
    check_resumed_run(algorithm, "native", tmp_path)
    summary = json.loads((resume_runs.run_of(tmp_path / "stopped") / "summary.json").read_text())
    assert not summary["interrupted"]


def test_remove_rows_after_drops_later_and_incomplete_rows(tmp_path):
    file = tmp_path / "metrics.csv"
    remove_rows_after(file, 3)  # the file does not exist
    assert not file.exists()
    file.write_text("time/total_timesteps,a\n2,0.5\n4,\n6,1e-05\n8,0.")
    remove_rows_after(file, 6)
    assert file.read_text() == "time/total_timesteps,a\n2,0.5\n4,\n6,1e-05\n"
    remove_rows_after(file, 1)
    assert file.read_text() == "time/total_timesteps,a\n"
    file.write_text("a,b\n1,2\n")
    with rejects(ArgumentError, str(file), expected="one of its metrics"):
        remove_rows_after(file, 6)
    assert file.read_text() == "a,b\n1,2\n"
