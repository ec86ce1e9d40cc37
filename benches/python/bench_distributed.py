"""More than one process against one, on one machine.

"DDP" is `rlox.distributed.ddp` under torchrun with two processes of one thread each, against a
trainer on torch with one thread and with two. All make the same steps with the same settings of the
whole. The clock is around `train()`, after a short training; starting processes and importing torch
are in no clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import training
from side_by_side import Benchmark, Row, Subject, run, swept

PROCESSES = 2
# Small networks on a fast environment, and networks in which the time is.
CELLS: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("ppo", training.ENV, {}, 16_384),
    (
        "ppo",
        training.ENV,
        {"net_arch": [1024, 1024], "batch_size": 2048, "n_steps": 512, "n_epochs": 4},
        16_384,
    ),
    ("sac", "Pendulum-v1", {"num_envs": 2, "batch_size": 256, "learning_starts": 200}, 2_000),
)


def one_process(
    algorithm: str, env_id: str, settings: dict[str, Any], total: int, threads: int
) -> training.Once:
    """A trainer on torch."""
    from rlox.trainers import TRAINERS

    def once(seed: int, steps: int = total) -> dict[str, float]:
        training.use_threads(threads)
        kind = TRAINERS[algorithm]
        with kind(env_id, seed, backend="torch", runs_dir=None, **settings) as trainer:
            trainer.learner.threads = threads  # type: ignore[attr-defined]  # torch's have it
            start = time.perf_counter()
            trainer.train(steps)
            return {"seconds": time.perf_counter() - start}

    once(12345, 1)
    return once


def ddp(algorithm: str, env_id: str, settings: dict[str, Any], total: int) -> training.Once:
    """The same in processes that torchrun starts for each round."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES)]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", __file__]

    def once(seed: int) -> dict[str, float]:
        words = json.dumps([algorithm, env_id, settings, total, seed])
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RLOX_NUM_THREADS": "1"}
        done = subprocess.run([*launcher, words], env=environ, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-2000:])
        said: dict[str, float] = json.loads(done.stdout.decode().splitlines()[-1])
        return said

    return once


def process(words: str) -> None:
    """What each of those processes does; rank 0 says how long it took."""
    from rlox.distributed import ddp as distributed

    algorithm, env_id, settings, total, seed = json.loads(words)
    with distributed.group("gloo") as group:
        for steps in (1, total):
            trainer = group.trainer(algorithm, env_id, seed=seed, runs_dir=None, **settings)
            start = time.perf_counter()
            trainer.train(steps)
            seconds = time.perf_counter() - start
        if group.rank == 0:
            print(json.dumps({"seconds": seconds}))


def rows(quick: bool) -> list[Row]:
    """A row for each algorithm and network."""
    found = []
    for algorithm, env_id, settings, whole in CELLS[:1] if quick else CELLS:
        total = 512 if quick else whole
        params = {"algorithm": algorithm, "env_id": env_id, "settings": settings, "total": total}
        alone = swept(Subject("rlox, one process", "one_process"))
        subjects = [Subject(f"rlox DDP, {PROCESSES} processes", "ddp")]
        for one in alone[:1] if quick else alone:
            options = {"threads": one.threads}
            subjects.append(Subject(one.name, one.function, options=options, threads=one.threads))
        size = "x".join(map(str, settings.get("net_arch", ["usual"])))
        name = f"DDP, {algorithm.upper()} {env_id}, {size} networks, {total} steps"
        found.append(Row(name, params, subjects, total))
    return found


BENCHMARK = Benchmark("bench_distributed", "More than one process", rows, rounds=5)

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        process(sys.argv[1])
    else:
        sys.exit(run(BENCHMARK))
