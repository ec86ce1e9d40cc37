"""Actors that collect while the learner learns, on all transports, and several learners.

"Collecting while learning" compares actors that collect during updates with the same trainer
without parallel collection, with one thread and with two. "Actors" compares threads, processes,
gRPC workers and Ray actors. All of them are deterministic and compute the same updates. "staleness" is
the mean staleness of rollouts in updates.

"Ingest", "Step" and "Rollout" measure messages between a gRPC client and a worker over loopback.
They are compared with raw TCP, and with environments in the client's process (`wire.py`).

"DDP" is `rlox.distributed.ddp` under torchrun with two processes of one thread each, compared with
a torch trainer with one thread and with two. All make the same steps with the same total settings.
The clock covers `train()` after a short training. Process starts and imports of torch are excluded.
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
# Small networks on a fast environment, and networks whose updates take most of the time.
CELLS: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("ppo", training.ENV, {}, 16_384),
    ("ppo", training.ENV, {"net_arch": [1024, 1024], "batch_size": 2048, "n_steps": 512, "n_epochs": 4}, 16_384),
    ("sac", "Pendulum-v1", {"num_envs": 2, "batch_size": 256, "learning_starts": 200}, 2_000),
)


def one_process(algorithm: str, env_id: str, settings: dict[str, Any], total: int, threads: int) -> training.Once:
    """Time a trainer on torch."""
    from rlox._registry import ALGORITHMS
    from rlox.trainers import load_trainer

    def once(seed: int, steps: int = total) -> dict[str, float]:
        training.use_threads(threads)
        trainer_cls = load_trainer(ALGORITHMS[algorithm])
        with trainer_cls(env_id, seed, backend="torch", runs_dir=None, **settings) as trainer:
            trainer.learner.threads = threads  # type: ignore[attr-defined]  # only on torch
            start = time.perf_counter()
            trainer.train(steps)
            return {"seconds": time.perf_counter() - start}

    once(12345, 1)
    return once


def ddp(algorithm: str, env_id: str, settings: dict[str, Any], total: int) -> training.Once:
    """Time the same training in processes that torchrun starts for each round."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES)]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", __file__]

    def once(seed: int) -> dict[str, float]:
        payload = json.dumps([algorithm, env_id, settings, total, seed])
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RLOX_NUM_THREADS": "1"}
        done = subprocess.run([*launcher, payload], env=environ, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-2000:])
        result: dict[str, float] = json.loads(done.stdout.decode().splitlines()[-1])
        return result

    return once


def run_rank(payload: str) -> None:
    """Train in each torchrun process. Rank 0 prints the seconds."""
    from rlox.distributed import ddp as distributed

    algorithm, env_id, settings, total, seed = json.loads(payload)
    with distributed.group("gloo") as group:
        for steps in (1, total):
            trainer = group.trainer(algorithm, env_id, seed=seed, runs_dir=None, **settings)
            start = time.perf_counter()
            trainer.train(steps)
            seconds = time.perf_counter() - start
        if group.rank == 0:
            print(json.dumps({"seconds": seconds}))


# Native runs whose updates and collection take about the same time, and other runs.
ASYNC_CELLS: tuple[tuple[str, str, str, dict[str, Any], int], ...] = (
    ("ppo", "native", training.ENV, {}, 200_000),
    ("a2c", "native", training.ENV, {}, 200_000),
    ("impala", "native", training.ENV, {"n_steps": 20}, 200_000),
    ("ppo", "native", "Acrobot-v1", {"num_envs": 64, "n_steps": 64, "batch_size": 512}, 200_000),
    ("ppo", "torch", training.ENV, {"num_envs": 64, "n_steps": 64, "batch_size": 512}, 100_000),
)
SYNCHRONOUS = {"deterministic": True, "max_staleness": 0}


def asynchronous(
    algorithm: str,
    env_id: str,
    settings: dict[str, Any],
    total: int,
    threads: int,
    backend: str = "native",
    warm_up: int = 1,
) -> training.Once:
    """Time a trainer, with or without actors."""
    from rlox._registry import ALGORITHMS
    from rlox.trainers import load_trainer

    def once(seed: int, steps: int = total) -> dict[str, float]:
        training.use_threads(threads)
        trainer_cls = load_trainer(ALGORITHMS[algorithm])
        with trainer_cls(env_id, seed, backend=backend, runs_dir=None, **settings) as trainer:
            trainer.train(warm_up)  # starts the actors
            start = time.perf_counter()
            trainer.train(steps)
            numbers = {"seconds": time.perf_counter() - start}
            actors = getattr(trainer.learner, "actors", None)
            if actors is not None:
                stats = actors._native.stats()
                numbers["staleness"] = stats["total_staleness"] / stats["rollouts"]
            return numbers

    once(12345, 1)
    return once


