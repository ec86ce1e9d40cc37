"""Starts processes that learn together: by torchrun, or forked from one, with no launcher."""

import os
import subprocess
import sys
from pathlib import Path

import rlox

SIZES = {"three": 3}
TESTS = Path(__file__).parent
SCRIPT = TESTS / "ddp_runs.py"
LIMIT = 110


def environment(**more):
    path = os.pathsep.join([str(Path(rlox.__file__).parents[1]), str(TESTS)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def torchrun(size, *words):
    """Runs the script by torchrun; what it printed, and its exit status."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    done = subprocess.run(
        [*launcher, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", SCRIPT, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.stdout + done.stderr, done.returncode


def side_by_side(folder, *cases, limit=LIMIT):
    """What processes said that no launcher ends, and their exit statuses, by case."""
    command = [sys.executable, SCRIPT, "forked", *cases, folder]
    subprocess.run(command, env=environment(), timeout=limit, check=True)
    found = {}
    for case in cases:
        said = [(folder / f"{case}-{rank}.txt").read_text() for rank in range(SIZES.get(case, 2))]
        found[case] = said, [int(text.split()[-1]) for text in said]
    return found
