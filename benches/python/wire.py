"""Measurements of `cargo bench -p rlox-grpc` for `side_by_side.py`: gRPC over loopback, in Rust.

The binary must have been built: `cargo bench -p rlox-grpc --no-run`.
"""

from __future__ import annotations

import json
import subprocess

from criterion_rows import ROOT, binary
from side_by_side import OURS, Row, Subject

import training

BUILD = "cargo bench -p rlox-grpc --no-run"


def wire_subject(name: str) -> training.Once:
    """Return a subject that runs one measurement of the binary in each round."""
    program = binary("remote")
    if program is None:
        raise LookupError(f"not built (run: {BUILD})")

    def once(turn: int) -> dict[str, float]:
        run = [str(program), "--measure", name]
        done = subprocess.run(run, capture_output=True, check=True, cwd=ROOT, text=True)
        result: dict[str, float] = json.loads(done.stdout)
        return {"seconds": result["seconds"], "p99 us": result["p99"] * 1e6}

    return once


def rows(function: str, quick: bool) -> list[Row]:
    """Return rows whose subjects `function` creates from the name of a measurement."""

    def subject(name: str, measurement: str, rival: bool = False) -> Subject:
        return Subject(name, function, OURS, {"name": measurement}, rival=rival)

    found = []
    for kib in (64,) if quick else (4, 64, 1024):
        size = kib * 1024
        subjects = [
            subject("rlox, steps requested in advance", f"ingest/{size}/grpc"),
            subject("rlox, rollouts one by one", f"ingest/{size}/rollouts"),
            subject("raw TCP", f"ingest/{size}/tcp", rival=True),
        ]
        found.append(Row(f"Ingest, batches of {kib} KiB", {}, subjects, size, "bytes"))
    for num_envs in (64,) if quick else (1, 64, 1024):
        subjects = [
            subject("rlox, a worker", f"step/{num_envs}/grpc"),
            subject("rlox, in process", f"step/{num_envs}/local"),
        ]
        found.append(Row(f"Step of {num_envs} remote CartPoles", {}, subjects, num_envs))
    for width in (64,) if quick else (64, 256, 1024):
        subjects = [
            subject("rlox, with new weights", f"weights/{width}/sent"),
            subject("rlox, with unchanged weights", f"weights/{width}/unchanged"),
        ]
        name = f"Rollout of one step of a worker, networks of {width} x {width}"
        found.append(Row(name, {}, subjects, 1, "rollouts"))
    return found
