"""Actors beside the learner, in all places where they may work, and more than one learner.

"Collecting while learning" has actors collect ahead of the learner, against the same trainer that
does both by turns, with one thread and with two. "Actors" has the same rollouts come from threads,
processes, workers of gRPC and actors of Ray; all in lockstep, so that all learn the same.

"Ingest", "Step" and "Rollout" are what crosses the loopback between a client of gRPC and a worker,
beside raw TCP and environments in process (`wire.py`).

"DDP" is `rlox.distributed.ddp` under torchrun with two processes of one thread each, against a
trainer on torch with one thread and with two. All make the same steps with the same settings of the
whole. The clock is around `train()`, after a short training; starting processes and importing torch
are in no clock.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import wire
from side_by_side import Benchmark, Row, Subject, run, swept

import training

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
    from rlox._registry import ALGORITHMS

    def once(seed: int, steps: int = total) -> dict[str, float]:
        training.use_threads(threads)
        kind = ALGORITHMS[algorithm].load_trainer()
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


# What is collected and learned from: native networks whose halves take as long as each other, and
# others.
AHEAD: tuple[tuple[str, str, str, dict[str, Any], int], ...] = (
    ("ppo", "native", training.ENV, {}, 200_000),
    ("a2c", "native", training.ENV, {}, 200_000),
    ("impala", "native", training.ENV, {"n_steps": 20}, 200_000),
    ("ppo", "native", "Acrobot-v1", {"num_envs": 64, "n_steps": 64, "batch_size": 512}, 200_000),
    ("ppo", "torch", training.ENV, {"num_envs": 64, "n_steps": 64, "batch_size": 512}, 100_000),
)
TURNS = {"deterministic": True, "max_staleness": 0}


def ahead(
    algorithm: str,
    env_id: str,
    settings: dict[str, Any],
    total: int,
    threads: int,
    backend: str = "native",
    warm_up: int = 1,
) -> training.Once:
    """A trainer on a backend, with whatever settings of actors."""
    from rlox._registry import ALGORITHMS

    def once(seed: int, steps: int = total) -> dict[str, float]:
        training.use_threads(threads)
        kind = ALGORITHMS[algorithm].load_trainer()
        with kind(env_id, seed, backend=backend, runs_dir=None, **settings) as trainer:
            trainer.train(warm_up)  # which starts actors
            start = time.perf_counter()
            trainer.train(steps)
            told = {"seconds": time.perf_counter() - start}
            actors = getattr(trainer.learner, "actors", None)
            if actors is not None:
                stats = actors._native.stats()
                told["lag"] = stats["total_staleness"] / stats["rollouts"]
            return told

    once(12345, 1)
    return once


def wire_of(name: str) -> training.Once:
    """What is measured in Rust."""
    return wire.measured(name)


def workers(count: int) -> str:
    """Starts workers on this machine; what `actors=` says of them."""
    addresses = []
    for _ in range(count):
        process = subprocess.Popen(
            [sys.executable, "-m", "rlox", "worker"], stdout=subprocess.PIPE, text=True
        )
        atexit.register(process.kill)
        assert process.stdout
        addresses.append(process.stdout.readline().split()[3].removeprefix("http://"))
    return f"grpc://{','.join(addresses)}"


def actors_in(place: str, total: int, threads: int, num_actors: int) -> training.Once:
    """IMPALA with actors in a place."""
    where = workers(num_actors) if place == "grpc" else place
    settings = {"num_actors": num_actors, "deterministic": True, "actors": where, "n_steps": 20}
    if place == "ray":
        import ray

        ray.init(num_cpus=num_actors, include_dashboard=False, logging_level="error")
    return ahead("impala", training.ENV, settings, total, threads)


def ahead_rows(quick: bool) -> list[Row]:
    """Collecting while learning against by turns."""
    found = []
    for algorithm, backend, env_id, settings, whole in AHEAD[:1] if quick else AHEAD:
        total = 2_048 if quick else whole
        apart = {} if algorithm == "impala" else {"async_collect": True}
        by_turns = TURNS if algorithm == "impala" else {}
        about = {"algorithm": algorithm, "env_id": env_id, "total": total, "backend": backend}
        one = {"settings": settings | apart, "threads": 1}
        subjects = [Subject("rlox, collecting while learning", "ahead", options=one)]
        for alone in swept(Subject("rlox, by turns", "ahead"))[: 1 if quick else 2]:
            options = {"settings": settings | by_turns, "threads": alone.threads}
            subjects.append(replace(alone, options=options))
        size = ", ".join(f"{name} {x}" for name, x in settings.items()) or "preset"
        name = f"Collecting while learning, {algorithm.upper()} {env_id}, {backend}, {size}"
        found.append(Row(name, about, subjects, total))
    return found


def place_rows(quick: bool) -> list[Row]:
    """The same rollouts from everywhere."""
    total, num_actors = (2_000 if quick else 100_000), 1 if quick else 2
    names = {"threads": "threads", "grpc": "workers of gRPC", "processes": "processes"}
    if find_spec("ray") is not None and not quick:
        names["ray"] = "actors of Ray"
    subjects = [
        Subject(f"rlox, {name}", "actors_in", options={"place": place, "threads": 1})
        for place, name in names.items()
    ]
    about = {"total": total, "num_actors": num_actors}
    return [Row(f"Actors, IMPALA {training.ENV}, {num_actors} in lockstep", about, subjects, total)]


def rows(quick: bool) -> list[Row]:
    """A row for each algorithm and network."""
    found = ahead_rows(quick) + place_rows(quick) + wire.rows("wire_of", quick)
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


BENCHMARK = Benchmark(
    "bench_distributed", "More than one process", rows, rounds=5, columns=("lag", "p99 us")
)

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        process(sys.argv[1])
    else:
        sys.exit(run(BENCHMARK))
