"""A run that is killed and resumed in new processes equals an uninterrupted run exactly."""

import json
import os
import signal
import subprocess
import sys

import pytest

from rlox import ArgumentError
from rlox._training.metrics import remove_rows_after
from support import resume_runs
from support.refusals import refuses

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
# The default tests kill these runs; `make test-kills` kills all.
QUICK = {("ppo", "native"), ("sac", "torch")}
MATRIX = [
    pytest.param(name, backend, marks=() if (name, backend) in QUICK else pytest.mark.kills)
    for name in resume_runs.SETTINGS
    for backend in ("native", "torch")
]


def process(*words):
    """Return the exit code and the errors of a new process."""
    command = [sys.executable, resume_runs.__file__, *map(str, words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stderr[-2000:]


def expect_the_same(algorithm, backend, folder):
    """Check that the resumed run in `folder` equals a run that was never stopped."""
    code, said = process("resumed", algorithm, backend, folder / "stopped")
    assert code == 0, said
    whole = resume_runs.make_trainer(algorithm, backend, folder / "whole")
    whole.train(resume_runs.TOTAL)
    expected = json.loads(json.dumps(resume_runs.digest(whole)))
    got = json.loads((folder / "stopped" / "digest.json").read_text())
    for part in expected:
        assert got[part] == expected[part], part
    rows = resume_runs.table(whole.run.path)
    assert len(rows) > 2
    assert resume_runs.table(resume_runs.run_of(folder / "stopped")) == rows


@pytest.mark.parametrize(("algorithm", "backend"), MATRIX)
def test_a_run_that_was_killed_goes_on_as_if_it_was_not(tmp_path, algorithm, backend):
    code, said = process("killed", algorithm, backend, tmp_path / "stopped")
    assert code == -signal.SIGKILL, said
    expect_the_same(algorithm, backend, tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_run_that_ctrl_c_ended_goes_on_as_if_it_had_not(tmp_path, algorithm):
    code, said = process("interrupted", algorithm, "native", tmp_path / "stopped")
    assert code == 0, said
    expect_the_same(algorithm, "native", tmp_path)
    summary = json.loads((resume_runs.run_of(tmp_path / "stopped") / "summary.json").read_text())
    assert not summary["interrupted"]


def test_rows_of_steps_that_are_made_again_are_left_out(tmp_path):
    file = tmp_path / "metrics.csv"
    remove_rows_after(file, 3)  # there is none
    assert not file.exists()
    file.write_text("time/total_timesteps,a\n2,0.5\n4,\n6,1e-05\n8,0.")
    remove_rows_after(file, 6)
    assert file.read_text() == "time/total_timesteps,a\n2,0.5\n4,\n6,1e-05\n"
    remove_rows_after(file, 1)
    assert file.read_text() == "time/total_timesteps,a\n"
    file.write_text("a,b\n1,2\n")
    with refuses(ArgumentError, str(file), expected="one of its metrics"):
        remove_rows_after(file, 6)
    assert file.read_text() == "a,b\n1,2\n"
