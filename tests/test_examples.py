"""The examples in Python run, and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parent.parent / "examples" / "python"


@pytest.mark.slow
def test_an_environment_of_ones_own_is_learned():
    command = [sys.executable, EXAMPLES / "custom_env.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = map(float, re.findall(r"(\d\.\d\d)", done.stdout))
    assert before < 6.5 < 7.2 < after


@pytest.mark.slow
def test_processes_that_learn_as_one_solve_cartpole(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, EXAMPLES / "train_ddp.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert float(re.findall(r"score +(\d+\.\d)", done.stdout)[0]) >= 475
    assert "processes       2, 8 environments" in done.stdout


@pytest.mark.slow
def test_two_workers_solve_cartpole(tmp_path):
    command = [sys.executable, EXAMPLES / "train_remote.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert float(re.findall(r"score +(\d+\.\d)", done.stdout)[0]) >= 475
