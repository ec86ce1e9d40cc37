"""Overhead of a trainer: time of `train()` divided by the time of the learner's `iterate()`.

Subjects (`side_by_side.py`) make the same steps from the same seed. "iterate()" is a loop that
calls only the learner. "train()" is the trainer's method, and "train(), run folder" also writes
`metrics.csv`, a checkpoint, a summary and, if matplotlib is installed, the curve. The ratio is
relative to the first subject. "parts" is the time of a run divided by the time of its environment
steps, inference, advantages and updates, measured by `rlox._timing`. This excludes the phases
`buffer` (storage) and `other`. "parts" should be at most 1.15. The clock excludes the creation of
environments and networks.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

from side_by_side import Benchmark, Row, Subject, run

import training

CELLS = (
    ("PPO", training.ENV, {"native": 100_000, "torch": 16_384}),
    ("DQN", training.ENV, {"native": 20_000, "torch": 10_000}),
    ("SAC", "Pendulum-v1", {"native": 2_000, "torch": 1_000}),
)
PARTS = ("env_step", "inference", "gae_compute", "gradient_update")
WAYS = {"iterate()": "bare", "train()": "train", "train(), run folder": "with_folder"}
WARM_UP = 600


def subject(algorithm: str, env_id: str, backend: str, total: int, way: str, warm_up: int = WARM_UP) -> training.Once:
    """Time a run in one of `WAYS`."""
    from rlox import _timing as phases
    from rlox import trainers

    trainer_cls = getattr(trainers, f"{algorithm}Trainer")

    def run_once(seed: int, folder: str | None, steps: int) -> tuple[float, float]:
        with trainer_cls(env_id, seed, backend=backend, runs_dir=folder) as trainer:
            training.use_threads(1)
            phases.start()
            start = time.perf_counter()
            if way == "bare":
                iterate(trainer.learner, steps)
            else:
                trainer.train(steps)
            seconds = time.perf_counter() - start
            parts = phases.read()
            phases.stop()
            assert trainer.timesteps >= steps
        return seconds, sum(parts[name] for name in PARTS)

    def once(seed: int, steps: int = total) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            seconds, parts = run_once(seed, folder if way == "with_folder" else None, steps)
        return {"seconds": seconds, "parts": seconds / parts}

    once(12345, warm_up)
    return once


def iterate(learner: Any, steps: int) -> None:
    """Run only the learner, as `train` does."""
    learner.stop_requested = False
    learner.progress_per_step = 1 / steps
    while learner.timesteps < steps:
        learner.iterate(learner.timesteps / steps)


def rows(quick: bool) -> list[Row]:
    """Return a row for each algorithm and backend."""
    found = []
    for algorithm, env_id, totals in CELLS[:1] if quick else CELLS:
        for backend, full_total in totals.items():
            total = 512 if quick else full_total
            subjects = [
                Subject(f"rlox {algorithm}, {backend}, {name}", "subject", options={"way": way})
                for name, way in WAYS.items()
            ]
            params = {"algorithm": algorithm, "env_id": env_id, "backend": backend, "total": total}
            name = f"{algorithm} {env_id}, {backend}, {total} steps"
            found.append(Row(name, params, subjects, total))
    return found


COLUMNS = ("parts",)
BENCHMARK = Benchmark("bench_trainer_overhead", "Overhead of trainers", rows, rounds=9, columns=COLUMNS)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
