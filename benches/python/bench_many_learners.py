"""64 PPO learners of CartPole-v1 with one seed each, rl-zoo3's settings and 100,000 steps.

rlox trains in `rlox.train_many`. Stable-Baselines3 (SB3) trains in one process per learner, two at
a time, like scripts that are started once per seed. A round has four SB3 learners. Times are for
one learner: the clock time of all learners, divided by their number. "alone" measures only the
training, without the start of processes and their imports. It is a lower bound for the time in
processes that already run.

"solved" is the share of learners whose 20 greedy episodes on Gymnasium's environment have a mean
return of at least 475. "of 64" is 64 times this share. The clock stops before the evaluation.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from side_by_side import Benchmark, Row, Subject, run, swept

import training

SOLVED, AT_ONCE, LEARNERS, SB3_LEARNERS = 475.0, 2, 64, 4


def round_numbers(seconds: float, returns: list[float]) -> dict[str, float]:
    """Return the measurements of a round, with the seconds per learner."""
    share = sum(value >= SOLVED for value in returns) / len(returns)
    numbers = {"learners": float(len(returns)), "solved": share, "of 64": 64 * share}
    return {"seconds": seconds / len(returns), **numbers, "return": sum(returns) / len(returns)}


def rlox(total: int, learners: int, episodes: int) -> training.Once:
    """Time `train_many` on the native backend."""
    from rlox import train_many
    from rlox.callbacks import Callback

    trained: list[Any] = []

    class RunRecorder(Callback):
        """Callback that records the runs for the evaluation."""

        def on_train_end(self, run: Any) -> None:
            trained.append(run)

    def train(seeds: range, steps: int) -> None:
        trained.clear()
        options: dict[str, Any] = {"backend": "native", "runs_dir": None}
        train_many("ppo", training.ENV, seeds, steps, callbacks=lambda: [RunRecorder()], **options)

    def once(turn: int) -> dict[str, float]:
        start = time.perf_counter()
        train(range(turn * learners, (turn + 1) * learners), total)
        seconds = time.perf_counter() - start
        assert len(trained) == learners
        return round_numbers(seconds, [training.greedy_return(x.learner.predict, episodes) for x in trained])

    train(range(AT_ONCE), training.WARM_UP)
    return once


def sb3(total: int, learners: int, episodes: int) -> training.Once:
    """Time Stable-Baselines3 in processes."""
    from stable_baselines3 import PPO

    def learner(seed: int, folder: str) -> float:
        program = [sys.executable, "-W", "ignore", __file__, str(seed), str(total), folder]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout))

    def evaluate(model: Any) -> float:
        return training.greedy_return(lambda x: model.predict(x, deterministic=True)[0], episodes)

    def once(turn: int) -> dict[str, float]:
        seeds = range(turn * learners, (turn + 1) * learners)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                alone = list(pool.map(learner, seeds, [folder] * learners))
            seconds = time.perf_counter() - start
            models = [PPO.load(Path(folder) / str(seed), device="cpu") for seed in seeds]
        numbers = round_numbers(seconds, [evaluate(model) for model in models])
        return {**numbers, "alone": sum(alone) / learners / AT_ONCE}

    training.use_threads(1)
    return once


def sb3_learner(seed: int, total: int, folder: str) -> None:
    """Train in one of SB3's processes, save the model and print the seconds of training."""
    import torch
    from bench_ppo_cartpole import ENVS, ZOO
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    start = time.perf_counter()
    model = training.sb3_model(PPO, ENVS, seed, **ZOO)
    model.learn(total)
    seconds = time.perf_counter() - start
    model.save(Path(folder) / str(seed))
    print(json.dumps(seconds))


def rows(quick: bool) -> list[Row]:
    """Return the only row."""
    total, learners, sb3_learners = (1024, 4, 2) if quick else (100_000, LEARNERS, SB3_LEARNERS)
    ours = Subject("rlox train_many, native", "rlox", options={"learners": learners})
    sb3_subject = Subject("SB3 PPO, two processes", "sb3", "sb3", {"learners": sb3_learners})
    subjects = [*(swept(ours)[:1] if quick else swept(ours)), sb3_subject]
    params = {"total": total, "episodes": 1 if quick else 20}
    return [Row(f"{learners} PPO {training.ENV}, {total} steps each", params, subjects, total)]


COLUMNS = ("learners", "solved", "of 64", "alone")
BENCHMARK = Benchmark("bench_many_learners", "Many learners", rows, rounds=3, columns=COLUMNS)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].isdigit():
        sb3_learner(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(run(BENCHMARK))
