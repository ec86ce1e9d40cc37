"""The examples in Python reach their scores."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"
DDP = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def output(folder, *words):
    command = [sys.executable, *words[:-1], EXAMPLES / words[-1]]
    return subprocess.check_output(command, text=True, cwd=folder)


def test_own_environment_is_learned(tmp_path):
    before, after = map(float, re.findall(r"(\d\.\d\d)", output(tmp_path, "custom_env.py")))
    assert before < 6.5 < 7.2 < after


@pytest.mark.parametrize(
    ("words", "line"),
    [((*DDP, "train_ddp.py"), "processes       2, 8 environments"), (("train_remote.py",), "")],
    ids=["ddp", "remote"],
)
def test_distributed_examples_solve_cartpole(words, line, tmp_path):
    text = output(tmp_path, *words)
    assert float(re.findall(r"score +(\d+\.\d)", text)[0]) >= 475
    assert line in text