def wire_subject(name: str) -> training.Once:
    """Return a subject that runs a measurement in Rust."""
    return wire.wire_subject(name)


def workers(count: int) -> str:
    """Start workers on this machine and return their `actors=` value."""
    addresses = []
    for _ in range(count):
        worker = subprocess.Popen([sys.executable, "-m", "rlox", "worker"], stdout=subprocess.PIPE, text=True)
        atexit.register(worker.kill)
        assert worker.stdout
        addresses.append(worker.stdout.readline().split()[3].removeprefix("http://"))
    return f"grpc://{','.join(addresses)}"


def actors_in(transport: str, total: int, threads: int, num_actors: int) -> training.Once:
    """Time IMPALA with actors on a transport."""
    actors = workers(num_actors) if transport == "grpc" else transport
    settings = {"num_actors": num_actors, "deterministic": True, "actors": actors, "n_steps": 20}
    if transport == "ray":
        import ray

        ray.init(num_cpus=num_actors, include_dashboard=False, logging_level="error")
    return asynchronous("impala", training.ENV, settings, total, threads)


def async_rows(quick: bool) -> list[Row]:
    """Return rows that compare parallel with alternating collection."""
    found = []
    for algorithm, backend, env_id, settings, full_total in ASYNC_CELLS[:1] if quick else ASYNC_CELLS:
        total = 2_048 if quick else full_total
        async_settings = {} if algorithm == "impala" else {"async_collect": True}
        sync_settings = SYNCHRONOUS if algorithm == "impala" else {}
        params = {"algorithm": algorithm, "env_id": env_id, "total": total, "backend": backend}
        async_options = {"settings": settings | async_settings, "threads": 1}
        subjects = [Subject("rlox, collecting while learning", "asynchronous", options=async_options)]
        for variant in swept(Subject("rlox, alternating", "asynchronous"))[: 1 if quick else 2]:
            options = {"settings": settings | sync_settings, "threads": variant.threads}
            subjects.append(replace(variant, options=options))
        size = ", ".join(f"{name} {x}" for name, x in settings.items()) or "preset"
        name = f"Collecting while learning, {algorithm.upper()} {env_id}, {backend}, {size}"
        found.append(Row(name, params, subjects, total))
    return found


def actor_rows(quick: bool) -> list[Row]:
    """Return rows of the same rollouts on all transports."""
    total, num_actors = (2_000 if quick else 100_000), 1 if quick else 2
    names = {"threads": "threads", "grpc": "gRPC workers", "processes": "processes"}
    if find_spec("ray") is not None and not quick:
        names["ray"] = "Ray actors"
    subjects = [
        Subject(f"rlox, {name}", "actors_in", options={"transport": transport, "threads": 1})
        for transport, name in names.items()
    ]
    params = {"total": total, "num_actors": num_actors}
    return [Row(f"Actors, IMPALA {training.ENV}, {num_actors} in lockstep", params, subjects, total)]


def rows(quick: bool) -> list[Row]:
    """Return a row for each algorithm and network."""
    found = async_rows(quick) + actor_rows(quick) + wire.rows("wire_subject", quick)
    for algorithm, env_id, settings, full_total in CELLS[:1] if quick else CELLS:
        total = 512 if quick else full_total
        params = {"algorithm": algorithm, "env_id": env_id, "settings": settings, "total": total}
        variants = swept(Subject("rlox, one process", "one_process"))
        subjects = [Subject(f"rlox DDP, {PROCESSES} processes", "ddp")]
        for variant in variants[:1] if quick else variants:
            options = {"threads": variant.threads}
            subjects.append(Subject(variant.name, variant.function, options=options, threads=variant.threads))
        size = "x".join(map(str, settings.get("net_arch", ["usual"])))
        name = f"DDP, {algorithm.upper()} {env_id}, {size} networks, {total} steps"
        found.append(Row(name, params, subjects, total))
    return found


BENCHMARK = Benchmark("bench_distributed", "More than one process", rows, rounds=5, columns=("staleness", "p99 us"))

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run_rank(sys.argv[1])
    else:
        sys.exit(run(BENCHMARK))
