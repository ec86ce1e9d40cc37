"""64 PPO learners of CartPole-v1 with a seed each, rl-zoo3's settings and 100,000 steps.

Ours train in `rlox.train_many`. Stable-Baselines3's train in a process each, two at a time, as
scripts do that are started once for each seed. There are four of them in a round, and times are for
one learner, the wall clock of all over their number: so SB3's 64 would take what four do, 16 times.
"alone" is the same with nothing but the training itself in the clock, neither the start of a
process nor its imports: the least that processes which are there already could take.

"solved" is the share of the learners whose 20 greedy episodes on Gymnasium's own environment have a
mean return of at least 475, "of 64" is how many that are of 64. It is told after the clock has
stopped.
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

SOLVED, AT_ONCE, LEARNERS, FEW = 475.0, 2, 64, 4


def told(seconds: float, returns: list[float]) -> dict[str, float]:
    """What a round came to, for one learner."""
    share = sum(one >= SOLVED for one in returns) / len(returns)
    about = {"learners": float(len(returns)), "solved": share, "of 64": 64 * share}
    return {"seconds": seconds / len(returns), **about, "return": sum(returns) / len(returns)}


def rlox(total: int, learners: int, episodes: int) -> training.Once:
    """`train_many` on the native backend."""
    from rlox import train_many
    from rlox.callbacks import Callback

    trained: list[Any] = []

    class Keep(Callback):
        """Keeps the trainers, to be judged later."""

        def on_train_end(self, trainer: Any) -> None:
            trained.append(trainer)

    def train(seeds: range, steps: int) -> None:
        trained.clear()
        about: dict[str, Any] = {"backend": "native", "runs_dir": None}
        train_many("ppo", training.ENV, seeds, steps, callbacks=lambda: [Keep()], **about)

    def once(turn: int) -> dict[str, float]:
        start = time.perf_counter()
        train(range(turn * learners, (turn + 1) * learners), total)
        seconds = time.perf_counter() - start
        assert len(trained) == learners
        return told(seconds, [training.greedy_return(x.predict, episodes) for x in trained])

    train(range(AT_ONCE), training.WARM_UP)
    return once


def sb3(total: int, few: int, episodes: int) -> training.Once:
    """Stable-Baselines3, in processes."""
    from stable_baselines3 import PPO

    def learner(seed: int, folder: str) -> float:
        program = [sys.executable, "-W", "ignore", __file__, str(seed), str(total), folder]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout))

    def judged(model: Any) -> float:
        return training.greedy_return(lambda x: model.predict(x, deterministic=True)[0], episodes)

    def once(turn: int) -> dict[str, float]:
        seeds = range(turn * few, (turn + 1) * few)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                alone = list(pool.map(learner, seeds, [folder] * few))
            seconds = time.perf_counter() - start
            models = [PPO.load(Path(folder) / str(seed), device="cpu") for seed in seeds]
        numbers = told(seconds, [judged(model) for model in models])
        return {**numbers, "alone": sum(alone) / few / AT_ONCE}

    training.use_threads(1)
    return once


def sb3_learner(seed: int, total: int, folder: str) -> None:
    """The program of one of SB3's processes: trains, saves, and prints the seconds of training."""
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
    """One row."""
    total, learners, few = (1024, 4, 2) if quick else (100_000, LEARNERS, FEW)
    ours = Subject("rlox train_many, native", "rlox", options={"learners": learners})
    theirs = Subject("SB3 PPO, two processes", "sb3", "sb3", {"few": few})
    subjects = [*(swept(ours)[:1] if quick else swept(ours)), theirs]
    params = {"total": total, "episodes": 1 if quick else 20}
    return [Row(f"{learners} PPO {training.ENV}, {total} steps each", params, subjects, total)]


COLUMNS = ("learners", "solved", "of 64", "alone")
BENCHMARK = Benchmark("bench_many_learners", "Many learners", rows, rounds=3, columns=COLUMNS)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].isdigit():
        sb3_learner(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(run(BENCHMARK))
