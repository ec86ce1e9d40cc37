"""Benchmarks of `cargo bench nn_backends` as subjects of `side_by_side.py`: times without Python.

The binary must have been built: `cargo bench -p rlox-bench --bench nn_backends --no-run`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from side_by_side import OURS, Subject, swept

ROOT = Path(__file__).resolve().parents[2]
BUILD = "cargo bench -p rlox-bench --bench nn_backends --no-run"
# Measurements are short, because `side_by_side.py` repeats them in rounds for its intervals.
SETTINGS = ("--warm-up-time", "0.1", "--measurement-time", "0.2", "--sample-size", "10")


def binary(benchmark: str = "nn_backends") -> Path | None:
    """Return the newest build of a benchmark, or None."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release" / "deps"
    built = [path for path in folder.glob(f"{benchmark}-*") if path.suffix in ("", ".exe")]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


@lru_cache
def names() -> frozenset[str]:
    """Return the names of the built benchmarks."""
    program = binary()
    if program is None:
        return frozenset()
    done = subprocess.run([program, "--bench", "--list"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    end = ": benchmark"
    return frozenset(line.removesuffix(end) for line in lines if line.endswith(end))


def medians(benchmark: str) -> dict[str, float]:
    """Run the benchmarks whose names match and return the seconds of one iteration by name."""
    program = binary()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        run = [str(program), "--bench", *SETTINGS, "--noplot", benchmark]
        environ = {**os.environ, "CRITERION_HOME": folder}
        subprocess.run(run, env=environ, capture_output=True, check=True, cwd=ROOT / "benches")
        found = {}
        for path in Path(folder).glob("**/new/estimates.json"):
            name = json.loads(path.with_name("benchmark.json").read_text())["full_id"]
            found[name] = json.loads(path.read_text())["median"]["point_estimate"] * 1e-9
    return found


def criterion_subject(benchmark: str) -> Callable[[int], dict[str, float]]:
    """Return a subject that runs one benchmark of criterion in each round."""
    if binary() is None:
        raise LookupError(f"not built (run: {BUILD})")

    def once(turn: int) -> dict[str, float]:
        found = medians(f"^{benchmark}$")
        if len(found) != 1:
            raise LookupError(f"{benchmark}: expected one benchmark, criterion ran {len(found)}")
        return {"seconds": found.popitem()[1]}

    return once


def subjects(function: str, row: str, peer: str, work: str = "") -> list[Subject]:
    """Return a subject for each backend of a row.

    If the binary is not built, the errors of the subjects contain the build command.

    Args:
        function: Function of the benchmark module that returns `criterion_subject(benchmark)`.
        row: Row of the benchmark, such as "ppo_step/64x64/64".
        peer: Peer whose process runs Candle and Burn, so that they count as peers.
        work: Difference from the other subjects of the row.
    """
    found: list[Subject] = []
    backends = (("rlox in Rust", "built_in", OURS), ("Candle in Rust", "candle", peer), ("Burn in Rust", "burn", peer))
    for name, backend, place in backends:
        benchmark = f"nn_backends/{row}/{backend}"
        if binary() is None:
            found.append(Subject(name, function, place, {"benchmark": benchmark}, work=work))
        elif benchmark in names():
            found += swept(Subject(name, function, place, {"benchmark": benchmark}, work=work))
    return found
