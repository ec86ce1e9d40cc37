"""The Python examples reach the expected scores."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
DDP = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def run_example(folder, *arguments):
    """Run the example named by the last argument; return the standard output."""
    command = [sys.executable, *arguments[:-1], EXAMPLES / arguments[-1]]
    return subprocess.check_output(command, text=True, cwd=folder)


def test_custom_environment_example_learns(tmp_path):
    before, after = map(float, re.findall(r"(\d\.\d\d)", run_example(tmp_path, "custom_env.py")))
    assert before < 6.5 < 7.2 < after


@pytest.mark.parametrize(
    ("arguments", "line"),
    [((*DDP, "train_ddp.py"), "processes       2, 8 environments"), (("train_remote.py",), "")],
    ids=["ddp", "remote"],
)
def test_distributed_examples_solve_cartpole(arguments, line, tmp_path):
    output = run_example(tmp_path, *arguments)
    assert float(re.findall(r"score +(\d+\.\d)", output)[0]) >= 475
    assert line in output
